//! Whole expert layers on the CPU: every scheme of the catalogue within derived bounds, the same bits on
//! any number of threads, and the edges of a call.

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::ExpertLayer;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::element::{Values, ValuesMut};
use quantloom_runtime::experts::{ExpertCall, ExpertError, ExpertOp, ExpertOptions, Routed};
use quantloom_runtime::op::Workspace;
use quantloom_tests::sweep::{self, Share};
use quantloom_tools::conformance::experts::{ExpertSuite, GATES, random_matrices};

/// The instruction sets of this machine.
pub(crate) fn devices() -> Vec<CpuDevice> {
    let device = |isa: Isa| {
        let device = CpuDevice::of(isa).unwrap().with_bf16_dot(true);
        device.with_decoders(quantloom_kernels::DECODERS)
    };
    Isa::present().map(device).collect()
}

fn conforms(suite: &ExpertSuite, scheme: &Scheme) -> f64 {
    let devices = devices();
    let backends: Vec<&dyn Backend> = devices.iter().map(|device| device as &dyn Backend).collect();
    let mut share = 0.0f64;
    for result in suite.run(scheme, &scheme.name, &backends, &|_| {}) {
        let summary = result.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(summary.calls > 0 && summary.not_scheduled.is_empty(), "{summary:?}");
        share = share.max(summary.share);
    }
    share
}

/// Every scheme, shape, gate and seed, which are a case; all routings, some M each.
#[test]
fn schemes_of_the_catalogue_conform() {
    let all = ExpertSuite::default();
    let (share, mut case, mut largest) = (Share::new(600, 500), 0, 0.0f64);
    for scheme in quantloom_kernels::catalogue() {
        for shape in &all.shapes {
            for gate in &all.gates {
                for seed in &all.seeds {
                    case += 1;
                    let experts = if case % 5 == 4 { (5, 1) } else { (6, 3) };
                    let suite = ExpertSuite {
                        experts,
                        shapes: vec![*shape],
                        gates: vec![*gate],
                        seeds: vec![*seed],
                        every: if sweep::is_asked() { all.every } else { 11 },
                        ..ExpertSuite::default()
                    };
                    if share.takes(case) && suite.steps(scheme) > 0 {
                        largest = largest.max(conforms(&suite, scheme));
                    }
                }
            }
        }
    }
    // Bounds that are far above every error would find nothing.
    assert!(largest > 0.02, "{largest}");
}

/// One token's experts that quantise x with scales of their own, or read its columns in orders of
/// their own.
#[test]
fn experts_of_one_token_read_it_in_their_own_way() {
    let suite = ExpertSuite {
        shapes: vec![(64, 96), (128, 128)],
        gates: vec![GATES[0]],
        tokens: vec![1],
        seeds: vec![0],
        every: 1,
        ..ExpertSuite::default()
    };
    for name in ["quark_w8a8_int8_channel_static", "gptq4_v1_actorder", "modelopt_nvfp4"] {
        conforms(&suite, quantloom_kernels::scheme(name).unwrap());
    }
}

/// The ranges of numbers with which h, where it is quantised, is beyond its type: the host refuses that, and there is no bound.
#[test]
fn an_h_beyond_its_type_is_no_failure() {
    let suite = ExpertSuite {
        experts: (16, 4),
        shapes: vec![(384, 264)],
        gates: vec![GATES[0]],
        tokens: vec![1, 3, 17],
        seeds: vec![2, 3, 4],
        every: 1,
        ..ExpertSuite::default()
    };
    let device = CpuDevice::best();
    for result in suite.run(quantloom_kernels::scheme("ct_mxfp4").unwrap(), "", &[&device], &|_| {})
    {
        result.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// A layer and random numbers for calls of up to `tokens` tokens.
struct Drawn {
    layer: ExpertLayer,
    x: Vec<f32>,
    ids: Vec<i32>,
    weights: Vec<f32>,
}

fn drawn(text: &str, tokens: usize) -> Drawn {
    let layer: ExpertLayer = text.parse().unwrap();
    let mut state = 7u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        (state >> 33) % end
    };
    let pairs = tokens * layer.top_k as usize;
    let x = (0..tokens * layer.hidden as usize).map(|_| below(2000) as f32 / 1e4 - 0.1).collect();
    let ids = (0..pairs).map(|_| below(u64::from(layer.experts)) as i32).collect();
    let weights = (0..pairs).map(|_| below(1000) as f32 / 1000.0).collect();
    Drawn { layer, x, ids, weights }
}

fn prepared(
    device: CpuDevice,
    scheme: &Scheme,
    layer: &ExpertLayer,
    options: &ExpertOptions,
) -> Box<dyn ExpertOp> {
    let matrices = random_matrices(scheme, layer, 0).unwrap();
    device.prepare_experts(layer, &matrices, options).unwrap()
}

impl Drawn {
    fn call(&self, tokens: usize) -> ExpertCall<'_> {
        let (hidden, k) = (self.layer.hidden as usize, self.layer.top_k as usize);
        let routed =
            Routed::Chosen { ids: &self.ids[..tokens * k], weights: &self.weights[..tokens * k] };
        ExpertCall { x: Values::F32(&self.x[..tokens * hidden]), routed, shared: None }
    }
}

const SMALL: &str = "7 experts of 64 x 96, top 2, softmax, silu";

#[test]
fn bits_do_not_depend_on_the_threads_or_the_run() {
    let drawn = drawn(SMALL, 130);
    for name in ["arm_w4a8_g32", "ct_w4a16", "ct_mxfp8"] {
        let scheme = quantloom_kernels::scheme(name).unwrap();
        for device in devices() {
            let op = prepared(device, scheme, &drawn.layer, &ExpertOptions::default());
            for tokens in [1, 17, 40, 130] {
                let y = |threads: usize| -> Vec<u32> {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    let y = pool.unwrap().install(|| op.forward(&drawn.call(tokens)).unwrap());
                    y.into_iter().map(f32::to_bits).collect()
                };
                let first = y(1);
                assert!(first.iter().any(|y| *y != 0));
                for threads in [2, 3, 3, 2, 1] {
                    assert_eq!(y(threads), first, "{name}, {device:?}, M = {tokens}");
                }
            }
        }
    }
}

/// An expert of more rows than a token block; chunks of fewer tokens; a workspace that is too small.
#[test]
fn calls_in_chunks_give_the_same_results() {
    let mut drawn = drawn(SMALL, 700);
    drawn.ids[..1200].fill(3);
    let scheme = quantloom_kernels::scheme("ct_w4a16").unwrap();
    let with = |most_workspace: u64| {
        let mut options = ExpertOptions::default();
        options.most_workspace = most_workspace;
        prepared(CpuDevice::best(), scheme, &drawn.layer, &options)
    };
    let whole = with(1 << 30).forward(&drawn.call(700)).unwrap();
    // For some 60 tokens, more than for one.
    let some = with(1 << 30).workspace_size(60) as u64;
    let op = with(some);
    assert!(op.workspace_size(1) as u64 <= some && op.workspace_size(700) as u64 > some);
    assert!(op.explain(700).contains("in chunks"), "{}", op.explain(700));
    let mut workspace = Workspace::default();
    let mut y = vec![f32::NAN; whole.len()];
    op.forward_into(&drawn.call(700), ValuesMut::F32(&mut y), &mut workspace).unwrap();
    assert!(workspace.len() as u64 <= some, "{} of {some}", workspace.len());
    // Other tiles add in another order.
    let largest = whole.iter().fold(0.0f32, |most, y| most.max(y.abs()));
    for (y, whole) in y.iter().zip(&whole) {
        assert!((y - whole).abs() <= 1e-4 * largest, "{y} {whole}");
    }
    let error = with(1000).forward(&drawn.call(2)).unwrap_err();
    assert!(matches!(error, ExpertError::Workspace { needed, most: 1000 } if needed > 1000));
    // A workspace of the size that the layer names does not grow.
    let op = with(1 << 30);
    for tokens in [1, 3, 40, 700] {
        let mut workspace = Workspace::new(op.workspace_size(tokens));
        let before = workspace.len();
        let y = &mut y[..tokens * 64];
        op.forward_into(&drawn.call(tokens), ValuesMut::F32(y), &mut workspace).unwrap();
        assert_eq!(workspace.len(), before);
    }
}

/// A scale over all rows of h needs all rows at once.
#[test]
fn a_scale_over_all_tokens_is_not_computed_in_chunks() {
    let text = "s { weight: i8, scale: f32 per channel, pack: [k, n], \
                activation: i8 { scale: f32 per tensor from amax / 127 } }";
    let scheme = quantloom_dsl::parse(text).unwrap();
    let every = Share::new(24, 4).parts();
    conforms(&ExpertSuite { every, seeds: vec![0], ..ExpertSuite::default() }, &scheme);
    let drawn = drawn(SMALL, 300);
    let mut options = ExpertOptions::default();
    let op = prepared(CpuDevice::best(), &scheme, &drawn.layer, &options);
    options.most_workspace = op.workspace_size(100) as u64;
    let op = prepared(CpuDevice::best(), &scheme, &drawn.layer, &options);
    assert!(op.forward(&drawn.call(100)).is_ok());
    let error = op.forward(&drawn.call(300)).unwrap_err();
    assert!(matches!(error, ExpertError::Workspace { .. }), "{error}");
}

#[test]
fn no_tokens_need_no_workspace() {
    let drawn = drawn(SMALL, 4);
    let mut options = ExpertOptions::default();
    options.most_workspace = 64;
    let scheme = quantloom_kernels::scheme("ct_w4a16").unwrap();
    let op = prepared(CpuDevice::best(), scheme, &drawn.layer, &options);
    assert!(matches!(op.forward(&drawn.call(4)), Err(ExpertError::Workspace { .. })));
    assert_eq!(op.forward(&drawn.call(0)).unwrap(), [0.0; 0]);
}

#[test]
fn a_number_that_is_none_stays_in_its_token() {
    let mut drawn = drawn(SMALL, 40);
    for device in devices() {
        let float = quantloom_kernels::scheme("ct_w4a16").unwrap();
        let op = prepared(device, float, &drawn.layer, &ExpertOptions::default());
        for value in [f32::NAN, f32::INFINITY] {
            let clean = op.forward(&drawn.call(40)).unwrap();
            let kept = std::mem::replace(&mut drawn.x[5 * 64 + 9], value);
            let y = op.forward(&drawn.call(40)).unwrap();
            drawn.x[5 * 64 + 9] = kept;
            let largest = clean.iter().fold(0.0f32, |most, y| most.max(y.abs()));
            for (at, (y, clean)) in y.iter().zip(&clean).enumerate() {
                let close = (y - clean).abs() <= 1e-4 * largest;
                assert!(if at / 64 == 5 { !y.is_finite() } else { close }, "{device:?} {at}: {y}");
            }
        }
        // Where x is quantised, it is refused with its place.
        let quantised = quantloom_kernels::scheme("arm_w4a8_g32").unwrap();
        let op = prepared(device, quantised, &drawn.layer, &ExpertOptions::default());
        drawn.x[5 * 64 + 9] = f32::NAN;
        let error = op.forward(&drawn.call(40)).unwrap_err().to_string();
        assert_eq!(error, "x[5, 9] is NaN; the activation quantiser needs finite values");
        drawn.x[5 * 64 + 9] = 0.0;
        // Sums beyond f32.
        drawn.x[7 * 64..8 * 64].fill(3e38);
        let error = op.forward(&drawn.call(40)).unwrap_err().to_string();
        assert!(error.starts_with("h[") && error.contains("of token 7 and the expert"), "{error}");
        drawn.x[7 * 64..8 * 64].fill(0.0);
    }
}

#[test]
fn wrong_calls_and_matrices_are_refused() {
    let drawn = drawn(SMALL, 4);
    let scheme = quantloom_kernels::scheme("ct_w4a16").unwrap();
    let op = prepared(CpuDevice::best(), scheme, &drawn.layer, &ExpertOptions::default());
    let good = drawn.call(4);
    let refused = |call: ExpertCall<'_>| op.forward(&call).unwrap_err().to_string();
    let x = Values::F32(&drawn.x[..70]);
    assert!(refused(ExpertCall { x, ..good }).contains("not a whole number of rows of H = 64"));
    let routed = Routed::Logits(&drawn.x[..27]);
    let text = refused(ExpertCall { routed, ..good });
    assert_eq!(text, "the router's logits has 27 values, expected 28");
    let mut ids = drawn.ids.clone();
    ids[5] = 7;
    let routed = Routed::Chosen { ids: &ids, weights: &drawn.weights };
    let text = refused(ExpertCall { routed, ..good });
    assert_eq!(text, "token 2, choice 1: there is no expert 7 among 7");
    let routed = Routed::Batched { counts: &[1; 6], most: 1 };
    assert!(refused(ExpertCall { routed, ..good }).contains("the counts of rows"));
    let shared = Some(Values::F32(&drawn.x[..64]));
    assert!(refused(ExpertCall { shared, ..good }).contains("shared experts"));

    // Matrices of a layer with another intermediate size, and of another scheme.
    let other: ExpertLayer = "7 experts of 64 x 128, top 2, softmax, silu".parse().unwrap();
    let matrices = random_matrices(scheme, &other, 0).unwrap();
    let refused = |layer: &ExpertLayer, options: &ExpertOptions| {
        let result = CpuDevice::best().prepare_experts(layer, &matrices, options);
        result.err().map_or_else(String::new, |error| error.to_string())
    };
    let text = refused(&drawn.layer, &ExpertOptions::default());
    assert_eq!(text, "expert 0, shard 0 of gate_up: 128 x 64, expected 96 x 64");
    let mut options = ExpertOptions::default();
    options.score_bias = Some(vec![0.0; 7]);
    assert!(refused(&other, &options).contains("the score bias has 7 values, expected 0"));
    let more: ExpertLayer = "8 experts of 64 x 128, top 2, softmax, silu".parse().unwrap();
    assert!(refused(&more, &ExpertOptions::default()).contains("the source of experts"));
}
