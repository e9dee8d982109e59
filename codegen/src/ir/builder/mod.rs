//! Builds a kernel, so that a schedule reads like the algorithm.
//!
//! In: calls in program order. Out: a [`Kernel`], not yet verified. Values are [`Operand`]s. An
//! operation on constants is folded; any other becomes a statement whose result is a new register,
//! as uniform as its operands and the surrounding control flow. A mutable value (an accumulator, a
//! pipeline's stage) is a [`Builder::variable`] or [`Builder::array`], written with
//! [`Builder::set`]. The verifier reports wrong types, with the statement's number.
//!
//! `values` has arithmetic, `memory` loads, stores, copies and barriers, `matrix` the matrix
//! operations, `tmem` tensor memory.

mod matrix;
mod memory;
mod tmem;
mod values;

use std::collections::HashMap;

use quantloom_dsl::{BufferRole, Dimension};

use super::{
    Access, BarrierArray, BarrierId, Body, Buffer, BufferId, Extent, Kernel, LaunchConfig, Op,
    Operand, Parameter, ParameterId, Reg, Register, RegisterId, Role, SharedBlock, SharedId,
    Special, Statement, TensorId, TensorMap, Type, Uniformity, Word,
};
use crate::target::Target;

/// Builds a kernel.
#[derive(Debug)]
pub struct Builder {
    kernel: Kernel,
    /// The body being built; the enclosing bodies are on the call stack.
    body: Body,
    control: Uniformity,
    /// How often a name was used. Never iterated, so that the kernel is deterministic.
    names: HashMap<String, u32>,
}

impl Builder {
    /// A kernel without statements.
    pub fn new(name: &str, summary: &str, target: &'static Target, launch: LaunchConfig) -> Self {
        let kernel = Kernel {
            name: name.to_owned(),
            summary: summary.to_owned(),
            target,
            buffers: Vec::new(),
            parameters: Vec::new(),
            tensors: Vec::new(),
            shared: Vec::new(),
            barriers: Vec::new(),
            tmem_columns: 0,
            launch,
            registers: Vec::new(),
            body: Vec::new(),
        };
        Self { kernel, body: Vec::new(), control: Uniformity::Block, names: HashMap::new() }
    }

    /// A kernel of one warp that is written to find out whether something can be written.
    pub fn trial(target: &'static Target) -> Self {
        let threads = target.gpu.map_or(1, |gpu| gpu.warp);
        let grid = [Extent::Constant(1); 3];
        let launch = LaunchConfig { grid, threads, min_blocks: 1, cluster: 1, programmatic: false };
        Self::new("trial", "", target, launch)
    }

    /// The finished kernel.
    pub fn finish(mut self) -> Kernel {
        self.kernel.body = self.body;
        self.kernel
    }

    /// The kernel's target.
    pub fn target(&self) -> &'static Target {
        self.kernel.target
    }

    /// The uniformity of control here.
    pub const fn control(&self) -> Uniformity {
        self.control
    }

    /// Lanes of a warp.
    pub fn warp_size(&self) -> u32 {
        self.kernel.target.gpu.map_or(1, |gpu| gpu.warp)
    }

    /// Whether shuffles work between `lanes` neighbouring lanes of this kernel.
    pub fn can_shuffle(&self, lanes: u32) -> bool {
        let threads = self.kernel.launch.threads;
        self.kernel.target.gpu.is_some_and(|gpu| gpu.can_shuffle(lanes, threads))
    }

    /// Declares the buffer of the next slot.
    pub fn buffer(
        &mut self,
        name: &str,
        word: Word,
        access: Access,
        shape: &[Extent],
        layout: &str,
    ) -> BufferId {
        let id = BufferId(self.kernel.buffers.len() as u32);
        let (name, shape, layout) = (name.to_owned(), shape.to_vec(), layout.to_owned());
        self.kernel.buffers.push(Buffer { name, word, access, shape, layout, role: None });
        id
    }

    /// As [`Self::buffer`], of a product: its role is its name.
    pub fn buffer_of(
        &mut self,
        role: BufferRole,
        word: Word,
        access: Access,
        shape: &[Extent],
        layout: &str,
    ) -> BufferId {
        let id = self.buffer(&role.to_string(), word, access, shape, layout);
        self.kernel.buffers[id.0 as usize].role = Some(role);
        id
    }

    /// Declares a launch parameter.
    pub fn parameter(&mut self, name: &str, meaning: &str) -> ParameterId {
        let id = ParameterId(self.kernel.parameters.len() as u32);
        let (name, meaning) = (name.to_owned(), meaning.to_owned());
        self.kernel.parameters.push(Parameter { name, meaning, dimension: None });
        id
    }

    /// As [`Self::parameter`], a size of a product.
    pub fn size(&mut self, dimension: Dimension, meaning: &str) -> ParameterId {
        let id = self.parameter(&dimension.to_string(), meaning);
        self.kernel.parameters[id.0 as usize].dimension = Some(dimension);
        id
    }

    /// Sets the number of blocks, for a grid that depends on parameters.
    pub fn grid(&mut self, grid: [Extent; 3]) {
        self.kernel.launch.grid = grid;
    }

    /// Declares a tensor map.
    pub fn tensor(&mut self, map: TensorMap) -> TensorId {
        let id = TensorId(self.kernel.tensors.len() as u32);
        self.kernel.tensors.push(map);
        id
    }

    /// Declares a block of shared memory.
    pub fn shared(&mut self, name: &str, word: Word, len: u32, layout: &str) -> SharedId {
        self.shared_block(name, word, len, layout, 16, None)
    }

    /// Declares a block of shared memory with an alignment in bytes. The block may share the memory
    /// of an earlier block, `aliases`, that is no longer used.
    pub fn shared_block(
        &mut self,
        name: &str,
        word: Word,
        len: u32,
        layout: &str,
        align: u32,
        aliases: Option<SharedId>,
    ) -> SharedId {
        let id = SharedId(self.kernel.shared.len() as u32);
        let (name, layout) = (name.to_owned(), layout.to_owned());
        self.kernel.shared.push(SharedBlock { name, word, len, align, layout, aliases });
        id
    }

    /// A block of shared memory that several parts of a kernel use one after another: the block of
    /// this name, declared at the first call.
    pub fn scratch(&mut self, name: &str, words: u32, layout: &str) -> SharedId {
        let known = self.kernel.shared.iter().position(|block| block.name == name);
        match known {
            Some(at) => SharedId(at as u32),
            None => self.shared(name, Word::U32, words, layout),
        }
    }

    /// Declares an array of mbarriers.
    pub fn barriers(&mut self, name: &str, len: u32) -> BarrierId {
        let id = BarrierId(self.kernel.barriers.len() as u32);
        self.kernel.barriers.push(BarrierArray { name: name.to_owned(), len });
        id
    }

    /// Declares a mutable register array.
    pub fn array(&mut self, name: &str, ty: Type, len: u32, uniformity: Uniformity) -> Vec<Reg> {
        let count = self.names.entry(name.to_owned()).or_insert(0);
        *count += 1;
        let name = if *count == 1 { name.to_owned() } else { format!("{name}v{count}") };
        let id = RegisterId(self.kernel.registers.len() as u32);
        self.kernel.registers.push(Register { name, ty, len, uniformity });
        (0..len).map(|at| Reg { id, at }).collect()
    }

    /// Declares a mutable register.
    pub fn variable(&mut self, name: &str, ty: Type, uniformity: Uniformity) -> Reg {
        let id = RegisterId(self.kernel.registers.len() as u32);
        self.array(name, ty, 1, uniformity);
        Reg { id, at: 0 }
    }

    /// A named register with this value, as uniform as the value and the surrounding control flow.
    pub fn named(&mut self, name: &str, value: impl Into<Operand>) -> Operand {
        let value = value.into();
        let uniformity = self.uniformity(value).min(self.control);
        let reg = self.variable(name, self.type_of(value), uniformity);
        self.set(reg, value);
        reg.into()
    }

    /// An accumulator: f32 registers, set to 0.
    pub fn zeros(&mut self, name: &str, len: u32) -> Vec<Reg> {
        let regs = self.array(name, Type::F32, len, Uniformity::Varying);
        for reg in &regs {
            self.set(*reg, 0.0f32);
        }
        regs
    }

    /// reg = value.
    pub fn set(&mut self, reg: Reg, value: impl Into<Operand>) {
        self.push(Op::Copy { dst: reg, a: value.into() });
    }

    /// Adds an operation.
    pub fn push(&mut self, op: Op) {
        self.body.push(Statement::Op(op));
    }

    /// Adds a comment line to the kernel's source.
    pub fn comment(&mut self, text: &str) {
        self.push(Op::Comment(text.to_owned()));
    }

    /// A special value: thread, lane, warp or block number.
    pub fn special(&mut self, value: Special) -> Operand {
        let (name, uniformity) = match value {
            Special::Thread => ("thread", Uniformity::Varying),
            Special::Lane => ("lane", Uniformity::Varying),
            Special::Warp => ("warp", Uniformity::Warp),
            Special::Block(_) => ("block", Uniformity::Block),
            Special::Blocks(_) => ("blocks", Uniformity::Block),
            Special::ClusterBlock => ("rank", Uniformity::Block),
        };
        let dst = self.variable(name, Type::U32, uniformity.min(self.control));
        self.push(Op::Special { dst, value });
        dst.into()
    }

    /// The value of a launch parameter.
    pub fn argument(&mut self, parameter: ParameterId) -> Operand {
        let name = self.kernel.parameters[parameter.0 as usize].name.clone();
        let dst = self.variable(&name, Type::U32, self.control);
        self.push(Op::Parameter { dst, parameter });
        dst.into()
    }

    /// Writes `count` programs that do not depend on each other in turns: the first operation of each, the second of
    /// each, and so on. So a warp has several results under way where an assembler cannot reorder the operations. `write`
    /// is called once for each number; returns what each call returned.
    pub fn interleaved<T>(
        &mut self,
        count: usize,
        mut write: impl FnMut(&mut Self, usize) -> T,
    ) -> Vec<T> {
        let (mut results, mut programs) = (Vec::new(), Vec::new());
        for number in 0..count {
            let control = self.control;
            let program = self.within(control, |b| results.push(write(b, number)));
            programs.push(program.into_iter());
        }
        let mut left = true;
        while std::mem::take(&mut left) {
            for program in &mut programs {
                if let Some(statement) = program.next() {
                    self.body.push(statement);
                    left = true;
                }
            }
        }
        results
    }

    /// A loop over `start..end` in steps of `step`. `body` builds the loop's body from the counter,
    /// and is called once.
    pub fn for_each(
        &mut self,
        start: impl Into<Operand>,
        end: impl Into<Operand>,
        step: impl Into<Operand>,
        name: &str,
        body: impl FnOnce(&mut Self, Operand),
    ) {
        let (start, end, step) = (start.into(), end.into(), step.into());
        let bounds = [start, end, step].map(|bound| self.uniformity(bound));
        let control = bounds.into_iter().fold(self.control, Uniformity::min);
        let counter = self.variable(name, Type::U32, control);
        let body = self.within(control, |b| body(b, counter.into()));
        self.body.push(Statement::For { counter, start, end, step, body });
    }

    /// Statements that run where the condition is true.
    pub fn when(&mut self, condition: impl Into<Operand>, then: impl FnOnce(&mut Self)) {
        let condition = condition.into();
        let control = self.uniformity(condition).min(self.control);
        let then = self.within(control, then);
        self.body.push(Statement::If { condition, then, otherwise: Vec::new() });
    }

    /// Statements that run where the condition is true, and others where it is false.
    pub fn if_else(
        &mut self,
        condition: impl Into<Operand>,
        then: impl FnOnce(&mut Self),
        otherwise: impl FnOnce(&mut Self),
    ) {
        let condition = condition.into();
        let control = self.uniformity(condition).min(self.control);
        let then = self.within(control, then);
        let otherwise = self.within(control, otherwise);
        self.body.push(Statement::If { condition, then, otherwise });
    }

    /// Runs `test`, and `body` while the result of `test` is true.
    pub fn repeat_while(
        &mut self,
        uniformity: Uniformity,
        test: impl FnOnce(&mut Self) -> Operand,
        body: impl FnOnce(&mut Self),
    ) {
        let control = uniformity.min(self.control);
        let condition = self.variable("more", Type::Pred, control);
        let test = self.within(control, |b| {
            let value = test(b);
            b.set(condition, value);
        });
        let body = self.within(control, body);
        self.body.push(Statement::While { test, condition, body });
    }

    /// A role of some warps (warp specialisation), for [`Builder::roles`].
    pub fn role(
        &mut self,
        name: &str,
        warps: std::ops::Range<u32>,
        registers: Option<u32>,
        body: impl FnOnce(&mut Self),
    ) -> Role {
        let group = self.kernel.target.gpu.and_then(|gpu| gpu.warp_group);
        let whole =
            group.is_some_and(|by| warps.start.is_multiple_of(by) && warps.end.is_multiple_of(by));
        let control = if whole { Uniformity::WarpGroup } else { Uniformity::Warp };
        let body = self.within(control, body);
        Role { name: name.to_owned(), warps, registers, body }
    }

    /// Warp specialisation: each warp runs its role. Must be the last statement.
    pub fn roles(&mut self, roles: Vec<Role>) {
        self.body.push(Statement::Roles(roles));
    }

    /// The type of a value.
    pub fn type_of(&self, value: Operand) -> Type {
        match value {
            Operand::Reg(reg) => self.kernel.registers[reg.id.0 as usize].ty,
            Operand::U32(_) => Type::U32,
            Operand::F32(_) => Type::F32,
            Operand::Pred(_) => Type::Pred,
        }
    }

    /// The threads in which a value is the same.
    pub fn uniformity(&self, value: Operand) -> Uniformity {
        match value {
            Operand::Reg(reg) => self.kernel.registers[reg.id.0 as usize].uniformity,
            _ => Uniformity::Block,
        }
    }

    fn within(&mut self, control: Uniformity, write: impl FnOnce(&mut Self)) -> Body {
        let outer = std::mem::take(&mut self.body);
        let outer_control = std::mem::replace(&mut self.control, control);
        write(self);
        self.control = outer_control;
        std::mem::replace(&mut self.body, outer)
    }

    /// A new register for a result of these operands.
    fn fresh(&mut self, ty: Type, operands: &[Operand]) -> Reg {
        let uniformity =
            operands.iter().fold(self.control, |least, value| least.min(self.uniformity(*value)));
        self.fresh_as(ty, uniformity)
    }

    fn fresh_as(&mut self, ty: Type, uniformity: Uniformity) -> Reg {
        self.fresh_array(ty, 1, uniformity)[0]
    }

    fn fresh_array(&mut self, ty: Type, len: u32, uniformity: Uniformity) -> Vec<Reg> {
        let id = RegisterId(self.kernel.registers.len() as u32);
        let letter = match ty {
            Type::Pred => 'p',
            Type::U32 => 'u',
            Type::F32 => 'f',
        };
        let name = format!("{letter}{}", id.0);
        self.kernel.registers.push(Register { name, ty, len, uniformity });
        (0..len).map(|at| Reg { id, at }).collect()
    }
}
