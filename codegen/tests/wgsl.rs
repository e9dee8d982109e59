//! WGSL: naga accepts the emitted sources, and translates them to SPIR-V and MSL.

use crate::kernels;
use crate::kernels::products::catalogue;
use naga::back::{msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use quantloom_codegen::emit::{ptx, wgsl};
use quantloom_codegen::ir::*;
use quantloom_codegen::jit::Jit;
use quantloom_codegen::target::{Target, target};
use quantloom_dsl::format::{BF16, FloatFormat, Number};
use quantloom_dsl::{Activation, Scheme};
use quantloom_runtime::gpu::{Products as _, Request};
use quantloom_runtime::source::KernelSource as _;
use quantloom_tests::sweep::Share;

const TARGETS: [&str; 2] = ["wgsl", "wgsl_subgroups"];

fn portable() -> &'static Target {
    target("wgsl").unwrap()
}

/// The module of a source, or its errors.
fn parsed(text: &str) -> Result<(naga::Module, ModuleInfo), String> {
    parsed_with(text, Capabilities::empty())
}

fn parsed_with(text: &str, more: Capabilities) -> Result<(naga::Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let mut validator = Validator::new(ValidationFlags::all(), more);
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(text))?;
    Ok((module, info))
}

fn translated((module, info): &(naga::Module, ModuleInfo)) -> Result<(usize, usize), String> {
    // The first versions of both with subgroups.
    let options = spv::Options { lang_version: (1, 3), ..spv::Options::default() };
    let words = spv::write_vec(module, info, &options, None);
    let words = words.map_err(|error| error.to_string())?;
    let options = msl::Options { lang_version: (2, 1), ..msl::Options::default() };
    let pipeline = msl::PipelineOptions::default();
    let text = msl::write_string(module, info, &options, &pipeline);
    let (text, _) = text.map_err(|error| error.to_string())?;
    Ok((words.len(), text.len()))
}

pub(crate) fn check(text: &str) {
    check_with(text, Capabilities::empty());
}

/// As [`check`], of a kernel for a target of [`TARGETS`].
pub(crate) fn check_on(target: &str, text: &str) {
    let subgroups = target == "wgsl_subgroups";
    check_with(text, if subgroups { Capabilities::SUBGROUP } else { Capabilities::empty() });
}

fn check_with(text: &str, more: Capabilities) {
    let module = parsed_with(text, more).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
    let (words, letters) = translated(&module).unwrap();
    assert!(words > 100 && letters > 100, "{words} words, {letters} letters");
}

fn emitted(kernel: Kernel) -> String {
    let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
    wgsl::emit(&kernel).unwrap()
}

#[test]
fn every_value_operation_is_accepted() {
    let text = emitted(kernels::arithmetic(portable()));
    for spelled in ["dot_mixed(", "f16_of(", "s32_from_f32(", "mul_high("] {
        assert!(text.contains(spelled), "{spelled}");
    }
    check(&text);
}

/// Accesses of all words and widths, control flow, constants without literals.
fn memory() -> Kernel {
    let mut b = Builder::new("memory", "All there is to memory.", portable(), kernels::launch(32));
    let m = b.parameter("m", "a number");
    let n = [Extent::Constant(1024)];
    let source = b.buffer("source", Word::U8, Access::ReadOnly, &n, "bytes");
    let fours = b.buffer("fours", Word::U32, Access::Constant, &n, "words, four at a time");
    let count = b.buffer("count", Word::U32, Access::Workspace, &n, "counts");
    let bytes = b.buffer("bytes", Word::U8, Access::WriteOnce, &n, "bytes");
    let halves = b.buffer("halves", Word::U16, Access::WriteOnce, &n, "halves");
    let words = b.buffer("words", Word::U32, Access::WriteOnce, &n, "words");
    let shared = b.shared("block", Word::U16, 64, "halves");
    let thread = b.special(Special::Thread);
    let rows = b.argument(m);
    let byte = b.load_as(Type::U32, Address::new(source, thread), Width::B8, None, Cache::Default);
    let four = b.mul(thread, 4u32);
    let inside = b.less(thread, rows);
    let mask = Mask { condition: inside, fill: 7u32.into() };
    let quad =
        b.load_as(Type::U32, Address::new(fours, four), Width::B128, Some(mask), Cache::Constant);
    b.store(Address::new(shared, thread), &[byte[0].into()], Width::B16, None);
    b.barrier();
    let half = b.load(Address::new(shared, thread), Width::B16)[0];
    let sum = b.variable("sum", Type::U32, Uniformity::Varying);
    b.set(sum, half);
    b.for_each(0u32, rows, 2u32, "turn", |b, turn| {
        let total = b.add(sum, turn);
        b.set(sum, total);
    });
    b.repeat_while(
        Uniformity::Varying,
        |b| b.less(sum, 100u32),
        |b| {
            let total = b.add(sum, 9u32);
            b.set(sum, total);
        },
    );
    b.atomic(AtomicOp::Add, Address::new(count, thread), sum, MemoryOrder::Relaxed, Scope::Device);
    b.store(Address::new(bytes, thread), &[sum.into()], Width::B8, Some(inside));
    b.store(Address::new(halves, thread).plus(3), &[sum.into()], Width::B16, None);
    let [signed, unsigned] = [true, false].map(|sign| {
        let dot = Ternary::Dot4 { a_signed: sign, b_signed: sign };
        b.ternary(dot, quad[1], sum, quad[2])
    });
    let odd = b.select(inside, f32::NAN, f32::INFINITY);
    let tiny = b.select(inside, -1e-40f32, -2.5f32);
    b.if_else(
        inside,
        |b| {
            b.store(
                Address::new(words, four),
                &[quad[0].into(), odd, tiny, quad[3].into()],
                Width::B128,
                None,
            )
        },
        |b| b.store(Address::new(words, four), &[signed, unsigned], Width::B64, None),
    );
    b.finish()
}

#[test]
fn memory_and_control_flow_are_accepted() {
    let text = emitted(memory());
    assert!(text.contains("buffer_fours: array<vec4<u32>>"), "{text}");
    assert!(text.contains("buffer_bytes: array<atomic<u32>>"), "{text}");
    assert!(text.contains("dot4I8Packed(") && text.contains("dot4U8Packed("), "{text}");
    check(&text);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!("wgsl_memory", text));
}

#[test]
fn unsupported_operations_are_refused() {
    let refused = |write: &dyn Fn(&mut Builder, Operand)| {
        let mut b = Builder::new("k", "", portable(), kernels::launch(32));
        let thread = b.special(Special::Thread);
        write(&mut b, thread);
        verify(b.finish()).unwrap_err().to_string()
    };
    let wants = |fault: String, feature: &str| assert!(fault.contains(feature), "{fault}");
    wants(
        refused(&|b, thread| {
            b.shuffle(Shuffle::Xor, thread, 1u32);
        }),
        "shuffles among 2 neighbouring lanes are not supported in a block of 32 on wgsl",
    );
    wants(refused(&|b, _| b.push(Op::WarpSync)), "Warp");
    wants(refused(&|b, _| b.push(Op::Fence { scope: Scope::Device })), "Ordered");
    wants(
        refused(&|b, t| {
            b.ternary(Ternary::Permute, t, t, 0u32);
        }),
        "Permute",
    );
    wants(
        refused(&|b, t| {
            b.ternary(Ternary::Lop3(1), t, t, t);
        }),
        "Lop3",
    );
    wants(
        refused(&|b, _| {
            for number in 0..9 {
                let shape = [Extent::Constant(1)];
                b.buffer(&format!("b{number}"), Word::U32, Access::Constant, &shape, "");
            }
        }),
        "at most 8",
    );
    let sm = verify(kernels::arithmetic(target("sm_80").unwrap())).unwrap();
    assert!(wgsl::emit(&sm).is_err());
    assert!(ptx::emit(&verify(memory()).unwrap()).is_err());
}

/// A kernel with a shuffle, in a block of `threads` threads.
fn exchanging(threads: u32, op: Shuffle, by: u32) -> Result<String, String> {
    let target = target("wgsl_subgroups").unwrap();
    let mut b = Builder::new("k", "", target, kernels::launch(threads));
    let words = b.buffer("y", Word::U32, Access::WriteOnce, &[Extent::Constant(threads)], "");
    let thread = b.special(Special::Thread);
    let [word, float] = [Type::U32, Type::F32].map(|ty| match ty {
        Type::F32 => b.unary(Unary::F32FromU32, thread),
        _ => thread,
    });
    let [word, float] = [word, float].map(|value| b.shuffle(op, value, by));
    let float = b.unary(Unary::AsU32, float);
    let sum = b.add(word, float);
    b.store(Address::new(words, thread), &[sum], Width::B32, None);
    let kernel = verify(b.finish()).map_err(|refusals| refusals.to_string())?;
    Ok(wgsl::emit(&kernel).unwrap())
}

/// Shuffles work between four neighbours: a subgroup has 4 to 128 lanes.
#[test]
fn shuffles_work_between_four_neighbours() {
    let text = exchanging(128, Shuffle::Xor, 3).unwrap();
    assert!(text.contains("let thread = subgroup * subgroup_size + of_subgroup;"), "{text}");
    let module = parsed_with(&text, Capabilities::SUBGROUP).unwrap();
    translated(&module).unwrap();
    let without = parsed(&text).unwrap_err();
    assert!(without.contains("SUBGROUP"), "{without}");
    for (threads, op, by) in [
        (64, Shuffle::Xor, 3),
        (128, Shuffle::Xor, 4),
        (128, Shuffle::Xor, u32::MAX),
        (128, Shuffle::Down, 1),
        (128, Shuffle::Index, 0),
    ] {
        let refused = exchanging(threads, op, by).unwrap_err();
        assert!(refused.contains("neighbouring lanes are not supported"), "{op:?} {by}: {refused}");
    }
}

/// The type of x of an activation.
fn own(activation: &Activation) -> FloatFormat {
    match activation {
        Activation::Float(Number::Float(format)) => *format,
        _ => BF16,
    }
}

/// The sources of a scheme's products, operands and transforms.
fn texts(
    scheme: &Scheme,
    activation: &Activation,
    target: &str,
    tokens: &[u64],
) -> Vec<(String, String)> {
    let (n, k, x_columns) = (264, 512, 512);
    let own = own(activation);
    let request = Request {
        scheme,
        activation,
        input_dtype: own,
        target,
        n,
        k,
        x_columns,
        scales_in_range: false,
        layout_of_range: false,
    };
    let parts = match Jit.native(&request) {
        Ok(parts) => parts,
        Err(_) => return Vec::new(),
    };
    let products = tokens.iter().map(|tokens| Jit.choose(&request, *tokens).unwrap().key);
    let moves = parts.iter().filter_map(|part| Jit.repack_kernels(&request, part).ok());
    let keys = products.into_iter().chain(Jit.operand(&request, None).unwrap());
    let mut texts = Vec::new();
    for key in keys {
        texts.push((key.to_string(), Jit.text(&key).unwrap().text.into_owned()));
    }
    // A weight without a device transform is packed on the host.
    for key in moves.map(|moves| moves.to_native) {
        if let Ok(text) = Jit.text(&key) {
            texts.push((key.to_string(), text.text.into_owned()));
        }
    }
    texts
}

/// The kernels of each scheme are valid WGSL, and have a translation to SPIR-V and MSL.
#[test]
fn kernels_of_the_catalogue_are_accepted() {
    let share = Share::new(144, 6);
    let every = share.parts();
    let mut wrong = Vec::new();
    let (mut taken_texts, mut schemes, mut exchanging) = (0, 0, 0);
    let factored = catalogue().into_iter().step_by(5);
    let factored = factored.map(|scheme| Scheme { prescale: Some(Number::Float(BF16)), ..scheme });
    let schemes_of = catalogue().into_iter().chain(factored).enumerate();
    let schemes_of = schemes_of.filter(|(number, _)| share.takes(*number));
    for (number, scheme) in schemes_of {
        // A block of many tokens has a long source.
        let tokens: &[u64] = if number % 4 == 0 { &[1, 33] } else { &[1] };
        let scheme = Scheme { experts: None, ..scheme };
        for activation in &scheme.activations {
            let [plain, more] = TARGETS.map(|target| texts(&scheme, activation, target, tokens));
            schemes += usize::from(!plain.is_empty());
            // Without shuffles, the source is the same for both targets.
            let shuffles = |(_, text): &(_, String)| text.contains("subgroupShuffleXor(");
            let more: Vec<_> = more.into_iter().filter(shuffles).collect();
            exchanging += usize::from(!more.is_empty());
            let plain = plain.into_iter().map(|text| (text, Capabilities::empty()));
            let more = more.into_iter().map(|text| (text, Capabilities::SUBGROUP));
            for ((name, text), can) in plain.chain(more) {
                taken_texts += 1;
                let module = parsed_with(&text, can);
                if let Err(why) = module.and_then(|module| translated(&module)) {
                    wrong.push(format!("{} {name}: {why}", scheme.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let least = taken_texts * every > 200 && schemes * every > 40;
    assert!(least, "{schemes} products, {taken_texts} texts");
    assert_eq!(exchanging, schemes, "products whose threads exchange registers");
}
