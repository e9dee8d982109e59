//! The kernels of the self-test, done by name on the host's memory.

use super::device::{State, Work, fault};

/// Bytes of each parameter, from the kernel's text.
pub fn signature(kernel: &str) -> &'static [usize] {
    match kernel {
        "vector_add" => &[8, 8, 8, 4],
        "shared_mirror" => &[8, 8, 4],
        "cluster_ring" => &[8],
        "overlap_first" | "overlap_second" => &[8, 8, 8, 4],
        "tma_box" => &[8, 8, 4, 4, 128],
        "fill_random" => &[8, 4, 4],
        _ => &[],
    }
}

/// What a kernel of that name does.
///
/// # Safety
/// The parameters are those of the kernel: addresses of live allocations, as long as the numbers
/// beside them say.
pub unsafe fn run(state: &mut State, work: &Work) {
    if !state.modules.contains_key(&work.module) {
        fault("a kernel runs that is unloaded");
    }
    state.clock += if work.overlaps { 500 } else { 1000 };
    let p64 = |at: usize| u64::from_le_bytes(work.parameters[at][..8].try_into().unwrap());
    let p32 = |at: usize| u32::from_le_bytes(work.parameters[at][..4].try_into().unwrap());
    let at = |address: u64, i: u32| (address as *mut u32).wrapping_add(i as usize);
    let threads = work.blocks * work.threads;
    let touch = |state: &State, at: usize, words: u32| state.touch(p64(at), words as usize * 4);
    // SAFETY: every index is below the count that the kernel was given or the number of its
    // threads, and the caller promises allocations of that length.
    unsafe {
        match work.kernel.as_str() {
            "vector_add" => {
                state.clock += 10 * u64::from(work.blocks);
                (0..3).for_each(|at| touch(state, at, p32(3).min(threads)));
                for i in 0..p32(3).min(threads) {
                    *at(p64(2), i) = (*at(p64(0), i)).wrapping_add(*at(p64(1), i));
                }
            }
            "shared_mirror" => {
                let words = p32(2);
                (0..2).for_each(|at| touch(state, at, words));
                for i in 0..words {
                    *at(p64(1), words - 1 - i) = *at(p64(0), i);
                }
            }
            "cluster_ring" => {
                let c = work.cluster;
                touch(state, 0, work.blocks);
                for block in 0..work.blocks {
                    let neighbour = if block % c == c - 1 { block + 1 - c } else { block + 1 };
                    *at(p64(0), block) = neighbour + 1 + 1000 * c;
                }
            }
            "overlap_first" => {
                (0..2).for_each(|at| touch(state, at, p32(3).min(threads)));
                for i in 0..p32(3).min(threads) {
                    *at(p64(1), i) = (*at(p64(0), i)).wrapping_add(1);
                }
                state.clock += 50_000;
                *(p64(2) as *mut u64) = state.clock;
            }
            "overlap_second" => {
                (0..2).for_each(|at| touch(state, at, p32(3).min(threads)));
                for i in 0..p32(3).min(threads) {
                    *at(p64(1), i) = *at(p64(0), i) << 1;
                }
                let began = if work.overlaps { state.clock - 49_000 } else { state.clock };
                *(p64(2) as *mut u64).add(1) = began;
            }
            "tma_box" => {
                touch(state, 1, 257);
                tma_box(work, p64(1), p32(2), p32(3));
            }
            "fill_random" => {
                let (n, seed) = (p32(1), p32(2));
                touch(state, 0, n);
                for i in 0..n {
                    let mut x = i.wrapping_mul(0x9E37_79B1).wrapping_add(seed);
                    for (shift, factor) in [(16, 0x7FEB_352Du32), (15, 0x846C_A68B), (16, 1)] {
                        x = (x ^ (x >> shift)).wrapping_mul(factor);
                    }
                    *at(p64(0), i) = x;
                }
            }
            _ => {}
        }
    }
}

/// The map's 128 bytes as `cuTensorMapEncodeTiled` below leaves them.
///
/// # Safety
/// The map is that of a live matrix, and y has 1028 bytes.
unsafe fn tma_box(work: &Work, y: u64, column: u32, row: u32) {
    let field =
        |at: usize| u64::from_le_bytes(work.parameters[4][8 * at..8 * at + 8].try_into().unwrap());
    let (address, columns, rows, pitch) = (field(0), field(1), field(2), field(3));
    let (box_columns, box_rows, swizzle) = (field(4), field(5), field(6));
    assert_eq!((box_columns * 2 * box_rows, swizzle), (1024, 3));
    for byte in (0..1024u64).step_by(2) {
        let (r, c) = (u64::from(row) + byte / 128, u64::from(column) + byte % 128 / 2);
        let inside = r < rows && c < columns;
        let from = (address + r * pitch + c * 2) as *const u16;
        // SAFETY: inside of the matrix that the map describes, which is live.
        let value = if inside { unsafe { *from } } else { 0 };
        // Bits 4 to 6 of the address are XORed with bits 7 to 9.
        let to = byte ^ ((byte >> 7 & 7) << 4);
        // SAFETY: `to` is even and below 1024: the XOR changes bits 4 to 6 only.
        unsafe { *((y + to) as *mut u16) = value };
    }
    // SAFETY: the last four of y's bytes.
    unsafe { *((y + 1024) as *mut u32) = 1 };
}
