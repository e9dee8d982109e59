//! What a process of this test does; it says what came of it on standard output.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use quantloom_dsl::format::{BF16, Number};
use quantloom_dsl::layout::{Component, Granularity, GroupSize, Recode, Shape};
use quantloom_dsl::{Scheme, parse, parse_layout};
use quantloom_runtime::element::{Values, ValuesMut, bf16};
use quantloom_runtime::gpu::{
    Arrangement, Basis, Choice, Form, GpuDevice, NativePart, Products, Request, Trusted,
};
use quantloom_runtime::hip::{
    Argument, Buffer, Device, Hip, HipError, Kernel, Libraries, Loader, Origin, Stream, devices,
    load,
};
use quantloom_runtime::image_cache::ImageCache;
use quantloom_runtime::op::{Op as _, ProductError, Workspace};
use quantloom_runtime::source::{
    Access, BufferRole, Count, KernelKey, KernelSource, KernelText, LaunchRule, Parameter, Problem,
    Refusal, Schedule, Work,
};
use quantloom_runtime::unpacked::Unpacked;

/// Runs a scenario by its name.
pub(crate) fn run(scenario: &str) {
    let result = match scenario {
        "devices" => list(),
        "other device" => Device::new(2).map(drop),
        "unsupported" => Hip::new(1, source()).map(drop),
        "current" => current(),
        "memory" => memory(),
        "compile" => compile(),
        "load" => vector_add().map(|(kernel, origin)| println!("{}: {origin}", kernel.entry())),
        "loader" => loader("gfx942"),
        "wrong target" => loader("gfx950"),
        "refused" => refused(),
        "launch" => launch(),
        "streams" => streams(),
        "unload" => unload(),
        "product" => product(),
        "tour" => tour(),
        _ => panic!("no scenario {scenario}"),
    };
    if let Err(error) = result {
        println!("{error}");
    }
}

fn list() -> Result<(), HipError> {
    for device in devices()? {
        println!("{device}; {}", device.target().unwrap_or("no target"));
    }
    let (major, minor) = Libraries::get()?.compiler_version();
    println!("hiprtc {major}.{minor}");
    Ok(())
}

const TEXT: &str = "extern \"C\" __attribute__((global)) void vector_add(
    const unsigned *a, const unsigned *b, unsigned *c, unsigned n)
{
    const unsigned at = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
    if (at < n) c[at] = a[at] + b[at];
}
";

fn text() -> KernelText<'static> {
    let words = |name, access| Parameter::buffer(name, access, Count::N * 4);
    let parameters = vec![
        words("a", Access::Read),
        words("b", Access::Read),
        words("c", Access::Write),
        Parameter::size("n", Count::N),
    ];
    KernelText {
        entry: "vector_add".into(),
        text: TEXT.into(),
        rule: Cow::Owned(LaunchRule::plain(Count::N.ceil_div(256), 256, parameters)),
    }
}

fn vector_add() -> Result<(Arc<Kernel>, Origin), HipError> {
    load(&Device::new(0)?, &ImageCache::from_environment(), &text())
}

/// The device that was current is so again.
fn current() -> Result<(), HipError> {
    let device = Device::new(1)?;
    let stream = Stream::new(&device)?;
    stream.synchronize()?;
    let other = Buffer::from_host(&Stream::new(&Device::new(0)?)?, &[1])?;
    if let Err(error) = other.to_host(&stream) {
        println!("{error}");
    }
    Ok(())
}

fn memory() -> Result<(), HipError> {
    let device = Device::new(0)?;
    let stream = Stream::new(&device)?;
    let bytes: Vec<u8> = (0..=255).collect();
    println!("copied: {}", Buffer::from_host(&stream, &bytes)?.to_host(&stream)? == bytes);
    println!("filled: {:?}", Buffer::filled(&stream, 3, 7)?.to_host(&stream)?);
    println!("empty: {:?}", Buffer::from_host(&stream, &[])?.to_host(&stream)?);
    Buffer::uninitialised(&device, 1 << 41).map(drop)
}

fn compile() -> Result<(), HipError> {
    let wrong = KernelText { text: format!("{TEXT}nonsense").into(), ..text() };
    load(&Device::new(0)?, &ImageCache::off(), &wrong).map(drop)
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

fn scheme() -> Scheme {
    parse("W4 { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 }")
        .unwrap()
}

fn key(target: &str) -> KernelKey {
    let scheme = scheme();
    KernelKey {
        work: Work::product(&scheme, &scheme.activations[0], Number::Float(BF16)),
        schedule: Schedule::new("decode", [("rows", 2)]),
        target: target.to_owned(),
    }
}

fn loader(target: &str) -> Result<(), HipError> {
    let device = Device::new(0)?;
    let source = Arc::new(Counting(AtomicU32::new(0)));
    let loader = Loader::new(&device, ImageCache::from_environment(), source.clone());
    let (first, second) = (loader.kernel(&key(target))?, loader.kernel(&key(target))?);
    let kernels = if Arc::ptr_eq(&first, &second) { 1 } else { 2 };
    println!("texts: {}, kernels: {kernels}", source.0.load(Ordering::Relaxed));
    Ok(())
}

fn refused() -> Result<(), HipError> {
    let loader = Loader::new(&Device::new(0)?, ImageCache::off(), Arc::new(Refusing));
    loader.kernel(&key("gfx942")).map(drop)
}

/// A buffer that is too small, an argument that is none, a grid that the hardware cannot count.
fn launch() -> Result<(), HipError> {
    let device = Device::new(0)?;
    let stream = Stream::new(&device)?;
    let (kernel, _) = load(&device, &ImageCache::from_environment(), &text())?;
    let a = Buffer::filled(&stream, 400, 0)?;
    let mut c = Buffer::filled(&stream, 396, 0)?;
    let problem = Problem::new(1, 100, 1, 304);
    let arguments =
        [Argument::Read(a.read()), Argument::Read(a.read()), Argument::Write(c.write_to())];
    // SAFETY: the launches are refused.
    let tried = |problem: &Problem, arguments: &[Argument<'_>]| unsafe {
        if let Err(error) = kernel.launch(&stream, problem, arguments) {
            println!("{error}");
        }
    };
    tried(&problem, &arguments);
    tried(&problem, &arguments[..2]);
    let parameters = vec![Parameter::size("n", Count::N)];
    let rule = LaunchRule::plain(Count::N, 256, parameters);
    let wide = KernelText { rule: Cow::Owned(rule), ..text() };
    let (kernel, _) = load(&device, &ImageCache::off(), &wide)?;
    let problem = Problem { n: 1 << 24, ..problem };
    // SAFETY: the launch is refused.
    unsafe { kernel.launch(&stream, &problem, &[]) }
}

/// Calls on two streams, and memory of another device.
fn streams() -> Result<(), HipError> {
    let device = Device::new(0)?;
    let (first, second) = (Stream::new(&device)?, Stream::new(&device)?);
    let (kernel, _) = load(&device, &ImageCache::off(), &text())?;
    let a = Buffer::filled(&first, 400, 7)?;
    println!("read after write: {}", a.to_host(&second)? == [7; 400]);
    let mut c = Buffer::filled(&first, 400, 0)?;
    first.synchronize()?;
    let problem = Problem::new(1, 100, 1, 304);
    let arguments =
        [Argument::Read(a.read()), Argument::Read(a.read()), Argument::Write(c.write_to())];
    // SAFETY: the text does what its rule says; the other stream has been waited for.
    unsafe { kernel.launch(&first, &problem, &arguments) }?;
    println!("read after launch: {}", c.to_host(&second)? == [14; 400]);
    let other = Stream::new(&Device::new(1)?)?;
    let mut there = Buffer::filled(&other, 400, 0)?;
    let arguments =
        [Argument::Read(a.read()), Argument::Read(a.read()), Argument::Write(there.write_to())];
    // SAFETY: the launch is refused.
    unsafe { kernel.launch(&first, &problem, &arguments) }
}

/// A kernel is dropped while a launch of it is queued, and so is a buffer.
fn unload() -> Result<(), HipError> {
    let device = Device::new(0)?;
    let stream = Stream::new(&device)?;
    let (kernel, _) = load(&device, &ImageCache::off(), &text())?;
    let a = Buffer::filled(&stream, 400, 20)?;
    let mut c = Buffer::filled(&stream, 400, 0)?;
    let problem = Problem::new(1, 100, 1, 304);
    let arguments =
        [Argument::Read(a.read()), Argument::Read(a.read()), Argument::Write(c.write_to())];
    // SAFETY: the text does what its rule says; all is on one stream.
    unsafe { kernel.launch(&stream, &problem, &arguments) }?;
    drop(a);
    let stream = Stream::new(&device)?;
    drop(kernel);
    println!("added: {}", c.to_host(&stream)? == [40; 400]);
    Ok(())
}

fn source() -> Trusted {
    // SAFETY: the text does what its rule says.
    unsafe { Trusted::new(Arc::new(Sums)) }
}

/// "Products" of this runtime, which knows no matrices: y = w + x, words of the packed codes and of
/// pairs of x, a row of x a launch.
struct Sums;

impl KernelSource for Sums {
    fn text(&self, _: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let parameters = vec![
            Parameter::of(BufferRole::Codes, Access::Read, Count::K * 2),
            Parameter::of(BufferRole::X, Access::Read, Count::M * Count::K * 2),
            Parameter::of(BufferRole::Y, Access::Write, Count::M * Count::N * 2),
            Parameter::size("n", Count::K.ceil_div(2)),
        ];
        let rule = LaunchRule::plain(Count::K.ceil_div(512), 256, parameters);
        Ok(KernelText { rule: Cow::Owned(rule), ..text() })
    }
}

impl Products for Sums {
    fn operand(&self, _: &Request<'_>) -> Result<Vec<KernelKey>, Refusal> {
        Ok(Vec::new())
    }

    fn arrangement(&self, _: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Ok(None)
    }

    fn native(&self, _: &Request<'_>) -> Result<Vec<NativePart>, Refusal> {
        let layout = parse_layout("u32 [k:8 | k, n]", Component::Code).unwrap();
        let granularity =
            Granularity { bits: 4, rows: GroupSize::Each(1), cols: GroupSize::Each(1) };
        let (component, form) = (Component::Code, Form::Codes(Recode::Keep));
        Ok(vec![NativePart { role: BufferRole::Codes, component, layout, granularity, form }])
    }

    fn choose(&self, request: &Request<'_>, _: u64) -> Result<Choice, Refusal> {
        Ok(Choice {
            key: key(request.target),
            tokens: 1,
            meeting: "in bf16".to_owned(),
            sums: quantloom_runtime::accumulation::Sums::Matrix,
            decoded: quantloom_runtime::accumulation::Decoded::default(),
            by: Basis::Model,
        })
    }
}

/// A weight on the device and its op: three rows of x in three launches.
fn product() -> Result<(), HipError> {
    let device = GpuDevice::new(Hip::new(0, source())?);
    // Codes 3, 0, 0, ... a row: the first word of w is 3, its others are 0.
    let codes: Vec<u8> = (0..64 * 64 / 2).map(|at| if at == 0 { 3 } else { 0 }).collect();
    let scales = [0x80, 0x3f].repeat(64);
    let stored = |name: &str| Some(if name.contains("scale") { &scales[..] } else { &codes[..] });
    let weight = Unpacked::new(&scheme(), Shape::matrix(64, 64), &stored).unwrap();
    let x: Vec<bf16> = (0..3 * 64).map(|at| bf16::from_bits(0x3f80 + at)).collect();
    let mut y = vec![bf16::ZERO; 3 * 64];
    let mut workspace = Workspace::default();
    let multiply = || -> Result<String, ProductError> {
        let weight = device.prepare(&scheme(), &weight)?;
        weight.matmul_into(0, Values::Bf16(&x), ValuesMut::Bf16(&mut y), &mut workspace)?;
        Ok(weight.explain(3).to_string())
    };
    match { multiply }() {
        Ok(explained) => {
            let sum = |(at, x): (usize, &bf16)| x.to_bits() + if at % 64 == 0 { 3 } else { 0 };
            let right = x.iter().enumerate().map(sum).eq(y.iter().map(|y| y.to_bits()));
            println!("{explained}: y is right: {right}");
        }
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// Every function of the libraries at least once, whatever the others say.
fn tour() -> Result<(), HipError> {
    for part in [list, product, current, compile] {
        if let Err(error) = part() {
            println!("{error}");
        }
    }
    Ok(())
}
