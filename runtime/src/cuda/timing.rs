//! Timing of kernels as a model meets them: the weights of each call come from memory.
//!
//! In: a call on copy i of the weights. Out: a [`Timing`]. The method: the weights rotate over
//! [`copies`] that exceed the L2 twice; each copy is called once to warm up; a graph holds one
//! call a copy; the figure is the median over replays of the graph, by events, a call. So products that are
//! tuned are timed ([`Clock`]), and so do benchmarks. What a GPU did before decides its clocks: a [`Lead`] says what comes before the replays that
//! count.

use super::{Cuda, CudaError, Event, Graph, Stream};
use crate::gpu::Clock;

/// Replays before the ones that count, of a burst.
const WARM_UP: usize = 2;
/// Microseconds of replays before those that count of long work: an H200 lowers its clocks within some ten thousand.
const SUSTAINED: f64 = 1e5;
/// The most replays before those that count, however short they are.
const MOST_WARM_UP: usize = 10_000;
/// Replays that count.
const REPLAYS: usize = 7;

/// Copies of weights of `bytes` bytes that exceed the L2 twice, at least 3 and at most 24.
pub fn copies(bytes: u64, l2_bytes: u64) -> usize {
    // In floating point and truncated, as the peers' script does it.
    let past_twice = (2.2 * l2_bytes as f64 / bytes.max(1) as f64) as usize;
    past_twice.saturating_add(1).clamp(3, 24)
}

/// The time of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Microseconds a call: the median of `replays`.
    pub microseconds: f64,
    /// Microseconds a call of each replay, in ascending order.
    pub replays: Vec<f64>,
    /// Calls of a replay.
    pub calls: usize,
}

impl Timing {
    /// From microseconds a call of each replay, in any order. Of an even number the upper of the
    /// two in the middle counts.
    fn new(mut replays: Vec<f64>, calls: usize) -> Self {
        replays.sort_by(f64::total_cmp);
        let microseconds = replays.get(replays.len() / 2).copied().unwrap_or(f64::NAN);
        Self { microseconds, replays, calls }
    }

    /// Bytes of a call a time, in GB/s.
    pub fn gigabytes_per_second(&self, bytes: u64) -> f64 {
        bytes as f64 / self.microseconds / 1e3
    }
}

/// What comes before the replays that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Two replays: times are those of a burst, as peers' benchmarks take them.
    Burst,
    /// A tenth of a second of replays: clocks are those that the GPU's limit of power allows for long work.
    Sustained,
}

impl Lead {
    /// Whether the replays that count begin, after so many replays of all graphs that took so many microseconds.
    fn is_over(self, replays: usize, microseconds: f64) -> bool {
        match self {
            Self::Burst => replays >= WARM_UP,
            Self::Sustained => {
                replays >= WARM_UP && microseconds >= SUSTAINED || replays >= MOST_WARM_UP
            }
        }
    }
}

/// Times `call`, which queues one call on the copy of the weights whose number it is given, of so many copies.
///
/// # Errors
/// The error of `call`, or what the driver answered.
pub fn time(
    stream: &Stream,
    (copies, lead): (usize, Lead),
    mut call: impl FnMut(usize, &Stream) -> Result<(), CudaError>,
) -> Result<Timing, CudaError> {
    let graph = captured(stream, copies, &mut call)?;
    let mut timings = replayed(stream, (copies, lead), vec![graph])?;
    Ok(timings.remove(0))
}

/// As [`time`], of so many different calls; `call` is told first which of them it queues. Replays alternate, so that all calls meet
/// the same clocks of the device.
///
/// # Errors
/// As [`time`].
pub fn time_each(
    stream: &Stream,
    (copies, lead): (usize, Lead),
    calls: usize,
    mut call: impl FnMut(usize, usize, &Stream) -> Result<(), CudaError>,
) -> Result<Vec<Timing>, CudaError> {
    let graphs =
        (0..calls).map(|of| captured(stream, copies, &mut |copy, stream| call(of, copy, stream)));
    let graphs = graphs.collect::<Result<Vec<_>, _>>()?;
    replayed(stream, (copies, lead), graphs)
}

/// A graph of a call a copy, each of which has been called before.
fn captured(
    stream: &Stream,
    copies: usize,
    call: &mut impl FnMut(usize, &Stream) -> Result<(), CudaError>,
) -> Result<Graph, CudaError> {
    for copy in (0..copies).chain(0..copies.min(2)) {
        call(copy, stream)?;
    }
    stream.synchronize()?;
    Graph::capture(stream, |stream| (0..copies).try_for_each(|copy| call(copy, stream)))
}

/// The timings of graphs that are replayed in turns: what changes the clocks of the device changes those of all alike.
fn replayed(
    stream: &Stream,
    (copies, lead): (usize, Lead),
    mut graphs: Vec<Graph>,
) -> Result<Vec<Timing>, CudaError> {
    let (start, end) = (Event::new(stream.context())?, Event::new(stream.context())?);
    // Microseconds of a replay.
    let replay = |graph: &mut Graph| -> Result<f64, CudaError> {
        start.record(stream)?;
        graph.launch(stream)?;
        end.record(stream)?;
        stream.synchronize()?;
        Ok(end.since(&start)?.as_secs_f64() * 1e6)
    };
    let (mut before, mut microseconds) = (0, 0.0);
    while !lead.is_over(before, microseconds) {
        for graph in &mut graphs {
            microseconds += replay(graph)?;
        }
        before += 1;
    }
    let mut replays = vec![Vec::new(); graphs.len()];
    for _ in 0..REPLAYS {
        for (graph, replays) in graphs.iter_mut().zip(&mut replays) {
            replays.push(replay(graph)? / copies as f64);
        }
    }
    Ok(replays.into_iter().map(|replays| Timing::new(replays, copies)).collect())
}

/// A call's time as it is, and with overlapping launches.
#[derive(Clone, Debug, PartialEq)]
pub struct Timings {
    /// Each launch after the one before.
    pub serial: Timing,
    /// With programmatic dependent launch.
    pub overlapped: Timing,
}

/// As [`time`], without and with overlap, which `call` is told last, in turns.
///
/// # Errors
/// As [`time`].
pub fn time_both(
    stream: &Stream,
    (copies, lead): (usize, Lead),
    mut call: impl FnMut(usize, &Stream, bool) -> Result<(), CudaError>,
) -> Result<Timings, CudaError> {
    let each = |of, copy, stream: &Stream| call(copy, stream, of == 1);
    let mut timings = time_each(stream, (copies, lead), 2, each)?;
    let overlapped = timings.remove(1);
    Ok(Timings { serial: timings.remove(0), overlapped })
}

impl Clock<CudaError> for Cuda {
    fn copies(&self, bytes: u64) -> usize {
        copies(bytes, self.stream().context().info().l2_bytes)
    }

    fn time(
        &self,
        copies: usize,
        call: &mut dyn FnMut(usize) -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        Ok(time(self.stream(), (copies, Lead::Burst), |copy, _| call(copy))?.microseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_the_peers() {
        // (bytes, L2 bytes, int(2.2 * L2 / bytes) + 1 clamped to 3..=24 by hand)
        let mib = 1u64 << 20;
        let cases = [
            (32 * mib, 60 * mib, 5),  // 132 / 32 = 4.1
            (132 * mib, 60 * mib, 3), // 1 + 1, at least 3
            (mib, 60 * mib, 24),      // 133, at most 24
            (8 * mib, 60 * mib, 17),  // 16.5
            (66 * mib, 60 * mib, 3),  // exactly 2, and one more
            (0, 60 * mib, 24),
        ];
        for (bytes, l2, expected) in cases {
            assert_eq!(copies(bytes, l2), expected, "{bytes} bytes, L2 {l2}");
        }
    }

    #[test]
    fn long_work_comes_first_where_its_clocks_are_asked_for() {
        // (replays, microseconds in all, whether a burst's count, whether those of long work do)
        let cases = [
            (0, 0.0, false, false),
            (1, 1e6, false, false),
            (2, 99_999.0, true, false),
            (2, 100_000.0, true, true),
            (9_999, 1.0, true, false),
            (10_000, 1.0, true, true),
        ];
        for (replays, microseconds, burst, sustained) in cases {
            let found = [Lead::Burst, Lead::Sustained].map(|l| l.is_over(replays, microseconds));
            assert_eq!(found, [burst, sustained], "{replays} replays, {microseconds} us");
        }
    }

    #[test]
    fn the_median_of_an_unsorted_list() {
        let timing = Timing::new(vec![9.0, 1.0, 5.0, 7.0, 3.0, 2.0, 8.0], 4);
        assert_eq!(timing.microseconds, 5.0);
        assert_eq!(timing.gigabytes_per_second(10_000), 2.0);
    }
}
