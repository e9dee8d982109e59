//! Whether a kernel is one that an emitter can print and the simulator can run.
//!
//! In: a [`Kernel`]. Out: [`Verified`], which emitters and the simulator require, or every
//! [`Refusal`] found. `fault` names what can be wrong; `interface` judges declarations and launch,
//! `operations` one operation at a time, `flow` what holds along the program: control's
//! uniformity, registers written before they are read, matrix operations in flight, the wait for
//! earlier grids. What depends on run-time values (bounds, races, copies in flight) is the
//! simulator's.

mod fault;
mod flow;
mod interface;
mod operations;

use super::{Kernel, Reg, Register};

pub use fault::{Fault, Refusal, Refusals};

/// Something that was found in order. Only [`verify`] makes one.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified<T>(T);

impl<T> std::ops::Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Judges a kernel.
///
/// # Errors
/// Everything that is wrong with it.
pub fn verify(kernel: Kernel) -> Result<Verified<Kernel>, Refusals> {
    let mut findings = Findings { kernel: &kernel, refusals: Vec::new() };
    interface::check(&mut findings);
    // The flow analysis looks registers up, and so comes only when they are all there.
    operations::check(&mut findings);
    if findings.refusals.is_empty() {
        flow::check(&mut findings);
    }
    let mut refusals = findings.refusals;
    refusals.dedup();
    if refusals.is_empty() {
        Ok(Verified(kernel))
    } else {
        Err(Refusals { kernel: kernel.name, refusals })
    }
}

/// A kernel and what was found wrong with it so far.
struct Findings<'k> {
    kernel: &'k Kernel,
    refusals: Vec<Refusal>,
}

impl<'k> Findings<'k> {
    fn refuse(&mut self, at: Option<usize>, fault: Fault) {
        let refusal = Refusal { at, fault };
        if !self.refusals.contains(&refusal) {
            self.refusals.push(refusal);
        }
    }

    fn register(&self, reg: Reg) -> Option<&'k Register> {
        let register = self.kernel.registers.get(reg.id.0 as usize)?;
        (reg.at < register.len).then_some(register)
    }

    /// How a register's element is called in messages.
    fn name(&self, reg: Reg) -> String {
        match self.kernel.registers.get(reg.id.0 as usize) {
            Some(register) if register.len == 1 && reg.at == 0 => register.name.clone(),
            Some(register) => format!("{}[{}]", register.name, reg.at),
            None => format!("register {}", reg.id.0),
        }
    }
}
