//! `accuracy: exact`: no kernel rounds weights by their scales.

use quantloom::codegen::jit::Jit;
use quantloom::runtime::gpu::{Products as _, Request};
use quantloom::runtime::source::KernelSource as _;
use quantloom_dsl::format::{BF16, Number};
use quantloom_dsl::{Accuracy, Activation, Scheme};

use crate::warp_group::products;

/// Schemes of which M tokens on Hopper are multiplied with weights that scales have rounded, of each with x in 16 bits
/// or quantised.
fn rounding(accuracy: Accuracy, tokens: u64) -> Vec<String> {
    let mut rounding = Vec::new();
    for scheme in quantloom_kernels::catalogue().iter().filter(|scheme| scheme.experts.is_none()) {
        let scheme = &scheme.with_accuracy(accuracy);
        for activation in &scheme.activations {
            let input_dtype = match activation {
                Activation::Float(Number::Float(own)) => *own,
                _ => BF16,
            };
            let request = Request {
                scheme,
                activation,
                input_dtype,
                target: "sm_90a",
                n: 8192,
                k: 8192,
                x_columns: 8192,
                scales_in_range: true,
                layout_of_range: true,
            };
            let Ok(choice) = Jit.choose(&request, tokens) else { continue };
            let said = choice.compute_dtype.contains("weights times their scale are rounded");
            assert_eq!(choice.decoded.scaled.is_some(), said, "{}", scheme.name);
            assert!(Jit.text(&choice.key).is_ok(), "{}", scheme.name);
            if said {
                rounding.push(format!("{} {activation:?}", scheme.name));
            }
        }
    }
    rounding
}

#[test]
fn exact_weights_are_asked_for() {
    for (tokens, least) in [(1, 1), (64, 8), (1024, 8)] {
        let fast = rounding(Accuracy::Fast, tokens);
        assert!(fast.len() >= least, "M = {tokens}: {fast:?}");
        assert_eq!(rounding(Accuracy::Exact, tokens), [""; 0], "M = {tokens}");
    }
}

/// What is exact is right within the bound of exact weights; short groups, whose scales are on weights otherwise, too.
#[test]
fn exact_products_are_right() {
    for group in [32, 128] {
        let text = format!(
            "s {{ weight: u4 - 8, scale: bf16 per 1x{group}, pack: u32 [k:8 | k, n], activation: bf16, accuracy: exact }}"
        );
        let scheme: Scheme = quantloom_dsl::parse(&text).unwrap();
        let (right, why) = products(&scheme, "", &[(72, 384)], &[1, 9, 40]);
        assert!(right > 0, "{text}: {why}");
    }
}
