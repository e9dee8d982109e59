//! Tensor memory: its declaration, where it is allocated and freed, and the numbers of its operations.

use super::{Findings, TmemError, ValueError, VerifyErrorKind};
use crate::ir::{Body, Kernel, MatrixScope, Op, Statement, TmemOp};
use crate::target::{Feature, TMEM_COLUMNS};

/// Checks the declaration, and that the kernel allocates before all else and frees once.
pub(super) fn check(findings: &mut Findings<'_>) {
    let kernel = findings.kernel;
    let columns = kernel.tmem_columns;
    let mut uses = Uses::default();
    uses.body(&kernel.body, (true, false));
    if columns == 0 {
        if let Some(&(at, _)) = uses.found.first() {
            findings.report(Some(at), TmemError::Undeclared.into());
        }
        return;
    }
    declaration(findings, kernel);
    let of = |wanted: Kind| uses.found.iter().filter(move |(_, use_of)| use_of.kind == wanted);
    for (what, kind) in [("allocates", Kind::Allocate), ("frees", Kind::Free)] {
        match of(kind).count() {
            1 => {}
            times => findings.report(None, TmemError::NotOnce { what, times }.into()),
        }
        for (at, _) in of(kind).filter(|(_, use_of)| use_of.repeats) {
            findings.report(Some(*at), TmemError::InLoop.into());
        }
    }
    for (at, _) in of(Kind::Allocate).filter(|(_, use_of)| !use_of.before_roles) {
        findings.report(Some(*at), TmemError::InRole.into());
    }
    let allocated = of(Kind::Allocate).map(|(at, _)| *at).min();
    let before = |at: usize| allocated.is_some_and(|allocated| at < allocated);
    for (at, _) in uses.found.iter().filter(|(at, _)| before(*at)) {
        findings.report(Some(*at), TmemError::BeforeAllocation.into());
    }
    for at in uses.launches.iter().filter(|at| before(**at)) {
        findings.report(Some(*at), TmemError::LaunchBeforeAllocation.into());
    }
}

fn declaration(findings: &mut Findings<'_>, kernel: &Kernel) {
    let launch = kernel.launch;
    let (columns, blocks) = (kernel.tmem_columns, launch.min_blocks.max(launch.cluster));
    if !kernel.target.has(Feature::TensorMemory) {
        let (target, feature) = (kernel.target.name, Feature::TensorMemory);
        findings.report(None, VerifyErrorKind::Unavailable { target, feature });
    }
    if !columns.is_power_of_two() || !(32..=TMEM_COLUMNS).contains(&columns) {
        findings.report(None, TmemError::Columns(columns).into());
    } else if columns * blocks > TMEM_COLUMNS {
        findings.report(None, TmemError::ResidentColumns { blocks, columns }.into());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Allocate,
    Free,
    Other,
}

/// An operation on tensor memory, and where it is.
struct Use {
    kind: Kind,
    /// Whether it is in a loop.
    repeats: bool,
    /// Whether all warps come by it.
    before_roles: bool,
}

/// The operations on tensor memory by statement number.
#[derive(Default)]
struct Uses {
    next: usize,
    found: Vec<(usize, Use)>,
    /// Where dependent grids are allowed to start.
    launches: Vec<usize>,
}

impl Uses {
    fn body(&mut self, body: &Body, (before_roles, repeats): (bool, bool)) {
        for statement in body {
            let at = self.next;
            self.next += 1;
            let inside = match statement {
                Statement::Op(Op::Tmem(op)) => {
                    let kind = match op {
                        TmemOp::Allocate { .. } => Kind::Allocate,
                        TmemOp::Free { .. } => Kind::Free,
                        _ => Kind::Other,
                    };
                    self.found.push((at, Use { kind, repeats, before_roles }));
                    continue;
                }
                Statement::Op(op) => {
                    self.launches.extend(matches!(op, Op::GridLaunch).then_some(at));
                    continue;
                }
                Statement::If { .. } => (before_roles, repeats),
                Statement::For { .. } | Statement::While { .. } => (before_roles, true),
                Statement::Roles(_) => (false, repeats),
            };
            statement.bodies().for_each(|body| self.body(body, inside));
        }
    }
}

/// The numbers of an operation that its target does not take.
pub(super) fn numbers(op: &TmemOp) -> Vec<VerifyErrorKind> {
    let registers = |count: usize| {
        let right = count.is_power_of_two() && count <= 128;
        (!right).then(|| ValueError::TmemRegisters(count).into())
    };
    match op {
        TmemOp::Load { dst, .. } => registers(dst.len()).into_iter().collect(),
        TmemOp::Store { values, .. } => registers(values.len()).into_iter().collect(),
        TmemOp::Product { op, n, scales, .. } => {
            let mut errors: Vec<VerifyErrorKind> = Vec::new();
            if op.scope != MatrixScope::TensorMemory {
                return vec![ValueError::InstructionScope(op.name).into()];
            }
            if !op.has_columns(*n) {
                errors.push(ValueError::ProductColumns { product: op.name, n: *n }.into());
            }
            let of_row = op.row_scales();
            let (expected, found) =
                (if of_row > 0 { 2 } else { 0 }, scales.iter().flatten().count());
            if expected != found {
                errors.push(VerifyErrorKind::Count { role: "scales", expected, found });
            }
            for scale in scales.iter().flatten() {
                let byte = u32::from(scale.byte);
                if of_row > 0 && (byte > 3 || !byte.is_multiple_of(of_row)) {
                    errors.push(ValueError::ScaleByte { scales: of_row, byte }.into());
                }
            }
            errors
        }
        _ => Vec::new(),
    }
}
