//! A team of threads for short parallel regions.
//!
//! In: a function and a number of threads. Out: the function has run on the caller's thread, and at the
//! same time on threads of the caller's rayon pool. The function has to claim its work, since any number
//! of threads may come, from the caller alone to all.
//!
//! A product of one token takes some 10 to 500 us, and waking a thread takes 20 to 50 us. So the threads of
//! a team attend: after a region each spins for up to [`spin`] and joins the next region without a
//! system call. Where too few threads attend, the caller invites a few ([`rayon::spawn`]), those invite
//! others, and the caller begins without them; a thread that comes too late finds the region closed, and
//! waits for the next one.
//!
//! The pool's other users wait for a thread of a team for at most [`YIELD`] where it only attends, and for one
//! unit of work and [`YIELD`] where regions follow one another: so often it takes other work of the pool
//! ([`rayon::yield_now`]). A thread that came while it waited for something else in the pool (`join`,
//! `scope`) goes back to that after [`STAY`].
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

/// How long a thread of a CPU product stays awake for the next product, at most. Default: 1 ms
/// (`docs/performance/cpu.md`).
pub fn spin() -> Duration {
    Duration::from_nanos(SPIN.load(Ordering::Relaxed))
}

/// Sets [`spin`] for all pools of the process. Zero: threads sleep at once, and each product wakes them.
///
/// An engine that leaves more time between two products, and has the cores for itself, gains from a longer
/// time, up to 2 ms; a program that seldom multiplies saves energy by a shorter one. A pool that is dropped
/// ends when its threads no longer stay awake.
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
    let team = MEMBER.try_with(|member| {
        let new = || Arc::new(Team::new(NEXT.fetch_add(1, Ordering::Relaxed)));
        Arc::clone(member.team.borrow_mut().get_or_insert_with(new))
    });
    // A thread that ends has no team any more.
    team.is_ok_and(|team| team.region(threads, work))
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
    /// The number of a team and the epoch of the last region of it that the thread joined.
    joined: Cell<Option<(usize, u32)>>,
}

thread_local! {
    static MEMBER: Member = const {
        Member { team: RefCell::new(None), attends: Cell::new(None), joined: Cell::new(None) }
    };
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
    /// Threads that attend, those that have taken other work of the pool meanwhile among them.
    attending: AtomicUsize,
    /// Threads beside the caller that the last region had room for.
    wanted: AtomicUsize,
    /// Regions in a row in which threads that attend did not join, and how many those were in the last one.
    short: AtomicUsize,
    absent: AtomicUsize,
    /// Threads that were invited and have not come yet.
    invited: AtomicUsize,
    /// When one was last invited, in ns since `start`.
    invited_at: AtomicU64,
    /// Whether the last invitation reached a thread that attends already, since no other one was free.
    in_vain: AtomicBool,
    start: Instant,
    /// What the first thread that panicked said.
    panic: Mutex<Option<Panic>>,
}

type Panic = Box<dyn Any + Send>;

// SAFETY: `job` is the only field that is not `Sync`; `Team::publish` and `Team::join` say why its
// accesses do not meet. A job holds a `Sync` function and a `Send` handle.
unsafe impl Sync for Team {}
// SAFETY: as above. A job that is left over from a closed region is overwritten or dropped, and nothing
// of it is called.
unsafe impl Send for Team {}

/// A region, for the threads that join it.
struct Job {
    /// Valid until the region's caller has seen that the region is closed and nobody runs.
    work: *const (dyn Fn(usize) + Sync),
    threads: usize,
    caller: Thread,
}

/// A word of [`Team::state`]: bit 0 is set while the region is open, bits 1 to 15 count the places that are
/// left, bits 16 to 31 the threads that run, and the rest is the region's epoch.
#[derive(Clone, Copy)]
struct State(u64);

impl State {
    const OPEN: u64 = 1;
    const PLACE: u64 = 1 << 1;
    const RUNNING: u64 = 1 << 16;
    /// Places of a region at most.
    const MOST: usize = (1 << 15) - 1;

    /// The next epoch, open, with so many places.
    fn opened(self, places: usize) -> u64 {
        let epoch = u64::from(self.epoch().wrapping_add(1));
        (epoch << 32) | (places as u64 * Self::PLACE) | Self::OPEN
    }

    fn places(self) -> usize {
        (self.0 >> 1) as usize & Self::MOST
    }

    fn running(self) -> u64 {
        (self.0 >> 16) & 0xffff
    }

    fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }
}

impl Team {
    fn new(number: usize) -> Self {
        Self {
            number,
            taken: AtomicBool::new(false),
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            attending: AtomicUsize::new(0),
            wanted: AtomicUsize::new(0),
            short: AtomicUsize::new(0),
            absent: AtomicUsize::new(0),
            invited: AtomicUsize::new(0),
            invited_at: AtomicU64::new(0),
            in_vain: AtomicBool::new(false),
            start: Instant::now(),
            panic: Mutex::new(None),
        }
    }

    fn state(&self) -> State {
        State(self.state.load(Ordering::Relaxed))
    }

    /// Whether a thread may join.
    fn admits(&self, state: State, member: &Member) -> bool {
        let epoch = Some((self.number, state.epoch()));
        state.is_open() && state.places() > 0 && member.joined.get() != epoch
    }

    /// [`region`] of this team.
    fn region(self: &Arc<Self>, threads: usize, work: Work<'_>) -> bool {
        // A caller that attends, and came here by other work, does not join its own region.
        let attends = MEMBER.try_with(|member| member.attends.get() == Some(self.number));
        let attends = usize::from(attends.unwrap_or(false));
        let caller = thread::current();
        if self.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        let wanted = (threads - 1).min(State::MOST);
        self.attending.fetch_sub(attends, Ordering::SeqCst);
        self.publish(wanted, work, caller);
        // From here on nothing leaves this function before nobody runs: `work` borrows from the caller.
        let own = catch_unwind(AssertUnwindSafe(|| {
            self.invite_if_due();
            work(0);
        }));
        let left = State(self.state.fetch_and(!State::OPEN, Ordering::Relaxed)).places();
        self.wait();
        self.count_absent(left);
        self.attending.fetch_add(attends, Ordering::SeqCst);
        let theirs = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.taken.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
        true
    }

    /// Opens a region of `wanted` threads beside the caller.
    fn publish(&self, wanted: usize, work: Work<'_>, caller: Thread) {
        // SAFETY: the lifetime alone changes. `Team::region` waits until no thread runs `work`, also if
        // the caller's own work panics.
        let work: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(work) };
        // SAFETY: this caller has the team (`taken`), so nobody else writes; the region before is closed
        // and nobody runs, so nobody reads.
        unsafe { *self.job.get() = Some(Job { work, threads: wanted + 1, caller }) };
        self.wanted.store(wanted, Ordering::Relaxed);
        // Sequentially consistent with `attending`: a thread that goes to sleep sees the region, or the
        // caller sees that the thread sleeps (`Team::attend`).
        self.state.store(self.state().opened(wanted), Ordering::SeqCst);
    }

    /// Joins the open region, if there is one with a place that this thread has not joined; returns when
    /// this thread's work is done.
    fn join(&self, member: &Member) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        let places = loop {
            if !self.admits(State(state), member) {
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
        member.joined.set(Some((self.number, State(state).epoch())));
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
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            match &*first {
                None => *first = Some(panic),
                // Its destructor could panic, too, and this thread would run for ever.
                Some(_) => std::mem::forget(panic),
            }
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

    /// Waits until no thread runs.
    fn wait(&self) {
        let runs = || State(self.state.load(Ordering::Acquire)).running() > 0;
        for _ in 0..WAIT_LOOKS {
            if !runs() {
                return;
            }
            std::hint::spin_loop();
        }
        // The last thread of a closed region wakes its caller (`Team::leave`).
        while runs() {
            thread::park();
        }
        // A wake-up that was for somebody else on this thread is given back.
        thread::current().unpark();
    }

    /// Threads that attend but stayed away from the last [`SHORT`] regions have other work.
    fn count_absent(&self, left: usize) {
        let short = if left == 0 { 0 } else { self.short.load(Ordering::Relaxed) + 1 };
        self.short.store(short, Ordering::Relaxed);
        self.absent.store(if short < SHORT { 0 } else { left }, Ordering::Relaxed);
    }

    /// Threads that attend and have no other work.
    fn ready(&self) -> usize {
        let attending = self.attending.load(Ordering::SeqCst);
        attending.saturating_sub(self.absent.load(Ordering::Relaxed))
    }

    /// [`Self::invite`] by a region's caller; not often where it was in vain, as while all other threads of the
    /// pool have work of their own.
    fn invite_if_due(self: &Arc<Self>) {
        if self.ready() >= self.wanted.load(Ordering::Relaxed) {
            return;
        }
        if !self.in_vain.load(Ordering::Relaxed) || self.invited_ago() >= INVITE_AGAIN {
            self.invite();
        }
    }

    /// Invites some of the threads that an open region wants and that are neither ready nor invited.
    fn invite(self: &Arc<Self>) {
        if !self.state().is_open() {
            return;
        }
        let coming = self.ready() + self.invited.load(Ordering::Relaxed);
        let missing = self.wanted.load(Ordering::Relaxed).saturating_sub(coming);
        if missing == 0 {
            return;
        }
        self.invited_at.store(self.now(), Ordering::Relaxed);
        let by = rayon::current_thread_index();
        for _ in 0..missing.min(INVITATIONS) {
            self.invited.fetch_add(1, Ordering::Relaxed);
            let team = Arc::clone(self);
            rayon::spawn(move || team.come(by));
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Nanoseconds since a thread was invited.
    fn invited_ago(&self) -> u64 {
        self.now().saturating_sub(self.invited_at.load(Ordering::Relaxed))
    }

    /// What an invited thread does; `by` is the thread of the pool that invited it.
    fn come(self: &Arc<Self>, by: Option<usize>) {
        self.invited.fetch_sub(1, Ordering::Relaxed);
        let _ = MEMBER.try_with(|member| {
            let mut team = member.team.borrow_mut();
            if team.as_ref().is_none_or(|team| self.number < team.number) {
                *team = Some(Arc::clone(self));
            }
            drop(team);
            match member.attends.get() {
                // Its own invitation, which nobody took: it has other things to do.
                None if by.is_some() && by == rayon::current_thread_index() => {}
                None => {
                    self.in_vain.store(false, Ordering::Relaxed);
                    member.attends.set(Some(self.number));
                    self.attend(member);
                    member.attends.set(None);
                }
                Some(own) if own == self.number => self.in_vain.store(true, Ordering::Relaxed),
                Some(_) => {
                    self.join(member);
                }
            }
        });
    }

    /// Joins region after region, until none has been there for a while or enough threads attend.
    fn attend(self: &Arc<Self>, member: &Member) {
        let ready = self.ready();
        self.attending.fetch_add(1, Ordering::SeqCst);
        if ready >= self.wanted.load(Ordering::Relaxed) {
            self.attending.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        self.invite();
        let came = Instant::now();
        let (mut worked, mut yielded) = (came, came);
        loop {
            if self.join(member) {
                worked = Instant::now();
            } else if self.look(member) {
                continue;
            }
            let now = Instant::now();
            let idle = now - worked;
            if idle >= spin() || now - came >= STAY {
                self.attending.fetch_sub(1, Ordering::SeqCst);
                if now - came >= STAY
                    || !self.admits(State(self.state.load(Ordering::SeqCst)), member)
                {
                    return;
                }
                self.attending.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            if now - yielded >= YIELD && !self.expects() {
                rayon::yield_now();
                yielded = Instant::now();
            }
            if idle > ALONE {
                thread::yield_now();
            }
        }
    }

    /// Whether a thread was invited a moment ago: it has some time to wake up before one that attends may
    /// take its invitation for other work.
    fn expects(&self) -> bool {
        self.invited.load(Ordering::Relaxed) > 0 && self.invited_ago() < WAKING
    }

    /// Watches the state for a microsecond or two: true as soon as there is a region to join.
    fn look(&self, member: &Member) -> bool {
        (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            self.admits(self.state(), member)
        })
    }
}

/// A `pause` takes 10 (AMD) to 45 ns (Intel).
const LOOKS: usize = 64;

/// A caller waits awake for some 20 to 100 us, then it sleeps.
const WAIT_LOOKS: usize = 2048;

/// Threads that one thread invites: that takes some microseconds, and threads that come invite others.
const INVITATIONS: usize = 3;

/// Nanoseconds after which a caller invites again that has done so in vain.
const INVITE_AGAIN: u64 = 100_000;

/// Nanoseconds in which a thread wakes up: less than [`INVITE_AGAIN`], so that the pool's other work has its
/// turn.
const WAKING: u64 = 60_000;

/// Regions after which threads that do not join are taken for absent.
const SHORT: usize = 8;

/// How long a thread that attends does not look for other work of the pool.
const YIELD: Duration = Duration::from_micros(20);

/// How long a thread attends in one go.
const STAY: Duration = Duration::from_millis(2);

/// How long a thread spins before it lets the operating system run another one on its core.
const ALONE: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests;
