//! Expert layers of checkpoints: what candle gets is what the runtime computes, and what the weights say.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use quantloom_candle::quantloom::Device as Backend;
use quantloom_candle::quantloom::prelude::{Checkpoint, ExpertOptions, Workspace, bf16, f16};
use quantloom_candle::quantloom::runtime::checkpoint::CheckpointExperts;
use quantloom_candle::quantloom::runtime::experts::{self as runtime, ExpertMap, ExpertOp};
use quantloom_candle::{ExpertTensor, QuantExperts, Routed};

use crate::inputs::{golden, numbers, values};

/// Files of several families: matrices and stacks, gated and not, with biases, with the weight on the input, with x
/// as it is and x quantised.
const FILES: &[&str] = &[
    "gpt_oss_mxfp4.safetensors",
    "moe_arm_w4a8_g32.safetensors",
    "moe_ct_fp8_block.safetensors",
    "moe_ct_nvfp4.safetensors",
    "moe_ct_w4a16.safetensors",
    "moe_gptq4_actorder.safetensors",
    "moe_llama4.safetensors",
    "moe_nemotron_relu2.safetensors",
    "moe_qwen2_shared.safetensors",
];

/// The first expert layer of a checkpoint that is quantised.
pub(crate) fn experts(checkpoint: &Checkpoint) -> Option<CheckpointExperts<'_>> {
    let layers = checkpoint.expert_layers().map(|(_, layer)| layer.expect("a layer that is read"));
    layers.into_iter().find(|layer| layer.schemes().is_some())
}

/// x and what a call reads besides: [M, H], logits [M, E], ids and weights [M, k], a shared result [M, H].
pub(crate) struct Inputs {
    pub(crate) x: Tensor,
    pub(crate) logits: Tensor,
    pub(crate) ids: Vec<i32>,
    pub(crate) weights: Tensor,
    pub(crate) shared: Tensor,
}

impl Inputs {
    /// Numbers that all three types of x have.
    pub(crate) fn new(op: &dyn ExpertOp, tokens: usize) -> Result<Self> {
        let layer = op.layer();
        let (hidden, experts) = (layer.hidden as usize, layer.experts as usize);
        let exact = |dims: &[usize], seed| {
            let x = numbers(dims, seed, DType::BF16)?.to_dtype(DType::F32)?;
            x.to_dtype(DType::F16)?.to_dtype(DType::BF16)?.to_dtype(DType::F32)
        };
        let logits = numbers(&[tokens, experts], 2, DType::F32)?;
        let pairs = tokens * layer.top_k as usize;
        let (mut ids, mut weights) = (vec![0; pairs], vec![0.0; pairs]);
        op.route(&values(&logits)?, &mut ids, &mut weights).expect("experts are chosen");
        let weights = Tensor::from_vec(weights, (tokens, layer.top_k as usize), &Device::Cpu)?;
        let shared = exact(&[tokens, hidden], 3)?;
        Ok(Self { x: exact(&[tokens, hidden], 1)?, logits, ids, weights, shared })
    }

    /// Ids as a tensor of `i64`.
    pub(crate) fn ids(&self) -> Result<Tensor> {
        let ids: Vec<i64> = self.ids.iter().map(|id| i64::from(*id)).collect();
        Tensor::from_vec(ids, self.weights.dims(), &Device::Cpu)
    }
}

/// y in a type, by the runtime itself; x and `shared` are of that type too.
fn by_the_runtime(
    op: &dyn ExpertOp,
    inputs: &Inputs,
    routed: runtime::Routed<'_>,
    shared: bool,
    dtype: DType,
) -> Result<Vec<f32>> {
    let (x, beside) = (values(&inputs.x)?, values(&inputs.shared)?);
    macro_rules! call {
        ($element:ty, $from:expr, $to:expr) => {{
            let narrow = |values: &[f32]| values.iter().map($from).collect::<Vec<$element>>();
            let (x, beside) = (narrow(&x), narrow(&beside));
            let mut y = vec![<$element>::default(); x.len()];
            let shared = shared.then_some((&beside).into());
            let call = runtime::ExpertCall { x: (&x).into(), routed, shared };
            let done = op.forward_into(&call, (&mut y[..]).into(), &mut Workspace::default());
            done.expect("the runtime computes it");
            y.iter().map($to).collect()
        }};
    }
    Ok(match dtype {
        DType::F16 => call!(f16, |x| f16::from_f32(*x), |y| y.to_f32()),
        DType::BF16 => call!(bf16, |x| bf16::from_f32(*x), |y| y.to_f32()),
        _ => call!(f32, |x| *x, |y| *y),
    })
}

#[test]
fn layers_are_the_runtimes_to_the_bit_in_every_type_of_x() -> Result<()> {
    for file in FILES {
        let checkpoint = golden(file);
        let Some(layer) = experts(&checkpoint) else { panic!("{file} has no quantised experts") };
        let op = layer.prepare(&Backend::cpu()).expect("the CPU prepares it");
        let ours = QuantExperts::from_layer(&layer, &Device::Cpu)?;
        assert_eq!((ours.layer(), ours.schemes()), (op.layer(), op.schemes()), "{file}");
        assert_eq!(ours.explain(4), op.explain(4));
        for tokens in [1, 6] {
            let inputs = Inputs::new(&*op, tokens)?;
            let (logits, weights) = (values(&inputs.logits)?, values(&inputs.weights)?);
            let of_logits = runtime::Routed::Logits(&logits);
            let chosen = runtime::Routed::Chosen { ids: &inputs.ids, weights: &weights };
            let ids = inputs.ids()?;
            let calls = [
                (Routed::Logits(&inputs.logits), of_logits),
                (Routed::Chosen { ids: &ids, weights: &inputs.weights }, chosen),
            ];
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let [x, shared] = [&inputs.x, &inputs.shared].map(|tensor| tensor.to_dtype(dtype));
                let (x, beside) = (x?, shared?);
                for (routed, theirs) in calls {
                    for shared in [None, Some(&beside)] {
                        let y = ours.forward(&x, routed, shared)?;
                        assert_eq!((y.dims(), y.dtype()), (x.dims(), dtype));
                        let expected =
                            by_the_runtime(&*op, &inputs, theirs, shared.is_some(), dtype)?;
                        assert_eq!(values(&y)?, expected, "{file}, {tokens}, {dtype:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Softmax over all experts, the best k, renormalised, silu(gate) up, down: in `f64`, by nothing of ours but the
/// decoded weights.
#[test]
fn a_layer_is_what_its_decoded_weights_say() -> Result<()> {
    let checkpoint = golden("moe_ct_w4a16.safetensors");
    let layer = experts(&checkpoint).expect("a layer");
    let text = "4 experts of 64 x 96, top 2, softmax renormalised, silu";
    assert_eq!(layer.layer().expect("a description").to_string(), text);
    let (hidden, intermediate, tokens) = (64, 96, 9);
    let x = numbers(&[tokens, hidden], 4, DType::F32)?;
    let logits = (numbers(&[tokens, 4], 5, DType::F32)? * 3.0)?;
    let ours = QuantExperts::from_layer(&layer, &Device::Cpu)?;
    let y = values(&ours.forward(&x, Routed::Logits(&logits), None)?)?;
    let weights: Vec<_> = (0..4).map(|e| layer.expert_weights(e).expect("decoded")).collect();
    let (x, logits) = (values(&x)?, values(&logits)?);
    // Of a row of w: the product, and the sum of the sizes of what it adds.
    let product = |w: &[f64], row: usize, x: &[f64]| {
        let terms = w[row * x.len()..].iter().zip(x).map(|(w, x)| w * x);
        terms.fold((0.0, 0.0), |(sum, sizes), term| (sum + term, sizes + term.abs()))
    };
    for (at, x) in x.chunks(hidden).enumerate() {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let scores: Vec<f64> =
            logits[at * 4..][..4].iter().map(|logit| f64::from(*logit).exp()).collect();
        let mut order = [0, 1, 2, 3];
        order.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]));
        let both = scores[order[0]] + scores[order[1]];
        let (mut expected, mut sizes) = (vec![0.0; hidden], vec![0.0; hidden]);
        for expert in &order[..2] {
            let of = &weights[*expert];
            let (mut h, mut of_h) = (Vec::new(), Vec::new());
            for row in 0..intermediate {
                let (gate, gates) = product(&of.gate_up[0].values, row, &x);
                let (up, ups) = product(&of.gate_up[1].values, row, &x);
                h.push(gate / (1.0 + (-gate).exp()) * up);
                of_h.push(gates * ups);
            }
            let router = scores[*expert] / both;
            for row in 0..hidden {
                expected[row] += router * product(&of.down.values, row, &h).0;
                sizes[row] += router * product(&of.down.values, row, &of_h).1;
            }
        }
        // gate and up each add H terms in f32 in some order: no more than H + 8 roundings of 2^-24 of the sizes of
        // what is added. silu is below its argument and steeper than 1.1 nowhere, so that an element of h is off by
        // 2.1 times that, times the sizes of the other; exp, the product and the rounding of h are a few roundings
        // more. down adds I terms, and the sum two parts.
        let greatest = expected.iter().fold(0f64, |most, y| most.max(y.abs()));
        let roundings = 2.1 * (hidden + 8) as f64 + (intermediate + 8) as f64 + 24.0;
        for row in 0..hidden {
            let (y, expected) = (f64::from(y[at * hidden + row]), expected[row]);
            let bound = roundings * 2f64.powi(-24) * sizes[row];
            assert!((y - expected).abs() <= bound, "{at}, {row}: {y} and {expected}, {bound:e}");
            // Other experts, router weights or gates do not keep such a bound.
            assert!(bound < greatest / 16.0, "{bound} of {greatest}");
        }
    }
    Ok(())
}

#[test]
fn tensors_may_have_any_rank_and_several_types() -> Result<()> {
    let checkpoint = golden("moe_qwen2_shared.safetensors");
    let layer = experts(&checkpoint).expect("a layer");
    let op = layer.prepare(&Backend::cpu()).expect("the CPU prepares it");
    let ours = QuantExperts::from_layer(&layer, &Device::Cpu)?;
    let inputs = Inputs::new(&*op, 6)?;
    let (ids, weights) = (inputs.ids()?, &inputs.weights);
    let (hidden, k) = (inputs.x.dim(1)?, weights.dim(1)?);
    let expected =
        values(&ours.forward(&inputs.x, Routed::Chosen { ids: &ids, weights }, None)?)?;

    // A batch of two texts of three tokens; the router has seen rows.
    let batch = inputs.x.reshape((2, 3, hidden))?;
    let y = ours.forward(&batch, Routed::Chosen { ids: &ids, weights }, None)?;
    assert_eq!((y.dims(), values(&y)?), (&[2, 3, hidden][..], expected.clone()));
    // Columns of a wider tensor, rows in another order and back.
    let wide = Tensor::cat(&[&inputs.x, &inputs.x], 1)?;
    let part = wide.narrow(1, hidden, hidden)?;
    let turned = weights.t()?.contiguous()?.t()?;
    assert!(!part.is_contiguous() && !turned.is_contiguous());
    let y = ours.forward(&part, Routed::Chosen { ids: &ids, weights: &turned }, None)?;
    assert_eq!(values(&y)?, expected);
    // Ids of each type.
    for dtype in [DType::U32, DType::I32, DType::I64] {
        let ids = ids.to_dtype(dtype)?;
        let y = ours.forward(&inputs.x, Routed::Chosen { ids: &ids, weights }, None)?;
        assert_eq!(values(&y)?, expected, "{dtype:?}");
    }
    // Weights and logits in a narrow type have the values of that type.
    for dtype in [DType::F16, DType::BF16] {
        let narrow = weights.to_dtype(dtype)?;
        let wide = narrow.to_dtype(DType::F32)?;
        let [y, same] = [&narrow, &wide]
            .map(|weights| ours.forward(&inputs.x, Routed::Chosen { ids: &ids, weights }, None));
        assert_eq!(values(&y?)?, values(&same?)?, "{dtype:?}");
        let narrow = inputs.logits.to_dtype(dtype)?;
        let wide = narrow.to_dtype(DType::F32)?;
        let [y, same] =
            [&narrow, &wide].map(|logits| ours.forward(&inputs.x, Routed::Logits(logits), None));
        assert_eq!(values(&y?)?, values(&same?)?, "{dtype:?}");
    }
    // The first choice of each token is no expert.
    let (mut without, of_weights) = (inputs.ids.clone(), values(weights)?);
    without.iter_mut().step_by(k).for_each(|id| *id = -1);
    let routed = runtime::Routed::Chosen { ids: &without, weights: &of_weights };
    let fewer = by_the_runtime(&*op, &inputs, routed, false, DType::F32)?;
    assert_ne!(fewer, expected);
    // Numbers beyond 32 bits are no expert's.
    let beyond = [1i64 << 31, 1 << 32, (1 << 32) + 1, -1 << 32, i64::MIN, i64::MAX];
    let beyond = without.iter().zip(beyond.into_iter().cycle());
    let beyond = beyond.map(|(id, none)| if *id < 0 { none } else { i64::from(*id) }).collect();
    let ids = Tensor::from_vec(beyond, weights.dims(), &Device::Cpu)?;
    let y = ours.forward(&inputs.x, Routed::Chosen { ids: &ids, weights }, None)?;
    assert_eq!(values(&y)?, fewer);
    let without = Tensor::from_vec(without, weights.dims(), &Device::Cpu)?.to_dtype(DType::I64)?;
    for dtype in [DType::U32, DType::I32, DType::I64] {
        let ids = without.to_dtype(dtype)?;
        let y = ours.forward(&inputs.x, Routed::Chosen { ids: &ids, weights }, None)?;
        assert_eq!(values(&y)?, fewer, "{dtype:?}");
    }
    // The result of shared experts may be in another type than x.
    let [one, other] = [DType::F32, DType::F16].map(|dtype| {
        let shared = inputs.shared.to_dtype(dtype)?;
        ours.forward(&inputs.x, Routed::Logits(&inputs.logits), Some(&shared))
    });
    assert_eq!(values(&one?)?, values(&other?)?);
    // No tokens.
    let x = Tensor::zeros((0, hidden), DType::F32, &Device::Cpu)?;
    let logits = Tensor::zeros((0, 4), DType::F32, &Device::Cpu)?;
    assert_eq!(ours.forward(&x, Routed::Logits(&logits), None)?.dims(), [0, hidden]);
    ours.warm(DType::BF16, &[1, 6], true)
}

#[test]
fn an_expert_map_leaves_out_what_is_elsewhere() -> Result<()> {
    let checkpoint = golden("moe_ct_w4a16.safetensors");
    let layer = experts(&checkpoint).expect("a layer");
    let op = layer.prepare(&Backend::cpu()).expect("the CPU prepares it");
    let inputs = Inputs::new(&*op, 6)?;
    let routed = Routed::Logits(&inputs.logits);
    let whole =
        values(&QuantExperts::from_layer(&layer, &Device::Cpu)?.forward(&inputs.x, routed, None)?)?;
    let of = |places: [i32; 4]| -> Result<Vec<f32>> {
        let map = ExpertMap::new(places.to_vec(), 2).expect("a map");
        let mut options = ExpertOptions::default();
        options.map = Some(map);
        let experts = QuantExperts::from_layer_with(&layer, &options, &Device::Cpu)?;
        let y = values(&experts.forward(&inputs.x, routed, None)?)?;
        // The same of tensors.
        let experts = of_tensors("moe_ct_w4a16.safetensors", &layer, &options)?;
        assert_eq!(values(&experts.forward(&inputs.x, routed, None)?)?, y);
        Ok(y)
    };
    let (one, other) = (of([1, -1, 0, -1])?, of([-1, 0, -1, 1])?);
    assert_ne!(one, other);
    // Three roundings of 2^-24 of what two parts add, which is less than twice the greatest part.
    let greatest = one.iter().chain(&other).fold(0f32, |most, y| most.max(y.abs()));
    for (whole, (one, other)) in whole.iter().zip(one.iter().zip(&other)) {
        let bound = 3.0 * 2f32.powi(-24) * 2.0 * greatest;
        assert!((whole - (one + other)).abs() <= bound, "{whole} is not {one} and {other}");
    }
    Ok(())
}

/// The layer of the tensors of a file, which candle reads.
fn of_tensors(
    file: &str,
    layer: &CheckpointExperts<'_>,
    options: &ExpertOptions,
) -> Result<QuantExperts> {
    let path = format!("{}/../tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path)?;
    let all = VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu)?;
    let all = all.pp("model.layers.0.mlp.experts");
    let stored = |at: &ExpertTensor<'_>, dtype| {
        let matrix = at.matrix(["gate_proj", "up_proj"], "down_proj");
        all.pp(at.expert).pp(matrix).get_unchecked_dtype(at.store, dtype)
    };
    let schemes = layer.schemes().expect("quantised");
    let description = layer.layer().expect("a description");
    QuantExperts::from_tensors(description, schemes, stored, options, &Device::Cpu)
}

#[test]
fn tensors_of_a_var_builder_are_a_layer() -> Result<()> {
    for file in ["moe_ct_w4a16.safetensors", "moe_ct_fp8_block.safetensors"] {
        let checkpoint = golden(file);
        let layer = experts(&checkpoint).expect("a layer");
        let ours = of_tensors(file, &layer, &ExpertOptions::default())?;
        let op = layer.prepare(&Backend::cpu()).expect("the CPU prepares it");
        let inputs = Inputs::new(&*op, 5)?;
        let routed = Routed::Logits(&inputs.logits);
        let expected = QuantExperts::from_layer(&layer, &Device::Cpu)?;
        let expected = values(&expected.forward(&inputs.x, routed, None)?)?;
        assert_eq!(values(&ours.forward(&inputs.x, routed, None)?)?, expected, "{file}");
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_in_words() -> Result<()> {
    let checkpoint = golden("moe_ct_w4a16.safetensors");
    let layer = experts(&checkpoint).expect("a layer");
    let ours = QuantExperts::from_layer(&layer, &Device::Cpu)?;
    fn shared_by_threads(_: &(impl Clone + Send + Sync + 'static)) {}
    shared_by_threads(&ours);
    let text = "QuantExperts(4 experts of 64 x 96, top 2, softmax renormalised, silu; CompressedTensors, CompressedTensors)";
    assert_eq!(format!("{ours:?}"), text);
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu);
    let x = zeros(&[2, 64], DType::F32)?;
    let logits = zeros(&[2, 4], DType::F32)?;
    let (ids, weights) = (zeros(&[2, 2], DType::U32)?, zeros(&[2, 2], DType::F32)?);
    let refused = |x: &Tensor, routed: Routed<'_>, shared: Option<&Tensor>| {
        let message = ours.forward(x, routed, shared).expect_err("it is refused").to_string();
        message.lines().next().unwrap_or_default().to_owned()
    };
    let of_logits = |logits: &Tensor| refused(&x, Routed::Logits(logits), None);
    let chosen =
        |ids: &Tensor, weights: &Tensor| refused(&x, Routed::Chosen { ids, weights }, None);
    let routed = Routed::Logits(&logits);
    let shared = |shared: &Tensor| refused(&x, routed, Some(shared));
    let floats = "an expert layer takes F32, F16 or BF16";
    let narrow = zeros(&[2, 63], DType::F32)?;
    assert_eq!(refused(&narrow, routed, None), "x is [2, 63]; the layer takes rows of 64");
    let double = zeros(&[2, 64], DType::F64)?;
    assert_eq!(refused(&double, routed, None), format!("x: F64; {floats}"));
    let expected = "the router's logits: [3, 4], expected 2 rows of 4";
    assert_eq!(of_logits(&zeros(&[3, 4], DType::F32)?), expected);
    let expected = "the router's logits: [4, 2], expected 2 rows of 4";
    assert_eq!(of_logits(&zeros(&[4, 2], DType::F32)?), expected);
    let expected = format!("the router's logits: U32; {floats}");
    assert_eq!(of_logits(&zeros(&[2, 4], DType::U32)?), expected);
    let expected = "the router's logits: [], expected 2 rows of 4";
    assert_eq!(of_logits(&zeros(&[], DType::F32)?), expected);
    let expected = "the ids of experts: [2, 3], expected 2 rows of 2";
    assert_eq!(chosen(&zeros(&[2, 3], DType::U32)?, &weights), expected);
    let expected = "the ids of experts: F32; an expert layer takes U32, I32 or I64";
    assert_eq!(chosen(&weights, &weights), expected);
    let expected = "the router weights: [2], expected 2 rows of 2";
    assert_eq!(chosen(&ids, &zeros(&[2], DType::F32)?), expected);
    let expected = "the result of shared experts: [2, 32], expected 2 rows of 64";
    assert_eq!(shared(&zeros(&[2, 32], DType::F32)?), expected);
    let expected = format!("the result of shared experts: U8; {floats}");
    assert_eq!(shared(&zeros(&[2, 64], DType::U8)?), expected);
    // What the runtime says.
    let there = Tensor::new(&[[0u32, 1], [2, 4]], &Device::Cpu)?;
    let expected = "token 1, choice 1: there is no expert 4 among 4";
    assert_eq!(chosen(&there, &weights), expected);
    let wrong = Tensor::new(&[[0.0, 1.0, 2.0, 3.0], [0.0, f32::NAN, 0.0, 0.0]], &Device::Cpu)?;
    assert_eq!(of_logits(&wrong), "logits[1, 1] is NaN; routing needs numbers");
    let floats = golden("moe_mixtral.safetensors");
    let layer = floats.expert_layer("experts").expect("a layer of floats");
    let refused = QuantExperts::from_layer(&layer, &Device::Cpu).expect_err("it is refused");
    let refused = refused.to_string();
    assert!(refused.starts_with("expert layer \"experts\": "), "{refused}");
    Ok(())
}
