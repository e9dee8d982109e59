//! Calls of whole expert layers on simulated GPUs: edges, and what decides nothing.
use std::sync::Arc;

use quantloom::codegen::jit::{JitWithOverrides, Simulator};
use quantloom::runtime::element::bf16;
use quantloom::runtime::experts::{
    ExpertCall, ExpertError, ExpertLayer, ExpertMatrices, ExpertOp as _, ExpertOptions, Routed,
};
use quantloom::runtime::gpu::{GpuDevice, GpuExpertLayer, PlanKey, RoutedBy};
use quantloom::runtime::op::{Values, ValuesMut, Workspace};
use quantloom::runtime::pack::pack;
use quantloom::runtime::unpacked::Unpacked;
use quantloom_dsl::Scheme;
use quantloom_dsl::format::{BF16, F32};
use quantloom_dsl::layout::Shape;
use quantloom_tools::conformance::draw;

const LAYER: &str = "8 experts of 64 x 96, top 2, softmax renormalised, silu";
const TOKENS: usize = 9;

fn scheme() -> &'static Scheme {
    quantloom_kernels::scheme("ct_w4a16").unwrap()
}

fn matrix(scheme: &Scheme, (n, k): (u64, u64), seed: u64) -> Unpacked {
    let shape = Shape::matrix(n, k);
    let packed = pack(scheme, &draw::layer(scheme, shape, seed)).unwrap();
    Unpacked::new(scheme, shape, &|name: &str| packed.get(name).map(Vec::as_slice)).unwrap()
}

fn prepared(simulator: Simulator, options: &ExpertOptions) -> GpuExpertLayer<Simulator> {
    prepared_of(scheme(), LAYER, (simulator, options))
}

fn prepared_of(
    scheme: &Scheme,
    layer: &str,
    (simulator, options): (Simulator, &ExpertOptions),
) -> GpuExpertLayer<Simulator> {
    let layer: ExpertLayer = layer.parse().unwrap();
    let matrices = matrices(scheme, layer.intermediate);
    GpuDevice::new(simulator).prepare_layer(&layer, &matrices, options).unwrap()
}

/// Those of 8 experts, H = 64.
fn matrices(scheme: &Scheme, i: u64) -> ExpertMatrices {
    let shard = |number| matrix(scheme, (i, 64), 100 + number);
    let gate_up = (0..8u64).map(|expert| vec![shard(2 * expert), shard(2 * expert + 1)]).collect();
    let down = (0..8u64).map(|expert| matrix(scheme, (64, i), 200 + expert)).collect();
    ExpertMatrices::new(gate_up, down).unwrap()
}

fn simulator() -> Simulator {
    Simulator::new("sm_90a").unwrap()
}

/// Numbers between -1 and 1.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn x() -> Vec<bf16> {
    let bits = |value: &f32| bf16::from_bits((value.to_bits() >> 16) as u16);
    numbers(TOKENS * 64, 3).iter().map(bits).collect()
}

/// Ids of two tokens that are equal, of two experts alone, and none.
fn ids() -> Vec<i32> {
    let mut ids: Vec<i32> = (0..2 * TOKENS as i32).map(|pair| pair * 5 % 8).collect();
    ids[..6].copy_from_slice(&[3, 3, 3, 0, -1, -1]);
    ids
}

fn y(
    layer: &GpuExpertLayer<Simulator>,
    x: &[bf16],
    routed: Routed<'_>,
) -> Result<Vec<f32>, ExpertError> {
    let mut y = vec![0.0; x.len()];
    let call = ExpertCall { x: Values::Bf16(x), routed, shared: None };
    layer.forward_into(&call, ValuesMut::F32(&mut y), &mut Workspace::default())?;
    Ok(y)
}

/// The order of blocks, warps and lanes decides nothing; a token's y does not depend on the others, but for
/// the choice of kernels, which M decides.
#[test]
fn every_run_gives_the_same_bits() {
    let (x, ids, weights) = (x(), ids(), numbers(2 * TOKENS, 5));
    let routed = Routed::Chosen { ids: &ids, weights: &weights };
    let run =
        |seed| y(&prepared(simulator().with_seed(seed), &ExpertOptions::default()), &x, routed);
    let first = run(0).unwrap();
    assert!(first[2 * 64..3 * 64].iter().all(|y| *y == 0.0), "a token without an expert");
    assert!(first[..64].iter().any(|y| *y != 0.0));
    for seed in 1..4 {
        assert_eq!(run(seed).unwrap(), first, "seed {seed}");
    }
    // A NaN stays in its token.
    let mut other = x.clone();
    other[64 + 5] = bf16::from_bits(0x7fc0);
    let layer = prepared(simulator(), &ExpertOptions::default());
    let second = y(&layer, &other, routed).unwrap();
    for (at, (second, first)) in second.iter().zip(&first).enumerate() {
        match at / 64 {
            1 => assert!(second.is_nan(), "{at}: {second}"),
            token => assert_eq!(second, first, "token {token}"),
        }
    }
}

/// Experts that kernels choose are those that the host chooses, and their weights within a few units.
#[test]
fn experts_are_chosen_on_the_device_too() {
    let layer = prepared(simulator(), &ExpertOptions::default());
    let (x, logits) = (x(), numbers(TOKENS * 8, 11));
    let call = ExpertCall { x: Values::Bf16(&x), routed: Routed::Logits(&logits), shared: None };
    let mut tensors = layer.tensors(&call).unwrap();
    layer.queue(&mut tensors, false).unwrap();
    let device = layer.result(&tensors).unwrap();
    let mut host = vec![bf16::ZERO; x.len()];
    let to = ValuesMut::Bf16(&mut host);
    layer.forward_into(&call, to, &mut Workspace::default()).unwrap();
    for (at, (device, host)) in device.chunks_exact(2).zip(&host).enumerate() {
        let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        let device = wide(u16::from_le_bytes([device[0], device[1]]));
        let host = wide(host.to_bits());
        // Weights differ by units of f32, so that y is rounded to a neighbour at most.
        assert!((device - host).abs() <= host.abs().max(1e-6) / 128.0, "{at}: {device}, {host}");
    }
}

/// One token needs no order of pairs, the first product applies the gate, and the second one adds the experts, whatever
/// shared experts give.
#[test]
fn one_token_is_two_launches() {
    let layer = prepared(simulator(), &ExpertOptions::default());
    let works = |tokens| -> Vec<String> {
        let work = |kernel: String| kernel.split(',').next().unwrap().to_owned();
        layer.kernels(tokens).into_iter().map(work).collect()
    };
    assert_eq!(works(1).len(), 2, "{:?}", works(1));
    assert!(works(1)[1].starts_with("direct weighted combined down product"), "{:?}", works(1));
    let shared = Some(BF16);
    let key = PlanKey { element: BF16, output: F32, tokens: 1, routed: RoutedBy::Logits, shared };
    assert_eq!(layer.plan(key).unwrap().launches(), 3);
    // Eight tokens have 2.2 pairs for each of 7.2 experts, which blocks find by themselves; nine have 2.4.
    assert_eq!((works(3).len(), works(8).len()), (2, 2), "{:?}", works(8));
    let said = layer.explain(8);
    let finds = |line: &&str| line.contains("blocks that find the pairs of an expert");
    let all: Vec<&str> = said.lines().filter(finds).collect();
    let of_first = all.iter().all(|line| line.starts_with("first product"));
    assert!(!all.is_empty() && of_first, "{said}");
    // On other GPUs each pair has blocks of its own, where it has any.
    let other = prepared(Simulator::new("wgsl").unwrap(), &ExpertOptions::default());
    let said = [3, 8].map(|tokens| other.explain(tokens));
    assert!(said[0].contains("not pairs as they are"), "{}", said[0]);
    assert!(!said[1].contains("as they are") && !said[1].contains("find"), "{}", said[1]);
    let more = works(9);
    assert_eq!((more.len(), &*more[0]), (4, "pairs sorted by expert"), "{more:?}");
    // The one token of a call is what it is among others, within the order of the sums.
    let (x, ids, weights) = (x(), ids(), numbers(2 * TOKENS, 5));
    let all = y(&layer, &x, Routed::Chosen { ids: &ids, weights: &weights }).unwrap();
    for token in 0..TOKENS {
        let (ids, weights) = (&ids[2 * token..][..2], &weights[2 * token..][..2]);
        let alone = y(&layer, &x[64 * token..][..64], Routed::Chosen { ids, weights }).unwrap();
        for (column, (alone, among)) in alone.iter().zip(&all[64 * token..]).enumerate() {
            let close = (alone - among).abs() <= 1e-2 * (1.0 + among.abs());
            assert!(close, "y[{token}, {column}]: {alone}, {among}");
        }
    }
}

/// What needs no order comes before it, so that the first product may start while pairs are sorted, or in the same kernel:
/// x times router weights, and an operand of a row per token. (One of a row per slot reads the order: it would be wrong
/// before.)
#[test]
fn the_order_comes_right_before_its_first_reader() {
    let on_input = "8 experts of 64 x 96, top 1, softmax, silu, weight on input";
    let sorted = "pairs sorted by expert";
    for (scheme, layer, expected) in [
        ("ct_w4a16", LAYER, [sorted, "gate_up"]),
        ("ct_w8a8", LAYER, ["pairs sorted by expert, and x in bf16", "gate_up"]),
        ("quark_w8a8_int8_tensor", LAYER, ["x in bf16", "x in bf16"]),
        ("gptq4_v2_actorder", LAYER, ["pairs sorted by expert, and x in f16", "gate_up"]),
        ("ct_w4a16", on_input, ["x in bf16 times router weights", sorted]),
    ] {
        let scheme = quantloom_kernels::scheme(scheme).unwrap();
        let options = ExpertOptions::default();
        let layer = prepared_of(scheme, layer, (simulator(), &options));
        let kernels = layer.kernels(3 * TOKENS);
        let begin = kernels.iter().zip(expected).all(|(kernel, work)| kernel.starts_with(work));
        assert!(begin, "{}: {kernels:?}", scheme.name);
    }
}

/// A first product that writes what the second one reads is one kernel, which `explain` names; beside another gate there is one between.
#[test]
fn a_first_product_that_writes_an_operand_is_one_launch() {
    let scheme = quantloom_kernels::scheme("fp8_block").unwrap();
    let choices = "use warp_group; warp_group(unswapped=0, tokens=32, groups=2, row_tiles=2, stages=4, batch=4)";
    let source = Arc::new(JitWithOverrides::new(choices.parse().unwrap()));
    let of = |columns: u32| {
        let simulator = Simulator::new("sm_90a").unwrap().with_source(source.clone());
        let text = format!("8 experts of 64 x {columns}, top 2, softmax, silu");
        let layer = prepared_of(scheme, &text, (simulator, &ExpertOptions::default()));
        let said = layer.explain(TOKENS);
        let first = said.lines().find(|line| line.starts_with("first product")).unwrap();
        (layer.kernels(TOKENS), first.to_owned())
    };
    let writes = "gate_up and silu product of 8-bit codes to x in bf16 for products of 8-bit codes";
    let (kernels, first) = of(128);
    assert!(kernels.len() == 4 && kernels[1].starts_with(writes), "{kernels:?}");
    assert!(first.contains(writes), "{first}");
    let (kernels, first) = of(96);
    assert!(kernels.len() == 5 && kernels[2].starts_with("down x in bf16"), "{kernels:?}");
    assert!(!first.contains("to x in"), "{first}");
}

/// Parts of 16 bits: where f32 is more bytes than are allowed, and y has 16 bits.
#[test]
fn many_parts_are_rounded() {
    let parts = (2 * TOKENS * 64 * 4) as u64;
    let of = |most_f32_parts: u64| {
        let mut options = ExpertOptions::default();
        options.most_f32_parts = most_f32_parts;
        prepared(simulator(), &options)
    };
    let (wide, narrow) = (of(parts), of(parts - 1));
    let sums = |layer: &GpuExpertLayer<Simulator>, tokens| {
        layer.kernels(tokens).last().unwrap().split(',').next().unwrap().to_owned()
    };
    assert_eq!(sums(&wide, TOKENS), "weighted sum of experts to bf16");
    assert_eq!(sums(&narrow, TOKENS), "weighted sum of experts in bf16 to bf16");
    // Fewer bytes are not too many.
    assert_eq!(wide.rounds_parts(BF16, BF16, TOKENS + 1), BF16);
    assert_eq!([&wide, &narrow].map(|layer| layer.rounds_parts(BF16, BF16, TOKENS)), [F32, BF16]);
    assert_eq!(narrow.rounds_parts(BF16, F32, TOKENS), F32);
    let said = "parts are rounded to bf16: in f32 they are more than 4607 bytes";
    assert!(narrow.explain(TOKENS).contains(said), "{}", narrow.explain(TOKENS));
    assert!(!wide.explain(TOKENS).contains("parts are rounded"));
    assert!(narrow.workspace_size(TOKENS) < wide.workspace_size(TOKENS));

    let (x, ids, weights) = (x(), ids(), numbers(2 * TOKENS, 5));
    let routed = Routed::Chosen { ids: &ids, weights: &weights };
    let call = ExpertCall { x: Values::Bf16(&x), routed, shared: None };
    let in_bf16 = |layer: &GpuExpertLayer<Simulator>| {
        let mut y = vec![bf16::ZERO; x.len()];
        layer.forward_into(&call, ValuesMut::Bf16(&mut y), &mut Workspace::default()).unwrap();
        y.into_iter().map(|y| f32::from_bits(u32::from(y.to_bits()) << 16)).collect::<Vec<_>>()
    };
    let (rounded, exact) = (in_bf16(&narrow), in_bf16(&wide));
    assert_eq!(rounded, in_bf16(&narrow));
    assert!(rounded != exact);
    // The two terms of each sum, by calls without the other one.
    let terms = [0, 1].map(|left| {
        let mut ids = ids.clone();
        ids.iter_mut().skip(left).step_by(2).for_each(|id| *id = -1);
        y(&wide, &x, Routed::Chosen { ids: &ids, weights: &weights }).unwrap()
    });
    for (at, (rounded, exact)) in rounded.iter().zip(&exact).enumerate() {
        // Half a unit of bf16 of each term and of both results; what f32 loses is below a hundredth of that.
        let size = terms[0][at].abs() + terms[1][at].abs() + rounded.abs() + exact.abs();
        let bound = 1.01 * size / 256.0;
        assert!((rounded - exact).abs() <= bound, "{at}: {rounded}, {exact}");
    }
    // y in f32 has no rounded parts.
    assert_eq!(y(&narrow, &x, routed).unwrap(), y(&wide, &x, routed).unwrap());
}

/// A workspace for few tokens cuts a call into chunks.
#[test]
fn a_small_workspace_cuts_tokens_into_chunks() {
    let (x, ids, weights) = (x(), ids(), numbers(2 * TOKENS, 5));
    let routed = Routed::Chosen { ids: &ids, weights: &weights };
    let whole = y(&prepared(simulator(), &ExpertOptions::default()), &x, routed).unwrap();
    let mut options = ExpertOptions::default();
    let full = prepared(simulator(), &options).workspace_size(TOKENS);
    options.most_workspace = full as u64 / 2;
    let layer = prepared(simulator(), &options);
    assert!(layer.explain(TOKENS).contains("chunks"), "{}", layer.explain(TOKENS));
    assert!(layer.workspace_size(TOKENS) <= full / 2);
    for (at, (cut, whole)) in y(&layer, &x, routed).unwrap().iter().zip(&whole).enumerate() {
        // Other kernels may add in another order.
        assert!((cut - whole).abs() <= 1e-4 * (1.0 + whole.abs()), "{at}: {cut}, {whole}");
    }
    options.most_workspace = 64;
    let refused = y(&prepared(simulator(), &options), &x, routed);
    assert!(matches!(refused, Err(ExpertError::Workspace { most: 64, .. })), "{refused:?}");
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let layer = prepared(simulator(), &ExpertOptions::default());
    let (x, good, weights) = (x(), ids(), numbers(2 * TOKENS, 5));
    let with = |ids: &[i32]| y(&layer, &x, Routed::Chosen { ids, weights: &weights });
    let mut ids = good.clone();
    ids[7] = 8;
    let Err(ExpertError::Expert { token: 3, choice: 1, id: 8, experts: 8 }) = with(&ids) else {
        panic!("an id of 8")
    };
    assert!(matches!(with(&good[1..]), Err(ExpertError::Length { .. })));
    let rows = y(&layer, &x[1..], Routed::Chosen { ids: &good, weights: &weights });
    assert!(matches!(rows, Err(ExpertError::Rows { hidden: 64, .. })));
    let mut logits = numbers(TOKENS * 8, 1);
    logits[10] = f32::NAN;
    let refused = y(&layer, &x, Routed::Logits(&logits));
    assert!(matches!(refused, Err(ExpertError::NotFinite { token: 1, expert: 2, .. })));
    let none = y(&layer, &[], Routed::Chosen { ids: &[], weights: &[] });
    assert_eq!(none.unwrap(), [0.0; 0]);
    let counts = [3u32; 8];
    let refused = y(&layer, &x, Routed::Batched { counts: &counts, most: 2 });
    assert!(matches!(refused, Err(ExpertError::Length { .. })));
}

/// As on the CPU: lengths are compared with those of the call, and sizes beyond any memory are no call.
#[test]
fn sizes_are_those_of_the_call() {
    let layer = prepared(simulator(), &ExpertOptions::default());
    let (x, logits) = (x(), numbers(TOKENS * 8, 1));
    let rows = y(&layer, &x[1..], Routed::Logits(&logits));
    assert!(matches!(rows, Err(ExpertError::Rows { hidden: 64, .. })), "{rows:?}");
    let short = y(&layer, &x, Routed::Logits(&logits[1..]));
    assert!(matches!(short, Err(ExpertError::Length { expected: 72, found: 71, .. })), "{short:?}");
    let huge = y(&layer, &[], Routed::Batched { counts: &[0; 8], most: 1 << 62 });
    assert!(matches!(huge, Err(ExpertError::Length { .. })), "{huge:?}");
    assert!(!layer.explain(usize::MAX).is_empty());
    // A score bias that the routing does not add.
    let mut options = ExpertOptions::default();
    options.score_bias = Some(vec![0.5; 8]);
    let matrices = || matrices(scheme(), 96);
    let refused =
        GpuDevice::new(simulator()).prepare_layer(&LAYER.parse().unwrap(), &matrices(), &options);
    assert!(matches!(refused.map(drop), Err(ExpertError::Length { expected: 0, found: 8, .. })));
}

/// x that is not finite is refused where x is quantised, unless no expert reads the row.
#[test]
fn quantised_x_is_finite() {
    for (target, name) in
        [("sm_90a", "arm_w4a8_g32"), ("sm_90a", "ct_fp8_dynamic"), ("wgsl", "arm_w4a8_g32")]
    {
        let simulator = Simulator::new(target).unwrap();
        let scheme = quantloom_kernels::scheme(name).unwrap();
        let layer = prepared_of(scheme, LAYER, (simulator, &ExpertOptions::default()));
        let (mut x, ids, weights) = (x(), ids(), numbers(2 * TOKENS, 5));
        let routed = Routed::Chosen { ids: &ids, weights: &weights };
        for value in [f32::NAN, f32::INFINITY] {
            // Token 2 has no experts.
            for (token, refused) in [(2, false), (3, true)] {
                let kept = std::mem::replace(&mut x[token * 64 + 9], bf16::from_f32(value));
                let found = y(&layer, &x, routed).map_err(|error| error.to_string());
                x[token * 64 + 9] = kept;
                let place = format!("x[{token}, 9] is");
                match found {
                    Ok(_) => assert!(!refused, "{target}, {name}, {value}"),
                    Err(said) => assert!(refused && said.starts_with(&place), "{said}"),
                }
            }
        }
        let mut batched = vec![bf16::from_f32(0.5); 8 * 2 * 64];
        batched[3 * 64] = bf16::NAN;
        let rows = |counts: &[u32; 8]| {
            y(&layer, &batched, Routed::Batched { counts, most: 2 })
                .map_err(|error| error.to_string())
        };
        // The second row of expert 1.
        assert!(rows(&[2, 1, 2, 2, 2, 2, 2, 2]).is_ok());
        assert!(rows(&[0, 2, 0, 0, 0, 0, 0, 0]).unwrap_err().starts_with("x[3, 0] is NaN"));
    }
}

/// Calls that share a workspace and y give what each gives with its own, one after another; a call of another number of tokens has
/// another plan, and shares nothing.
#[test]
fn calls_share_a_workspace() {
    let layer = prepared(simulator(), &ExpertOptions::default());
    let (x, other_ids) = (x(), ids().into_iter().rev().collect::<Vec<_>>());
    let other_x: Vec<bf16> = x.iter().rev().copied().collect();
    let weights = vec![0.5; 2 * TOKENS];
    let all_ids = ids();
    let call = |x, ids, weights| ExpertCall {
        x: Values::Bf16(x),
        routed: Routed::Chosen { ids, weights },
        shared: None,
    };
    let calls = [call(&x, &all_ids, &weights), call(&other_x, &other_ids, &weights)];
    let result = |own: &mut _| {
        layer.queue(own, true).unwrap();
        layer.result(own).unwrap()
    };
    let mut apart = calls.each_ref().map(|call| layer.tensors(call).unwrap());
    let expected = apart.each_mut().map(result);
    assert_ne!(expected[0], expected[1]);
    let mut shared = layer.tensors(&calls[0]).unwrap();
    for at in [1, 0, 1] {
        assert!(shared.read_inputs_of(&apart[at]));
        assert_eq!(result(&mut shared), expected[at], "call {at}");
    }
    let fewer = call(&x[..64], &all_ids[..2], &weights[..2]);
    assert!(!shared.read_inputs_of(&layer.tensors(&fewer).unwrap()));
    assert_eq!(result(&mut shared), expected[1]);
}
