//! The machine's own rates, as denominators: how fast it reads memory, how fast it multiplies.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rayon::prelude::*;

/// Read bandwidth of all cores in GB/s: the best of several sums over a buffer beyond the
/// caches.
pub fn read_bandwidth() -> f64 {
    const WORDS: usize = 32 << 20;
    let buffer: Vec<u64> = (0..WORDS as u64).into_par_iter().collect();
    let seconds = best_of(5, || {
        let sum = buffer.par_chunks(1 << 16).map(|part| {
            let mut sums = [0u64; 16];
            for words in part.chunks_exact(16) {
                for (sum, word) in sums.iter_mut().zip(words) {
                    *sum = sum.wrapping_add(*word);
                }
            }
            sums.iter().fold(0u64, |sum, part| sum.wrapping_add(*part))
        });
        black_box(sum.reduce(|| 0, u64::wrapping_add));
    });
    (WORDS * 8) as f64 / seconds / 1e9
}

/// f32 multiply-adds of all cores in GOP/s (two operations each), from registers, as this
/// build's plain Rust reaches them.
pub fn multiply_rate() -> f64 {
    const LANES: usize = 64;
    const STEPS: usize = 1 << 20;
    let threads = rayon::current_num_threads();
    let seconds = best_of(5, || {
        (0..threads).into_par_iter().for_each(|thread| {
            let (a, b) = (black_box([0.999f32; LANES]), black_box([1e-3f32; LANES]));
            let mut sums = [thread as f32; LANES];
            for _ in 0..STEPS {
                for ((sum, a), b) in sums.iter_mut().zip(&a).zip(&b) {
                    *sum = *sum * a + b;
                }
            }
            black_box(sums);
        });
    });
    (2 * LANES * STEPS * threads) as f64 / seconds / 1e9
}

/// Median seconds of a call: at least `least` calls and until `budget` is spent.
pub fn median_seconds(least: usize, budget: Duration, mut call: impl FnMut()) -> f64 {
    call();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < least || start.elapsed() < budget && times.len() < 1000 {
        let begin = Instant::now();
        call();
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn best_of(times: usize, mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..times {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
