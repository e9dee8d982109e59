//! The matrices of one product of an expert layer as constant buffers on the device.
//!
//! In: an [`ExpertSource`]. Out: for each type of x a [`Stack`]: every buffer of the dense product, L s
//! times, `[expert][shard]`, the expert slowest. The host packs each matrix as the dense native layout
//! says; each is asked for once, and once before if columns are sorted by the group index of each matrix:
//! all orders are padded to the longest. Where the source has a layout for numbers in its ranges alone, matrices are packed in
//! that one, until one has another number: then all are asked for again.

use std::sync::Arc;

use quantloom_dsl::experts::{ExpertProduct, OperandOf};
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Activation, Scheme};

use super::input::{Inputs, one_each, shared_by};
use crate::column_order::{Arrangement, ColumnOrder};
use crate::experts::{ExpertError, ExpertSource, ExpertsNotScheduled, InputScales};
use crate::gpu::executor::Executor;
use crate::gpu::native::NativeBuffer;
use crate::gpu::products::{ParamRange, Products, Request};
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
    /// See [`Request::scales_in_range`]: of all matrices, which are in the layout for these then.
    scales_in_range: bool,
    /// Which matrices read the same rows of x.
    pub(super) operand: OperandOf,
    constants: Vec<(BufferRole, Arc<M>)>,
}

impl<M> Stack<M> {
    /// What is asked of the source of kernels: the dense product of one matrix.
    pub(super) fn request<'s>(&'s self, target: &'s str) -> Request<'s> {
        Request {
            scheme: &self.scheme,
            activation: &self.activation,
            input_dtype: self.element,
            target,
            n: self.shape.n,
            k: self.columns,
            x_columns: self.shape.k,
            scales_in_range: self.scales_in_range,
            layout_of_range: self.scales_in_range,
        }
    }

    /// The same stack, with the same memory.
    pub(super) fn shared(&self) -> Self {
        Self {
            scheme: self.scheme.clone(),
            activation: self.activation.clone(),
            constants: self.constants.clone(),
            ..*self
        }
    }

    /// Bytes of a matrix in its constant buffers, of what the source of kernels makes for this stack's request.
    pub(super) fn bytes_of_matrix(&self, source: &dyn Products, request: &Request<'_>) -> u64 {
        let shape = Shape { k: request.k, ..self.shape };
        let parts = source.native(request).unwrap_or_default();
        parts.iter().filter_map(|part| part.bytes(shape)).sum()
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

/// An order of columns that kernels want.
struct Arranged {
    arrangement: Arrangement,
    /// Of each matrix, `[expert][shard]`; of the first one alone if all are the same.
    orders: Vec<ColumnOrder>,
}

impl Arranged {
    /// That of a matrix.
    fn of(&self, matrix: usize) -> Option<&ColumnOrder> {
        self.orders.get(matrix).or_else(|| self.orders.first())
    }
}

/// A buffer that is being packed: all types of x for which it is the same share it.
struct Packed {
    /// Its order of columns, by its place among the orders.
    order: Option<usize>,
    native: NativeBuffer,
    bytes: Vec<u8>,
}

/// A type of x that kernels take, and its buffers by their places.
struct Candidate {
    activation: Activation,
    element: FloatFormat,
    order: Option<usize>,
    columns: u64,
    rounded: FloatFormat,
    param_ranges: Vec<ParamRange>,
    /// Whether its buffers are those for numbers in these ranges alone.
    of_range: bool,
    parts: Vec<usize>,
}

/// Types of x whose layouts do not take a number of a matrix.
struct OutOfRange(Vec<FloatFormat>);

/// A product's buffers while its matrices are read.
struct Packing<'s> {
    scheme: &'s Scheme,
    orders: Vec<Arranged>,
    /// Matrices that have been packed.
    matrices: usize,
    packed: Vec<Packed>,
    candidates: Vec<Candidate>,
    refused: Vec<(FloatFormat, Refusal)>,
}

impl<M> Stacks<M> {
    /// Packs and uploads all matrices of a product.
    ///
    /// # Errors
    /// A matrix of another shape or scheme, or what the source or the device says.
    pub(super) fn new<E: Executor<Memory = M>>(
        executor: &E,
        weights: &dyn ExpertSource,
        sizes: Sizes,
        input_scales: InputScales,
    ) -> Result<Self, ExpertError> {
        let mut any = Vec::new();
        loop {
            match Self::packed(executor, weights, (sizes, input_scales), &any)? {
                Ok(stacks) => return Ok(stacks),
                Err(OutOfRange(elements)) => any.extend(elements),
            }
        }
    }

    /// The same, with x of some types (`any`) in the layout for any numbers.
    fn packed<E: Executor<Memory = M>>(
        executor: &E,
        weights: &dyn ExpertSource,
        (sizes, input_scales): (Sizes, InputScales),
        any: &[FloatFormat],
    ) -> Result<Result<Self, OutOfRange>, ExpertError> {
        let scheme = weights.scheme(sizes.product).clone();
        let mut orders = wanted(executor, (&scheme, any), sizes.shape);
        let matrix = |(expert, shard)| {
            let matrix = weights.matrix(sizes.product, expert, shard)?;
            sizes.check(&scheme, (expert, shard), &matrix)?;
            Ok::<_, ExpertError>(matrix)
        };
        if orders.iter().any(|of| of.arrangement.indexed) && scheme.index.is_some() {
            for place in sizes.matrices() {
                let matrix = matrix(place)?;
                orders.iter_mut().for_each(|of| of.add(&matrix));
            }
            orders.iter_mut().for_each(Arranged::settle);
        }
        let mut packing: Option<Packing<'_>> = None;
        let mut given = Vec::new();
        for place in sizes.matrices() {
            let matrix = matrix(place)?;
            given.push(matrix.input(0));
            let packing = match &mut packing {
                Some(packing) => packing,
                none => {
                    orders
                        .iter_mut()
                        .filter(|of| of.orders.is_empty())
                        .for_each(|of| of.add(&matrix));
                    let orders = std::mem::take(&mut orders);
                    none.insert(Packing::new(executor, (&scheme, any), (sizes.shape, orders))?)
                }
            };
            if let Err(out) = packing.add(&matrix)? {
                return Ok(Err(out));
            }
        }
        let Some(packing) = packing else {
            return Ok(Ok(Self { stacks: Vec::new(), refused: Vec::new() }));
        };
        let given = Inputs::new(&scheme, input_scales, given, sizes.shards as usize);
        packing.uploaded(executor, sizes, &given).map(Ok)
    }
}

/// The orders of columns that kernels want for the types of x, none of a matrix yet.
fn wanted<E: Executor>(
    executor: &E,
    (scheme, any): (&Scheme, &[FloatFormat]),
    shape: Shape,
) -> Vec<Arranged> {
    let mut wanted: Vec<Arranged> = Vec::new();
    for (activation, own) in inputs(scheme) {
        let request = dense(executor, (scheme, any), (&activation, own), shape);
        let Ok(Some(arrangement)) = executor.source().arrangement(&request) else { continue };
        if wanted.iter().all(|known| known.arrangement != arrangement) {
            wanted.push(Arranged { arrangement, orders: Vec::new() });
        }
    }
    wanted
}

/// What is asked of the source of kernels for a matrix whose columns are as they are stored, in the layout for numbers in its ranges, or
/// for `any`.
fn dense<'a, E: Executor>(
    executor: &'a E,
    (scheme, any): (&'a Scheme, &[FloatFormat]),
    (activation, own): (&'a Activation, FloatFormat),
    shape: Shape,
) -> Request<'a> {
    Request {
        layout_of_range: !any.contains(&own),
        ..Request::new(scheme, activation, own, executor.target(), [shape.n, shape.k])
    }
}

impl Arranged {
    /// Adds the order of the next matrix.
    fn add(&mut self, matrix: &Unpacked) {
        self.orders.push(ColumnOrder::of(&self.arrangement, matrix));
    }

    /// Pads all orders to the longest, and keeps one if all are the same.
    fn settle(&mut self) {
        let longest = self.orders.iter().map(|order| order.columns().len()).max().unwrap_or(0);
        self.orders.iter_mut().for_each(|order| order.pad(longest));
        if shared_by(&self.orders, 1) == OperandOf::Row {
            self.orders.truncate(1);
        }
    }
}

impl Sizes {
    /// The places of all matrices: expert and shard.
    fn matrices(self) -> impl Iterator<Item = (u32, u32)> {
        (0..self.experts).flat_map(move |expert| (0..self.shards).map(move |shard| (expert, shard)))
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
    /// What kernels read of the matrices, for each type of x.
    fn new<E: Executor>(
        executor: &E,
        (scheme, any): (&'s Scheme, &[FloatFormat]),
        (shape, orders): (Shape, Vec<Arranged>),
    ) -> Result<Self, ExpertError> {
        let (packed, candidates, refused) = (Vec::new(), Vec::new(), Vec::new());
        let mut this = Self { scheme, orders, matrices: 0, packed, candidates, refused };
        for (activation, own) in inputs(scheme) {
            if this.candidates.iter().any(|known| known.element == own) {
                continue;
            }
            let request = dense(executor, (scheme, any), (&activation, own), shape);
            if let Err(refusal) = this.candidate(executor, request) {
                this.refused.push((own, refusal));
            }
        }
        Ok(this)
    }

    fn candidate<E: Executor>(
        &mut self,
        executor: &E,
        request: Request<'_>,
    ) -> Result<(), Refusal> {
        let source = executor.source();
        let order = source.arrangement(&request)?.and_then(|arrangement| {
            self.orders.iter().position(|known| known.arrangement == arrangement)
        });
        let first = order.and_then(|at| self.orders[at].of(0));
        let columns = first.map_or(request.k, |order| order.columns().len() as u64);
        let request = Request { k: columns, ..request };
        let native = source.native(&request)?;
        // What cannot be made of x is refused now.
        source.operand(&request, None)?;
        let (rounded, param_ranges) = (source.rounds_x(&request)?, source.param_ranges(&request)?);
        let for_any = Request { layout_of_range: false, ..request };
        let same = || source.native(&for_any).is_ok_and(|of_any| of_any == native);
        let of_range = request.layout_of_range && !same();
        let place = |native: NativeBuffer| {
            let same = |known: &Packed| known.order == order && known.native == native;
            let known = self.packed.iter().position(same);
            known.unwrap_or_else(|| {
                self.packed.push(Packed { order, native, bytes: Vec::new() });
                self.packed.len() - 1
            })
        };
        let parts = native.into_iter().map(place).collect();
        let (activation, element) = (request.activation.clone(), request.input_dtype);
        self.candidates.push(Candidate {
            activation,
            element,
            order,
            columns,
            rounded,
            param_ranges,
            of_range,
            parts,
        });
        Ok(())
    }

    /// Packs the next matrix behind those before, unless it has numbers that a layout does not take.
    fn add(&mut self, matrix: &Unpacked) -> Result<Result<(), OutOfRange>, ExpertError> {
        let mut out = Vec::new();
        for (at, Packed { order, native, bytes }) in self.packed.iter_mut().enumerate() {
            let order = order.and_then(|at| self.orders[at].of(self.matrices));
            let own = native.pack(matrix, order)?;
            let readers = self.candidates.iter().filter(|of| of.of_range && of.parts.contains(&at));
            for candidate in readers {
                let mut ranges = candidate.param_ranges.iter();
                if ranges.any(|range| range.buffer == native.role && !range.holds(&own)) {
                    out.push(candidate.element);
                }
            }
            bytes.extend(own);
            if bytes.len() as u64 > MOST_BYTES {
                let (buffer, most) = (native.role, MOST_BYTES);
                return Err(ExpertsNotScheduled::Bytes { buffer, most }.into());
            }
        }
        self.matrices += 1;
        Ok(if out.is_empty() { Ok(()) } else { Err(OutOfRange(out)) })
    }

    fn uploaded<E: Executor>(
        self,
        executor: &E,
        sizes: Sizes,
        given: &Inputs,
    ) -> Result<Stacks<E::Memory>, ExpertError> {
        let (shape, shards) = (sizes.shape, sizes.shards as usize);
        // One kind of operand for all types of x: the one that every order and static parameter allows.
        let orders = self.orders.iter().map(|of| shared_by(&of.orders, shards));
        let operand = orders.fold(given.shared_by(), OperandOf::max);
        let upload = |bytes: &[u8]| {
            let memory = executor.upload(bytes);
            memory.map(Arc::new).map_err(ExpertError::product)
        };
        let of_operands = |of: &Arranged| {
            let all: Vec<&ColumnOrder> = (0..self.matrices).filter_map(|at| of.of(at)).collect();
            let each = one_each(&all, shards, operand).into_iter();
            upload(&each.flat_map(|order| order.bytes()).collect::<Vec<u8>>())
        };
        let orders = self.orders.iter().map(of_operands);
        let orders: Vec<Arc<E::Memory>> = orders.collect::<Result<_, _>>()?;
        let in_range = |candidate: &Candidate| {
            let held = |range: &ParamRange| {
                let mut parts = candidate.parts.iter().map(|&at| &self.packed[at]);
                let part = parts.find(|part| part.native.role == range.buffer);
                part.is_some_and(|part| range.holds(&part.bytes))
            };
            !candidate.param_ranges.is_empty() && candidate.param_ranges.iter().all(held)
        };
        let in_range: Vec<bool> = self.candidates.iter().map(in_range).collect();
        let mut parts = Vec::new();
        for Packed { native, bytes, .. } in self.packed {
            parts.push((native.role, upload(&bytes)?));
        }
        let mut inputs = Vec::new();
        for (role, bytes) in given.buffers(operand) {
            inputs.push((role, upload(&bytes)?));
        }
        let scheme = Arc::new(self.scheme.clone());
        let stack = |(candidate, scales_in_range): (Candidate, bool)| {
            let Candidate { activation, element, order, columns, rounded, parts: own, .. } =
                candidate;
            let order = order.map(|at| (BufferRole::ColumnOrder, orders[at].clone()));
            let own = own.into_iter().map(|at| parts[at].clone());
            let constants = own.chain(order).chain(inputs.iter().cloned()).collect();
            let scheme = scheme.clone();
            Stack {
                scheme,
                activation,
                element,
                shape,
                columns,
                rounded,
                scales_in_range,
                operand,
                constants,
            }
        };
        let stacks = self.candidates.into_iter().zip(in_range).map(stack).collect();
        Ok(Stacks { stacks, refused: self.refused })
    }
}
