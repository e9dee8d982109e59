//! Detection of `fork`. A pool of threads does not survive `fork`: the child has only the forking
//! thread, and waits forever for work that it gives to the pool. [`check`] detects this before.
//!
//! The global pool is assumed to belong to the process that first calls [`check`], and a pool's own
//! thread to the process in which it first calls [`check`]. A pool that a child creates for itself
//! belongs to the child and works. Not detected: a process id that is the same in the child
//! (another PID namespace), and a global pool that only other code used before the fork.

use std::cell::Cell;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The threads of the pool belong to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process was forked from process {parent}, which has the threads of the rayon pool: work would \
     wait for them for ever; multiply in a pool that the child has made \
     (rayon::ThreadPoolBuilder::new().build(), then install), or start a new program instead of forking"
)]
pub struct Forked {
    /// The process that has the threads.
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

/// Checks that the pool of this thread's work belongs to this process.
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
