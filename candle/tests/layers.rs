//! Layers of checkpoints: what candle gets is what the runtime computes, whatever x looks like.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use quantloom_candle::quantloom::prelude::{Checkpoint, Layer, bf16, f16, parse};
use quantloom_candle::quantloom::runtime::op::Workspace;
use quantloom_candle::quantloom::{self, runtime::element::Values};
use quantloom_candle::{QuantLinear, dequantize};
use rayon::prelude::*;

use crate::inputs::{first, gguf, golden, numbers, values};

/// Files of several families, with x as it is and x quantised.
const FILES: &[&str] = &[
    "gguf_q4_0_bias.gguf",
    "gguf_q4_1.gguf",
    "gguf_q4_k.gguf",
    "gguf_q6_k.gguf",
    "gguf_q8_0.gguf",
    "ct_w4a16.safetensors",
    "ct_w4a8.safetensors",
    "ct_fp8.safetensors",
    "ct_nvfp4a16.safetensors",
    "gptq4_v1_actorder.safetensors",
    "awq4.safetensors",
    "quark_w_mxfp4.safetensors",
];

/// y of a dense x by the runtime itself, in the type of x.
fn by_the_runtime(layer: &Layer, x: &Tensor) -> Result<Vec<f32>> {
    let prepared = layer.prepare(&quantloom::Device::cpu()).expect("the CPU prepares it");
    let len = x.elem_count() / layer.shape().k as usize * layer.shape().n as usize;
    let x = values(x)?;
    let mut workspace = Workspace::default();
    let (mut half, mut brain) = (vec![f16::ZERO; len], vec![bf16::ZERO; len]);
    let mut single = vec![0.0f32; len];
    let narrow: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let short: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    // All three types; the caller takes the one of its x.
    prepared.matmul_into(Values::F32(&x), &mut single, &mut workspace).expect("f32");
    prepared.matmul_into(Values::F16(&narrow), &mut half, &mut workspace).expect("f16");
    prepared.matmul_into(Values::Bf16(&short), &mut brain, &mut workspace).expect("bf16");
    let all = single.into_iter();
    Ok(all.chain(half.iter().map(|y| y.to_f32())).chain(brain.iter().map(|y| y.to_f32())).collect())
}

#[test]
fn products_are_the_runtimes_to_the_bit_in_every_type_of_x() -> Result<()> {
    for file in FILES {
        let checkpoint = golden(file);
        let layer = first(&checkpoint);
        let linear = QuantLinear::from_layer(layer, &Device::Cpu)?;
        assert_eq!(linear.scheme(), layer.scheme(), "{file}");
        for tokens in [1, 5] {
            // In all three types the same numbers.
            let x = numbers(&[tokens, linear.inputs()], 1, DType::BF16)?.to_dtype(DType::F32)?;
            let x = x.to_dtype(DType::F16)?.to_dtype(DType::BF16)?.to_dtype(DType::F16)?;
            let expected = by_the_runtime(layer, &x)?;
            let len = tokens * linear.outputs();
            for (at, dtype) in [DType::F32, DType::F16, DType::BF16].into_iter().enumerate() {
                let y = linear.forward(&x.to_dtype(dtype)?)?;
                assert_eq!((y.dims(), y.dtype()), (&[tokens, linear.outputs()][..], dtype));
                assert_eq!(values(&y)?, expected[at * len..(at + 1) * len], "{file}, {dtype:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn x_may_be_a_part_of_a_tensor_of_any_rank() -> Result<()> {
    let checkpoint = golden("gguf_q4_1.gguf");
    let linear = QuantLinear::from_layer(first(&checkpoint), &Device::Cpu)?;
    let (n, k) = (linear.outputs(), linear.inputs());
    let dense = |x: &Tensor| -> Result<Vec<f32>> {
        let rows = Tensor::from_vec(values(x)?, (x.elem_count() / k, k), &Device::Cpu)?;
        values(&linear.forward(&rows)?)
    };
    let wide = numbers(&[2, 3, k + 24], 2, DType::F32)?;
    let tall = numbers(&[4, 6, k], 3, DType::F32)?;
    let cases = [
        ("three dimensions", tall.clone(), vec![4, 6, n]),
        ("one dimension", tall.get(1)?.get(2)?, vec![n]),
        // Contiguous, but not from the first element on.
        ("later rows", tall.narrow(0, 2, 2)?, vec![2, 6, n]),
        ("columns of a wider tensor", wide.narrow(2, 8, k)?, vec![2, 3, n]),
        ("rows in another order", tall.transpose(0, 1)?, vec![6, 4, n]),
        ("a row again and again", tall.get(0)?.narrow(0, 0, 1)?.broadcast_as((3, k))?, vec![3, n]),
        ("no rows", tall.narrow(0, 0, 0)?, vec![0, 6, n]),
    ];
    for (what, x, dims) in cases {
        let y = linear.forward(&x)?;
        assert_eq!(y.dims(), dims, "{what}");
        assert_eq!(values(&y)?, dense(&x)?, "{what}");
    }
    Ok(())
}

/// candle makes the blocks, decodes them and multiplies in `f32`: nothing of it is ours.
#[test]
fn weights_are_candles_to_the_bit_and_products_within_the_rounding_of_sums() -> Result<()> {
    let (n, k, m) = (96, 256, 7);
    let w = numbers(&[n, k], 4, DType::F32)?;
    let x = numbers(&[m, k], 5, DType::F32)?;
    for dtype in [
        GgmlDType::Q4_0,
        GgmlDType::Q4_1,
        GgmlDType::Q5_0,
        GgmlDType::Q5_1,
        GgmlDType::Q8_0,
        GgmlDType::Q2K,
        GgmlDType::Q3K,
        GgmlDType::Q4K,
        GgmlDType::Q5K,
        GgmlDType::Q6K,
    ] {
        let file = gguf(&[], &[("one.weight".to_owned(), w.clone(), dtype)])?;
        let checkpoint = Checkpoint::from_bytes(file, Default::default()).expect("it opens");
        let layer = checkpoint.layer("one").expect("a layer");
        let theirs = QTensor::quantize(&w, dtype)?.dequantize(&Device::Cpu)?;
        let ours = dequantize(layer, DType::F32, &Device::Cpu)?;
        assert_eq!(ours.dims(), [n, k]);
        assert_eq!(values(&ours)?, values(&theirs)?, "{dtype:?}");
        let y = values(&QuantLinear::from_layer(layer, &Device::Cpu)?.forward(&x)?)?;
        let expected = values(&x.matmul(&theirs.t()?)?)?;
        // Each of both adds K products of f32 in some order, and ours multiplies codes and scales apart,
        // with a correction of a shift: at most K + 8 roundings of 2^-24 of the sum of what is added. That is
        // no more than 4 times the sum of |x| |w|'s greatest: codes without their zero point are below
        // 2 max |w| each, and so is a shift.
        let greatest = values(&theirs)?.iter().fold(0.0f32, |most, w| most.max(w.abs()));
        for (row, (y, expected)) in y.chunks(n).zip(expected.chunks(n)).enumerate() {
            let sum: f32 = values(&x.get(row)?)?.iter().map(|x| x.abs()).sum();
            let bound = 2.0 * (k + 8) as f32 * 2f32.powi(-24) * 4.0 * sum * greatest;
            for (y, expected) in y.iter().zip(expected) {
                assert!((y - expected).abs() <= bound, "{dtype:?}: {y} and {expected}, {bound:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn x_may_be_quantised_where_the_file_leaves_it_as_it_is() -> Result<()> {
    let checkpoint = golden("gguf_q4_1.gguf");
    let layer = first(&checkpoint);
    let eight = parse("x { weight: i8, pack: [k, n], activation: i8 { scale: f32 per 1x32 } }");
    let mut scheme = layer.scheme().clone();
    scheme.activations = eight.expect("a scheme").activations;
    let linear = QuantLinear::from_layer_as(layer, &scheme, &Device::Cpu)?;
    assert!(linear.explain(1).contains("i8 dot is chosen"), "{}", linear.explain(1));
    let x = numbers(&[3, linear.inputs()], 9, DType::F32)?;
    let y = values(&linear.forward(&x)?)?;
    let stored = |name: &str| layer.store(name).map(<[u8]>::to_vec);
    let same = Layer::from_bytes(layer.name(), &scheme, layer.shape(), stored).expect("a layer");
    assert_eq!(y, by_the_runtime(&same, &x)?[..y.len()]);
    assert_ne!(y, values(&QuantLinear::from_layer(layer, &Device::Cpu)?.forward(&x)?)?);
    // A scheme of other weights is none of this layer.
    let other = golden("gguf_q4_0.gguf");
    let refused = QuantLinear::from_layer_as(layer, first(&other).scheme(), &Device::Cpu);
    let refused = refused.expect_err("it is refused").to_string();
    let expected = format!("layer \"{}\": GgufQ4_0 is a scheme of other weights", layer.name());
    assert_eq!(refused.lines().next(), Some(expected.as_str()));
    Ok(())
}

#[test]
fn tensors_of_a_var_builder_are_a_layer() -> Result<()> {
    for file in ["gptq4.safetensors", "ct_w4a16.safetensors", "ct_fp8.safetensors"] {
        let checkpoint = golden(file);
        let layer = first(&checkpoint);
        let path = format!("{}/../tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
        let all =
            VarBuilder::from_buffered_safetensors(std::fs::read(path)?, DType::F32, &Device::Cpu)?;
        let own = all.pp(layer.name());
        let stored = |name: &str, dtype| own.get_unchecked_dtype(name, dtype);
        let shape = (layer.shape().n as usize, layer.shape().k as usize);
        let linear = QuantLinear::from_tensors(layer.scheme(), shape, stored, &Device::Cpu)?;
        let x = numbers(&[3, shape.1], 6, DType::F32)?;
        let expected = QuantLinear::from_layer(layer, &Device::Cpu)?.forward(&x)?;
        assert_eq!(values(&linear.forward(&x)?)?, values(&expected)?, "{file}");
    }
    Ok(())
}

#[test]
fn threads_of_the_pool_that_multiplies_may_call_products() -> Result<()> {
    fn shared(_: &(impl Clone + Send + Sync + 'static)) {}
    let w = numbers(&[1024, 256], 7, DType::F32)?;
    let file = gguf(&[], &[("one.weight".to_owned(), w, GgmlDType::Q4_1)])?;
    let checkpoint = Checkpoint::from_bytes(file, Default::default()).expect("it opens");
    let linear = QuantLinear::from_layer(checkpoint.layer("one").expect("a layer"), &Device::Cpu)?;
    shared(&linear);
    let x = numbers(&[16, 256], 8, DType::F32)?;
    let expected = values(&linear.forward(&x)?)?;
    let call = |_| Ok(values(&linear.forward(&x)?)? == expected);
    let same: Result<Vec<bool>> = (0..64).into_par_iter().map(call).collect();
    assert!(same?.into_iter().all(|same| same));
    Ok(())
}
