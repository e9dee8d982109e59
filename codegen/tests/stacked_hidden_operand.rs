//! First products of expert layers whose blocks write what the second product reads of h: the bytes that a kernel of its own makes of h.

use std::collections::HashSet;

use quantloom_codegen::ir::{Kernel, Op, Operand, Verified, verify};
use quantloom_codegen::jit::{Jit, JitWithOverrides, Overrides};
use quantloom_codegen::schedule::Stack;
use quantloom_dsl::Scheme;
use quantloom_dsl::experts::{ExpertProduct, Gate};
use quantloom_dsl::format::{BF16, F32};
use quantloom_runtime::gpu::{Products as _, Request};
use quantloom_runtime::source::{BufferRole, KernelKey, KernelSource as _, Refusal};
use quantloom_tests::sweep::Share;

use crate::experts::mutations::found;
use crate::kernels::mutation::{Mutation, gone, mutate};
use crate::kernels::products::catalogue;
use crate::kernels::stacked::{Bound, RandomStack, Routing, asked, scheme, stack};
use crate::stacked_compile::{LAYERS, all_compile};

/// Scales beside codes, in blocks of 128 columns and of 32, and in elements of 16 bits; a bias before the gate.
const SCHEMES: [(&str, &str); 5] = [
    (
        "fp8_block",
        "weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: e4m3 { scale: f32 per 1x128 }",
    ),
    (
        "powers",
        "weight: e4m3, scale: f32 per 128x128, pack: [k, n], \
         activation: e4m3 { scale: e8m0 per 1x128 from pow2 }",
    ),
    (
        "mxfp4",
        "weight: e2m1, scale: e8m0 per 1x32, pack: [k, n], activation: e2m1 { scale: e8m0 per 1x32 }",
    ),
    (
        "mxfp8",
        "weight: e4m3, scale: e8m0 per 1x32, pack: [k, n], activation: e4m3 { scale: e8m0 per 1x32 }",
    ),
    (
        "biased",
        "weight: e4m3, scale: f32 per 128x128, bias: bf16, pack: [k, n], \
         activation: e4m3 { scale: f32 per 1x128 }",
    ),
];
/// Experts, top k, tokens: token blocks that are full and that are not, an expert without a pair, absent experts.
const EXPERTS: u32 = 4;
const TOP_K: u32 = 3;
const TOKENS: usize = 60;
/// K of the first product: two k-tiles of bytes, the second one not full.
const HIDDEN: u32 = 200;

/// A layer, and its kernels.
struct Layer {
    random: RandomStack,
    slots: u32,
    fused: KernelKey,
    /// The first product alone, and what makes the operand of h.
    apart: [KernelKey; 2],
    /// Bytes of a row of the operand, and its scales.
    row: usize,
    groups: usize,
    /// Whether scales are in tiles of 32 slots.
    tiles: bool,
}

/// What is asked for a matrix [N, K].
fn of_matrix(scheme: &Scheme, (n, k): (u32, u32)) -> Request<'_> {
    Request::new(scheme, &scheme.activations[0], BF16, "sm_90a", [n.into(), k.into()])
}

/// The kernels of a layer.
struct Keys {
    slots: u64,
    fused: KernelKey,
    apart: [KernelKey; 2],
}

impl Keys {
    /// The kernels of a layer of so many columns of x and of h, experts and top k, for M tokens, each product's by a source; `None` if none does both.
    ///
    /// # Errors
    /// Why a product has no kernel.
    fn of(
        sources: [&JitWithOverrides; 2],
        (scheme, gate): (&Scheme, Gate),
        (hidden, i, experts, top_k): (u32, u32, u32, u32),
        tokens: u64,
    ) -> Result<Option<Self>, Refusal> {
        let requests = [of_matrix(scheme, (i, hidden)), of_matrix(scheme, (hidden, i))];
        let first = asked(gated(gate, experts, top_k), None, BF16);
        let gate_up = sources[0].choose_stacked(&requests[0], &first, tokens)?;
        let slots = Some(gate_up.slots);
        let second = asked(stack(ExpertProduct::Down, experts, top_k), slots, F32);
        let down = sources[1].choose_stacked(&requests[1], &second, tokens)?;
        let (products, choices) = ([&first, &second], [&gate_up, &down]);
        let fused = Jit.product_with_operand(requests.each_ref(), products, choices);
        let Some(fused) = fused? else { return Ok(None) };
        let kernel = Some(&down.choice.key);
        let operand = Jit.operand_stacked(&requests[1], &second, kernel, gate_up.slots);
        let [operand] = &operand.unwrap()[..] else { panic!("the operand has no kernel") };
        let apart = [gate_up.choice.key, operand.clone()];
        Ok(Some(Self { slots: gate_up.slots, fused, apart }))
    }

    /// Those of a case.
    fn of_case(case: &Case<'_>, scheme: &Scheme) -> Option<Self> {
        let own = format!("use warp_group; warp_group({})", case.tile);
        let sources = [&own, case.second.unwrap_or(&own)];
        let sources = sources.map(|text| JitWithOverrides::new(text.parse().unwrap()));
        let layer = (HIDDEN, case.i, EXPERTS, TOP_K);
        let keys = Self::of(sources.each_ref(), (scheme, case.gate), layer, TOKENS as u64);
        keys.unwrap_or_else(|why| panic!("{case:?}: {why}"))
    }
}

/// A first product with a gate.
fn gated(gate: Gate, experts: u32, top_k: u32) -> Stack {
    let shards = gate.shards() as u32;
    Stack { gate: Some(gate), shards, ..stack(ExpertProduct::GateUp, experts, top_k) }
}

/// A layer of the tests, and the tile of its products.
#[derive(Clone, Copy, Debug)]
struct Case<'c> {
    of: (&'c str, &'c str),
    gate: Gate,
    /// Columns of h.
    i: u32,
    tile: &'c str,
    /// What multiplies in the second product, if not the same.
    second: Option<&'c str>,
}

impl<'c> Case<'c> {
    const fn new(of: (&'c str, &'c str), i: u32, tile: &'c str) -> Self {
        Self { of, gate: Gate::Silu, i, tile, second: None }
    }

    /// The same with a gate of one matrix.
    const fn ungated(self) -> Self {
        Self { gate: Gate::UngatedSilu, ..self }
    }

    /// The same with another schedule for the second product.
    const fn read_by(self, second: &'c str) -> Self {
        Self { second: Some(second), ..self }
    }

    /// Whether a kernel does both.
    fn has_kernel(&self) -> bool {
        Keys::of_case(self, &scheme(self.of)).is_some()
    }
}

/// The layer of a case with random numbers.
fn layer(case: &Case<'_>) -> Layer {
    let scheme = scheme(case.of);
    let keys = Keys::of_case(case, &scheme);
    let Keys { slots, fused, apart } = keys.unwrap_or_else(|| panic!("no kernel: {case:?}"));
    let gate_up = Stack { gate: None, ..gated(case.gate, EXPERTS, TOP_K) };
    let (shape, routed) = ((case.i, HIDDEN), (TOKENS, Routing::Random));
    let random = RandomStack::draw(&scheme, "sm_90a", shape, gate_up, routed, 5).unwrap();
    let random = random.read_by(&apart[0]);
    let kernel = Jit.kernel(&apart[1]).unwrap();
    let bytes = |role| {
        let buffer = kernel.buffers.iter().find(|buffer| buffer.role == Some(role))?;
        let words = buffer.shape.last()?.value(&[])?;
        Some((words * buffer.word.bytes()) as usize)
    };
    let row = bytes(BufferRole::Operand).unwrap();
    let groups = bytes(BufferRole::OperandScale).map_or(0, |bytes| bytes / 4);
    let tiles = case.second.is_none();
    Layer { random, slots: slots as u32, fused, apart, row, groups, tiles }
}

impl Layer {
    /// Compares what both ways write for slots with a pair; in token blocks in use others have codes of 0 and some scale, elsewhere nothing
    /// is written.
    ///
    /// # Errors
    /// What differs, or what the verifier or the simulator says.
    fn check(&self, change: impl Fn(&mut Kernel)) -> Result<(), String> {
        let kernel = |key: &KernelKey| Jit.kernel(key).unwrap();
        let mut fused = Kernel::clone(&kernel(&self.fused));
        change(&mut fused);
        let fused: Verified<Kernel> = verify(fused).map_err(|refusals| refusals.to_string())?;
        let (run, written) = self.random.run_all(&fused, self.slots, 3)?;
        let h = self.random.run(&kernel(&self.apart[0]), self.slots, 0)?;
        assert_eq!(run.of_slots, h.of_slots);
        let conflicts = run.report.conflicts();
        if conflicts > h.report.conflicts() {
            return Err(format!("{conflicts} conflicts of banks"));
        }
        let alone = self.random.operand_of(&kernel(&self.apart[1]), &h)?;
        let of = |all: &[Bound], role| {
            all.iter().find(|(own, _)| *own == role).map(|(_, contents)| contents.bytes.clone())
        };
        let codes = [(&written, BufferRole::HiddenOperand), (&alone, BufferRole::Operand)];
        let [codes, expected] = codes.map(|(all, role)| of(all, role).unwrap());
        let scales = [(&written, BufferRole::HiddenScale), (&alone, BufferRole::OperandScale)];
        let [scales, expected_scales] = scales.map(|(all, role)| of(all, role).unwrap_or_default());
        let pairs = TOKENS as u32 * TOP_K;
        let used = run.of_slots.iter().filter(|pair| **pair < pairs).count();
        assert!(used > 96, "{used} slots");
        for (slot, pair) in run.of_slots.iter().enumerate() {
            let row = slot * self.row..(slot + 1) * self.row;
            let place = |group| match self.tiles {
                true => 4 * ((slot / 32 * self.groups + group) * 32 + slot % 32),
                false => 4 * (slot * self.groups + group),
            };
            let scale = |of: &[u8], group| of[place(group)..place(group) + 4].to_vec();
            let unwritten = |group: &usize| scale(&scales, *group) == [0xcd; 4];
            if *pair == u32::MAX {
                if codes[row].iter().any(|byte| *byte != 0) {
                    return Err(format!("slot {slot} has no pair, and codes"));
                }
                if let Some(group) = (0..self.groups).find(unwritten) {
                    return Err(format!("scale {group} of slot {slot} is not written"));
                }
            } else if *pair < pairs {
                if codes[row.clone()] != expected[row] {
                    return Err(format!("codes of slot {slot} differ"));
                }
                let differs =
                    |group: &usize| scale(&scales, *group) != scale(&expected_scales, *group);
                if let Some(group) = (0..self.groups).find(differs) {
                    return Err(format!("scale {group} of slot {slot} differs"));
                }
            } else if codes[row].iter().any(|byte| *byte != 0xcd)
                || !(0..self.groups).all(|group| unwritten(&group))
            {
                return Err(format!("slot {slot} of no token block in use is written"));
            }
        }
        Ok(())
    }
}

const TILE: &str = "unswapped=0, tokens=32, groups=2, row_tiles=2, stages=3, batch=4";
/// Two warp groups have 128 columns of h, four have 256, with which 24 slots are not whole rounds of the threads; the last tile of
/// 384 columns is half full then.
#[test]
fn blocks_write_what_a_kernel_makes_of_h() {
    let of_one_matrix = TILE.replace("row_tiles=2", "row_tiles=1").replace("batch=4", "batch=2");
    let of_four = TILE.replace("groups=2", "groups=4");
    let few = of_four.replace("tokens=32", "tokens=24");
    let of_three = TILE.replace("groups=2", "groups=3");
    let [fp8, powers, mxfp4, mxfp8, biased] = SCHEMES;
    let cases = [
        Case::new(fp8, 256, TILE),
        Case::new(fp8, 384, TILE),
        Case::new(biased, 256, TILE),
        Case::new(fp8, 256, &of_one_matrix).ungated(),
        Case::new(powers, 256, TILE),
        Case::new(mxfp4, 256, TILE),
        Case::new(mxfp4, 384, &of_four),
        Case::new(mxfp4, 512, &few),
        Case::new(mxfp8, 384, TILE),
        Case::new(mxfp8, 512, &few),
        Case::new(mxfp8, 384, &of_three),
        Case::new(fp8, 256, TILE).read_by("use tile"),
        Case::new(mxfp4, 256, TILE).read_by("use tile"),
    ];
    for case in cases {
        layer(&case).check(|_| {}).unwrap_or_else(|why| panic!("{case:?}: {why}"));
    }
}

/// One group has 64 of 128 columns, and so have tiles whose operands are not swapped; scales of rows and of all of h, static ones, and
/// coarser groups do not follow from the columns of a block; columns beyond I are zeros; a warp group has one tile of rows of h.
#[test]
fn only_where_a_block_has_whole_groups() {
    let does = |of, i, tile: &str| Case::new(of, i, tile).has_kernel();
    let [fp8, _, _, mxfp8, _] = SCHEMES;
    assert!(does(fp8, 256, TILE) && !does(fp8, 200, TILE));
    let of_one = TILE.replace("groups=2", "groups=1");
    assert!(!does(fp8, 256, &of_one) && does(mxfp8, 256, &of_one));
    let unswapped = "unswapped=1, tokens=64, groups=2, row_tiles=1, stages=3, batch=1";
    let ungated = |tile| Case::new(fp8, 256, tile).ungated().has_kernel();
    assert!(!does(fp8, 256, unswapped) && !ungated(unswapped) && !ungated(TILE));
    let e4m3 = "weight: e4m3, pack: [k, n]";
    let channels = "activation: e4m3 { scale: f32 per token }, scale: f32 per channel";
    let others = [
        (channels, TILE.to_owned() + ", exact=0"),
        (
            "scale: f32 per 128x128, activation: e4m3 { scale: f32 per 1x128, scale: f32 per tensor static }",
            TILE.to_owned(),
        ),
        (
            "scale: f32 per 128x128, activation: e4m3 { scale: f32 per 1x128, scale: f32 per 1x256 }",
            TILE.to_owned(),
        ),
    ];
    // Of the coarser groups four warp groups have whole ones, where I has.
    let levels = format!("{e4m3}, {}", others[2].0);
    let of_four = TILE.replace("groups=2", "groups=4").replace("batch=4", "batch=1");
    let whole = |i| Case::new(("levels", &levels), i, &of_four).has_kernel();
    assert!(whole(512) && !whole(384));
    for (clauses, tile) in others {
        let clauses = format!("{e4m3}, {clauses}");
        assert!(!Case::new(("other", &clauses), 256, &tile).has_kernel(), "{clauses}");
    }
}

/// The vendor's assembler takes what is chosen without spills; schemes whose scales of x are by rows have no such kernel.
#[test]
fn kernels_that_write_the_operand_of_h_compile() {
    let (mut texts, mut seen) = (Vec::new(), HashSet::new());
    let source = JitWithOverrides::new(Overrides::default());
    for scheme in catalogue().iter().filter(|scheme| scheme.experts.is_none()) {
        let cases = LAYERS.iter().flat_map(|layer| [64, 256].map(|tokens| (*layer, tokens)));
        for (layer, tokens) in cases {
            let keys = Keys::of([&source; 2], (scheme, Gate::Silu), layer, tokens);
            let Ok(Some(keys)) = keys else { continue };
            assert_eq!(keys.slots % 8, 0);
            let text = Jit.text(&keys.fused).unwrap();
            if seen.insert(text.text.replace(&*text.entry, "")) {
                texts.push((scheme.name.clone(), "sm_90a", text.text.into_owned()));
            }
        }
    }
    let of = |name: &str| texts.iter().any(|(scheme, ..)| scheme == name);
    assert!(of("ct_fp8_block") && of("ct_mxfp4") && !of("ct_w8a8") && !of("ct_w4a16"));
    all_compile(&Share::new(8, 3).of(texts));
}

#[test]
fn mistakes_in_the_operand_of_h_are_found() {
    let mutations: [(&str, Mutation); 6] = [
        ("codes of the first columns of h alone", |location, op| {
            if let Op::Store { to, .. } = op
                && location.is(to.space, "h_operand")
            {
                to.index = 0u32.into();
            }
        }),
        ("no scales", |location, op| {
            if let Op::Store { to, .. } = op
                && location.is(to.space, "h_scale")
            {
                gone(op);
            }
        }),
        ("scales of a slot further", |location, op| {
            if let Op::Store { to, .. } = op
                && location.is(to.space, "h_scale")
            {
                to.offset += 1;
            }
        }),
        ("the vector of another place of a line", |location, op| {
            if let Op::Load { from, .. } = op
                && location.is(from.space, "y_lines")
            {
                from.offset ^= 4;
            }
        }),
        ("a group's largest magnitude from half of the lanes", |_, op| {
            if let Op::Shuffle { by: by @ Operand::U32(8), .. } = op {
                *by = 0u32.into();
            }
        }),
        ("no wait for the grid before", |_, op| {
            if *op == Op::GridWait {
                gone(op);
            }
        }),
    ];
    let layer = layer(&Case::new(SCHEMES[0], 256, TILE));
    for (what, mutation) in mutations {
        found(what, mutation, |change| layer.check(change));
    }
    // All groups meet before lines are written, and before they are read.
    for without in 0..2 {
        let barriers = std::cell::Cell::new(0);
        let outcome = layer.check(|kernel| {
            mutate(kernel, |_, op| {
                let meets = matches!(op, Op::NamedBarrier { id: 3, .. });
                if meets && barriers.replace(barriers.get() + 1) == without {
                    gone(op);
                }
            });
        });
        assert!(outcome.is_err(), "not found: no barrier {without}");
    }
}
