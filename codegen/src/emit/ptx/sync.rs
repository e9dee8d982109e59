//! Shuffles, votes, mbarriers.

use super::Writer;
use crate::ir::{BarrierRef, Operand, Reg, Shuffle, Vote};

impl Writer<'_> {
    pub(super) fn shuffle(&mut self, dst: Reg, op: Shuffle, a: Operand, by: Operand) {
        // The last number is the highest valid source lane; for `up`, the lowest.
        let (way, bound) = match op {
            Shuffle::Xor => ("bfly", 31),
            Shuffle::Index => ("idx", 31),
            Shuffle::Up => ("up", 0),
            Shuffle::Down => ("down", 31),
        };
        let (dst, operands) = (self.reg(dst), self.values(&[a, by]));
        self.line(&format!("shfl.sync.{way}.b32 {dst}, {operands}, {bound}, 0xffffffff;"));
    }

    pub(super) fn vote(&mut self, dst: Reg, op: Vote, a: Operand) {
        let way = match op {
            Vote::All => "all",
            Vote::Any => "any",
        };
        let (dst, a) = (self.reg(dst), self.value(a));
        self.line(&format!("vote.sync.{way}.pred {dst}, {a}, 0xffffffff;"));
    }

    pub(super) fn mbarrier_arrive(&mut self, barrier: BarrierRef, expect: Option<Operand>) {
        let at = self.mbarrier(barrier);
        let (way, bytes) = match expect {
            None => ("", String::new()),
            Some(bytes) => (".expect_tx", format!(", {}", self.value(bytes))),
        };
        self.line(&format!("mbarrier.arrive{way}.shared.b64 %state, [{at}]{bytes};"));
    }

    /// Without a scope: `.release.cluster` is a fence of all of the thread's accesses, and took as long as the products of
    /// a stage. What it orders are reads by matrix products, which are complete.
    pub(super) fn cluster_arrive(&mut self, barrier: BarrierRef, block: Operand) {
        let (at, block) = (self.mbarrier(barrier), self.value(block));
        let (base, plus) = at.split_once('+').unwrap_or((&at, "0"));
        self.line(&format!("{{ .reg .b32 place; add.u32 place, {base}, {plus};"));
        self.line(&format!("mapa.shared::cluster.u32 place, place, {block};"));
        self.line("mbarrier.arrive.shared::cluster.b64 _, [place]; }");
    }

    pub(super) fn mbarrier_wait(&mut self, barrier: BarrierRef, parity: Operand) {
        let (at, parity, n) = (self.mbarrier(barrier), self.value(parity), self.label());
        // The blocking `try_wait` exists from sm_90 on; earlier chips poll.
        let way = if self.number() >= 90 { "try_wait" } else { "test_wait" };
        self.line(&format!(".reg .pred %done{n};"));
        self.text.push_str(&format!("WAIT{n}:\n"));
        self.line(&format!("mbarrier.{way}.parity.shared.b64 %done{n}, [{at}], {parity};"));
        self.line(&format!("@!%done{n} bra WAIT{n};"));
    }
}
