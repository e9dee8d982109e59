//! HIP sources against the simulator. No AMD GPU is needed: a source is portable C++, except for
//! the builtins, which `kernels/host.h` defines for this machine.

use crate::kernels::host::Program;
use crate::kernels::{self, launch, sm};
use quantloom_codegen::emit::hip;
use quantloom_codegen::ir::*;
use quantloom_codegen::sim::{Arguments, Contents, SimulationOptions, run};
use quantloom_codegen::target::{Feature, Target};
use quantloom_dsl::format::{BF16, E4M3, F16, FloatFormat, Overflow, Variant};
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::clang;

const TARGETS: [&str; 4] = ["gfx942", "gfx950", "gfx1100", "gfx1201"];

/// An operation on one, two or three words.
#[derive(Clone, Copy, Debug)]
enum Operation {
    One(Unary),
    Two(Binary),
    Three(Ternary),
    Is(Compare),
    /// A permutation by a constant.
    Bytes(u32),
}

use Operation::{Bytes, Is, One, Three, Two};

fn operations(target: &Target) -> Vec<Operation> {
    use Binary::*;
    use Compare::*;
    use Half::{Bf16, F16};
    use Side::{High, Low};
    use Ternary::*;
    use Unary::*;
    let mut all = Vec::new();
    let widened = [F16, Bf16].map(|half| [Low, High].map(|side| F32FromHalf(half, side)));
    let unary = [Not, PopCount, F32FromU32, F32FromS32, S32FromF32, Negate, Abs, Sqrt, RoundEven];
    all.extend(widened.as_flattened().iter().chain(&unary).copied().map(One));
    all.extend([Add, Sub, Mul, MulHigh, Div, Rem, Min, Max, MinSigned, MaxSigned].map(Two));
    all.extend([And, Or, Xor, Shl, Shr, ShrSigned, PackE4m3].map(Two));
    all.extend([AddF32, SubF32, MulF32, DivF32, MinF32, MaxF32].map(Two));
    for half in [F16, Bf16] {
        let packed = [AddPacked, SubPacked, MulPacked, MaxPacked, Pack].map(|op| op(half));
        all.extend(packed.map(Two));
        all.push(Three(FmaPacked(half)));
    }
    for (a_signed, b_signed) in [(true, true), (true, false), (false, true), (false, false)] {
        all.push(Three(Dot4 { a_signed, b_signed }));
    }
    all.extend([Mad, Fma, Permute, FunnelLeft, FunnelRight].map(Three));
    all.extend([Equal, NotEqual, Less, LessEqual, LessSigned, EqualF32, LessF32].map(Is));
    // Bytes of both words; signs of odd bytes; a sign of an even byte.
    all.extend([0x6240, 0x1010, 0xfdb9, 0x8f04].map(Bytes));
    all.retain(|operation| target.has(operation.needs()));
    all
}

impl Operation {
    fn needs(self) -> Feature {
        let (dst, a) = (Reg { id: RegisterId(0), at: 0 }, Operand::U32(0));
        match self {
            One(op) => Op::Unary { dst, op, a }.needs(),
            Two(op) => Op::Binary { dst, op, a, b: a }.needs(),
            Three(op) => Op::Ternary { dst, op, a, b: a, c: a }.needs(),
            Is(op) => Op::Compare { dst, op, a, b: a }.needs(),
            Bytes(_) => Feature::Permute,
        }
    }

    /// Writes it: a word from words.
    fn write(self, b: &mut Builder, [a, by, c]: [Operand; 3]) -> Operand {
        let typed = |b: &mut Builder, ty: Type, word: Operand| match ty {
            Type::F32 => b.unary(Unary::AsF32, word),
            _ => word,
        };
        let result = match self {
            One(op) => {
                let a = typed(b, op.signature().0[0], a);
                b.unary(op, a)
            }
            Two(op) => {
                let ty = op.signature().0[0];
                let by = match op {
                    Binary::Shl | Binary::Shr | Binary::ShrSigned => b.and(by, 31u32),
                    Binary::Div | Binary::Rem => b.binary(Binary::Max, by, 1u32),
                    _ => typed(b, ty, by),
                };
                let a = typed(b, ty, a);
                b.binary(op, a, by)
            }
            Three(op) => {
                let ty = op.signature().0[0];
                let c = match op {
                    Ternary::FunnelLeft | Ternary::FunnelRight => b.and(c, 31u32),
                    _ => typed(b, ty, c),
                };
                let [a, by] = [a, by].map(|word| typed(b, ty, word));
                b.ternary(op, a, by, c)
            }
            Is(op) => {
                let [a, by] = [a, by].map(|word| typed(b, op.operands(), word));
                let holds = b.compare(op, a, by);
                b.select(holds, 1u32, 0u32)
            }
            Bytes(select) => b.ternary(Ternary::Permute, a, by, select),
        };
        match self {
            One(op) if op.signature().1 == Type::F32 => b.unary(Unary::AsU32, result),
            Two(op) if op.signature().1 == Type::F32 => b.unary(Unary::AsU32, result),
            Three(Ternary::Fma) => b.unary(Unary::AsU32, result),
            _ => result,
        }
    }

    /// Whether two results are the same: where a NaN comes out it may be any.
    fn same(self, a: u32, b: u32) -> bool {
        let halves = |half: Half| {
            let infinity = if half == Half::F16 { 0x7c00 } else { 0x7f80 };
            let nan = |code: u32| code & 0x7fff > infinity;
            [0, 16].iter().all(|by| {
                let [a, b] = [a, b].map(|word| word >> by & 0xffff);
                a == b || nan(a) && nan(b)
            })
        };
        let [first, second] = [a, b].map(f32::from_bits);
        let float = a == b || first.is_nan() && second.is_nan();
        match self {
            One(op) if op.signature().1 == Type::F32 => float,
            Two(op) if op.signature().1 == Type::F32 => float,
            Three(Ternary::Fma) => float,
            Two(
                Binary::AddPacked(half)
                | Binary::SubPacked(half)
                | Binary::MulPacked(half)
                | Binary::MaxPacked(half)
                | Binary::Pack(half),
            )
            | Three(Ternary::FmaPacked(half)) => halves(half),
            _ => a == b,
        }
    }
}

/// Blocks of the sweep: every upper half of a word with each of four lower halves.
const BLOCKS: u32 = 1024;
const THREADS: u32 = 256;

/// A kernel of every operation on `blocks * THREADS` triples of words, and the operations in the
/// order of y.
fn every(target: &'static Target, blocks: u32) -> (Verified<Kernel>, Vec<Operation>) {
    let shape = LaunchConfig { grid: [blocks, 1, 1].map(Extent::Constant), ..launch(THREADS) };
    let mut b = Builder::new("every", "Every operation on words.", target, shape);
    let count = blocks * THREADS;
    let [x, y, z] = ["x", "y", "z"].map(|name| {
        b.buffer(name, Word::U32, Access::ReadOnly, &[Extent::Constant(count)], "words")
    });
    let operations = operations(target);
    let most = Extent::Constant(operations.len() as u32);
    let result =
        b.buffer("result", Word::U32, Access::WriteOnce, &[most, Extent::Constant(count)], "words");
    let (block, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
    let at = b.mad(block, THREADS, thread);
    let words = [x, y, z].map(|buffer| b.load(Address::new(buffer, at), Width::B32)[0].into());
    for (number, operation) in operations.iter().enumerate() {
        let value = operation.write(&mut b, words);
        let to = Address::new(result, at).plus(count * number as u32);
        b.store(to, &[value], Width::B32, None);
    }
    (verify(b.finish()).unwrap_or_else(|refusals| panic!("{refusals}")), operations)
}

/// Every upper half of a word, with lower halves that round down, up, to a tie, and not at all;
/// then random words, and the numbers at which operations change their behaviour.
fn adversarial(blocks: u32) -> [Vec<u32>; 3] {
    const LOW: [u32; 4] = [0x0000, 0x8000, 0x7fff, 0x1001];
    const EDGES: [u32; 16] = [
        0x0000_0000,
        0x8000_0000,
        0x0000_0001,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x7f7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffa0_0001,
        0x4effffff,
        0x4f00_0000,
        0xcf00_0000,
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let [mut x, mut y, mut z] = [const { Vec::new() }; 3];
    for at in 0..blocks * THREADS {
        // All of them, or one of so many, another one of each.
        let stride = BLOCKS / blocks;
        let number = at * stride + at % stride;
        x.push(number << 16 | LOW[(number >> 16) as usize % LOW.len()]);
        let edge = EDGES[(random() >> 28) as usize];
        // A neighbour of x, x itself, an edge case, or a random word.
        y.push(match random() >> 30 {
            0 => x[at as usize] ^ (random() & 0x8000_8001),
            1 => edge,
            _ => random(),
        });
        z.push(if random() >> 31 == 0 { random() } else { edge });
    }
    [x, y, z]
}

/// So many blocks of words through every operation of some targets.
fn operations_agree(blocks: u32, targets: Vec<&'static str>) {
    let Some(clang) = clang::find() else { return };
    for target in targets {
        let (kernel, operations) = every(sm(target), blocks);
        let inputs = adversarial(blocks);
        let mut buffers: Vec<Contents> = inputs.iter().map(|x| Contents::from_words(x)).collect();
        let len = kernel.buffers[3].shape.iter().map(|extent| extent.value(&[]).unwrap() as usize);
        buffers.push(Contents::poison(4 * len.product::<usize>()));
        let mut arguments = Arguments { parameters: vec![], buffers };
        let left = Program::new(clang, kernel.clone()).run(&arguments)[3].words();
        run(&kernel, &mut arguments, &SimulationOptions::default())
            .unwrap_or_else(|fault| panic!("{fault}"));
        let right = arguments.buffers[3].words();
        let count = (blocks * THREADS) as usize;
        for (number, operation) in operations.iter().enumerate() {
            for at in 0..count {
                let [got, want] = [&left, &right].map(|words| words[number * count + at]);
                let given = inputs.each_ref().map(|words| words[at]);
                assert!(
                    operation.same(got, want),
                    "{operation:?} of {given:#010x?} on {target}: {got:#010x}, not {want:#010x}"
                );
            }
        }
    }
}

#[test]
fn operations_agree_with_the_simulator() {
    operations_agree(32, TARGETS.to_vec());
}

#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn operations_agree_with_the_simulator_on_all_upper_halves() {
    operations_agree(BLOCKS, Share::new(1, 4).of(TARGETS));
}

/// Runs a kernel on the simulator and as compiled C++: every buffer must hold the same bytes.
fn both(kernel: Kernel, arguments: &Arguments) {
    let Some(clang) = clang::find() else { return };
    let name = format!("{} for {}", kernel.name, kernel.target);
    let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{name}: {refusals}"));
    let left = Program::new(clang, kernel.clone()).run(arguments);
    let mut right = arguments.clone();
    run(&kernel, &mut right, &SimulationOptions::default())
        .unwrap_or_else(|fault| panic!("{fault}"));
    for ((buffer, left), right) in kernel.buffers.iter().zip(&left).zip(&right.buffers) {
        let at = left.bytes.iter().zip(&right.bytes).position(|(left, right)| left != right);
        assert_eq!(at, None, "byte of {} in {name}", buffer.name);
    }
}

fn random_words(seed: u32, count: u32) -> Vec<u32> {
    let mix = |at: u32| (at ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(15);
    (0..count).map(|at| mix(at).wrapping_mul(0x85eb_ca6b) ^ mix(at) >> 13).collect()
}

/// Every function of three bits.
fn tables(target: &'static Target) -> Kernel {
    let mut b = Builder::new("tables", "Every function of three bits.", target, launch(64));
    let [x, y] = ["x", "y"].map(|name| {
        let n = Extent::Constant(if name == "x" { 3 * 64 } else { 256 * 64 });
        let access = if name == "x" { Access::ReadOnly } else { Access::WriteOnce };
        b.buffer(name, Word::U32, access, &[n], "words")
    });
    let thread = b.special(Special::Thread);
    let [a, by, c] = [0, 64, 128]
        .map(|at| Operand::from(b.load(Address::new(x, thread).plus(at), Width::B32)[0]));
    for table in 0..=255u8 {
        let value = b.ternary(Ternary::Lop3(table), a, by, c);
        b.store(Address::new(y, thread).plus(64 * u32::from(table)), &[value], Width::B32, None);
    }
    b.finish()
}

#[test]
fn functions_of_three_bits_are_correct_and_short() {
    let x = Contents::from_words(&random_words(3, 3 * 64));
    let arguments = Arguments { parameters: vec![], buffers: vec![x, Contents::poison(256 * 256)] };
    for target in TARGETS {
        both(tables(sm(target)), &arguments);
    }
    // gfx950 has an instruction for every such function, and the compiler uses it for the
    // expressions.
    let Some(clang) = clang::find() else { return };
    let text = hip::emit(&verify(tables(sm("gfx950"))).unwrap()).unwrap();
    let listing = clang.listing(&text, "gfx950");
    let logic = ["v_and", "v_or", "v_xor", "v_xnor", "v_not", "v_bfi", "v_bitop3"];
    let line = |line: &&str| logic.iter().any(|name| line.trim_start().starts_with(name));
    assert!(listing.lines().filter(line).count() <= 256, "{listing}");
}

/// Without compiler flags, quotients and roots are those of IEEE 754, and nothing is contracted.
#[test]
fn compilers_round_as_the_ir_says() {
    let Some(clang) = clang::find() else { return };
    for target in TARGETS {
        let mut b = Builder::new("rounding", "a / b, sqrt(a), a b + c.", sm(target), launch(64));
        let n = Extent::Constant(64);
        let [x, y] = [Access::ReadOnly, Access::WriteOnce].map(|access| {
            let name = if access == Access::ReadOnly { "x" } else { "y" };
            b.buffer(name, Word::U32, access, &[n, Extent::Constant(4)], "numbers")
        });
        let thread = b.special(Special::Thread);
        let quad = b.mul(thread, 4u32);
        let at = Address::new(x, quad);
        let n = b.load_as(Type::F32, at, Width::B128, None, Cache::Default);
        let quotient = b.binary(Binary::DivF32, n[0], n[1]);
        let root = b.unary(Unary::Sqrt, n[1]);
        let product = b.binary(Binary::MulF32, n[2], n[3]);
        let sum = b.binary(Binary::AddF32, product, n[0]);
        b.store(Address::new(y, quad), &[quotient, root, sum, product], Width::B128, None);
        let text = hip::emit(&verify(b.finish()).unwrap()).unwrap();
        let listing = clang.listing(&text, target);
        // The last step of a correctly rounded quotient; and of a root, which compares its
        // neighbours.
        assert!(listing.contains("v_div_fixup_f32"), "{listing}");
        assert!(listing.contains("v_sqrt_f32") && listing.contains("v_cmp_class_f32"), "{listing}");
        assert!(listing.contains("v_mul_f32") && listing.contains("v_add_f32"), "{listing}");
        assert!(listing.contains(".amdhsa_float_denorm_mode_32 3"), "{listing}");
        assert!(listing.contains(".amdhsa_float_denorm_mode_16_64 3"), "{listing}");
    }
}

#[test]
fn a_source_is_for_its_chip() {
    let Some(clang) = clang::find() else { return };
    let text = hip::emit(&verify(kernels::memory(sm("gfx942"))).unwrap()).unwrap();
    let compiled = clang.compile(&text, "gfx950");
    assert!(!compiled.ok && compiled.report.contains("this text is for gfx942"), "{compiled:?}");
    let kernel = verify(kernels::memory(sm("sm_80"))).unwrap();
    let refusal = hip::emit(&kernel).unwrap_err().to_string();
    assert_eq!(refusal, "kernel memory is for sm_80; HIP is for gfx* targets");
}

const GROUPS: u32 = 3;
const BLOCK: u32 = 256;

/// Shuffles and shared memory, accesses of all widths, masks, loops, roles, atomics.
fn exchanges(target: &'static Target) -> Kernel {
    let shape = LaunchConfig { grid: [GROUPS, 1, 1].map(Extent::Constant), ..launch(BLOCK) };
    let mut b = Builder::new("exchanges", "What lanes and warps tell each other.", target, shape);
    let m = b.parameter("m", "rows of y that count");
    let count = Extent::Constant(GROUPS * BLOCK);
    let x = b.buffer("x", Word::U32, Access::Constant, &[count, Extent::Constant(4)], "words");
    let bytes = b.buffer("bytes", Word::U8, Access::ReadOnly, &[count], "bytes");
    let y = b.buffer("y", Word::U32, Access::WriteOnce, &[Extent::Constant(20), count], "results");
    let halves = b.buffer("halves", Word::U16, Access::Workspace, &[count], "halves");
    let space = b.buffer("space", Word::U32, Access::Workspace, &[count], "counters");
    let tile = b.shared("tile", Word::U32, 4 * BLOCK, "quads of threads");
    let (block, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
    let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
    let at = b.mad(block, BLOCK, thread);
    let row = std::cell::Cell::new(0);
    let store = |b: &mut Builder, value: Operand| {
        let to = Address::new(y, at).plus(GROUPS * BLOCK * row.get());
        row.set(row.get() + 1);
        b.store(to, &[value], Width::B32, None);
    };
    let rows = b.argument(m);
    let inside = b.less(at, rows);
    let quad = b.mul(at, 4u32);
    let four = b.load_as(Type::U32, Address::new(x, quad), Width::B128, None, Cache::Stream);
    let value: Operand = four[0].into();
    let lanes = b.warp_size();
    let turned = b.mul(lane, 7u32);
    let turned = b.and(turned, lanes - 1);
    let by_warp = b.add(warp, 3u32);
    for (op, by) in [
        (Shuffle::Xor, 1u32.into()),
        (Shuffle::Xor, 21u32.into()),
        (Shuffle::Xor, (lanes / 2).into()),
        (Shuffle::Xor, by_warp),
        (Shuffle::Index, 5u32.into()),
        (Shuffle::Index, by_warp),
        (Shuffle::Index, turned),
        (Shuffle::Up, 3u32.into()),
        (Shuffle::Up, lane),
        (Shuffle::Down, turned),
        (Shuffle::Down, 70u32.into()),
    ] {
        let taken = b.shuffle(op, value, by);
        store(&mut b, taken);
    }
    let low = b.less(value, 1u32 << 31);
    let any = b.variable("any", Type::Pred, Uniformity::Warp);
    let all = b.variable("all", Type::Pred, Uniformity::Warp);
    b.push(Op::Vote { dst: any, op: Vote::Any, a: inside });
    b.push(Op::Vote { dst: all, op: Vote::All, a: inside });
    let ballot = b.array("ballot", Type::U32, lanes / 32, Uniformity::Warp);
    b.push(Op::Ballot { dst: ballot.clone(), a: low });
    let says = b.select(any, 1u32, 0u32);
    let more = b.select(all, 2u32, 0u32);
    let says = b.add(says, more);
    let says = b.add(says, ballot[0]);
    store(&mut b, says);
    store(&mut b, ballot[ballot.len() - 1].into());
    // Through shared memory: within the warp, then across the block.
    let own = b.mul(thread, 4u32);
    let values: Vec<Operand> = four.iter().map(|reg| (*reg).into()).collect();
    b.store(Address::new(tile, own), &values, Width::B128, None);
    b.push(Op::WarpSync);
    let neighbour = b.binary(Binary::Xor, own, 4u32);
    let two = b.load(Address::new(tile, neighbour).plus(2), Width::B64);
    let sum = b.add(two[0], two[1]);
    store(&mut b, sum);
    b.barrier();
    let mirror = b.sub(4 * BLOCK - 1, own);
    let far = b.load(Address::new(tile, mirror), Width::B32)[0];
    store(&mut b, far.into());
    let mask = Some(Mask { condition: inside, fill: 77u32.into() });
    let byte = b.load_as(Type::U32, Address::new(bytes, at), Width::B8, mask, Cache::Default)[0];
    store(&mut b, byte.into());
    let total = b.variable("total", Type::U32, Uniformity::Varying);
    b.set(total, 0u32);
    b.for_each(lane, 64u32, 5u32, "step", |b, step| {
        let next = b.add(total, step);
        b.set(total, next);
    });
    b.repeat_while(
        Uniformity::Varying,
        |b| b.less(total, 1000u32),
        |b| {
            let next = b.mad(total, 3u32, 1u32);
            b.set(total, next);
        },
    );
    store(&mut b, total.into());
    b.store(Address::new(halves, at), &[value], Width::B16, Some(inside));
    b.barrier();
    let add = (AtomicOp::Add, Address::new(space, lane), value, MemoryOrder::Relaxed);
    let max =
        (AtomicOp::Max, Address::new(space, lane).plus(64), value, MemoryOrder::AcquireRelease);
    for (op, at, value, order) in [add, max] {
        b.push(Op::Atomic { dst: None, op, at, value, order, scope: Scope::Device });
    }
    b.push(Op::Fence { scope: Scope::Device });
    let first = b.role("first", 0..1, None, |b| {
        let number = b.special(Special::Warp);
        b.store(Address::new(y, at).plus(GROUPS * BLOCK * 17), &[number], Width::B32, None);
    });
    let rest = b.role("rest", 1..BLOCK / lanes, None, |b| {
        let number = b.special(Special::Warp);
        let number = b.add(number, 100u32);
        b.store(Address::new(y, at).plus(GROUPS * BLOCK * 17), &[number], Width::B32, None);
    });
    b.roles(vec![first, rest]);
    let mut kernel = b.finish();
    kernel.buffers[2].shape[0] = Extent::Constant(row.get() + 1);
    kernel
}

#[test]
fn communication_agrees_with_the_simulator() {
    for target in TARGETS {
        let kernel = exchanges(sm(target));
        let count = GROUPS * BLOCK;
        let bytes: Vec<u8> = random_words(9, count).iter().map(|word| *word as u8).collect();
        let rows = kernel.buffers[2].shape[0].value(&[]).unwrap() as usize;
        let buffers = vec![
            Contents::from_words(&random_words(5, 4 * count)),
            Contents::from_bytes(bytes),
            Contents::poison(4 * rows * count as usize),
            Contents::from_bytes(vec![0; 2 * count as usize]),
            Contents::from_words(&vec![0; count as usize]),
        ];
        both(kernel, &Arguments { parameters: vec![500], buffers });
    }
}

/// Words of a lane in [`matrices`]: A and B of an instruction, or two results.
const OF_LANE: u32 = 16;

/// Two products by each matrix instruction of a target; the second adds to the first.
fn matrices(target: &'static Target) -> (Kernel, Vec<&'static MatrixOp>) {
    let lanes = target.gpu.unwrap().warp;
    let mut b = Builder::new("matrices", "Matrix instructions.", target, launch(lanes));
    let rows = MATRIX_OPS.iter().filter(|row| target.has(row.needs) && row.scaling.is_none());
    let rows: Vec<_> = rows.collect();
    let words = Extent::Constant(rows.len() as u32 * OF_LANE * lanes);
    let x = b.buffer("x", Word::U32, Access::ReadOnly, &[words], "A and B of each");
    let y = b.buffer("y", Word::U32, Access::WriteOnce, &[words], "D of each, then zeros");
    let lane = b.special(Special::Lane);
    let own = b.mul(lane, OF_LANE);
    for (number, row) in rows.iter().enumerate() {
        let start = OF_LANE * lanes * number as u32;
        let from = Address::new(x, own).plus(start);
        let loads = [0, 4, 8, 12].map(|at| b.load(from.plus(at), Width::B128)).concat();
        let (a, by) = loads.split_at(OF_LANE as usize / 2);
        let [in_a, in_b, in_d] = row.registers(lanes).map(|count| count as usize);
        let ty = if row.d == Element::F32 { Type::F32 } else { Type::U32 };
        let d = b.fragment(ty, in_d as u32);
        b.matrix(row, &d, &a[..in_a], &by[..in_b], Accumulator::Zero);
        let mut values: Vec<Operand> = d.iter().map(|reg| (*reg).into()).collect();
        values.resize(OF_LANE as usize / 2, 0u32.into());
        let store = |b: &mut Builder, first: u32| {
            for (at, four) in (0..).zip(values.chunks(4)) {
                let to = Address::new(y, own).plus(start + first + 4 * at);
                b.store(to, four, Width::B128, None);
            }
        };
        store(&mut b, 0);
        b.matrix_add(row, &d, &a[..in_a], &by[..in_b]);
        store(&mut b, OF_LANE / 2);
    }
    (b.finish(), rows)
}

const E5M2: FloatFormat = FloatFormat::new(5, 2, Variant::Ieee);

/// Small integers as codes of the element type: sums are exact in every order.
fn small(element: Element, words: &mut [u32], seed: u32) {
    for (at, word) in words.iter_mut().enumerate() {
        let per = 32 / element.bits();
        *word = (0..per).fold(0, |word, part| {
            let draw = random_words(seed ^ part << 20, at as u32 + 1)[at] >> 28;
            let value = f64::from(draw as i32 - 8);
            let code = match element {
                Element::F16 => F16.encode(value, Overflow::Special),
                Element::Bf16 => BF16.encode(value, Overflow::Special),
                Element::E4m3 => E4M3.encode(value, Overflow::Special),
                Element::E5m2 => E5M2.encode(value, Overflow::Special),
                // In e4m3fnuz the same numbers are one binade higher, and there is no negative
                // zero.
                Element::E4m3Fnuz if value == 0.0 => 0,
                Element::E4m3Fnuz => E4M3.encode(2.0 * value, Overflow::Special),
                _ => (draw as i32 - 8) as u32 & ((1 << element.bits()) - 1),
            };
            word | code << (part * element.bits())
        });
    }
}

/// Two products by each scaling instruction, with scales from every byte; the second adds to the
/// first.
fn scaled_matrices(target: &'static Target) -> (Kernel, Vec<&'static MatrixOp>) {
    let mut b = Builder::new("scaled", "Matrix instructions that scale.", target, launch(64));
    let rows = MATRIX_OPS.iter().filter(|row| target.has(row.needs) && row.scaling.is_some());
    let rows: Vec<_> = rows.collect();
    let words = |of_lane: u32| Extent::Constant(rows.len() as u32 * of_lane * 64);
    let x = b.buffer("x", Word::U32, Access::ReadOnly, &[words(20)], "A, B and scales of each");
    let y = b.buffer("y", Word::U32, Access::WriteOnce, &[words(8)], "D of each");
    let lane = b.special(Special::Lane);
    let (own, eight) = (b.mul(lane, 20u32), b.mul(lane, 8u32));
    for (number, row) in rows.iter().enumerate() {
        let from = Address::new(x, own).plus(20 * 64 * number as u32);
        let loads = [0, 4, 8, 12, 16].map(|at| b.load(from.plus(at), Width::B128));
        let words = loads.concat();
        let [in_a, in_b, in_d] = row.registers(64).map(|count| count as usize);
        let d = b.fragment(Type::F32, in_d as u32);
        let of = |register: usize, byte: usize| MatrixScale {
            from: words[16 + register],
            byte: (byte % 4) as u8,
        };
        let (a, by) = (&words[..in_a], &words[8..8 + in_b]);
        b.matrix_scaled(row, &d, (a, by), Accumulator::Zero, [of(0, number), of(1, number / 4)]);
        let values: Vec<Operand> = d.iter().map(|reg| (*reg).into()).collect();
        let to = Address::new(y, eight).plus(512 * number as u32);
        b.store(to, &values, Width::B128, None);
        let (again, scales) =
            (Accumulator::Registers(d.clone()), [of(2, number + 1), of(3, number)]);
        b.matrix_scaled(row, &d, (a, by), again, scales);
        b.store(to.plus(4), &values, Width::B128, None);
    }
    (b.finish(), rows)
}

/// Packed codes whose numbers have a small range of exponents: sums are exact in every order.
fn near(element: Element, words: &mut [u32], seed: u32) {
    let bits = element.bits() as usize;
    let draws = random_words(seed, (words.len() * 32 / bits) as u32);
    words.fill(0);
    for (at, draw) in draws.into_iter().enumerate() {
        let code = match element {
            Element::E4m3 => draw & 0x87 | (5 + (draw >> 8) % 8) << 3,
            Element::E5m2 => draw & 0x83 | (12 + (draw >> 8) % 8) << 2,
            _ => draw & ((1 << bits) - 1),
        };
        let (word, first) = (at * bits / 32, at * bits % 32);
        words[word] |= code << first;
        if first + bits > 32 {
            words[word + 1] |= code >> (32 - first);
        }
    }
}

#[test]
fn scaling_instructions_agree_with_the_simulator() {
    let (kernel, rows) = scaled_matrices(sm("gfx950"));
    assert_eq!(rows.len(), 25);
    let mut x = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let seed = 100 * number as u32;
        let scales = random_words(seed + 99, 4 * 64);
        for lane in 0..64 {
            let mut words = [0; 16];
            let [in_a, in_b, _] = row.registers(64).map(|count| count as usize);
            near(row.a, &mut words[..in_a], seed + lane as u32);
            near(row.b, &mut words[8..8 + in_b], !(seed + lane as u32));
            x.extend(words);
            // A different power of two in each byte, 2^-4 to 2^3.
            let near_one = |scale: &u32| 0x7b7b_7b7b + (scale & 0x0707_0707);
            x.extend(scales[4 * lane..4 * (lane + 1)].iter().map(near_one));
        }
    }
    let results = Contents::poison(4 * 512 * rows.len());
    both(
        kernel,
        &Arguments { parameters: vec![], buffers: vec![Contents::from_words(&x), results] },
    );
}

/// A scale code of 255 in one lane belongs to one row of A: the results of this row are NaN, all
/// others are unchanged.
#[test]
fn a_scale_of_255_makes_a_row_nan() {
    let (kernel, _) = scaled_matrices(sm("gfx950"));
    let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
    let len = kernel.buffers[0].shape[0].value(&[]).unwrap();
    let mut x: Vec<u32> = (0..len).map(|at| if at % 20 < 16 { 0 } else { 0x7f7f_7f7f }).collect();
    // Row 3, the first block of columns, of the first product's A.
    x[20 * 3 + 16] = 0x7f7f_7fff;
    let results = Contents::poison(4 * len as usize / 20 * 8);
    let mut arguments =
        Arguments { parameters: vec![], buffers: vec![Contents::from_words(&x), results] };
    run(&kernel, &mut arguments, &SimulationOptions::default())
        .unwrap_or_else(|fault| panic!("{fault}"));
    for (at, word) in arguments.buffers[1].words().into_iter().take(512).enumerate() {
        let (lane, register) = (at / 8, at % 4);
        let row = 4 * (lane / 16) + register;
        let value = f32::from_bits(word);
        assert!(if row == 3 { value.is_nan() } else { value == 0.0 }, "row {row}: {value}");
    }
}

#[test]
fn matrix_instructions_agree_with_the_simulator() {
    for target in TARGETS {
        let (kernel, rows) = matrices(sm(target));
        let lanes = sm(target).gpu.unwrap().warp;
        let of_row = (OF_LANE * lanes) as usize;
        let mut x = vec![0; of_row * rows.len()];
        for (number, (row, words)) in rows.iter().zip(x.chunks_mut(of_row)).enumerate() {
            small(row.a, words, number as u32);
            // Lanes that hold the same elements.
            let holders = (OF_LANE * row.holders(lanes)) as usize;
            (holders..of_row).for_each(|at| words[at] = words[at - holders]);
        }
        let buffers = vec![Contents::from_words(&x), Contents::poison(4 * x.len())];
        both(kernel, &Arguments { parameters: vec![], buffers });
    }
}
