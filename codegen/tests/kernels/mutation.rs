//! Mutations: changes of single operations that make a kernel wrong.

use quantloom_codegen::ir::{Body, Buffer, Kernel, Op, Operand, SharedBlock, Space, Statement};

/// A change of an operation at a location.
pub type Mutation = fn(&Place, &mut Op);

/// The location of an operation.
pub struct Place {
    buffers: Vec<Buffer>,
    shared: Vec<SharedBlock>,
    /// Whether it is repeated.
    pub in_loop: bool,
}

impl Place {
    /// Whether an array is the buffer, or the block of shared memory, of this name.
    pub fn is(&self, space: Space, name: &str) -> bool {
        match space {
            Space::Global(id) => self.buffers[id.0 as usize].name == name,
            Space::Shared(id) => self.shared[id.0 as usize].name == name,
        }
    }
}

/// Applies a change to every operation of a kernel; returns whether the kernel differs.
pub fn mutate(kernel: &mut Kernel, mut mutation: impl FnMut(&Place, &mut Op)) -> bool {
    each_body(kernel, &mut |place, body| {
        for statement in body {
            if let Statement::Op(op) = statement {
                mutation(place, op);
            }
        }
    })
}

/// Inserts an operation before each one for which `before` returns one; returns whether there was
/// any.
pub fn put_before(kernel: &mut Kernel, before: fn(&Op) -> Option<Op>) -> bool {
    each_body(kernel, &mut |_, body| {
        for at in (0..body.len()).rev() {
            if let Statement::Op(op) = &body[at]
                && let Some(first) = before(op)
            {
                body.insert(at, Statement::Op(first));
            }
        }
    })
}

/// Removes an operation.
pub fn gone(op: &mut Op) {
    *op = Op::Comment("nothing".into());
}

/// Keeps what was computed for slots without a pair, instead of 0.
pub fn keep_unpaired(op: &mut Op) {
    if let Op::Select { condition, b: Operand::F32(0.0), .. } = op {
        *condition = true.into();
    }
}

/// Leaves the rows of y as they are that belong to token blocks without a pair.
pub fn leave_unused(place: &Place, op: &mut Op) {
    if let Op::Store { to, values, .. } = op
        && place.is(to.space, "y")
        && values.iter().all(|value| *value == Operand::U32(0))
    {
        gone(op);
    }
}

fn each_body(kernel: &mut Kernel, change: &mut dyn FnMut(&Place, &mut Body)) -> bool {
    let (buffers, shared) = (kernel.buffers.clone(), kernel.shared.clone());
    let before = kernel.body.clone();
    walk(&mut kernel.body, &mut Place { buffers, shared, in_loop: false }, change);
    before != kernel.body
}

fn walk(body: &mut Body, place: &mut Place, change: &mut dyn FnMut(&Place, &mut Body)) {
    change(place, body);
    for statement in body {
        let outside = place.in_loop;
        match statement {
            Statement::Op(_) => {}
            Statement::If { then, otherwise, .. } => {
                walk(then, place, change);
                walk(otherwise, place, change);
            }
            Statement::For { body, .. } => {
                place.in_loop = true;
                walk(body, place, change);
            }
            Statement::While { test, body, .. } => {
                place.in_loop = true;
                walk(test, place, change);
                walk(body, place, change);
            }
            Statement::Roles(roles) => {
                for role in roles {
                    walk(&mut role.body, place, change);
                }
            }
        }
        place.in_loop = outside;
    }
}
