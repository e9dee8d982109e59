//! Floating-point arithmetic of IEEE 754 and Rust, whatever the mode of the thread.
//!
//! In: a closure. Out: its result, rounded to nearest even, with subnormal numbers and without
//! traps. A process may have set its threads to flush subnormal numbers to 0 (many do, for speed),
//! to another rounding or to traps, and the threads of a pool inherit the mode of the thread that
//! started them. Small scales of e8m0 are subnormal, so such a mode would change results, and cause
//! 0 / 0. Every function of this crate that computes, and every task that it gives to a pool, runs
//! in [`standard`].

/// Runs `work` in the standard mode, and restores the thread's mode.
///
/// If the mode is the standard one already, this costs a few cycles.
pub fn standard<R>(work: impl FnOnce() -> R) -> R {
    let _saved = SavedMode::new();
    apart(work)
}

/// Not inlined: the compiler must not move operations of `work` across the mode changes.
#[inline(never)]
fn apart<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// The thread's previous mode, which is restored on drop.
struct SavedMode(Option<control::Word>);

impl SavedMode {
    fn new() -> Self {
        let own = control::read();
        if control::is_standard(own) {
            return Self(None);
        }
        // SAFETY: the mode that Rust code assumes.
        unsafe { control::write(control::STANDARD) };
        Self(Some(own))
    }
}

impl Drop for SavedMode {
    fn drop(&mut self) {
        if let Some(own) = self.0 {
            // SAFETY: the mode of the caller.
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
    /// Status flags, which are not part of the mode.
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
    /// Modes other than the standard one are allowed only to restore the caller's mode.
    pub(super) unsafe fn write(word: Word) {
        // SAFETY: reads the four bytes of `word`; the rest is the caller's contract.
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
    /// Modes other than the standard one are allowed only to restore the caller's mode.
    pub(super) unsafe fn write(word: Word) {
        // SAFETY: writes a register that only affects arithmetic: the caller's contract.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

/// The architecture has no known mode register.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod control {
    pub(super) type Word = ();
    pub(super) const STANDARD: Word = ();

    pub(super) fn is_standard((): Word) -> bool {
        true
    }

    pub(super) fn read() -> Word {}

    /// # Safety
    /// The function does nothing.
    pub(super) unsafe fn write((): Word) {}
}
