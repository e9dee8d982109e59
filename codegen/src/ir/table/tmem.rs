//! The rows of operations on tensor memory.

use super::{Word, memory, read, row, show, writes};
use crate::ir::operation::ResultUniformity::Fixed;
use crate::ir::operation::{AllowedArrays, Effect, Expected, Operation, OperationPart};
use crate::ir::{
    AccessKind, InstructionClass as Class, Operand, TmemAddress, TmemOp, TmemOperand, Type,
    Uniformity,
};
use crate::target::Feature;

const U32: Expected<'_> = Expected::Is(Type::U32);

fn base(address: &TmemAddress) -> OperationPart<'_> {
    read("address", U32, &address.base)
}

impl TmemOp {
    /// The operation's row.
    pub(super) fn row(&self) -> Operation<'_> {
        match self {
            Self::Allocate { to } => {
                let to = memory(to, AccessKind::Write, 4, AllowedArrays::Shared("destination"));
                row(Class::Barrier, Feature::TensorMemory, "{} = tmem allocate", [to])
                    .control(Uniformity::Warp)
            }
            Self::Free { base } => {
                let parts = [read("address", U32, base)];
                row(Class::Barrier, Feature::TensorMemory, "tmem free {}", parts)
                    .control(Uniformity::Warp)
            }
            Self::Load { dst, from } => {
                let parts = [writes(Word, dst), base(from), show(&from.column)];
                row(Class::SharedLoad, Feature::TensorMemory, "{} = tmem load {} + {}", parts)
                    .control(Uniformity::Warp)
                    .result(Fixed(Uniformity::Varying))
                    .effect(Effect::TmemLoad)
            }
            Self::Store { to, values } => {
                let values = OperationPart::Reads("value", Word, values);
                let parts = [base(to), show(&to.column), values];
                row(Class::SharedStore, Feature::TensorMemory, "tmem store {} + {} = {}", parts)
                    .control(Uniformity::Warp)
            }
            Self::WaitLoads => row(Class::Barrier, Feature::TensorMemory, "tmem wait loads", [])
                .control(Uniformity::Warp)
                .effect(Effect::TmemWaitLoads),
            Self::WaitStores => row(Class::Barrier, Feature::TensorMemory, "tmem wait stores", [])
                .control(Uniformity::Warp),
            Self::Copy { to, from } => {
                let from = memory(from, AccessKind::Read, 16, AllowedArrays::Shared("source"));
                let parts = [base(to), show(&to.column), from];
                row(Class::AsyncCopy, Feature::TensorMemory, "tmem copy {} + {} = {}", parts)
            }
            Self::Product { op, n, d, a, b, adds, scales } => {
                let adds = read("adds", Expected::Is(Type::Pred), adds);
                let mut row = row(Class::Matrix, op.needs, "", []).then(op.name, []).then(
                    " n {} d({} + {}) where {} is added",
                    [show(n), base(d), show(&d.column), adds],
                );
                row = match a {
                    TmemOperand::Shared(tile) => row.tile(" a({}", tile),
                    TmemOperand::Tmem(at) => row.then(" a({} + {})", [base(at), show(&at.column)]),
                }
                .tile(" b({}", b);
                for (form, scale) in [" scale a({} + {} byte {})", " scale b({} + {} byte {})"]
                    .into_iter()
                    .zip(scales.iter().flatten())
                {
                    let at = &scale.at;
                    row = row.then(form, [base(at), show(&at.column), show(&scale.byte)]);
                }
                row
            }
            Self::Commit { barrier } => {
                let parts = [OperationPart::Mbarrier(*barrier)];
                row(Class::Barrier, Feature::TensorMemory, "tmem commit {}", parts)
            }
            Self::FenceBefore => {
                row(Class::Barrier, Feature::TensorMemory, "tmem fence before", [])
            }
            Self::FenceAfter => row(Class::Barrier, Feature::TensorMemory, "tmem fence after", []),
        }
    }

    /// The address that all lanes of the warp have to give alike.
    pub(crate) fn collective(&self) -> Option<Operand> {
        match self {
            Self::Load { from, .. } => Some(from.base),
            Self::Store { to, .. } => Some(to.base),
            Self::Free { base } => Some(*base),
            _ => None,
        }
    }
}
