//! What products of few tokens prefetch: codes and scales of the panels that they read one after the other.
//!
//! In: the place that is read. Out: prefetches. A thread reads one stream of codes: with two or four side by
//! side, those of the hardware's prefetchers that follow a stream do less, and memory is read more slowly
//! (docs/performance/cpu.md).

use super::kernels::{Panel, PanelScales};
use super::vector::Vector;

/// Prefetch distance of codes in bytes: about the latency of memory at the bandwidth of a core. Scales are
/// prefetched as many whole groups ahead, and no further.
const AHEAD: usize = 4096;

/// Prefetch distance of codes, `bits` wide, in chunks.
#[inline(always)]
pub(super) const fn chunks_ahead(bits: usize) -> usize {
    AHEAD / (64 * bits)
}

/// Where a thread goes on past the end of a panel: bytes from the end to the panel that it reads next, 0 for
/// the one behind it. Without jumps the first lines of a thread's next panels would be waited for, and those
/// behind its last panel, which another thread reads, would be read in vain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Jump {
    codes: isize,
    scales: isize,
}

impl Jump {
    /// From the end of a panel to another one, or back to its own begin, which is in the cache.
    pub(super) fn new(panel: &Panel<'_>, next: Option<&Panel<'_>>) -> Self {
        let next = next.unwrap_or(panel);
        let distance = |end: usize, begin: usize| begin.wrapping_sub(end) as isize;
        let codes = |panel: &Panel<'_>| panel.planes.as_ptr_range();
        let scales = |panel: &Panel<'_>| panel.groups.scales.addresses();
        Self {
            codes: distance(codes(panel).end.addr(), codes(next).start.addr()),
            scales: distance(scales(panel).end, scales(next).start),
        }
    }
}

/// Prefetches codes, `bits` wide, that are read after a chunk of a panel.
#[inline(always)]
pub(super) fn prefetch_codes<V: Vector>(bits: usize, panel: &Panel<'_>, chunk: &[[u8; 64]]) {
    let ahead = chunk.as_ptr().wrapping_add(chunks_ahead(bits) * bits);
    let ahead = behind(panel.planes, ahead, panel.jump.codes);
    for line in 0..bits {
        V::prefetch(ahead.wrapping_add(line).cast());
    }
}

impl Panel<'_> {
    /// Prefetches the scales of a group; past the end, those of the next panel.
    #[inline(always)]
    pub(super) fn prefetch_scales<V: Vector>(&self, group: usize) {
        let jump = self.jump.scales;
        V::prefetch(match self.groups.scales {
            PanelScales::Bf16(rows) | PanelScales::F16(rows) => {
                behind(rows, rows.as_ptr().wrapping_add(group), jump).cast()
            }
            PanelScales::F32(rows) => behind(rows, rows.as_ptr().wrapping_add(group), jump).cast(),
        });
    }
}

/// The address that is prefetched: `at`, or as far behind the begin of the next panel as that is behind
/// the end of this one.
#[inline(always)]
fn behind<T>(panel: &[T], at: *const T, jump: isize) -> *const T {
    if at < panel.as_ptr_range().end { at } else { at.wrapping_byte_offset(jump) }
}

#[cfg(test)]
mod tests {
    use super::super::kernels::Groups;
    use super::*;

    #[test]
    fn threads_go_on_in_their_next_panel() {
        let (lines, scales) = ([[0u8; 64]; 60], [[0u16; 16]; 30]);
        let panel = |at: usize| Panel {
            planes: &lines[10 * at..][..10],
            groups: Groups {
                columns: 32,
                scales: PanelScales::Bf16(&scales[5 * at..][..5]),
                add: None,
            },
            jump: Jump::default(),
        };
        for (from, to) in [(0, 2), (1, 5), (4, 3)] {
            let jump = Jump::new(&panel(from), Some(&panel(to)));
            let places = [8, 9, 10, 11].map(|at| {
                let planes = panel(from).planes;
                let address = behind(planes, planes.as_ptr().wrapping_add(at), jump.codes);
                (address.addr() - lines.as_ptr().addr()) / 64
            });
            assert_eq!(places, [10 * from + 8, 10 * from + 9, 10 * to, 10 * to + 1]);
            let end = panel(from).groups.scales.addresses().end;
            assert_eq!(end.wrapping_add_signed(jump.scales), scales[5 * to..].as_ptr().addr());
        }
        let alone = Jump::new(&panel(1), None);
        assert_eq!(alone.codes, -640, "back to its own begin");
    }
}
