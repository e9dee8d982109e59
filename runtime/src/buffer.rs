//! Memory in lines of 64 bytes: native codes, workspaces, and the memory of bandwidth measurements.
//!
//! In: a number of bytes. Out: zeroed memory that begins at a cache line, and typed slices of it.
//! All casts of the CPU backend are in this file.

use std::ops::Range;
use std::sync::Arc;

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// A huge page of x86-64 and, on most systems, of Arm. Memory of at least this size is mapped in
/// whole huge pages.
const LARGE_PAGE: usize = 2 << 20;

/// Zeroed memory in whole lines.
pub struct AlignedBuffer {
    lines: usize,
    memory: Memory,
}

enum Memory {
    Lines(Vec<CacheLine>),
    Pages(MmapMut),
}

impl AlignedBuffer {
    /// At least this many bytes, all 0. On Linux, large buffers are in huge pages if possible: a
    /// stream waits for the address of each page (docs/performance/cpu.md). The system maps pages
    /// when they are first written.
    pub fn zeroed(bytes: usize) -> Self {
        let lines = bytes.div_ceil(64);
        let memory = match large_pages(bytes) {
            Some(pages) => Memory::Pages(pages),
            None => Memory::Lines(vec![CacheLine([0; 64]); lines]),
        };
        Self { lines, memory }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.lines * 64
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// The lines.
    pub fn lines(&self) -> &[[u8; 64]] {
        let begin = match &self.memory {
            Memory::Lines(lines) => lines.as_ptr().cast(),
            Memory::Pages(pages) => pages.as_ptr(),
        };
        // SAFETY: a `CacheLine` is exactly 64 bytes in C layout, its alignment and that of a page are
        // more than bytes need, `zeroed` has allocated that many, and the lifetime is that of
        // `self`.
        unsafe { std::slice::from_raw_parts(begin.cast(), self.lines) }
    }

    /// The lines.
    pub fn lines_mut(&mut self) -> &mut [[u8; 64]] {
        let begin = match &mut self.memory {
            Memory::Lines(lines) => lines.as_mut_ptr().cast(),
            Memory::Pages(pages) => pages.as_mut_ptr(),
        };
        // SAFETY: as `lines`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(begin.cast(), self.lines) }
    }
}

/// Zeroed memory of at least this many bytes; `None` if they are less than a huge page or the
/// system does not map them.
#[cfg(target_os = "linux")]
fn large_pages(bytes: usize) -> Option<MmapMut> {
    // Whole pages: Linux aligns a mapping to huge pages if its length is a multiple of theirs.
    let all = bytes.checked_next_multiple_of(LARGE_PAGE).filter(|_| bytes >= LARGE_PAGE)?;
    let pages = MmapMut::map_anon(all).ok()?;
    // Best effort: huge pages are optional.
    let _ = pages.advise(Advice::HugePage);
    Some(pages)
}

/// Does nothing: other systems have no such hint.
#[cfg(not(target_os = "linux"))]
fn large_pages(_: usize) -> Option<MmapMut> {
    None
}

impl Default for AlignedBuffer {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len());
        copy.lines_mut().copy_from_slice(self.lines());
        copy
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// Lines of a buffer that several own.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedLines {
    memory: Arc<AlignedBuffer>,
    lines: Range<usize>,
}

impl SharedLines {
    /// All lines of a buffer.
    pub(crate) fn all(memory: AlignedBuffer) -> Self {
        let lines = 0..memory.lines().len();
        Self { memory: Arc::new(memory), lines }
    }

    /// Some lines of a buffer.
    pub(crate) fn part(memory: &Arc<AlignedBuffer>, lines: Range<usize>) -> Self {
        Self { memory: Arc::clone(memory), lines }
    }

    /// The lines.
    pub(crate) fn lines(&self) -> &[[u8; 64]] {
        &self.memory.lines()[self.lines.clone()]
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.lines.len() * 64
    }
}

/// Types for which any bytes are a value, without padding, aligned to at most 64.
///
/// # Safety
/// The type has these properties.
unsafe trait AnyBitPattern: Copy {}
// SAFETY: any bytes are a value of these, and none has padding.
unsafe impl AnyBitPattern for u8 {}
// SAFETY: as above.
unsafe impl AnyBitPattern for i8 {}
// SAFETY: as above.
unsafe impl AnyBitPattern for u16 {}
// SAFETY: as above.
unsafe impl AnyBitPattern for u32 {}
// SAFETY: as above.
unsafe impl AnyBitPattern for i32 {}
// SAFETY: as above.
unsafe impl AnyBitPattern for f32 {}
// SAFETY: as above; it is a `u16`.
unsafe impl AnyBitPattern for half::f16 {}
// SAFETY: as above; it is a `u16`.
unsafe impl AnyBitPattern for half::bf16 {}
// SAFETY: an array of such a type is one.
unsafe impl<T: AnyBitPattern, const L: usize> AnyBitPattern for [T; L] {}

/// Takes typed slices from the front of a buffer; each begins at a cache line.
pub(crate) struct BumpAllocator<'a>(&'a mut [[u8; 64]]);

impl<'a> BumpAllocator<'a> {
    /// The whole buffer is free.
    pub(crate) fn new(lines: &'a mut [[u8; 64]]) -> Self {
        Self(lines)
    }

    /// The free rest.
    pub(crate) fn rest(self) -> &'a mut [[u8; 64]] {
        self.0
    }

    /// The next `count` elements, uninitialised by this call; fewer if the buffer is too small.
    #[allow(private_bounds)]
    pub(crate) fn take<T: AnyBitPattern>(&mut self, count: usize) -> &'a mut [T] {
        let lines = bytes_of::<T>(count) / 64;
        let all = std::mem::take(&mut self.0);
        let (front, rest) = all.split_at_mut(lines.min(all.len()));
        self.0 = rest;
        let count = count.min(front.len() * 64 / size_of::<T>().max(1));
        // SAFETY: `front` is exclusively borrowed for 'a, begins at a multiple of 64 (so does every
        // slice, since slices are whole lines), has `count` elements, and any bytes are a value of
        // a `AnyBitPattern` type.
        unsafe { std::slice::from_raw_parts_mut(front.as_mut_ptr().cast(), count) }
    }
}

/// Typed slices of a memory that was cut with [`BumpAllocator`], in the same order, to read them.
pub(crate) struct BumpReader<'a>(&'a [[u8; 64]]);

impl<'a> BumpReader<'a> {
    /// From the begin of the memory.
    pub(crate) fn new(lines: &'a [[u8; 64]]) -> Self {
        Self(lines)
    }

    /// The next `count` elements; fewer if the memory is too small.
    #[allow(private_bounds)]
    pub(crate) fn take<T: AnyBitPattern>(&mut self, count: usize) -> &'a [T] {
        let lines = bytes_of::<T>(count) / 64;
        let (front, rest) = self.0.split_at(lines.min(self.0.len()));
        self.0 = rest;
        let count = count.min(front.len() * 64 / size_of::<T>().max(1));
        // SAFETY: `front` is borrowed for 'a, begins at a multiple of 64 as every slice of lines, has
        // `count` elements, and any bytes are a value of a `AnyBitPattern` type.
        unsafe { std::slice::from_raw_parts(front.as_ptr().cast(), count) }
    }
}

/// Bytes that [`BumpAllocator::take`] uses; [`usize::MAX`] if there are more.
pub(crate) const fn bytes_of<T>(count: usize) -> usize {
    match count.saturating_mul(size_of::<T>()).checked_next_multiple_of(64) {
        Some(bytes) => bytes,
        None => usize::MAX,
    }
}

/// The memory that a product works in; the caller keeps it, so that products allocate nothing.
#[derive(Clone, Debug, Default)]
pub struct Workspace(AlignedBuffer);

impl Workspace {
    /// With room for `bytes`, the result of `workspace_size`.
    pub fn new(bytes: usize) -> Self {
        Self(AlignedBuffer::zeroed(bytes))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no room.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Grows to at least `bytes`; the contents are lost.
    pub fn reserve(&mut self, bytes: usize) {
        if self.len() < bytes {
            self.0 = AlignedBuffer::zeroed(bytes);
        }
    }

    pub(crate) fn cut(&mut self) -> BumpAllocator<'_> {
        BumpAllocator::new(self.0.lines_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_memory_is_zeroed_aligned_and_copied() {
        for bytes in [0, 1, 64, LARGE_PAGE - 64, LARGE_PAGE, LARGE_PAGE + 65] {
            let mut buffer = AlignedBuffer::zeroed(bytes);
            let large = matches!(buffer.memory, Memory::Pages(_));
            assert_eq!(large, cfg!(target_os = "linux") && bytes >= LARGE_PAGE);
            assert_eq!(buffer.len(), bytes.next_multiple_of(64));
            assert_eq!(buffer.lines().len(), bytes.div_ceil(64));
            assert_eq!(buffer.lines().as_ptr().addr() % 64, 0);
            assert!(buffer.lines().iter().flatten().all(|byte| *byte == 0));
            for (at, line) in buffer.lines_mut().iter_mut().enumerate() {
                line[at % 64] = at as u8 | 1;
            }
            let copy = buffer.clone();
            drop(buffer);
            for (at, line) in copy.lines().iter().enumerate() {
                assert_eq!((line[at % 64], line[(at + 1) % 64]), (at as u8 | 1, 0), "line {at}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "capacity overflow")]
    fn more_than_there_is_panics() {
        AlignedBuffer::zeroed(usize::MAX);
    }

    #[test]
    fn cuts_are_aligned_disjoint_and_end_with_the_buffer() {
        let mut workspace = Workspace::new(bytes_of::<u8>(3) + bytes_of::<f32>(17));
        let mut cut = workspace.cut();
        let bytes = cut.take::<u8>(3);
        let floats = cut.take::<f32>(17);
        bytes.fill(0xff);
        floats.fill(1.0);
        assert_eq!((bytes.len(), floats.len()), (3, 17));
        assert_eq!(floats.as_ptr().addr() % 64, 0);
        assert!(bytes.iter().all(|byte| *byte == 0xff));
        assert!(cut.take::<u32>(1).is_empty());
    }
}
