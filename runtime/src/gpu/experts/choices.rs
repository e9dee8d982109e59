//! Which kernels multiply in an expert layer: how its two products work together, and the choice of each.

use std::fmt;

use quantloom_dsl::experts::{ExpertProduct, OperandOf};
use quantloom_dsl::format::{F32, FloatFormat};

use super::layer::{GpuExpertLayer, Products};
use super::pairs::Pairs;
use super::plan::{PlanKey, RoutedBy};
use crate::experts::ExpertError;
use crate::gpu::executor::Executor;
use crate::gpu::products::{Request, Stacked, StackedChoice};
use crate::op::{NotScheduled, ProductError};
use crate::source::Refusal;

/// Slots of a token block that kernels of every schedule of matrix instructions take.
const COMMON_SLOTS: u64 = 64;

/// How the two products work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// Pairs are not sorted: each is a token block of its own.
    pub(super) direct: bool,
    /// The first product applies the gate.
    pub(super) fused: bool,
    /// The second product adds the experts of a token.
    pub(super) combined: bool,
}

impl Way {
    /// The best first.
    const ALL: [Self; 4] = [
        Self { direct: true, fused: true, combined: true },
        Self { direct: true, fused: true, combined: false },
        Self { direct: false, fused: true, combined: false },
        Self { direct: false, fused: false, combined: false },
    ];

    /// Whether it is faster for these pairs than a later way, if the kernels of the two products group pairs or do not; `bytes` are those of
    /// a matrix of the second product.
    fn suits(self, pairs: Pairs, groups: [bool; 2], bytes: impl FnOnce() -> u64) -> bool {
        match (self.direct, groups) {
            (false, _) => true,
            (true, [false, _]) => pairs.rarely_share_experts(),
            (true, [true, _]) if self.combined => pairs.may_be_added_by_token(bytes()),
            (true, [true, second]) => second || pairs.rarely_share_experts(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = if self.direct { "pairs as they are" } else { "pairs sorted by expert" };
        let gate =
            if self.fused { "the gate in the first product" } else { "a kernel for the gate" };
        let sum = if self.combined { ", the sum in the second product" } else { "" };
        write!(f, "{pairs}, {gate}{sum}")
    }
}

/// What gives the kernel of a product.
pub(super) type Choose<'c> = dyn Fn(&Request<'_>, &Stacked) -> Result<StackedChoice, Refusal> + 'c;

/// What a call with some tokens multiplies with.
#[derive(Clone)]
pub(super) struct Decision<'l> {
    pub(super) way: Way,
    /// The type of parts.
    pub(super) parts: FloatFormat,
    /// What is asked of the source of kernels for a matrix of each product,
    pub(super) requests: [Request<'l>; 2],
    /// and for its experts.
    pub(super) products: [Stacked; 2],
    /// Whether kernels prepare x of the product.
    pub(super) prepared: [bool; 2],
    pub(super) choices: [StackedChoice; 2],
    /// The ways that were rejected, each with its reason.
    pub(super) refused: Vec<String>,
}

impl Decision<'_> {
    /// The same with other kernels, of which the first decides the slots.
    pub(super) fn with(&self, choices: [StackedChoice; 2]) -> Self {
        let [gate_up, down] = self.products;
        let gate_up = Stacked { slots: None, ..gate_up };
        let down = Stacked { slots: Some(choices[0].slots), ..down };
        Self { products: [gate_up, down], choices, ..self.clone() }
    }
}

impl<E: Executor> GpuExpertLayer<E> {
    /// Experts of a token: k.
    pub(super) fn choices_of(&self, routed: RoutedBy) -> u64 {
        match routed {
            RoutedBy::Logits | RoutedBy::Chosen => self.layer.top_k.into(),
            RoutedBy::Batched => 1,
        }
    }

    /// The types that parts of so many pairs may have, the preferred one first: f32, but where these are too many
    /// bytes that of y.
    fn types_of_parts(&self, output: FloatFormat, pairs: u64) -> Vec<FloatFormat> {
        let bytes = pairs.saturating_mul(self.layer.hidden).saturating_mul(4);
        let narrow = output != F32 && bytes > self.most_f32_parts;
        narrow.then_some(output).into_iter().chain([F32]).collect()
    }

    /// The choices of the two products for a way, with rows of the second one of a type, which are weighted or not.
    fn choices(
        &self,
        requests: &[Request<'_>; 2],
        operands: [OperandOf; 2],
        (way, output, weighted): (Way, FloatFormat, bool),
        shared: Option<FloatFormat>,
        (top_k, choose): (u64, &Choose<'_>),
    ) -> Result<[(Stacked, StackedChoice); 2], ProductError> {
        let gate_up = Stacked {
            product: ExpertProduct::GateUp,
            experts: self.local.into(),
            chosen_from: match self.map {
                Some(_) => self.layer.experts.into(),
                None => self.local.into(),
            },
            shards: self.layer.gate.shards() as u64,
            top_k,
            slots: None,
            gate: way.fused.then_some(self.layer.gate),
            output: if way.fused { requests[0].input_dtype } else { F32 },
            direct: way.direct,
            weighted: false,
            combined: false,
            shared: None,
            operand: operands[0],
        };
        let of_slots = |slots: Option<u64>| {
            let gate_up = Stacked { slots, ..gate_up };
            let first = choose(&requests[0], &gate_up)?;
            let (product, slots) = (ExpertProduct::Down, Some(first.slots));
            let (gate, combined, operand) = (None, way.combined, operands[1]);
            let shared = shared.filter(|_| combined);
            let down = Stacked {
                product,
                shards: 1,
                slots,
                gate,
                output,
                weighted,
                combined,
                shared,
                operand,
                ..gate_up
            };
            let second = choose(&requests[1], &down);
            let both = second.map(|second| [(gate_up, first.clone()), (down, second)]);
            Ok::<_, Refusal>((first.slots, both))
        };
        // The second product may have no kernel for as many slots as the first one takes.
        match of_slots(None)? {
            (slots, Err(why)) if slots != COMMON_SLOTS && !way.direct => {
                match of_slots(Some(COMMON_SLOTS)) {
                    Ok((_, Ok(choices))) => Ok(choices),
                    Ok((_, Err(_))) | Err(_) => Err(why.into()),
                }
            }
            (_, choices) => Ok(choices?),
        }
    }

    /// Whether a call multiplies x by the router's weights, and whether it multiplies the rows of the second product by them.
    pub(super) fn weights(&self, routed: RoutedBy) -> (bool, bool) {
        let batched = routed == RoutedBy::Batched;
        let on_input = self.layer.weight_on_input && !batched;
        (on_input, !(on_input || batched))
    }

    /// What so many tokens multiply with: the first way of [`Way::ALL`] that kernels take, with the kernels that the source chooses.
    pub(super) fn decided<'l>(
        &'l self,
        products: &'l Products<E::Memory>,
        key: PlanKey,
        tokens: u64,
    ) -> Result<Decision<'l>, ExpertError> {
        let source = self.executor.source();
        let choose =
            |request: &Request<'_>, of: &Stacked| source.choose_stacked(request, of, tokens);
        self.decided_by(products, key, (tokens, &choose))
    }

    /// The same with kernels that `choose` gives.
    pub(super) fn decided_by<'l>(
        &'l self,
        products: &'l Products<E::Memory>,
        key: PlanKey,
        (tokens, choose): (u64, &Choose<'_>),
    ) -> Result<Decision<'l>, ExpertError> {
        let (source, target) = (self.executor.source(), self.executor.target());
        let [first, second] = &products.stacks;
        let requests = [first.request(target), second.request(target)];
        let mut operands = [first.operand, second.operand];
        let mut prepared = [true; 2];
        for (at, (request, operand)) in requests.iter().zip(&mut operands).enumerate() {
            // Experts that read x as it is read it alike.
            if source.operand(request, None).map_err(ProductError::from)?.is_empty() {
                (*operand, prepared[at]) = (OperandOf::Row, false);
            }
        }
        let (local, top_k) = (u64::from(self.local), self.choices_of(key.routed));
        let pairs = Pairs::new(local, (top_k, tokens));
        let unsorted = self.map.is_none()
            && key.routed != RoutedBy::Batched
            && (pairs.rarely_share_experts() || pairs.may_be_grouped());
        let bytes = || second.bytes_of_matrix(source, &requests[1]);
        let (_, weighted) = self.weights(key.routed);
        let (mut refused, mut last) = (Vec::new(), NotScheduled::NoActivation.into());
        let ways = Way::ALL.into_iter().filter(|way| unsorted || !way.direct);
        let types = self.types_of_parts(key.output, tokens.saturating_mul(top_k));
        let of_way = |way: Way| {
            let types = if way.combined { &[F32][..] } else { &types };
            types.iter().map(move |parts| (way, *parts))
        };
        for (way, parts) in ways.flat_map(of_way) {
            // What is rounded has its weight already, so that it overflows where y does.
            let of = match way.combined {
                true => (way, key.output, weighted),
                false => (way, parts, weighted && parts != F32),
            };
            match self.choices(&requests, operands, of, key.shared, (top_k, choose)) {
                Ok([(_, first), (_, second)])
                    if !way.suits(pairs, [&first, &second].map(|of| of.groups_pairs), bytes) => {}
                Ok([(gate_up, first), (down, second)]) => {
                    let (products, choices) = ([gate_up, down], [first, second]);
                    return Ok(Decision {
                        way,
                        parts,
                        requests,
                        products,
                        prepared,
                        choices,
                        refused,
                    });
                }
                // Pairs would have been sorted anyway, unless blocks group them.
                Err(_) if way.direct && !pairs.rarely_share_experts() => {}
                Err(why) => {
                    let rounded = if parts == F32 { "" } else { ", rounded parts" };
                    refused.push(format!("not {way}{rounded}: {why}"));
                    last = why;
                }
            }
        }
        Err(last.into())
    }
}

#[cfg(test)]
mod tests {
    use super::{Pairs, Way};

    /// The first way for pairs of M tokens, where blocks group pairs and where they do not: 8 and 16 tokens of top 8 of 128 experts, 4 and
    /// 8 of top 2 of 8 with matrices of 1.6 and 31 MB.
    #[test]
    fn pairs_are_sorted_where_blocks_do_not_group_them() {
        let way = |(experts, of), bytes, grouped: bool| {
            let pairs = Pairs::new(experts, of);
            let suits = |way: &usize| {
                let way = Way::ALL[*way];
                way.suits(pairs, [grouped, grouped && !way.combined], || bytes)
            };
            (0..Way::ALL.len()).find(suits)
        };
        let [added, direct, sorted] = [0, 1, 2].map(Some);
        let [small, large] = [1_600_000, 31_200_000];
        assert_eq!(way((128, (8, 8)), small, false), added);
        assert_eq!(way((128, (8, 8)), small, true), added);
        assert_eq!(way((128, (8, 16)), small, false), sorted);
        assert_eq!(way((128, (8, 16)), small, true), added);
        assert_eq!(way((8, (2, 4)), large, false), sorted);
        assert_eq!(way((8, (2, 4)), large, true), direct);
        assert_eq!(way((8, (2, 8)), large, true), direct);
        // The second product does not group pairs that share experts.
        let apart = Way::ALL[1].suits(Pairs::new(8, (2, 8)), [true, false], || large);
        assert!(!apart && Way::ALL[1].suits(Pairs::new(8, (2, 3)), [true, false], || large));
    }
}
