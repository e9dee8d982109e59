//! HIP texts against the simulator. No AMD GPU is needed: a text is C++ that means the same on any
//! machine, but for the builtins that `kernels/host.h` defines.

#![allow(clippy::print_stdout, reason = "a skipped part says so")]

mod kernels;

use std::path::PathBuf;

use kernels::{compiler, host, launch, sm};
use quantloom_codegen::ir::*;
use quantloom_codegen::sim::{Arguments, Contents, Options, run};
use quantloom_codegen::target::{Feature, Target};

const TARGETS: [&str; 2] = ["gfx942", "gfx950"];

fn clang() -> Option<PathBuf> {
    let found = compiler::find();
    if found.is_none() {
        println!("skipped: clang for AMD GPUs not found");
    }
    found
}

/// What makes a word of one, two or three.
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
    all.extend([F16x2FromE4m3(Low), F16x2FromE4m3(High)].map(One));
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

const BLOCKS: u32 = 1024;
const THREADS: u32 = 256;

/// Every operation on `BLOCKS * THREADS` triples of words; which they are, in the order of y.
fn every(target: &'static Target) -> (Verified<Kernel>, Vec<Operation>) {
    let shape = Launch { grid: [BLOCKS, 1, 1].map(Extent::Constant), ..launch(THREADS) };
    let mut b = Builder::new("every", "Every operation on words.", target, shape);
    let count = BLOCKS * THREADS;
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

/// Every upper half of a word with lower halves that round down, up, to a tie, and not at all; then
/// words from everywhere, and the numbers at which operations change their ways.
fn adversarial() -> [Vec<u32>; 3] {
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
    for at in 0..BLOCKS * THREADS {
        x.push(at << 16 | LOW[(at >> 16) as usize % LOW.len()]);
        let edge = EDGES[(random() >> 28) as usize];
        // A neighbour of x, x itself, an edge, or anything.
        y.push(match random() >> 30 {
            0 => x[at as usize] ^ (random() & 0x8000_8001),
            1 => edge,
            _ => random(),
        });
        z.push(if random() >> 31 == 0 { random() } else { edge });
    }
    [x, y, z]
}

#[test]
fn operations_are_those_of_the_simulator() {
    let Some(clang) = clang() else { return };
    for target in TARGETS {
        let (kernel, operations) = every(sm(target));
        let inputs = adversarial();
        let mut buffers: Vec<Contents> = inputs.iter().map(|x| Contents::of_words(x)).collect();
        let len = kernel.buffers[3].shape.iter().map(|extent| extent.value(&[]).unwrap() as usize);
        buffers.push(Contents::poison(4 * len.product::<usize>()));
        let mut arguments = Arguments { parameters: vec![], buffers };
        let left = host::run(&clang, &kernel, &arguments)[3].words();
        run(&kernel, &mut arguments, &Options::default()).unwrap_or_else(|fault| panic!("{fault}"));
        let right = arguments.buffers[3].words();
        let count = (BLOCKS * THREADS) as usize;
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
