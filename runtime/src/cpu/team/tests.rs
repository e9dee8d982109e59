use rayon::prelude::*;

use super::*;

/// A pool of its own: teams of other tests do not meet it.
fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool")
}

/// Calls `attempt` until it is true: which threads of a pool come to a region depends on the machine.
fn in_the_end(mut attempt: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        if attempt() {
            return true;
        }
    }
    false
}

/// Waits a while until so many threads have come.
fn wait_for(came: &AtomicUsize, threads: usize) {
    let start = Instant::now();
    while came.load(Ordering::SeqCst) < threads && start.elapsed() < Duration::from_millis(20) {
        thread::yield_now();
    }
}

/// The numbers of the threads of a region in which as many came as were asked for.
fn numbers(threads: usize) -> Vec<usize> {
    let mut all = Vec::new();
    in_the_end(|| {
        let came = AtomicUsize::new(0);
        let numbers = Mutex::new(Vec::new());
        let ran = region(threads, &|number| {
            numbers.lock().expect("numbers").push(number);
            came.fetch_add(1, Ordering::SeqCst);
            wait_for(&came, threads);
        });
        assert!(ran, "nobody else has the team");
        all = numbers.into_inner().expect("numbers");
        all.len() == threads
    });
    all
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
    pool.install(|| {
        for _ in 0..200 {
            let (came, threads) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
            region(3, &|number| {
                threads.lock().expect("threads").push(thread::current().id());
                came.fetch_add(1, Ordering::SeqCst);
                // The others are free to join again while the caller waits for both.
                if number == 0 {
                    wait_for(&came, 3);
                }
            });
            let threads = threads.into_inner().expect("threads");
            let twice = (1..threads.len()).any(|at| threads[..at].contains(&threads[at]));
            assert!(!twice, "a thread took the place of another");
        }
    });
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
    let inside = AtomicUsize::new(0);
    pool.install(|| {
        for round in 0..2000 {
            // Memory of this round alone: a thread that came late would write to freed memory.
            let counts: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
            let next = AtomicUsize::new(0);
            let ran = region(3, &|number| {
                inside.fetch_add(1, Ordering::SeqCst);
                while let Some(count) = counts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    count.fetch_add(round + 1, Ordering::Relaxed);
                }
                if number > 0 && round % 40 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                inside.fetch_sub(1, Ordering::SeqCst);
            });
            assert!(ran);
            assert_eq!(inside.load(Ordering::SeqCst), 0, "a thread still runs after round {round}");
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
        assert!(in_the_end(|| {
            let (came, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let caught = pool.install(|| {
                catch_unwind(AssertUnwindSafe(|| {
                    region(3, &|number| {
                        came.fetch_add(1, Ordering::SeqCst);
                        wait_for(&came, 3);
                        assert!(number != panics, "thread {number}");
                        thread::sleep(Duration::from_millis(5));
                        finished.fetch_add(1, Ordering::Relaxed);
                    })
                }))
            });
            if came.into_inner() < 3 {
                return false;
            }
            let panic = caught.expect_err("a panic");
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("thread {panics}")));
            assert_eq!(finished.into_inner(), 2);
            true
        }));
    }
    assert_eq!(pool.install(|| numbers(3)).len(), 3, "the team works on");
}

#[test]
fn a_thread_that_ends_may_multiply() {
    struct AtTheEnd;
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let (came, text) = (AtomicUsize::new(0), String::from("of the caller"));
            region(2, &|_| {
                came.fetch_add(text.len(), Ordering::SeqCst);
                wait_for(&came, 2 * text.len());
            });
        }
    }
    thread_local!(static LAST: AtTheEnd = const { AtTheEnd });
    for _ in 0..20 {
        let thread = thread::spawn(|| {
            LAST.with(|_| ());
            // What a thread knows of its team ends before `LAST` does.
            region(2, &|_| ());
        });
        thread.join().expect("no panic");
    }
    assert!(in_the_end(|| region(2, &|_| ())), "the team is not taken for ever");
}

#[test]
fn a_thread_that_waits_goes_back_to_what_it_waits_for() {
    /// A product, as [`queue::share`](super::super::queue::share) has it.
    fn product() {
        let next = AtomicUsize::new(0);
        let task = |_: usize| {
            while next.fetch_add(1, Ordering::Relaxed) < 8 {
                (0..200).for_each(|_| std::hint::spin_loop());
            }
        };
        if !region(2, &task) {
            (0..2).into_par_iter().for_each(task);
        }
    }
    let pool = pool(2);
    let (start, done) = (Instant::now(), AtomicBool::new(false));
    pool.scope(|scope| {
        // Products one after the other until the other thread is through.
        scope.spawn(|_| {
            while !done.load(Ordering::SeqCst) && start.elapsed() < Duration::from_secs(30) {
                product();
            }
        });
        scope.spawn(|_| {
            (0..2000).for_each(|_| {
                rayon::join(product, product);
            });
            done.store(true, Ordering::SeqCst);
        });
    });
    assert!(start.elapsed() < Duration::from_secs(30), "a thread stayed with the other's products");
}

#[test]
fn a_wake_up_for_somebody_else_is_not_lost() {
    let pool = pool(2);
    pool.install(|| {
        numbers(2);
        thread::current().unpark();
        assert!(in_the_end(|| {
            let (came, slow) = (AtomicUsize::new(0), AtomicBool::new(false));
            region(2, &|number| {
                came.fetch_add(1, Ordering::SeqCst);
                wait_for(&came, 2);
                if number == 1 {
                    // The caller falls asleep meanwhile.
                    thread::sleep(Duration::from_millis(20));
                    slow.store(true, Ordering::SeqCst);
                }
            });
            slow.into_inner()
        }));
        let start = Instant::now();
        thread::park_timeout(Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
    });
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
    while team.attending.load(Ordering::Relaxed) > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "a thread stays awake for ever");
        thread::sleep(Duration::from_millis(1));
    }
}
