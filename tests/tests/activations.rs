//! Which alternative of a list of activations x uses is one rule on every backend; tests also the
//! conversion of x whose type a list or a device does not have.

use quantloom::codegen::jit::Simulator;
use quantloom::runtime::backend::Backend;
use quantloom::runtime::cpu::CpuDevice;
use quantloom::runtime::gpu::GpuDevice;
use quantloom_dsl::format::{BF16, F16, F32, FloatFormat};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::element::{Values, bf16, f16};
use quantloom_runtime::op::Op;
use quantloom_runtime::pack::pack;
use quantloom_runtime::weight_data::WeightData;
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::{Failure, Suite, draw};

const SHAPE: (u64, u64) = (32, 256);
const TOKENS: usize = 3;

fn scheme(weight: &str, activation: &str) -> Scheme {
    let text = format!(
        "s {{ weight: {weight}, scale: f32 per 1x128, pack: [k, n], activation: {activation} }}"
    );
    parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"))
}

fn backends() -> Vec<Box<dyn Backend>> {
    let mut all: Vec<Box<dyn Backend>> = vec![Box::new(CpuDevice::portable())];
    for target in ["sm_90a", "gfx942", "wgsl"] {
        all.push(Box::new(GpuDevice::new(Simulator::new(target).unwrap())));
    }
    all
}

/// An op of a layer; only the weight's part of the scheme matters.
fn prepared(backend: &dyn Backend, scheme: &Scheme) -> Result<Box<dyn Op>, String> {
    let shape = Shape::matrix(SHAPE.0, SHAPE.1);
    let packed = pack(scheme, &draw::layer(scheme, shape, 0)).unwrap();
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    let data = WeightData::stored(scheme, shape, stored);
    backend.prepare_weight(&data).map_err(|error| error.to_string())
}

/// x for every type: sixteen significant bits, so that each type rounds them differently.
fn x() -> Vec<f32> {
    let value = |at: u32| f64::from(at.wrapping_mul(2_654_435_761) >> 16) / 32_768.0 - 1.0;
    (0..TOKENS as u32 * SHAPE.1 as u32).map(|at| value(at + 1) as f32).collect()
}

/// y of x rounded to a type, then to the type in which it is passed.
fn product(op: &dyn Op, rounded: FloatFormat, own: FloatFormat) -> Vec<f32> {
    let round = |x: &f32| own.round(rounded.round(f64::from(*x))) as f32;
    let x: Vec<f32> = x().iter().map(round).collect();
    let y = match own {
        BF16 => {
            let x: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
            op.matmul(0, Values::Bf16(&x))
        }
        F16 => {
            let x: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
            op.matmul(0, Values::F16(&x))
        }
        _ => op.matmul(0, Values::F32(&x)),
    };
    y.unwrap()
}

/// The norm of a difference divided by that of the second operand.
fn apart(one: &[f32], other: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let differences = one.iter().zip(other).map(|(a, b)| f64::from(a - b));
    norm(&mut differences.into_iter()) / norm(&mut other.iter().map(|v| f64::from(*v)))
}

/// Alternatives of four bits differ much from those of sixteen, so that a wrong one is noticed.
#[test]
fn every_backend_takes_the_same_alternative() {
    let i4 = "i4 { scale: f32 per token }";
    let lists = [
        (format!("{i4} | bf16"), ["i4", "i4", "i4"]),
        (format!("bf16 | {i4}"), ["bf16", "i4", "i4"]),
        (format!("bf16 | {i4} | f16"), ["bf16", "i4", "i4"]),
        (format!("f16 | bf16 | {i4}"), ["bf16", "f16", "i4"]),
    ];
    for backend in backends() {
        for (list, names) in &lists {
            let mixed = scheme("u4 - 8", list);
            let op = prepared(&*backend, &mixed).unwrap();
            let said = op.explain(TOKENS);
            for (own, name) in [BF16, F16, F32].into_iter().zip(names) {
                let case = format!("{list} on {}, x in {own}", backend.name());
                let y = product(&*op, own, own);
                for alternative in ["i4", "bf16", "f16"] {
                    let Ok(alone) = mixed.with_activation(alternative) else { continue };
                    let alone = prepared(&*backend, &alone).unwrap();
                    let distance = apart(&y, &product(&*alone, own, own));
                    let (is, float) = (alternative == *name, *name != "i4");
                    match (is, alternative != "i4" && float) {
                        (true, _) => assert!(distance < 4e-3, "{case}: {distance}"),
                        // Another 16-bit float rounds slightly differently.
                        (false, true) => {}
                        (false, false) => assert!(distance > 2e-2, "{case}: {distance}"),
                    }
                }
                let line = match *name {
                    "i4" => format!("x in {own} is quantised to i4"),
                    _ => format!("x in {own} is not converted"),
                };
                assert!(said.contains(&line), "{case}: no `{line}` in\n{said}");
            }
        }
    }
}

/// An alternative that a target does not support is an error; no other alternative is used.
#[test]
fn a_refused_alternative_is_not_replaced() {
    let device = GpuDevice::new(Simulator::new("sm_90a").unwrap());
    let mixed = scheme("u4 - 8", "i8 { scale: u32 per token } | bf16");
    let refused = prepared(&device, &mixed).map(|_| ()).unwrap_err();
    assert!(refused.contains("u32 scales of activations"), "{refused}");
    let suite = Suite { shapes: vec![SHAPE], tokens: vec![1], seeds: vec![0, 1], every: 1 };
    let failed = suite.run(&mixed, &[&device], &|_| {}).remove(0).unwrap_err();
    assert!(matches!(failed, Failure::NotScheduled { .. }), "{failed}");
    let done = suite.run(&mixed.with_activation("bf16").unwrap(), &[&device], &|_| {}).remove(0);
    assert_eq!(done.unwrap().products, 2);
}

/// The result for x that the device rounds equals that for x that the caller rounds, apart from y's
/// type.
#[test]
fn x_of_another_type_is_rounded_and_that_is_said() {
    let cases = [
        ("bf16 | f16", F32, BF16, "the scheme does not list f32"),
        ("f16 | bf16", F32, F16, "the scheme does not list f32"),
        ("f16", BF16, F16, "the scheme does not list bf16"),
        ("bf16", F16, BF16, "the scheme does not list f16"),
        ("f32", F32, BF16, "has no product of u4 - 8 weights and f32 activations"),
        ("f32 | f16", F32, F16, "has no product of u4 - 8 weights and f32 activations"),
    ];
    for target in ["sm_80", "sm_90a", "gfx942"] {
        let device = GpuDevice::new(Simulator::new(target).unwrap());
        for (list, own, listed, why) in cases {
            let case = format!("{list} on {target}, x in {own}");
            let op = prepared(&device, &scheme("u4 - 8", list)).unwrap();
            assert_eq!(op.accumulation().rounds_x(own), listed, "{case}");
            let said = format!("x in {own} is rounded to {listed}, since ");
            let line = op.explain(TOKENS);
            let line = line.lines().find(|line| line.contains(&said)).unwrap_or_default();
            assert!(line.contains(why), "{case}: {line:?}");
            let given = product(&*op, own, own);
            let rounded = product(&*op, own, listed);
            let same = |(y, of_listed): (&f32, &f32)| {
                let least = if own == F32 { listed } else { own };
                let distance = f64::from((y - of_listed).abs());
                distance <= f64::from(y.abs()) * (least.epsilon() + listed.epsilon())
            };
            assert!(given.iter().zip(&rounded).all(same), "{case}: {given:?} {rounded:?}");
            if own == F32 {
                // y is not rounded with x: it has more significant bits than a 16-bit float.
                let narrow = |y: &f32| listed.round(f64::from(*y)) as f32;
                assert!(given.iter().any(|y| narrow(y) != *y), "{case}");
                let narrowed: Vec<f32> = given.iter().map(narrow).collect();
                assert_eq!(narrowed, rounded, "{case}");
            }
        }
    }
}

/// Backends that multiply in f32 do not round x.
#[test]
fn backends_that_multiply_in_f32_take_x_as_it_is() {
    for backend in backends() {
        if !["portable", "sim:wgsl"].contains(&backend.name()) {
            continue;
        }
        let [halves, exact] = ["bf16 | f16", "f32"].map(|list| scheme("u4 - 8", list));
        let [halves, exact] = [halves, exact].map(|of| prepared(&*backend, &of).unwrap());
        assert_eq!(halves.accumulation().rounds_x(F32), F32);
        assert!(halves.explain(1).contains("x in f32 is not converted"));
        assert_eq!(product(&*halves, F32, F32), product(&*exact, F32, F32), "{}", backend.name());
    }
}

/// The conformance kit compares with x as the device rounds it: partial shapes, all regimes.
#[test]
fn products_of_f32_conform_everywhere() {
    let list = scheme("u4 - 8", "f32");
    let float = scheme("e4m3", "f16 | f32");
    let seeds = Share::new(5, 1).of(0..6);
    for target in ["sm_90a", "gfx942", "gfx950", "wgsl"] {
        let device = GpuDevice::new(Simulator::new(target).unwrap());
        for scheme in [&list, &float] {
            let shapes = vec![(33, 160), (17, 328)];
            let suite = Suite { shapes, tokens: vec![1, 3, 17], seeds: seeds.clone(), every: 1 };
            let done = suite.run(scheme, &[&device], &|_| {}).remove(0);
            let done = done.unwrap_or_else(|failure| panic!("{failure}"));
            assert!(done.not_scheduled.is_empty() && done.products == 6 * seeds.len(), "{done:?}");
        }
    }
}
