//! Prepared weights go into a file and come back, and only to what they were prepared for.

use std::path::{Path, PathBuf};

use crate::kernels::stored::Stored;
use quantloom_codegen::jit::Simulator;
use quantloom_dsl::format::{BF16, F16, Overflow};
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::checkpoint::{Dtype, Entry, Tensors, Writer};
use quantloom_runtime::element::{Values, ValuesMut, bf16, f16};
use quantloom_runtime::gpu::{GpuDevice, GpuWeight, SavedError};
use quantloom_runtime::op::{Op as _, Workspace};
use quantloom_runtime::pack::pack;
use quantloom_tools::conformance::draw;

const SHAPE: (u32, u32) = (41, 256);

fn scheme(name: &str) -> Scheme {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../kernels-generated/schemes/{name}.scheme"));
    parse(&std::fs::read_to_string(path).unwrap()).unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn device() -> GpuDevice<Simulator> {
    GpuDevice::new(Simulator::new("sm_90a").unwrap())
}

fn prepared(scheme: &Scheme) -> (Stored, GpuWeight<Simulator>) {
    let layer = Stored::draw(scheme, &scheme.activations[0], "sm_90a", SHAPE).unwrap();
    let stored = |name: &str| layer.packed.get(name).map(Vec::as_slice);
    let weight = device().prepare_stored(scheme, layer.unpacked.shape(), &stored).unwrap();
    (layer, weight)
}

/// A file of a prepared weight, and the folder that holds it.
fn saved(name: &str) -> (Stored, GpuWeight<Simulator>, tempfile::TempDir, PathBuf) {
    saved_of(&scheme(name))
}

fn saved_of(scheme: &Scheme) -> (Stored, GpuWeight<Simulator>, tempfile::TempDir, PathBuf) {
    let (layer, weight) = prepared(scheme);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weight.safetensors");
    weight.save(&path).unwrap();
    (layer, weight, folder, path)
}

fn product(weight: &GpuWeight<Simulator>) -> Vec<f32> {
    let columns = weight.shape().k as usize;
    let x: Vec<bf16> =
        (0..3 * columns).map(|at| bf16::from_bits(0x3f80 | ((at as u16 * 37) & 0x807f))).collect();
    let mut y = vec![0.0; 3 * weight.shape().n as usize];
    let mut workspace = Workspace::default();
    weight.matmul_into(0, Values::Bf16(&x), ValuesMut::F32(&mut y), &mut workspace).unwrap();
    y
}

/// Codes that products with x in bf16 and f16 read in two orders are there twice, and once if x has one type; x in the other
/// one is converted.
#[test]
fn codes_are_there_once_for_one_type_of_x() {
    for name in ["ct_mxint4", "ct_mxfp4a16"] {
        let scheme = scheme(name);
        let bytes = |scheme: &Scheme| {
            let (.., path) = &saved_of(scheme);
            std::fs::metadata(path).unwrap().len()
        };
        let (both, one) = (bytes(&scheme), bytes(&scheme.with_input(BF16)));
        assert!(one * 8 < both * 5 && one * 3 > both, "{name}: {one} of {both}");
        let (_, weight) = prepared(&scheme.with_input(BF16));
        assert_eq!(weight.accumulation().rounds_x(F16), BF16);
        let bits = |weight| product(weight).iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&weight), bits(&prepared(&scheme).1), "{name}");
    }
    let quantised = scheme("ct_w8a8");
    assert_eq!(quantised.with_input(BF16), quantised);
}

/// All buffers, what is known of x (a static scale, the order of columns), and so the products.
#[test]
fn a_weight_comes_back() {
    for name in ["ct_w4a16_bias", "gptq4_v1_actorder", "modelopt_nvfp4", "ct_w7a16", "gptq8_v1"] {
        let (layer, weight, _folder, path) = saved(name);
        let loaded = device().load(&layer.scheme, layer.unpacked.shape(), &path).unwrap();
        for part in layer.parts() {
            for element in [BF16, F16] {
                let [before, after] =
                    [&weight, &loaded].map(|weight| weight.buffer(element, part.role()).unwrap());
                assert_eq!(before, after, "{name}: {part:?}");
            }
            assert!(loaded.buffer(layer.own, part.role()).unwrap().is_some());
        }
        assert!(loaded.explain(1).contains("w: loaded"), "{}", loaded.explain(1));
        assert_eq!(product(&weight), product(&loaded), "{name}");
    }
}

/// The factors of columns belong to the weight: to its product, and to its file.
#[test]
fn factors_of_columns_come_back() {
    let text = scheme("ct_w4a16").to_string();
    let text = text.replacen("weight:", "prescale: f16,\n    weight:", 1);
    let factored = parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
    let (layer, weight, folder, path) = saved_of(&factored);
    let shape = layer.unpacked.shape();
    let loaded = device().load(&factored, shape, &path).unwrap();
    let y = product(&weight);
    assert_eq!(y, product(&loaded));
    let stored = |name: &str| layer.packed.get(name).map(Vec::as_slice);
    let plain = device().prepare_stored(&scheme("ct_w4a16"), shape, &stored).unwrap();
    assert_ne!(y, product(&plain));

    // A file with half as many.
    let file = Tensors::open(&path).unwrap();
    let contents = file.names().map(|name| {
        let bytes = file.get(name).unwrap().bytes();
        let half = if name == "given.prescale" { 2 } else { 1 };
        (name.to_owned(), bytes[..bytes.len() / half].to_vec())
    });
    let contents: Vec<(String, Vec<u8>)> = contents.collect();
    let entry = |(name, bytes): &(String, Vec<u8>)| {
        let bytes = bytes.len() as u64;
        Entry { name: name.clone(), dtype: Dtype::U8, shape: vec![bytes], bytes }
    };
    let path = folder.path().join("cut.safetensors");
    let mut writer =
        Writer::create(&path, contents.iter().map(entry).collect(), file.all_metadata()).unwrap();
    contents.iter().try_for_each(|(_, bytes)| writer.write(bytes)).unwrap();
    writer.finish().unwrap();
    let cut = device().load(&factored, shape, &path).err().unwrap();
    assert!(cut.to_string().contains("it has 128 numbers, not 256"), "{cut}");
}

#[test]
fn another_packing_is_the_same_weight() {
    let (layer, _, _folder, path) = saved("gptq4_v2");
    let mut repacked = layer.scheme.clone();
    repacked.stores = scheme("awq4").stores;
    assert!(device().load(&repacked, layer.unpacked.shape(), &path).is_ok());
}

/// A weight in the layout for scales of a range, and one with a scale beyond it, are loaded in the layouts that they were saved in.
#[test]
fn a_layout_for_scales_of_a_range_is_loaded() {
    let text =
        "s { weight: u4 - 8, scale: f16 per 1x32, pack: u32 [k:8 | k, n], activation: f16 | bf16 }";
    let scheme = parse(text).unwrap();
    let shape = Shape::matrix(41, 256);
    let folder = tempfile::tempdir().unwrap();
    for (largest, in_range) in [(4096.0, true), (8192.0, false)] {
        let mut codes = draw::layer(&scheme, shape, 0);
        let scales = codes.components.get_mut(&Component::Scale(0)).unwrap();
        scales.fill(F16.encode(0.5, Overflow::Special));
        scales[3] = F16.encode(largest, Overflow::Special);
        let stored = pack(&scheme, &codes).unwrap();
        let stored = |name: &str| stored.get(name).map(Vec::as_slice);
        let weight = device().prepare_stored(&scheme, shape, &stored).unwrap();
        let path = folder.path().join("weight.safetensors");
        weight.save(&path).unwrap();
        let loaded = device().load(&scheme, shape, &path).unwrap();
        for weight in [&weight, &loaded] {
            let parameters = weight.choice(F16, 1).unwrap().key.schedule.parameters;
            assert_eq!(parameters.contains_key("layout_of_range"), in_range, "{largest}");
            assert_eq!(weight.asked(F16).unwrap().layout_of_range, in_range, "{largest}");
        }
        let x: Vec<f16> = (0..256).map(|at| f16::from_f32(at as f32 / 65536.0)).collect();
        let [y, again] = [&weight, &loaded].map(|of| of.matmul(0, Values::F16(&x)).unwrap());
        assert!(y == again && y.iter().all(|y| y.is_finite()), "{largest}");
    }
}

#[test]
fn what_it_was_not_prepared_for_is_refused() {
    let (layer, _, folder, path) = saved("ct_w4a16");
    let shape = layer.unpacked.shape();
    let refused = |device: &GpuDevice<Simulator>, scheme: &Scheme, shape: Shape, path: &Path| {
        device.load(scheme, shape, path).err().unwrap()
    };
    let other = refused(&device(), &scheme("ct_w4a16_asym"), shape, &path);
    assert!(matches!(&other, SavedError::Differs { what, .. } if what == "scheme"), "{other}");
    let other = refused(&device(), &layer.scheme, Shape::matrix(41, 384), &path);
    let text = "another shape: it has N = 41, K = 256, wanted is N = 41, K = 384; prepare it again";
    assert!(other.to_string().contains(text), "{other}");
    let older = GpuDevice::new(Simulator::new("sm_80").unwrap());
    let other = refused(&older, &layer.scheme, shape, &path);
    assert!(matches!(&other, SavedError::Differs { what, .. } if what == "target"), "{other}");
    let missing = refused(&device(), &layer.scheme, shape, &folder.path().join("none"));
    assert!(matches!(missing, SavedError::Read(_)), "{missing}");

    // The file's own text is changed, its header as long as before.
    let bytes = std::fs::read(&path).unwrap();
    let changed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        let path = folder.path().join("changed");
        std::fs::write(&path, bytes).unwrap();
        refused(&device(), &layer.scheme, shape, &path)
    };
    let version = changed("prepared weight 4", "prepared weight 0");
    assert!(matches!(version, SavedError::Version(_)), "{version}");
    let layout = changed("k:2 |", "k:4 |");
    assert!(matches!(&layout, SavedError::Differs { what, .. } if what == "bf16.w"), "{layout}");
    let renamed = changed("\"bf16.scale\":{", "\"bf16.scald\":{");
    assert!(
        matches!(&renamed, SavedError::Damaged { what, .. } if what == "bf16.scale"),
        "{renamed}"
    );
}

/// A number of no column would let a kernel read beyond x.
#[test]
fn an_order_of_other_columns_is_refused() {
    let (layer, weight, _folder, path) = saved("gptq4_v1_actorder");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = std::str::from_utf8(&bytes[8..8 + header]).unwrap().to_owned();
    let entry = text.split("\"f16.order\":{").nth(1).unwrap();
    let offset = entry.split("\"data_offsets\":[").nth(1).unwrap().split(',').next().unwrap();
    let at = 8 + header + offset.parse::<usize>().unwrap();
    bytes[at..at + 4].copy_from_slice(&256u32.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let wrong = device().load(&layer.scheme, weight.shape(), &path).err().unwrap();
    assert!(wrong.to_string().contains("there is no column 256"), "{wrong}");
}
