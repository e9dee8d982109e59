//! The table of operations: what each one reads, writes and needs, and how the IR prints it. The
//! printer, the verifier, the walks over a kernel and the simulator's counts follow from the rows.
//!
//! A new operation is a variant of [`Op`] and a row. The compiler then names what else must know the
//! operation: the verifier's rules beyond the table, `body` of each emitter, `step` of the simulator.

mod tmem;

use std::fmt::Debug;
use std::slice::from_ref;

use super::operation::{
    AllowedArrays, Effect, Expected, Operation, OperationPart, ResultUniformity,
};
use super::{
    AccessKind, Accumulator, Address, Cache, Element, InstructionClass as Class, MatrixOperand,
    MatrixScope, MemoryAccess, Op, Operand, Reg, SharedTile, Shuffle, Space, Special, Type,
    Uniformity, Width,
};
use crate::target::Feature;
use AllowedArrays::{Anywhere, Constant, Global, Shared};
use Expected::{Any, Is, Like, Word};
use Feature::Base;
use ResultUniformity::{Control, Fixed, Least, Of};
use Type::{F32, Pred, U32};
use Uniformity::{Block, Varying, Warp, WarpGroup};

/// The row of an operation that a thread may run alone, with results that are as uniform as what it
/// reads. `form` is how the IR prints the parts, one for each `{}`.
fn row<'o, const N: usize>(
    class: Class,
    feature: Feature,
    form: &'o str,
    parts: [OperationPart<'o>; N],
) -> Operation<'o> {
    let (control, result) = (Varying, Least(Block));
    Operation { parts: Vec::new(), class, feature, control, result, effect: Effect::None }
        .then(form, parts)
}

impl<'o> Operation<'o> {
    /// More parts, and how they are printed.
    fn then<const N: usize>(mut self, form: &'o str, parts: [OperationPart<'o>; N]) -> Self {
        self.parts.push(OperationPart::Form(form));
        self.parts.extend(parts);
        self
    }

    /// A mask, if there is one.
    fn masked(self, mask: Option<Operand>) -> Self {
        match mask {
            Some(mask) => self.then(" where {}", [OperationPart::Mask(mask)]),
            None => self,
        }
    }

    fn transposed(self, transpose: bool) -> Self {
        if transpose { self.then(", transposed", []) } else { self }
    }

    fn matrix_operand(self, form: &'o str, role: &'static str, operand: &'o MatrixOperand) -> Self {
        match operand {
            MatrixOperand::Registers(regs) => {
                self.then(form, [OperationPart::Registers(role, Is(U32), regs)])
            }
            MatrixOperand::Shared(tile) => return self.tile(form, tile),
        }
        .then(")", [])
    }

    fn tile(self, form: &'o str, tile: &'o SharedTile) -> Self {
        self.then(form, [memory(&tile.address(), AccessKind::Read, 16, Anywhere)])
            .then(" leading {} stride {}", [show(&tile.leading), show(&tile.stride)])
            .then(" {})", [show(&tile.swizzle)])
    }

    fn control(self, control: Uniformity) -> Self {
        Self { control, ..self }
    }

    fn result(self, result: ResultUniformity) -> Self {
        Self { result, ..self }
    }

    fn effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }
}

fn show(value: &dyn Debug) -> OperationPart<'_> {
    OperationPart::Attribute(value)
}

fn write<'o>(ty: Expected<'o>, dst: &'o Reg) -> OperationPart<'o> {
    OperationPart::Writes("result", ty, from_ref(dst))
}

fn writes<'o>(ty: Expected<'o>, dst: &'o [Reg]) -> OperationPart<'o> {
    OperationPart::Writes("result", ty, dst)
}

fn read<'o>(role: &'static str, ty: Expected<'o>, value: &'o Operand) -> OperationPart<'o> {
    OperationPart::Reads(role, ty, from_ref(value))
}

/// The type of the result.
fn like(dst: &Reg) -> Expected<'_> {
    Like(from_ref(dst))
}

fn memory<'o>(
    address: &Address,
    kind: AccessKind,
    bytes: u32,
    allowed: AllowedArrays,
) -> OperationPart<'o> {
    OperationPart::Memory(MemoryAccess { address: *address, kind, bytes, allowed })
}

impl Op {
    /// The operation's row.
    pub(crate) fn row(&self) -> Operation<'_> {
        use AccessKind::{Atomic, Read, Write};
        match self {
            Self::Comment(line) => row(Class::Control, Base, "# ", []).then(line, []),
            Self::SchedulingBarrier => row(Class::Control, Base, "scheduling barrier", []),
            Self::Copy { dst, a } => {
                let parts = [write(Any, dst), read("value", like(dst), a)];
                row(Class::Move, Base, "{} = {}", parts)
            }
            Self::Uniform { dst, a } => {
                let parts = [write(Any, dst), read("value", like(dst), a)];
                row(Class::Move, Base, "{} = uniform {}", parts).result(Control)
            }
            Self::Special { dst, value } => {
                let least = match value {
                    Special::Thread | Special::Lane => Varying,
                    Special::Warp => Warp,
                    Special::Block(_) | Special::Blocks(_) | Special::ClusterBlock => Block,
                };
                row(Class::Move, Base, "{} = {}", [write(Is(U32), dst), show(value)])
                    .result(Least(least))
            }
            Self::Parameter { dst, parameter } => {
                let parts = [write(Is(U32), dst), OperationPart::Parameter(*parameter)];
                row(Class::Move, Base, "{} = parameter {}", parts)
            }
            Self::Unary { dst, op, a } => {
                let ([first], result, feature, class) = op.row();
                let parts = [write(Is(result), dst), show(op), read("a", Is(first), a)];
                row(class, feature, "{} = {} {}", parts)
            }
            Self::Binary { dst, op, a, b } => {
                let ([first, second], result, feature, class) = op.row();
                let (a, b) = (read("a", Is(first), a), read("b", Is(second), b));
                row(class, feature, "{} = {} {}, {}", [write(Is(result), dst), show(op), a, b])
            }
            Self::Ternary { dst, op, a, b, c } => {
                let ([first, second, third], result, feature, class) = op.row();
                let (a, b) = (read("a", Is(first), a), read("b", Is(second), b));
                let (dst, c) = (write(Is(result), dst), read("c", Is(third), c));
                row(class, feature, "{} = {} {}, {}, {}", [dst, show(op), a, b, c])
            }
            Self::Compare { dst, op, a, b } => {
                let ty = Is(op.operands());
                let parts = [write(Is(Pred), dst), show(op), read("a", ty, a), read("b", ty, b)];
                row(Class::Predicate, Base, "{} = {} {}, {}", parts)
            }
            Self::Select { dst, condition, a, b } => {
                let (a, b) = (read("a", like(dst), a), read("b", like(dst), b));
                let parts = [write(Any, dst), read("condition", Is(Pred), condition), a, b];
                row(Class::Predicate, Base, "{} = {} ? {} : {}", parts)
            }

            Self::Load { dst, from, width, mask, cache } => {
                let ty = match width {
                    Width::B8 | Width::B16 => Is(U32),
                    Width::B32 | Width::B64 | Width::B128 => Word,
                };
                let constant = Constant("the read-only path needs a constant buffer");
                let (allowed, feature, hint) = match cache {
                    Cache::Default => (Anywhere, Base, ""),
                    Cache::Constant => (constant, Base, ", Constant"),
                    Cache::Stream => (constant, Feature::NoAllocate, ", Stream"),
                };
                let class = match from.space {
                    Space::Global(_) => Class::GlobalLoad,
                    Space::Shared(_) => Class::SharedLoad,
                };
                let from = memory(from, Read, width.bytes(), allowed);
                let row =
                    row(class, feature, "{} = load {} {}", [writes(ty, dst), show(width), from]);
                match mask {
                    Some(mask) => {
                        let fill = read("fill", Like(dst), &mask.fill);
                        row.masked(Some(mask.condition)).then(" else {}", [fill])
                    }
                    None => row,
                }
                .then(hint, [])
            }
            Self::ClusterLoad { dst, from, width, block } => {
                let from = memory(from, Read, width.bytes(), Shared("source"));
                let block = read("block", Is(U32), block);
                let parts = [writes(Word, dst), show(width), from, block];
                row(Class::SharedLoad, Feature::Cluster, "{} = load {} {} of block {}", parts)
                    .result(Fixed(Varying))
            }
            Self::Store { to, values, width, mask } => {
                let class = match to.space {
                    Space::Global(_) => Class::GlobalStore,
                    Space::Shared(_) => Class::SharedStore,
                };
                let to = memory(to, Write, width.bytes(), Anywhere);
                let parts = [show(width), to, OperationPart::Reads("value", Word, values)];
                row(class, Base, "store {} {} = {}", parts).masked(*mask)
            }
            Self::Prefetch { from, mask } => {
                let from = memory(from, Read, 0, Constant("a prefetch needs a constant buffer"));
                row(Class::GlobalLoad, Base, "prefetch {}", [from]).masked(*mask)
            }
            Self::Guess { dst, from, mask } => {
                let from = memory(from, Read, 4, Global("what is guessed"));
                let parts = [write(Is(U32), dst), from];
                row(Class::GlobalLoad, Feature::GridDependency, "{} = guess {}", parts)
                    .masked(*mask)
                    .result(Fixed(Varying))
            }
            Self::Atomic { dst, op, at, value, order, scope } => {
                let form = if dst.is_some() { "{} = " } else { "{}" };
                let (at, value) = (memory(at, Atomic, 4, Anywhere), read("value", Is(U32), value));
                let parts = [show(op), at, value, show(order), show(scope)];
                row(Class::Atomic, order.needs(), form, [writes(Is(U32), dst.as_slice())])
                    .then("atomic {} {}, {}, {} {}", parts)
                    .result(Fixed(Varying))
            }
            Self::AtomicLoad { dst, from, order, scope } => {
                let from = memory(from, Atomic, 4, Anywhere);
                let parts = [write(Is(U32), dst), from, show(order), show(scope)];
                row(Class::Atomic, order.needs(), "{} = atomic load {}, {} {}", parts)
                    .result(Fixed(Varying))
            }
            Self::Fence { scope } => {
                row(Class::Atomic, Feature::Ordered, "fence {}", [show(scope)])
            }

            Self::Barrier => row(Class::Barrier, Base, "barrier", []).control(Block),
            Self::WarpSync => row(Class::Barrier, Feature::Warp, "warp sync", []).control(Warp),
            Self::NamedBarrier { id, threads, wait } => {
                let way = if *wait { ", wait" } else { ", arrive" };
                let parts = [show(id), show(threads)];
                row(Class::Barrier, Feature::NamedBarrier, "named barrier {} of {}", parts)
                    .then(way, [])
                    .control(Warp)
            }
            Self::ClusterBarrier => {
                row(Class::Barrier, Feature::Cluster, "cluster barrier", []).control(Warp)
            }
            Self::Shuffle { dst, op, a, by } => {
                let (a, lane) = (read("value", like(dst), a), read("lane", Is(U32), by));
                let result = match op {
                    Shuffle::Index => Of(*by),
                    Shuffle::Xor | Shuffle::Up | Shuffle::Down => Fixed(Varying),
                };
                let parts = [write(Any, dst), show(op), a, lane];
                row(Class::Exchange, Base, "{} = shuffle {} {}, {}", parts)
                    .control(Warp)
                    .result(result)
            }
            Self::Vote { dst, op, a } => {
                let parts = [write(Is(Pred), dst), show(op), read("a", Is(Pred), a)];
                row(Class::Exchange, Feature::Warp, "{} = vote {} {}", parts)
                    .control(Warp)
                    .result(Fixed(Warp))
            }
            Self::Ballot { dst, a } => {
                let parts = [writes(Is(U32), dst), read("a", Is(Pred), a)];
                row(Class::Exchange, Feature::Warp, "{} = ballot {}", parts)
                    .control(Warp)
                    .result(Fixed(Warp))
            }

            Self::CopyAsync { to, from, width, mask } => {
                let to = memory(to, Write, width.bytes(), Shared("destination"));
                let from = memory(from, Read, width.bytes(), Global("source"));
                row(
                    Class::AsyncCopy,
                    Feature::CpAsync,
                    "copy async {} {} = {}",
                    [show(width), to, from],
                )
                .masked(*mask)
            }
            Self::CopyCommit => row(Class::AsyncCopy, Feature::CpAsync, "copy commit", []),
            Self::CopyWait { pending } => {
                let parts = [show(pending)];
                row(Class::AsyncCopy, Feature::CpAsync, "copy wait, {} may remain", parts)
            }
            Self::CopyArrive { barrier } => {
                let parts = [OperationPart::Mbarrier(*barrier)];
                row(Class::AsyncCopy, Feature::Mbarrier, "copy arrive {}", parts)
            }

            Self::MbarrierInit { barrier, arrivals } => {
                let parts = [OperationPart::Mbarrier(*barrier), show(arrivals)];
                row(Class::Barrier, Feature::Mbarrier, "mbarrier init {}, {} arrivals", parts)
            }
            Self::MbarrierFence => {
                row(Class::Barrier, Feature::MbarrierBytes, "mbarrier fence", [])
            }
            Self::MbarrierArrive { barrier, expect } => {
                let arrive = |feature| {
                    let parts = [OperationPart::Mbarrier(*barrier)];
                    row(Class::Barrier, feature, "mbarrier arrive {}", parts)
                };
                match expect {
                    None => arrive(Feature::Mbarrier),
                    Some(bytes) => arrive(Feature::MbarrierBytes)
                        .then(", expect {} bytes", [read("value", Is(U32), bytes)]),
                }
            }
            Self::ClusterArrive { barrier, block } => {
                let parts = [OperationPart::Mbarrier(*barrier), read("block", Is(U32), block)];
                row(Class::Barrier, Feature::Cluster, "mbarrier arrive {} of block {}", parts)
            }
            Self::MbarrierWait { barrier, parity } => {
                let parts = [OperationPart::Mbarrier(*barrier), read("value", Is(U32), parity)];
                row(Class::Barrier, Feature::Mbarrier, "mbarrier wait {}, parity {}", parts)
            }

            Self::FenceAsync => row(Class::AsyncCopy, Feature::Bulk, "fence async", []),
            Self::BulkLoad { to, from, bytes, barrier } => {
                let to = memory(to, Write, 16, Shared("destination"));
                let from = memory(from, Read, 16, Global("source"));
                let parts =
                    [to, from, read("bytes", Is(U32), bytes), OperationPart::Mbarrier(*barrier)];
                row(Class::AsyncCopy, Feature::Bulk, "bulk load {} = {}, {} bytes, {}", parts)
            }
            Self::BulkStore { to, from, bytes } => {
                let to = memory(to, Write, 16, Global("destination"));
                let from = memory(from, Read, 16, Shared("source"));
                let parts = [to, from, read("bytes", Is(U32), bytes)];
                row(Class::AsyncCopy, Feature::Bulk, "bulk store {} = {}, {} bytes", parts)
            }
            Self::TensorLoad { to, map, at, barrier, multicast } => {
                let to = memory(to, Write, 0, Shared("destination"));
                let parts =
                    [to, OperationPart::Tensor(*map, at), OperationPart::Mbarrier(*barrier)];
                let row = row(Class::AsyncCopy, Feature::Bulk, "tensor load {} = {}, {}", parts);
                match multicast {
                    Some(mask) => row.then(", to blocks {}", [read("multicast", Is(U32), mask)]),
                    None => row,
                }
            }
            Self::TensorStore { map, at, from } => {
                let parts =
                    [OperationPart::Tensor(*map, at), memory(from, Read, 0, Shared("source"))];
                row(Class::AsyncCopy, Feature::Bulk, "tensor store {} = {}", parts)
            }
            Self::BulkCommit => row(Class::AsyncCopy, Feature::Bulk, "bulk commit", []),
            Self::BulkWait { pending, reads_only } => {
                let what = if *reads_only { "bulk wait reads" } else { "bulk wait" };
                row(Class::AsyncCopy, Feature::Bulk, what, [])
                    .then(", {} may remain", [show(pending)])
            }

            Self::MatrixLoad { dst, from, transpose } => {
                let parts = [writes(Is(U32), dst), memory(from, Read, 16, Shared("source"))];
                row(Class::SharedLoad, Feature::LdMatrix, "{} = matrix load {}", parts)
                    .transposed(*transpose)
                    .control(Warp)
                    .result(Fixed(Varying))
            }
            Self::MatrixStore { to, values, transpose } => {
                let to = memory(to, Write, 16, Shared("destination"));
                let parts = [to, OperationPart::Reads("value", Is(U32), values)];
                row(Class::SharedStore, Feature::StMatrix, "matrix store {} = {}", parts)
                    .transposed(*transpose)
                    .control(Warp)
            }
            Self::MatrixTranspose { dst, a } => {
                let parts = [write(Is(U32), dst), read("a", Is(U32), a)];
                row(Class::Exchange, Feature::MovMatrix, "{} = transpose {}", parts)
                    .control(Warp)
                    .result(Fixed(Varying))
            }
            Self::Matrix { op, d, a, b, c, scales } => {
                let ty = Is(if op.d == Element::F32 { F32 } else { U32 });
                let (control, effect) = match op.scope {
                    MatrixScope::Warp | MatrixScope::TensorMemory => (Warp, Effect::None),
                    MatrixScope::WarpGroup => (WarpGroup, Effect::MatrixStart),
                };
                let mut row =
                    row(Class::Matrix, op.needs, "{} = ", [OperationPart::Writes("d", ty, d)])
                        .then(op.name, [])
                        .matrix_operand(" a({}", "a", a)
                        .matrix_operand(" b({}", "b", b);
                if let Accumulator::Registers(regs) = c {
                    row = row.then(" c({})", [OperationPart::Registers("c", ty, regs)]);
                }
                if let Some([a, b]) = scales {
                    let from = |scale| OperationPart::Registers("scale", Is(U32), from_ref(scale));
                    row = row
                        .then(" scale a({} byte {})", [from(&a.from), show(&a.byte)])
                        .then(" scale b({} byte {})", [from(&b.from), show(&b.byte)]);
                }
                row.control(control).result(Fixed(Varying)).effect(effect)
            }
            Self::MatrixFence => row(Class::Matrix, Feature::Wgmma, "matrix fence", [])
                .control(WarpGroup)
                .effect(Effect::MatrixFence),
            Self::MatrixCommit => row(Class::Matrix, Feature::Wgmma, "matrix commit", [])
                .control(WarpGroup)
                .effect(Effect::MatrixCommit),
            Self::MatrixWait { pending } => {
                row(Class::Matrix, Feature::Wgmma, "matrix wait, {} may remain", [show(pending)])
                    .control(WarpGroup)
                    .effect(Effect::MatrixWait(*pending))
            }

            Self::Tmem(op) => op.row(),

            Self::GridWait => row(Class::Barrier, Feature::GridDependency, "grid wait", [])
                .effect(Effect::GridWait),
            Self::GridLaunch => row(Class::Barrier, Feature::GridDependency, "grid launch", []),
        }
    }
}
