//! The order of pairs: every pair in its slot, stable, in as few token blocks as the formula says.

use quantloom_codegen::ir::Kernel;
use quantloom_codegen::schedule::experts::{SortProblem, sort};
use quantloom_codegen::target::target;
use quantloom_runtime::source::Count;

use super::{Launched, TARGETS, random};
use quantloom_tests::sweep::Share;

pub(super) const NONE: u32 = u32::MAX;

/// Pairs and where they go.
#[derive(Clone, Debug)]
pub(super) struct Pairs {
    pub(super) experts: u32,
    /// `[E]`: the place here, or below 0; empty without an expert map.
    pub(super) map: Vec<i32>,
    pub(super) local: u32,
    pub(super) slots: u32,
    pub(super) ids: Vec<i32>,
    pub(super) weights: Vec<f32>,
}

impl Pairs {
    /// Ids of each kind, some of them no expert.
    pub(super) fn draw(experts: u32, pairs: usize, slots: u32, seed: u64) -> Self {
        let mut random = random(seed);
        let ids = (0..pairs).map(|_| match random(20) {
            0 => -1 - random(3) as i32,
            1 => (experts + random(3)) as i32,
            2..6 => (experts / 2) as i32,
            _ => random(experts) as i32,
        });
        let ids = ids.collect();
        let weights = (0..pairs).map(|_| random(1 << 20) as f32 / 1024.0).collect();
        Self { experts, map: Vec::new(), local: experts, slots, ids, weights }
    }

    /// The same with every third expert elsewhere, and the others in reverse.
    pub(super) fn mapped(self) -> Self {
        let here: Vec<u32> = (0..self.experts).filter(|expert| expert % 3 != 1).collect();
        let place = |expert: u32| here.iter().rev().position(|known| *known == expert);
        let map = (0..self.experts).map(|expert| place(expert).map_or(-7, |place| place as i32));
        Self { map: map.collect(), local: here.len() as u32, ..self }
    }

    /// The expert here of a pair.
    pub(super) fn expert(&self, pair: usize) -> Option<usize> {
        let id = usize::try_from(self.ids[pair]).ok().filter(|id| *id < self.experts as usize)?;
        if self.map.is_empty() { Some(id) } else { usize::try_from(self.map[id]).ok() }
    }

    /// T, as the runtime computes it.
    pub(super) fn token_blocks(&self) -> usize {
        let mut problem = Launched::new(self.ids.len(), 1).problem;
        problem.routed_rows = self.ids.len() as u64;
        let count = Count::token_blocks(self.local.into(), self.slots.into());
        count.of(&problem).unwrap() as usize
    }

    /// The words of `order`, by the definition.
    pub(super) fn order(&self) -> Vec<u32> {
        let (slots, pairs, most) = (self.slots as usize, self.ids.len(), self.token_blocks());
        let (mut experts, mut pair_of) = (Vec::new(), Vec::new());
        for expert in 0..self.local as usize {
            let own: Vec<u32> = (0..pairs as u32)
                .filter(|pair| self.expert(*pair as usize) == Some(expert))
                .collect();
            for block in own.chunks(slots) {
                experts.push(expert as u32);
                pair_of.extend_from_slice(block);
                pair_of.resize(experts.len() * slots, NONE);
            }
        }
        let count = experts.len();
        assert!(count <= most, "{count} token blocks, at most {most}");
        experts.resize(most, NONE);
        pair_of.resize(most * slots, NONE);
        let slot_of =
            |pair| pair_of.iter().position(|held| *held == pair).map_or(NONE, |at| at as u32);
        let weight_of =
            |pair: &u32| self.weights.get(*pair as usize).map_or(0, |weight| weight.to_bits());
        let mut words = vec![count as u32];
        words.extend(&experts);
        words.extend(&pair_of);
        words.extend((0..pairs as u32).map(slot_of));
        words.extend(pair_of.iter().map(weight_of));
        words
    }

    /// What the kernels write, each changed before.
    ///
    /// # Errors
    /// What the simulator says.
    pub(super) fn sorted(
        &self,
        name: &str,
        counted: bool,
        seed: u64,
        change: impl Fn(&mut Kernel),
    ) -> Result<Vec<u32>, String> {
        let problem = SortProblem {
            target: target(name).unwrap(),
            experts: self.experts,
            local: self.local,
            mapped: !self.map.is_empty(),
            slots: self.slots,
            counted,
        };
        let words =
            |values: &[i32]| values.iter().map(|one| one.cast_unsigned()).collect::<Vec<_>>();
        let mut launched = Launched::new(self.ids.len(), 1)
            .words("ids", &words(&self.ids))
            .words("expert_map", &words(&self.map))
            .floats("router_weights", &self.weights);
        launched.seed = seed;
        for mut kernel in sort(&problem) {
            change(&mut kernel);
            launched.run(kernel)?;
        }
        Ok(launched.found("slots"))
    }
}

/// A list of pairs for each kind of size and of ids.
fn cases() -> Vec<Pairs> {
    let mut all = Vec::new();
    for (experts, pairs, slots) in [
        (1, 1, 8),
        (3, 2, 8),
        (4, 9, 1),
        (8, 255, 8),
        (8, 256, 16),
        (8, 257, 16),
        (60, 300, 8),
        (128, 1000, 16),
        (384, 700, 8),
        (24, 4500, 8),
        (1024, 600, 64),
    ] {
        let drawn = Pairs::draw(experts, pairs, slots, u64::from(experts) + pairs as u64);
        all.push(drawn.clone());
        all.push(drawn.mapped());
    }
    let all_of = |expert: i32, pairs: usize| {
        let drawn = Pairs::draw(16, pairs, 16, 3);
        Pairs { ids: vec![expert; pairs], ..drawn }
    };
    all.extend([all_of(-1, 40), all_of(15, 300), all_of(0, 300), all_of(16, 5)]);
    all
}

#[test]
fn pairs_are_sorted_by_expert() {
    let share = Share::new(4, 2);
    for (number, pairs) in cases().iter().enumerate() {
        let expected = pairs.order();
        for (turn, name) in TARGETS.into_iter().enumerate() {
            for counted in [false, true] {
                let case = (number * TARGETS.len() + turn) * 2 + usize::from(counted);
                if !share.takes(case) {
                    continue;
                }
                let found = pairs.sorted(name, counted, (number + turn) as u64, |_| {});
                let found = found.unwrap_or_else(|fault| panic!("{name}: {fault}: {pairs:?}"));
                assert_eq!(found, expected, "{name}, counted: {counted}: {pairs:?}");
            }
        }
    }
}

/// The formula of T is reached: by experts that have one pair more than whole blocks.
#[test]
fn the_number_of_token_blocks_is_tight() {
    let mut reached = 0;
    for (experts, slots, whole) in [(1u32, 8u32, 2u32), (5, 8, 0), (5, 16, 1), (128, 8, 1)] {
        let each = whole * slots + 1;
        let ids = (0..experts as i32).flat_map(|expert| vec![expert; each as usize]);
        let drawn = Pairs::draw(experts, 0, slots, 1);
        let ids: Vec<i32> = ids.collect();
        let pairs = Pairs { weights: vec![1.0; ids.len()], ids, ..drawn };
        let order = pairs.order();
        assert_eq!(order[0] as usize, pairs.token_blocks());
        reached += 1;
    }
    assert_eq!(reached, 4);
}

/// The order of blocks and warps decides nothing.
#[test]
fn every_run_gives_the_same_order() {
    let pairs = Pairs::draw(24, 900, 8, 5).mapped();
    let run = |seed| pairs.sorted("sm_90a", true, seed, |_| {}).unwrap();
    let first = run(0);
    for seed in 1..20 {
        assert_eq!(run(seed), first, "seed {seed}");
    }
}
