//! Lowers a structured kernel to the flat program of one launch.

use super::program::{
    ArrayAddress, ArrayId, Instruction, InstructionClass, MbarrierAddress, OperandSource,
    OperandTile, PredSlot, Program, RegSlot, Step,
};
use crate::ir::{
    Accumulator, Address, BarrierRef, Binary, Body, Kernel, MatrixOperand, MatrixScope, Op,
    Operand, ParameterId, Reg, Space, Statement, Ternary, Type, Unary,
};

/// Lowers a kernel for a launch with these parameters.
pub(super) fn lower(kernel: &Kernel, parameters: &[u32]) -> Program {
    let mut lowering = Lowering::new(kernel, parameters);
    lowering.body(&kernel.body);
    let point = lowering.next_point;
    lowering.push(point, InstructionClass::Control, Instruction::End);
    lowering.program.points = point as usize + 1;
    lowering.program
}

struct Lowering<'a> {
    kernel: &'a Kernel,
    parameters: &'a [u32],
    program: Program,
    /// First slot or flag of each register.
    bases: Vec<u32>,
    next_point: u32,
}

impl<'a> Lowering<'a> {
    fn new(kernel: &'a Kernel, parameters: &'a [u32]) -> Self {
        let mut program = Program::default();
        let mut bases = Vec::new();
        for register in &kernel.registers {
            let names = match register.ty {
                Type::Pred => &mut program.flag_names,
                Type::U32 | Type::F32 => &mut program.slot_names,
            };
            bases.push(names.len() as u32);
            for at in 0..register.len {
                names.push(match register.len {
                    1 => register.name.clone(),
                    _ => format!("{}[{at}]", register.name),
                });
            }
        }
        // Two hidden slots per loop hold its bounds.
        let loops = count_loops(&kernel.body);
        program.slot_names.extend((0..2 * loops).map(|at| format!("loop bound {at}")));
        program.registers = program.slot_names.len();
        program.flags = program.flag_names.len();
        Self { kernel, parameters, program, bases, next_point: 0 }
    }

    fn push(&mut self, point: u32, class: InstructionClass, what: Instruction) -> usize {
        self.program.steps.push(Step { point, class, what });
        self.program.steps.len() - 1
    }

    fn here(&self) -> usize {
        self.program.steps.len()
    }

    fn slot_of(&self, reg: Reg) -> RegSlot {
        self.bases[reg.id.0 as usize] + reg.at
    }

    fn constant(&mut self, bits: u32) -> RegSlot {
        let constants = &mut self.program.constants;
        let at = constants.iter().position(|&old| old == bits).unwrap_or_else(|| {
            constants.push(bits);
            constants.len() - 1
        });
        (self.program.registers + at) as RegSlot
    }

    fn slot(&mut self, operand: Operand) -> RegSlot {
        match operand {
            Operand::Reg(reg) => self.slot_of(reg),
            Operand::U32(bits) => self.constant(bits),
            Operand::F32(value) => self.constant(value.to_bits()),
            Operand::Pred(value) => self.constant(u32::from(value)),
        }
    }

    fn flag(&mut self, operand: Operand) -> PredSlot {
        let value = match operand {
            Operand::Reg(reg) => return self.slot_of(reg),
            Operand::Pred(value) => value,
            Operand::U32(bits) => bits != 0,
            Operand::F32(value) => value != 0.0,
        };
        let constants = &mut self.program.constant_flags;
        let at = constants.iter().position(|&old| old == value).unwrap_or_else(|| {
            constants.push(value);
            constants.len() - 1
        });
        (self.program.flags + at) as PredSlot
    }

    fn slots(&self, regs: &[Reg]) -> Box<[RegSlot]> {
        regs.iter().map(|&reg| self.slot_of(reg)).collect()
    }

    fn operands(&mut self, operands: &[Operand]) -> Box<[RegSlot]> {
        operands.iter().map(|&operand| self.slot(operand)).collect()
    }

    fn flags(&mut self, mask: Option<Operand>) -> Option<PredSlot> {
        mask.map(|mask| self.flag(mask))
    }

    fn at(&mut self, address: &Address) -> ArrayAddress {
        let (array, word) = match address.space {
            Space::Global(id) => (ArrayId::Global(id.0), self.kernel.buffers[id.0 as usize].word),
            Space::Shared(id) => (ArrayId::Shared(id.0), self.kernel.shared[id.0 as usize].word),
        };
        let index = self.slot(address.index);
        ArrayAddress { array, index, offset: address.offset, word: word.bytes() }
    }

    fn barrier(&mut self, barrier: &BarrierRef) -> MbarrierAddress {
        MbarrierAddress { array: barrier.array.0, index: self.slot(barrier.index) }
    }

    fn source(&mut self, operand: &MatrixOperand) -> OperandSource {
        match operand {
            MatrixOperand::Registers(regs) => OperandSource::Slots(self.slots(regs)),
            MatrixOperand::Shared(tile) => {
                let space = Space::Shared(tile.block);
                let address = Address { space, index: tile.index, offset: tile.offset };
                OperandSource::Tile(OperandTile {
                    at: self.at(&address),
                    leading: tile.leading,
                    stride: tile.stride,
                    swizzle: tile.swizzle,
                })
            }
        }
    }

    fn is_pred(&self, reg: Reg) -> bool {
        self.kernel.registers[reg.id.0 as usize].ty == Type::Pred
    }

    fn parameter(&self, id: ParameterId) -> u32 {
        self.parameters.get(id.0 as usize).copied().unwrap_or(0)
    }

    fn body(&mut self, body: &Body) {
        for statement in body {
            let point = self.next_point;
            self.next_point += 1;
            self.statement(point, statement);
        }
    }

    fn statement(&mut self, point: u32, statement: &Statement) {
        match statement {
            Statement::Op(Op::Comment(_)) => {}
            Statement::Op(op) => {
                let (class, what) = self.op(op);
                self.push(point, class, what);
            }
            Statement::If { condition, then, otherwise } => {
                let condition = self.flag(*condition);
                let control = |what| Step { point, class: InstructionClass::Control, what };
                let begin = self.here();
                self.program.steps.push(control(Instruction::If { condition, otherwise: 0 }));
                self.body(then);
                let middle = self.here();
                self.program.steps.push(control(Instruction::Else { end: 0 }));
                self.body(otherwise);
                let end = self.here();
                self.program.steps.push(control(Instruction::Pop));
                self.program.steps[begin].what = Instruction::If { condition, otherwise: middle };
                self.program.steps[middle].what = Instruction::Else { end };
            }
            Statement::For { counter, start, end, step, body } => {
                let counter = self.slot_of(*counter);
                let (start, end, step) = (self.slot(*start), self.slot(*end), self.slot(*step));
                let kept = self.loop_slots();
                let enter = Instruction::ForEnter { counter, start, end, step, kept };
                self.push(point, InstructionClass::Control, enter);
                let [end, step] = kept;
                let test = self.push(point, InstructionClass::Control, Instruction::Comment);
                self.body(body);
                self.push(
                    point,
                    InstructionClass::Control,
                    Instruction::ForNext { counter, step, test },
                );
                let exit =
                    self.push(point, InstructionClass::Control, Instruction::ForExit { counter });
                self.program.steps[test].what = Instruction::ForTest { counter, end, exit };
            }
            Statement::While { test, condition, body } => {
                self.push(point, InstructionClass::Control, Instruction::WhileEnter);
                let begin = self.here();
                self.body(test);
                let condition = self.slot_of(*condition);
                let branch = self.push(point, InstructionClass::Control, Instruction::Comment);
                self.body(body);
                self.push(point, InstructionClass::Control, Instruction::Jump(begin));
                let exit = self.push(point, InstructionClass::Control, Instruction::Pop);
                self.program.steps[branch].what = Instruction::WhileTest { condition, exit };
            }
            Statement::Roles(roles) => {
                let table = self.push(point, InstructionClass::Control, Instruction::Comment);
                let mut entries = Vec::new();
                let mut leaves = Vec::new();
                for role in roles {
                    entries.push((role.warps.clone(), self.here()));
                    self.body(&role.body);
                    leaves.push(self.push(point, InstructionClass::Control, Instruction::Comment));
                }
                let end = self.here();
                for leave in leaves {
                    self.program.steps[leave].what = Instruction::Jump(end);
                }
                self.program.steps[table].what = Instruction::Roles(entries.into());
            }
        }
    }

    /// The two hidden slots of the next loop.
    fn loop_slots(&self) -> [RegSlot; 2] {
        let enters = |step: &&Step| matches!(step.what, Instruction::ForEnter { .. });
        let before = self.program.steps.iter().filter(enters).count();
        let hidden = self.program.registers - 2 * count_loops(&self.kernel.body);
        let first = (hidden + 2 * before) as RegSlot;
        [first, first + 1]
    }

    fn op(&mut self, op: &Op) -> (InstructionClass, Instruction) {
        match op {
            Op::Comment(_) => (InstructionClass::Control, Instruction::Comment),
            Op::Copy { dst, a } if self.is_pred(*dst) => (
                InstructionClass::Move,
                Instruction::CopyFlag { dst: self.slot_of(*dst), a: self.flag(*a) },
            ),
            Op::Copy { dst, a } => (
                InstructionClass::Move,
                Instruction::Copy { dst: self.slot_of(*dst), a: self.slot(*a) },
            ),
            Op::Uniform { dst, a } => {
                let scope = self.kernel.registers[dst.id.0 as usize].uniformity;
                let target = self.slot_of(*dst);
                let what = if self.is_pred(*dst) {
                    Instruction::UniformFlag { dst: target, a: self.flag(*a), scope }
                } else {
                    Instruction::Uniform { dst: target, a: self.slot(*a), scope }
                };
                (InstructionClass::Move, what)
            }
            Op::Special { dst, value } => (
                InstructionClass::Move,
                Instruction::Special { dst: self.slot_of(*dst), value: *value },
            ),
            Op::Parameter { dst, parameter } => {
                let a = self.constant(self.parameter(*parameter));
                (InstructionClass::Move, Instruction::Copy { dst: self.slot_of(*dst), a })
            }
            Op::Unary { dst, op: Unary::NotPred, a } => (
                InstructionClass::Predicate,
                Instruction::Not { dst: self.slot_of(*dst), a: self.flag(*a) },
            ),
            Op::Unary { dst, op, a } => {
                let class = match op {
                    Unary::Not | Unary::PopCount => InstructionClass::Integer,
                    Unary::AsF32 | Unary::AsU32 => InstructionClass::Move,
                    Unary::Negate | Unary::Abs | Unary::Sqrt | Unary::RoundEven => {
                        InstructionClass::Float
                    }
                    _ => InstructionClass::Convert,
                };
                (class, Instruction::Unary { op: *op, dst: self.slot_of(*dst), a: self.slot(*a) })
            }
            Op::Binary { dst, op: op @ (Binary::AndPred | Binary::OrPred), a, b } => {
                let (dst, a, b) = (self.slot_of(*dst), self.flag(*a), self.flag(*b));
                let and = *op == Binary::AndPred;
                (InstructionClass::Predicate, Instruction::BinaryFlag { and, dst, a, b })
            }
            Op::Binary { dst, op, a, b } => {
                let class = match op {
                    Binary::AddF32
                    | Binary::SubF32
                    | Binary::MulF32
                    | Binary::DivF32
                    | Binary::MinF32
                    | Binary::MaxF32 => InstructionClass::Float,
                    Binary::AddPacked(_)
                    | Binary::SubPacked(_)
                    | Binary::MulPacked(_)
                    | Binary::MaxPacked(_) => InstructionClass::Packed,
                    Binary::Pack(_) | Binary::PackE4m3 => InstructionClass::Convert,
                    _ => InstructionClass::Integer,
                };
                let (dst, a, b) = (self.slot_of(*dst), self.slot(*a), self.slot(*b));
                (class, Instruction::Binary { op: *op, dst, a, b })
            }
            Op::Ternary { dst, op, a, b, c } => {
                let class = match op {
                    Ternary::Fma => InstructionClass::Float,
                    Ternary::FmaPacked(_) => InstructionClass::Packed,
                    _ => InstructionClass::Integer,
                };
                let abc = [self.slot(*a), self.slot(*b), self.slot(*c)];
                (class, Instruction::Ternary { op: *op, dst: self.slot_of(*dst), abc })
            }
            Op::Compare { dst, op, a, b } => {
                let (dst, a, b) = (self.slot_of(*dst), self.slot(*a), self.slot(*b));
                (InstructionClass::Predicate, Instruction::Compare { op: *op, dst, a, b })
            }
            Op::Select { dst, condition, a, b } => {
                let (target, condition) = (self.slot_of(*dst), self.flag(*condition));
                let what = if self.is_pred(*dst) {
                    let (a, b) = (self.flag(*a), self.flag(*b));
                    Instruction::SelectFlag { dst: target, condition, a, b }
                } else {
                    let (a, b) = (self.slot(*a), self.slot(*b));
                    Instruction::Select { dst: target, condition, a, b }
                };
                (InstructionClass::Predicate, what)
            }
            _ => self.memory_op(op),
        }
    }

    fn memory_op(&mut self, op: &Op) -> (InstructionClass, Instruction) {
        match op {
            Op::Load { dst, from, width, mask, cache: _ } => {
                let from = self.at(from);
                let class = match from.array {
                    ArrayId::Global(_) => InstructionClass::GlobalLoad,
                    ArrayId::Shared(_) => InstructionClass::SharedLoad,
                };
                let mask = mask.map(|mask| (self.flag(mask.condition), self.slot(mask.fill)));
                (class, Instruction::Load { dst: self.slots(dst), from, width: *width, mask })
            }
            Op::Store { to, values, width, mask } => {
                let to = self.at(to);
                let class = match to.array {
                    ArrayId::Global(_) => InstructionClass::GlobalStore,
                    ArrayId::Shared(_) => InstructionClass::SharedStore,
                };
                let (values, mask) = (self.operands(values), self.flags(*mask));
                (class, Instruction::Store { to, values, width: *width, mask })
            }
            Op::Prefetch { from, mask } => {
                let (from, mask) = (self.at(from), self.flags(*mask));
                (InstructionClass::GlobalLoad, Instruction::Prefetch { from, mask })
            }
            Op::Atomic { dst, op, at, value, order, scope } => {
                let dst = dst.map(|dst| self.slot_of(dst));
                let (at, value) = (self.at(at), self.slot(*value));
                let (op, order, scope) = (*op, *order, *scope);
                (InstructionClass::Atomic, Instruction::Atomic { dst, op, at, value, order, scope })
            }
            Op::AtomicLoad { dst, from, order, scope } => {
                let (dst, from) = (self.slot_of(*dst), self.at(from));
                let (order, scope) = (*order, *scope);
                (InstructionClass::Atomic, Instruction::AtomicLoad { dst, from, order, scope })
            }
            Op::Fence { scope } => (InstructionClass::Atomic, Instruction::Fence { scope: *scope }),
            Op::Barrier => (InstructionClass::Barrier, Instruction::Barrier),
            Op::WarpSync => (InstructionClass::Barrier, Instruction::WarpSync),
            Op::NamedBarrier { id, threads, wait } => {
                let what = Instruction::NamedBarrier { id: *id, threads: *threads, wait: *wait };
                (InstructionClass::Barrier, what)
            }
            Op::ClusterBarrier => (InstructionClass::Barrier, Instruction::ClusterBarrier),
            Op::Shuffle { dst, op, a, by } => {
                let (dst, a, by) = (self.slot_of(*dst), self.slot(*a), self.slot(*by));
                (InstructionClass::Exchange, Instruction::Shuffle { dst, op: *op, a, by })
            }
            Op::Vote { dst, op, a } => {
                let (dst, a) = (self.slot_of(*dst), self.flag(*a));
                (InstructionClass::Exchange, Instruction::Vote { dst, op: *op, a })
            }
            Op::Ballot { dst, a } => (
                InstructionClass::Exchange,
                Instruction::Ballot { dst: self.slots(dst), a: self.flag(*a) },
            ),
            _ => self.async_op(op),
        }
    }

    fn async_op(&mut self, op: &Op) -> (InstructionClass, Instruction) {
        let what = match op {
            Op::CopyAsync { to, from, width, mask } => {
                let (to, from, mask) = (self.at(to), self.at(from), self.flags(*mask));
                Instruction::CopyAsync { to, from, width: *width, mask }
            }
            Op::CopyCommit => Instruction::CopyCommit,
            Op::CopyWait { pending } => Instruction::CopyWait { pending: *pending },
            Op::CopyArrive { barrier } => {
                Instruction::CopyArrive { barrier: self.barrier(barrier) }
            }
            Op::MbarrierInit { barrier, arrivals } => {
                let barrier = self.barrier(barrier);
                let what = Instruction::MbarrierInit { barrier, arrivals: *arrivals };
                return (InstructionClass::Barrier, what);
            }
            Op::MbarrierFence => return (InstructionClass::Barrier, Instruction::MbarrierFence),
            Op::MbarrierArrive { barrier, expect } => {
                let barrier = self.barrier(barrier);
                let expect = expect.map(|expect| self.slot(expect));
                return (
                    InstructionClass::Barrier,
                    Instruction::MbarrierArrive { barrier, expect },
                );
            }
            Op::MbarrierWait { barrier, parity } => {
                let (barrier, parity) = (self.barrier(barrier), self.slot(*parity));
                return (InstructionClass::Barrier, Instruction::MbarrierWait { barrier, parity });
            }
            Op::FenceAsync => Instruction::FenceAsync,
            Op::BulkLoad { to, from, bytes, barrier } => Instruction::BulkLoad {
                to: self.at(to),
                from: self.at(from),
                bytes: self.slot(*bytes),
                barrier: self.barrier(barrier),
            },
            Op::BulkStore { to, from, bytes } => Instruction::BulkStore {
                to: self.at(to),
                from: self.at(from),
                bytes: self.slot(*bytes),
            },
            Op::TensorLoad { to, map, at, barrier, multicast } => Instruction::TensorLoad {
                to: self.at(to),
                map: *map,
                at: self.operands(at),
                barrier: self.barrier(barrier),
                multicast: multicast.map(|mask| self.slot(mask)),
            },
            Op::TensorStore { map, at, from } => {
                Instruction::TensorStore { map: *map, at: self.operands(at), from: self.at(from) }
            }
            Op::BulkCommit => Instruction::BulkCommit,
            Op::BulkWait { pending, reads_only } => {
                Instruction::BulkWait { pending: *pending, reads_only: *reads_only }
            }
            _ => return self.matrix_op(op),
        };
        (InstructionClass::AsyncCopy, what)
    }

    fn matrix_op(&mut self, op: &Op) -> (InstructionClass, Instruction) {
        match op {
            Op::MatrixLoad { dst, from, transpose } => {
                let (dst, from) = (self.slots(dst), self.at(from));
                (
                    InstructionClass::SharedLoad,
                    Instruction::MatrixLoad { dst, from, transpose: *transpose },
                )
            }
            Op::MatrixStore { to, values, transpose } => {
                let (to, values) = (self.at(to), self.operands(values));
                (
                    InstructionClass::SharedStore,
                    Instruction::MatrixStore { to, values, transpose: *transpose },
                )
            }
            Op::MatrixTranspose { dst, a } => {
                let (dst, a) = (self.slot_of(*dst), self.slot(*a));
                (InstructionClass::Exchange, Instruction::MatrixTranspose { dst, a })
            }
            Op::Matrix { op, d, a, b, c, scales } => {
                self.program.matrix_groups |= op.scope == MatrixScope::WarpGroup;
                let c = match c {
                    Accumulator::Zero => None,
                    Accumulator::Registers(regs) => Some(self.slots(regs)),
                };
                let (a, b) = (self.source(a), self.source(b));
                let d = self.slots(d);
                let scales =
                    scales.map(|both| both.map(|scale| (self.slot_of(scale.from), scale.byte)));
                (InstructionClass::Matrix, Instruction::Matrix { op, d, a, b, c, scales })
            }
            Op::MatrixFence => (InstructionClass::Matrix, Instruction::MatrixFence),
            Op::MatrixCommit => (InstructionClass::Matrix, Instruction::MatrixCommit),
            Op::MatrixWait { pending } => {
                (InstructionClass::Matrix, Instruction::MatrixWait { pending: *pending })
            }
            Op::GridWait => (InstructionClass::Barrier, Instruction::GridWait),
            Op::GridLaunch => (InstructionClass::Barrier, Instruction::GridLaunch),
            // The callers have lowered every other operation.
            _ => (InstructionClass::Control, Instruction::Comment),
        }
    }
}

fn count_loops(body: &Body) -> usize {
    body.iter()
        .map(|statement| match statement {
            Statement::Op(_) => 0,
            Statement::If { then, otherwise, .. } => count_loops(then) + count_loops(otherwise),
            Statement::For { body, .. } => 1 + count_loops(body),
            Statement::While { test, body, .. } => count_loops(test) + count_loops(body),
            Statement::Roles(roles) => roles.iter().map(|role| count_loops(&role.body)).sum(),
        })
        .sum()
}
