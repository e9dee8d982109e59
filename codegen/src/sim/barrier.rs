//! Barriers of whole warps: the block's, named ones, the cluster's.

use super::clock::Clock;
use super::fault::FaultKind;
use super::misuse::BarrierMisuse;
use super::state::{Rendezvous, UnitState};
use super::warp::{BarrierKind, StepResult, Warp, WarpState, fail};

impl<const L: usize> Warp<L> {
    /// Arrives at a barrier, and waits there if `waits`.
    pub(super) fn arrive_at_barrier(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        which: BarrierKind,
        (expected, waits): (usize, bool),
    ) -> StepResult {
        self.converged()?;
        self.synchronise();
        let clock = self.publish(Self::FULL);
        let entities = self.clock.own.len();
        let rendezvous = rendezvous(state, self.block, which);
        if rendezvous.arrived == 0 {
            rendezvous.expected = expected;
            rendezvous.point = point;
            rendezvous.clock = Clock::new(entities);
        } else if which == BarrierKind::Block && rendezvous.point != point {
            let other = rendezvous.point;
            return fail(FaultKind::DivergentPoints(state.point(other)));
        } else if rendezvous.expected != expected {
            let barrier = match which {
                BarrierKind::Named(id) => format!("named barrier {id}"),
                _ => "barrier".to_owned(),
            };
            let (here, elsewhere) = (expected * L, rendezvous.expected * L);
            let misuse = BarrierMisuse::OtherThreads { here, elsewhere };
            return fail(FaultKind::Barrier { barrier, misuse });
        }
        rendezvous.arrived += 1;
        rendezvous.clock.join(&clock);
        let generation = rendezvous.generation;
        if rendezvous.arrived == rendezvous.expected {
            rendezvous.arrived = 0;
            rendezvous.generation += 1;
            rendezvous.done = rendezvous.clock.clone();
        }
        if waits {
            self.state = WarpState::AtBarrier { which, generation };
        }
        Ok(())
    }

    /// Whether the barrier that the warp waits for is complete; the warp has then seen the accesses
    /// of all arrivals.
    pub(super) fn barrier_complete(
        &mut self,
        state: &mut UnitState<'_, '_>,
        which: BarrierKind,
        generation: u32,
    ) -> bool {
        let rendezvous = rendezvous(state, self.block, which);
        if rendezvous.generation == generation {
            return false;
        }
        self.clock.join(&rendezvous.done);
        self.state = WarpState::Ready;
        true
    }
}

fn rendezvous<'w>(
    state: &'w mut UnitState<'_, '_>,
    block: usize,
    which: BarrierKind,
) -> &'w mut Rendezvous {
    match which {
        BarrierKind::Block => &mut state.blocks[block].barrier,
        BarrierKind::Named(id) => &mut state.blocks[block].named[id as usize],
        BarrierKind::Cluster => &mut state.cluster,
    }
}
