//! The read bandwidth of this machine's memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use quantloom_runtime::AlignedBuffer;

use super::seconds;

/// Streams that a thread may read in parallel, each one cache line per step. How many are the fastest depends on the
/// prefetchers: on a Xeon (Sapphire Rapids) eight read 1.3 to 1.7 times as much as one, which waits at every page, on a Zen 5
/// two read 1.2 times as much as eight. So each number is tried.
const STREAMS: [usize; 4] = [1, 2, 4, 8];
/// Samples by which a number of streams is judged.
const TRIALS: usize = 3;
/// Bytes of a part of the memory. A sample reads the next part, which the other parts have displaced from the caches, and
/// displaces itself what the calls before it have left there.
const PART: usize = 256 << 20;
/// The smallest page of any system, in bytes.
const LEAST_PAGE: usize = 4096;
/// The assumed size of the last-level cache if the system does not report it, in bytes.
const USUAL_CACHE: usize = 32 << 20;

/// Memory that is larger than the caches, to be read repeatedly; in the same pages as weights.
pub struct Memory {
    buffer: AlignedBuffer,
    samples: AtomicUsize,
    /// Streams of a thread.
    streams: usize,
}

impl Memory {
    /// Four times the last level of cache, 256 MiB at the least and 1 GiB at the most. A few samples (about 0.1 s) decide how
    /// threads of the current pool read it.
    pub fn beyond_the_caches() -> Self {
        let mut memory = AlignedBuffer::zeroed((4 * last_level_cache()).clamp(PART, 1 << 30));
        // Every page is written once: reads of an unwritten page would all read one page of zeros.
        for (at, line) in memory.lines_mut().iter_mut().step_by(LEAST_PAGE / 64).enumerate() {
            line[..8].copy_from_slice(&(at as u64).to_ne_bytes());
        }
        let mut memory = Self { buffer: memory, samples: AtomicUsize::new(0), streams: STREAMS[0] };
        let mut rate = |streams| {
            memory.streams = streams;
            (memory.best_of(TRIALS), streams)
        };
        let fastest =
            STREAMS.map(&mut rate).into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
        memory.streams = fastest.map_or(STREAMS[0], |(_, streams)| streams);
        memory
    }

    /// Lines of a stream of a thread, of one part.
    fn stream(&self) -> usize {
        PART / 64 / (rayon::current_num_threads() * self.streams)
    }

    /// Bytes that one sample reads.
    pub fn bytes(&self) -> usize {
        rayon::current_num_threads() * self.streams * self.stream() * 64
    }

    /// Reads the next part of the memory with every thread of the pool; 10^9 bytes per second.
    pub fn sample(&self) -> f64 {
        let stream = self.stream();
        let parts = self.buffer.lines().chunks_exact(PART / 64);
        let part = self.samples.fetch_add(1, Ordering::Relaxed) % parts.len();
        let lines = &self.buffer.lines()[part * (PART / 64)..];
        let seconds = seconds(|| {
            rayon::broadcast(|thread| {
                let first = thread.index() * self.streams * stream;
                black_box(sum(&lines[first..][..self.streams * stream], self.streams));
            });
        });
        self.bytes() as f64 / seconds / 1e9
    }

    /// The best of several samples.
    pub fn best_of(&self, samples: usize) -> f64 {
        (0..samples).map(|_| self.sample()).fold(0.0, f64::max)
    }
}

/// All words, exclusive-ored: so many streams of equal length side by side.
fn sum(lines: &[[u8; 64]], streams: usize) -> u64 {
    match streams {
        2 => sum_of::<2>(lines),
        4 => sum_of::<4>(lines),
        8 => sum_of::<8>(lines),
        _ => sum_of::<1>(lines),
    }
}

fn sum_of<const COUNT: usize>(lines: &[[u8; 64]]) -> u64 {
    let stream = lines.len() / COUNT;
    let streams: [&[[u8; 64]]; COUNT] = std::array::from_fn(|at| &lines[at * stream..][..stream]);
    let mut sums = [0u64; 8];
    for at in 0..stream {
        for stream in &streams {
            for (sum, word) in sums.iter_mut().zip(stream[at].as_chunks().0) {
                *sum ^= u64::from_ne_bytes(*word);
            }
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

/// Bytes of the last-level cache, from Linux; a typical size elsewhere.
pub fn last_level_cache() -> usize {
    let size = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok()
    };
    (0..8).filter_map(size).max().map_or(USUAL_CACHE, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_thread_is_read() {
        let words: Vec<u64> = (1..).take(8 * 3 * 8).map(|at: u64| at * at).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let all = words.iter().fold(0, |all, word| all ^ word);
        for streams in STREAMS {
            assert_eq!(sum(bytes.as_chunks().0, streams), all, "{streams}");
        }
    }
}
