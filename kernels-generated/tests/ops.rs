//! The catalogue's types are the catalogue's schemes.

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference;
use quantloom_kernels::ops;
use quantloom_runtime::checkpoint::Layer;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::decoder::CodeDecoder;
use quantloom_runtime::declared::Declared;

/// The scheme of a type, and the name of its decoder.
fn declared<S: Declared>() -> (&'static Scheme, &'static str, bool) {
    let scheme = S::scheme().unwrap();
    (scheme, S::Decoder::NAME, S::DECODER.serves(&scheme.weight.code))
}

#[test]
fn a_type_is_the_scheme_of_its_file_and_its_family_serves_it() {
    let types = [
        declared::<ops::CtW4a16>(),
        declared::<ops::Gptq3V1Actorder>(),
        declared::<ops::Awq4>(),
        declared::<ops::CtNvfp4>(),
        declared::<ops::QuarkWMxfp6E3m2>(),
        declared::<ops::CtFp8Block>(),
        declared::<ops::Fp8FnuzBlock>(),
        declared::<ops::CtW8a8>(),
        declared::<ops::GptOssMxfp4GateUp>(),
    ];
    let names = types.map(|(scheme, decoder, serves)| {
        assert!(serves, "{}", scheme.name);
        assert!(quantloom_kernels::scheme(&scheme.name).is_some_and(|known| known == scheme));
        (scheme.name.as_str(), decoder)
    });
    assert_eq!(
        names,
        [
            ("ct_w4a16", "u4"),
            ("gptq3_v1_actorder", "u3"),
            ("awq4", "u4"),
            ("ct_nvfp4", "e2m1"),
            ("quark_w_mxfp6_e3m2", "e3m2"),
            ("ct_fp8_block", "e4m3"),
            ("fp8_fnuz_block", "e4m3fnuz"),
            ("ct_w8a8", "u8"),
            ("gpt_oss_mxfp4_gate_up", "e2m1"),
        ]
    );
}

/// One step all the way: a type, its decoder, a product.
#[test]
fn a_type_multiplies() {
    let scheme = ops::CtMxfp4a16::scheme().unwrap();
    let (n, k) = (20, 64);
    let shape = Shape::matrix(n as u64, k as u64);
    let weights: Vec<f64> = (0..n * k).map(|at| ((at * 29 % 97) as f64 - 48.0) / 16.0).collect();
    let plain =
        reference::quantise(scheme, shape, &weights, quantloom_dsl::format::F32, None).unwrap();
    assert!(plain.components.contains_key(&Component::Code));
    let real = reference::dequantise(scheme, &plain).unwrap();
    let stores = reference::pack(scheme, &plain).unwrap();
    let layer = Layer::from_bytes("layer", scheme, shape, |name| stores.get(name).cloned());
    let layer = ops::CtMxfp4a16::load(&layer.unwrap()).unwrap();
    let x: Vec<f32> = (0..k).map(|at| (at % 7) as f32 - 3.0).collect();
    for device in [CpuDevice::portable(), CpuDevice::best()] {
        let y = layer.prepare(&device).unwrap().matmul(&x).unwrap();
        for (row, y) in y.iter().enumerate() {
            let terms = || x.iter().zip(&real[row * k..]).map(|(x, w)| f64::from(*x) * w);
            // K products and K sums, each rounded to 2^-24 of what it is at most.
            let bound = terms().map(f64::abs).sum::<f64>() * (k + 2) as f64 * 2f64.powi(-24);
            let error = (f64::from(*y) - terms().sum::<f64>()).abs();
            assert!(error <= bound, "{}: y[0, {row}] = {y}, off by {error}", device.name());
        }
    }
}
