//! A team of threads for short parallel regions.
//!
//! In: a function and a number of threads. Out: the function has run on the caller's thread, and at the
//! same time on threads of the caller's rayon pool. The function has to claim its work, since any number
//! of threads may come, from the caller alone to all.
//!
//! A product of one token takes some 10 to 500 us, and waking a thread takes 20 to 50 us. So the threads of
//! a team stay awake after a region: each spins for [`spin`] and joins the next region without a
//! system call. Between looks at the team a spinning thread runs other work of the pool
//! ([`rayon::yield_now`]), so that the pool's other users do not wait for it. Where too few threads are
//! awake, the caller calls a few ([`rayon::spawn`]), those call others, and the caller begins without them; a
//! thread that comes too late finds the region closed, and waits for the next one.
//!
//! Each pool has a team. Calls at the same time from several threads share one pool: the first has the
//! team, the others take the pool without it.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// What a thread of a region runs, with its number in the region: the caller's is 0.
pub(super) type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// Nanoseconds of [`spin`].
static SPIN: AtomicU64 = AtomicU64::new(1_000_000);

/// How long a thread of a CPU product stays awake for the next product. Default: 1 ms
/// (`docs/performance/cpu.md`).
pub fn spin() -> Duration {
    Duration::from_nanos(SPIN.load(Ordering::Relaxed))
}

/// Sets [`spin`] for all pools of the process. Zero: threads sleep at once, and each product wakes them.
///
/// An engine that leaves more time between two products, and has the cores for itself, gains from a longer
/// time; a program that seldom multiplies saves energy by a shorter one.
pub fn set_spin(time: Duration) {
    SPIN.store(time.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Runs `work` on this thread and on up to `threads - 1` others of its rayon pool, and returns when all
/// have finished. False, with nothing done, if another region has the team.
///
/// # Panics
/// If `work` panics on any thread, after all threads have finished.
pub(super) fn region(threads: usize, work: Work<'_>) -> bool {
    if threads <= 1 {
        work(0);
        return true;
    }
    if rayon::current_thread_index().is_none() {
        // The pool of a thread that is in no pool.
        return GLOBAL.region(threads, work);
    }
    let team = MEMBER.with(|member| {
        let new = || Arc::new(Team::new(NEXT.fetch_add(1, Ordering::Relaxed)));
        Arc::clone(member.team.borrow_mut().get_or_insert_with(new))
    });
    team.region(threads, work)
}

/// The team of the global pool, as threads outside of any pool see it.
static GLOBAL: LazyLock<Arc<Team>> = LazyLock::new(|| Arc::new(Team::new(0)));

/// The number of the next team of a pool.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// What a thread of a pool knows.
struct Member {
    /// The team of its pool. Two threads of a pool may make a team each; that of the lower number stays.
    team: RefCell<Option<Arc<Team>>>,
    /// The number of the team that the thread attends, below on its stack.
    attends: Cell<Option<usize>>,
}

thread_local! {
    static MEMBER: Member = const { Member { team: RefCell::new(None), attends: Cell::new(None) } };
}

struct Team {
    number: usize,
    /// Whether a region has the team.
    taken: AtomicBool,
    /// The region that is open, and who is in it.
    state: AtomicU64,
    /// The region's work. Written by the region's caller while `state` is closed and nobody runs; read by
    /// threads that run.
    job: UnsafeCell<Option<Job>>,
    /// Threads that attend.
    awake: AtomicUsize,
    /// Threads beside the caller that the last region had room for.
    wanted: AtomicUsize,
    /// Threads that were called and have not come yet.
    called: AtomicUsize,
    /// When the last one was called, in ns since `start`.
    called_at: AtomicU64,
    start: Instant,
    /// What the first thread that panicked said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not `Sync`; `Team::publish` and `Team::join` say why its
// accesses do not meet. A job holds a `Sync` function and a `Send` handle.
unsafe impl Sync for Team {}
// SAFETY: as above; a job is only there during a region, which borrows the team.
unsafe impl Send for Team {}

/// A region, for the threads that join it.
struct Job {
    /// Valid until the region's caller has seen that the region is closed and nobody runs.
    work: *const (dyn Fn(usize) + Sync),
    threads: usize,
    caller: Thread,
}

/// A word of [`Team::state`]: bit 0 is set while the region is open, bits 1 to 15 count the places that are
/// left, bits 16 to 31 the threads that run, and the rest numbers the regions.
#[derive(Clone, Copy)]
struct State(u64);

impl State {
    const OPEN: u64 = 1;
    const PLACE: u64 = 1 << 1;
    const RUNNING: u64 = 1 << 16;
    /// Places of a region at most.
    const MOST: usize = (1 << 15) - 1;

    fn opened(self, places: usize) -> u64 {
        u64::from(self.region().wrapping_add(1)) << 32 | places as u64 * Self::PLACE | Self::OPEN
    }

    fn places(self) -> usize {
        (self.0 >> 1) as usize & Self::MOST
    }

    fn running(self) -> u64 {
        self.0 >> 16 & 0xffff
    }

    fn region(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    /// Whether a thread that was last in region `seen` may join.
    fn admits(self, seen: u32) -> bool {
        self.is_open() && self.places() > 0 && self.region() != seen
    }
}

impl Team {
    fn new(number: usize) -> Self {
        Self {
            number,
            taken: AtomicBool::new(false),
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            awake: AtomicUsize::new(0),
            wanted: AtomicUsize::new(0),
            called: AtomicUsize::new(0),
            called_at: AtomicU64::new(0),
            start: Instant::now(),
            panic: Mutex::new(None),
        }
    }

    /// [`region`] of this team.
    fn region(self: &Arc<Self>, threads: usize, work: Work<'_>) -> bool {
        if self.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        let others = (threads - 1).min(State::MOST);
        self.publish(others, work);
        // A caller that attends, and came here by other work, does not join its own region.
        let attends = MEMBER.with(|member| member.attends.get() == Some(self.number));
        self.awake.fetch_sub(usize::from(attends), Ordering::SeqCst);
        self.call();
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        self.state.fetch_and(!State::OPEN, Ordering::Relaxed);
        self.wait();
        self.awake.fetch_add(usize::from(attends), Ordering::SeqCst);
        let others = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.taken.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(others) {
            resume_unwind(panic);
        }
        true
    }

    /// Opens a region of `others` threads beside the caller.
    fn publish(&self, others: usize, work: Work<'_>) {
        // SAFETY: the lifetime alone changes. `Team::region` waits until no thread runs `work`,
        // also if the caller's own work panics.
        let work: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(work) };
        // SAFETY: this caller has the team (`taken`), so nobody else writes; the region before is closed
        // and nobody runs, so nobody reads.
        unsafe {
            *self.job.get() = Some(Job { work, threads: others + 1, caller: thread::current() })
        };
        self.wanted.store(others, Ordering::Relaxed);
        let state = State(self.state.load(Ordering::Relaxed)).opened(others);
        // Sequentially consistent with `awake`: a thread that goes to sleep sees the region, or the caller
        // sees that the thread sleeps (`Team::attend`).
        self.state.store(state, Ordering::SeqCst);
    }

    /// Joins the open region, if there is one beside `seen`; returns when this thread's work is done.
    fn join(&self, seen: &mut u32) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        let places = loop {
            if !State(state).admits(*seen) {
                return false;
            }
            let joined = state - State::PLACE + State::RUNNING;
            match self.state.compare_exchange_weak(
                state,
                joined,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break State(state).places(),
                Err(now) => state = now,
            }
        };
        *seen = State(state).region();
        // SAFETY: this thread runs, so the caller waits for it before `job` is written again. The exchange
        // acquired what `publish` released.
        let job = unsafe { &*self.job.get() };
        let Some(job) = job else { return self.leave(None) };
        let caller = job.caller.clone();
        // SAFETY: the function lives while this thread runs.
        let work = unsafe { &*job.work };
        // Places are given from the last to the first.
        let number = job.threads - places;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(number))) {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        self.leave(Some(caller))
    }

    /// The thread no longer runs: nothing of the region is used from here on.
    fn leave(&self, caller: Option<Thread>) -> bool {
        let before = State(self.state.fetch_sub(State::RUNNING, Ordering::Release));
        if let (false, 1, Some(caller)) = (before.is_open(), before.running(), caller) {
            caller.unpark();
        }
        true
    }

    /// Calls some of the threads that an open region wants and that are neither awake nor called.
    fn call(self: &Arc<Self>) {
        if !State(self.state.load(Ordering::Relaxed)).is_open() {
            return;
        }
        let coming = self.awake.load(Ordering::SeqCst) + self.called.load(Ordering::Relaxed);
        let missing = self.wanted.load(Ordering::Relaxed).saturating_sub(coming);
        for _ in 0..missing.min(CALLS) {
            self.called.fetch_add(1, Ordering::Relaxed);
            self.called_at.store(self.now(), Ordering::Relaxed);
            let team = Arc::clone(self);
            rayon::spawn(move || team.come());
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// What a called thread does.
    fn come(self: &Arc<Self>) {
        self.called.fetch_sub(1, Ordering::Relaxed);
        MEMBER.with(|member| {
            let mut team = member.team.borrow_mut();
            if team.as_ref().is_none_or(|team| self.number < team.number) {
                *team = Some(Arc::clone(self));
            }
            drop(team);
            match member.attends.get() {
                None => {
                    member.attends.set(Some(self.number));
                    self.attend();
                    member.attends.set(None);
                }
                // The call was for a thread that sleeps.
                Some(own) if own == self.number => self.call(),
                Some(_) => {
                    self.join(&mut self.before());
                }
            }
        });
    }

    /// The region before the last one: a thread that comes may join the last one.
    fn before(&self) -> u32 {
        State(self.state.load(Ordering::Relaxed)).region().wrapping_sub(1)
    }

    /// Joins region after region, until none has been there for a while or enough threads attend.
    fn attend(self: &Arc<Self>) {
        if self.awake.fetch_add(1, Ordering::SeqCst) >= self.wanted.load(Ordering::Relaxed) {
            self.awake.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        self.call();
        let mut seen = self.before();
        let mut idle_since = Instant::now();
        loop {
            if self.join(&mut seen) {
                idle_since = Instant::now();
                continue;
            }
            if self.look(seen) {
                continue;
            }
            let idle = idle_since.elapsed();
            if idle < spin() {
                self.serve(idle);
                continue;
            }
            self.awake.fetch_sub(1, Ordering::SeqCst);
            if !State(self.state.load(Ordering::SeqCst)).admits(seen) {
                return;
            }
            self.awake.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Lets others work: the pool's other users on this thread, other threads on this core.
    fn serve(&self, idle: Duration) {
        // A call is for a thread that sleeps: it has some time to wake up before this one may take it.
        let called = self.called.load(Ordering::Relaxed) > 0;
        if !called || self.now().saturating_sub(self.called_at.load(Ordering::Relaxed)) > WAKING {
            rayon::yield_now();
        }
        if idle > ALONE {
            thread::yield_now();
        }
    }

    /// Watches the state for a microsecond or two: true as soon as there is a region to join.
    fn look(&self, seen: u32) -> bool {
        (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            State(self.state.load(Ordering::Relaxed)).admits(seen)
        })
    }

    /// Waits until no thread runs.
    fn wait(&self) {
        for _ in 0..WAIT_LOOKS {
            if State(self.state.load(Ordering::Acquire)).running() == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        // The last thread of a closed region wakes its caller (`Team::leave`).
        while State(self.state.load(Ordering::Acquire)).running() > 0 {
            thread::park();
        }
    }
}

/// A `pause` takes 10 (AMD) to 45 ns (Intel).
const LOOKS: usize = 64;

/// A caller waits awake for some 20 to 100 us, then it sleeps.
const WAIT_LOOKS: usize = 2048;

/// Threads that one thread calls: a call takes some microseconds, and threads that come call others.
const CALLS: usize = 3;

/// Nanoseconds in which a thread wakes up.
const WAKING: u64 = 100_000;

/// How long a thread spins before it lets the operating system run another one on its core.
const ALONE: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests;
