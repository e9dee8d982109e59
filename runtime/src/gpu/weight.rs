//! A prepared weight on a GPU: what an engine holds.
//!
//! In: an unpacked layer, or a checkpoint's own bytes, and an executor. Out: constant buffers on the
//! device, and the kernels that read them. [`GpuWeight::new`] packs and uploads once per type of x,
//! [`GpuWeight::of_stored`] uploads what is stored and transforms it there. The op is in `matmul`; for
//! work that stays on the device (timing, an engine's own memory), `launch` has the two halves.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use quantloom_dsl::format::{FloatFormat, Number};
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::{Activation, INPUT_DTYPES, Scheme};

use super::executor::Executor;
use super::kept_plans::KeptPlans;
use super::native::NativeBuffer;
use super::plan::ProductPlan;
use super::products::{ChosenKernel, ParamRange, Request};
use super::saved::buffer_name;
use super::static_inputs::StaticInputs;
use super::stored::{Filled, Repacker, packed};
use super::transform::transformed;
use crate::column_order::{Arrangement, ColumnOrder};
use crate::op::{self, NotScheduled, ProductError};
use crate::source::{BufferRole, Refusal};
use crate::unpacked::Unpacked;
use crate::weight_data::Stored;

/// A weight in the memory of a GPU, with all that its products need.
pub struct GpuWeight<E: Executor> {
    pub(super) executor: Arc<E>,
    pub(super) scheme: Arc<Scheme>,
    pub(super) shape: Shape,
    /// By type of x, in the scheme's order.
    pub(super) products: Vec<PreparedProduct<E>>,
    /// What kernels do not take x of a type as, and why.
    pub(super) refused: Vec<(FloatFormat, Refusal)>,
    /// What belongs to x and is known beforehand.
    pub(super) static_inputs: Vec<(BufferRole, Arc<E::Memory>)>,
}

/// The product with x of one type: its native buffers on the device, the chosen kernels, the plans.
pub(super) struct PreparedProduct<E: Executor> {
    pub(super) activation: Activation,
    pub(super) element: FloatFormat,
    /// Type of y.
    pub(super) output: FloatFormat,
    /// The order of columns, if they do not stay as they are stored.
    pub(super) order: Option<Arc<Order<E::Memory>>>,
    /// The type to which x is rounded.
    pub(super) rounded: FloatFormat,
    /// Whether all numbers are in the source's ranges, and the constant buffers those for such numbers
    /// ([`Request::scales_in_range`], [`Request::layout_of_range`]).
    pub(super) scales_in_range: bool,
    /// Products of several types share the buffers that are alike.
    pub(super) parts: Vec<Arc<ConstantBuffer<E::Memory>>>,
    /// By M.
    choices: Mutex<BTreeMap<u64, ChosenKernel>>,
    /// By M.
    pub(super) plans: KeptPlans<u64, ProductPlan<E>>,
    /// Whether measuring at first use has failed: it is not tried again.
    pub(super) not_tuned: AtomicBool,
}

impl<E: Executor> PreparedProduct<E> {
    /// Columns of w in the order of the product, if they have one.
    fn columns(&self) -> Option<u64> {
        self.order.as_ref().map(|order| order.columns)
    }

    /// Whether all numbers of its buffers are in these ranges.
    fn is_in(&self, ranges: &[ParamRange], executor: &E) -> Result<bool, ProductError> {
        for range in ranges {
            let part = self.parts.iter().find(|part| part.native.role == range.buffer);
            let Some(part) = part else { return Ok(false) };
            if !range.holds(&executor.download(&part.memory).map_err(Into::into)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Forgets which kernels were chosen, so that the source is asked again.
    pub(super) fn forget(&self) {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.plans.clear();
    }
}

/// An order of columns on the device.
pub(super) struct Order<M> {
    pub(super) arrangement: Arrangement,
    pub(super) memory: Arc<M>,
    /// Columns of w in this order.
    pub(super) columns: u64,
}

/// Where native buffers are filled from.
pub(super) trait Filling<M> {
    /// The order of columns that products want.
    fn order(
        &mut self,
        request: &Request<'_>,
        arrangement: &Arrangement,
    ) -> Result<ColumnOrder, ProductError>;

    /// Whether scales may be in a range that a source has a layout for: asked before anything is filled for x of a type.
    fn may_be_in_range(&self, _element: FloatFormat) -> bool {
        true
    }

    /// The memory of a native buffer, its columns in that order.
    fn fill(
        &mut self,
        request: &Request<'_>,
        order: Option<&ColumnOrder>,
        part: &NativeBuffer,
    ) -> Result<Filled<M>, ProductError>;
}

/// An unpacked layer, which the host packs.
struct Packed<'w, E> {
    executor: &'w E,
    weight: &'w Unpacked,
}

impl<E: Executor> Filling<E::Memory> for Packed<'_, E> {
    fn order(
        &mut self,
        _: &Request<'_>,
        arrangement: &Arrangement,
    ) -> Result<ColumnOrder, ProductError> {
        Ok(ColumnOrder::of(arrangement, self.weight))
    }

    fn fill(
        &mut self,
        _: &Request<'_>,
        order: Option<&ColumnOrder>,
        part: &NativeBuffer,
    ) -> Result<Filled<E::Memory>, ProductError> {
        packed(self.executor, self.weight, order, part)
    }
}

/// A constant buffer on the device.
pub(super) struct ConstantBuffer<M> {
    pub(super) native: NativeBuffer,
    pub(super) memory: Arc<M>,
    bytes: u64,
    /// Why the host packed it, if the device did not.
    pub(super) note: Option<String>,
}

/// Products whose buffers are being filled.
struct Preparing<'f, E: Executor, F> {
    products: Vec<PreparedProduct<E>>,
    orders: Vec<(ColumnOrder, Arc<Order<E::Memory>>)>,
    filling: &'f mut F,
}

impl<E: Executor, F: Filling<E::Memory>> Preparing<'_, E, F> {
    /// The product of a type of x: in the layout for numbers in the source's ranges if there is one and they are, else in that for any.
    /// The inner error is the source's refusal.
    fn product(
        &mut self,
        executor: &Arc<E>,
        request: Request<'_>,
    ) -> Result<Result<PreparedProduct<E>, Refusal>, ProductError> {
        let mut spare = Vec::new();
        if self.filling.may_be_in_range(request.input_dtype) {
            let request = Request { layout_of_range: true, ..request };
            let product = match self.filled(executor, request, &spare)? {
                Ok(product) => product,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let request = Request { k: product.columns().unwrap_or(request.k), ..request };
            let ranges = executor.source().param_ranges(&request)?;
            if ranges.is_empty() {
                return Ok(Ok(product));
            }
            if product.is_in(&ranges, executor)? {
                return Ok(Ok(PreparedProduct { scales_in_range: true, ..product }));
            }
            spare = product.parts;
        }
        self.filled(executor, request, &spare)
    }

    /// The same in one layout; what is alike in another product of this order of columns, or is `spare`, is not filled again.
    fn filled(
        &mut self,
        executor: &Arc<E>,
        request: Request<'_>,
        spare: &[Arc<ConstantBuffer<E::Memory>>],
    ) -> Result<Result<PreparedProduct<E>, Refusal>, ProductError> {
        let source = executor.source();
        let arrangement = match source.arrangement(&request) {
            Ok(arrangement) => arrangement,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(arrangement) = &arrangement
            && self.orders.iter().all(|(_, known)| known.arrangement != *arrangement)
        {
            let order = self.filling.order(&request, arrangement)?;
            let memory = Arc::new(executor.upload(&order.bytes()).map_err(Into::into)?);
            let (arrangement, columns) = (arrangement.clone(), order.columns().len() as u64);
            self.orders.push((order, Arc::new(Order { arrangement, memory, columns })));
        }
        let mut known = self.orders.iter();
        let order = known.find(|(_, known)| Some(&known.arrangement) == arrangement.as_ref());
        let (order, of_columns) = order.map(|(order, known)| (order, known)).unzip();
        let request = Request { k: of_columns.map_or(request.k, |order| order.columns), ..request };
        let native = source.native(&request);
        // What cannot be made of x is refused now.
        let native = native.and_then(|native| source.operand(&request, None).map(|_| native));
        let native = match native {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut parts = Vec::new();
        let alike = |product: &&PreparedProduct<E>| {
            product.order.as_ref().map(|order| &order.arrangement) == arrangement.as_ref()
        };
        for native in native {
            let known = self.products.iter().filter(alike).flat_map(|product| &product.parts);
            let mut known = known.chain(spare.iter().filter(|_| arrangement.is_none()));
            parts.push(match known.find(|known| known.native == native) {
                Some(known) => known.clone(),
                None => {
                    let Filled { memory, bytes, note } =
                        self.filling.fill(&request, order, &native)?;
                    Arc::new(ConstantBuffer { native, memory: Arc::new(memory), bytes, note })
                }
            });
        }
        let element = request.input_dtype;
        let output = match request.scheme.output {
            Some(Number::Float(output)) => output,
            _ => element,
        };
        Ok(Ok(PreparedProduct {
            activation: request.activation.clone(),
            element,
            output,
            order: of_columns.cloned(),
            rounded: source.rounds_x(&request)?,
            scales_in_range: false,
            parts,
            choices: Mutex::default(),
            plans: KeptPlans::default(),
            not_tuned: AtomicBool::default(),
        }))
    }
}

impl<E: Executor> GpuWeight<E> {
    /// Packs and uploads an unpacked layer.
    ///
    /// # Errors
    /// See [`GpuDevice::prepare`](super::GpuDevice::prepare).
    pub fn new(executor: Arc<E>, scheme: &Scheme, weight: &Unpacked) -> Result<Self, ProductError> {
        op::same_weight(scheme, weight)?;
        let inputs = StaticInputs::of(weight);
        let mut packed = Packed { executor: &*executor, weight };
        Self::filled(&executor, scheme, weight.shape(), &inputs, &mut packed)
    }

    /// Uploads the stored tensors of a layer with this packing and transforms them on the device;
    /// what no transform is scheduled for, the host packs. Unlike in unpacking, no value is
    /// refused: a scale that is NaN makes results NaN.
    ///
    /// # Errors
    /// See [`GpuDevice::prepare`](super::GpuDevice::prepare); [`ProductError::Pack`] for a store
    /// that is missing.
    pub fn of_stored(
        executor: Arc<E>,
        scheme: &Scheme,
        shape: Shape,
        stored: Stored<'_, '_>,
    ) -> Result<Self, ProductError> {
        let mut source = Repacker::new(&*executor, shape, stored);
        let inputs = match StaticInputs::roles(scheme).is_empty() {
            true => StaticInputs::default(),
            false => StaticInputs::of(source.small(scheme)?),
        };
        Self::filled(&executor, scheme, shape, &inputs, &mut source)
    }

    pub(super) fn filled(
        executor: &Arc<E>,
        scheme: &Scheme,
        shape: Shape,
        given: &StaticInputs,
        filling: &mut impl Filling<E::Memory>,
    ) -> Result<Self, ProductError> {
        let executor = executor.clone();
        let mut preparing = Preparing { products: Vec::new(), orders: Vec::new(), filling };
        let mut refused = Vec::new();
        for (activation, own) in &inputs(scheme) {
            let own = *own;
            if preparing.products.iter().any(|product| product.element == own) {
                continue;
            }
            let request =
                Request::new(scheme, activation, own, executor.target(), [shape.n, shape.k]);
            match preparing.product(&executor, request)? {
                Ok(product) => preparing.products.push(product),
                Err(refusal) => refused.push((own, refusal)),
            }
        }
        let products = preparing.products;
        if products.is_empty() {
            return Err(match refused.into_iter().next() {
                Some((_, why)) => why.into(),
                None => NotScheduled::NoActivation.into(),
            });
        }
        let mut static_inputs = Vec::new();
        for (role, bytes) in &given.buffers {
            static_inputs.push((*role, Arc::new(executor.upload(bytes).map_err(Into::into)?)));
        }
        // From now on any stream may read it.
        executor.wait().map_err(Into::into)?;
        let scheme = Arc::new(scheme.clone());
        Ok(Self { executor, scheme, shape, products, refused, static_inputs })
    }

    /// Each native buffer once: its name with the first type of x that reads it, what it holds, its
    /// memory.
    pub(super) fn buffers(&self) -> Vec<(String, &NativeBuffer, &E::Memory)> {
        let mut buffers: Vec<(String, &Arc<ConstantBuffer<E::Memory>>)> = Vec::new();
        for product in &self.products {
            for part in &product.parts {
                if buffers.iter().all(|(_, known)| !Arc::ptr_eq(known, part)) {
                    buffers.push((buffer_name(product.element, part.native.role), part));
                }
            }
        }
        buffers.into_iter().map(|(name, part)| (name, &part.native, &*part.memory)).collect()
    }

    /// Each order of columns once: its name with the first type of x that it is for, what it is, its
    /// memory.
    pub(super) fn orders(&self) -> Vec<(String, &Arrangement, &E::Memory)> {
        let mut orders: Vec<(String, &Arrangement, &E::Memory)> = Vec::new();
        for product in &self.products {
            if let Some(order) = &product.order
                && orders.iter().all(|(_, known, _)| **known != order.arrangement)
            {
                let name = buffer_name(product.element, BufferRole::ColumnOrder);
                orders.push((name, &order.arrangement, &order.memory));
            }
        }
        orders
    }

    /// The executor.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The same weight once more, in memory of its own: timing rotates over copies.
    ///
    /// # Errors
    /// What the device says.
    pub fn copied(&self) -> Result<Self, E::Error> {
        self.copy_of(&self.products.iter().collect::<Vec<_>>(), &self.executor)
    }

    /// The same of one type of x alone, on an executor of the same device.
    pub(super) fn copied_product(
        &self,
        product: &PreparedProduct<E>,
        executor: &Arc<E>,
    ) -> Result<Self, E::Error> {
        self.copy_of(&[product], executor)
    }

    fn copy_of(
        &self,
        products: &[&PreparedProduct<E>],
        executor: &Arc<E>,
    ) -> Result<Self, E::Error> {
        let mut copied: Vec<PreparedProduct<E>> = Vec::new();
        type Copied<'p, M> = (&'p Arc<ConstantBuffer<M>>, Arc<ConstantBuffer<M>>);
        let mut copies: Vec<Copied<'_, E::Memory>> = Vec::new();
        for product in products {
            let mut parts = Vec::new();
            for part in &product.parts {
                parts.push(match copies.iter().find(|(known, _)| Arc::ptr_eq(known, part)) {
                    Some((_, copy)) => copy.clone(),
                    None => {
                        let bytes = self.executor.download(&part.memory)?;
                        let memory = Arc::new(executor.upload(&bytes)?);
                        let (native, note) = (part.native.clone(), part.note.clone());
                        let copy =
                            Arc::new(ConstantBuffer { native, memory, bytes: part.bytes, note });
                        copies.push((part, copy.clone()));
                        copy
                    }
                });
            }
            copied.push(PreparedProduct {
                activation: product.activation.clone(),
                element: product.element,
                output: product.output,
                order: product.order.clone(),
                rounded: product.rounded,
                scales_in_range: product.scales_in_range,
                parts,
                choices: Mutex::default(),
                plans: KeptPlans::default(),
                not_tuned: AtomicBool::default(),
            });
        }
        Ok(Self {
            executor: executor.clone(),
            scheme: self.scheme.clone(),
            shape: self.shape,
            products: copied,
            refused: self.refused.clone(),
            static_inputs: self.static_inputs.clone(),
        })
    }

    /// The stored tensor that holds a component, as a checkpoint has it, made on the device from
    /// what products read.
    ///
    /// # Errors
    /// [`ProductError::NotScheduled`] where products read no such component or no transform leads
    /// back, or what the device says.
    pub fn stored(&self, component: Component) -> Result<Vec<u8>, ProductError> {
        let holds = |part: &&Arc<ConstantBuffer<E::Memory>>| part.native.holds(component);
        let of = |product: &'_ PreparedProduct<E>| product.parts.iter().find(holds).cloned();
        let found = self.products.iter().find_map(|product| Some((product, of(product)?)));
        let none = || NotScheduled::NoComponent(component);
        let (product, part) = found.ok_or_else(none)?;
        let request = self.request(product);
        let moves = self.executor.source().repack_kernels(&request, &part.native)?;
        let (executor, shape) = (&*self.executor, self.shape);
        // SAFETY: the source's own key for this buffer of the request.
        let (memory, _) =
            unsafe { transformed(executor, &moves.from_native, shape, &[&part.memory]) }?;
        executor.download(&memory).map_err(Into::into)
    }

    /// The bytes that products read of a component with a type of x: codes, scales or zero points in
    /// the native layout. `None` if there are none.
    ///
    /// # Errors
    /// What the device says.
    pub fn native(
        &self,
        element: FloatFormat,
        component: Component,
    ) -> Result<Option<Vec<u8>>, E::Error> {
        self.downloaded(element, |part| part.holds(component))
    }

    /// The bytes of a constant buffer of products with a type of x. `None` if there is no such buffer.
    ///
    /// # Errors
    /// What the device says.
    pub fn buffer(
        &self,
        element: FloatFormat,
        role: BufferRole,
    ) -> Result<Option<Vec<u8>>, E::Error> {
        self.downloaded(element, |part| part.role == role)
    }

    fn downloaded(
        &self,
        element: FloatFormat,
        wanted: impl Fn(&NativeBuffer) -> bool,
    ) -> Result<Option<Vec<u8>>, E::Error> {
        let product = self.products.iter().find(|product| product.element == element);
        let mut parts = product.into_iter().flat_map(|product| &product.parts);
        let part = parts.find(|part| wanted(&part.native));
        part.map(|part| self.executor.download(&part.memory)).transpose()
    }

    pub(super) fn request<'s>(&'s self, product: &'s PreparedProduct<E>) -> Request<'s> {
        Request {
            scheme: &self.scheme,
            activation: &product.activation,
            input_dtype: product.element,
            target: self.executor.target(),
            n: self.shape.n,
            k: product.columns().unwrap_or(self.shape.k),
            x_columns: self.shape.k,
            scales_in_range: product.scales_in_range,
            layout_of_range: product.scales_in_range,
        }
    }

    /// What is asked of the source of kernels for x of a type.
    ///
    /// # Errors
    /// No product of that type.
    pub fn asked(&self, element: FloatFormat) -> Result<Request<'_>, ProductError> {
        Ok(self.request(self.product(element)?))
    }

    /// The kernel for M tokens of a type.
    ///
    /// # Errors
    /// No product of that type, or no kernel for so many tokens.
    pub fn choice(&self, element: FloatFormat, tokens: u64) -> Result<ChosenKernel, ProductError> {
        let product = self.product(element)?;
        let choices = || product.choices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(choice) = choices().get(&tokens) {
            return Ok(choice.clone());
        }
        let request = self.request(product);
        let choice = self.executor.source().choose(&request, tokens);
        let choice = choice.map_err(ProductError::from)?;
        let choice = self.tuned_at_first_use(product, tokens, choice);
        choices().insert(tokens, choice.clone());
        Ok(choice)
    }

    /// Bytes of codes, scales, zero points and bias that a product with this type of x reads.
    pub fn bytes(&self, element: FloatFormat) -> u64 {
        let product = self.products.iter().find(|product| product.element == element);
        product.map_or(0, |product| product.parts.iter().map(|part| part.bytes).sum())
    }

    pub(super) fn product(
        &self,
        element: FloatFormat,
    ) -> Result<&PreparedProduct<E>, ProductError> {
        let product = self.products.iter().find(|product| product.element == element);
        product.ok_or_else(|| self.wrong_element(element))
    }

    fn wrong_element(&self, element: FloatFormat) -> ProductError {
        let refused = self.refused.iter().find(|(own, _)| *own == element);
        if let Some((_, why)) = refused {
            return why.clone().into();
        }
        let known = self.products.iter().map(|product| product.element).collect();
        NotScheduled::TypeOfX { x: element, known }.into()
    }
}

/// Each type of x with what it may be taken as, best first; those types first that the scheme lists.
pub(super) fn inputs(scheme: &Scheme) -> Vec<(Activation, FloatFormat)> {
    let listed = scheme.activations.iter().filter_map(|activation| match activation {
        Activation::Float(Number::Float(format)) => Some(*format),
        _ => None,
    });
    let first = if scheme.quantiser().is_some() { &INPUT_DTYPES[..] } else { &[] };
    let mut types = Vec::new();
    for own in first.iter().copied().chain(listed).chain(INPUT_DTYPES) {
        if !types.contains(&own) {
            types.push(own);
        }
    }
    let taken = types.into_iter().filter_map(|own| scheme.activation_for(own));
    let each = taken.flat_map(|taken| {
        let all = [taken.activation.clone()].into_iter().chain(taken.narrower(scheme));
        all.map(move |activation| (activation, taken.own))
    });
    each.collect()
}
