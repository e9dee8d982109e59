//! Panels that are read in parallel streams by products of few tokens, and what is prefetched of them.
//!
//! In: the number of tokens; the place that is read. Out: the number of panels; prefetches.

use super::kernels::{AHEAD, PanelScales};
use super::vector::Vector;

/// Panels that a product of few tokens reads in parallel. A core reads two streams faster than one:
/// while one stream waits for its prefetcher at a page boundary, the other proceeds. From memory, two are
/// faster than four on a Zen 5 (docs/performance/cpu.md). With more tokens, registers and time are needed
/// for the tokens.
pub const fn streams(tokens: usize) -> usize {
    if tokens <= 4 { MOST_STREAMS } else { 1 }
}

/// The maximum of [`streams`].
pub const MOST_STREAMS: usize = 2;

/// Prefetch distance of codes, `bits` wide, in chunks.
#[inline(always)]
pub(super) const fn chunks_ahead(bits: usize) -> usize {
    AHEAD / (64 * bits)
}

/// Prefetches codes, `bits` wide, of the stream that a chunk is of.
#[inline(always)]
pub(super) fn prefetch_codes<V: Vector, const P: usize>(
    bits: usize,
    planes: &[[u8; 64]],
    chunk: &[[u8; 64]],
) {
    let ahead = chunk.as_ptr().wrapping_add(chunks_ahead(bits) * bits);
    let ahead = in_stream::<_, P>(planes, ahead);
    for line in 0..bits {
        V::prefetch(ahead.wrapping_add(line).cast());
    }
}

impl PanelScales<'_> {
    /// Prefetches the scales of a group; past the end, those of the next panel of the stream.
    #[inline(always)]
    pub(super) fn prefetch<V: Vector, const P: usize>(self, group: usize) {
        V::prefetch(match self {
            Self::Bf16(rows) | Self::F16(rows) => {
                in_stream::<_, P>(rows, rows.as_ptr().wrapping_add(group)).cast()
            }
            Self::F32(rows) => in_stream::<_, P>(rows, rows.as_ptr().wrapping_add(group)).cast(),
        });
    }
}

/// The prefetch address `at` of a stream that reads the codes or scales of `panel`: past the end it
/// continues in panel P further on, since the panels between belong to other streams. The panel
/// after a batch belongs to another thread, so this prefetch is wasted.
#[inline(always)]
fn in_stream<T, const P: usize>(panel: &[T], at: *const T) -> *const T {
    if at < panel.as_ptr_range().end { at } else { at.wrapping_add((P - 1) * panel.len()) }
}

#[cfg(test)]
mod tests {
    use super::in_stream;

    #[test]
    fn streams_go_on_in_panels_of_their_own() {
        // Panels of 10 lines, four streams: the first continues from line 9 at 40, the second from
        // 19 at 50.
        let lines: Vec<u16> = (0..60).collect();
        let places = |stream: usize| {
            let panel = &lines[10 * stream..][..10];
            [8, 9, 10, 11].map(|at| {
                let address = in_stream::<_, 4>(panel, panel.as_ptr().wrapping_add(at));
                (address.addr() - lines.as_ptr().addr()) / size_of::<u16>()
            })
        };
        assert_eq!(places(0), [8, 9, 40, 41]);
        assert_eq!(places(1), [18, 19, 50, 51]);
        let past = lines.as_ptr().wrapping_add(70);
        assert_eq!(in_stream::<_, 1>(&lines, past), past);
    }
}
