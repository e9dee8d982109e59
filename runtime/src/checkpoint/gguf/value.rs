//! Typed values of a GGUF file's keys, read where they are.

use super::problem::GgufProblem;

/// The place in a file's bytes up to which they have been read. Nothing is read beyond their end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Bytes from the start of the file.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// The next bytes.
    pub(super) fn take(&mut self, count: u64) -> Result<&'a [u8], GgufProblem> {
        let truncated = GgufProblem::Truncated { at: self.at() };
        let Ok(count) = usize::try_from(count) else { return Err(truncated) };
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..count).ok_or(truncated)?;
        self.at += count;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufProblem> {
        let truncated = GgufProblem::Truncated { at: self.at() };
        self.take(N as u64)?.try_into().map_err(|_| truncated)
    }

    pub(super) fn u32(&mut self) -> Result<u32, GgufProblem> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, GgufProblem> {
        self.array().map(u64::from_le_bytes)
    }

    /// A length in 64 bits, then so many bytes of UTF-8.
    pub(super) fn text(&mut self) -> Result<&'a str, GgufProblem> {
        let length = self.u64()?;
        let at = self.at();
        std::str::from_utf8(self.take(length)?).map_err(|_| GgufProblem::NotText { at })
    }
}

/// The types of values, as the format numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufType {
    /// 8 bits, unsigned.
    U8,
    /// 8 bits, signed.
    I8,
    /// 16 bits, unsigned.
    U16,
    /// 16 bits, signed.
    I16,
    /// 32 bits, unsigned.
    U32,
    /// 32 bits, signed.
    I32,
    /// Binary32.
    F32,
    /// A byte that is 0 or 1.
    Bool,
    /// UTF-8 with its length.
    Text,
    /// Values of one type.
    List,
    /// 64 bits, unsigned.
    U64,
    /// 64 bits, signed.
    I64,
    /// Binary64.
    F64,
}

impl GgufType {
    /// The type of a number; the numbers are the order of declaration.
    pub(super) fn of(number: u32) -> Option<Self> {
        use GgufType::*;
        let all = [U8, I8, U16, I16, U32, I32, F32, Bool, Text, List, U64, I64, F64];
        all.get(number as usize).copied()
    }

    /// The number of a type.
    pub(super) fn number(self) -> u32 {
        self as u32
    }

    /// Bytes of a value; `None` for texts and lists.
    fn bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::List => None,
        }
    }
}

/// A value of a key. Widths of numbers are not kept: [`GgufList::element`] has that of a list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GgufValue<'a> {
    /// An unsigned integer.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// A float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(&'a str),
    /// Values of one type.
    List(GgufList<'a>),
}

/// A list in a file: its values are read one by one, and none is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GgufList<'a> {
    element: GgufType,
    len: u64,
    bytes: &'a [u8],
}

impl<'a> GgufList<'a> {
    /// The type of its values.
    pub fn element(&self) -> GgufType {
        self.element
    }

    /// How many values there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values in order. They end early if the file was changed after it had been opened.
    pub fn iter(&self) -> impl Iterator<Item = GgufValue<'a>> + use<'a> {
        let (element, mut cursor) = (self.element, Cursor::new(self.bytes, 0));
        (0..self.len).map_while(move |_| read(element, &mut cursor, "").ok())
    }
}

/// The value of a type at a place. Reads each byte of it: what it returns is valid.
pub(super) fn read<'a>(
    kind: GgufType,
    cursor: &mut Cursor<'a>,
    key: &str,
) -> Result<GgufValue<'a>, GgufProblem> {
    use GgufValue::{Bool, Float, List, Signed, Text, Unsigned};
    Ok(match kind {
        GgufType::U8 => Unsigned(u8::from_le_bytes(cursor.array()?).into()),
        GgufType::I8 => Signed(i8::from_le_bytes(cursor.array()?).into()),
        GgufType::U16 => Unsigned(u16::from_le_bytes(cursor.array()?).into()),
        GgufType::I16 => Signed(i16::from_le_bytes(cursor.array()?).into()),
        GgufType::U32 => Unsigned(cursor.u32()?.into()),
        GgufType::I32 => Signed(i32::from_le_bytes(cursor.array()?).into()),
        GgufType::F32 => Float(f32::from_le_bytes(cursor.array()?).into()),
        GgufType::U64 => Unsigned(cursor.u64()?),
        GgufType::I64 => Signed(i64::from_le_bytes(cursor.array()?)),
        GgufType::F64 => Float(f64::from_le_bytes(cursor.array()?)),
        GgufType::Bool => match cursor.array()? {
            [0] => Bool(false),
            [1] => Bool(true),
            _ => return Err(GgufProblem::NotBool(super::shortened(key))),
        },
        GgufType::Text => Text(cursor.text()?),
        GgufType::List => List(list(cursor, key)?),
    })
}

fn list<'a>(cursor: &mut Cursor<'a>, key: &str) -> Result<GgufList<'a>, GgufProblem> {
    let element = value_type(cursor, key)?;
    let len = cursor.u64()?;
    let start = *cursor;
    match element.bytes() {
        Some(bytes) if element != GgufType::Bool => {
            let at = cursor.at();
            let all = len.checked_mul(bytes).ok_or(GgufProblem::Truncated { at })?;
            cursor.take(all)?;
        }
        None if element == GgufType::List => {
            return Err(GgufProblem::NestedList(super::shortened(key)));
        }
        // Each has a byte at least, so that the file's end ends the loop.
        _ => {
            for _ in 0..len {
                read(element, cursor, key)?;
            }
        }
    }
    let bytes = start.bytes.get(start.at..cursor.at).unwrap_or_default();
    Ok(GgufList { element, len, bytes })
}

/// The number of a type, and the type.
pub(super) fn value_type(cursor: &mut Cursor<'_>, key: &str) -> Result<GgufType, GgufProblem> {
    let found = cursor.u32()?;
    let unknown = || GgufProblem::ValueType { key: super::shortened(key), found };
    GgufType::of(found).ok_or_else(unknown)
}
