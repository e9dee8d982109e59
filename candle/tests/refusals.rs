//! What is refused, and in which words.

use candle_core::{DType, Device, Module, Result, Tensor};
use quantloom_candle::QuantLinear;
use quantloom_candle::quantloom::prelude::parse;

use crate::inputs::{first, golden, numbers};

/// The message of a failure, without the backtrace that candle adds where `RUST_BACKTRACE` asks for one.
fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    let message = result.expect_err("it is refused").to_string();
    message.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn an_x_that_does_not_fit_is_refused() -> Result<()> {
    let checkpoint = golden("gguf_q4_1.gguf");
    let layer = first(&checkpoint);
    let linear = QuantLinear::from_layer(layer, &Device::Cpu)?;
    let (n, k) = (linear.outputs(), linear.inputs());
    let columns = numbers(&[2, k - 1], 1, DType::F32)?;
    let expected = format!("x is [2, {}]; a weight of {n} x {k} takes rows of {k}", k - 1);
    assert_eq!(message(linear.forward(&columns)), expected);
    let none = Tensor::new(1f32, &Device::Cpu)?;
    assert_eq!(
        message(linear.forward(&none)),
        format!("x is []; a weight of {n} x {k} takes rows of {k}")
    );
    let double = numbers(&[2, k], 1, DType::F64)?;
    let expected = "x is in F64; a product takes F32, F16 or BF16";
    assert_eq!(message(linear.forward(&double)), expected);
    Ok(())
}

#[test]
fn a_stack_of_experts_is_no_linear_layer() {
    let checkpoint = golden("gguf_experts.gguf");
    let layer = first(&checkpoint);
    let (name, experts) = (layer.name(), layer.shape().experts);
    let refused = message(QuantLinear::from_layer(layer, &Device::Cpu));
    assert_eq!(
        refused,
        format!(
            "layer \"{name}\": {experts} experts are stacked, and a linear layer is one matrix"
        )
    );
}

#[test]
fn tensors_that_do_not_fit_their_scheme_are_refused() -> Result<()> {
    let scheme = parse(
        "bytes { weight: i8, scale: f32 per channel as \"scale\", pack: [k, n] as \"codes\",
           activation: f32 }",
    );
    let scheme = scheme.expect("a scheme");
    let made = |codes: Tensor, scale: Tensor| {
        let tensor = move |name: &str, _| match name {
            "codes" => Ok(codes.clone()),
            "scale" => Ok(scale.clone()),
            other => candle_core::bail!("there is no `{other}`"),
        };
        QuantLinear::from_tensors(&scheme, (3, 32), tensor, &Device::Cpu)
    };
    let codes = |n: usize| Tensor::ones((n, 32), DType::U8, &Device::Cpu);
    let scale = |dtype| Tensor::ones((3, 1), dtype, &Device::Cpu);
    let y = made(codes(3)?, scale(DType::F32)?)?.forward(&Tensor::ones(
        (1, 32),
        DType::F32,
        &Device::Cpu,
    )?)?;
    assert_eq!(y.to_vec2::<f32>()?, [[32.0; 3]]);
    assert_eq!(
        message(made(codes(4)?, scale(DType::F32)?)),
        "layer \"bytes\": the tensor \"bytes.codes\" is [4, 32], a weight of 1 x 3 x 32 takes [3, 32]"
    );
    assert_eq!(
        message(made(codes(3)?, scale(DType::F16)?)),
        "the tensor `scale` is in F16, the scheme stores F32"
    );
    // The caller's own errors come back as they are.
    let own = |_: &str, _| candle_core::bail!("no such file");
    assert_eq!(
        message(QuantLinear::from_tensors(&scheme, (3, 32), own, &Device::Cpu)),
        "no such file"
    );
    Ok(())
}
