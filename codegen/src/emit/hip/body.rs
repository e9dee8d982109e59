//! Control flow, and which function writes which operation.

use super::prelude::Helper;
use super::{Writer, comment};
use crate::emit::walk::Dialect;
use crate::ir::{Body, Op, Operand, Reg, Role};

impl Dialect for Writer<'_> {
    const SIGIL: &'static str = "$";

    fn operation(&mut self, op: &Op) {
        match op {
            Op::Comment(text) => comment(text).for_each(|line| self.line(&line)),
            // The kinds of instructions that may cross: 0x100 is reads of LDS.
            Op::SchedulingBarrier => self.line("__builtin_amdgcn_sched_barrier(0x100);"),
            Op::Copy { dst, a } => self.assign(*dst, |this| this.value(*a)),
            Op::Uniform { dst, a } => self.assign(*dst, |this| this.uniform(*dst, *a)),
            Op::Special { dst, value } => self.assign(*dst, |this| this.special(*value)),
            Op::Parameter { dst, parameter } => {
                let name = &self.kernel.parameters[parameter.0 as usize].name;
                self.set(*dst, &format!("arg_{name}"));
            }
            Op::Unary { dst, op, a } => self.assign(*dst, |this| this.unary(*op, *a)),
            Op::Binary { dst, op, a, b } => self.assign(*dst, |this| this.binary(*op, *a, *b)),
            Op::Ternary { dst, op, a, b, c } => {
                self.assign(*dst, |this| this.ternary(*op, [*a, *b, *c]))
            }
            Op::Compare { dst, op, a, b } => self.assign(*dst, |this| this.compare(*op, *a, *b)),
            Op::Select { dst, condition, a, b } => {
                let [a, b] = [*a, *b].map(|value| self.value(value));
                self.assign(*dst, |this| format!("{} ? {a} : {b}", this.value(*condition)));
            }
            Op::Load { dst, from, width, mask, cache } => {
                self.load(dst, *from, *width, *mask, *cache);
            }
            Op::Store { to, values, width, mask } => self.store(*to, values, *width, *mask),
            Op::Prefetch { from, mask } => {
                let at = self.address(*from);
                if let Some(guard) = self.guard(*mask) {
                    self.line(&format!("{guard}__builtin_prefetch({at});"));
                }
            }
            Op::Atomic { dst, op, at, value, order, scope } => {
                self.atomic(*dst, *op, *at, *value, (*order, *scope));
            }
            Op::AtomicLoad { dst, from, order, scope } => {
                self.atomic_load(*dst, *from, (*order, *scope));
            }
            Op::Matrix { op, d, a, b, c, scales } => self.matrix(op, d, (a, b, c), *scales),
            Op::Fence { scope } => self.fence(*scope),
            Op::Barrier => self.statement(Helper::BlockBarrier),
            Op::WarpSync => self.statement(Helper::WarpBarrier),
            Op::Shuffle { dst, op, a, by } => self.shuffle(*dst, *op, *a, *by),
            Op::Vote { dst, op, a } => self.vote(*dst, *op, *a),
            Op::Ballot { dst, a } => self.ballot(dst, *a),
            // The source is refused then.
            op => {
                self.unsupported(op.needs());
            }
        }
    }

    fn branch(&mut self, condition: Operand, then: &Body, otherwise: &Body) {
        let condition = self.value(condition);
        self.line(&format!("if ({condition}) {{"));
        self.inside(then);
        if !otherwise.is_empty() {
            self.line("} else {");
            self.inside(otherwise);
        }
        self.line("}");
    }

    fn for_loop(&mut self, counter: Reg, [start, end, step]: [Operand; 3], body: &Body) {
        let counter = self.reg(counter);
        let start = self.value(start);
        let n = self.label();
        let [end, step] =
            [("end", end), ("step", step)].map(|(name, bound)| self.bound(name, n, bound));
        // The schedule decides about unrolling, not the compiler.
        self.line("#pragma clang loop unroll(disable)");
        let head = format!("for ({counter} = {start}; {counter} < {end}; {counter} += {step}) ");
        self.braced(&head, |this| this.body(body));
    }

    fn while_loop(&mut self, test: &Body, condition: Reg, body: &Body) {
        let condition = self.reg(condition);
        self.line("#pragma clang loop unroll(disable)");
        self.braced("while (true) ", |this| {
            this.body(test);
            this.line(&format!("if (!{condition}) break;"));
            this.body(body);
        });
    }

    fn roles(&mut self, roles: &[Role]) {
        let warp = self.helper(Helper::Warp);
        self.line(&format!("const unsigned role = {warp}();"));
        for (at, role) in roles.iter().enumerate() {
            let (name, warps) = (&role.name, &role.warps);
            let head = match at {
                0 => format!("if (role < {}u) {{", warps.end),
                _ if at + 1 == roles.len() => "} else {".to_owned(),
                _ => format!("}} else if (role < {}u) {{", warps.end),
            };
            self.line(&head);
            self.indented(|this| {
                let role = format!("{name}: warps {} to {}", warps.start, warps.end - 1);
                comment(&role).for_each(|line| this.line(&line));
            });
            self.inside(&role.body);
        }
        self.line("}");
    }
}

impl Writer<'_> {
    /// A loop's bound, read once.
    fn bound(&mut self, name: &str, n: u32, operand: Operand) -> String {
        let value = self.value(operand);
        if operand.reg().is_none() {
            return value;
        }
        self.line(&format!("const unsigned {name}{n} = {value};"));
        format!("{name}{n}")
    }
}
