//! A prepared weight on the CPU: the operation that an engine calls.
//!
//! In: an unpacked layer and a device; then activations. Out: products. [`CpuWeight::new`] packs
//! once; a product quantises or widens x into the workspace (`super::activation`) and runs the
//! loops of `super::product`.

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Quantiser, Scheme};

use super::activation::{self, ActivationInput, PackedTokens};
use super::blocking::Blocking;
use super::decoder::Decoder;
use super::device::CpuDevice;
use super::groups::IntegerInput;
use super::native::{NativeWeight, Path};
use super::product::CpuProduct;
use super::quantiser::ValueRange;
use super::rows::InputRows;
use super::select::{Selection, rejected_bf16_dot, select_with};
use super::split_bf16;
use super::tokens::Tokens;
use crate::accumulation::{Accumulation, Sums};
use crate::buffer::Workspace;
use crate::element::{Values, ValuesMut};
use crate::float_mode::standard;
use crate::forked;
use crate::op::{self, Op, ProductError};
use crate::unpacked::Unpacked;
use quantloom_dsl::reference::StaticInput;

/// A weight in native panels, with everything that its products need.
#[derive(Clone, Debug)]
pub struct CpuWeight {
    scheme: Scheme,
    shape: Shape,
    selection: Selection,
    decoder: Decoder,
    native: NativeWeight,
    /// Static activation parameters of each expert.
    inputs: Vec<StaticInput>,
    /// The prescale; empty if the scheme has none.
    factors: Vec<f32>,
    /// bf16 parts of x of each of [`X_TYPES`].
    x_parts: [usize; X_TYPES.len()],
}

/// The types of x.
const X_TYPES: [FloatFormat; 3] = [F32, BF16, F16];

impl CpuWeight {
    /// Packs an unpacked layer for `scheme` (the layer's scheme, or the same with another
    /// activation).
    ///
    /// # Errors
    /// [`ProductError::Scheme`].
    pub fn new(
        device: CpuDevice,
        decoder: Decoder,
        scheme: &Scheme,
        weight: &Unpacked,
    ) -> Result<Self, ProductError> {
        forked::check()?;
        op::same_weight(scheme, weight)?;
        if !decoder.get().serves(&scheme.weight.code) {
            return Err(ProductError::Scheme("the decoder's code type"));
        }
        let shape = weight.shape();
        let known = match &decoder {
            Decoder::Known(decoder) => Some(decoder.name()),
            Decoder::Table(_) => None,
        };
        let mut selection = select_with(&device, known, scheme, shape);
        let (path, bits) = (selection.kernel.path, decoder.get().bits());
        let input = match path {
            Path::Dot => scheme.quantiser().and_then(|of_x| IntegerInput::of(of_x, shape)),
            Path::Fma => None,
        };
        let input = input.unwrap_or_default();
        let (bf16_dot, bf16) = (device.bf16_dot(), device.bf16_products());
        let native = standard(|| NativeWeight::new(weight, path, bits, input, bf16));
        selection.rejected.extend(rejected_bf16_dot(&selection.kernel, bf16_dot, &native));
        let quantiser = |x: FloatFormat| scheme.activation_for(x)?.quantiser();
        Ok(Self {
            x_parts: X_TYPES.map(|x| split_bf16::of_input(quantiser(x), x)),
            scheme: scheme.clone(),
            shape,
            selection,
            decoder,
            native,
            factors: weight.input(0).prescale.iter().map(|factor| *factor as f32).collect(),
            inputs: (0..weight.shape().experts).map(|expert| weight.input(expert)).collect(),
        })
    }

    /// Bytes of workspace of a product.
    fn workspace(&self, blocking: &Blocking) -> usize {
        let threads = rayon::current_num_threads();
        let scratch = threads.saturating_mul(blocking.scratch());
        activation::bytes(blocking, &self.native, threads).saturating_add(scratch)
    }

    /// Bytes of codes and group parameters that a product reads.
    pub fn bytes(&self) -> usize {
        self.native.bytes()
    }

    /// The blocking of a product of M tokens of a type: `f32`, bf16 or f16. x of another one is not split into bf16 parts.
    pub fn blocking(&self, tokens: usize, x: FloatFormat) -> Blocking {
        let kernel = &self.selection.kernel;
        let parts =
            X_TYPES.iter().zip(self.x_parts).find_map(|(of, parts)| (*of == x).then_some(parts));
        Blocking::new(&self.native, kernel.path, kernel.isa, tokens, parts)
    }

    /// The same, with x not quantised.
    fn without_parts(&self, tokens: usize) -> Blocking {
        let kernel = &self.selection.kernel;
        Blocking::new(&self.native, kernel.path, kernel.isa, tokens, None)
    }

    /// The quantiser for x of a type.
    fn quantiser(&self, x: FloatFormat) -> Option<&Quantiser> {
        self.scheme.activation_for(x)?.quantiser()
    }

    /// The kernel of the product, and the reasons against the others.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }
}

impl Op for CpuWeight {
    fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn kernel(&self, tokens: usize) -> String {
        self.selection.kernel.on(self.blocking(tokens, BF16).instruction)
    }

    fn explain(&self, tokens: usize) -> String {
        let kernel = self.selection.explain(&self.kernel(tokens));
        // Sums are in f32, and products are exact for x of every type: x is not converted.
        let taken = self.scheme.activation_choices().filter_map(|taken| match taken.converted() {
            Some(_) => Some(format!("x in {} is not converted: sums are in f32", taken.own)),
            None => self.scheme.is_mixed().then(|| taken.to_string()),
        });
        [kernel].into_iter().chain(taken).collect::<Vec<_>>().join("\n")
    }

    fn accumulation(&self) -> &dyn Accumulation {
        self
    }

    fn workspace_size(&self, tokens: usize) -> usize {
        let of = |blocking| self.workspace(&blocking);
        let parts = X_TYPES.map(|x| of(self.blocking(tokens, x)));
        parts.into_iter().fold(of(self.without_parts(tokens)), usize::max)
    }

    fn matmul_into(
        &self,
        expert: u64,
        x: Values<'_>,
        mut y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ProductError> {
        let tokens = op::sizes(self.shape, expert, x, &y)?;
        forked::check()?;
        standard(|| {
            let blocking = self.blocking(tokens, x.format());
            if !self.multiply(blocking, expert, x, &mut y, workspace)? {
                self.multiply(self.without_parts(tokens), expert, x, &mut y, workspace)?;
            }
            Ok(())
        })
    }
}

impl Accumulation for CpuWeight {
    /// Of tokens that are not finite, which are multiplied in `f32`, too: [`Sums::SplitBf16`] has as many roundings at least.
    fn sums(&self, x: FloatFormat, tokens: usize) -> Sums {
        match (self.blocking(tokens, x).instruction, self.selection.kernel.path) {
            (Some(instruction), _) => instruction.sums(),
            (_, Path::Dot) => Sums::Integer,
            (_, Path::Fma) => Sums::Float,
        }
    }
}

impl CpuWeight {
    /// One algorithm for a product. False, with y unchanged, if x would be split into bf16 parts
    /// and has an element that is not finite.
    fn multiply(
        &self,
        blocking: Blocking,
        expert: u64,
        x: Values<'_>,
        y: &mut ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<bool, ProductError> {
        let n = self.shape.n as usize;
        workspace.reserve(self.workspace(&blocking));
        let mut cut = workspace.cut();
        let expert = expert as usize;
        let mut packed = PackedTokens::new(&mut cut, &blocking, &self.native);
        let threads = rayon::current_num_threads();
        let rows = cut.take::<[u8; 64]>(activation::row_bytes(&self.native) / 64 * threads);
        let input = self.activation(expert, x.format(), None);
        let k = self.shape.k as usize;
        let x = InputRows { x, k, index: None, factors: &self.factors };
        let finite = packed.pack(&input, &blocking, x, rows, threads)?;
        if !finite {
            return Ok(false);
        }
        let product = CpuProduct {
            weight: &self.native,
            expert,
            decoder: self.decoder.get(),
            isa: self.selection.kernel.isa,
            blocking,
            tokens: packed.tokens(),
        };
        product.run(n, y, cut.rest());
        Ok(true)
    }

    /// The blocking of a product of M tokens of a type; without a type, x is not split into bf16 parts.
    pub(super) fn of_tokens(&self, tokens: usize, x: Option<FloatFormat>) -> Blocking {
        x.map_or_else(|| self.without_parts(tokens), |x| self.blocking(tokens, x))
    }

    /// The matrices in panels.
    pub(super) fn native(&self) -> &NativeWeight {
        &self.native
    }

    /// The same, to move its codes to other memory.
    pub(super) fn native_mut(&mut self) -> &mut NativeWeight {
        &mut self.native
    }

    /// The prescale; empty if the scheme has none.
    pub(super) fn factors(&self) -> &[f32] {
        &self.factors
    }

    /// The static parameters of the only expert's activation.
    pub(super) fn input_mut(&mut self) -> Option<&mut StaticInput> {
        self.inputs.first_mut()
    }

    /// Whether both read the same packed tokens.
    pub(super) fn reads_alike(&self, other: &Self) -> bool {
        self.native.reads_alike(&other.native)
            && (&self.inputs, &self.factors) == (&other.inputs, &other.factors)
    }

    /// The product of the only expert with packed tokens.
    pub(super) fn product<'a>(&'a self, blocking: Blocking, tokens: Tokens<'a>) -> CpuProduct<'a> {
        CpuProduct {
            weight: &self.native,
            expert: 0,
            decoder: self.decoder.get(),
            isa: self.selection.kernel.isa,
            blocking,
            tokens,
        }
    }

    /// How an expert's matrix reads x of a type; `range` is that of all values that share a dynamic
    /// scale over rows, if those are not the product's own.
    pub(super) fn activation(
        &self,
        expert: usize,
        x: FloatFormat,
        range: Option<ValueRange>,
    ) -> ActivationInput<'_> {
        ActivationInput {
            isa: self.selection.kernel.isa,
            scheme: &self.scheme,
            quantiser: self.quantiser(x),
            given: &self.inputs[expert],
            range,
            columns: self.native.order(expert),
            offset: self.native.offset(),
            integers: self.native.input(),
        }
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<CpuWeight>();
};
