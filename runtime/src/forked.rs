//! A pool of threads does not survive `fork`: the child has the forking thread alone, and work that it
//! gives to the pool is waited for without an end. [`check`] finds that out before.
//!
//! The global pool is taken for one of the process in which it was first asked about here, a pool's own
//! thread for one of the process in which it first came by. A pool that a child makes for itself is its
//! own and works. What is not found: a process id that is the same in the child (another PID namespace),
//! and a global pool that only others have used before the fork.

use std::cell::Cell;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The threads of the pool are those of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process was forked from process {parent}, where the threads of the rayon pool are: work would \
     wait for them for ever; multiply in a pool that the child has made \
     (rayon::ThreadPoolBuilder::new().build(), then install), or start a new program instead of forking"
)]
pub struct Forked {
    /// The process whose threads they are.
    pub parent: u32,
}

/// No process has this number.
const NOBODY: u32 = 0;

/// The process of the global pool.
static GLOBAL: AtomicU32 = AtomicU32::new(NOBODY);

thread_local! {
    /// The process of a pool's thread.
    static OWN: Cell<u32> = const { Cell::new(NOBODY) };
}

/// Whether the pool that work of this thread goes to is of this process.
pub(crate) fn check() -> Result<(), Forked> {
    let now = process::id();
    let parent = if rayon::current_thread_index().is_some() {
        OWN.with(|own| {
            if own.get() == NOBODY {
                own.set(now);
            }
            own.get()
        })
    } else {
        match GLOBAL.compare_exchange(NOBODY, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(known) => known,
        }
    };
    if parent == now { Ok(()) } else { Err(Forked { parent }) }
}
