//! An expert layer in an engine's memory, with a driver whose kernels all add words.
//!
//! The layer has 2 experts of 64 x 64 in bf16, of which a token has 1, so that a row of x is 32 words:
//! `order` = ids + router weights, z = x + w of the first product, h = z + z, parts = h + w of the second
//! product, y = parts + shared.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{BF16, Number};
use quantloom_dsl::layout::Shape;
use quantloom_runtime::driver::{
    Context, DeviceBuffer, DeviceSlice, DeviceSliceMut, DriverError, DriverExecutor, ExpertSlices,
    RoutedSlices, Stream,
};
use quantloom_runtime::experts::{ExpertMatrices, ExpertOptions};
use quantloom_runtime::gpu::{
    Arrangement, ChosenKernel, ExpertKernels, ExpertRequest, GpuDevice, NativeBuffer, PlanKey,
    Products, Request, RoutedBy, Stacked, StackedChoice, Trusted,
};
use quantloom_runtime::source::{
    Access, BufferRole, Count, KernelKey, KernelSource, KernelText, LaunchRule, Parameter, Refusal,
    Schedule, Work,
};
use quantloom_runtime::unpacked::Unpacked;

use crate::scenarios::{Call, Engine, Fake, print_result};
use crate::sources::{Sums, key, scheme, text};

/// How many threads ask for a text now, and the most that did at once.
static ASKING: (Mutex<[u32; 2]>, Condvar) = (Mutex::new([0; 2]), Condvar::new());

/// Waits until two threads have asked for a text at once, but not for ever.
fn asked_for() {
    let (counts, changed) = &ASKING;
    let mut counts = counts.lock().unwrap();
    counts[0] += 1;
    counts[1] = counts[1].max(counts[0]);
    changed.notify_all();
    let alone = |counts: &mut [u32; 2]| counts[1] < 2;
    let (mut counts, _) =
        changed.wait_timeout_while(counts, Duration::from_secs(5), alone).unwrap();
    counts[0] -= 1;
}

/// The kernels of the layer.
pub(crate) struct LayerKernels<D>(pub(crate) PhantomData<D>);

/// The text of a kernel: with `shared` the gate adds z to itself and the sum of experts shared ones, else both add x, so that no kernel
/// reads a buffer twice.
pub(crate) fn layer_text<D: Fake>(key: &KernelKey, shared: bool) -> KernelText<'static> {
    use BufferRole::{Codes, Hidden, Ids, Order, Parts, RouterWeights, Shared, Summed, X, Y};
    let (roles, words) = match key.work {
        Work::Order => ([Ids, RouterWeights, Order], Count::M),
        Work::Gate { .. } => ([Summed, if shared { Summed } else { X }, Hidden], Count::M * 32),
        Work::Combine { .. } => ([Parts, if shared { Shared } else { X }, Y], Count::M * 32),
        _ => ([X, Codes, Y], Count::M * 32),
    };
    let [a, b, c] = roles;
    let bytes = || words.clone() * 4;
    let parameters = vec![
        Parameter::of(a, Access::Read, bytes()),
        Parameter::of(b, Access::Read, bytes()),
        Parameter::of(c, Access::Write, bytes()),
        Parameter::size("n", words.clone()),
    ];
    let rule = LaunchRule::plain(1, 256, parameters);
    KernelText { rule: Cow::Owned(rule), ..text::<D>() }
}

impl<D: Fake> KernelSource for LayerKernels<D> {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        asked_for();
        Ok(layer_text::<D>(key, true))
    }
}

impl<D: Fake> Products for LayerKernels<D> {
    fn operand(&self, _: &Request<'_>, _: Option<&KernelKey>) -> Result<Vec<KernelKey>, Refusal> {
        Ok(Vec::new())
    }

    fn arrangement(&self, _: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Ok(None)
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        Sums::<D>(PhantomData).native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<ChosenKernel, Refusal> {
        Sums::<D>(PhantomData).choose(request, tokens)
    }

    /// Two tokens a launch, and no gate in a product.
    fn choose_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        tokens: u64,
    ) -> Result<StackedChoice, Refusal> {
        if stacked.gate.is_some() {
            return Err(Refusal::NotPacked(Box::new(key(request.target))));
        }
        let choice = self.choose(request, tokens)?;
        let choice = ChosenKernel { tokens: 2, ..choice };
        Ok(StackedChoice { choice, slots: 8, groups_pairs: false })
    }

    fn expert_kernels(
        &self,
        request: &ExpertRequest<'_>,
        _: u64,
        _: u64,
    ) -> Result<ExpertKernels, Refusal> {
        let own = Number::Float(request.input_dtype);
        let kernel = |work| KernelKey {
            work,
            schedule: Schedule::new("experts", []),
            ..key(request.target)
        };
        Ok(ExpertKernels {
            route: kernel(Work::Route(request.layer.routing)),
            order: vec![kernel(Work::Order)],
            weigh: kernel(Work::WeighRows { own }),
            gate: kernel(Work::Gate { gate: request.layer.gate, own }),
            combine: kernel(Work::Combine { parts: own, own, output: own }),
            most_rows: 1 << 20,
        })
    }
}

/// A matrix whose first word of codes is this number.
pub(crate) fn matrix(first: u8) -> Unpacked {
    let codes: Vec<u8> = (0..64 * 64 / 2).map(|at| if at == 0 { first } else { 0 }).collect();
    let scales = [0x80, 0x3f].repeat(64);
    let stored = |name: &str| Some(if name.contains("scale") { &scales[..] } else { &codes[..] });
    Unpacked::new(&scheme(), Shape::matrix(64, 64), &stored).unwrap()
}

/// Three tokens in two chunks, captured, and replayed with other x and other experts.
pub(crate) fn layer<D: Fake>() -> Result<(), DriverError> {
    let context = Context::<D>::new(0)?;
    let stream = Stream::new(&context)?;
    // SAFETY: the stream exists as long as the scenario; the text does what its rule says.
    let executor = unsafe {
        let stream = Stream::from_raw(stream.context(), stream.as_raw());
        DriverExecutor::on(stream, Trusted::new(Arc::new(LayerKernels::<D>(PhantomData))))?
    };
    let of: ExpertLayer = "2 experts of 64 x 64, top 1, softmax, ungated relu2".parse().unwrap();
    let gate_up = vec![vec![matrix(3)], vec![matrix(4)]];
    let matrices = ExpertMatrices::new(gate_up, vec![matrix(5), matrix(6)]).unwrap();
    let device = GpuDevice::new(executor);
    let layer = device.prepare_layer(&of, &matrices, &ExpertOptions::default()).unwrap();
    let (element, output, routed) = (BF16, BF16, RoutedBy::Chosen);
    let plan =
        layer.plan(PlanKey { element, output, tokens: 3, routed, shared: Some(BF16) }).unwrap();
    println!("{} launches, workspace {:?}", plan.launches(), plan.workspace());
    let most = ASKING.0.lock().unwrap()[1];
    println!("kernels are compiled at once: {}", most > 1);
    let words = |first: u32| -> Vec<u32> { (first..first + 3 * 32).collect() };
    let mut x = DeviceBuffer::from_host(&stream, &words(5))?;
    let mut ids = DeviceBuffer::from_host(&stream, &[1u32, 0, 1, 0])?;
    let weights = DeviceBuffer::from_host(&stream, &[10u32, 20, 30, 0])?;
    let shared = DeviceBuffer::from_host(&stream, &words(7000))?;
    let y = DeviceBuffer::from_host(&stream, &[0u32; 3 * 32])?;
    let total = plan.workspace().total();
    let workspace = DeviceBuffer::from_host(&stream, &vec![0u8; total as usize])?;
    let addresses = [x.read(), shared.read(), ids.read(), weights.read()].map(|one| one.address());
    let [to_y, to_workspace] = [y.read().address(), workspace.read().address()];
    let launch = |x_bytes: u64, chosen: bool| {
        // SAFETY: all of it is memory of the context, lives longer, and is used on this stream alone.
        unsafe {
            let slice = |at: usize, bytes| DeviceSlice::from_raw(addresses[at], bytes);
            let routed = match chosen {
                true => RoutedSlices::Chosen { ids: slice(2, 12), weights: slice(3, 12) },
                false => RoutedSlices::Logits(slice(2, 12)),
            };
            let shared = Some(slice(1, 384));
            let inputs = ExpertSlices { x: slice(0, x_bytes), routed, shared };
            let y = DeviceSliceMut::from_raw(to_y, 384);
            let workspace = DeviceSliceMut::from_raw(to_workspace, total);
            plan.launch(stream.as_raw(), &inputs, y, workspace, false)
        }
    };
    print_result(launch(383, true));
    print_result(launch(384, false));
    launch(384, true)?;
    // Each chunk's rows begin at the first word of the codes, those of expert 0.
    let expected = |first: u32| -> Vec<u32> {
        let of = |(at, x): (usize, u32)| {
            let codes = |first: u32| if at % 64 == 0 { first } else { 0 };
            2 * (x + codes(3)) + codes(5) + 7000 + at as u32
        };
        words(first).into_iter().enumerate().map(of).collect()
    };
    println!("y is right: {}", y.to_host(&stream)? == expected(5));
    // The order is the first buffer that the launches use, and the last of the workspace.
    let order = || -> Result<u32, DriverError> {
        let left = workspace.to_host(&stream)?;
        let word: [u8; 4] = left[total as usize - 256..][..4].try_into().unwrap();
        Ok(u32::from_le_bytes(word))
    };
    println!("the last token's expert and weight: {}", order()?);
    let engine = Engine::<D>::new();
    D::bind(&engine, &context, true);
    let graph = engine.captured(&stream, || launch(384, true).unwrap());
    x.write(&stream, &words(1000))?;
    ids.write(&stream, &[0, 0, 7, 0])?;
    engine.named(Call::Launch, [graph.addr(), stream.as_raw().addr(), 0]);
    println!("replayed with other x: {}", y.to_host(&stream)? == expected(1000));
    println!("and with other experts: {}", order()?);
    engine.named(Call::DestroyExecutable, [graph.addr(), 0, 0]);
    D::bind(&engine, &context, false);
    Ok(())
}
