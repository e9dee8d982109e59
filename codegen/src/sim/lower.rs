//! Lowers a structured kernel to the flat program of a launch.

use super::program::{Instruction, Program, Step};
use crate::ir::{Body, InstructionClass, Kernel, MatrixScope, Op, Statement, Type};

/// Lowers a kernel.
pub(super) fn lower(kernel: &Kernel) -> Program<'_> {
    let mut lowering = Lowering { program: Program::default(), next_point: 0 };
    lowering.registers(kernel);
    lowering.body(&kernel.body);
    let point = lowering.next_point;
    lowering.push(point, Instruction::End);
    lowering.program.points = point as usize + 1;
    lowering.program
}

struct Lowering<'k> {
    program: Program<'k>,
    next_point: u32,
}

impl<'k> Lowering<'k> {
    fn registers(&mut self, kernel: &Kernel) {
        for register in &kernel.registers {
            let next = match register.ty {
                Type::Pred => &mut self.program.flags,
                Type::U32 | Type::F32 => &mut self.program.slots,
            };
            self.program.bases.push(*next);
            *next += register.len;
        }
    }

    fn push(&mut self, point: u32, what: Instruction<'k>) -> usize {
        let class = match &what {
            Instruction::Op(op) => op.class(),
            _ => InstructionClass::Control,
        };
        self.program.steps.push(Step { point, class, what });
        self.program.steps.len() - 1
    }

    /// A jump whose target is not known yet.
    fn hole(&mut self, point: u32) -> usize {
        self.push(point, Instruction::Jump(0))
    }

    fn fill(&mut self, hole: usize, what: Instruction<'k>) {
        self.program.steps[hole].what = what;
    }

    fn here(&self) -> usize {
        self.program.steps.len()
    }

    fn body(&mut self, body: &'k Body) {
        for statement in body {
            let point = self.next_point;
            self.next_point += 1;
            self.statement(point, statement);
        }
    }

    fn statement(&mut self, point: u32, statement: &'k Statement) {
        match statement {
            Statement::Op(Op::Comment(_) | Op::SchedulingBarrier) => {}
            Statement::Op(op) => {
                if let Op::Matrix { op, .. } = op {
                    self.program.matrix_groups |= op.scope == MatrixScope::WarpGroup;
                }
                self.push(point, Instruction::Op(op));
            }
            Statement::If { condition, then, otherwise } => {
                let begin = self.hole(point);
                self.body(then);
                let middle = self.hole(point);
                self.body(otherwise);
                let end = self.push(point, Instruction::Pop);
                self.fill(begin, Instruction::If { condition: *condition, otherwise: middle });
                self.fill(middle, Instruction::Else { end });
            }
            Statement::For { counter, start, end, step, body } => {
                let (counter, bounds) = (*counter, [*start, *end, *step]);
                self.push(point, Instruction::ForEnter { counter, bounds });
                let test = self.hole(point);
                self.body(body);
                self.push(point, Instruction::ForNext { counter, test });
                let exit = self.push(point, Instruction::ForExit { counter });
                self.fill(test, Instruction::ForTest { counter, exit });
            }
            Statement::While { test, condition, body } => {
                self.push(point, Instruction::WhileEnter);
                let begin = self.here();
                self.body(test);
                let branch = self.hole(point);
                self.body(body);
                self.push(point, Instruction::Jump(begin));
                let exit = self.push(point, Instruction::Pop);
                self.fill(branch, Instruction::WhileTest { condition: *condition, exit });
            }
            Statement::Roles(roles) => {
                let table = self.hole(point);
                let mut entries = Vec::new();
                let mut leaves = Vec::new();
                for role in roles {
                    entries.push((role.warps.clone(), self.here()));
                    self.body(&role.body);
                    leaves.push(self.hole(point));
                }
                let end = self.here();
                for leave in leaves {
                    self.fill(leave, Instruction::Jump(end));
                }
                self.fill(table, Instruction::Roles(entries.into()));
            }
        }
    }
}
