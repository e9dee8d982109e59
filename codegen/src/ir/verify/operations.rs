//! Checks of each operation alone: its items are declared, types and counts match, constants are in
//! range, the buffer allows the access, the target has the instruction.

use super::{Findings, VerifyErrorKind};
use crate::ir::{
    Access, AccessKind, Accumulator, Address, Body, Cache, MatrixOperand, MatrixScope, MemoryOrder,
    Op, Operand, Reg, Role, Shuffle, Space, Special, Statement, Type, Width, Word,
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
                        self.report(VerifyErrorKind::Value("a loop's step is 0".to_owned()));
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
                        let what = "they are not the last statement of the kernel".to_owned();
                        self.report(VerifyErrorKind::Roles(what));
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
                let what =
                    format!("`{}` starts at warp {}, not {next}", role.name, role.warps.start);
                self.report(VerifyErrorKind::Roles(what));
            }
            next = role.warps.end;
        }
        if next != kernel.warps() {
            self.report(VerifyErrorKind::Roles(format!(
                "they cover warps 0 to {next} of {}",
                kernel.warps()
            )));
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
                let what = format!("`{}` does not set its number of registers", role.name);
                self.report(VerifyErrorKind::Roles(what));
                continue;
            };
            if !(24..=256).contains(&registers) || !registers.is_multiple_of(8) {
                let what = format!(
                    "`{}` has {registers} registers; must be a multiple of 8 from 24 to 256",
                    role.name
                );
                self.report(VerifyErrorKind::Roles(what));
            }
            let group = gpu.warp_group.unwrap_or(1);
            if !role.warps.start.is_multiple_of(group) || !role.warps.end.is_multiple_of(group) {
                let what = format!(
                    "`{}` sets its number of registers, and is not made of whole warp groups",
                    role.name
                );
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

    /// A 32-bit operand: u32 or f32.
    fn word(&mut self, role: &'static str, operand: Operand) {
        if self.ty(operand) == Some(Pred) {
            self.report(VerifyErrorKind::WrongType { role, expected: U32, found: Pred });
        }
    }

    fn same(&mut self, role: &'static str, dst: Reg, operand: Operand) {
        if let Some(expected) = self.ty(dst.into()) {
            self.value(role, expected, operand);
        }
    }

    fn count(&mut self, role: &'static str, expected: usize, found: usize) {
        if expected != found {
            self.report(VerifyErrorKind::Count { role, expected, found });
        }
    }

    fn operation(&mut self, op: &'k Op) {
        self.needs(op.needs());
        // A masked access is not checked for bounds: the mask is known only at run time.
        let masked = op.is_masked();
        for (address, kind, bytes) in op.memory_accesses() {
            let certain = !(masked && matches!(address.space, Space::Global(_)));
            self.address(address, kind, bytes, certain);
        }
        if let Some(barrier) = op.barrier() {
            self.value("mbarrier's index", U32, barrier.index);
            match self.findings.kernel.barriers.get(barrier.array.0 as usize) {
                None => self
                    .report(VerifyErrorKind::Unknown { what: "mbarrier", number: barrier.array.0 }),
                Some(array) => {
                    if let Operand::U32(index) = barrier.index
                        && index >= array.len
                    {
                        let name = format!("{}[{index}]", array.name);
                        self.report(VerifyErrorKind::ArrayBounds { name, len: array.len });
                    }
                }
            }
        }
        self.operands(op);
    }

    fn operands(&mut self, op: &'k Op) {
        match op {
            Op::Copy { dst, a } | Op::Uniform { dst, a } => self.same("value", *dst, *a),
            Op::Special { dst, value } => {
                self.result("result", U32, *dst);
                if let Special::Block(axis) | Special::Blocks(axis) = value
                    && *axis > 2
                {
                    self.report(VerifyErrorKind::Value(format!("grid axis {axis} does not exist")));
                }
            }
            Op::Parameter { dst, parameter } => {
                self.result("result", U32, *dst);
                if parameter.0 as usize >= self.findings.kernel.parameters.len() {
                    self.report(VerifyErrorKind::Unknown {
                        what: "parameter",
                        number: parameter.0,
                    });
                }
            }
            Op::Unary { dst, op, a } => {
                let ([first], result) = op.signature();
                self.value("a", first, *a);
                self.result("result", result, *dst);
            }
            Op::Binary { dst, op, a, b } => {
                let ([first, second], result) = op.signature();
                self.value("a", first, *a);
                self.value("b", second, *b);
                self.result("result", result, *dst);
            }
            Op::Ternary { dst, op, a, b, c } => {
                let ([first, second, third], result) = op.signature();
                self.value("a", first, *a);
                self.value("b", second, *b);
                self.value("c", third, *c);
                self.result("result", result, *dst);
            }
            Op::Compare { dst, op, a, b } => {
                self.value("a", op.operands(), *a);
                self.value("b", op.operands(), *b);
                self.result("result", Pred, *dst);
            }
            Op::Select { dst, condition, a, b } => {
                self.value("condition", Pred, *condition);
                self.same("a", *dst, *a);
                self.same("b", *dst, *b);
            }
            Op::Load { dst, from, width, mask, cache } => {
                self.count("results", width.registers(), dst.len());
                for reg in dst {
                    match width {
                        Width::B8 | Width::B16 => self.result("result", U32, *reg),
                        _ => self.word("result", (*reg).into()),
                    }
                    if let Some(mask) = mask {
                        self.same("fill", *reg, mask.fill);
                    }
                }
                if let Some(mask) = mask {
                    self.value("mask", Pred, mask.condition);
                }
                if *cache != Cache::Default {
                    self.constant_buffer(*from, "the read-only path needs a constant buffer");
                }
            }
            Op::Store { values, width, mask, .. } => {
                self.count("values", width.registers(), values.len());
                for value in values {
                    self.word("value", *value);
                }
                self.mask(*mask);
            }
            Op::Prefetch { from, mask } => {
                self.constant_buffer(*from, "a prefetch needs a constant buffer");
                self.mask(*mask);
            }
            Op::Atomic { dst, at, value, .. } => {
                if let Some(dst) = dst {
                    self.result("result", U32, *dst);
                }
                self.value("value", U32, *value);
                self.atomic(*at);
            }
            Op::AtomicLoad { dst, from, order, .. } => {
                self.result("result", U32, *dst);
                self.atomic(*from);
                if matches!(order, MemoryOrder::Release | MemoryOrder::AcquireRelease) {
                    self.report(VerifyErrorKind::Value("a load cannot release".to_owned()));
                }
            }
            Op::NamedBarrier { id, threads, .. } => {
                let kernel = self.findings.kernel;
                let warp = kernel.target.gpu.map_or(1, |gpu| gpu.warp);
                if !(1..=15).contains(id) {
                    self.report(VerifyErrorKind::Value(format!(
                        "named barrier {id} does not exist"
                    )));
                }
                let whole = *threads > 0 && threads.is_multiple_of(warp);
                if !whole || *threads > kernel.launch.threads {
                    self.report(VerifyErrorKind::Value(format!(
                        "a named barrier of {threads} threads; must be a multiple of the warp"
                    )));
                }
            }
            Op::Shuffle { dst, op, a, by } => {
                self.word("value", *a);
                self.same("value", *dst, *a);
                self.value("lane", U32, *by);
                self.shuffle(*op, *by);
            }
            Op::Vote { dst, a, .. } => {
                self.result("result", Pred, *dst);
                self.value("a", Pred, *a);
            }
            Op::Ballot { dst, a } => {
                let warp = self.findings.kernel.target.gpu.map_or(32, |gpu| gpu.warp);
                self.count("results", warp.div_ceil(32) as usize, dst.len());
                for reg in dst {
                    self.result("result", U32, *reg);
                }
                self.value("a", Pred, *a);
            }
            Op::CopyAsync { to, from, width, mask } => {
                self.space("destination", *to, true);
                self.space("source", *from, false);
                if matches!(width, Width::B8 | Width::B16) {
                    self.report(VerifyErrorKind::Value(
                        "an asynchronous copy must be 4, 8 or 16 bytes".into(),
                    ));
                }
                self.mask(*mask);
            }
            Op::MbarrierInit { arrivals, .. } if !(1..1 << 20).contains(arrivals) => {
                self.report(VerifyErrorKind::Value(format!(
                    "an mbarrier of {arrivals} arrivals is not supported"
                )));
            }
            Op::MbarrierArrive { expect: Some(value), .. }
            | Op::MbarrierWait { parity: value, .. } => self.value("value", U32, *value),
            Op::BulkLoad { to, from, bytes, .. } => {
                self.space("destination", *to, true);
                self.space("source", *from, false);
                self.bulk(*bytes);
            }
            Op::BulkStore { to, from, bytes } => {
                self.space("destination", *to, false);
                self.space("source", *from, true);
                self.bulk(*bytes);
            }
            Op::TensorLoad { to, map, at, multicast, .. } => {
                self.space("destination", *to, true);
                self.tensor(map.0, at);
                if let Some(mask) = multicast {
                    self.value("multicast", U32, *mask);
                }
            }
            Op::TensorStore { map, at, from } => {
                self.space("source", *from, true);
                self.tensor(map.0, at);
            }
            Op::MatrixLoad { dst, from, .. } => {
                self.space("source", *from, true);
                self.matrices(dst.len());
                for reg in dst {
                    self.result("result", U32, *reg);
                }
            }
            Op::MatrixStore { to, values, .. } => {
                self.space("destination", *to, true);
                self.matrices(values.len());
                for value in values {
                    self.value("value", U32, *value);
                }
            }
            Op::MatrixTranspose { dst, a } => {
                self.result("result", U32, *dst);
                self.value("a", U32, *a);
            }
            Op::Matrix { .. } => self.matrix(op),
            _ => {}
        }
    }

    fn mask(&mut self, mask: Option<Operand>) {
        if let Some(mask) = mask {
            self.value("mask", Pred, mask);
        }
    }

    fn space(&mut self, role: &'static str, address: Address, shared: bool) {
        if matches!(address.space, Space::Shared(_)) != shared {
            let expected = if shared { "shared" } else { "global" };
            self.report(VerifyErrorKind::WrongSpace { role, expected });
        }
    }

    fn bulk(&mut self, bytes: Operand) {
        self.value("bytes", U32, bytes);
        if let Operand::U32(bytes) = bytes
            && (bytes == 0 || !bytes.is_multiple_of(16))
        {
            self.report(VerifyErrorKind::Value(format!(
                "a bulk copy of {bytes} bytes; must be a multiple of 16"
            )));
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
        if !matches!(count, 1 | 2 | 4) {
            self.report(VerifyErrorKind::Value(format!("{count} matrices; must be 1, 2 or 4")));
        }
    }

    fn atomic(&mut self, at: Address) {
        let word = match at.space {
            Space::Global(id) => self.findings.kernel.buffers.get(id.0 as usize).map(|b| b.word),
            Space::Shared(id) => self.findings.kernel.shared.get(id.0 as usize).map(|b| b.word),
        };
        if word.is_some_and(|word| word != Word::U32) {
            self.report(VerifyErrorKind::Value(
                "atomic operations need an array of 32-bit words".to_owned(),
            ));
        }
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

    fn address(&mut self, address: Address, kind: AccessKind, bytes: u32, certain: bool) {
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
                    | (Access::WriteOnce, AccessKind::Write) => None,
                    (Access::WriteOnce, AccessKind::Read) => Some("it is read"),
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
        let warp = self.findings.kernel.target.gpu.map_or(32, |gpu| gpu.warp);
        let [in_a, in_b, in_d] = op.registers(warp);
        let result = if op.d == crate::ir::Element::F32 { F32 } else { U32 };
        self.count("d", in_d as usize, d.len());
        for reg in d {
            self.result("d", result, *reg);
        }
        for (role, operand, count) in [("a", a, in_a), ("b", b, in_b)] {
            match operand {
                MatrixOperand::Registers(regs) => {
                    self.count(role, count as usize, regs.len());
                    for reg in regs {
                        self.result(role, U32, *reg);
                    }
                    if role == "b" && op.b_layout.is_empty() {
                        self.report(VerifyErrorKind::WrongSpace { role, expected: "shared" });
                    }
                }
                MatrixOperand::Shared(tile) => {
                    if op.scope == MatrixScope::Warp {
                        self.report(VerifyErrorKind::WrongSpace { role, expected: "register" });
                    }
                    let at = Address {
                        space: Space::Shared(tile.block),
                        index: tile.index,
                        offset: tile.offset,
                    };
                    self.address(at, AccessKind::Read, 16, true);
                }
            }
        }
        let expected = if op.scaling.is_some() { 2 } else { 0 };
        let found = scales.iter().flatten();
        self.count("scales", expected, found.clone().count());
        for scale in found {
            self.result("scale", U32, scale.from);
            if scale.byte > 3 {
                let what = format!("byte {} of a register of scales; must be 0 to 3", scale.byte);
                self.report(VerifyErrorKind::Value(what));
            }
        }
        if let Accumulator::Registers(regs) = c {
            self.count("c", in_d as usize, regs.len());
            for reg in regs {
                self.result("c", result, *reg);
            }
            if op.scope == MatrixScope::WarpGroup && regs != d {
                self.report(VerifyErrorKind::Value("in warp-group scope c must be d".to_owned()));
            }
        }
    }
}
