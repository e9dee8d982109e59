//! Barriers, fences, shuffles, votes.

use super::Writer;
use super::prelude::Helper;
use crate::ir::{Operand, Reg, Scope, Shuffle, Vote};

impl Writer<'_> {
    pub(super) fn fence(&mut self, scope: Scope) {
        // Without clusters, cluster scope is device scope.
        let scope = match scope {
            Scope::Block => "workgroup",
            Scope::Cluster | Scope::Device => "agent",
        };
        self.line(&format!("__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, \"{scope}\");"));
    }

    pub(super) fn shuffle(&mut self, dst: Reg, op: Shuffle, a: Operand, by: Operand) {
        let bits = self.bits(a);
        let taken = self.taken(op, &bits, by);
        self.assign(dst, |this| this.typed(dst, &taken));
    }

    pub(super) fn vote(&mut self, dst: Reg, op: Vote, a: Operand) {
        let votes = self.votes(a);
        let all = match op {
            Vote::All if self.lanes() == 32 => "== ~0u",
            Vote::All => "== ~0ull",
            Vote::Any => "!= 0",
        };
        self.set(dst, &format!("{votes} {all}"));
    }

    pub(super) fn ballot(&mut self, dst: &[Reg], a: Operand) {
        let votes = self.votes(a);
        self.braced("", |this| {
            this.line(&format!("const wide all = {votes};"));
            for (part, dst) in dst.iter().enumerate() {
                this.set(*dst, &format!("(unsigned)(all >> {})", 32 * part));
            }
        });
    }

    pub(super) fn statement(&mut self, helper: Helper) {
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
