//! Several products in turns, so that whatever else the machine does meets all of them.

use std::error::Error;
use std::time::{Duration, Instant};

use quantloom_tools::measure::{median, seconds};

/// One of those that are compared.
pub struct Contestant<'a> {
    /// Copies of the weight, all together beyond the caches.
    pub copies: usize,
    /// Multiplies with a copy.
    pub call: Call<'a>,
}

type Call<'a> = Box<dyn FnMut(usize) -> Result<(), Box<dyn Error>> + 'a>;

/// Timed calls of a contestant in a round; one more goes before them, while the threads of the
/// one before it may still spin.
const CALLS: usize = 3;

/// Median seconds of each contestant: rounds of all of them until `budget` is spent, at least
/// five. Before the first one every copy is used once: candle repacks a weight when it is first
/// multiplied.
pub fn medians(
    contestants: &mut [Contestant<'_>],
    budget: Duration,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut times = vec![Vec::new(); contestants.len()];
    let mut turns = vec![0; contestants.len()];
    for contestant in contestants.iter_mut() {
        for copy in 0..contestant.copies {
            (contestant.call)(copy)?;
        }
    }
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < 5 || start.elapsed() < budget {
        for ((contestant, times), turn) in contestants.iter_mut().zip(&mut times).zip(&mut turns) {
            for call in 0..=CALLS {
                let mut done = Ok(());
                let time = seconds(|| done = (contestant.call)(*turn % contestant.copies));
                done?;
                *turn += 1;
                if call > 0 {
                    times.push(time);
                }
            }
        }
        rounds += 1;
    }
    Ok(times.iter_mut().map(|times| median(times)).collect())
}
