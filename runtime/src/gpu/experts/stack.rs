//! The matrices of one product of an expert layer as constant buffers on the device.
//!
//! In: an [`ExpertSource`]. Out: for each type of x a [`Stack`]: every buffer of the dense product, L s
//! times, `[expert][shard]`, the expert slowest. The host packs each matrix as the dense native layout
//! says; each is asked for once.

use std::sync::Arc;

use quantloom_dsl::experts::ExpertProduct;
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Activation, Scheme};

use super::input::Inputs;
use crate::column_order::{Arrangement, ColumnOrder};
use crate::experts::{ExpertError, ExpertSource, ExpertsNotScheduled, InputScales};
use crate::gpu::executor::Executor;
use crate::gpu::native::NativePart;
use crate::gpu::products::Request;
use crate::gpu::weight::inputs;
use crate::op::ProductError;
use crate::source::{BufferRole, Refusal};
use crate::unpacked::Unpacked;

/// The most bytes of a constant buffer: kernels number its words of 4 bytes in 32 bits.
const MOST_BYTES: u64 = 4 << 32;

/// A product's matrices for x of one type.
pub(in crate::gpu) struct Stack<M> {
    pub(super) scheme: Arc<Scheme>,
    pub(super) activation: Activation,
    /// The type of x.
    pub(super) element: FloatFormat,
    /// Rows and columns of a matrix, as its source has it.
    pub(super) shape: Shape,
    /// Columns of a matrix as products take them.
    pub(super) columns: u64,
    /// The type to which x is rounded.
    pub(super) rounded: FloatFormat,
    constants: Vec<(BufferRole, Arc<M>)>,
}

impl<M> Stack<M> {
    /// What is asked of the source of kernels: the dense product of one matrix.
    pub(super) fn request<'s>(&'s self, target: &'s str) -> Request<'s> {
        Request {
            scheme: &self.scheme,
            activation: &self.activation,
            own: self.element,
            target,
            n: self.shape.n,
            k: self.columns,
            x_columns: self.shape.k,
        }
    }

    /// The memory of a constant buffer.
    pub(super) fn constant(&self, role: BufferRole) -> Option<&Arc<M>> {
        self.constants.iter().find(|(known, _)| *known == role).map(|(_, memory)| memory)
    }
}

/// The sizes of a stack.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) product: ExpertProduct,
    /// L.
    pub(super) experts: u32,
    /// s.
    pub(super) shards: u32,
    /// Rows and columns of each matrix.
    pub(super) shape: Shape,
}

/// Stacks by type of x, and why there is none for the other types.
pub(super) struct Stacks<M> {
    pub(super) stacks: Vec<Stack<M>>,
    pub(super) refused: Vec<(FloatFormat, Refusal)>,
}

/// A buffer that is being packed: all types of x for which it is the same share it.
struct Packed {
    /// Its order of columns, by its place among the orders.
    order: Option<usize>,
    native: NativePart,
    bytes: Vec<u8>,
}

/// A type of x that kernels take, and its buffers by their places.
struct Candidate {
    activation: Activation,
    element: FloatFormat,
    order: Option<usize>,
    columns: u64,
    rounded: FloatFormat,
    parts: Vec<usize>,
}

/// A product's buffers while its matrices are read.
struct Packing<'s> {
    scheme: &'s Scheme,
    orders: Vec<(Arrangement, ColumnOrder)>,
    packed: Vec<Packed>,
    candidates: Vec<Candidate>,
    refused: Vec<(FloatFormat, Refusal)>,
}

impl<M> Stacks<M> {
    /// Packs and uploads all matrices of a product.
    ///
    /// # Errors
    /// A matrix of another shape or scheme, experts whose inputs cannot be shared, or what the source
    /// or the device says.
    pub(super) fn new<E: Executor<Memory = M>>(
        executor: &E,
        weights: &dyn ExpertSource,
        sizes: Sizes,
        input_scales: InputScales,
    ) -> Result<Self, ExpertError> {
        let scheme = weights.scheme(sizes.product).clone();
        let mut packing: Option<Packing<'_>> = None;
        let mut given = Vec::new();
        for expert in 0..sizes.experts {
            for shard in 0..sizes.shards {
                let matrix = weights.matrix(sizes.product, expert, shard)?;
                sizes.check(&scheme, (expert, shard), &matrix)?;
                given.push(matrix.input(0));
                let packing = match &mut packing {
                    Some(packing) => packing,
                    none => none.insert(Packing::new(executor, &scheme, sizes.shape, &matrix)?),
                };
                packing.add(&matrix)?;
            }
        }
        let Some(packing) = packing else {
            return Ok(Self { stacks: Vec::new(), refused: Vec::new() });
        };
        let given = Inputs::new(&scheme, input_scales, given)?;
        packing.uploaded(executor, sizes.shape, &given)
    }
}

impl Sizes {
    /// Refuses a matrix of another shape or scheme.
    fn check(
        self,
        scheme: &Scheme,
        (expert, shard): (u32, u32),
        matrix: &Unpacked,
    ) -> Result<(), ExpertError> {
        let Self { product, shape: Shape { n, k, .. }, .. } = self;
        let found = matrix.shape();
        if (found.n, found.k, found.experts) != (n, k, 1) {
            let (found_n, found_k) = (found.n, found.k);
            return Err(ExpertError::Shape { product, expert, shard, n, k, found_n, found_k });
        }
        crate::op::same_weight(scheme, matrix).map_err(|error| match error {
            ProductError::Scheme(clause) => ExpertError::Scheme { product, expert, shard, clause },
            error => error.into(),
        })
    }
}

impl<'s> Packing<'s> {
    /// What kernels read of matrices like the first one, for each type of x.
    fn new<E: Executor>(
        executor: &E,
        scheme: &'s Scheme,
        shape: Shape,
        first: &Unpacked,
    ) -> Result<Self, ExpertError> {
        let (orders, packed, candidates, refused) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut this = Self { scheme, orders, packed, candidates, refused };
        for (activation, own) in inputs(scheme) {
            if this.candidates.iter().any(|known| known.element == own) {
                continue;
            }
            let (target, x_columns) = (executor.target(), shape.k);
            let activation = &activation;
            let request =
                Request { scheme, activation, own, target, n: shape.n, k: shape.k, x_columns };
            if let Err(refusal) = this.candidate(executor, request, first) {
                this.refused.push((own, refusal));
            }
        }
        Ok(this)
    }

    fn candidate<E: Executor>(
        &mut self,
        executor: &E,
        request: Request<'_>,
        first: &Unpacked,
    ) -> Result<(), Refusal> {
        let source = executor.source();
        let order = source.arrangement(&request)?.map(|arrangement| {
            let known = self.orders.iter().position(|(known, _)| *known == arrangement);
            known.unwrap_or_else(|| {
                let order = ColumnOrder::of(&arrangement, first);
                self.orders.push((arrangement, order));
                self.orders.len() - 1
            })
        });
        let columns = order.map_or(request.k, |at| self.orders[at].1.columns().len() as u64);
        let request = Request { k: columns, ..request };
        let native = source.native(&request)?;
        // What cannot be made of x is refused now.
        source.operand(&request)?;
        let rounded = source.rounds_x(&request)?;
        let place = |native: NativePart| {
            let same = |known: &Packed| known.order == order && known.native == native;
            let known = self.packed.iter().position(same);
            known.unwrap_or_else(|| {
                self.packed.push(Packed { order, native, bytes: Vec::new() });
                self.packed.len() - 1
            })
        };
        let parts = native.into_iter().map(place).collect();
        let (activation, element) = (request.activation.clone(), request.own);
        self.candidates.push(Candidate { activation, element, order, columns, rounded, parts });
        Ok(())
    }

    /// Packs the next matrix behind those before.
    fn add(&mut self, matrix: &Unpacked) -> Result<(), ExpertError> {
        for (arrangement, order) in &self.orders {
            if ColumnOrder::of(arrangement, matrix) != *order {
                return Err(ExpertsNotScheduled::ColumnOrders.into());
            }
        }
        for Packed { order, native, bytes } in &mut self.packed {
            let order = order.map(|at| &self.orders[at].1);
            bytes.extend(native.pack(matrix, order)?);
            if bytes.len() as u64 > MOST_BYTES {
                let (buffer, most) = (native.role, MOST_BYTES);
                return Err(ExpertsNotScheduled::Bytes { buffer, most }.into());
            }
        }
        Ok(())
    }

    fn uploaded<E: Executor>(
        self,
        executor: &E,
        shape: Shape,
        given: &Inputs,
    ) -> Result<Stacks<E::Memory>, ExpertError> {
        let upload = |bytes: &[u8]| {
            let memory = executor.upload(bytes);
            memory.map(Arc::new).map_err(ExpertError::product)
        };
        let orders = self.orders.iter().map(|(_, order)| upload(&order.bytes()));
        let orders: Vec<Arc<E::Memory>> = orders.collect::<Result<_, _>>()?;
        let mut parts = Vec::new();
        for Packed { native, bytes, .. } in self.packed {
            parts.push((native.role, upload(&bytes)?));
        }
        let mut inputs = Vec::new();
        for (role, bytes) in given.buffers() {
            inputs.push((role, upload(&bytes)?));
        }
        let scheme = Arc::new(self.scheme.clone());
        let stack = |candidate: Candidate| {
            let Candidate { activation, element, order, columns, rounded, parts: own } = candidate;
            let order = order.map(|at| (BufferRole::ColumnOrder, orders[at].clone()));
            let own = own.into_iter().map(|at| parts[at].clone());
            let constants = own.chain(order).chain(inputs.iter().cloned()).collect();
            let scheme = scheme.clone();
            Stack { scheme, activation, element, shape, columns, rounded, constants }
        };
        let stacks = self.candidates.into_iter().map(stack).collect();
        Ok(Stacks { stacks, refused: self.refused })
    }
}
