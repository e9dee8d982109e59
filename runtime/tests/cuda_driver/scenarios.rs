//! What a process of this test does; it says what came of it on standard output.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use quantloom_dsl::format::{BF16, Number};
use quantloom_dsl::parse;
use quantloom_runtime::cuda::{
    Argument, Buffer, Context, CudaError, ImageCache, Kernel, Loader, Origin, Stream, devices,
    load, selftest,
};
use quantloom_runtime::source::{
    KernelKey, KernelSource, KernelText, Problem, Refusal, Schedule, Work,
};

/// Runs a scenario by its name.
pub(crate) fn run(scenario: &str) {
    let result = match scenario {
        "devices" => list(),
        "context" => Context::new(0).map(drop),
        "other device" => Context::new(1).map(drop),
        "stream" => Context::new(0).and_then(|context| Stream::new(&context)).map(drop),
        "selftest" => {
            let good = selftest::run(0, &mut |check| println!("{check}"));
            println!("good: {good}");
            Ok(())
        }
        "load" => vector_add().map(|(kernel, origin)| println!("{}: {origin}", kernel.entry())),
        "loader" => loader(),
        "refused" => refused(),
        "launch" => launch(),
        _ => panic!("no scenario {scenario}"),
    };
    if let Err(error) = result {
        println!("{error}");
    }
}

fn list() -> Result<(), CudaError> {
    for device in devices()? {
        println!("{device}; {}", device.target().unwrap_or("no target"));
    }
    Ok(())
}

fn text() -> KernelText<'static> {
    selftest::texts::all().into_iter().find(|text| text.entry == "vector_add").unwrap()
}

fn vector_add() -> Result<(Arc<Kernel>, Origin), CudaError> {
    load(&Context::new(0)?, &ImageCache::from_environment(), &text())
}

/// Gives one text for every key and counts how often it is asked.
struct Counting(AtomicU32);

impl KernelSource for Counting {
    fn text(&self, _: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(text())
    }
}

struct Refusing;

impl KernelSource for Refusing {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let known = vec!["sm_80".to_owned()];
        Err(Refusal::Target { target: key.target.clone(), known })
    }
}

fn key() -> KernelKey {
    let scheme = parse(
        "W4 { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 }",
    )
    .unwrap();
    KernelKey {
        work: Work::product(&scheme, &scheme.activations[0], Number::Float(BF16)),
        schedule: Schedule::new("decode", [("rows", 2)]),
        target: "sm_90a".to_owned(),
    }
}

fn loader() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let source = Arc::new(Counting(AtomicU32::new(0)));
    let loader = Loader::new(&context, ImageCache::from_environment(), source.clone());
    let (first, second) = (loader.kernel(&key())?, loader.kernel(&key())?);
    let kernels = if Arc::ptr_eq(&first, &second) { 1 } else { 2 };
    println!("texts: {}, kernels: {kernels}", source.0.load(Ordering::Relaxed));
    Ok(())
}

fn refused() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let loader = Loader::new(&context, ImageCache::off(), Arc::new(Refusing));
    loader.kernel(&key()).map(|kernel| println!("{}", Cow::Borrowed(kernel.entry())))
}

/// A buffer that is too small.
fn launch() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let (kernel, _) = load(&context, &ImageCache::from_environment(), &text())?;
    let a = Buffer::<u32>::zeroed(&stream, 100)?;
    let mut c = Buffer::<u32>::zeroed(&stream, 99)?;
    let arguments =
        [Argument::Read(a.read()), Argument::Read(a.read()), Argument::Write(c.write_to())];
    let problem = Problem { m: 1, n: 100, k: 1, multiprocessors: 132 };
    // SAFETY: the launch is refused; the text does what its rule says.
    unsafe { kernel.launch(&stream, &problem, false, &arguments) }
}
