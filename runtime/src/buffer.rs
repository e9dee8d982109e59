//! Memory in lines of 64 bytes: native weights and workspaces.
//!
//! In: a number of bytes. Out: zeroed memory that begins at a cache line, and typed slices cut
//! from it. The casts are here and nowhere else.

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// From how many bytes on memory is in pages of its own, so that the system can give large ones: those
/// of x86-64 and, mostly, of Arm.
const LARGE_PAGE: usize = 2 << 20;

/// Zeroed memory in whole lines.
pub(crate) struct Buffer(Memory);

enum Memory {
    Lines(Vec<Line>),
    Pages(MmapMut),
}

impl Buffer {
    /// At least this many bytes, all 0; in large pages where the system has them, since a stream waits
    /// for the address of each page (2 to 3% of a product of few tokens: docs/performance/cpu.md).
    pub(crate) fn zeroed(bytes: usize) -> Self {
        let lines = bytes.div_ceil(64);
        let pages = (bytes >= LARGE_PAGE).then(|| MmapMut::map_anon(lines * 64).ok()).flatten();
        Self(match pages {
            Some(pages) => {
                // A wish: without large pages it works as well.
                #[cfg(target_os = "linux")]
                let _ = pages.advise(Advice::HugePage);
                Memory::Pages(pages)
            }
            None => Memory::Lines(vec![Line([0; 64]); lines]),
        })
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Memory::Lines(lines) => lines.len() * 64,
            Memory::Pages(pages) => pages.len(),
        }
    }

    /// Whether it has no bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The lines.
    pub(crate) fn lines(&self) -> &[[u8; 64]] {
        let begin = match &self.0 {
            Memory::Lines(lines) => lines.as_ptr().cast(),
            Memory::Pages(pages) => pages.as_ptr(),
        };
        // SAFETY: a `Line` is exactly 64 bytes in C layout, alignment 64 (and a page's) is more than
        // bytes need, `len` bytes are there, and the lifetime is that of `self`.
        unsafe { std::slice::from_raw_parts(begin.cast(), self.len() / 64) }
    }

    /// The lines.
    pub(crate) fn lines_mut(&mut self) -> &mut [[u8; 64]] {
        let lines = self.len() / 64;
        let begin = match &mut self.0 {
            Memory::Lines(lines) => lines.as_mut_ptr().cast(),
            Memory::Pages(pages) => pages.as_mut_ptr(),
        };
        // SAFETY: as `lines`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(begin.cast(), lines) }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len());
        copy.lines_mut().copy_from_slice(self.lines());
        copy
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// Types of which any bytes are a value, without padding, aligned to at most 64.
///
/// # Safety
/// Exactly that.
unsafe trait Plain: Copy {}
// SAFETY: any bytes are a value of these, and none has padding.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: an array of such a type is one.
unsafe impl<T: Plain, const L: usize> Plain for [T; L] {}

/// Cuts typed slices off the front of a buffer, each beginning at a cache line.
pub(crate) struct Cut<'a>(&'a mut [[u8; 64]]);

impl<'a> Cut<'a> {
    /// From the whole of it.
    pub(crate) fn new(lines: &'a mut [[u8; 64]]) -> Self {
        Self(lines)
    }

    /// What is left.
    pub(crate) fn rest(self) -> &'a mut [[u8; 64]] {
        self.0
    }

    /// The next `count` elements, with whatever they hold; fewer if the buffer is at its end.
    #[allow(private_bounds)]
    pub(crate) fn take<T: Plain>(&mut self, count: usize) -> &'a mut [T] {
        let lines = bytes_of::<T>(count) / 64;
        let all = std::mem::take(&mut self.0);
        let (front, rest) = all.split_at_mut(lines.min(all.len()));
        self.0 = rest;
        let count = count.min(front.len() * 64 / size_of::<T>().max(1));
        // SAFETY: `front` is exclusively borrowed for 'a, begins at a multiple of 64 (so does
        // every cut, since cuts are whole lines), holds `count` elements, and any bytes are a
        // value of a `Plain` type.
        unsafe { std::slice::from_raw_parts_mut(front.as_mut_ptr().cast(), count) }
    }
}

/// Bytes that [`Cut::take`] uses up.
pub(crate) const fn bytes_of<T>(count: usize) -> usize {
    (count * size_of::<T>()).next_multiple_of(64)
}

/// Memory that a product works in, kept by the caller so that the product allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Workspace(Buffer);

impl Workspace {
    /// With room for `bytes`: what `workspace_size` says.
    pub fn new(bytes: usize) -> Self {
        Self(Buffer::zeroed(bytes))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no room.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Grows to at least `bytes`; what it holds is lost.
    pub fn reserve(&mut self, bytes: usize) {
        if self.len() < bytes {
            self.0 = Buffer::zeroed(bytes);
        }
    }

    pub(crate) fn cut(&mut self) -> Cut<'_> {
        Cut::new(self.0.lines_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_memory_is_zeroed_aligned_and_copied() {
        for bytes in [0, 1, 64, LARGE_PAGE - 64, LARGE_PAGE, LARGE_PAGE + 65] {
            let mut buffer = Buffer::zeroed(bytes);
            assert_eq!(buffer.len(), bytes.next_multiple_of(64));
            assert_eq!(buffer.lines().as_ptr().addr() % 64, 0);
            assert!(buffer.lines().iter().flatten().all(|byte| *byte == 0));
            let Some(last) = buffer.lines_mut().last_mut() else { continue };
            last[63] = 7;
            assert_eq!(buffer.clone().lines(), buffer.lines());
        }
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
