//! The verifier: checks that emitters can print a kernel and the simulator can run it.
//!
//! In: a [`Kernel`]. Out: a [`Verified`] kernel, which emitters and the simulator require, or every
//! [`VerifyError`] found. `error` has the errors, `broken_rule` the rules behind some of them;
//! `interface` checks declarations and launch, `operations` each operation alone, `tmem` where tensor memory is allocated and
//! freed, `flow` the control
//! flow: uniformity, registers written before they are read, matrix operations in flight, the wait
//! for earlier grids. The simulator checks what depends on run-time values: bounds, races, copies in
//! flight.

mod broken_rule;
mod error;
mod flow;
mod interface;
mod operations;
mod tmem;

use super::{Kernel, Reg, Register};

pub use broken_rule::{DeclarationError, LaunchError, RoleError, TmemError, ValueError};
pub use error::{VerifyError, VerifyErrorKind, VerifyErrors};

/// A value that has passed the verifier. Only [`verify`] makes one.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified<T>(T);

impl<T> std::ops::Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Verifies a kernel.
///
/// # Errors
/// All errors of the kernel.
pub fn verify(kernel: Kernel) -> Result<Verified<Kernel>, VerifyErrors> {
    let mut findings = Findings { kernel: &kernel, errors: Vec::new() };
    interface::check(&mut findings);
    // The dataflow analysis needs every register to be declared.
    operations::check(&mut findings);
    tmem::check(&mut findings);
    if findings.errors.is_empty() {
        flow::check(&mut findings);
    }
    let mut errors = findings.errors;
    errors.dedup();
    if errors.is_empty() {
        Ok(Verified(kernel))
    } else {
        Err(VerifyErrors { kernel: kernel.name, errors })
    }
}

/// A kernel and its errors so far.
struct Findings<'k> {
    kernel: &'k Kernel,
    errors: Vec<VerifyError>,
}

impl<'k> Findings<'k> {
    fn report(&mut self, at: Option<usize>, kind: VerifyErrorKind) {
        let error = VerifyError { at, kind };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    fn register(&self, reg: Reg) -> Option<&'k Register> {
        let register = self.kernel.registers.get(reg.id.0 as usize)?;
        (reg.at < register.len).then_some(register)
    }

    /// The name of a register's element in messages.
    fn name(&self, reg: Reg) -> String {
        self.kernel.reg(reg)
    }
}
