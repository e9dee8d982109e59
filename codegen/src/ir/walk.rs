//! The operands, results, memory accesses and required features of each operation, for verifier,
//! builder, printer and emitters.

use std::collections::BTreeSet;

use super::{
    Accumulator, Address, BarrierRef, Binary, Body, Cache, Half, Kernel, MatrixOperand,
    MatrixScope, MemoryOrder, Op, Operand, Reg, Role, Statement, Ternary, Unary, Uniformity,
};
use crate::target::Feature;

/// The kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// An atomic read and write.
    Atomic,
}

impl Op {
    /// Operands in the order of the definition, addresses' indices included.
    pub fn reads(&self) -> Vec<Operand> {
        let mut all = Vec::new();
        match self {
            Self::Comment(_)
            | Self::Special { .. }
            | Self::Parameter { .. }
            | Self::Fence { .. }
            | Self::Barrier
            | Self::WarpSync
            | Self::NamedBarrier { .. }
            | Self::ClusterBarrier
            | Self::CopyCommit
            | Self::CopyWait { .. }
            | Self::MbarrierFence
            | Self::FenceAsync
            | Self::BulkCommit
            | Self::BulkWait { .. }
            | Self::MatrixFence
            | Self::MatrixCommit
            | Self::MatrixWait { .. }
            | Self::GridWait
            | Self::GridLaunch => {}
            Self::Copy { a, .. }
            | Self::Uniform { a, .. }
            | Self::Unary { a, .. }
            | Self::Vote { a, .. }
            | Self::Ballot { a, .. }
            | Self::MatrixTranspose { a, .. } => all.push(*a),
            Self::Binary { a, b, .. }
            | Self::Compare { a, b, .. }
            | Self::Shuffle { a, by: b, .. } => all.extend([*a, *b]),
            Self::Ternary { a, b, c, .. } | Self::Select { condition: a, a: b, b: c, .. } => {
                all.extend([*a, *b, *c]);
            }
            Self::Load { from, mask, .. } => {
                all.push(from.index);
                all.extend(mask.iter().flat_map(|mask| [mask.condition, mask.fill]));
            }
            Self::Store { to, values, mask, .. } => {
                all.push(to.index);
                all.extend(values);
                all.extend(mask);
            }
            Self::Prefetch { from, mask } => {
                all.push(from.index);
                all.extend(mask);
            }
            Self::Atomic { at, value, .. } => all.extend([at.index, *value]),
            Self::AtomicLoad { from, .. } | Self::MatrixLoad { from, .. } => all.push(from.index),
            Self::CopyAsync { to, from, mask, .. } => {
                all.extend([to.index, from.index]);
                all.extend(mask);
            }
            Self::CopyArrive { barrier } | Self::MbarrierInit { barrier, .. } => {
                all.push(barrier.index);
            }
            Self::MbarrierArrive { barrier, expect } => {
                all.push(barrier.index);
                all.extend(expect);
            }
            Self::MbarrierWait { barrier, parity } => all.extend([barrier.index, *parity]),
            Self::BulkLoad { to, from, bytes, barrier } => {
                all.extend([to.index, from.index, *bytes, barrier.index]);
            }
            Self::BulkStore { to, from, bytes } => all.extend([to.index, from.index, *bytes]),
            Self::TensorLoad { to, at, barrier, multicast, .. } => {
                all.extend([to.index, barrier.index]);
                all.extend(at);
                all.extend(multicast);
            }
            Self::TensorStore { at, from, .. } => {
                all.push(from.index);
                all.extend(at);
            }
            Self::MatrixStore { to, values, .. } => {
                all.push(to.index);
                all.extend(values);
            }
            Self::Matrix { a, b, c, scales, .. } => {
                for operand in [a, b] {
                    match operand {
                        MatrixOperand::Registers(regs) => {
                            all.extend(regs.iter().map(|reg| Operand::Reg(*reg)));
                        }
                        MatrixOperand::Shared(tile) => all.push(tile.index),
                    }
                }
                if let Accumulator::Registers(regs) = c {
                    all.extend(regs.iter().map(|reg| Operand::Reg(*reg)));
                }
                all.extend(scales.iter().flatten().map(|scale| Operand::Reg(scale.from)));
            }
        }
        all
    }

    /// Registers that it writes.
    pub fn writes(&self) -> Vec<Reg> {
        match self {
            Self::Copy { dst, .. }
            | Self::Uniform { dst, .. }
            | Self::Special { dst, .. }
            | Self::Parameter { dst, .. }
            | Self::Unary { dst, .. }
            | Self::Binary { dst, .. }
            | Self::Ternary { dst, .. }
            | Self::Compare { dst, .. }
            | Self::Select { dst, .. }
            | Self::AtomicLoad { dst, .. }
            | Self::Shuffle { dst, .. }
            | Self::Vote { dst, .. }
            | Self::MatrixTranspose { dst, .. } => vec![*dst],
            Self::Atomic { dst, .. } => dst.iter().copied().collect(),
            Self::Load { dst, .. } | Self::Ballot { dst, .. } | Self::MatrixLoad { dst, .. } => {
                dst.clone()
            }
            Self::Matrix { d, .. } => d.clone(),
            _ => Vec::new(),
        }
    }

    /// Its memory accesses: address, kind, bytes of one access. The bytes are 0 if they are a
    /// run-time value or a tensor box.
    pub fn memory_accesses(&self) -> Vec<(Address, AccessKind, u32)> {
        match self {
            Self::Load { from, width, .. } => vec![(*from, AccessKind::Read, width.bytes())],
            Self::Store { to, width, .. } => vec![(*to, AccessKind::Write, width.bytes())],
            Self::Prefetch { from, .. } => vec![(*from, AccessKind::Read, 0)],
            Self::Atomic { at, .. } => vec![(*at, AccessKind::Atomic, 4)],
            Self::AtomicLoad { from, .. } => vec![(*from, AccessKind::Atomic, 4)],
            Self::CopyAsync { to, from, width, .. } => {
                vec![
                    (*to, AccessKind::Write, width.bytes()),
                    (*from, AccessKind::Read, width.bytes()),
                ]
            }
            Self::BulkLoad { to, from, .. } | Self::BulkStore { to, from, .. } => {
                vec![(*to, AccessKind::Write, 16), (*from, AccessKind::Read, 16)]
            }
            Self::TensorLoad { to, .. } => vec![(*to, AccessKind::Write, 0)],
            Self::TensorStore { from, .. } => vec![(*from, AccessKind::Read, 0)],
            Self::MatrixLoad { from, .. } => vec![(*from, AccessKind::Read, 16)],
            Self::MatrixStore { to, .. } => vec![(*to, AccessKind::Write, 16)],
            _ => Vec::new(),
        }
    }

    /// Whether the access has a mask.
    pub fn is_masked(&self) -> bool {
        match self {
            Self::Load { mask, .. } => mask.is_some(),
            Self::Store { mask, .. }
            | Self::Prefetch { mask, .. }
            | Self::CopyAsync { mask, .. } => mask.is_some(),
            _ => false,
        }
    }

    /// The mbarrier that it uses.
    pub fn barrier(&self) -> Option<BarrierRef> {
        match self {
            Self::CopyArrive { barrier }
            | Self::MbarrierInit { barrier, .. }
            | Self::MbarrierArrive { barrier, .. }
            | Self::MbarrierWait { barrier, .. }
            | Self::BulkLoad { barrier, .. }
            | Self::TensorLoad { barrier, .. } => Some(*barrier),
            _ => None,
        }
    }

    /// The feature that the target must have.
    pub fn needs(&self) -> Feature {
        match self {
            Self::Unary { op: Unary::F16x2FromE4m3(_), .. } => Feature::ConvertE4m3,
            Self::Binary { op, .. } => match op {
                Binary::PackE4m3 => Feature::PackE4m3,
                Binary::AddPacked(Half::F16)
                | Binary::SubPacked(Half::F16)
                | Binary::MulPacked(Half::F16)
                | Binary::MaxPacked(Half::F16) => Feature::PackedF16,
                Binary::MaxPacked(Half::Bf16) => Feature::PackedBf16Fma,
                Binary::AddPacked(Half::Bf16)
                | Binary::SubPacked(Half::Bf16)
                | Binary::MulPacked(Half::Bf16) => Feature::PackedBf16,
                Binary::Pack(_) => Feature::PackHalf,
                _ => Feature::Base,
            },
            Self::Ternary { op, .. } => match op {
                Ternary::FmaPacked(Half::F16) => Feature::PackedF16,
                Ternary::FmaPacked(Half::Bf16) => Feature::PackedBf16Fma,
                Ternary::Lop3(_) => Feature::Lop3,
                Ternary::Permute => Feature::Permute,
                Ternary::Dot4 { .. } => Feature::Dot4,
                _ => Feature::Base,
            },
            Self::Load { cache: Cache::Stream, .. } => Feature::NoAllocate,
            Self::Vote { .. } | Self::Ballot { .. } | Self::WarpSync => Feature::Warp,
            Self::Atomic { order, .. } | Self::AtomicLoad { order, .. }
                if *order != MemoryOrder::Relaxed =>
            {
                Feature::Ordered
            }
            Self::Fence { .. } => Feature::Ordered,
            Self::CopyAsync { .. } | Self::CopyCommit | Self::CopyWait { .. } => Feature::CpAsync,
            Self::CopyArrive { .. } | Self::MbarrierInit { .. } => Feature::Mbarrier,
            Self::MbarrierArrive { expect: None, .. } | Self::MbarrierWait { .. } => {
                Feature::Mbarrier
            }
            Self::MbarrierArrive { .. } | Self::MbarrierFence => Feature::MbarrierBytes,
            Self::FenceAsync
            | Self::BulkLoad { .. }
            | Self::BulkStore { .. }
            | Self::TensorLoad { .. }
            | Self::TensorStore { .. }
            | Self::BulkCommit
            | Self::BulkWait { .. } => Feature::Bulk,
            Self::ClusterBarrier => Feature::Cluster,
            Self::NamedBarrier { .. } => Feature::NamedBarrier,
            Self::MatrixLoad { .. } => Feature::LdMatrix,
            Self::MatrixStore { .. } => Feature::StMatrix,
            Self::MatrixTranspose { .. } => Feature::MovMatrix,
            Self::Matrix { op, .. } => op.needs,
            Self::MatrixFence | Self::MatrixCommit | Self::MatrixWait { .. } => Feature::Wgmma,
            Self::GridWait | Self::GridLaunch => Feature::GridDependency,
            _ => Feature::Base,
        }
    }

    /// The uniformity that control must have at this operation.
    pub fn demands(&self) -> Uniformity {
        match self {
            Self::Barrier | Self::ClusterBarrier => Uniformity::Block,
            Self::MatrixFence | Self::MatrixCommit | Self::MatrixWait { .. } => {
                Uniformity::WarpGroup
            }
            Self::Matrix { op, .. } => match op.scope {
                MatrixScope::Warp => Uniformity::Warp,
                MatrixScope::WarpGroup => Uniformity::WarpGroup,
            },
            Self::WarpSync
            | Self::NamedBarrier { .. }
            | Self::Shuffle { .. }
            | Self::Vote { .. }
            | Self::Ballot { .. }
            | Self::MatrixLoad { .. }
            | Self::MatrixStore { .. }
            | Self::MatrixTranspose { .. } => Uniformity::Warp,
            _ => Uniformity::Varying,
        }
    }
}

/// Every operation of a body, in the order of the statement numbers.
pub(crate) fn each_op<'k>(body: &'k Body, visit: &mut dyn FnMut(&'k Op)) {
    for statement in body {
        match statement {
            Statement::Op(op) => visit(op),
            Statement::If { then, otherwise, .. } => {
                each_op(then, visit);
                each_op(otherwise, visit);
            }
            Statement::For { body, .. } => each_op(body, visit),
            Statement::While { test, body, .. } => {
                each_op(test, visit);
                each_op(body, visit);
            }
            Statement::Roles(roles) => {
                for role in roles {
                    each_op(&role.body, visit);
                }
            }
        }
    }
}

impl Kernel {
    /// The features that the target must have.
    pub fn features(&self) -> BTreeSet<Feature> {
        let mut features = BTreeSet::new();
        each_op(&self.body, &mut |op| {
            features.insert(op.needs());
        });
        if roles(&self.body).any(|role| role.registers.is_some()) {
            features.insert(Feature::SetMaxRegisters);
        }
        features
    }
}

fn roles(body: &Body) -> impl Iterator<Item = &Role> {
    let last = body.last().into_iter();
    last.flat_map(|statement| match statement {
        Statement::Roles(roles) => roles.as_slice(),
        _ => &[],
    })
}

impl Statement {
    /// Number of statements: itself and all nested ones.
    pub fn count(&self) -> usize {
        let sum = |body: &Body| body.iter().map(Self::count).sum::<usize>();
        1 + match self {
            Self::Op(_) => 0,
            Self::If { then, otherwise, .. } => sum(then) + sum(otherwise),
            Self::For { body, .. } => sum(body),
            Self::While { test, body, .. } => sum(test) + sum(body),
            Self::Roles(roles) => roles.iter().map(|role| sum(&role.body)).sum(),
        }
    }
}
