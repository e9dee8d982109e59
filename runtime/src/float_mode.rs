//! Floating-point arithmetic as IEEE 754 and Rust have it, whatever mode the thread is in.
//!
//! In: work. Out: its result, rounded to nearest even, with subnormal numbers and without traps.
//! A process may have set its threads to flush subnormal numbers to 0 (many do, for speed), to
//! round otherwise or to trap, and the threads of a pool begin in the mode of the thread that
//! started them. Scales of e8m0 are subnormal at the small end, so that such a mode would change
//! results, and 0 / 0 would follow. Every call into this crate that computes, and every task that it
//! gives to a pool, does so in [`standard`].

/// Runs `work` in the standard mode, and leaves the thread's own mode as it was.
///
/// Where the mode is the standard one already, this costs a few cycles.
pub(crate) fn standard<R>(work: impl FnOnce() -> R) -> R {
    let _kept = Kept::new();
    apart(work)
}

/// Not inlined: no operation of `work` is moved to before or behind the changes of the mode.
#[inline(never)]
fn apart<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// The thread's own mode, which it has again when this is dropped.
struct Kept(Option<control::Word>);

impl Kept {
    fn new() -> Self {
        let own = control::read();
        if control::is_standard(own) {
            return Self(None);
        }
        // SAFETY: the mode that Rust code expects.
        unsafe { control::write(control::STANDARD) };
        Self(Some(own))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(own) = self.0 {
            // SAFETY: the mode in which the caller was.
            unsafe { control::write(own) };
        }
    }
}

/// MXCSR. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 10.2.3.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod control {
    use std::arch::asm;

    pub(super) type Word = u32;
    /// All exceptions masked, to nearest even, no flushing.
    pub(super) const STANDARD: Word = 0x1f80;
    /// What has happened so far: no mode.
    const FLAGS: Word = 0x3f;

    pub(super) fn is_standard(word: Word) -> bool {
        word & !FLAGS == STANDARD
    }

    pub(super) fn read() -> Word {
        let mut word: Word = 0;
        // SAFETY: writes the four bytes of `word`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    /// # Safety
    /// Other modes than the standard one are for the code of others alone.
    pub(super) unsafe fn write(word: Word) {
        // SAFETY: reads the four bytes of `word`; the rest is the caller's promise.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }
}

/// FPCR. Source: Arm Architecture Reference Manual for A-profile, C5.2.
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod control {
    use std::arch::asm;

    pub(super) type Word = u64;
    /// No traps, to nearest even, no flushing.
    pub(super) const STANDARD: Word = 0;

    pub(super) fn is_standard(word: Word) -> bool {
        word == STANDARD
    }

    pub(super) fn read() -> Word {
        let word: Word;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack, preserves_flags)) };
        word
    }

    /// # Safety
    /// Other modes than the standard one are for the code of others alone.
    pub(super) unsafe fn write(word: Word) {
        // SAFETY: writes a register that decides of arithmetic alone: the caller's promise.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

/// No mode is known.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod control {
    pub(super) type Word = ();
    pub(super) const STANDARD: Word = ();

    pub(super) fn is_standard((): Word) -> bool {
        true
    }

    pub(super) fn read() -> Word {}

    /// # Safety
    /// Nothing is done.
    pub(super) unsafe fn write((): Word) {}
}
