//! Products on an NVIDIA GPU. Where there is none, each test says so and passes.

use candle_core::{DType, Device, Module, Result, Tensor};
use quantloom_candle::quantloom::prelude::{ExpertCall, Layer, Workspace, bf16, f16};
use quantloom_candle::quantloom::runtime::experts::{self as runtime, ExpertOp};
use quantloom_candle::quantloom::{self, runtime::element::Values};
use quantloom_candle::{QuantExperts, QuantLinear, Routed};

use crate::experts::{Inputs, experts};
use crate::inputs::{first, golden, numbers, values};

/// Files of several families, with x as it is and x quantised.
const FILES: &[&str] = &[
    "gguf_q4_0_bias.gguf",
    "gguf_q4_1.gguf",
    "gguf_q8_0.gguf",
    "ct_w4a16.safetensors",
    "ct_w4a8.safetensors",
    "ct_fp8_dynamic.safetensors",
    "gptq4_v1_actorder.safetensors",
];

/// The first GPU.
fn gpu() -> Option<Device> {
    match quantloom::runtime::cuda::devices() {
        Ok(devices) if !devices.is_empty() => Some(Device::new_cuda(0).expect("candle's device")),
        _ => {
            #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
            {
                eprintln!("skipped: there is no NVIDIA GPU");
            }
            None
        }
    }
}

/// y of a dense x by the runtime itself, from host to host; x and y are of `dtype`.
fn by_the_runtime(layer: &Layer, x: &Tensor, dtype: DType) -> Result<Vec<f32>> {
    let gpu = quantloom::Device::cuda(0).expect("the GPU");
    let prepared = layer.prepare(&gpu).expect("the GPU prepares it");
    let x = values(x)?;
    let narrow: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let short: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    let x = if dtype == DType::F16 { Values::F16(&narrow) } else { Values::Bf16(&short) };
    Ok(prepared.matmul(x).expect("a product"))
}

#[test]
fn products_are_the_runtimes_to_the_bit() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for file in FILES {
        let checkpoint = golden(file);
        let layer = first(&checkpoint);
        let linear = QuantLinear::from_layer(layer, &gpu)?;
        for (tokens, dtype) in [(1, DType::BF16), (5, DType::F16), (40, DType::BF16)] {
            linear.warm(dtype, &[tokens])?;
            let x = numbers(&[tokens, linear.inputs()], 1, dtype)?;
            let y = linear.forward(&x.to_device(&gpu)?)?;
            assert_eq!((y.dims(), y.dtype()), (&[tokens, linear.outputs()][..], dtype));
            let expected = by_the_runtime(layer, &x, dtype)?;
            assert_eq!(values(&y.to_device(&Device::Cpu)?)?, expected, "{file}, {tokens}");
        }
    }
    Ok(())
}

#[test]
fn x_may_be_a_part_of_a_tensor() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let checkpoint = golden("gguf_q4_1.gguf");
    let linear = QuantLinear::from_layer(first(&checkpoint), &gpu)?;
    let (n, k) = (linear.outputs(), linear.inputs());
    let wide = numbers(&[2, 3, k + 24], 2, DType::BF16)?.to_device(&gpu)?;
    let flat = numbers(&[5 * k + 3], 3, DType::BF16)?.to_device(&gpu)?;
    let rows = flat.narrow(0, 0, 4 * k)?.reshape((2, 2, k))?;
    let cases = [
        ("later rows", rows.narrow(0, 1, 1)?, vec![1, 2, n]),
        // 6 bytes behind a multiple of 16.
        ("an address that kernels do not load from", flat.narrow(0, 3, k)?, vec![n]),
        ("columns of a wider tensor", wide.narrow(2, 8, k)?, vec![2, 3, n]),
        ("rows in another order", rows.transpose(0, 1)?, vec![2, 2, n]),
    ];
    // candle itself allocates no tensor without elements on a GPU.
    assert_eq!(linear.forward(&rows.narrow(0, 0, 0)?)?.dims(), [0, 2, n]);
    for (what, x, dims) in cases {
        let y = linear.forward(&x)?;
        assert_eq!(y.dims(), dims, "{what}");
        // The rows at an address of their own.
        let dense = Tensor::from_vec(values(&x.to_device(&Device::Cpu)?)?, x.dims(), &Device::Cpu)?;
        let dense = linear.forward(&dense.to_dtype(DType::BF16)?.to_device(&gpu)?)?;
        let host = |y: Tensor| values(&y.to_device(&Device::Cpu)?);
        assert_eq!(host(y)?, host(dense)?, "{what}");
    }
    Ok(())
}

/// candle's default stream is another one on each thread; a device may have a stream of its own instead.
#[test]
fn threads_and_streams_share_a_weight() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let checkpoint = golden("ct_w4a16.safetensors");
    let linear = QuantLinear::from_layer(first(&checkpoint), &gpu)?;
    let x = numbers(&[3, linear.inputs()], 4, DType::BF16)?;
    let call = |device: &Device| -> Result<Vec<f32>> {
        let x = x.to_device(device)?;
        // Work queues up, and memory is used again, before anybody waits.
        let mut y = linear.forward(&x)?;
        for _ in 0..100 {
            y = linear.forward(&x)?;
        }
        values(&y.to_device(&Device::Cpu)?)
    };
    let expected = call(&gpu)?;
    assert_eq!(call(&Device::new_cuda_with_stream(0)?)?, expected);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(|| call(&gpu))).collect();
        for call in calls {
            assert_eq!(call.join().expect("no panic")?, expected);
        }
        Ok(())
    })
}

#[test]
fn what_a_gpu_does_not_take_is_refused() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let checkpoint = golden("ct_w4a16.safetensors");
    let layer = first(&checkpoint);
    let there = QuantLinear::from_layer(layer, &gpu)?;
    let here = QuantLinear::from_layer(layer, &Device::Cpu)?;
    let x = numbers(&[1, here.inputs()], 5, DType::F32)?;
    let message = |result: Result<Tensor>| {
        let message = result.expect_err("it is refused").to_string();
        message.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(message(there.forward(&x)), "x is on the CPU, and the weight on a GPU");
    let x = x.to_device(&gpu)?;
    assert_eq!(message(here.forward(&x)), "x is on a GPU, and the weight on the CPU");
    Ok(())
}

/// A GPU's products round x to 16 bits; y is in the type of x.
#[test]
fn x_in_f32_is_multiplied() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let checkpoint = golden("ct_w4a16.safetensors");
    let linear = QuantLinear::from_layer(first(&checkpoint), &gpu)?;
    let x = numbers(&[1, linear.inputs()], 5, DType::BF16)?;
    let own = linear.forward(&x.to_device(&gpu)?)?;
    let y = linear.forward(&x.to_dtype(DType::F32)?.to_device(&gpu)?)?;
    assert_eq!(y.dtype(), DType::F32);
    let [y, own] = [y, own].map(|y| y.to_device(&Device::Cpu).and_then(|y| values(&y)));
    let (y, own) = (y?, own?);
    // These numbers are exact in either type of 16 bits: y in bf16 has half a unit, 2^-9, and weights that are rounded
    // with their scales as much again of each term.
    let largest = own.iter().fold(0f32, |most, value| most.max(value.abs()));
    for (one, other) in y.iter().zip(&own) {
        assert!((one - other).abs() <= largest / 64.0, "{one} and {other}");
    }
    Ok(())
}

/// Files of several families: matrices and stacks, gated and not, with the weight on the input, x quantised.
const EXPERTS: &[&str] = &[
    "gpt_oss_mxfp4.safetensors",
    "moe_ct_fp8_block.safetensors",
    "moe_ct_w4a16.safetensors",
    "moe_gptq4_actorder.safetensors",
    "moe_llama4.safetensors",
    "moe_nemotron_relu2.safetensors",
    "moe_qwen2_shared.safetensors",
];

/// y of chosen experts by the runtime itself, from host to host; all but ids and weights are of `dtype`.
fn experts_by_the_runtime(
    op: &dyn ExpertOp,
    inputs: &Inputs,
    shared: bool,
    dtype: DType,
) -> Result<Vec<f32>> {
    let [x, beside] = [values(&inputs.x)?, values(&inputs.shared)?];
    let weights = values(&inputs.weights)?;
    let routed = runtime::Routed::Chosen { ids: &inputs.ids, weights: &weights };
    macro_rules! call {
        ($element:ty) => {{
            let narrow = |values: &[f32]| -> Vec<$element> {
                values.iter().map(|value| <$element>::from_f32(*value)).collect()
            };
            let (x, beside) = (narrow(&x), narrow(&beside));
            let mut y = vec![<$element>::default(); x.len()];
            let shared = shared.then_some((&beside).into());
            let call = ExpertCall { x: (&x).into(), routed, shared };
            let done = op.forward_into(&call, (&mut y[..]).into(), &mut Workspace::default());
            done.expect("the runtime computes it");
            y.iter().map(|y| y.to_f32()).collect()
        }};
    }
    Ok(if dtype == DType::F16 { call!(f16) } else { call!(bf16) })
}

#[test]
fn expert_layers_are_the_runtimes_to_the_bit() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for file in EXPERTS {
        let checkpoint = golden(file);
        let Some(layer) = experts(&checkpoint) else { panic!("{file} has no quantised experts") };
        let device = quantloom::Device::cuda(0).expect("the GPU");
        let op = layer.prepare(&device).expect("the GPU prepares it");
        let ours = QuantExperts::from_layer(&layer, &gpu)?;
        assert_eq!((ours.layer(), ours.schemes()), (op.layer(), op.schemes()), "{file}");
        for (tokens, dtype) in [(1, DType::BF16), (6, DType::F16), (200, DType::BF16)] {
            ours.warm(dtype, &[tokens], true)?;
            let inputs = Inputs::new(&*op, tokens)?;
            let there = |tensor: &Tensor, dtype| tensor.to_dtype(dtype)?.to_device(&gpu);
            let (x, beside) = (there(&inputs.x, dtype)?, there(&inputs.shared, dtype)?);
            let logits = there(&inputs.logits, DType::F32)?;
            let (ids, weights) = (inputs.ids()?, there(&inputs.weights, DType::F32)?);
            for shared in [None, Some(&beside)] {
                let expected = experts_by_the_runtime(&*op, &inputs, shared.is_some(), dtype)?;
                for of_ids in [DType::U32, DType::I32, DType::I64] {
                    let ids = there(&ids, of_ids)?;
                    let routed = Routed::Chosen { ids: &ids, weights: &weights };
                    let y = ours.forward(&x, routed, shared)?;
                    assert_eq!((y.dims(), y.dtype()), (x.dims(), dtype));
                    let y = values(&y.to_device(&Device::Cpu)?)?;
                    assert_eq!(y, expected, "{file}, {tokens}, {of_ids:?}");
                }
                // The device chooses the same experts, by exp of its own: router weights differ by some 2^-22, which
                // may round an element of y (and of x, with the weight on it) to its neighbour, 2^-7 away in bf16.
                let y = ours.forward(&x, Routed::Logits(&logits), shared)?;
                let y = values(&y.to_device(&Device::Cpu)?)?;
                let greatest = expected.iter().fold(0f32, |most, y| most.max(y.abs()));
                for (y, expected) in y.iter().zip(&expected) {
                    assert!((y - expected).abs() <= greatest / 64.0, "{file}: {y} and {expected}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn an_expert_layer_reads_parts_of_tensors() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let checkpoint = golden("moe_ct_w4a16.safetensors");
    let layer = experts(&checkpoint).expect("a layer");
    let ours = QuantExperts::from_layer(&layer, &gpu)?;
    let inputs = Inputs::new(&*layer.prepare(&quantloom::Device::cpu()).expect("the CPU"), 6)?;
    let there = |tensor: &Tensor, dtype| tensor.to_dtype(dtype)?.to_device(&gpu);
    let (x, ids) = (there(&inputs.x, DType::BF16)?, there(&inputs.ids()?, DType::U32)?);
    let weights = there(&inputs.weights, DType::F32)?;
    let host = |y: Tensor| values(&y.to_device(&Device::Cpu)?);
    let whole = host(ours.forward(&x, Routed::Chosen { ids: &ids, weights: &weights }, None)?)?;
    // Ids and weights of the second token on are at no multiple of 16 bytes.
    let [later, of_ids, of_weights] = [&x, &ids, &weights].map(|all| all.narrow(0, 1, 5));
    let routed = Routed::Chosen { ids: &of_ids?, weights: &of_weights? };
    let later = host(ours.forward(&later?, routed, None)?)?;
    // Fewer rows may take other tiles: two roundings to bf16 apart.
    let greatest = whole.iter().fold(0f32, |most, y| most.max(y.abs()));
    for (y, expected) in later.iter().zip(&whole[layer.sizes().hidden as usize..]) {
        assert!((y - expected).abs() <= greatest / 64.0, "{y} and {expected}");
    }
    // No tokens.
    let none = |tensor: &Tensor| tensor.narrow(0, 0, 0);
    let (no_ids, no_weights) = (none(&ids)?, none(&weights)?);
    let routed = Routed::Chosen { ids: &no_ids, weights: &no_weights };
    assert_eq!(ours.forward(&none(&x)?, routed, None)?.dims(), [0, 64]);
    // Tensors on two devices.
    let refused = ours.forward(&x, Routed::Chosen { ids: &inputs.ids()?, weights: &weights }, None);
    let refused = refused.expect_err("it is refused").to_string();
    let expected = "the ids of experts and x are on different devices";
    assert_eq!(refused.lines().next(), Some(expected));
    Ok(())
}

#[test]
fn threads_and_streams_share_an_expert_layer() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let checkpoint = golden("moe_ct_w4a16.safetensors");
    let layer = experts(&checkpoint).expect("a layer");
    let ours = QuantExperts::from_layer(&layer, &gpu)?;
    let inputs = Inputs::new(&*layer.prepare(&quantloom::Device::cpu()).expect("the CPU"), 20)?;
    let call = |device: &Device| -> Result<Vec<f32>> {
        let x = inputs.x.to_dtype(DType::BF16)?.to_device(device)?;
        // Widened on the device: a tensor that is freed while the call that reads it is queued.
        let logits = inputs.logits.to_dtype(DType::BF16)?.to_device(device)?;
        let mut y = ours.forward(&x, Routed::Logits(&logits), None)?;
        for _ in 0..100 {
            y = ours.forward(&x, Routed::Logits(&logits), None)?;
        }
        values(&y.to_device(&Device::Cpu)?)
    };
    let expected = call(&gpu)?;
    assert_eq!(call(&Device::new_cuda_with_stream(0)?)?, expected);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(|| call(&gpu))).collect();
        for call in calls {
            assert_eq!(call.join().expect("no panic")?, expected);
        }
        Ok(())
    })
}
