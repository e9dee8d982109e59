//! The dispatch from a step to an operation of whatever executes the step.
//!
//! A [`StepSink`] has a method for each kind of step: bits ([`interpret`](super::interpret)), costs
//! ([`cost`](super::cost)), registers of a kernel, Rust. [`Step::lower`] calls the method of a step. A sink
//! without that operation returns `None`; no other list says which steps a sink has.

use super::step::{Arg, Step};
use crate::target::{ConvertedCode, Half};

/// An operation on two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordOp {
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Sum modulo 2^32.
    Add,
}

/// A shift of a word by a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShiftOp {
    /// Left; zeros follow.
    Left,
    /// Right; zeros follow.
    Right,
    /// Right; copies of the top bit follow.
    RightSigned,
    /// Rotation to the left.
    RotateLeft,
}

/// An executor of steps. Each operation has the meaning of the [`Step`] of its name; an operation that a
/// sink does not have is `None`.
pub trait StepSink {
    /// The value of a register.
    type Value;

    /// The value of an argument.
    fn arg(&mut self, arg: Arg) -> Self::Value;

    /// An operation on two words.
    fn word(&mut self, op: WordOp, a: Self::Value, b: Self::Value) -> Option<Self::Value>;

    /// A shift by a constant below 32.
    fn shift(&mut self, op: ShiftOp, a: Self::Value, by: u8) -> Option<Self::Value>;

    /// [`Step::Lop3`].
    fn lop3(&mut self, of: [Self::Value; 3], table: u8) -> Option<Self::Value> {
        let _ = (of, table);
        None
    }

    /// [`Step::Prmt`]: of low, high and select.
    fn prmt(&mut self, of: [Self::Value; 3]) -> Option<Self::Value> {
        let _ = of;
        None
    }

    /// [`Step::Fma16`].
    fn fma16(&mut self, half: Half, of: [Self::Value; 3]) -> Option<Self::Value> {
        let _ = (half, of);
        None
    }

    /// [`Step::Sub16`].
    fn sub16(&mut self, half: Half, of: [Self::Value; 2]) -> Option<Self::Value> {
        let _ = (half, of);
        None
    }

    /// [`Step::CvtF16`].
    fn convert_f16(
        &mut self,
        codes: Self::Value,
        of: ConvertedCode,
        pair: u8,
    ) -> Option<Self::Value> {
        let _ = (codes, of, pair);
        None
    }

    /// [`Step::LookupF32`].
    fn lookup_f32(&mut self, table: &[u32], index: Self::Value) -> Option<Self::Value> {
        let _ = (table, index);
        None
    }

    /// [`Step::LookupHalf`].
    fn lookup_half(&mut self, table: &[u32], index: Self::Value) -> Option<Self::Value> {
        let _ = (table, index);
        None
    }

    /// [`Step::LookupBytes`].
    fn lookup_bytes(&mut self, table: &[u8; 16], indices: Self::Value) -> Option<Self::Value> {
        let _ = (table, indices);
        None
    }

    /// [`Step::IntToF32`].
    fn int_to_f32(&mut self, a: Self::Value) -> Option<Self::Value> {
        let _ = a;
        None
    }

    /// [`Step::AddF32`].
    fn add_f32(&mut self, a: Self::Value, b: Self::Value) -> Option<Self::Value> {
        let _ = (a, b);
        None
    }

    /// [`Step::Equal`].
    fn equal(&mut self, a: Self::Value, b: Self::Value) -> Option<Self::Value> {
        let _ = (a, b);
        None
    }
}

impl Step {
    /// Executes the step on a sink: its result, or `None` if the sink has no such operation.
    pub fn lower<S: StepSink>(&self, sink: &mut S) -> Option<S::Value> {
        let mut word = |op, a: &Arg, b: &Arg| {
            let (a, b) = (sink.arg(*a), sink.arg(*b));
            sink.word(op, a, b)
        };
        match self {
            Self::And(a, b) => word(WordOp::And, a, b),
            Self::Or(a, b) => word(WordOp::Or, a, b),
            Self::Xor(a, b) => word(WordOp::Xor, a, b),
            Self::Add(a, b) => word(WordOp::Add, a, b),
            Self::Shl(a, by) => shift(sink, ShiftOp::Left, *a, *by),
            Self::Shr(a, by) => shift(sink, ShiftOp::Right, *a, *by),
            Self::Sar(a, by) => shift(sink, ShiftOp::RightSigned, *a, *by),
            Self::Rotl(a, by) => shift(sink, ShiftOp::RotateLeft, *a, *by),
            Self::Lop3 { a, b, c, table } => {
                let of = [*a, *b, *c].map(|arg| sink.arg(arg));
                sink.lop3(of, *table)
            }
            Self::Prmt { low, high, select } => {
                let of = [*low, *high, *select].map(|arg| sink.arg(arg));
                sink.prmt(of)
            }
            Self::Fma16(half, a, b, c) => {
                let of = [*a, *b, *c].map(|arg| sink.arg(arg));
                sink.fma16(*half, of)
            }
            Self::Sub16(half, a, b) => {
                let of = [*a, *b].map(|arg| sink.arg(arg));
                sink.sub16(*half, of)
            }
            Self::CvtF16 { codes, of, pair } => {
                let codes = sink.arg(*codes);
                sink.convert_f16(codes, *of, *pair)
            }
            Self::LookupF32 { table, index } => {
                let index = sink.arg(*index);
                sink.lookup_f32(table, index)
            }
            Self::LookupHalf { table, index } => {
                let index = sink.arg(*index);
                sink.lookup_half(table, index)
            }
            Self::LookupBytes { table, indices } => {
                let indices = sink.arg(*indices);
                sink.lookup_bytes(table, indices)
            }
            Self::IntToF32(a) => {
                let a = sink.arg(*a);
                sink.int_to_f32(a)
            }
            Self::AddF32(a, b) => {
                let (a, b) = (sink.arg(*a), sink.arg(*b));
                sink.add_f32(a, b)
            }
            Self::Equal(a, b) => {
                let (a, b) = (sink.arg(*a), sink.arg(*b));
                sink.equal(a, b)
            }
        }
    }
}

fn shift<S: StepSink>(sink: &mut S, op: ShiftOp, a: Arg, by: u8) -> Option<S::Value> {
    let a = sink.arg(a);
    sink.shift(op, a, by)
}
