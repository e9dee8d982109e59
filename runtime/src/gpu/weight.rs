//! A prepared weight on a GPU: the operation that an engine holds.
//!
//! In: an unpacked layer, or a checkpoint's own bytes, and an executor; then activations. Out:
//! products. [`GpuWeight::new`] packs and uploads once per type of x, [`GpuWeight::of_stored`]
//! uploads what is stored and transforms it there; a product chooses the kernel for its M, cuts M
//! into the pieces that it takes, and launches. For work that stays on the device (timing, an
//! engine's own memory), [`GpuWeight::tensors`] and [`GpuWeight::queue`] are the two halves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number};
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::{Activation, Quantiser, Scheme};

use super::executor::{Executor, Slot};
use super::experts::GpuExperts;
use super::native::{ColumnOrder, NativePart};
use super::products::{Choice, Request};
use super::saved::{SavedError, buffer_name};
use super::stored::{Filled, Source, Stored, packed, transformed};
use crate::buffer::Workspace;
use crate::device::Backend;
use crate::element::{Bf16, F16 as Half, Values, ValuesMut, bf16_to_f32, f16_to_f32};
use crate::op::{self, Op, ProductError, Sums};
use crate::source::{Access, KernelKey, ParameterKind, Problem, Refusal};
use crate::unpacked::Unpacked;

/// A device that products run on through an executor.
pub struct GpuDevice<E>(Arc<E>);

impl<E: Executor> GpuDevice<E> {
    /// The device of an executor.
    pub fn new(executor: E) -> Self {
        Self(Arc::new(executor))
    }

    /// Its executor.
    pub fn executor(&self) -> &E {
        &self.0
    }

    /// Packs a weight for products as `scheme` says (that of the weight, or with another
    /// activation), once for each type of x that kernels take.
    ///
    /// # Errors
    /// [`ProductError::Scheme`], [`ProductError::NotScheduled`], or what the device says.
    pub fn prepare(
        &self,
        scheme: &Scheme,
        weight: &Unpacked,
    ) -> Result<GpuWeight<E>, ProductError> {
        GpuWeight::new(self.0.clone(), scheme, weight)
    }

    /// The same from a checkpoint's own bytes, which kernels on the device bring into place.
    ///
    /// # Errors
    /// See [`GpuWeight::of_stored`].
    pub fn prepare_stored(
        &self,
        scheme: &Scheme,
        shape: Shape,
        stored: Stored<'_, '_>,
    ) -> Result<GpuWeight<E>, ProductError> {
        GpuWeight::of_stored(self.0.clone(), scheme, shape, stored)
    }

    /// A weight that [`GpuWeight::save`] wrote.
    ///
    /// # Errors
    /// See [`GpuWeight::load`].
    pub fn load(
        &self,
        scheme: &Scheme,
        shape: Shape,
        path: &Path,
    ) -> Result<GpuWeight<E>, SavedError> {
        GpuWeight::load(self.0.clone(), scheme, shape, path)
    }
}

impl<E: Executor + 'static> Backend for GpuDevice<E> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn prepare(&self, scheme: &Scheme, weight: &Unpacked) -> Result<Box<dyn Op>, ProductError> {
        if scheme.experts.is_some() {
            return Ok(Box::new(GpuExperts::new(self, scheme, weight)?));
        }
        Ok(Box::new(self.prepare(scheme, weight)?))
    }

    fn prepare_stored(
        &self,
        scheme: &Scheme,
        weight: &Unpacked,
        stored: Stored<'_, '_>,
    ) -> Result<Box<dyn Op>, ProductError> {
        if scheme.experts.is_some() {
            return Backend::prepare(self, scheme, weight);
        }
        op::same_weight(scheme, weight)?;
        Ok(Box::new(self.prepare_stored(scheme, weight.shape(), stored)?))
    }
}

/// A weight in the memory of a GPU, with all that its products need.
pub struct GpuWeight<E: Executor> {
    executor: Arc<E>,
    scheme: Scheme,
    shape: Shape,
    /// By type of x, in the scheme's order.
    products: Vec<Product<E::Memory>>,
    /// Activations that no kernel takes, and why.
    refused: Vec<(String, Refusal)>,
    /// Columns of w as products take them.
    columns: u64,
    /// What belongs to x and is known beforehand, by the names of buffers.
    given: BTreeMap<String, Arc<E::Memory>>,
}

/// The products of one type of x.
struct Product<M> {
    activation: Activation,
    element: FloatFormat,
    /// Type of y.
    output: FloatFormat,
    /// What makes of x what the products read.
    operand: Vec<KernelKey>,
    /// Products of several types share the parts that are alike.
    parts: Vec<Arc<Part<M>>>,
    /// By M.
    choices: Mutex<BTreeMap<u64, Choice>>,
}

/// A constant buffer on the device.
struct Part<M> {
    native: NativePart,
    memory: M,
    bytes: u64,
    /// How it was filled, where that is no matter of course.
    note: Option<String>,
}

/// x, y and what lies between them on the device.
pub struct Tensors<E: Executor> {
    element: FloatFormat,
    problem: Problem,
    /// In the order of their launches; the last one is the product.
    kernels: Vec<E::Kernel>,
    /// By the names of buffers.
    memory: BTreeMap<String, E::Memory>,
}

/// What belongs to a layer and not to its weight: where columns go, and what is known of x.
#[derive(Default)]
pub(super) struct Given {
    /// Their bytes, by the names of buffers.
    pub(super) buffers: BTreeMap<String, Vec<u8>>,
}

impl Given {
    /// The buffer of the columns' order, u32.
    pub(super) const ORDER: &str = "order";
    const ZERO: &str = "input_zero";

    fn scale(level: usize) -> String {
        format!("input_scale_{level}")
    }

    fn of(weight: &Unpacked, order: Option<&ColumnOrder>) -> Self {
        let floats = |values: &[f64]| -> Vec<u8> {
            values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect()
        };
        let scales = weight.input().scales.iter().enumerate();
        let scales = scales.map(|(level, values)| (Self::scale(level), floats(values)));
        let zeros = (Self::ZERO.to_owned(), floats(&weight.input().zeros));
        let order = order.map_or(&[][..], ColumnOrder::columns);
        let order = order.iter().flat_map(|column| column.to_le_bytes()).collect();
        let all = scales.chain([zeros, (Self::ORDER.to_owned(), order)]);
        Self { buffers: all.filter(|(_, bytes)| !bytes.is_empty()).collect() }
    }

    /// The buffers that a scheme's layers have.
    pub(super) fn names(scheme: &Scheme) -> Vec<String> {
        let levels = scheme.quantiser().map_or(0, |quantiser| quantiser.scales.len());
        let levels = (0..levels).zip(0u8..);
        let scales = levels.map(|(level, at)| (Self::scale(level), Component::InputScale(at)));
        let others = [
            (Self::ZERO.to_owned(), Component::InputZero),
            (Self::ORDER.to_owned(), Component::Index),
        ];
        let stored = |(name, component)| scheme.number(component).map(|_| name);
        scales.chain(others).filter_map(stored).collect()
    }

    /// Columns of w as products take them.
    pub(super) fn columns(&self, shape: Shape) -> u64 {
        self.buffers.get(Self::ORDER).map_or(shape.k, |order| order.len() as u64 / 4)
    }
}

/// What a source's rule gets wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the kernel's rule names the buffer `{0}`, which is none of a product's")]
struct UnknownBuffer(String);

impl<E: Executor> GpuWeight<E> {
    /// Packs and uploads an unpacked layer.
    ///
    /// # Errors
    /// See [`GpuDevice::prepare`].
    pub fn new(executor: Arc<E>, scheme: &Scheme, weight: &Unpacked) -> Result<Self, ProductError> {
        op::same_weight(scheme, weight)?;
        let order = ColumnOrder::of(weight);
        let (given, order) = (Given::of(weight, order.as_ref()), order.as_ref());
        let fill = |_: &Request<'_>, part: &NativePart| packed(&*executor, weight, order, part);
        Self::filled(&executor, scheme, weight.shape(), &given, fill)
    }

    /// Uploads the stored tensors of a layer with this packing and transforms them on the device;
    /// what no transform is scheduled for, the host packs, and all of a weight whose columns are in
    /// another order. Unlike in unpacking, the values are not
    /// looked at: a scale that is NaN makes results NaN.
    ///
    /// # Errors
    /// See [`GpuDevice::prepare`]; [`ProductError::Pack`] for a store that is missing.
    pub fn of_stored(
        executor: Arc<E>,
        scheme: &Scheme,
        shape: Shape,
        stored: Stored<'_, '_>,
    ) -> Result<Self, ProductError> {
        let mut source = Source::new(&*executor, shape, stored);
        let (given, order) = if Given::names(scheme).is_empty() {
            (Given::default(), None)
        } else {
            let weight = source.small(scheme)?;
            let order = ColumnOrder::of(weight);
            (Given::of(weight, order.as_ref()), order)
        };
        let order = order.as_ref();
        Self::filled(&executor, scheme, shape, &given, |request, part| {
            source.fill(request, order, part)
        })
    }

    pub(super) fn filled(
        executor: &Arc<E>,
        scheme: &Scheme,
        shape: Shape,
        given: &Given,
        mut fill: impl FnMut(&Request<'_>, &NativePart) -> Result<Filled<E::Memory>, ProductError>,
    ) -> Result<Self, ProductError> {
        let executor = executor.clone();
        let mut products: Vec<Product<E::Memory>> = Vec::new();
        let mut refused = Vec::new();
        let columns = given.columns(shape);
        for (activation, own) in inputs(scheme) {
            if products.iter().any(|product| product.element == own) {
                continue;
            }
            let target = executor.target();
            let (n, k, x_columns) = (shape.n, columns, shape.k);
            let request = Request { scheme, activation, own, target, n, k, x_columns };
            let source = executor.source();
            let native = source.native(&request);
            let native = native.and_then(|native| Ok((native, source.operand(&request)?)));
            let (native, operand) = match native {
                Ok(found) => found,
                Err(refusal) => {
                    refused.push((described(activation), refusal));
                    continue;
                }
            };
            let mut parts = Vec::new();
            for native in native {
                let mut known = products.iter().flat_map(|product| &product.parts);
                parts.push(match known.find(|known| known.native == native) {
                    Some(known) => known.clone(),
                    None => {
                        let Filled { memory, bytes, note } = fill(&request, &native)?;
                        Arc::new(Part { native, memory, bytes, note })
                    }
                });
            }
            let (activation, element) = (activation.clone(), own);
            let output = match scheme.output {
                Some(Number::Float(output)) => output,
                _ => own,
            };
            let choices = Mutex::default();
            products.push(Product { activation, element, output, operand, parts, choices });
        }
        if products.is_empty() {
            return Err(match refused.into_iter().next() {
                Some((_, why)) => why.into(),
                None => ProductError::NotScheduled("the scheme names no activation".to_owned()),
            });
        }
        let mut buffers = BTreeMap::new();
        for (name, bytes) in &given.buffers {
            buffers.insert(name.clone(), Arc::new(executor.upload(bytes).map_err(Into::into)?));
        }
        let (scheme, given) = (scheme.clone(), buffers);
        Ok(Self { executor, scheme, shape, products, refused, columns, given })
    }

    /// Each native buffer once: its name with the first type of x that reads it, what it holds, its
    /// memory.
    pub(super) fn buffers(&self) -> Vec<(String, &NativePart, &E::Memory)> {
        let mut buffers: Vec<(String, &NativePart, &E::Memory)> = Vec::new();
        for product in &self.products {
            for part in &product.parts {
                if buffers.iter().all(|(_, known, _)| **known != part.native) {
                    let name = buffer_name(product.element, &part.native.buffer);
                    buffers.push((name, &part.native, &part.memory));
                }
            }
        }
        buffers
    }

    /// What is known of x beforehand, by the names of buffers.
    pub(super) fn given(&self) -> impl Iterator<Item = (&str, &E::Memory)> {
        self.given.iter().map(|(name, memory)| (name.as_str(), &**memory))
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
        let mut products: Vec<Product<E::Memory>> = Vec::new();
        for product in &self.products {
            let mut parts = Vec::new();
            for part in &product.parts {
                let mut known = products.iter().flat_map(|product| &product.parts);
                parts.push(match known.find(|known| known.native == part.native) {
                    Some(known) => known.clone(),
                    None => {
                        let bytes = self.executor.download(&part.memory)?;
                        let memory = self.executor.upload(&bytes)?;
                        let (native, note) = (part.native.clone(), part.note.clone());
                        Arc::new(Part { native, memory, bytes: part.bytes, note })
                    }
                });
            }
            products.push(Product {
                activation: product.activation.clone(),
                element: product.element,
                output: product.output,
                operand: product.operand.clone(),
                parts,
                choices: Mutex::default(),
            });
        }
        Ok(Self {
            executor: self.executor.clone(),
            scheme: self.scheme.clone(),
            shape: self.shape,
            products,
            refused: self.refused.clone(),
            columns: self.columns,
            given: self.given.clone(),
        })
    }

    /// The stored tensor that holds a component, as a checkpoint has it, made on the device from
    /// what products read.
    ///
    /// # Errors
    /// [`ProductError::NotScheduled`] where products read no such component or no transform leads
    /// back, or what the device says.
    pub fn stored(&self, component: Component) -> Result<Vec<u8>, ProductError> {
        let holds = |part: &&Arc<Part<E::Memory>>| part.native.holds(component);
        let of = |product: &'_ Product<E::Memory>| product.parts.iter().find(holds).cloned();
        let found = self.products.iter().find_map(|product| Some((product, of(product)?)));
        let none = || ProductError::NotScheduled(format!("products read no `{component}`"));
        let (product, part) = found.ok_or_else(none)?;
        let request = self.request(product);
        let moves = self.executor.source().moves(&request, &part.native)?;
        let (executor, shape) = (&*self.executor, self.shape);
        let (memory, _) = transformed(executor, &moves.from_native, shape, &[&part.memory])?;
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

    /// The bytes of a constant buffer of products with a type of x, by its name. `None` if there is no
    /// such buffer.
    ///
    /// # Errors
    /// What the device says.
    pub fn buffer(&self, element: FloatFormat, name: &str) -> Result<Option<Vec<u8>>, E::Error> {
        self.downloaded(element, |part| part.buffer == name)
    }

    fn downloaded(
        &self,
        element: FloatFormat,
        wanted: impl Fn(&NativePart) -> bool,
    ) -> Result<Option<Vec<u8>>, E::Error> {
        let product = self.products.iter().find(|product| product.element == element);
        let mut parts = product.into_iter().flat_map(|product| &product.parts);
        let part = parts.find(|part| wanted(&part.native));
        part.map(|part| self.executor.download(&part.memory)).transpose()
    }

    fn request<'s>(&'s self, product: &'s Product<E::Memory>) -> Request<'s> {
        Request {
            scheme: &self.scheme,
            activation: &product.activation,
            own: product.element,
            target: self.executor.target(),
            n: self.shape.n,
            k: self.columns,
            x_columns: self.shape.k,
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
    pub fn choice(&self, element: FloatFormat, tokens: u64) -> Result<Choice, ProductError> {
        let product = self.product(element)?;
        let choices = || product.choices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(choice) = choices().get(&tokens) {
            return Ok(choice.clone());
        }
        let request = self.request(product);
        let choice = self.executor.source().choose(&request, tokens);
        let choice = choice.map_err(ProductError::from)?;
        choices().insert(tokens, choice.clone());
        Ok(choice)
    }

    /// Uploads x, at most [`Choice::tokens`] rows of it, and makes room for y and what lies between.
    ///
    /// # Errors
    /// See [`GpuWeight::choice`]; whatever the device says.
    pub fn tensors(&self, x: Values<'_>) -> Result<Tensors<E>, ProductError> {
        let tokens = op::tokens(self.shape, x.len())? as u64;
        let choice = self.choice(x.format(), tokens)?;
        self.tensors_for(&choice, x)
    }

    /// As [`GpuWeight::tensors`], for a kernel of the caller's choice, such as one to be measured.
    ///
    /// # Errors
    /// As there.
    pub fn tensors_for(&self, choice: &Choice, x: Values<'_>) -> Result<Tensors<E>, ProductError> {
        let element = x.format();
        let tokens = op::tokens(self.shape, x.len())? as u64;
        let product = self.product(element)?;
        let mut kernels = Vec::new();
        for key in product.operand.iter().chain([&choice.key]) {
            kernels.push(self.executor.kernel(key).map_err(Into::into)?);
        }
        let Shape { n, k, .. } = self.shape;
        let problem = Problem { m: tokens, n, k, multiprocessors: self.executor.multiprocessors() };
        let mut memory = BTreeMap::new();
        memory.insert(X.to_owned(), self.executor.upload(&bytes(x)).map_err(Into::into)?);
        for kernel in &kernels {
            for parameter in &self.executor.rule(kernel).parameters {
                let ParameterKind::Buffer { access, bytes, .. } = &parameter.kind else { continue };
                // A rule that gives no number here is refused by the launch, with its name.
                let bytes = bytes.of(&problem).unwrap_or(0);
                let made = match access {
                    Access::Read => continue,
                    Access::Write => self.executor.output(bytes),
                    Access::ReadWrite => self.executor.zeroed(bytes),
                };
                memory.insert(parameter.name.clone(), made.map_err(Into::into)?);
            }
        }
        Ok(Tensors { element, problem, kernels, memory })
    }

    /// Queues `y = x w^T` on the tensors of this weight, or of another one of the same scheme and
    /// shape. Allocates nothing on the device.
    ///
    /// # Errors
    /// What the device says.
    pub fn queue(&self, tensors: &mut Tensors<E>, overlap: bool) -> Result<(), E::Error> {
        let product = self.products.iter().find(|product| product.element == tensors.element);
        let parts = product.map_or(&[][..], |product| &product.parts);
        let last = tensors.kernels.len().saturating_sub(1);
        for (at, kernel) in tensors.kernels.iter().enumerate() {
            let mut memory: BTreeMap<&str, &mut E::Memory> =
                tensors.memory.iter_mut().map(|(name, memory)| (name.as_str(), memory)).collect();
            let mut slots = Vec::new();
            for parameter in &self.executor.rule(kernel).parameters {
                let ParameterKind::Buffer { access, .. } = parameter.kind else { continue };
                let name = match parameter.name.as_str() {
                    // What was made of x is the x of the product.
                    X if at == last && at > 0 => OPERAND,
                    name => name,
                };
                let part = parts.iter().find(|part| part.native.buffer == name);
                let slot = match (part, self.given.get(name), access) {
                    (Some(part), _, Access::Read) => Some(Slot::Read(&part.memory)),
                    (None, Some(given), Access::Read) => Some(Slot::Read(&**given)),
                    (None, None, Access::Read) => {
                        memory.remove(name).map(|memory| Slot::Read(memory))
                    }
                    (_, _, Access::Write | Access::ReadWrite) => {
                        memory.remove(name).map(Slot::Write)
                    }
                };
                let unknown = || Refusal::Fault(Arc::new(UnknownBuffer(parameter.name.clone())));
                slots.push(slot.ok_or_else(unknown)?);
            }
            self.executor.launch(kernel, &tensors.problem, overlap, &mut slots)?;
        }
        Ok(())
    }

    /// y, after all that was queued: [M, N] as the kernels write it, little-endian.
    ///
    /// # Errors
    /// What the device says.
    pub fn result(&self, tensors: &Tensors<E>) -> Result<Vec<u8>, E::Error> {
        let y = tensors.memory.get(Y);
        let unknown = || Refusal::Fault(Arc::new(UnknownBuffer(Y.to_owned())));
        self.executor.download(y.ok_or_else(unknown)?)
    }

    /// Bytes of codes, scales, zero points and bias that a product with this type of x reads.
    pub fn bytes(&self, element: FloatFormat) -> u64 {
        let product = self.products.iter().find(|product| product.element == element);
        product.map_or(0, |product| product.parts.iter().map(|part| part.bytes).sum())
    }

    fn product(&self, element: FloatFormat) -> Result<&Product<E::Memory>, ProductError> {
        let product = self.products.iter().find(|product| product.element == element);
        product.ok_or_else(|| self.wrong_element(element))
    }

    fn wrong_element(&self, element: FloatFormat) -> ProductError {
        let refused = self.refused.iter().find(|(name, _)| *name == element.to_string());
        if let Some((_, why)) = refused {
            return why.clone().into();
        }
        let names: Vec<String> =
            self.products.iter().map(|product| product.element.to_string()).collect();
        let kernels = names.join(" and ");
        let why = format!("x in {element}: the kernels of this weight multiply {kernels}");
        ProductError::NotScheduled(why)
    }
}

impl<E: Executor> Op for GpuWeight<E> {
    fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn kernel(&self, tokens: usize) -> String {
        let first = self.products.first().map_or(F32, |product| product.element);
        match self.choice(first, tokens as u64) {
            Ok(choice) => format!("{}, {}", choice.key.target, choice.key.schedule.name),
            Err(why) => format!("none: {why}"),
        }
    }

    fn explain(&self, tokens: usize) -> String {
        let chosen =
            self.products.iter().map(|product| match self.choice(product.element, tokens as u64) {
                Ok(choice) => format!("{} is chosen, {}", choice.key, choice.by),
                Err(why) => format!("x in {}: {why}", product.element),
            });
        let refused =
            self.refused.iter().map(|(activation, why)| format!("x in {activation}: {why}"));
        let parts = self.products.iter().flat_map(|product| &product.parts);
        let filled: BTreeSet<String> = parts.filter_map(|part| part.note.clone()).collect();
        chosen.chain(refused).chain(filled).collect::<Vec<_>>().join("\n")
    }

    fn sums(&self, _tokens: usize) -> Sums {
        Sums::Matrix
    }

    /// Kernels round y to the scheme's type, or that of x.
    fn rounded_to(&self, x: FloatFormat, y: FloatFormat) -> FloatFormat {
        match self.product(x) {
            Ok(product) if y == F32 => product.output,
            _ => y,
        }
    }

    /// None: memory is the device's.
    fn workspace_size(&self, _tokens: usize) -> usize {
        0
    }

    fn matmul_into(
        &self,
        expert: u64,
        x: Values<'_>,
        mut y: ValuesMut<'_>,
        _workspace: &mut Workspace,
    ) -> Result<(), ProductError> {
        let tokens = op::sizes(self.shape, expert, x, &y)?;
        let (own, asked) = (x.format(), y.format());
        let output = self.product(own)?.output;
        if asked != F32 && asked != output {
            let why = format!("y in {asked} for x in {own}: kernels round y to {output}");
            return Err(ProductError::NotScheduled(why));
        }
        if tokens == 0 {
            return Ok(());
        }
        let most = usize::try_from(self.choice(own, tokens as u64)?.tokens).unwrap_or(usize::MAX);
        let k = self.shape.k as usize;
        if tokens > most && self.scheme.quantiser().is_some_and(Quantiser::spans_tokens) {
            let why = format!("{tokens} tokens that share a scale: a launch takes {most}");
            return Err(ProductError::NotScheduled(why));
        }
        let mut result: Vec<u8> = Vec::new();
        for first in (0..tokens).step_by(most.max(1)) {
            let last = tokens.min(first.saturating_add(most));
            let mut tensors = self.tensors(x.part(first * k..last * k))?;
            self.queue(&mut tensors, false).map_err(Into::into)?;
            result.extend(self.result(&tensors).map_err(Into::into)?);
        }
        store(&result, output, &mut y);
        Ok(())
    }
}

/// The user's x, and the y of a product.
const X: &str = "x";
const Y: &str = "y";
/// What kernels make of x.
const OPERAND: &str = "operand";

/// What x may come as: the types of floats, and those that may be quantised.
fn inputs(scheme: &Scheme) -> impl Iterator<Item = (&Activation, FloatFormat)> {
    let types = |activation: &Activation| match activation {
        Activation::Float(Number::Float(format)) => vec![*format],
        Activation::Float(_) => Vec::new(),
        Activation::Quantised(_) => vec![BF16, F16, F32],
    };
    scheme
        .activations
        .iter()
        .flat_map(move |activation| types(activation).into_iter().map(move |own| (activation, own)))
}

fn described(activation: &Activation) -> String {
    match activation {
        Activation::Float(number) => number.to_string(),
        Activation::Quantised(quantiser) => format!("quantised {}", quantiser.code),
    }
}

/// Elements as they are.
fn bytes(x: Values<'_>) -> Vec<u8> {
    match x {
        Values::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Values::F16(values) => values.iter().flat_map(|value| value.0.to_le_bytes()).collect(),
        Values::Bf16(values) => values.iter().flat_map(|value| value.0.to_le_bytes()).collect(),
    }
}

/// Results as they are, or widened.
fn store(result: &[u8], output: FloatFormat, y: &mut ValuesMut<'_>) {
    let halves = || result.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    match y {
        ValuesMut::F32(y) if output == F32 => {
            for (y, bytes) in y.iter_mut().zip(result.chunks_exact(4)) {
                *y = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        ValuesMut::F32(y) => {
            let widen = if output == F16 { f16_to_f32 } else { bf16_to_f32 };
            for (y, bits) in y.iter_mut().zip(halves()) {
                *y = widen(bits);
            }
        }
        ValuesMut::F16(y) => {
            for (y, bits) in y.iter_mut().zip(halves()) {
                *y = Half(bits);
            }
        }
        ValuesMut::Bf16(y) => {
            for (y, bits) in y.iter_mut().zip(halves()) {
                *y = Bf16(bits);
            }
        }
    }
}
