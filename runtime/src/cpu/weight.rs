//! A prepared weight on the CPU: the operation that an engine holds.
//!
//! In: an unpacked layer and a device; then activations. Out: products. [`CpuWeight::new`] packs
//! once; a product quantises or widens x into the workspace (`super::activation`) and runs the
//! loops of [`super::blocking`].

use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Activation, Scheme};

use super::activation::{self, PackedTokens};
use super::blocking::{Blocking, Product};
use super::family::Decoder;
use super::native::{Native, Path};
use crate::buffer::Workspace;
use crate::device::Device;
use crate::element::{Values, ValuesMut};
use crate::op::{self, Op, ProductError, Sums};
use crate::select::{Selection, select_with};
use crate::unpacked::Unpacked;
use quantloom_dsl::reference::StaticInput;

/// A weight in native panels, with all that its products need.
#[derive(Clone, Debug)]
pub struct CpuWeight {
    scheme: Scheme,
    shape: Shape,
    selection: Selection,
    decoder: Decoder,
    native: Native,
    input: StaticInput,
}

impl CpuWeight {
    /// Packs an unpacked layer for `scheme` (its own, or with another activation).
    ///
    /// # Errors
    /// [`ProductError::Scheme`].
    pub fn new(
        device: Device,
        decoder: Decoder,
        scheme: &Scheme,
        weight: &Unpacked,
    ) -> Result<Self, ProductError> {
        op::same_weight(scheme, weight)?;
        if !decoder.get().serves(&scheme.weight.code) {
            return Err(ProductError::Scheme("the decoder's code type"));
        }
        let shape = weight.shape();
        let family = match &decoder {
            Decoder::Known(family) => Some(family.name()),
            Decoder::Table(_) => None,
        };
        let selection = select_with(&device, family, scheme, shape);
        let native = Native::new(weight, selection.kernel.path, decoder.get().bits());
        Ok(Self {
            scheme: scheme.clone(),
            shape,
            selection,
            decoder,
            native,
            input: weight.input().clone(),
        })
    }

    /// Bytes of codes and group parameters that a product reads.
    pub fn bytes(&self) -> usize {
        self.native.bytes()
    }

    /// How a product of M tokens is cut up.
    pub fn blocking(&self, tokens: usize) -> Blocking {
        let kernel = &self.selection.kernel;
        Blocking::new(&self.native, kernel.path, kernel.isa, tokens)
    }

    /// The kernel that runs it, and why not another.
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

    fn kernel(&self, _tokens: usize) -> String {
        self.selection.kernel.to_string()
    }

    fn explain(&self, _tokens: usize) -> String {
        self.selection.explain()
    }

    fn sums(&self) -> Sums {
        match self.selection.kernel.path {
            Path::Dot => Sums::Integer,
            Path::Fma => Sums::Float,
        }
    }

    fn workspace_size(&self, tokens: usize) -> usize {
        let blocking = self.blocking(tokens);
        let threads = rayon::current_num_threads();
        activation::bytes(&blocking, &self.native, threads) + threads * blocking.scratch()
    }

    fn matmul_into(
        &self,
        expert: u64,
        x: Values<'_>,
        mut y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ProductError> {
        let tokens = op::sizes(self.shape, expert, x, &y)?;
        let n = self.shape.n as usize;
        let blocking = self.blocking(tokens);
        workspace.reserve(self.workspace_size(tokens));
        let mut cut = workspace.cut();
        let expert = expert as usize;
        let quantiser = match self.scheme.activations.first() {
            Some(Activation::Quantised(quantiser)) => Some(quantiser),
            _ => None,
        };
        let mut packed = PackedTokens::new(&mut cut, &blocking, &self.native);
        let threads = rayon::current_num_threads();
        let rows = cut.take::<[u8; 64]>(activation::row_bytes(&self.native) / 64 * threads);
        let input = activation::Input {
            isa: self.selection.kernel.isa,
            scheme: &self.scheme,
            quantiser,
            given: &self.input,
            columns: self.native.order(expert),
            offset: self.native.offset(),
        };
        packed.pack(&input, &blocking, x, rows, threads)?;
        let product = Product {
            weight: &self.native,
            expert,
            family: self.decoder.get(),
            isa: self.selection.kernel.isa,
            blocking,
            tokens: packed.tokens(),
        };
        product.run(n, &mut y, cut.rest());
        Ok(())
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<CpuWeight>();
};
