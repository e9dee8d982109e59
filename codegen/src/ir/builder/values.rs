//! Arithmetic. Operations on constants are folded where the folding is simple and exact.

use super::Builder;
use crate::ir::{
    Binary, Compare, Half, Op, Operand, Reg, Shuffle, Ternary, Type, Unary, Uniformity,
};

impl Builder {
    /// op(a).
    pub fn unary(&mut self, op: Unary, a: impl Into<Operand>) -> Operand {
        let a = a.into();
        let dst = self.fresh(op.signature().1, &[a]);
        self.push(Op::Unary { dst, op, a });
        dst.into()
    }

    /// op(a, b).
    pub fn binary(&mut self, op: Binary, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        let (a, b) = (a.into(), b.into());
        if let Some(value) = folded(op, a, b) {
            return value;
        }
        let dst = self.fresh(op.signature().1, &[a, b]);
        self.push(Op::Binary { dst, op, a, b });
        dst.into()
    }

    /// op(a, b, c).
    pub fn ternary(
        &mut self,
        op: Ternary,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
        c: impl Into<Operand>,
    ) -> Operand {
        let (a, b, c) = (a.into(), b.into(), c.into());
        let dst = self.fresh(op.signature().1, &[a, b, c]);
        self.push(Op::Ternary { dst, op, a, b, c });
        dst.into()
    }

    /// acc = a * b + acc, in place, in f32.
    pub fn accumulate(&mut self, acc: Reg, a: impl Into<Operand>, b: impl Into<Operand>) {
        let (a, b) = (a.into(), b.into());
        self.push(Op::Ternary { dst: acc, op: Ternary::Fma, a, b, c: acc.into() });
    }

    /// a + b.
    pub fn add(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.binary(Binary::Add, a, b)
    }

    /// a - b.
    pub fn sub(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.binary(Binary::Sub, a, b)
    }

    /// a * b; a shift where b is a power of two.
    pub fn mul(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        let (a, b) = (a.into(), b.into());
        match b {
            Operand::U32(by) if by.is_power_of_two() => self.shl(a, by.trailing_zeros()),
            _ => self.binary(Binary::Mul, a, b),
        }
    }

    /// a * b + c.
    pub fn mad(
        &mut self,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
        c: impl Into<Operand>,
    ) -> Operand {
        let (a, b, c) = (a.into(), b.into(), c.into());
        match (a, b, c) {
            (_, Operand::U32(0 | 1), _) | (Operand::U32(_), Operand::U32(_), _) => {
                let product = self.mul(a, b);
                self.add(product, c)
            }
            (_, _, Operand::U32(0)) => self.mul(a, b),
            _ => self.ternary(Ternary::Mad, a, b, c),
        }
    }

    /// The quotient, rounded down.
    pub fn div(&mut self, a: impl Into<Operand>, b: u32) -> Operand {
        let a = a.into();
        if b.is_power_of_two() {
            self.shr(a, b.trailing_zeros())
        } else {
            self.binary(Binary::Div, a, b)
        }
    }

    /// The remainder.
    pub fn rem(&mut self, a: impl Into<Operand>, b: u32) -> Operand {
        let a = a.into();
        if b.is_power_of_two() { self.and(a, b - 1) } else { self.binary(Binary::Rem, a, b) }
    }

    /// a & b.
    pub fn and(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.binary(Binary::And, a, b)
    }

    /// a ^ b.
    pub fn xor(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.binary(Binary::Xor, a, b)
    }

    /// a << b.
    pub fn shl(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.binary(Binary::Shl, a, b)
    }

    /// a >> b, zeros shifted in.
    pub fn shr(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.binary(Binary::Shr, a, b)
    }

    /// The f32 value of a 16-bit float in one half.
    pub fn half_to_f32(
        &mut self,
        half: Half,
        side: crate::ir::Side,
        a: impl Into<Operand>,
    ) -> Operand {
        self.unary(Unary::F32FromHalf(half, side), a)
    }

    /// a + b in f32.
    pub fn add_f32(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.binary(Binary::AddF32, a, b)
    }

    /// a * b in f32.
    pub fn mul_f32(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.binary(Binary::MulF32, a, b)
    }

    /// The comparison of a and b.
    pub fn compare(
        &mut self,
        op: Compare,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Operand {
        let (a, b) = (a.into(), b.into());
        if let (Operand::U32(a), Operand::U32(b)) = (a, b) {
            match op {
                Compare::Less => return (a < b).into(),
                Compare::Equal => return (a == b).into(),
                _ => {}
            }
        }
        let dst = self.fresh(Type::Pred, &[a, b]);
        self.push(Op::Compare { dst, op, a, b });
        dst.into()
    }

    /// a < b, unsigned.
    pub fn less(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.compare(Compare::Less, a, b)
    }

    /// a = b.
    pub fn equal(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.compare(Compare::Equal, a, b)
    }

    /// The conjunction of two predicates.
    pub fn both(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        match (a.into(), b.into()) {
            (Operand::Pred(true), other) | (other, Operand::Pred(true)) => other,
            (a, b) => self.binary(Binary::AndPred, a, b),
        }
    }

    /// condition ? a : b.
    pub fn select(
        &mut self,
        condition: impl Into<Operand>,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Operand {
        let (condition, a, b) = (condition.into(), a.into(), b.into());
        match condition {
            Operand::Pred(true) => return a,
            Operand::Pred(false) => return b,
            _ => {}
        }
        let dst = self.fresh(self.type_of(a), &[condition, a, b]);
        self.push(Op::Select { dst, condition, a, b });
        dst.into()
    }

    /// Another lane's value.
    pub fn shuffle(
        &mut self,
        op: Shuffle,
        a: impl Into<Operand>,
        by: impl Into<Operand>,
    ) -> Operand {
        let (a, by) = (a.into(), by.into());
        let one_lane = op == Shuffle::Index && self.uniformity(by) >= Uniformity::Warp;
        let uniformity = if one_lane { Uniformity::Warp } else { Uniformity::Varying };
        let dst = self.fresh_as(self.type_of(a), uniformity);
        self.push(Op::Shuffle { dst, op, a, by });
        dst.into()
    }
}

/// The result, if the operands are constants or one of them is neutral.
fn folded(op: Binary, a: Operand, b: Operand) -> Option<Operand> {
    use Operand::U32;
    let value = match (op, a, b) {
        (Binary::Add, U32(a), U32(b)) => U32(a.wrapping_add(b)),
        (Binary::Sub, U32(a), U32(b)) => U32(a.wrapping_sub(b)),
        (Binary::Mul, U32(a), U32(b)) => U32(a.wrapping_mul(b)),
        (Binary::And, U32(a), U32(b)) => U32(a & b),
        (Binary::Or, U32(a), U32(b)) => U32(a | b),
        (Binary::Xor, U32(a), U32(b)) => U32(a ^ b),
        (Binary::Shl, U32(a), U32(b)) => U32(a.checked_shl(b)?),
        (Binary::Shr, U32(a), U32(b)) => U32(a.checked_shr(b)?),
        (Binary::Div, U32(a), U32(b)) => U32(a.checked_div(b)?),
        (Binary::Rem, U32(a), U32(b)) => U32(a.checked_rem(b)?),
        (Binary::Add, x, U32(0)) | (Binary::Add, U32(0), x) => x,
        (Binary::Sub | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr, x, U32(0)) => x,
        (Binary::Mul | Binary::And, _, U32(0)) => U32(0),
        (Binary::Mul, x, U32(1)) => x,
        _ => return None,
    };
    Some(value)
}
