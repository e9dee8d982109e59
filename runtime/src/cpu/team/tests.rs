use std::sync::Barrier;

use super::*;

/// A pool of its own: teams of other tests do not meet it.
fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool")
}

/// The numbers of the threads that a region ran on. Each waits a while for the others.
fn numbers(threads: usize) -> Vec<usize> {
    let came = AtomicUsize::new(0);
    let numbers = Mutex::new(Vec::new());
    let ran = region(threads, &|number| {
        came.fetch_add(1, Ordering::SeqCst);
        numbers.lock().expect("numbers").push(number);
        let start = Instant::now();
        while came.load(Ordering::SeqCst) < threads && start.elapsed() < Duration::from_secs(20) {
            thread::yield_now();
        }
    });
    assert!(ran, "nobody else has the team");
    numbers.into_inner().expect("numbers")
}

#[test]
fn all_threads_come_and_each_has_a_number_of_its_own() {
    let pool = pool(4);
    for threads in [1, 2, 4, 3, 4] {
        let mut found = pool.install(|| numbers(threads));
        found.sort_unstable();
        assert_eq!(found, (0..threads).collect::<Vec<_>>());
    }
}

#[test]
fn a_thread_joins_a_region_once() {
    let pool = pool(3);
    let threads = Mutex::new(Vec::new());
    pool.install(|| {
        region(3, &|number| {
            threads.lock().expect("threads").push(thread::current().id());
            let start = Instant::now();
            // The others are free to join again while the caller waits for both.
            while number == 0
                && threads.lock().expect("threads").len() < 3
                && start.elapsed() < Duration::from_secs(20)
            {
                thread::yield_now();
            }
        })
    });
    let mut threads = threads.into_inner().expect("threads");
    assert_eq!(threads.len(), 3);
    threads.sort_by_key(|id| format!("{id:?}"));
    threads.dedup();
    assert_eq!(threads.len(), 3, "a thread took the place of another");
}

#[test]
fn a_thread_outside_of_a_pool_works_with_the_global_pool() {
    let threads = rayon::current_num_threads().min(3);
    let came = AtomicUsize::new(0);
    // Another test may have the global team for a moment.
    while !region(threads, &|_| {
        came.fetch_add(1, Ordering::Relaxed);
    }) {
        thread::yield_now();
    }
    assert!((1..=threads).contains(&came.into_inner()));
}

#[test]
fn work_is_over_when_a_region_returns() {
    let _alone = SPINS.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = pool(3);
    pool.install(|| {
        for round in 0..2000 {
            // Memory of this round alone: a thread that came late would write to freed memory.
            let counts: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
            let next = AtomicUsize::new(0);
            let ran = region(3, &|_| {
                while let Some(count) = counts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    count.fetch_add(round + 1, Ordering::Relaxed);
                }
            });
            assert!(ran);
            assert!(
                counts.iter().all(|count| count.load(Ordering::Relaxed) == round + 1),
                "{round}"
            );
            if round % 500 == 0 {
                // Longer than threads stay awake.
                thread::sleep(2 * spin());
            }
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_after_the_others_have_finished() {
    let pool = pool(3);
    for panics in 0..3 {
        let finished = AtomicUsize::new(0);
        let barrier = Barrier::new(3);
        let caught = pool.install(|| {
            catch_unwind(AssertUnwindSafe(|| {
                region(3, &|number| {
                    barrier.wait();
                    assert!(number != panics, "thread {number}");
                    thread::sleep(Duration::from_millis(5));
                    finished.fetch_add(1, Ordering::Relaxed);
                })
            }))
        });
        let panic = caught.expect_err("a panic");
        assert_eq!(panic.downcast_ref::<String>(), Some(&format!("thread {panics}")));
        assert_eq!(finished.into_inner(), 2);
    }
    assert_eq!(pool.install(|| numbers(3)).len(), 3, "the team works on");
}

#[test]
fn a_region_in_a_region_is_refused() {
    let pool = pool(2);
    let inner = AtomicUsize::new(0);
    pool.install(|| {
        region(2, &|_| {
            inner.fetch_add(usize::from(region(2, &|_| ())), Ordering::Relaxed);
        })
    });
    assert_eq!(inner.into_inner(), 0);
}

#[test]
fn callers_at_the_same_time_do_not_meet() {
    let pool = pool(3);
    let (had, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let inside = AtomicBool::new(false);
    let one = |_: &rayon::Scope<'_>| {
        for _ in 0..500 {
            let ran = region(3, &|number| {
                if number == 0 {
                    assert!(!inside.swap(true, Ordering::SeqCst), "two regions of one team");
                    thread::yield_now();
                    inside.store(false, Ordering::SeqCst);
                }
            });
            if ran { &had } else { &refused }.fetch_add(1, Ordering::Relaxed);
        }
    };
    pool.install(|| {
        // All threads know one team from here on.
        numbers(3);
        rayon::scope(|scope| (0..3).for_each(|_| scope.spawn(one)));
    });
    assert!(had.load(Ordering::Relaxed) > 0);
    assert_eq!(had.into_inner() + refused.into_inner(), 1500);
}

/// Tests that depend on [`spin`], which is one for the process, run one after the other.
static SPINS: Mutex<()> = Mutex::new(());

#[test]
fn other_work_of_the_pool_goes_on_while_threads_stay_awake() {
    let _alone = SPINS.lock().unwrap_or_else(PoisonError::into_inner);
    let usual = spin();
    set_spin(Duration::from_secs(600));
    let pool = pool(2);
    let both = pool.install(|| {
        numbers(2);
        let came = AtomicUsize::new(0);
        // Both halves run at the same time if the thread that attends takes one.
        let half = || {
            came.fetch_add(1, Ordering::SeqCst);
            let start = Instant::now();
            while came.load(Ordering::SeqCst) < 2 && start.elapsed() < Duration::from_secs(20) {
                thread::yield_now();
            }
            came.load(Ordering::SeqCst)
        };
        rayon::join(half, half)
    });
    set_spin(usual);
    assert_eq!(both, (2, 2));
}

#[test]
fn threads_fall_asleep() {
    let _alone = SPINS.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = pool(2);
    let team = pool.install(|| {
        numbers(2);
        MEMBER.with(|member| member.team.borrow().clone()).expect("a team")
    });
    let start = Instant::now();
    while team.awake.load(Ordering::Relaxed) > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "a thread stays awake for ever");
        thread::sleep(Duration::from_millis(1));
    }
}
