//! What is asked of a source of product kernels besides their texts.

use std::fmt;
use std::sync::Arc;

use quantloom_dsl::experts::{ExpertLayer, ExpertProduct, Gate, OperandOf};
use quantloom_dsl::format::{FloatFormat, Number, Overflow};
use quantloom_dsl::{Activation, Scheme};

use super::native::NativeBuffer;
use super::plan::LaunchStep;
use crate::accumulation::{Decoded, Sums};
use crate::column_order::Arrangement;
use crate::source::{BufferRole, KernelKey, KernelSource, Refusal};

/// A product whose M is not known yet.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The weight's scheme.
    pub scheme: &'a Scheme,
    /// What x is taken as: one of the scheme's activations, or a float type that x is converted to.
    pub activation: &'a Activation,
    /// The type that x comes in, which is that of y where the scheme does not say another.
    pub input_dtype: FloatFormat,
    /// Where it runs: the target's name, as `sm_90a`.
    pub target: &'a str,
    /// Rows of w.
    pub n: u64,
    /// Columns of w, in the order in which products take them.
    pub k: u64,
    /// Columns of x.
    pub x_columns: u64,
    /// Whether all numbers of the weight's buffers are in their [`Products::param_ranges`].
    pub scales_in_range: bool,
    /// Whether the weight's constant buffers are, or are to be, those for numbers in these ranges alone, where the source has others
    /// for any.
    pub layout_of_range: bool,
}

impl<'a> Request<'a> {
    /// A product with a matrix of `[N, K]` whose columns are as they are stored, and whose numbers may be any.
    pub fn new(
        scheme: &'a Scheme,
        activation: &'a Activation,
        input_dtype: FloatFormat,
        target: &'a str,
        [n, k]: [u64; 2],
    ) -> Self {
        let (scales_in_range, layout_of_range) = (false, false);
        Self {
            scheme,
            activation,
            input_dtype,
            target,
            n,
            k,
            x_columns: k,
            scales_in_range,
            layout_of_range,
        }
    }
}

/// Scales, or zero-point corrections, for which a source has faster kernels: 0 and magnitudes from `least` to `most`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParamRange {
    /// Their buffer.
    pub buffer: BufferRole,
    /// Their type: a float of 8, 16 or 32 bits, or powers of two of 8.
    pub number: Number,
    /// The least magnitude besides 0, a number of the type; 0 if there is none.
    pub least: f64,
    /// The largest magnitude, a number of the type.
    pub most: f64,
}

impl ParamRange {
    /// Whether all numbers of the buffer, as bytes, are in the range.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        // Magnitudes are in the order of their codes.
        let [least, most] =
            [self.least, self.most].map(|number| self.number.encode(number, Overflow::Special));
        let held = |code: u32| (least..=most).contains(&code);
        let Number::Float(format) = self.number else {
            return self.number == Number::E8m0 && bytes.iter().all(|&code| held(code.into()));
        };
        let magnitudes = (1u32 << (format.bits() - 1)) - 1;
        let held = |code: u32| code & magnitudes == 0 || held(code & magnitudes);
        match format.bits() {
            8 => bytes.iter().all(|&code| held(code.into())),
            16 => all_numbers(bytes, |number| held(u16::from_le_bytes(number).into())),
            32 => all_numbers(bytes, |number| held(u32::from_le_bytes(number))),
            _ => false,
        }
    }
}

/// Whether bytes are whole numbers that are all held.
fn all_numbers<const BYTES: usize>(bytes: &[u8], held: impl Fn([u8; BYTES]) -> bool) -> bool {
    let (numbers, rest) = bytes.as_chunks::<BYTES>();
    rest.is_empty() && numbers.iter().all(|&number| held(number))
}

/// An expert layer whose M is not known yet.
#[derive(Clone, Copy, Debug)]
pub struct ExpertRequest<'a> {
    /// The layer: its routing, its gate, H and I.
    pub layer: &'a ExpertLayer,
    /// E: ids are below. L where rows are sorted by expert already.
    pub experts: u64,
    /// L: the experts that are here.
    pub local: u64,
    /// Whether an expert map says where they are.
    pub mapped: bool,
    /// k. 1 where rows are sorted by expert already.
    pub top_k: u64,
    /// The type of x and h.
    pub input_dtype: FloatFormat,
    /// The type of parts.
    pub parts: FloatFormat,
    /// The type of y.
    pub output: FloatFormat,
    /// Where it runs: the target's name, as `sm_90a`.
    pub target: &'a str,
    /// Whether the sum of a token's parts has router weights; else each is 1, or parts have theirs already.
    pub weighted: bool,
    /// The type of the result of shared experts, if one is added to the sum.
    pub shared: Option<FloatFormat>,
}

/// The kernels of an expert layer besides its products and their operands, for a number of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertKernels {
    /// From [`BufferRole::Logits`] to [`BufferRole::RoutedIds`] and [`BufferRole::RoutedWeights`].
    pub route: KernelKey,
    /// From ids and router weights to [`BufferRole::Order`], in the order in which they are launched.
    pub order: Vec<KernelKey>,
    /// From [`BufferRole::X`] and router weights to [`BufferRole::Weighted`].
    pub weigh: KernelKey,
    /// From [`BufferRole::Summed`] to [`BufferRole::Hidden`].
    pub gate: KernelKey,
    /// From [`BufferRole::Parts`] to [`BufferRole::Y`].
    pub combine: KernelKey,
    /// The most rows of z, h and parts, and the most tokens, of a launch.
    pub most_rows: u64,
}

/// A kernel for a number of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenKernel {
    /// The kernel.
    pub key: KernelKey,
    /// The most rows of x that a launch of it takes, [`u64::MAX`] if any number; a larger product is
    /// cut into such chunks.
    pub tokens: u64,
    /// The type in which it multiplies weights and x, and why not in another: `in bf16`.
    pub compute_dtype: String,
    /// How it adds up.
    pub sums: Sums,
    /// What it decodes codes to.
    pub decoded: Decoded,
    /// Why this one.
    pub by: ChoiceSource,
}

/// The kernels of a product that are worth measuring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternatives {
    /// M, rounded up as far as the source chooses the same kernel for several.
    pub tokens: u64,
    /// The kernels, the one that is chosen without a measurement first. Each takes so many tokens.
    pub kernels: Vec<ChosenKernel>,
}

/// The experts of a product whose M is not known yet: see [`Products::choose_stacked`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacked {
    /// Which product of the layer.
    pub product: ExpertProduct,
    /// L: experts whose weights are stacked.
    pub experts: u64,
    /// Experts that the ids of pairs are chosen from: L, or more where an expert map has some of them elsewhere.
    pub chosen_from: u64,
    /// s: matrices of an expert that multiply the same x.
    pub shards: u64,
    /// k: experts of a token.
    pub top_k: u64,
    /// B: slots of a token block, if the order of pairs exists already.
    pub slots: Option<u64>,
    /// The gate, if y is to be what it makes of the shards.
    pub gate: Option<Gate>,
    /// The type of y: with a gate that of h, else f32; of the second product also 16 bits.
    pub output: FloatFormat,
    /// Whether a pair is a token block of its own, whose expert is its id: B is 1.
    pub direct: bool,
    /// Whether a row of y, one a pair, is multiplied by the pair's router weight: that of the order, or of
    /// [`BufferRole::RouterWeights`] if the product is direct.
    pub weighted: bool,
    /// Whether y has a row a token instead, the sum of its pairs' rows in the order of choice: of a direct second product.
    pub combined: bool,
    /// The type of what shared experts give, [M, N], if it is added to these sums.
    pub shared: Option<FloatFormat>,
    /// Which matrices read the same rows of x; beyond [`OperandOf::Row`] rows of x are those of
    /// [`Products::operand_stacked`].
    pub operand: OperandOf,
}

/// A kernel for the product of an expert layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackedChoice {
    /// The kernel. Its most tokens are M, tokens before they are routed.
    pub choice: ChosenKernel,
    /// B: slots of a token block of the order that it reads.
    pub slots: u64,
    /// Whether its blocks find the pairs of an expert by themselves and multiply them together, where pairs are not sorted.
    pub groups_pairs: bool,
}

/// The kernels of a product of an expert layer that are worth measuring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackedAlternatives {
    /// M, rounded up as far as the source chooses the same kernel for several.
    pub tokens: u64,
    /// The kernels, the one that is chosen without a measurement first.
    pub kernels: Vec<StackedChoice>,
}

/// What a choice of a kernel rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceSource {
    /// It was the fastest that was measured on this device for this product, shape and M.
    Tuned,
    /// It was the fastest that was measured for this product, shape and M.
    Measured,
    /// A model of what kernels cost.
    Model,
    /// It overrides the one that would have been chosen.
    Override,
}

impl ChoiceSource {
    /// Whether a measurement on this device may replace the choice: there was none, and nobody asked for another kernel.
    pub(super) const fn may_be_tuned(self) -> bool {
        matches!(self, Self::Model | Self::Measured)
    }
}

impl fmt::Display for ChoiceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tuned => "the fastest that was measured on this device",
            Self::Measured => "the fastest that was measured",
            Self::Model => "by the model of costs, not measured",
            Self::Override => "as asked for",
        })
    }
}

/// The kernels that move values between stores of the scheme and a native buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepackKernels {
    /// The stores that the buffer is made of.
    pub stores: Vec<String>,
    /// Whether the order of the columns comes after them ([`ColumnOrder::columns`], u32).
    ///
    /// [`ColumnOrder::columns`]: super::ColumnOrder::columns
    pub order: bool,
    /// The kernel from the stores, its first buffers, to the native buffer, its last one, which it
    /// writes whole.
    pub to_native: KernelKey,
    /// The kernel back, from the native buffer to the only store. It may be refused where the other
    /// is not: a store may hold more than the buffer, and a buffer be computed of several.
    pub from_native: KernelKey,
}

/// A source without kernels for stacks of experts.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this source of kernels has no products of expert layers")]
struct NoExperts;

/// A source without a table of its own.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this source of kernels keeps no measurements")]
struct KeepsNothing;

/// A source without transforms.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this source of kernels has no transforms from stored tensors")]
struct NoTransforms;

/// A source of product kernels. Each buffer in the rule of one has a [`BufferRole`].
pub trait Products: KernelSource {
    /// How the product wants columns; `None` if as they are stored. Asked before the columns are in
    /// order: `k` of the request is that of the stored weight. All other questions come after, with
    /// as many columns as the order has ([`ColumnOrder::columns`]).
    ///
    /// [`ColumnOrder::columns`]: super::ColumnOrder::columns
    ///
    /// # Errors
    /// Why no kernel of the source computes it.
    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal>;

    /// The constant buffers of the product, the same for every M.
    ///
    /// # Errors
    /// Why no kernel of the source computes it.
    fn native(&self, request: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal>;

    /// The numbers of the product's buffers for which the source has faster kernels than for others; none if it has no such
    /// kernels. A request says whether a weight's numbers are in all of these.
    ///
    /// # Errors
    /// Why no kernel of the source computes it.
    fn param_ranges(&self, _request: &Request<'_>) -> Result<Vec<ParamRange>, Refusal> {
        Ok(Vec::new())
    }

    /// The kernel for M tokens.
    ///
    /// # Errors
    /// Why none of the source takes them.
    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<ChosenKernel, Refusal>;

    /// All kernels that are worth measuring for M tokens, without regard to what was measured before.
    ///
    /// # Errors
    /// Why none of the source takes them.
    fn alternatives(&self, request: &Request<'_>, tokens: u64) -> Result<Alternatives, Refusal> {
        Ok(Alternatives { tokens, kernels: vec![self.choose(request, tokens)?] })
    }

    /// Keeps a kernel as the fastest for M tokens, so that [`Products::choose`] gives it for all M that
    /// [`Products::alternatives`] rounds up to this one.
    ///
    /// # Errors
    /// A source that keeps nothing, or why it is not kept.
    fn keep(
        &self,
        _request: &Request<'_>,
        _tokens: u64,
        _fastest: &ChosenKernel,
    ) -> Result<(), Refusal> {
        Err(Refusal::Reason(Arc::new(KeepsNothing)))
    }

    /// Whether a device measures the kernels of a product, of a single matrix or of experts, and M before it multiplies so for the first time, unless it has done
    /// so before ([`ChoiceSource::Tuned`]).
    fn tunes_at_first_use(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// The kernel for a product of an expert layer and M tokens. The request is that of one matrix; its
    /// constant buffers ([`Products::native`]) are those of the product once for each expert and shard,
    /// `[expert][shard]`. The kernel reads [`BufferRole::Order`], or [`BufferRole::Ids`] if it is direct,
    /// which are then numbers of experts that are here, others for none. x has a row per token in the
    /// first product and a row per slot in the second; a row per slot, or per shard and slot, if experts
    /// or matrices read x in different ways. y is of the type that is asked for and has a row per shard and
    /// slot, or per pair; rows without a pair are not written. With a gate y has a row per slot, 0 without a
    /// pair.
    ///
    /// # Errors
    /// Why none of the source takes them.
    fn choose_stacked(
        &self,
        _request: &Request<'_>,
        _stacked: &Stacked,
        _tokens: u64,
    ) -> Result<StackedChoice, Refusal> {
        Err(Refusal::Reason(Arc::new(NoExperts)))
    }

    /// The kernels that are worth measuring for a product of an expert layer and M tokens, without regard to what was measured before:
    /// a few with each number of slots where [`Stacked::slots`] says none, else all with so many.
    ///
    /// # Errors
    /// Why none of the source takes them.
    fn alternatives_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        tokens: u64,
    ) -> Result<StackedAlternatives, Refusal> {
        let kernels = vec![self.choose_stacked(request, stacked, tokens)?];
        Ok(StackedAlternatives { tokens, kernels })
    }

    /// Keeps a kernel as the fastest of a product of an expert layer for M tokens, so that [`Products::choose_stacked`] gives it where the
    /// layer and [`Stacked::slots`] are the same, for all M that [`Products::alternatives_stacked`] rounds up to this one.
    ///
    /// # Errors
    /// As of [`Products::keep`].
    fn keep_stacked(
        &self,
        _request: &Request<'_>,
        _stacked: &Stacked,
        _tokens: u64,
        _fastest: &StackedChoice,
    ) -> Result<(), Refusal> {
        Err(Refusal::Reason(Arc::new(KeepsNothing)))
    }

    /// The kernels that make what the product reads of x, in the order in which they are launched;
    /// none if that is x itself. The kernel of the product may want x in a form of its own; without one the
    /// form is that of most kernels. A product whose blocks make it themselves has none. They write [`BufferRole::Operand`] and, where the product has one,
    /// [`BufferRole::OperandScale`]; the order of columns is [`ColumnOrder::columns`] (u32), static
    /// scales and zero points are f32.
    ///
    /// [`ColumnOrder::columns`]: super::ColumnOrder::columns
    ///
    /// # Errors
    /// Why no kernel of the source makes it.
    fn operand(
        &self,
        request: &Request<'_>,
        product: Option<&KernelKey>,
    ) -> Result<Vec<KernelKey>, Refusal>;

    /// The kernels that make what a product of an expert layer reads of x, where its rows are those of slots: in the
    /// second product, and where experts or matrices read x in different ways ([`Stacked::operand`]). As
    /// [`Products::operand`], for token blocks of `slots` slots, with a row of the operand per slot, or per shard
    /// and slot. Static scales, zero points, prescales and orders of columns are those of all experts or
    /// matrices, one after another, if these read in different ways. The kernels read [`BufferRole::Order`], or
    /// [`BufferRole::Ids`] if the product is direct. Rows of slots without a pair are not read, and written only
    /// where the kernel of the product reads them.
    ///
    /// # Errors
    /// Why no kernel of the source makes it.
    fn operand_stacked(
        &self,
        _request: &Request<'_>,
        _stacked: &Stacked,
        _product: Option<&KernelKey>,
        _slots: u64,
    ) -> Result<Vec<KernelKey>, Refusal> {
        Err(Refusal::Reason(Arc::new(NoExperts)))
    }

    /// The launches of a product with a choice's kernel: those that make its operand, if there are
    /// any, then the product, whose x is that operand.
    ///
    /// # Errors
    /// Why there are none.
    fn steps(
        &self,
        request: &Request<'_>,
        choice: &ChosenKernel,
    ) -> Result<Vec<LaunchStep>, Refusal> {
        let operand = self.operand(request, Some(&choice.key))?;
        let mut steps: Vec<LaunchStep> = operand.into_iter().map(LaunchStep::new).collect();
        let product = LaunchStep::new(choice.key.clone());
        steps.push(match steps.is_empty() {
            true => product,
            false => product.bound(BufferRole::X, BufferRole::Operand),
        });
        Ok(steps)
    }

    /// The kernels of an expert layer besides its products, for M tokens and token blocks of `slots`
    /// slots; 0 if pairs are not sorted, which needs no expert map.
    ///
    /// # Errors
    /// Why there are none.
    fn expert_kernels(
        &self,
        _request: &ExpertRequest<'_>,
        _slots: u64,
        _tokens: u64,
    ) -> Result<ExpertKernels, Refusal> {
        Err(Refusal::Reason(Arc::new(NoExperts)))
    }

    /// One kernel in place of those of [`Products::operand`] for the first product of an expert layer and of
    /// [`ExpertKernels::order`] for M tokens and token blocks of `slots` slots, with the buffers of both; `None` if there is none.
    /// Asked where the order is one kernel and the operand has a row per token.
    ///
    /// # Errors
    /// Why no kernel of the source makes the operand.
    fn order_with_operand(
        &self,
        _request: &Request<'_>,
        _product: &KernelKey,
        _of: (&ExpertRequest<'_>, u64, u64),
    ) -> Result<Option<KernelKey>, Refusal> {
        Ok(None)
    }

    /// One kernel in place of the first product's, which applies the gate, and of those of [`Products::operand_stacked`] for the second
    /// product. It writes [`BufferRole::HiddenOperand`] and, where the second product reads scales, [`BufferRole::HiddenScale`], which
    /// the second product's kernel reads as [`BufferRole::X`] and [`BufferRole::OperandScale`]; `None` if there is none. Both choices
    /// are of as many slots.
    ///
    /// # Errors
    /// Why no kernel of the source makes the operand.
    fn product_with_operand(
        &self,
        _requests: [&Request<'_>; 2],
        _stacked: [&Stacked; 2],
        _choices: [&StackedChoice; 2],
    ) -> Result<Option<KernelKey>, Refusal> {
        Ok(None)
    }

    /// The float type to which kernels round x of the request's own type before they multiply it; its
    /// own if they do not.
    ///
    /// # Errors
    /// Why no kernel of the source computes it.
    fn rounds_x(&self, request: &Request<'_>) -> Result<FloatFormat, Refusal> {
        Ok(request.input_dtype)
    }

    /// The transforms of a buffer of [`Products::native`]. Without them the host packs it.
    ///
    /// # Errors
    /// Why there are none.
    fn repack_kernels(
        &self,
        _request: &Request<'_>,
        _part: &NativeBuffer,
    ) -> Result<RepackKernels, Refusal> {
        Err(Refusal::Reason(Arc::new(NoTransforms)))
    }
}

/// A source of kernels that devices run without looking at its texts.
///
/// Any type can be a source; whether its texts may run is for somebody to say, in `unsafe` code:
/// ```
/// use std::sync::Arc;
/// use quantloom_runtime::gpu::{Products, Trusted};
///
/// fn trusted(source: Arc<dyn Products>) -> Trusted {
///     // SAFETY: (why its texts keep to their rules)
///     unsafe { Trusted::new(source) }
/// }
/// ```
/// ```compile_fail,E0133
/// use std::sync::Arc;
/// use quantloom_runtime::gpu::{Products, Trusted};
///
/// fn trusted(source: Arc<dyn Products>) -> Trusted {
///     Trusted::new(source)
/// }
/// ```
/// A source as such opens no device:
#[cfg_attr(
    feature = "cuda",
    doc = "```compile_fail,E0308
use std::sync::Arc;
use quantloom_runtime::{cuda::Cuda, gpu::Products};

fn open(source: Arc<dyn Products>) {
    let _ = Cuda::new(0, source);
}
```"
)]
#[cfg_attr(
    feature = "hip",
    doc = "```compile_fail,E0308
use std::sync::Arc;
use quantloom_runtime::{gpu::Products, hip::Hip};

fn open(source: Arc<dyn Products>) {
    let _ = Hip::new(0, source);
}
```"
)]
#[derive(Clone)]
pub struct Trusted(Arc<dyn Products>);

impl Trusted {
    /// Vouches for a source. That of `quantloom`'s own kernels is `quantloom::jit::source()`.
    ///
    /// # Safety
    /// Each text that the source gives, whatever the key, does what the rule beside it says: it takes
    /// these parameters, touches no more than the rule's bytes of each buffer, for any sizes that the
    /// rule gives numbers for, writes only what the rule says is written, and ends. Numbers in buffers
    /// change that only as [`Launch::new`](super::Launch::new) says.
    pub unsafe fn new(source: Arc<dyn Products>) -> Self {
        Self(source)
    }

    /// The source.
    pub fn source(&self) -> &Arc<dyn Products> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::format::{BF16, E4M3, NUMBER_BF16, NUMBER_F16, NUMBER_F32};

    use super::*;

    #[test]
    fn a_range_holds_zeros_and_its_ends_alone() {
        let (least, most) = (2f64.powi(-123), 1.9921875);
        let range = ParamRange { buffer: BufferRole::Scale, number: NUMBER_BF16, least, most };
        let bytes = |values: &[f64]| -> Vec<u8> {
            let code = |&value: &f64| BF16.encode(value, Overflow::Special) as u16;
            values.iter().map(code).flat_map(u16::to_le_bytes).collect()
        };
        assert!(range.holds(&bytes(&[0.0, -0.0, least, -least, 1.0, most, -most])));
        assert!(range.holds(&[]));
        for beyond in [2.0, -2.0, least / 2.0, 2f64.powi(-133), f64::INFINITY, f64::NAN] {
            assert!(!range.holds(&bytes(&[1.0, beyond])), "{beyond}");
        }
        // Half a number; numbers of another size.
        assert!(!range.holds(&bytes(&[1.0])[..1]));
        let wide = ParamRange { number: NUMBER_F32, ..range };
        assert!([1f32, -0.0, -1.9921875].iter().all(|number| wide.holds(&number.to_le_bytes())));
        let wider = [1.9921876f32, f32::NAN, f32::NEG_INFINITY, f32::from_bits(1)];
        assert!(wider.iter().all(|number| !wide.holds(&number.to_le_bytes())));
        assert!(!wide.holds(&1f32.to_le_bytes()[..3]));
        let (least, most) = (2f64.powi(-9), 1.875);
        let small = ParamRange { number: Number::Float(E4M3), least, most, ..range };
        // 1.875, -0, the smallest number; 2; NaN.
        assert!(small.holds(&[0x3f, 0x80, 1]) && !small.holds(&[0x40]) && !small.holds(&[0x7f]));
        // Powers of two: 255 is none.
        let (least, most) = (2f64.powi(-127), 2.0);
        let powers = ParamRange { number: Number::E8m0, least, most, ..range };
        assert!(powers.holds(&[0, 127, 128]) && !powers.holds(&[0, 129]) && !powers.holds(&[255]));
        let (least, most) = (2f64.powi(-14), 1.0);
        let half = ParamRange { number: NUMBER_F16, least, most, ..range };
        assert!(half.holds(&0x3c00u16.to_le_bytes()) && !half.holds(&0x3c01u16.to_le_bytes()));
    }
}
