//! The verifier: each error has a case, a kernel with exactly this error.

use crate::kernels::{self, launch, sm};
use quantloom_codegen::ir::*;
use quantloom_codegen::target::{ConvertedCode, target};

/// The start of every case: a target, a launch, and some declarations.
struct Case {
    b: Builder,
    w: BufferId,
    x: BufferId,
    y: BufferId,
    tile: SharedId,
    lane: Operand,
    thread: Operand,
}

fn case(name: &str, shape: LaunchConfig) -> Case {
    let mut b = Builder::new("case", "A case.", sm(name), shape);
    let n = Extent::Constant(1024);
    let w = b.buffer("w", Word::U32, Access::Constant, &[n], "weights");
    let x = b.buffer("x", Word::U32, Access::ReadOnly, &[n], "x");
    let y = b.buffer("y", Word::U32, Access::WriteOnce, &[n], "y");
    let tile = b.shared("tile", Word::U32, 256, "a tile");
    let (lane, thread) = (b.special(Special::Lane), b.special(Special::Thread));
    Case { b, w, x, y, tile, lane, thread }
}

/// The names of a kernel's errors, with the rule that was broken where an error has several.
fn errors(kernel: Kernel) -> Vec<String> {
    match verify(kernel) {
        Ok(_) => Vec::new(),
        Err(errors) => {
            let first = |value: &dyn std::fmt::Debug| {
                let text = format!("{value:?}");
                text.split([' ', '(']).next().unwrap_or_default().to_owned()
            };
            let name = |error: &VerifyError| match &error.kind {
                VerifyErrorKind::Launch(rule) => format!("Launch::{}", first(rule)),
                VerifyErrorKind::Declaration { what, .. } => {
                    format!("Declaration::{}", first(what))
                }
                VerifyErrorKind::Value(rule) => format!("Value::{}", first(rule)),
                VerifyErrorKind::Roles(rule) => format!("Roles::{}", first(rule)),
                kind => first(kind),
            };
            errors.errors.iter().map(name).collect()
        }
    }
}

/// Builds a kernel whose errors must all be `expected`.
fn refused(expected: &str, shape: LaunchConfig, name: &str, write: impl FnOnce(&mut Case)) {
    let mut case = case(name, shape);
    write(&mut case);
    let found = errors(case.b.finish());
    assert!(!found.is_empty(), "{expected}: was accepted");
    assert!(found.iter().all(|error| error == expected), "{expected}: found {found:?}");
}

const SM: &str = "sm_90a";

/// A constant address out of bounds is an error, unless the access has a mask.
#[test]
fn a_masked_access_may_be_out_of_bounds() {
    let plain = launch(128);
    for (masked, expected) in [(true, &[][..]), (false, &["OutOfBounds"])] {
        let mut case = case(SM, plain);
        let few = case.b.less(case.lane, 7u32);
        let mask = masked.then(|| Mask::or_zero(few));
        let from = Address::new(case.w, 1024u32);
        case.b.load_as(Type::U32, from, Width::B32, mask, Cache::Default);
        assert_eq!(errors(case.b.finish()), expected, "masked: {masked}");
    }
}

#[test]
fn the_kernels_of_the_other_tests_are_accepted() {
    for name in ["sm_80", "sm_89", SM] {
        for kernel in kernels::all(name) {
            assert_eq!(errors(kernel), [] as [&str; 0]);
        }
    }
}

#[test]
fn declarations() {
    let b = Builder::new("a", "", target("spirv").unwrap(), launch(32));
    assert_eq!(errors(b.finish()), ["NotAGpu"]);
    let plain = launch(64);
    refused("Name", plain, SM, |c| {
        c.b.buffer("w", Word::U32, Access::Constant, &[Extent::Constant(1)], "again");
    });
    refused("Name", plain, SM, |c| {
        c.b.variable("sum_3", Type::U32, Uniformity::Varying);
    });
    for (rule, wrong) in [
        ("Launch::PartialWarp", launch(33)),
        ("Launch::Threads", launch(2048)),
        ("Launch::ResidentThreads", LaunchConfig { min_blocks: 0, ..plain }),
        ("Launch::ResidentThreads", LaunchConfig { min_blocks: 33, ..plain }),
        ("Launch::Cluster", LaunchConfig { cluster: 9, ..plain }),
    ] {
        refused(rule, wrong, SM, |_| {});
    }
    // 120 KiB, of the 228 KiB of an SM.
    refused("Launch::ResidentShared", LaunchConfig { min_blocks: 2, ..plain }, SM, |c| {
        c.b.shared("half", Word::U32, 30_720, "more than half of an SM's");
    });
    refused("Unavailable", LaunchConfig { programmatic: true, ..plain }, "sm_80", |_| {});
    refused("SharedSize", plain, SM, |c| {
        c.b.shared("large", Word::U32, 58_112, "more than 227 KiB");
    });
    refused("Declaration::LongerThanAliased", plain, SM, |c| {
        c.b.shared_block("long", Word::U32, 257, "aliases a shorter block", 16, Some(c.tile));
    });
    refused("Declaration::Alignment", plain, SM, |c| {
        c.b.shared_block("askew", Word::U32, 8, "", 24, None);
    });
    refused("Declaration::Empty", plain, SM, |c| {
        c.b.shared_block("empty", Word::U32, 0, "", 16, None);
    });
    refused("Declaration::AlignedMoreThanAliased", plain, SM, |c| {
        c.b.shared_block("strict", Word::U32, 8, "", 128, Some(c.tile));
    });
    refused("Declaration::NoShape", plain, SM, |c| {
        c.b.buffer("scalar", Word::U32, Access::Constant, &[], "no dimensions");
    });
    // x may still be written; w is not loaded.
    for (buffer, cache) in [("x", Cache::Stream), ("w", Cache::Constant)] {
        refused("Declaration::CacheOfMap", plain, SM, |c| {
            let buffer = if buffer == "x" { c.x } else { c.w };
            let [extents, strides] = [64, 1].map(|size| vec![Extent::Constant(size)]);
            let (name, tile) = ("map".to_owned(), vec![64]);
            let swizzle = Swizzle::None;
            c.b.tensor(TensorMap { name, buffer, extents, strides, tile, swizzle, cache });
        });
    }
    refused("Unknown", plain, SM, |c| {
        let shape = [Extent::Parameter(ParameterId(0))];
        c.b.buffer("z", Word::U32, Access::Constant, &shape, "");
    });
}

#[test]
fn operands() {
    let plain = launch(64);
    refused("Unknown", plain, SM, |c| {
        let reg = Reg { id: RegisterId(99), at: 0 };
        c.b.push(Op::Copy { dst: reg, a: reg.into() });
    });
    refused("ArrayBounds", plain, SM, |c| {
        let array = c.b.array("four", Type::U32, 4, Uniformity::Varying);
        c.b.set(Reg { at: 4, ..array[0] }, 1u32);
    });
    refused("WrongType", plain, SM, |c| {
        c.b.binary(Binary::AddF32, c.lane, 1.0f32);
    });
    refused("Count", plain, SM, |c| {
        let dst = c.b.array("two", Type::U32, 2, Uniformity::Varying);
        c.b.load_into(&dst, Address::new(c.w, 0u32), Width::B128, None, Cache::Default);
    });
    refused("Value::NamedBarrier", plain, SM, |c| {
        c.b.push(Op::NamedBarrier { id: 16, threads: 64, wait: true });
    });
    refused("Value::BarrierThreads", plain, SM, |c| {
        c.b.push(Op::NamedBarrier { id: 1, threads: 33, wait: true });
    });
    refused("Value::PairOfCodes", plain, "sm_120a", |c| {
        c.b.unary(Unary::F16x2From(ConvertedCode::E2m3, 2), c.lane);
    });
    refused("Unavailable", plain, "sm_120", |c| {
        c.b.unary(Unary::F16x2From(ConvertedCode::E2m1, 3), c.lane);
    });
    refused("Value::LoopStep", plain, SM, |c| c.b.for_each(0u32, 4u32, 0u32, "i", |_, _| {}));
    refused("Unavailable", plain, "sm_80", |c| {
        c.b.binary(Binary::SubPacked(Half::Bf16), c.lane, c.lane);
    });
    refused("Unavailable", plain, "sm_89", |c| c.b.push(Op::FenceAsync));
    refused("ShuffleRange", plain, "sm_80", |c| {
        c.b.shuffle(Shuffle::Xor, c.lane, 32u32);
    });
    refused("CounterWritten", plain, SM, |c| {
        c.b.for_each(0u32, 4u32, 1u32, "i", |b, i| {
            b.set(i.reg().unwrap(), 0u32);
        });
    });
}

#[test]
fn memory() {
    let plain = launch(64);
    let values = [Operand::U32(0); 4];
    refused("BufferAccess", plain, SM, |c| {
        c.b.load(Address::new(c.y, c.lane), Width::B32);
    });
    for buffer in 0..2 {
        refused("BufferAccess", plain, SM, |c| {
            let to = Address::new([c.w, c.x][buffer], c.lane);
            c.b.store(to, &values[..1], Width::B32, None);
        });
    }
    refused("BufferAccess", plain, SM, |c| {
        let from = Address::new(c.x, c.lane);
        c.b.load_as(Type::U32, from, Width::B32, None, Cache::Stream);
    });
    refused("BufferAccess", plain, SM, |c| {
        let at = Address::new(c.y, 0u32);
        c.b.atomic(AtomicOp::Add, at, 1u32, MemoryOrder::Relaxed, Scope::Device);
    });
    refused("Misaligned", plain, SM, |c| {
        c.b.store(Address::new(c.tile, c.lane).plus(2), &values, Width::B128, None);
    });
    refused("OutOfBounds", plain, SM, |c| {
        c.b.store(Address::new(c.tile, c.lane).plus(256), &values[..1], Width::B32, None);
    });
    refused("OutOfBounds", plain, SM, |c| {
        c.b.load(Address::new(c.w, 1023u32).plus(1), Width::B32);
    });
    refused("WrongSpace", plain, SM, |c| {
        let (to, from) = (Address::new(c.y, 0u32), Address::new(c.w, 0u32));
        c.b.copy_async(to, from, Width::B128, None);
    });
    // Scaling instructions need scales, in bytes 0 to 3 of a register, and a chip that has them.
    let scaled = |chip, named: &str, scales: Option<u8>, c: &mut Case| {
        let row = MATRIX_OPS.iter().find(|row| row.name == named).unwrap();
        let [in_a, in_b, _] = row.registers(c.b.warp_size());
        let words = [c.b.fragment(Type::U32, in_a), c.b.fragment(Type::U32, in_b)];
        for register in words.iter().flatten() {
            c.b.set(*register, 0u32);
        }
        let (d, [a, b]) = (c.b.fragment(Type::F32, 4), words.clone());
        let scales = scales.map(|byte| words.clone().map(|of| MatrixScale { from: of[0], byte }));
        let [a, b] = [a, b].map(MatrixOperand::Registers);
        c.b.push(Op::Matrix { op: row, d, a, b, c: Accumulator::Zero, scales });
        assert_eq!(c.b.target().name, chip);
    };
    let (fp4, bf16) = ("mfma.scale.16x16x128.e2m1.e2m1", "mfma.16x16x32.bf16");
    refused("Count", plain, "gfx950", |c| scaled("gfx950", fp4, None, c));
    refused("Count", plain, "gfx950", |c| scaled("gfx950", bf16, Some(0), c));
    refused("Value::ScaleByte", plain, "gfx950", |c| scaled("gfx950", fp4, Some(4), c));
    refused("Unavailable", plain, "gfx942", |c| scaled("gfx942", fp4, Some(0), c));
    // Two scales of a lane are in bytes 0 and 1 or 2 and 3, four in all.
    let (two, four) = ("mma.scale.m16n8k64.e2m1", "mma.scale.m16n8k64.e2m1.e4m3");
    for (named, byte) in [(two, 1), (two, 3), (four, 1), (four, 2)] {
        refused("Value::ScaleByte", plain, "sm_120a", |c| scaled("sm_120a", named, Some(byte), c));
    }
    for sm in ["sm_120", "sm_90a"] {
        refused("Unavailable", plain, sm, |c| scaled(sm, two, Some(0), c));
    }
    let early = LaunchConfig { programmatic: true, ..plain };
    refused("BeforeGridWait", early, SM, |c| {
        c.b.load(Address::new(c.w, c.lane), Width::B32);
        c.b.load(Address::new(c.x, c.lane), Width::B32);
        c.b.push(Op::GridWait);
    });
    refused("Unavailable", plain, "sm_80", |c| {
        c.b.guess(Address::new(c.x, 0u32));
    });
    refused("BufferAccess", plain, SM, |c| {
        c.b.guess(Address::new(c.y, 0u32));
    });
    refused("WrongSpace", plain, SM, |c| {
        let shared = c.b.shared("words", Word::U32, 4, "words");
        c.b.guess(Address::new(shared, 0u32));
    });
    refused("BeforeGridWait", early, SM, |c| {
        let some = c.b.less(c.lane, 7u32);
        c.b.when(some, |b| b.push(Op::GridWait));
        c.b.store(Address::new(c.y, c.thread), &values[..1], Width::B32, None);
    });
}

#[test]
fn flow() {
    let plain = launch(64);
    refused("Divergent", plain, SM, |c| {
        let some = c.b.less(c.thread, 7u32);
        c.b.when(some, |b| b.barrier());
    });
    refused("Divergent", plain, SM, |c| {
        let end = c.lane;
        c.b.for_each(0u32, end, 1u32, "i", |b, i| {
            b.shuffle(Shuffle::Xor, i, 1u32);
        });
    });
    refused("NotUniform", plain, SM, |c| {
        let block = c.b.variable("same", Type::U32, Uniformity::Block);
        c.b.set(block, c.lane);
    });
    refused("NotUniform", plain, SM, |c| {
        let warp = c.b.special(Special::Warp);
        let first = c.b.equal(warp, 0u32);
        let block = c.b.variable("same", Type::U32, Uniformity::Block);
        c.b.when(first, |b| b.set(block, 1u32));
    });
    refused("Undefined", plain, SM, |c| {
        let reg = c.b.variable("never", Type::U32, Uniformity::Varying);
        c.b.add(reg, 1u32);
    });
    refused("Undefined", plain, SM, |c| {
        let reg = c.b.variable("sometimes", Type::U32, Uniformity::Varying);
        let some = c.b.less(c.thread, 7u32);
        c.b.when(some, |b| b.set(reg, 1u32));
        c.b.add(reg, 1u32);
    });
    refused("Undefined", plain, SM, |c| {
        let mut counter = None;
        c.b.for_each(0u32, 4u32, 1u32, "i", |_, i| counter = Some(i));
        c.b.add(counter.unwrap(), 1u32);
    });
}

/// A warp-group product of registers `a` and a tile, into `d`.
fn product(b: &mut Builder, tile: SharedId, d: &[Reg], a: &[Reg], c: Accumulator) {
    let op = matrix_op("wgmma.m64n8k16.bf16", b.target()).unwrap();
    let shared = SharedTile {
        block: tile,
        index: 0u32.into(),
        offset: 0,
        leading: 128,
        stride: 256,
        swizzle: Swizzle::None,
    };
    let (a, shared) = (MatrixOperand::Registers(a.to_vec()), MatrixOperand::Shared(shared));
    b.push(Op::Matrix { op, d: d.to_vec(), a, b: shared, c, scales: None });
}

#[test]
fn in_flight() {
    let group = launch(128);
    let fragments = |c: &mut Case| {
        let a = c.b.array("a", Type::U32, 4, Uniformity::Varying);
        a.iter().for_each(|reg| c.b.set(*reg, 0u32));
        (a, c.b.zeros("d", 4))
    };
    let wait = |b: &mut Builder, pending| {
        b.push(Op::MatrixCommit);
        b.push(Op::MatrixWait { pending });
    };
    refused("Unfenced", group, SM, |c| {
        let (a, d) = fragments(c);
        product(&mut c.b, c.tile, &d, &a, Accumulator::Zero);
        wait(&mut c.b, 0);
    });
    for mistake in ["the sum is read", "the operand is written", "another group is waited for"] {
        refused("InFlight", group, SM, |c| {
            let (a, d) = fragments(c);
            c.b.push(Op::MatrixFence);
            product(&mut c.b, c.tile, &d, &a, Accumulator::Registers(d.clone()));
            match mistake {
                "the sum is read" => {
                    c.b.add_f32(d[0], 1.0f32);
                }
                "the operand is written" => c.b.set(a[0], 1u32),
                _ => {
                    wait(&mut c.b, 1);
                    c.b.add_f32(d[0], 1.0f32);
                }
            }
            wait(&mut c.b, 0);
        });
    }
    // An iteration must not use what the previous one left in flight.
    refused("InFlight", group, SM, |c| {
        let (a, d) = fragments(c);
        let tile = c.tile;
        c.b.for_each(0u32, 4u32, 1u32, "i", |b, i| {
            b.set(a[0], i);
            b.push(Op::MatrixFence);
            product(b, tile, &d, &a, Accumulator::Registers(d.clone()));
            b.push(Op::MatrixCommit);
        });
        c.b.push(Op::MatrixWait { pending: 0 });
    });
    // Sums of a finished group are used while another one is in flight, in the next iteration too.
    refused("AcrossIterations", group, SM, |c| {
        let (a, d) = fragments(c);
        let other = c.b.zeros("other", 4);
        let tile = c.tile;
        c.b.push(Op::MatrixFence);
        c.b.for_each(0u32, 4u32, 1u32, "i", |b, _| {
            for d in [&d, &other] {
                b.push(Op::MatrixFence);
                product(b, tile, d, &a, Accumulator::Registers(d.clone()));
                wait(b, 1);
            }
            b.add_f32(d[0], 1.0f32);
        });
        c.b.push(Op::MatrixWait { pending: 0 });
    });
    // A wait on one path is none on the other.
    refused("InFlight", group, SM, |c| {
        let (a, d) = fragments(c);
        let same = c.b.special(Special::Blocks(0));
        let some = c.b.less(same, 7u32);
        c.b.push(Op::MatrixFence);
        product(&mut c.b, c.tile, &d, &a, Accumulator::Registers(d.clone()));
        c.b.push(Op::MatrixCommit);
        c.b.when(some, |b| b.push(Op::MatrixWait { pending: 0 }));
        c.b.add_f32(d[0], 1.0f32);
        c.b.push(Op::MatrixWait { pending: 0 });
    });
    // Of two paths with a group each, a wait that leaves one group leaves both.
    refused("InFlight", group, SM, |c| {
        let (a, d) = fragments(c);
        let other = c.b.zeros("other", 4);
        let (tile, same) = (c.tile, c.b.special(Special::Blocks(0)));
        let some = c.b.less(same, 7u32);
        c.b.push(Op::MatrixFence);
        let one = |d: &[Reg]| {
            let (a, d) = (a.clone(), d.to_vec());
            move |b: &mut Builder| {
                product(b, tile, &d, &a, Accumulator::Registers(d.clone()));
                wait(b, 1);
            }
        };
        c.b.if_else(some, one(&d), one(&other));
        c.b.push(Op::MatrixWait { pending: 1 });
        c.b.add_f32(d[0], 1.0f32);
        c.b.push(Op::MatrixWait { pending: 0 });
    });
    let mut right = case(SM, group);
    let (a, d) = fragments(&mut right);
    let tile = right.tile;
    right.b.for_each(0u32, 4u32, 1u32, "i", |b, i| {
        b.set(a[0], i);
        b.push(Op::MatrixFence);
        product(b, tile, &d, &a, Accumulator::Registers(d.clone()));
        wait(b, 0);
    });
    right.b.add_f32(d[0], 1.0f32);
    assert_eq!(errors(right.b.finish()), [] as [&str; 0]);
}

#[test]
fn roles() {
    let three = launch(384);
    let with = |first: u32, others: u32| {
        move |c: &mut Case| {
            let producer = c.b.role("producer", 0..4, Some(first), |_| {});
            let consumers = c.b.role("consumers", 4..12, Some(others), |_| {});
            c.b.roles(vec![producer, consumers]);
        }
    };
    // 65,536 registers / 384 threads = 168 per thread at launch: three warp groups share 504.
    for (first, others) in [(24, 240), (40, 232)] {
        let mut right = case(SM, three);
        with(first, others)(&mut right);
        assert_eq!(errors(right.b.finish()), [] as [&str; 0]);
    }
    refused("RegisterSum", three, SM, with(24, 248));
    refused("Roles::Registers", three, SM, with(24, 236));
    refused("Roles::Covered", three, SM, |c| {
        let first = c.b.role("producer", 0..4, None, |_| {});
        c.b.roles(vec![first]);
    });
    refused("Roles::NotLast", three, SM, |c| {
        let all = c.b.role("all", 0..12, None, |_| {});
        c.b.roles(vec![all]);
        c.b.barrier();
    });
    refused("Roles::Start", three, SM, |c| {
        let first = c.b.role("producer", 0..4, None, |_| {});
        let others = c.b.role("consumers", 5..12, None, |_| {});
        c.b.roles(vec![first, others]);
    });
    refused("Roles::NoRegisters", three, SM, |c| {
        let first = c.b.role("producer", 0..4, Some(24), |_| {});
        let others = c.b.role("consumers", 4..12, None, |_| {});
        c.b.roles(vec![first, others]);
    });
    refused("Roles::PartialWarpGroup", three, SM, |c| {
        let first = c.b.role("producer", 0..2, Some(24), |_| {});
        let others = c.b.role("consumers", 2..12, Some(24), |_| {});
        c.b.roles(vec![first, others]);
    });
    refused("Divergent", three, SM, |c| {
        let first = c.b.role("producer", 0..4, None, |b| b.barrier());
        let others = c.b.role("consumers", 4..12, None, |_| {});
        c.b.roles(vec![first, others]);
    });
}
