//! Walks over the statements of a kernel, and what each operation reads, writes and needs.

use std::collections::BTreeSet;

use super::{Body, InstructionClass, Kernel, MemoryAccess, Op, Operand, Reg, Role, Statement};
use crate::target::Feature;

impl Op {
    /// Operands in the order of the printed IR, addresses' indices included.
    pub fn reads(&self) -> Vec<Operand> {
        self.row().reads()
    }

    /// Registers that it writes.
    pub fn writes(&self) -> Vec<Reg> {
        self.row().writes().collect()
    }

    /// Its memory accesses.
    pub fn memory_accesses(&self) -> Vec<MemoryAccess> {
        self.row().memory_accesses().collect()
    }

    /// The class under which the simulator counts it.
    pub fn class(&self) -> InstructionClass {
        self.row().class
    }

    /// The feature that the target must have.
    pub fn needs(&self) -> Feature {
        self.row().feature
    }
}

/// Every operation of a body, in the order of the statement numbers.
pub(crate) fn each_op<'k>(body: &'k Body, visit: &mut dyn FnMut(&'k Op)) {
    for statement in body {
        if let Statement::Op(op) = statement {
            visit(op);
        }
        statement.bodies().for_each(|body| each_op(body, visit));
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
    /// The bodies that it contains, in the order of the statement numbers.
    pub(crate) fn bodies(&self) -> impl Iterator<Item = &Body> {
        let (two, roles): ([Option<&Body>; 2], &[Role]) = match self {
            Self::Op(_) => ([None, None], &[]),
            Self::If { then, otherwise, .. } => ([Some(then), Some(otherwise)], &[]),
            Self::For { body, .. } => ([Some(body), None], &[]),
            Self::While { test, body, .. } => ([Some(test), Some(body)], &[]),
            Self::Roles(roles) => ([None, None], roles),
        };
        two.into_iter().flatten().chain(roles.iter().map(|role| &role.body))
    }

    /// Number of statements: itself and all nested ones.
    pub fn count(&self) -> usize {
        1 + self.bodies().flatten().map(Self::count).sum::<usize>()
    }
}
