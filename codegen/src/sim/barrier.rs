//! Barriers of whole warps: of the block, named, of the cluster.

use super::clock::Clock;
use super::fault::FaultKind;
use super::warp::{Exec, Gathered, State, Warp, fail};
use super::world::{Gathering, World};

impl<const L: usize> Warp<L> {
    /// Comes to a barrier; waits unless it only arrives.
    pub(super) fn gather(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        which: Gathered,
        (expected, waits): (usize, bool),
    ) -> Exec {
        self.converged()?;
        self.synchronise();
        let clock = self.publish(Self::FULL);
        let entities = self.clock.own.len();
        let gathering = gathering(world, self.block, which);
        if gathering.came == 0 {
            gathering.expected = expected;
            gathering.point = point;
            gathering.clock = Clock::new(entities);
        } else if !matches!(which, Gathered::Named(_)) && gathering.point != point {
            let other = gathering.point;
            return fail(FaultKind::DivergentPoints(world.point(other)));
        } else if gathering.expected != expected {
            let barrier = match which {
                Gathered::Named(id) => format!("named barrier {id}"),
                _ => "barrier".to_owned(),
            };
            let problem = format!(
                "comes with {} threads while others said {}",
                expected * L,
                gathering.expected * L
            );
            return fail(FaultKind::Barrier { barrier, problem });
        }
        gathering.came += 1;
        gathering.clock.join(&clock);
        let generation = gathering.generation;
        if gathering.came == gathering.expected {
            gathering.came = 0;
            gathering.generation += 1;
            gathering.done = gathering.clock.clone();
        }
        if waits {
            self.state = State::Gathering { which, generation };
        }
        Ok(())
    }

    /// Whether the gathering that the warp waits for has ended; then it knows what the others did.
    pub(super) fn gathered(
        &mut self,
        world: &mut World<'_, '_>,
        which: Gathered,
        generation: u32,
    ) -> bool {
        let gathering = gathering(world, self.block, which);
        if gathering.generation == generation {
            return false;
        }
        self.clock.join(&gathering.done);
        self.state = State::Ready;
        true
    }
}

fn gathering<'w>(world: &'w mut World<'_, '_>, block: usize, which: Gathered) -> &'w mut Gathering {
    match which {
        Gathered::Block => &mut world.blocks[block].barrier,
        Gathered::Named(id) => &mut world.blocks[block].named[id as usize],
        Gathered::Cluster => &mut world.cluster,
    }
}
