//! Checks of each operation alone: its items are declared, types and counts match, constants are in
//! range, the buffer allows the access, the target has the instruction.

use super::{Findings, RoleError, ValueError, VerifyErrorKind};
use crate::ir::operation::{AllowedArrays, Expected, OperationPart};
use crate::ir::{
    Access, AccessKind, Accumulator, Address, BarrierRef, Body, MatrixOperand, MatrixScope,
    MemoryAccess, MemoryOrder, Op, Operand, Reg, Role, Shuffle, Space, Special, Statement, Type,
    Unary, Word,
};
use Type::{F32, Pred, U32};

pub(super) fn check(findings: &mut Findings<'_>) {
    let mut walk = Walk { findings, at: 0 };
    let kernel = walk.findings.kernel;
    walk.body(&kernel.body, true);
}

struct Walk<'f, 'k> {
    findings: &'f mut Findings<'k>,
    at: usize,
}

impl<'k> Walk<'_, 'k> {
    fn report(&mut self, kind: VerifyErrorKind) {
        self.findings.report(Some(self.at), kind);
    }

    fn body(&mut self, body: &'k Body, top: bool) {
        for (place, statement) in body.iter().enumerate() {
            match statement {
                Statement::Op(op) => {
                    self.operation(op);
                    self.at += 1;
                }
                Statement::If { condition, then, otherwise } => {
                    self.value("condition", Pred, *condition);
                    self.at += 1;
                    self.body(then, false);
                    self.body(otherwise, false);
                }
                Statement::For { counter, start, end, step, body } => {
                    self.result("counter", U32, *counter);
                    for bound in [*start, *end, *step] {
                        self.value("bound", U32, bound);
                    }
                    if *step == Operand::U32(0) {
                        self.report(ValueError::LoopStep.into());
                    }
                    self.at += 1;
                    self.body(body, false);
                }
                Statement::While { test, condition, body } => {
                    self.result("condition", Pred, *condition);
                    self.at += 1;
                    self.body(test, false);
                    self.body(body, false);
                }
                Statement::Roles(roles) => {
                    if !top || place + 1 != body.len() {
                        self.report(VerifyErrorKind::Roles(RoleError::NotLast));
                    }
                    self.roles(roles);
                    self.at += 1;
                    for role in roles {
                        self.body(&role.body, false);
                    }
                }
            }
        }
    }

    fn roles(&mut self, roles: &[Role]) {
        let kernel = self.findings.kernel;
        let mut next = 0;
        for role in roles {
            if role.warps.start != next || role.warps.is_empty() {
                let (role, start) = (role.name.clone(), role.warps.start);
                self.report(VerifyErrorKind::Roles(RoleError::Start {
                    role,
                    start,
                    expected: next,
                }));
            }
            next = role.warps.end;
        }
        if next != kernel.warps() {
            let what = RoleError::Covered { covered: next, warps: kernel.warps() };
            self.report(VerifyErrorKind::Roles(what));
        }
        let Some(gpu) = kernel.target.gpu else { return };
        if roles.iter().all(|role| role.registers.is_none()) {
            return;
        }
        self.needs(crate::target::Feature::SetMaxRegisters);
        let threads = (kernel.launch.threads * kernel.launch.min_blocks).max(1);
        let per = (gpu.registers / threads).min(255) & !7;
        let mut asked = 0;
        for role in roles {
            let Some(registers) = role.registers else {
                let what = RoleError::NoRegisters(role.name.clone());
                self.report(VerifyErrorKind::Roles(what));
                continue;
            };
            if !(24..=256).contains(&registers) || !registers.is_multiple_of(8) {
                let what = RoleError::Registers { role: role.name.clone(), registers };
                self.report(VerifyErrorKind::Roles(what));
            }
            let group = gpu.warp_group.unwrap_or(1);
            if !role.warps.start.is_multiple_of(group) || !role.warps.end.is_multiple_of(group) {
                let what = RoleError::PartialWarpGroup(role.name.clone());
                self.report(VerifyErrorKind::Roles(what));
            }
            asked += registers * role.warps.len() as u32;
        }
        let given = per * kernel.warps();
        if asked > given {
            self.report(VerifyErrorKind::RegisterSum { asked, given, per });
        }
    }

    fn needs(&mut self, feature: crate::target::Feature) {
        let target = self.findings.kernel.target;
        if !target.has(feature) {
            self.report(VerifyErrorKind::Unavailable { target: target.name, feature });
        }
    }

    fn ty(&mut self, operand: Operand) -> Option<Type> {
        match operand {
            Operand::U32(_) => Some(U32),
            Operand::F32(_) => Some(F32),
            Operand::Pred(_) => Some(Pred),
            Operand::Reg(reg) => {
                if let Some(register) = self.findings.register(reg) {
                    return Some(register.ty);
                }
                let fault = match self.findings.kernel.registers.get(reg.id.0 as usize) {
                    Some(register) => VerifyErrorKind::ArrayBounds {
                        name: self.findings.name(reg),
                        len: register.len,
                    },
                    None => VerifyErrorKind::Unknown { what: "register", number: reg.id.0 },
                };
                self.report(fault);
                None
            }
        }
    }

    fn value(&mut self, role: &'static str, expected: Type, operand: Operand) {
        if let Some(found) = self.ty(operand)
            && found != expected
        {
            self.report(VerifyErrorKind::WrongType { role, expected, found });
        }
    }

    fn result(&mut self, role: &'static str, expected: Type, reg: Reg) {
        self.value(role, expected, Operand::Reg(reg));
    }

    fn expected(&mut self, role: &'static str, expected: Expected<'_>, operand: Operand) {
        match expected {
            Expected::Any => {
                self.ty(operand);
            }
            Expected::Is(ty) => self.value(role, ty, operand),
            Expected::Word => {
                if self.ty(operand) == Some(Pred) {
                    self.report(VerifyErrorKind::WrongType { role, expected: U32, found: Pred });
                }
            }
            Expected::Like(regs) => {
                for reg in regs {
                    if let Some(ty) = self.ty((*reg).into()) {
                        self.value(role, ty, operand);
                    }
                }
            }
        }
    }

    fn count(&mut self, role: &'static str, expected: usize, found: usize) {
        if expected != found {
            self.report(VerifyErrorKind::Count { role, expected, found });
        }
    }

    fn operation(&mut self, op: &'k Op) {
        let row = op.row();
        self.needs(row.feature);
        // A masked access is not checked for bounds: the mask is known only at run time.
        let masked = row.parts.iter().any(|part| matches!(part, OperationPart::Mask(_)));
        for part in &row.parts {
            match *part {
                OperationPart::Form(_) | OperationPart::Attribute(_) => {}
                OperationPart::Writes(role, ty, regs)
                | OperationPart::Registers(role, ty, regs) => {
                    regs.iter().for_each(|reg| self.expected(role, ty, (*reg).into()));
                }
                OperationPart::Reads(role, ty, values) => {
                    values.iter().for_each(|value| self.expected(role, ty, *value));
                }
                OperationPart::Mask(mask) => self.value("mask", Pred, mask),
                OperationPart::Memory(access) => {
                    self.allowed(access);
                    let certain = !(masked && matches!(access.address.space, Space::Global(_)));
                    self.address(access, certain);
                }
                OperationPart::Mbarrier(barrier) => self.mbarrier(barrier),
                OperationPart::Parameter(id) => {
                    if id.0 as usize >= self.findings.kernel.parameters.len() {
                        self.report(VerifyErrorKind::Unknown { what: "parameter", number: id.0 });
                    }
                }
                OperationPart::Tensor(id, at) => self.tensor(id.0, at),
            }
        }
        self.rules(op);
    }

    /// The rules that the table of operations does not have: numbers of registers, constants.
    fn rules(&mut self, op: &'k Op) {
        let gpu = self.findings.kernel.target.gpu;
        match op {
            Op::Special { value: Special::Block(axis) | Special::Blocks(axis), .. } => {
                self.require(*axis <= 2, ValueError::GridAxis(*axis));
            }
            Op::Unary { op: Unary::F16x2From(code, pair), .. } => {
                let (pair, pairs) = (*pair, code.pairs());
                self.require(u32::from(pair) < pairs, ValueError::PairOfCodes { pair, pairs });
            }
            Op::Load { dst, width, .. } | Op::ClusterLoad { dst, width, .. } => {
                self.count("results", width.registers(), dst.len())
            }
            Op::Store { values, width, .. } => {
                self.count("values", width.registers(), values.len());
            }
            Op::AtomicLoad { order, .. } => {
                let acquires = matches!(order, MemoryOrder::Relaxed | MemoryOrder::Acquire);
                self.require(acquires, ValueError::ReleasingLoad);
            }
            Op::NamedBarrier { id, threads, .. } => {
                let (warp, block) = (gpu.map_or(1, |gpu| gpu.warp), self.findings.kernel.launch);
                let exists = (1..=15).contains(id);
                self.require(exists, ValueError::NamedBarrier(*id));
                let whole = *threads > 0 && threads.is_multiple_of(warp);
                let whole = whole && *threads <= block.threads;
                self.require(whole, ValueError::BarrierThreads(*threads));
            }
            Op::Shuffle { op, a, by, .. } => {
                self.expected("value", Expected::Word, *a);
                self.shuffle(*op, *by);
            }
            Op::Ballot { dst, .. } => {
                let warp = gpu.map_or(32, |gpu| gpu.warp);
                self.count("results", warp.div_ceil(32) as usize, dst.len());
            }
            Op::CopyAsync { width, .. } => {
                self.require(width.bytes() >= 4, ValueError::CopyWidth);
            }
            Op::MbarrierInit { arrivals, .. } => {
                let countable = (1..1 << 20).contains(arrivals);
                self.require(countable, ValueError::Arrivals(*arrivals));
            }
            Op::BulkLoad { bytes: Operand::U32(bytes), .. }
            | Op::BulkStore { bytes: Operand::U32(bytes), .. } => {
                let whole = *bytes > 0 && bytes.is_multiple_of(16);
                self.require(whole, ValueError::BulkBytes(*bytes));
            }
            Op::MatrixLoad { dst, .. } => self.matrices(dst.len()),
            Op::MatrixStore { values, .. } => self.matrices(values.len()),
            Op::Matrix { .. } => self.matrix(op),
            Op::Tmem(op) => super::tmem::numbers(op).into_iter().for_each(|kind| self.report(kind)),
            Op::Comment(_)
            | Op::SchedulingBarrier
            | Op::Copy { .. }
            | Op::Uniform { .. }
            | Op::Special { .. }
            | Op::Parameter { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Ternary { .. }
            | Op::Compare { .. }
            | Op::Select { .. }
            | Op::Prefetch { .. }
            | Op::Guess { .. }
            | Op::Atomic { .. }
            | Op::Fence { .. }
            | Op::Barrier
            | Op::WarpSync
            | Op::ClusterBarrier
            | Op::Vote { .. }
            | Op::CopyCommit
            | Op::CopyWait { .. }
            | Op::CopyArrive { .. }
            | Op::MbarrierFence
            | Op::MbarrierArrive { .. }
            | Op::ClusterArrive { .. }
            | Op::MbarrierWait { .. }
            | Op::FenceAsync
            | Op::BulkLoad { .. }
            | Op::BulkStore { .. }
            | Op::TensorLoad { .. }
            | Op::TensorStore { .. }
            | Op::BulkCommit
            | Op::BulkWait { .. }
            | Op::MatrixTranspose { .. }
            | Op::MatrixFence
            | Op::MatrixCommit
            | Op::MatrixWait { .. }
            | Op::GridWait
            | Op::GridLaunch => {}
        }
    }

    fn require(&mut self, right: bool, otherwise: ValueError) {
        if !right {
            self.report(otherwise.into());
        }
    }

    fn allowed(&mut self, access: MemoryAccess) {
        let shared = matches!(access.address.space, Space::Shared(_));
        match access.allowed {
            AllowedArrays::Shared(role) if !shared => {
                self.report(VerifyErrorKind::WrongSpace { role, expected: "shared" });
            }
            AllowedArrays::Global(role) if shared => {
                self.report(VerifyErrorKind::WrongSpace { role, expected: "global" });
            }
            AllowedArrays::Constant(what) => self.constant_buffer(access.address, what),
            AllowedArrays::Anywhere | AllowedArrays::Shared(_) | AllowedArrays::Global(_) => {}
        }
    }

    fn mbarrier(&mut self, barrier: BarrierRef) {
        self.value("mbarrier's index", U32, barrier.index);
        let number = barrier.array.0;
        let Some(array) = self.findings.kernel.barriers.get(number as usize) else {
            return self.report(VerifyErrorKind::Unknown { what: "mbarrier", number });
        };
        if let Operand::U32(index) = barrier.index
            && index >= array.len
        {
            let name = format!("{}[{index}]", array.name);
            self.report(VerifyErrorKind::ArrayBounds { name, len: array.len });
        }
    }

    fn tensor(&mut self, number: u32, at: &[Operand]) {
        for coordinate in at {
            self.value("coordinate", U32, *coordinate);
        }
        match self.findings.kernel.tensors.get(number as usize) {
            None => self.report(VerifyErrorKind::Unknown { what: "tensor map", number }),
            Some(map) => self.count("coordinates", map.extents.len(), at.len()),
        }
    }

    fn matrices(&mut self, count: usize) {
        let right = matches!(count, 1 | 2 | 4);
        self.require(right, ValueError::Matrices(count));
    }

    fn constant_buffer(&mut self, address: Address, what: &'static str) {
        let Space::Global(id) = address.space else {
            return self.report(VerifyErrorKind::WrongSpace { role: "source", expected: "global" });
        };
        let Some(buffer) = self.findings.kernel.buffers.get(id.0 as usize) else { return };
        if buffer.access != Access::Constant {
            let (name, access) = (buffer.name.clone(), buffer.access);
            self.report(VerifyErrorKind::BufferAccess { name, access, what });
        }
    }

    fn address(&mut self, access: MemoryAccess, certain: bool) {
        let MemoryAccess { address, kind, bytes, .. } = access;
        self.value("index", U32, address.index);
        let kernel = self.findings.kernel;
        let (name, word, len) = match address.space {
            Space::Global(id) => {
                let Some(buffer) = kernel.buffers.get(id.0 as usize) else {
                    return self.report(VerifyErrorKind::Unknown { what: "buffer", number: id.0 });
                };
                let access = buffer.access;
                let what = match (access, kind) {
                    (Access::Workspace, _)
                    | (Access::Constant | Access::ReadOnly, AccessKind::Read)
                    | (Access::WriteOnce | Access::WriteSome, AccessKind::Write) => None,
                    (Access::WriteOnce | Access::WriteSome, AccessKind::Read) => Some("it is read"),
                    (_, AccessKind::Write) => Some("it is written"),
                    (_, AccessKind::Atomic) => Some("atomic operations need a workspace"),
                };
                if let Some(what) = what {
                    let name = buffer.name.clone();
                    self.report(VerifyErrorKind::BufferAccess { name, access, what });
                }
                let fixed = buffer.shape.iter().map(|extent| extent.value(&[]).map(u64::from));
                (&buffer.name, buffer.word, fixed.product::<Option<u64>>())
            }
            Space::Shared(id) => {
                let Some(block) = kernel.shared.get(id.0 as usize) else {
                    return self
                        .report(VerifyErrorKind::Unknown { what: "shared block", number: id.0 });
                };
                (&block.name, block.word, Some(u64::from(block.len)))
            }
        };
        if kind == AccessKind::Atomic && word != Word::U32 {
            self.report(ValueError::AtomicWord.into());
        }
        let known = match address.index {
            Operand::U32(index) => u64::from(index),
            _ => 0,
        };
        let from = (known + u64::from(address.offset)) * u64::from(word.bytes());
        let name = name.clone();
        if bytes > 0 && !from.is_multiple_of(bytes.into()) {
            return self.report(VerifyErrorKind::Misaligned { name, bytes, offset: from });
        }
        let to = from + u64::from(bytes.max(1));
        if let Some(len) = len.map(|len| len * u64::from(word.bytes()))
            && to > len
            && certain
        {
            self.report(VerifyErrorKind::OutOfBounds { name, from, to, len });
        }
    }

    /// Checks that the target's shuffle group contains both lanes of the shuffle.
    fn shuffle(&mut self, op: Shuffle, by: Operand) {
        let kernel = self.findings.kernel;
        let (target, threads) = (kernel.target.name, kernel.launch.threads);
        let lanes = match (op, by, kernel.target.gpu) {
            (Shuffle::Xor, Operand::U32(by), _) => {
                by.checked_add(1).and_then(u32::checked_next_power_of_two).unwrap_or(u32::MAX)
            }
            (.., Some(gpu)) => gpu.warp,
            (.., None) => return,
        };
        if kernel.target.gpu.is_some_and(|gpu| !gpu.can_shuffle(lanes, threads)) {
            self.report(VerifyErrorKind::ShuffleRange { target, lanes, threads });
        }
    }

    fn matrix(&mut self, statement: &'k Op) {
        let Op::Matrix { op, d, a, b, c, scales } = statement else { return };
        if op.scope == MatrixScope::TensorMemory {
            return self.report(ValueError::InstructionScope(op.name).into());
        }
        let warp = self.findings.kernel.target.gpu.map_or(32, |gpu| gpu.warp);
        let [in_a, in_b, in_d] = op.registers(warp).map(|count| count as usize);
        self.count("d", in_d, d.len());
        for (role, operand, count) in [("a", a, in_a), ("b", b, in_b)] {
            match operand {
                MatrixOperand::Registers(regs) => {
                    self.count(role, count, regs.len());
                    if role == "b" && op.b_layout.is_empty() {
                        self.report(VerifyErrorKind::WrongSpace { role, expected: "shared" });
                    }
                }
                MatrixOperand::Shared(_) => {
                    if op.scope == MatrixScope::Warp {
                        self.report(VerifyErrorKind::WrongSpace { role, expected: "register" });
                    }
                }
            }
        }
        let scales: Vec<_> = scales.iter().flatten().collect();
        self.count("scales", if op.scaling.is_some() { 2 } else { 0 }, scales.len());
        let of_lane = op.lane_scales();
        for scale in scales {
            let byte = u32::from(scale.byte);
            let selectable = byte <= 3 && byte.is_multiple_of(of_lane);
            self.require(selectable, ValueError::ScaleByte { scales: of_lane, byte });
        }
        if let Accumulator::Registers(regs) = c {
            self.count("c", in_d, regs.len());
            let same = op.scope == MatrixScope::Warp || regs == d;
            self.require(same, ValueError::Accumulator);
        }
    }
}
