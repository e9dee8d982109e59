//! Memory in lines of 64 bytes: native weights and workspaces.
//!
//! In: a number of bytes. Out: zeroed memory that begins at a cache line, and typed slices cut
//! from it. The casts are here and nowhere else.

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed memory in whole lines.
#[derive(Clone, Default)]
pub(crate) struct Buffer {
    lines: Vec<Line>,
}

impl Buffer {
    /// At least this many bytes, all 0.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self { lines: vec![Line([0; 64]); bytes.div_ceil(64)] }
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.lines.len() * 64
    }

    /// Whether it has no bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The lines.
    pub(crate) fn lines(&self) -> &[[u8; 64]] {
        // SAFETY: a `Line` is exactly 64 bytes in C layout, alignment 64 is more than bytes need,
        // and the lifetime is that of `self`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len()) }
    }

    /// The lines.
    pub(crate) fn lines_mut(&mut self) -> &mut [[u8; 64]] {
        // SAFETY: as `lines`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.lines.len()) }
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
