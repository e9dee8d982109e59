//! Products of every catalogue scheme on every instruction set of this machine, at ragged shapes,
//! against the f64 reference.

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat};
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::{self, Plain, StaticInput};
use quantloom_dsl::{Activation, Scheme};
use quantloom_runtime::cpu::bound::{Magnitudes, bound, depth, weight_magnitudes};
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::device::Device;
use quantloom_runtime::element::{Bf16, F16 as Half, Values};
use quantloom_runtime::unpacked::Unpacked;

/// A fixed sequence of numbers in -1..1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
    fn real(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 30) as f64 - 1.0
    }
}

fn layer(scheme: &Scheme, shape: Shape, random: &mut Random) -> Plain {
    let own = if scheme.to_string().contains("bf16") { BF16 } else { F16 };
    let elements = shape.elements().unwrap() as usize;
    let w: Vec<f64> = (0..elements).map(|_| own.round(random.real() * random.real())).collect();
    let rows = (shape.experts * shape.n) as usize;
    let bias: Vec<f64> = (0..rows).map(|_| random.real()).collect();
    let bias = scheme.bias.map(|_| bias.as_slice());
    let mut plain = reference::quantise(scheme, shape, &w, own, bias).unwrap();
    if let Some(index) = plain.components.get_mut(&Component::Index) {
        // Act-order: any order of the columns.
        for at in (1..index.len()).rev() {
            index.swap(at, (random.next() % (at as u64 + 1)) as usize);
        }
    }
    for (component, codes) in &mut plain.components {
        if matches!(component, Component::InputScale(_)) {
            let number = scheme.number(*component).unwrap();
            let divides = scheme.quantiser().unwrap().scales.last().unwrap().divide;
            let scale = if divides { 500.0 } else { 1.0 / 100.0 };
            codes.fill(number.encode(scale, quantloom_dsl::format::Overflow::Saturate));
        }
    }
    plain
}

fn check(scheme: &Scheme, shape: Shape, tokens: &[usize], seed: u64) {
    let mut random = Random(seed);
    let plain = layer(scheme, shape, &mut random);
    let packed = reference::pack(scheme, &plain).unwrap();
    let weight = Unpacked::new(scheme, shape, &|name| packed.get(name).map(Vec::as_slice)).unwrap();
    let (n, k) = (shape.n as usize, shape.k as usize);
    for isa in Isa::present() {
        let device = Device::named(isa.name()).unwrap();
        let op = device.prepare(scheme, &weight).unwrap();
        for (&m, own) in tokens.iter().zip([F32, BF16, F16].into_iter().cycle()) {
            let x: Vec<f64> = (0..m * k).map(|_| own.round(random.real() * 3.0)).collect();
            let expert = shape.experts - 1;
            let y = product(&op, expert, &x, own);
            let path = op.selection().kernel.path;
            let weights: Vec<Vec<f64>> =
                (0..shape.n).map(|n| weight_magnitudes(&weight, path, expert, n)).collect();
            let (seen, sizes) = match scheme.activations.first() {
                Some(Activation::Quantised(quantiser)) => {
                    let given = StaticInput::of(scheme, &plain);
                    let quantised =
                        reference::quantise_activation(scheme, quantiser, &x, k, own, &given)
                            .unwrap();
                    let parts = quantised.codes.iter().zip(&quantised.zeros).zip(&quantised.scales);
                    let size = |((code, zero), scale): ((&f64, &f64), &f64)| {
                        (code.abs() + zero.abs()) * scale.abs()
                    };
                    (quantised.values(), parts.map(size).collect::<Vec<f64>>())
                }
                _ => (x.clone(), x.iter().map(|x| x.abs()).collect()),
            };
            let expected = reference::matmul(scheme, &plain, expert, &seen).unwrap();
            for (at, (y, expected)) in y.iter().zip(&expected).enumerate() {
                let (token, row) = (at / n, at % n);
                let products = sizes[token * k..][..k].iter().zip(&weights[row]);
                let magnitudes = Magnitudes {
                    products: products.map(|(x, w)| x * w).sum(),
                    bias: weight.bias().map_or(0.0, |b| b[expert as usize * n + row].abs()),
                    result: expected.abs(),
                };
                let bound = bound(depth(&op, m), magnitudes, F32);
                let error = (f64::from(*y) - expected).abs();
                assert!(
                    error <= bound,
                    "scheme {}, set {isa}, shape {m}x{n}x{k}, seed {seed}: y[{token}, {row}] = \
                     {y}, reference {expected}, bound {bound:e}\n{}",
                    scheme.name,
                    op.selection().explain()
                );
            }
        }
    }
}

fn product(
    op: &impl quantloom_runtime::op::Op,
    expert: u64,
    x: &[f64],
    own: FloatFormat,
) -> Vec<f32> {
    use quantloom_runtime::element::{f32_to_bf16, f32_to_f16};
    let x: Vec<f32> = x.iter().map(|value| *value as f32).collect();
    if own == F32 {
        op.matmul(expert, Values::F32(&x)).unwrap()
    } else if own == BF16 {
        let x: Vec<Bf16> = x.iter().map(|value| Bf16(f32_to_bf16(*value))).collect();
        op.matmul(expert, Values::Bf16(&x)).unwrap()
    } else {
        let x: Vec<Half> = x.iter().map(|value| Half(f32_to_f16(*value))).collect();
        op.matmul(expert, Values::F16(&x)).unwrap()
    }
}

#[test]
fn every_catalogue_scheme_multiplies_as_its_reference() {
    for scheme in quantloom_kernels::catalogue() {
        let experts = if scheme.experts.is_some() { 2 } else { 1 };
        // K of whole storage words for the packings that have no ragged form.
        for (n, k) in [(24, 352), (32, 64)] {
            let shape = Shape { experts, n, k };
            check(scheme, shape, &[1, 2, 3, 5, 17], 7 + n);
        }
    }
}
