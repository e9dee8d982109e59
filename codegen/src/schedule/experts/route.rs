//! The kernel `route`: from a router's logits to each token's experts and their router weights.
//!
//! A block has a token. Its threads have some experts each, put their numbers into shared memory and
//! read those of all experts: an expert is the token's r-th choice if exactly r experts are before it.
//! So no choice waits for the one before, and no lanes exchange registers, which WGSL lacks.
//!
//! The definition is [`quantloom_dsl::reference::experts::route`]. A token with a NaN among its logits
//! gets the first k experts with the router weight NaN; a host that checks logits refuses it.

use quantloom_dsl::experts::{ExpertGroups, Routing, Score};
use quantloom_dsl::{BufferRole, Dimension};

use super::elements::THREADS;
use super::exponential::exp;
use super::function::sigmoid;
use super::logarithm::ln_one_plus;
use crate::ir::{
    Access, Address, Binary, BufferId, Builder, Cache, Compare, Extent, Kernel, LaunchConfig, Mask,
    Op, Operand, Reg, SharedId, Special, Type, Unary, Uniformity, Width, Word,
};
use crate::target::{Feature, Target};

/// A router of a layer on a target.
#[derive(Clone, Copy, Debug)]
pub struct RouteProblem {
    /// The target, a GPU.
    pub target: &'static Target,
    /// Logits to experts and weights.
    pub routing: Routing,
    /// E.
    pub experts: u32,
    /// k.
    pub top_k: u32,
}

/// Numbers of shared memory that are loaded at once.
const AT_ONCE: u32 = 4;
/// A choice that is not an expert: the id -1.
const NO_EXPERT: u32 = u32::MAX;
/// What is added to the sum of router weights that divides them.
const NOT_ZERO: f32 = 1e-20;

/// Writes the kernel. Its parameter is m, the tokens, at least 1.
///
/// | buffer | words | condition |
/// |---|---|---|
/// | `logits` | f32 [M, E] | |
/// | `score_bias` | f32 `[E]` | the routing has a bias |
/// | `routed_ids` | i32 [M, k], -1 where fewer than k experts are left | written |
/// | `routed_weights` | f32 [M, k] | written |
pub fn route(problem: &RouteProblem) -> Kernel {
    let &RouteProblem { target, routing, experts, top_k } = problem;
    let threads = experts.next_multiple_of(target.gpu.map_or(1, |gpu| gpu.warp)).min(THREADS);
    let programmatic = target.has(Feature::GridDependency);
    let grid = [Extent::Constant(1); 3];
    let launch = LaunchConfig { grid, threads, min_blocks: 1, cluster: 1, programmatic };
    let name = format!("route_e{experts}k{top_k}__{}", target.name.replace('_', ""));
    let summary = format!("The {top_k} of {experts} experts of each token: {routing}.");
    let mut b = Builder::new(&name, &summary, target, launch);
    let m = b.size(Dimension::M, "tokens, at least 1");
    b.grid([Extent::Parameter(m), Extent::Constant(1), Extent::Constant(1)]);
    let (read, all) = (Access::ReadOnly, [Extent::Parameter(m), Extent::Constant(experts)]);
    let logits = b.buffer_of(BufferRole::Logits, Word::U32, read, &all, "f32 [e, m]");
    let bias = routing.bias.then(|| {
        let shape = [Extent::Constant(experts)];
        b.buffer_of(BufferRole::ScoreBias, Word::U32, Access::Constant, &shape, "f32 [e]")
    });
    let (write, chosen) = (Access::WriteOnce, [Extent::Parameter(m), Extent::Constant(top_k)]);
    let ids = b.buffer_of(BufferRole::RoutedIds, Word::U32, write, &chosen, "i32 [choice, m]");
    let weights = BufferRole::RoutedWeights;
    let weights = b.buffer_of(weights, Word::U32, write, &chosen, "f32 [choice, m]");
    let padded = experts.next_multiple_of(AT_ONCE);
    let values = b.shared("values", Word::U32, padded, "f32, one an expert, then -infinity");
    let token = b.special(Special::Block(0));
    let thread = b.special(Special::Thread);
    let each = experts.div_ceil(threads);
    let own: Vec<Own> = (0..each)
        .map(|turn| {
            let expert = b.add(thread, turn * threads);
            let inside = match experts.is_multiple_of(threads) {
                true => Operand::Pred(true),
                false => b.less(expert, experts),
            };
            Own { expert, inside }
        })
        .collect();
    if programmatic {
        b.push(Op::GridLaunch);
        b.push(Op::GridWait);
    }
    let this = Token { problem: *problem, thread, threads, own, values, padded };
    let first = b.mul(token, experts);
    let row: Vec<Operand> = this
        .own
        .iter()
        .map(|own| {
            let at = b.add(first, own.expert);
            let mask = own.mask(f32::NEG_INFINITY);
            let from = Address::new(logits, at);
            b.load_as(Type::F32, from, Width::B32, mask, Cache::Default)[0].into()
        })
        .collect();
    this.publish(&mut b, &row);
    let (largest, none) = this.largest(&mut b);
    let scores = this.scores(&mut b, &row, largest);
    let mut preferences = this.preferences(&mut b, &row, &scores, bias);
    for preference in &mut preferences {
        *preference = b.select(none, 0.0f32, *preference);
    }
    this.publish(&mut b, &preferences);
    if let Some(groups) = routing.groups {
        this.keep_groups(&mut b, groups, &mut preferences);
        this.publish(&mut b, &preferences);
    }
    let best = this.choose(&mut b, &preferences, &scores);
    this.finish(&mut b, best, none, (token, ids, weights));
    b.finish()
}

/// An expert of a thread.
struct Own {
    expert: Operand,
    /// Whether there is such an expert.
    inside: Operand,
}

impl Own {
    fn mask(&self, fill: f32) -> Option<Mask> {
        let fill = fill.into();
        (self.inside != Operand::Pred(true)).then_some(Mask { condition: self.inside, fill })
    }

    fn condition(&self) -> Option<Operand> {
        (self.inside != Operand::Pred(true)).then_some(self.inside)
    }
}

/// What the steps of a token share.
struct Token {
    problem: RouteProblem,
    thread: Operand,
    threads: u32,
    /// The thread's experts.
    own: Vec<Own>,
    /// A number of each expert, which all threads read.
    values: SharedId,
    /// Numbers in `values`.
    padded: u32,
}

/// The chosen experts, by rank: ids, and scores as f32.
struct Best {
    ids: SharedId,
    scores: SharedId,
}

impl Token {
    /// Stores a number of each expert, and waits until all are there. Before, waits until nobody reads
    /// the ones before.
    fn publish(&self, b: &mut Builder, numbers: &[Operand]) {
        b.barrier();
        for (own, number) in self.own.iter().zip(numbers) {
            let to = Address::new(self.values, own.expert);
            b.store(to, &[*number], Width::B32, own.condition());
        }
        let experts = self.problem.experts;
        if self.padded > experts {
            let is_pad = b.less(self.thread, self.padded - experts);
            let to = Address::new(self.values, self.thread).plus(experts);
            b.store(to, &[f32::NEG_INFINITY.into()], Width::B32, Some(is_pad));
        }
        b.barrier();
    }

    /// Reads the numbers of all experts in their order, four at once; `work` gets the number of the
    /// first and the four.
    fn each(&self, b: &mut Builder, work: impl FnOnce(&mut Builder, Operand, &[Reg])) {
        b.for_each(0u32, self.padded, AT_ONCE, "other", |b, other| {
            let from = Address::new(self.values, other);
            let four = b.load_as(Type::F32, from, Width::B128, None, Cache::Default);
            work(b, other, &four);
        });
    }

    /// The largest number, at least the smallest finite f32; and whether one of them is NaN.
    fn largest(&self, b: &mut Builder) -> (Operand, Operand) {
        let largest = b.variable("largest", Type::F32, Uniformity::Block);
        let wrong = b.variable("wrong", Type::U32, Uniformity::Block);
        b.set(largest, f32::MIN);
        b.set(wrong, 0u32);
        self.each(b, |b, _, four| {
            for value in four {
                let larger = b.binary(Binary::MaxF32, largest, *value);
                b.set(largest, larger);
                let number = b.compare(Compare::EqualF32, *value, *value);
                let still = b.select(number, wrong, 1u32);
                b.set(wrong, still);
            }
        });
        let wrong = b.equal(wrong, 1u32);
        (largest.into(), wrong)
    }

    /// The thread's scores.
    fn scores(&self, b: &mut Builder, logits: &[Operand], largest: Operand) -> Vec<Operand> {
        match self.problem.routing.score {
            Score::Logits => logits.to_vec(),
            Score::Sigmoid => logits.iter().map(|logit| sigmoid(b, *logit)).collect(),
            Score::SqrtSoftplus => logits.iter().map(|logit| sqrt_softplus(b, *logit)).collect(),
            Score::Softmax => {
                let powers: Vec<Operand> = logits
                    .iter()
                    .map(|logit| {
                        let less = b.binary(Binary::SubF32, *logit, largest);
                        exp(b, less)
                    })
                    .collect();
                // Pads and the logits of experts that are switched off have the power 0.
                self.publish(b, &powers);
                let sums = b.array("sums", Type::F32, AT_ONCE, Uniformity::Block);
                for sum in &sums {
                    b.set(*sum, 0.0f32);
                }
                self.each(b, |b, other, four| {
                    for (at, (sum, power)) in (0..).zip(sums.iter().zip(four)) {
                        let other = b.add(other, at);
                        let inside = b.less(other, self.problem.experts);
                        let power = b.select(inside, *power, 0.0f32);
                        let more = b.add_f32(*sum, power);
                        b.set(*sum, more);
                    }
                });
                let (left, right) = (b.add_f32(sums[0], sums[1]), b.add_f32(sums[2], sums[3]));
                let sum = b.add_f32(left, right);
                let nothing = b.compare(Compare::EqualF32, sum, 0.0f32);
                let sum = b.select(nothing, 1.0f32, sum);
                powers.iter().map(|power| b.binary(Binary::DivF32, *power, sum)).collect()
            }
        }
    }

    /// What the choice compares: logits, or scores plus bias.
    fn preferences(
        &self,
        b: &mut Builder,
        logits: &[Operand],
        scores: &[Operand],
        bias: Option<BufferId>,
    ) -> Vec<Operand> {
        let Some(bias) = bias else { return logits.to_vec() };
        let both = self.own.iter().zip(logits.iter().zip(scores));
        both.map(|(own, (logit, score))| {
            let from = Address::new(bias, own.expert);
            let mask = own.mask(f32::NEG_INFINITY);
            let bias = b.load_as(Type::F32, from, Width::B32, mask, Cache::Constant)[0];
            let sum = b.add_f32(*score, bias);
            let off = b.compare(Compare::EqualF32, *logit, f32::NEG_INFINITY);
            b.select(off, f32::NEG_INFINITY, sum)
        })
        .collect()
    }

    /// Sets the preferences of experts outside of the best groups to -infinity.
    fn keep_groups(&self, b: &mut Builder, groups: ExpertGroups, preferences: &mut [Operand]) {
        let ExpertGroups { count, keep } = groups;
        let size = self.problem.experts / count;
        let of_groups = b.shared("of_groups", Word::U32, count, "f32, how good a group is");
        b.for_each(self.thread, count, self.threads, "group", |b, group| {
            let best = b.array("best", Type::F32, 2, Uniformity::Varying);
            for best in &best {
                b.set(*best, f32::NEG_INFINITY);
            }
            let first = b.mul(group, size);
            let end = b.add(first, size);
            b.for_each(first, end, 1u32, "member", |b, member| {
                let from = Address::new(self.values, member);
                let value = b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0];
                let lower = b.binary(Binary::MinF32, best[0], value);
                let second = b.binary(Binary::MaxF32, best[1], lower);
                b.set(best[1], second);
                let higher = b.binary(Binary::MaxF32, best[0], value);
                b.set(best[0], higher);
            });
            let good: Operand = match self.problem.routing.bias {
                false => best[0].into(),
                true => {
                    let alone = b.compare(Compare::EqualF32, best[1], f32::NEG_INFINITY);
                    let sum = b.add_f32(best[0], best[1]);
                    b.select(alone, best[0], sum)
                }
            };
            b.store(Address::new(of_groups, group), &[good], Width::B32, None);
        });
        b.barrier();
        for (own, preference) in self.own.iter().zip(preferences) {
            let group = b.div(own.expert, size);
            let mine = b.load_as(
                Type::F32,
                Address::new(of_groups, group),
                Width::B32,
                own.mask(f32::NEG_INFINITY),
                Cache::Default,
            )[0];
            let before = b.variable("before", Type::U32, Uniformity::Varying);
            b.set(before, 0u32);
            b.for_each(0u32, count, 1u32, "other_group", |b, other| {
                let from = Address::new(of_groups, other);
                let value = b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0];
                count_better(b, before, (value.into(), other), (mine.into(), group));
            });
            let kept = b.less(before, keep);
            *preference = b.select(kept, *preference, f32::NEG_INFINITY);
        }
    }

    /// The experts of the largest preferences, in shared memory after the next barrier.
    fn choose(&self, b: &mut Builder, preferences: &[Operand], scores: &[Operand]) -> Best {
        let top_k = self.problem.top_k;
        let best = Best {
            ids: b.shared("best", Word::U32, top_k, "experts, best first, then -1"),
            scores: b.shared("best_scores", Word::U32, top_k, "f32, their scores, then 0"),
        };
        let is_choice = b.less(self.thread, top_k);
        let no_expert = [Operand::U32(NO_EXPERT), Operand::U32(0)];
        for (to, value) in [best.ids, best.scores].into_iter().zip(no_expert) {
            b.store(Address::new(to, self.thread), &[value], Width::B32, Some(is_choice));
        }
        let ranks: Vec<Reg> = preferences
            .iter()
            .map(|_| {
                let rank = b.variable("rank", Type::U32, Uniformity::Varying);
                b.set(rank, 0u32);
                rank
            })
            .collect();
        self.each(b, |b, other, four| {
            for (at, value) in (0..).zip(four) {
                let other = b.add(other, at);
                for (rank, (own, preference)) in ranks.iter().zip(self.own.iter().zip(preferences))
                {
                    let (own, other) = ((*preference, own.expert), ((*value).into(), other));
                    count_better(b, *rank, other, own);
                }
            }
        });
        b.barrier();
        for (rank, (own, (preference, score))) in
            ranks.iter().zip(self.own.iter().zip(preferences.iter().zip(scores)))
        {
            let among = b.less(*rank, top_k);
            let on = b.compare(Compare::LessF32, f32::NEG_INFINITY, *preference);
            let chosen = b.both(among, on);
            let chosen = b.both(own.inside, chosen);
            b.store(Address::new(best.ids, *rank), &[own.expert], Width::B32, Some(chosen));
            b.store(Address::new(best.scores, *rank), &[*score], Width::B32, Some(chosen));
        }
        b.barrier();
        best
    }

    /// Writes the choices and their router weights.
    fn finish(
        &self,
        b: &mut Builder,
        best: Best,
        none: Operand,
        (token, ids, weights): (Operand, BufferId, BufferId),
    ) {
        let (top_k, routing) = (self.problem.top_k, self.problem.routing);
        let sum = routing.renormalise.then(|| {
            let sum = b.variable("sum", Type::F32, Uniformity::Block);
            b.set(sum, 0.0f32);
            b.for_each(0u32, top_k, 1u32, "choice", |b, choice| {
                let from = Address::new(best.scores, choice);
                let score = b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0];
                let more = b.add_f32(sum, score);
                b.set(sum, more);
            });
            b.add_f32(sum, NOT_ZERO)
        });
        b.for_each(self.thread, top_k, self.threads, "place", |b, place| {
            let id = b.load(Address::new(best.ids, place), Width::B32)[0];
            let from = Address::new(best.scores, place);
            let score = b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0];
            let weight = match sum {
                Some(sum) => b.binary(Binary::DivF32, score, sum),
                None => score.into(),
            };
            let weight =
                if routing.scale == 1.0 { weight } else { b.mul_f32(weight, routing.scale) };
            let weight = b.select(none, f32::NAN, weight);
            let at = b.mad(token, top_k, place);
            b.store(Address::new(ids, at), &[id.into()], Width::B32, None);
            b.store(Address::new(weights, at), &[weight], Width::B32, None);
        });
    }
}

/// Counts another one that comes before the own: a larger number, or an equal one with a smaller place.
fn count_better(
    b: &mut Builder,
    count: Reg,
    (other, other_place): (Operand, Operand),
    (own, own_place): (Operand, Operand),
) {
    let larger = b.compare(Compare::LessF32, own, other);
    let equal = b.compare(Compare::EqualF32, other, own);
    let earlier = b.less(other_place, own_place);
    let first = b.both(equal, earlier);
    let better = b.binary(Binary::OrPred, larger, first);
    let more = b.add(count, 1u32);
    let more = b.select(better, more, count);
    b.set(count, more);
}

/// `sqrt(ln(1 + exp(v)))`, as `max(v, 0) + ln(1 + exp(-|v|))` in the root.
fn sqrt_softplus(b: &mut Builder, v: Operand) -> Operand {
    let magnitude = b.unary(Unary::Abs, v);
    let below = b.unary(Unary::Negate, magnitude);
    let power = exp(b, below);
    let rest = ln_one_plus(b, power);
    let most = b.binary(Binary::MaxF32, v, 0.0f32);
    let sum = b.add_f32(most, rest);
    b.unary(Unary::Sqrt, sum)
}
