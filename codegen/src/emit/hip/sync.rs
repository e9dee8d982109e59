//! Barriers, fences, shuffles, votes.

use super::Writer;
use super::prelude::Helper;
use crate::ir::{Op, Operand, Scope, Shuffle, Vote};

impl Writer<'_> {
    pub(super) fn sync(&mut self, op: &Op) {
        match op {
            Op::Fence { scope } => {
                let scope = name(*scope);
                self.line(&format!("__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, \"{scope}\");"));
            }
            Op::Barrier => self.statement(Helper::BlockBarrier),
            Op::WarpSync => self.statement(Helper::WarpBarrier),
            Op::Shuffle { dst, op, a, by } => {
                let bits = self.bits(*a);
                let taken = self.taken(*op, &bits, *by);
                let value = self.typed(*dst, &taken);
                self.set(*dst, &value);
            }
            Op::Vote { dst, op, a } => {
                let votes = self.votes(*a);
                let says = match op {
                    Vote::All => format!("{votes} == ~0ull"),
                    Vote::Any => format!("{votes} != 0"),
                };
                self.set(*dst, &says);
            }
            Op::Ballot { dst, a } => {
                let votes = self.votes(*a);
                self.line("{");
                self.depth += 1;
                self.line(&format!("const wide all = {votes};"));
                for (part, dst) in dst.iter().enumerate() {
                    self.set(*dst, &format!("(unsigned)(all >> {})", 32 * part));
                }
                self.depth -= 1;
                self.line("}");
            }
            _ => {}
        }
    }

    fn statement(&mut self, helper: Helper) {
        let line = format!("{}();", self.helper(helper));
        self.line(&line);
    }

    fn votes(&mut self, a: Operand) -> String {
        let a = self.value(a);
        format!("{}({a})", self.helper(Helper::Votes))
    }

    /// The bits of another lane's value.
    fn taken(&mut self, op: Shuffle, bits: &str, by: Operand) -> String {
        let helper = match (op, by) {
            // Within 32 lanes the pattern (lane & 31) ^ by is an immediate.
            (Shuffle::Xor, Operand::U32(by)) if by < 32 => {
                let pattern = by << 10 | 0x1f;
                return format!(
                    "(unsigned)__builtin_amdgcn_ds_swizzle((int){bits}, {pattern:#06x})"
                );
            }
            (Shuffle::Xor, _) => Helper::ShuffleXor,
            (Shuffle::Index, by) if self.is_uniform(by) => Helper::OfLane,
            (Shuffle::Index, _) => Helper::FromLane,
            (Shuffle::Up, _) => Helper::ShuffleUp,
            (Shuffle::Down, _) => Helper::ShuffleDown,
        };
        let by = self.value(by);
        format!("{}({bits}, {by})", self.helper(helper))
    }

    /// The first lane's bits, equal in all lanes.
    pub(super) fn first(&mut self, a: Operand) -> String {
        let bits = self.bits(a);
        format!("{}({bits})", self.helper(Helper::First))
    }
}

/// Without clusters, cluster scope is device scope.
const fn name(scope: Scope) -> &'static str {
    match scope {
        Scope::Block => "workgroup",
        Scope::Cluster | Scope::Device => "agent",
    }
}
