//! Products on an NVIDIA GPU. Where there is none, each test says so and passes.

use candle_core::{DType, Device, Module, Result, Tensor};
use quantloom_candle::QuantLinear;
use quantloom_candle::quantloom::prelude::{Layer, bf16, f16};
use quantloom_candle::quantloom::{self, runtime::element::Values};

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
