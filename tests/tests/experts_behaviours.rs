//! What vLLM's methods for quantised expert layers do, a row a behaviour, and what runs here to show that
//! ours does the same, or better: a function a row.
//!
//! The classes are `CompressedTensorsMoEMethod` with its schemes (`Ct`), `CompressedTensorsW4A8Int8MoEMethod`
//! (`W4a8`), the oracle of int WNA16 back ends (`Oracle`), `QuarkMoEMethod` (`Quark`) and gpt-oss'
//! `Mxfp4MoEMethod` (`GptOss`). Wide comparisons of every scheme, gate and routing are in `experts`.

use quantloom_dsl::experts::{ExpertLayer, Gate};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::experts::route;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::{
    Checkpoint, CheckpointError, ConfigProblem, ExpertsProblem, LayerProblem, Options,
};
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::element::{Values, ValuesMut};
use quantloom_runtime::experts::{
    ExpertCall, ExpertError, ExpertMap, ExpertMatrices, ExpertOp, ExpertOptions, ExpertProduct,
    ExpertSource, ExpertsNotScheduled, InputScales, QuantiserRule, Routed, order,
};
use quantloom_runtime::op::Workspace;
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::{UnpackError, Unpacked};
use quantloom_tests::file::File;
use quantloom_tests::golden_file;
use quantloom_tools::check::{Subject, Verdict, check};
use quantloom_tools::conformance::draw;
use quantloom_tools::conformance::experts::{ExpertSuite, GATES, RoutingKind, random_matrices};

/// Which of vLLM's classes does it.
#[derive(Clone, Copy, Debug)]
enum Class {
    Ct,
    W4a8,
    Oracle,
    Quark,
    GptOss,
    All,
}

/// A behaviour, how ours is, and what shows it.
struct Row {
    class: Class,
    behaviour: &'static str,
    ours: &'static str,
    check: fn(),
}

const fn row(class: Class, behaviour: &'static str, ours: &'static str, check: fn()) -> Row {
    Row { class, behaviour, ours, check }
}

use Class::{All, Ct, GptOss, Oracle, Quark, W4a8};

#[rustfmt::skip]
const BEHAVIOURS: [Row; 33] = [
    row(Ct, "NVFP4: u8 [E, sI, H/2], block scales e4m3 a group of 16; one or two shards", "each matrix is a dense one", nvfp4),
    row(Ct, "NVFP4: global scales of weights and inputs are divisors", "a level that divides, or one that multiplies", global_scales),
    row(Ct, "NVFP4: w1's global scale for w3 too, with a warning", "each its own", shards_keep_their_scales),
    row(Ct, "NVFP4: x in 16 bits, or quantised with one scale of all experts", "a scheme each; InputScales", input_scales),
    row(Ct, "NVFP4: logits in, or the chosen experts and shared results", "Routed::Logits and Routed::Chosen", two_ways_in),
    row(Ct, "W4A8 int8: int4 in int8, scales a channel or a group, biases", "two schemes", arm_files),
    row(Ct, "W4A8 int8: other activations, other bits and an expert map are refused", "schemes of their own; maps work", others_of_w4a8),
    row(Ct, "W4A8 int8: silu, swigluoai, swiglustep; the weight on the input", "each gate by its name", gates_of_w4a8),
    row(W4a8, "any CPU; grouped top-k, score bias, scaling factor", "the same layer on plain Rust", any_cpu),
    row(Ct, "FP8: tensor, channel and block scales; static with channel is refused", "computed, the last too", fp8),
    row(Ct, "FP8: f32 scales of each shard, ragged last blocks", "each shard is a matrix", ragged_blocks),
    row(Ct, "FP8: I that is not a multiple of the block is refused", "taken; a block of both shards is refused by name", straddling_blocks),
    row(Ct, "FP8: the largest static input scale of all experts", "InputScales::Largest, by name; Each by default", largest_input_scale),
    row(Ct, "FP8: w1 and w3 requantised with the larger scale", "both exact", fp8_shards),
    row(Ct, "FP8: codes and scales of fnuz chips", "schemes of that format", fnuz),
    row(Ct, "FP8: an expert map; counts by expert", "ExpertMap; `order` counts", expert_map),
    row(Ct, "WNA16: symmetric 4 and 8 bits, groups or channels", "asymmetric ones too", wna16),
    row(Ct, "WNA16: act-order, sorted for each expert", "each expert's own order", act_order),
    row(Ct, "WNA16: groups of 32 for some back ends; the batched form, not of 8 bits", "Routed::Batched of every scheme", batched),
    row(Ct, "WNA16: activations in fp8 and int8", "a clause of the scheme", activations),
    row(Ct, "WNA16: the caller's workspace, results in place of x", "the caller's y and workspace; x stays", workspace),
    row(Oracle, "each back end says why not; none is an error", "`explain`, typed refusals", refusals),
    row(Oracle, "conversions in five steps; a wrong type of configuration is refused", "packed bytes come back; typed", conversions),
    row(Quark, "OCP MX: three weights and some inputs; others refused", "all 15 schemes", quark_mx),
    row(Quark, "OCP MX: six bits in 3/4 of a byte; sizes rounded up", "no rounding up", quark_bytes),
    row(Quark, "OCP MX: static input scales, the largest of all", "each its own, or the largest", quark_static),
    row(Quark, "int8: channel or tensor scales, static or a token's", "four schemes", quark_int8),
    row(Quark, "int8: zero points are loaded and dropped", "those that are not 0 are refused", quark_zero_points),
    row(GptOss, "sizes rounded up to 128 or 256, filled with 0", "2880 as it is", gpt_oss_sizes),
    row(GptOss, "rows of gate and up alternate; alpha 1.702, limit 7; all sizes asserted", "the file's own; refused by name", gpt_oss_layer),
    row(All, "softmax, sigmoid with bias, groups, renormalised; ids of -1 do nothing", "one routing, in f64", routing),
    row(All, "silu, gelu, swigluoai, swiglustep; relu2 and others without a gate", "ten gates", all_gates),
    row(All, "shared experts: their own input, added to the sum", "of the checkpoint, or of the caller", shared_experts),
];

/// All rows: the failure names each one that does not hold, what it found is above.
#[test]
fn every_behaviour_is_checked() {
    let mut failed = Vec::new();
    for (at, Row { class, behaviour, ours, check }) in BEHAVIOURS.iter().enumerate() {
        if std::panic::catch_unwind(check).is_err() {
            failed.push(format!("{}. {class:?}: {behaviour}. Here: {ours}", at + 1));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

const QWEN3: &str = "model.layers.0.mlp.experts";
const FOUR: &str = "4 experts of 64 x 96, top 2, softmax, silu";

fn scheme(name: &str) -> &'static Scheme {
    quantloom_kernels::scheme(name).unwrap_or_else(|| panic!("{name} is in the catalogue"))
}

fn of(text: &str) -> ExpertLayer {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The smallest suite: three experts, two a token, random choices of three tokens.
fn small() -> ExpertSuite {
    ExpertSuite {
        experts: (3, 2),
        shapes: vec![(64, 96)],
        gates: vec![Gate::Silu],
        routings: vec![RoutingKind::Random],
        tokens: vec![3],
        seeds: vec![0],
        every: 1,
    }
}

/// All calls of a suite are computed within the derived bound.
fn within(suite: &ExpertSuite, scheme: &Scheme, device: &dyn Backend) {
    let result = suite.run(scheme, &scheme.name, &[device], &|_| {}).remove(0);
    let done = result.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(done.calls > 0 && done.not_scheduled.is_empty(), "{done:?}");
}

/// One small layer of each scheme of the catalogue.
fn conform(names: &[&str]) {
    for name in names {
        within(&small(), scheme(name), &CpuDevice::best());
    }
}

fn open(file: &str) -> Checkpoint {
    Checkpoint::open(golden_file(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// A third program's layer: the router's choice, the reference and the device are the file's own.
fn golden(file: &str) {
    let findings = check(&open(file), &CpuDevice::best());
    assert!(findings.iter().any(|finding| finding.subject == Subject::Product), "{file}");
    for finding in findings {
        assert_eq!(finding.verdict, Verdict::Pass, "{file}: {finding:?}");
    }
}

/// An op of random matrices, and y of a call with two tokens.
struct Called {
    op: Box<dyn ExpertOp>,
    x: Vec<f32>,
}

fn called(name: &str, text: &str, options: &ExpertOptions) -> Called {
    let layer = of(text);
    let matrices = random_matrices(scheme(name), &layer, 0).unwrap();
    let op = CpuDevice::best().prepare_experts(&layer, &matrices, options).unwrap();
    let x = (0..2 * layer.hidden).map(|at| ((at * 37 % 101) as f32 - 50.0) / 128.0).collect();
    Called { op, x }
}

impl Called {
    fn call<'a>(&'a self, routed: Routed<'a>) -> ExpertCall<'a> {
        ExpertCall { x: Values::F32(&self.x), routed, shared: None }
    }

    fn y(&self, routed: Routed<'_>) -> Vec<f32> {
        self.op.forward(&self.call(routed)).unwrap()
    }
}

/// y of a golden file's layer with some static scales of its inputs, two tokens on experts 0 and 1.
fn golden_y(file: &str, input_scales: InputScales) -> Vec<f32> {
    let checkpoint = open(file);
    let experts = checkpoint.expert_layer(QWEN3).unwrap();
    let mut options = ExpertOptions::default();
    options.input_scales = input_scales;
    let op = experts.prepare_with(&CpuDevice::best(), &options).unwrap();
    let x: Vec<f32> = (0..128).map(|at| ((at * 37 % 101) as f32 - 50.0) / 32.0).collect();
    let routed = Routed::Chosen { ids: &[0, 1, 1, 0], weights: &[0.5, 0.25, 0.75, 1.0] };
    op.forward(&ExpertCall { x: Values::F32(&x), routed, shared: None }).unwrap()
}

fn nvfp4() {
    golden("moe_ct_nvfp4");
    conform(&["ct_nvfp4", "modelopt_nvfp4"]);
    let one_shard = ExpertSuite { gates: vec![Gate::UngatedRelu2], ..small() };
    within(&one_shard, scheme("ct_nvfp4"), &CpuDevice::best());
}

fn global_scales() {
    let divides = |name: &str| scheme(name).scales.iter().map(|level| level.divide).collect();
    let [ct, modelopt]: [Vec<bool>; 2] = ["ct_nvfp4", "modelopt_nvfp4"].map(divides);
    assert_eq!([ct, modelopt], [vec![false, true], vec![false, false]]);
    conform(&["ct_nvfp4a16", "modelopt_nvfp4a16"]);
}

fn shards_keep_their_scales() {
    three_times_apart("moe_ct_nvfp4", "weight_global_scale");
}

/// Of every expert up's scale is three times gate's, and the file's y is exact: merged scales would miss.
fn three_times_apart(file: &str, scale: &str) {
    let checkpoint = open(file);
    let value = |part: &str| {
        let tensor = checkpoint.tensors().get(&format!("{QWEN3}.1.{part}.{scale}")).unwrap();
        f32::from_le_bytes(tensor.bytes().try_into().unwrap())
    };
    let ratio = value("up_proj") / value("gate_proj");
    assert!((ratio - 3.0).abs() < 1e-5, "{file}: {ratio}");
    golden(file);
}

fn input_scales() {
    conform(&["ct_nvfp4", "ct_nvfp4a16"]);
    let [each, largest] =
        [InputScales::Each, InputScales::Largest].map(|rule| golden_y("moe_ct_nvfp4", rule));
    assert!(each.iter().chain(&largest).all(|y| y.is_finite()));
    assert_ne!(each, largest);
}

fn two_ways_in() {
    let mut options = ExpertOptions::default();
    options.score_bias = Some((0..8).map(|expert| 0.05 * expert as f32).collect());
    let text = "8 experts of 64 x 96, top 2, sigmoid with bias in 1 of 2 groups renormalised times 2.5, silu";
    let ours = called("ct_nvfp4", text, &options);
    let logits: Vec<f32> = (0..16).map(|at| ((at * 7 % 16) as f32 - 8.0) / 4.0).collect();
    let (mut ids, mut weights) = ([0; 4], [0.0; 4]);
    ours.op.route(&logits, &mut ids, &mut weights).unwrap();
    let chosen = Routed::Chosen { ids: &ids, weights: &weights };
    let y = ours.y(Routed::Logits(&logits));
    assert_eq!(y, ours.y(chosen));
    // The result of shared experts is added.
    let shared = vec![8.0f32; y.len()];
    let call = ExpertCall { shared: Some(Values::F32(&shared)), ..ours.call(chosen) };
    let more = ours.op.forward(&call).unwrap();
    let close = |more: f32, y: f32| (more - y - 8.0).abs() <= (y.abs() + 8.0) * f32::EPSILON;
    assert!(more.iter().zip(&y).all(|(more, y)| close(*more, *y)));
    // The weight on the input: of one expert a token.
    let text = "4 experts of 64 x 96, top 1, sigmoid, silu, weight on input";
    let weighted = called("ct_w4a16", text, &ExpertOptions::default());
    let y = |weights: &[f32]| weighted.y(Routed::Chosen { ids: &[1, 2], weights });
    assert_ne!(y(&[1.0, 1.0]), y(&[0.5, 1.0]));
    let twice = "4 experts of 64 x 96, top 2, sigmoid, silu, weight on input";
    let refused =
        twice.parse::<ExpertLayer>().is_err_and(|error| error.to_string().contains("top"));
    assert!(refused || of(twice).check().is_err());
}

fn arm_files() {
    golden("moe_arm_w4a8_channel");
    golden("moe_arm_w4a8_g32");
}

fn others_of_w4a8() {
    let static_x = "s { weight: i4, scale: f32 per channel, pack: [k, n], \
                    activation: i8 { scale: f32 per tensor static } }";
    within(&small(), &parse(static_x).unwrap(), &CpuDevice::best());
    conform(&["ct_w8a8", "ct_w3a8"]);
    map_of("arm_w4a8_g32");
}

fn gates_of_w4a8() {
    let oai = Gate::SwigluOai { alpha: 1.702, limit: 3.0 };
    let gates = vec![Gate::Silu, oai, Gate::SwigluStep { limit: 1.5 }];
    let suite = ExpertSuite { gates, ..small() };
    within(&suite, scheme("arm_w4a8_g32"), &CpuDevice::best());
    // One expert a token: some of these layers have the weight on the input.
    let suite = ExpertSuite { experts: (3, 1), seeds: vec![0, 1], ..small() };
    assert!(suite.descriptions().iter().any(|layer| layer.weight_on_input));
    within(&suite, scheme("arm_w4a8_channel"), &CpuDevice::best());
}

fn any_cpu() {
    for name in ["arm_w4a8_channel", "arm_w4a8_g32"] {
        within(&small(), scheme(name), &CpuDevice::portable());
    }
    let suite = ExpertSuite { routings: vec![RoutingKind::Logits], ..small() };
    let suite = ExpertSuite { experts: (4, 2), seeds: (0..5).collect(), ..suite };
    let layers = suite.descriptions();
    let some = |has: fn(&ExpertLayer) -> bool| assert!(layers.iter().any(has), "{layers:?}");
    some(|layer| layer.routing.groups.is_some());
    some(|layer| layer.routing.bias);
    some(|layer| layer.routing.scale != 1.0);
    within(&suite, scheme("arm_w4a8_g32"), &CpuDevice::portable());
}

fn fp8() {
    conform(&["ct_fp8", "ct_fp8_dynamic", "ct_fp8_block"]);
    let static_channel = "s { weight: e4m3, scale: f32 per channel, pack: [k, n], \
                          activation: e4m3 { scale: f32 per tensor static } }";
    within(&small(), &parse(static_channel).unwrap(), &CpuDevice::best());
}

fn ragged_blocks() {
    // I = 80 in blocks of 32: three rows of scales for each shard.
    golden("moe_ct_fp8_block");
    within(
        &ExpertSuite { shapes: vec![(160, 200)], ..small() },
        scheme("ct_fp8_block"),
        &CpuDevice::best(),
    );
}

fn straddling_blocks() {
    let text = "s { weight: e4m3, scale: f32 per 32x32 [g, n, e], pack: [k, n, e], \
                activation: bf16, experts: concatenated }";
    let scheme = parse(text).unwrap();
    let shard = |intermediate: u64| {
        let shape = Shape { experts: 2, n: 2 * intermediate, k: 64 };
        let packed = pack(&scheme, &draw::layer(&scheme, shape, 0)).unwrap();
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        Unpacked::new(&scheme, shape, &stored).unwrap().shard(1, 0)
    };
    assert_eq!(shard(96).unwrap().shape(), Shape::matrix(96, 64));
    let error = shard(80).unwrap_err();
    assert!(matches!(error, UnpackError::Straddles { each: 32, rows: 80, .. }), "{error}");
}

fn largest_input_scale() {
    // Each is the file's meaning, which `check` compares.
    golden("moe_quark_int8");
    let [each, largest] =
        [InputScales::Each, InputScales::Largest].map(|rule| golden_y("moe_quark_int8", rule));
    assert_ne!(each, largest);
    assert_eq!(each, golden_y("moe_quark_int8", InputScales::default()));
}

fn fp8_shards() {
    three_times_apart("moe_quark_int8", "weight_scale");
    conform(&["ct_fp8", "modelopt_fp8"]);
}

fn fnuz() {
    conform(&["fp8_fnuz_channel", "fp8_fnuz_block"]);
}

/// The experts that a map has here, at their places.
struct Local<'a> {
    all: &'a ExpertMatrices,
    places: [i32; 4],
}

impl ExpertSource for Local<'_> {
    fn scheme(&self, product: ExpertProduct) -> &Scheme {
        self.all.scheme(product)
    }

    fn matrix(
        &self,
        product: ExpertProduct,
        place: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError> {
        let expert = self.places.iter().position(|known| *known == place as i32).unwrap();
        self.all.matrix(product, expert as u32, shard)
    }
}

/// The parts of two devices with some experts each add up to the whole.
fn map_of(name: &str) {
    let y = |places: Option<[i32; 4]>| {
        let layer = of(FOUR);
        let matrices = random_matrices(scheme(name), &layer, 0).unwrap();
        let mut options = ExpertOptions::default();
        options.map = places.map(|places| ExpertMap::new(places.to_vec(), 2).unwrap());
        let local = Local { all: &matrices, places: places.unwrap_or([0, 1, 2, 3]) };
        let op = CpuDevice::best().prepare_experts(&layer, &local, &options).unwrap();
        let x = (0..128).map(|at| ((at * 37 % 101) as f32 - 50.0) / 128.0).collect();
        let routed = Routed::Chosen { ids: &[0, 3, 2, 1], weights: &[0.5, 0.25, 1.0, 0.75] };
        Called { op, x }.y(routed)
    };
    let whole = y(None);
    let parts = [y(Some([0, 1, -1, -1])), y(Some([-1, -1, 0, 1]))];
    for (at, whole) in whole.iter().enumerate() {
        // Sums of the same two numbers, and products that are rounded alike.
        let sum = parts[0][at] + parts[1][at];
        let size = parts[0][at].abs() + parts[1][at].abs() + whole.abs();
        assert!((sum - whole).abs() <= 4.0 * f32::EPSILON * size, "{name} {at}: {sum} {whole}");
    }
    assert_ne!(parts[0], whole);
}

fn expert_map() {
    map_of("ct_fp8_dynamic");
    let map = ExpertMap::new(vec![1, -1, 0, -1], 2).unwrap();
    let (mut starts, mut pairs) = ([0; 3], [0; 6]);
    let slots = order(&[0, 2, 3, 0, -1, 0], 2, 4, Some(&map), &mut starts, &mut pairs).unwrap();
    // One pair of expert 2, at place 0, then three of expert 0.
    assert_eq!((slots, starts, &pairs[..4]), (4, [0, 1, 4], &[1, 0, 3, 5][..]));
}

fn wna16() {
    conform(&["ct_w4a16", "ct_w8a16", "ct_w4a16_asym", "gptq4_v1", "gptq8_v2", "awq4"]);
    golden("moe_ct_w4a16");
}

fn act_order() {
    golden("moe_gptq4_actorder");
    conform(&["gptq4_v1_actorder", "gptq8_v2_actorder"]);
}

fn batched() {
    let suite = ExpertSuite { routings: vec![RoutingKind::Batched], ..small() };
    for name in ["ct_mxint4", "ct_w4a16", "ct_w8a16"] {
        within(&suite, scheme(name), &CpuDevice::best());
    }
}

fn activations() {
    conform(&["ct_w4afp8", "ct_w4a8"]);
}

fn workspace() {
    let ours = called("ct_w4a16", FOUR, &ExpertOptions::default());
    let routed = Routed::Chosen { ids: &[0, 3, 2, 1], weights: &[0.5, 0.25, 1.0, 0.75] };
    let (call, before) = (ours.call(routed), ours.x.clone());
    let mut space = Workspace::new(ours.op.workspace_size(2));
    let room = space.len();
    let mut y = vec![f32::NAN; ours.x.len()];
    for _ in 0..2 {
        ours.op.forward_into(&call, ValuesMut::F32(&mut y), &mut space).unwrap();
        assert_eq!(y, ours.y(routed));
    }
    assert_eq!((space.len(), &ours.x), (room, &before));
    let short = ours.op.forward_into(&call, ValuesMut::F32(&mut y[..64]), &mut space).unwrap_err();
    assert!(matches!(short, ExpertError::Length { expected: 128, found: 64, .. }), "{short}");
}

fn refusals() {
    let (layer, options) = (of(FOUR), ExpertOptions::default());
    let matrices = random_matrices(scheme("ct_w4a16"), &layer, 0).unwrap();
    let op = CpuDevice::portable().prepare_experts(&layer, &matrices, &options).unwrap();
    assert!(!op.kernels(2).is_empty() && op.explain(2).contains("portable"), "{}", op.explain(2));
    let text = "s { weight: i8, scale: f32 per channel, pack: [k, n], \
                activation: i8 { scale: f32 per 4x32 } }";
    let scheme = parse(text).unwrap();
    let matrices = random_matrices(&scheme, &layer, 0).unwrap();
    let Err(error) = CpuDevice::best().prepare_experts(&layer, &matrices, &options) else {
        panic!("rows of experts have no neighbours");
    };
    let rule = QuantiserRule::NeighbouringRows;
    let ExpertError::NotScheduled(ExpertsNotScheduled::Quantiser { rule: found, .. }) = &error
    else {
        panic!("{error}");
    };
    assert!(*found == rule && error.is_not_scheduled(), "{error}");
}

fn conversions() {
    let checkpoint = open("moe_gptq4_actorder");
    for (name, layer) in checkpoint.layers() {
        let layer = layer.unwrap();
        let stored = |name: &str| layer.store(name);
        let unpacked = Unpacked::new(layer.scheme(), layer.shape(), &stored).unwrap();
        let mut row = vec![0.0; layer.shape().k as usize];
        unpacked.decode_row(0, 5, &mut row);
        let plain = quantloom_dsl::reference::unpack(
            layer.scheme(),
            layer.shape(),
            &quantloom_tests::packed(layer),
        )
        .unwrap();
        let bytes = pack(layer.scheme(), &plain).unwrap();
        for (store, stored) in layer.stores() {
            assert_eq!(bytes[store], stored, "{name}.{store}");
        }
        let values = quantloom_dsl::reference::dequantise(layer.scheme(), &plain).unwrap();
        let expected = &values[5 * row.len()..][..row.len()];
        let same = |(ours, value): (&f32, &f64)| *ours == *value as f32;
        assert!(row.iter().zip(expected).all(same), "{name}");
    }
    let mut file = File::golden("moe_gptq4_actorder");
    file.set("/quant_method", "gptq3000".into());
    let error = Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap_err();
    let CheckpointError::Config { problem: ConfigProblem::Format(name), .. } = error else {
        panic!("{error}");
    };
    assert_eq!(name, "gptq3000");
}

fn quark_mx() {
    let all = quantloom_kernels::catalogue().iter().map(|scheme| scheme.name.as_str());
    let names: Vec<&str> = all.filter(|name| name.starts_with("quark_w_mx")).collect();
    assert_eq!(names.len(), 15, "{names:?}");
    conform(&names);
}

fn quark_bytes() {
    for (name, bytes) in [("quark_w_mxfp4", 96 * 32), ("quark_w_mxfp6_e2m3", 96 * 48)] {
        let scheme = scheme(name);
        let of = |store| scheme.bind(store, Shape::matrix(96, 64)).unwrap().bits() / 8;
        let all: Vec<u64> = scheme.stores.iter().map(of).collect();
        // Codes, and a scale for each group of 32.
        assert!(all.contains(&bytes) && all.contains(&(96 * 2)), "{name}: {all:?}");
    }
}

fn quark_static() {
    let names = ["quark_w_mxfp4_a_fp8", "quark_w_mxfp6_e2m3_a_fp8"];
    for name in names {
        assert!(scheme(name).quantiser().is_some_and(|of| of.scales.iter().any(|s| s.stored)));
    }
    conform(&names);
}

fn quark_int8() {
    golden("moe_quark_int8");
    conform(&[
        "quark_w8a8_int8_channel",
        "quark_w8a8_int8_channel_static",
        "quark_w8a8_int8_tensor",
        "quark_w8a8_int8_tensor_static",
    ]);
}

fn quark_zero_points() {
    let mut file = File::golden("moe_quark_int8");
    let tensor = format!("{QWEN3}.2.up_proj.weight_zero_point");
    file.tensor(&tensor).bytes[0] = 3;
    let checkpoint = Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
    let error = checkpoint.expert_layer(QWEN3).expect_err("a zero point that is not 0");
    let ExpertsProblem::Broken(broken) = &*error.problem else { panic!("{error}") };
    let CheckpointError::Layer(broken) = &**broken else { panic!("{error}") };
    let other = |of: &str| of == tensor;
    assert!(
        matches!(&*broken.problem, LayerProblem::OtherTensor { tensor, .. } if other(tensor)),
        "{error}"
    );
}

fn gpt_oss_sizes() {
    golden("gpt_oss_mxfp4");
    let scheme = scheme("gpt_oss_mxfp4_gate_up");
    let shape = Shape { experts: 4, n: 2 * 2880, k: 2880 };
    let of = |store| scheme.bind(store, shape).unwrap().bits() / 8;
    let rows = 4 * 2 * 2880u64;
    let all: Vec<u64> = scheme.stores.iter().map(of).collect();
    for bytes in [rows * 2880 / 2, rows * 2880 / 32, rows * 2] {
        assert!(all.contains(&bytes), "{bytes} bytes without pads: {all:?}");
    }
}

fn gpt_oss_layer() {
    golden("moe_gpt_oss_clamped");
    let checkpoint = open("moe_gpt_oss_clamped");
    let gate = checkpoint.expert_layer(QWEN3).unwrap().layer().unwrap().gate;
    assert_eq!(gate, Gate::SwigluOai { alpha: 1.702, limit: 7.0 });
    // One expert fewer in a stack.
    let mut file = File::golden("moe_gpt_oss_clamped");
    let name = format!("{QWEN3}.down_proj_blocks");
    let tensor = file.tensor(&name);
    tensor.bytes.truncate(tensor.bytes.len() / 4 * 3);
    tensor.shape[0] = 3;
    let checkpoint = Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
    let error = checkpoint.expert_layer(QWEN3).expect_err("a stack of three").to_string();
    assert!(error.contains("down_proj"), "{error}");
}

fn routing() {
    let chosen = |text: &str, logits: &[f64], bias: &[f64]| route(&of(text), logits, bias).unwrap();
    let sum = |weights: &[f64]| weights.iter().sum::<f64>();
    let logits = [0.0, 3.0, 1.0, 2.0];
    let softmax = chosen("4 experts of 64 x 96, top 2, softmax, silu", &logits, &[]);
    assert_eq!(softmax.ids, [1, 3]);
    let all = logits.iter().map(|logit: &f64| logit.exp()).sum::<f64>();
    assert!((softmax.weights[0] - 3f64.exp() / all).abs() < 1e-15);
    let text = "4 experts of 64 x 96, top 2, softmax renormalised, silu";
    let renormalised = chosen(text, &logits, &[]);
    assert!((sum(&renormalised.weights) - 1.0).abs() < 1e-15 && sum(&softmax.weights) < 0.99);
    // The bias chooses and does not weigh.
    let text = "4 experts of 64 x 96, top 2, sigmoid with bias, silu";
    let biased = chosen(text, &logits, &[2.0, 0.0, 0.0, 0.0]);
    assert_eq!((biased.ids.as_slice(), biased.weights[0]), (&[0, 1][..], 0.5));
    // The best group has no better expert than the other one, but the two best.
    let text = "4 experts of 64 x 96, top 2, sigmoid with bias in 1 of 2 groups, silu";
    assert_eq!(chosen(text, &[4.0, -9.0, 1.0, 2.0], &[0.0; 4]).ids, [3, 2]);
    // An id of -1 is not an expert.
    let ours = called("ct_w4a16", FOUR, &ExpertOptions::default());
    let weights = [1.0, 1.0, 1.0, 1.0];
    let y = ours.y(Routed::Chosen { ids: &[-1, -1, 2, -1], weights: &weights });
    assert!(y[..64].iter().all(|y| *y == 0.0) && y[64..].iter().any(|y| *y != 0.0));
}

fn all_gates() {
    let suite = ExpertSuite { gates: GATES.to_vec(), ..small() };
    within(&suite, scheme("ct_w4a16"), &CpuDevice::best());
    within(&suite, scheme("ct_w8a8"), &CpuDevice::best());
}

fn shared_experts() {
    for file in ["moe_qwen2_shared", "moe_nemotron_relu2", "moe_llama4"] {
        let checkpoint = open(file);
        let mut layers = checkpoint.expert_layers();
        let shared = layers.any(|(_, experts)| experts.is_ok_and(|of| of.shared().is_some()));
        assert!(shared, "{file}");
        golden(file);
    }
}
