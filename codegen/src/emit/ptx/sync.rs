//! Barriers, fences, shuffles, votes, waits.

use super::Writer;
use super::memory::scope;
use crate::ir::{Op, Shuffle, Vote};

impl Writer<'_> {
    pub(super) fn sync(&mut self, op: &Op) {
        match op {
            Op::Fence { scope: who } => self.line(&format!("fence.acq_rel.{};", scope(*who))),
            Op::Barrier => self.line("bar.sync 0;"),
            Op::WarpSync => self.line("bar.warp.sync 0xffffffff;"),
            Op::NamedBarrier { id, threads, wait } => {
                let what = if *wait { "sync" } else { "arrive" };
                self.line(&format!("bar.{what} {id}, {threads};"));
            }
            Op::ClusterBarrier => {
                self.line("barrier.cluster.arrive.aligned;");
                self.line("barrier.cluster.wait.aligned;");
            }
            Op::Shuffle { dst, op, a, by } => {
                // The last number is the highest valid source lane; for `up`, the lowest.
                let (way, bound) = match op {
                    Shuffle::Xor => ("bfly", 31),
                    Shuffle::Index => ("idx", 31),
                    Shuffle::Up => ("up", 0),
                    Shuffle::Down => ("down", 31),
                };
                let (dst, operands) = (self.reg(*dst), self.values(&[*a, *by]));
                self.line(&format!("shfl.sync.{way}.b32 {dst}, {operands}, {bound}, 0xffffffff;"));
            }
            Op::Vote { dst, op, a } => {
                let way = if *op == Vote::All { "all" } else { "any" };
                let (dst, a) = (self.reg(*dst), self.value(*a));
                self.line(&format!("vote.sync.{way}.pred {dst}, {a}, 0xffffffff;"));
            }
            Op::Ballot { dst, a } => {
                let (dst, a) = (self.regs(dst), self.value(*a));
                self.line(&format!("vote.sync.ballot.b32 {dst}, {a}, 0xffffffff;"));
            }
            Op::CopyCommit => self.line("cp.async.commit_group;"),
            Op::CopyWait { pending: 0 } => self.line("cp.async.wait_all;"),
            Op::CopyWait { pending } => self.line(&format!("cp.async.wait_group {pending};")),
            Op::CopyArrive { barrier } => {
                let at = self.mbarrier(*barrier);
                self.line(&format!("cp.async.mbarrier.arrive.noinc.shared.b64 [{at}];"));
            }
            Op::MbarrierInit { barrier, arrivals } => {
                let at = self.mbarrier(*barrier);
                self.line(&format!("mbarrier.init.shared.b64 [{at}], {arrivals};"));
            }
            Op::MbarrierFence => self.line("fence.mbarrier_init.release.cluster;"),
            Op::MbarrierArrive { barrier, expect } => {
                let at = self.mbarrier(*barrier);
                match expect {
                    None => self.line(&format!("mbarrier.arrive.shared.b64 %state, [{at}];")),
                    Some(bytes) => {
                        let bytes = self.value(*bytes);
                        self.line(&format!(
                            "mbarrier.arrive.expect_tx.shared.b64 %state, [{at}], {bytes};"
                        ));
                    }
                }
            }
            Op::MbarrierWait { barrier, parity } => {
                let (at, parity, n) = (self.mbarrier(*barrier), self.value(*parity), self.label());
                // The blocking `try_wait` exists from sm_90 on; earlier chips poll.
                let way = if self.number() >= 90 { "try_wait" } else { "test_wait" };
                self.line(&format!(".reg .pred %done{n};"));
                self.text.push_str(&format!("WAIT{n}:\n"));
                self.line(&format!("mbarrier.{way}.parity.shared.b64 %done{n}, [{at}], {parity};"));
                self.line(&format!("@!%done{n} bra WAIT{n};"));
            }
            Op::FenceAsync => self.line("fence.proxy.async.shared::cta;"),
            Op::BulkCommit => self.line("cp.async.bulk.commit_group;"),
            Op::BulkWait { pending, reads_only } => {
                let what = if *reads_only { ".read" } else { "" };
                self.line(&format!("cp.async.bulk.wait_group{what} {pending};"));
            }
            Op::GridWait => self.line("griddepcontrol.wait;"),
            Op::GridLaunch => self.line("griddepcontrol.launch_dependents;"),
            _ => {}
        }
    }
}
