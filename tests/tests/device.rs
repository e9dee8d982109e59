//! One `Device` for every place where products run, and the errors on the way there.

use std::error::Error;

use quantloom::device::DeviceError;
use quantloom::prelude::*;
use quantloom::runtime::checkpoint::{LayerFault, LayerProblem, Options};
use quantloom::runtime::cpu::weight::CpuWeight;
use quantloom::runtime::gpu::GpuWeight;
use quantloom::runtime::op::ProductError;
use quantloom::runtime::pack::pack;
use quantloom::runtime::tensor::reals;
use quantloom_dsl::Activation;
use quantloom_dsl::format::{F16, F32};
use quantloom_tests::golden_file;
use quantloom_tools::conformance::draw;

quantloom::scheme! {
    /// compressed-tensors W4A16.
    W4A16 {
        weight: u4 - 8,
        scale: bf16 per 1x128,
        pack: i32 [k:* | w, n] as "weight_packed",
        activation: bf16 | f16,
        arithmetic: own,
    }
}

quantloom::scheme! {
    /// Weights out of a table of four.
    Book { weight: codebook(-1, -0.25, 0.25, 1), scale: f32 per 1x32, pack: [k, n], activation: bf16 }
}

type Anything = Box<dyn Error + Send + Sync>;

/// y of the file's own x, by a declared scheme, by the layer's own, and by a scheme value with bytes.
fn multiplied(device: &Device) -> Result<[Vec<f32>; 3], Anything> {
    let checkpoint = Checkpoint::open(golden_file("ct_w4a16"))?;
    let layer = checkpoint.layer("layer")?;
    let x = checkpoint.tensors().get("ref.x").and_then(reals).ok_or("no x")?;
    let x: Vec<f32> = x.into_iter().map(|x| x as f32).collect();
    let halves: Vec<bf16> = x.iter().copied().map(bf16::from_f32).collect();

    let declared: Weight<W4A16> = W4A16::load(layer)?.prepare(device)?;
    let own: PreparedLayer = layer.prepare(device)?;
    let scheme = parse(W4A16::TEXT)?;
    let bytes = |store: &str| layer.store(store).map(<[u8]>::to_vec);
    let value = Layer::from_bytes("by value", &scheme, layer.shape(), bytes)?.prepare(device)?;

    let mut y = vec![0.0; x.len() / layer.shape().k as usize * layer.shape().n as usize];
    own.matmul_into(&halves, &mut y, &mut Workspace::default())?;
    assert!(own.explain(1).contains("is chosen"), "{}", own.explain(1));
    Ok([declared.matmul(&x)?, y, value.matmul(&halves)?])
}

/// A layer of x in one type converts x of the other one.
#[test]
fn a_layer_takes_x_in_one_type_alone() {
    let checkpoint = Checkpoint::open(golden_file("ct_w4a16")).unwrap();
    let layer = checkpoint.layer("layer").unwrap();
    let names = |layer: &Layer| -> Vec<String> {
        layer.scheme().activations.iter().map(Activation::name).collect()
    };
    assert_eq!(names(layer), ["bf16", "f16"]);
    let one = layer.with_input(F16);
    assert_eq!((names(&one), names(layer).len()), (vec!["f16".to_owned()], 2));
    assert_eq!(
        (one.name(), one.shape(), one.bytes()),
        (layer.name(), layer.shape(), layer.bytes())
    );
    assert_eq!(names(&layer.with_input(F32)), names(layer));
}

#[test]
fn every_device_prepares_by_the_same_call() {
    let checkpoint = Checkpoint::open(golden_file("ct_w4a16")).unwrap();
    let reference = checkpoint.tensors().get("ref.y").and_then(reals).unwrap();
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    for name in ["cpu", "portable", "sim:sm_90a", "sim:gfx942", "sim:wgsl"] {
        let device = Device::named(name).unwrap();
        for y in multiplied(&device).unwrap() {
            assert_eq!(y.len(), reference.len());
            let error = norm(&mut y.iter().zip(&reference).map(|(y, r)| f64::from(*y) - r));
            let share = error / norm(&mut reference.iter().copied());
            assert!(share < 0.006, "{name}: {share}");
        }
    }
}

#[test]
fn what_is_particular_to_a_device_is_reached_through_its_own_type() {
    use quantloom::codegen::jit::Simulator;

    let checkpoint = Checkpoint::open(golden_file("ct_w4a16")).unwrap();
    let layer = checkpoint.layer("layer").unwrap();
    let on_cpu = layer.prepare(&Device::cpu()).unwrap();
    let simulated = layer.prepare(&Device::simulated("sm_90a").unwrap()).unwrap();
    assert!(on_cpu.downcast_ref::<CpuWeight>().is_some_and(|weight| weight.bytes() > 0));
    assert!(on_cpu.downcast_ref::<GpuWeight<Simulator>>().is_none());
    assert!(simulated.downcast_ref::<GpuWeight<Simulator>>().is_some());
    assert!(simulated.downcast_ref::<CpuWeight>().is_none());
}

/// A layer of random numbers.
fn random(scheme: &Scheme, shape: Shape) -> Layer {
    let packed = pack(scheme, &draw::layer(scheme, shape, 0)).unwrap();
    Layer::from_bytes("layer", scheme, shape, |store| packed.get(store).cloned()).unwrap()
}

/// The table of values is slow: no scheme of the catalogue comes to it without a declaration, and who
/// does is told.
#[test]
fn schemes_that_are_known_at_run_time_find_their_decoders() {
    for scheme in quantloom::kernels::catalogue() {
        let experts = if scheme.experts.is_some() { 2 } else { 1 };
        let layer = random(scheme, Shape { experts, n: 128, k: 256 });
        let said = layer.prepare(&Device::cpu()).unwrap().explain(1);
        assert!(
            !said.contains(", table decode") && !said.contains("SLOW"),
            "{}: {said}",
            scheme.name
        );
    }
    let layer = random(Book::scheme().unwrap(), Shape::matrix(48, 64));
    let untyped = layer.prepare(&Device::cpu()).unwrap().explain(1);
    let why = "SLOW: no decoder is generated for a codebook of 4";
    assert!(untyped.contains(", table decode") && untyped.contains(why), "{untyped}");
    let declared = Book::load(&layer).unwrap().prepare(&Device::cpu()).unwrap().explain(1);
    assert!(!declared.contains(", table decode") && !declared.contains("SLOW"), "{declared}");
}

#[test]
fn names_are_those_of_devices() {
    for (name, is) in
        [("cpu", None), ("portable", Some("portable")), ("sim:wgsl", Some("sim:wgsl"))]
    {
        let device = Device::named(name).unwrap();
        assert_eq!(device.name(), is.unwrap_or(device.name()));
        assert_eq!(Device::named(device.name()).unwrap().name(), device.name());
    }
    for name in ["tpu", "", "cuda:", "cuda:x", "cpu:0", "auto:1", "CUDA", "gfx1100", "sve3"] {
        let error = Device::named(name).unwrap_err();
        assert!(matches!(error, DeviceError::Unknown { .. }), "{name}: {error}");
        let error = error.to_string();
        assert!(error.contains("present are auto, cpu, "), "{error}");
        assert!(error.contains("portable, ") && error.contains("sim:TARGET"), "{error}");
    }
    for name in ["sve2", "sme"] {
        let error = Device::named(name).unwrap_err();
        assert!(matches!(error, DeviceError::NoKernels { .. }), "{name}: {error}");
        assert!(error.to_string().contains("stable Rust has no functions"), "{error}");
    }
    let error = Device::named("sim:sm_70").unwrap_err();
    assert!(matches!(error, DeviceError::Target { .. }), "{error}");
    assert!(error.to_string().contains("only for sm_80, "), "{error}");
    // Not there, or not compiled: a typed error that says which feature to add.
    for name in ["cuda:99", "hip:99", "wgpu:99"] {
        let error = Device::named(name).unwrap_err();
        let feature = &name[..name.len() - 3];
        assert!(error.to_string().starts_with(&format!("{feature}: ")), "{error}");
        if let DeviceError::NotCompiled { feature: found } = error {
            assert_eq!(found, feature);
            let how = format!("cargo add quantloom --features {feature}");
            assert!(error.to_string().contains(&how), "{error}");
        }
    }
}

#[test]
fn every_listed_device_is_there_or_says_why_not() {
    let list = Device::list();
    for listed in list.iter().filter(|listed| !listed.name.starts_with("sim:")) {
        let opened = Device::named(&listed.name);
        assert_eq!(opened.is_ok(), listed.absent.is_none(), "{listed:?}: {:?}", opened.err());
    }
    for name in ["cpu", "portable", "cuda", "hip", "wgpu", "sim:sm_90a", "sim:gfx942", "sim:wgsl"] {
        assert!(list.iter().any(|listed| listed.name == name), "{name}: {list:?}");
    }
    let (best, absent) = Device::best_and_absent();
    let listed = list.iter().find(|listed| listed.name == best.name()).unwrap();
    assert!(listed.absent.is_none(), "{listed:?}");
    assert_eq!(Device::named("auto").unwrap().name(), best.name());
    let gpus = [Device::cuda(0), Device::hip(0)].into_iter().filter(Result::is_ok).count();
    match best {
        Device::Cpu(_) => assert_eq!((gpus, absent.len()), (0, 3), "{absent:?}"),
        _ => assert!(absent.len() < 3, "{absent:?}"),
    }
}

/// Errors outlive what they are of, and tell cases apart.
#[test]
fn errors_are_typed_and_own_what_they_say() {
    let missing = || -> Result<(), Anything> {
        let checkpoint = Checkpoint::open(golden_file("ct_w4a16"))?;
        checkpoint.layer("other")?.prepare(&Device::cpu())?;
        Ok(())
    };
    let missing = missing().unwrap_err();
    let fault: &LayerFault = missing.downcast_ref().unwrap();
    assert!(matches!(fault, LayerFault::Missing { known, .. } if known == &["layer"]), "{fault}");

    let checkpoint = Checkpoint::open(golden_file("ct_w4a16")).unwrap();
    let layer = checkpoint.layer("layer").unwrap();
    let (scheme, shape) = (layer.scheme(), layer.shape());
    let without = |gone: &str| {
        let bytes =
            |store: &str| layer.store(store).filter(|_| !store.contains(gone)).map(<[u8]>::to_vec);
        Layer::from_bytes("l", scheme, shape, bytes).unwrap_err()
    };
    let error = without("scale");
    assert!(matches!(&*error.problem, LayerProblem::MissingTensor(name) if name.contains("scale")));
    assert!(error.to_string().starts_with("layer \"l\": the tensor \"l.weight_scale\""), "{error}");
    let short = |store: &str| layer.store(store).map(|bytes| bytes[1..].to_vec());
    let error = Layer::from_bytes("l", scheme, shape, short).unwrap_err();
    assert!(matches!(*error.problem, LayerProblem::Dimensions { .. }), "{error}");
    let wrong =
        |_: &str| Some(Tensor::new(quantloom::runtime::checkpoint::Dtype::F64, vec![], vec![]));
    assert!(Layer::from_tensors("l", scheme, shape, wrong).is_err());

    let weight = layer.prepare(&Device::cpu()).unwrap();
    let error = weight.matmul(&[1.0f32; 3]).unwrap_err();
    assert!(matches!(error, ProductError::Rows { found: 3, .. }), "{error}");
    let error = weight.matmul_strided(&[1.0f32; 3], 2).unwrap_err();
    assert!(matches!(error, ProductError::Stride { found: 3, stride: 2, .. }), "{error}");
}

#[test]
fn rows_of_x_may_be_a_part_of_a_wider_tensor() {
    let checkpoint = Checkpoint::open(golden_file("ct_w4a16")).unwrap();
    let layer = checkpoint.layer("layer").unwrap();
    let k = layer.shape().k as usize;
    let wide: Vec<bf16> =
        (0..3 * (k + 5)).map(|at| bf16::from_f32((at % 13) as f32 - 6.0)).collect();
    let dense: Vec<bf16> = wide.chunks(k + 5).flat_map(|row| &row[..k]).copied().collect();
    for name in ["cpu", "sim:sm_90a"] {
        let weight = layer.prepare(&Device::named(name).unwrap()).unwrap();
        let (dense, wide) = (weight.matmul(&dense), weight.matmul_strided(&wide, k + 5));
        assert_eq!(dense.unwrap(), wide.unwrap(), "{name}");
    }
}

#[test]
fn an_expert_is_named_where_there_are_several() {
    let scheme = quantloom::kernels::scheme("gpt_oss_mxfp4_down").unwrap();
    let layer = random(scheme, Shape { experts: 2, n: 32, k: 64 });
    for name in ["cpu", "sim:sm_90a"] {
        let weight = layer.prepare(&Device::named(name).unwrap()).unwrap();
        let x = vec![1.0f32; 64];
        let error = weight.matmul(&x).unwrap_err();
        assert!(matches!(error, ProductError::Stacked { experts: 2 }), "{error}");
        let [first, second] = [0, 1].map(|expert| weight.matmul_expert(expert, &x).unwrap());
        assert!(first.len() == 32 && first != second, "{name}");
        let error = weight.matmul_expert(2, &x).unwrap_err();
        assert!(matches!(error, ProductError::Expert { expert: 2, experts: 2 }), "{error}");
    }
}

#[test]
fn public_types_say_what_they_are() {
    let options = Options::default();
    let bytes = std::fs::read(golden_file("ct_w4a16")).unwrap();
    let checkpoint = Checkpoint::from_bytes(bytes, options).unwrap();
    let layer = checkpoint.layer("layer").unwrap();
    assert!(format!("{checkpoint:?}").contains("CompressedTensors"));
    for name in ["portable", "sim:sm_90a"] {
        let device = Device::named(name).unwrap();
        assert!(format!("{device:?}").contains(name), "{device:?}");
        let weight = layer.prepare(&device).unwrap();
        assert!(format!("{weight:?}").starts_with("PreparedLayer { scheme: "), "{weight:?}");
    }
}
