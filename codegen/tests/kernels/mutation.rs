//! Mutations: changes of single operations that make a kernel wrong.

use super::product::RandomProduct;
use quantloom_codegen::ir::{
    Body, Buffer, Kernel, Op, Operand, SharedBlock, Space, Statement, verify,
};

/// A change of an operation at a location.
pub type Mutation = fn(&OpLocation, &mut Op);

/// The location of an operation.
pub struct OpLocation {
    buffers: Vec<Buffer>,
    shared: Vec<SharedBlock>,
    /// Whether it is repeated.
    pub in_loop: bool,
    /// The loops around it.
    pub loops: u32,
}

impl OpLocation {
    /// Whether an array is the buffer, or the block of shared memory, of this name.
    pub fn is(&self, space: Space, name: &str) -> bool {
        match space {
            Space::Global(id) => self.buffers[id.0 as usize].name == name,
            Space::Shared(id) => self.shared[id.0 as usize].name == name,
        }
    }
}

/// Applies a change to every operation of a kernel; returns whether the kernel differs.
pub fn mutate(kernel: &mut Kernel, mut mutation: impl FnMut(&OpLocation, &mut Op)) -> bool {
    each_body(kernel, &mut |location, body| {
        for statement in body {
            if let Statement::Op(op) = statement {
                mutation(location, op);
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
pub fn leave_unused(location: &OpLocation, op: &mut Op) {
    if let Op::Store { to, values, .. } = op
        && location.is(to.space, "y")
        && values.iter().all(|value| *value == Operand::U32(0))
    {
        gone(op);
    }
}

fn each_body(kernel: &mut Kernel, change: &mut dyn FnMut(&OpLocation, &mut Body)) -> bool {
    let (buffers, shared) = (kernel.buffers.clone(), kernel.shared.clone());
    let before = kernel.body.clone();
    walk(&mut kernel.body, &mut OpLocation { buffers, shared, in_loop: false, loops: 0 }, change);
    before != kernel.body
}

fn walk(
    body: &mut Body,
    location: &mut OpLocation,
    change: &mut dyn FnMut(&OpLocation, &mut Body),
) {
    change(location, body);
    for statement in body {
        let outside = (location.in_loop, location.loops);
        match statement {
            Statement::Op(_) => {}
            Statement::If { then, otherwise, .. } => {
                walk(then, location, change);
                walk(otherwise, location, change);
            }
            Statement::For { body, .. } => {
                (location.in_loop, location.loops) = (true, outside.1 + 1);
                walk(body, location, change);
            }
            Statement::While { test, body, .. } => {
                (location.in_loop, location.loops) = (true, outside.1 + 1);
                walk(test, location, change);
                walk(body, location, change);
            }
            Statement::Roles(roles) => {
                for role in roles {
                    walk(&mut role.body, location, change);
                }
            }
        }
        (location.in_loop, location.loops) = outside;
    }
}

/// What is wrong with a kernel's result after a mutation: `None` if it is correct.
pub fn wrong(
    kernel: &Kernel,
    product: &RandomProduct,
    mutation: Option<Mutation>,
) -> Option<String> {
    let mut kernel = kernel.clone();
    if let Some(mutation) = mutation
        && !mutate(&mut kernel, mutation)
    {
        return Some("the kernel is the same".to_owned());
    }
    match verify(kernel) {
        Ok(kernel) => product.simulate(&kernel, 64, 1).err(),
        Err(refusals) => Some(refusals.to_string()),
    }
}

/// All mutations are found, and what is said of each has that part.
pub fn all_found(kernel: &Kernel, product: &RandomProduct, mutations: &[(&str, &str, Mutation)]) {
    assert_eq!(wrong(kernel, product, None), None);
    let missed = mutations.iter().filter_map(|(what, said, mutation)| {
        match wrong(kernel, product, Some(*mutation)) {
            Some(found) if found.contains(said) && !found.contains("is the same") => None,
            found => Some(format!("{what}: {found:?}")),
        }
    });
    let missed: Vec<String> = missed.collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
