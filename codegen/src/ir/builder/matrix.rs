//! Matrix operations.

use super::Builder;
use crate::ir::{
    Accumulator, Address, MatrixOp, MatrixOperand, MatrixScale, Op, Reg, Type, Uniformity,
};

impl Builder {
    /// A fragment: new registers whose values vary between threads.
    pub fn fragment(&mut self, ty: Type, len: u32) -> Vec<Reg> {
        self.fresh_array(ty, len, Uniformity::Varying)
    }

    /// Loads 1, 2 or 4 matrices of 8 rows of 16 bytes.
    pub fn load_matrix(&mut self, from: Address, count: u32, transpose: bool) -> Vec<Reg> {
        let dst = self.fragment(Type::U32, count);
        self.push(Op::MatrixLoad { dst: dst.clone(), from, transpose });
        dst
    }

    /// d = a b + c in warp scope.
    pub fn matrix(
        &mut self,
        op: &'static MatrixOp,
        d: &[Reg],
        a: &[Reg],
        b: &[Reg],
        c: Accumulator,
    ) {
        let (a, b) = (MatrixOperand::Registers(a.to_vec()), MatrixOperand::Registers(b.to_vec()));
        self.push(Op::Matrix { op, d: d.to_vec(), a, b, c, scales: None });
    }

    /// d = (a * scale of a) (b * scale of b) + c in warp scope, by a scaling instruction.
    pub fn matrix_scaled(
        &mut self,
        op: &'static MatrixOp,
        d: &[Reg],
        (a, b): (&[Reg], &[Reg]),
        c: Accumulator,
        scales: [MatrixScale; 2],
    ) {
        let (a, b) = (MatrixOperand::Registers(a.to_vec()), MatrixOperand::Registers(b.to_vec()));
        self.push(Op::Matrix { op, d: d.to_vec(), a, b, c, scales: Some(scales) });
    }

    /// d += a b in warp scope.
    pub fn matrix_add(&mut self, op: &'static MatrixOp, d: &[Reg], a: &[Reg], b: &[Reg]) {
        self.matrix(op, d, a, b, Accumulator::Registers(d.to_vec()));
    }
}
