//! Transforms on the device: what the host packs, bit for bit, and back to the checkpoint's bytes;
//! for every scheme of the catalogue that schedules multiply.

use crate::kernels::products::catalogue;
use crate::kernels::stored::Stored;
use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{
    Binary, Body, BufferId, Kernel, Op, Operand, Space, Statement, Ternary, Verified, verify,
};
use quantloom_codegen::jit::Simulator;
use quantloom_codegen::schedule::transform::{Direction, NativeBufferKind, transform};
use quantloom_codegen::schedule::{Problem, Unscheduled};
use quantloom_codegen::target::target;
use quantloom_dsl::format::{BF16, F16};
use quantloom_dsl::layout::Component;
use quantloom_dsl::parse;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_runtime::op::{Op as _, ProductError};
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::ptxas;
use rayon::prelude::*;

const DIRECTIONS: [Direction; 2] = [Direction::ToNative, Direction::FromNative];

fn written(
    stored: &Stored,
    part: NativeBufferKind,
    direction: Direction,
) -> Result<Kernel, Unscheduled> {
    transform(&stored.problem, &stored.scheme, stored.columns(), part, direction)
}

fn verified(kernel: Kernel) -> Verified<Kernel> {
    verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"))
}

/// N and K that no tile divides, K that ends inside of a lane's columns and of a group, odd N; and
/// those of models, where blocks write tiles.
const SHAPES: [(u32, u32); 5] = [(41, 200), (48, 520), (16, 8), (136, 1280), (512, 256)];

/// Codes that cross words lie in any of these where columns are sorted: the host takes them.
fn stays(stored: &Stored, part: NativeBufferKind) -> bool {
    part == NativeBufferKind::Codes
        && stored.scheme.name.starts_with("gptq3")
        && stored.scheme.index.is_some()
}

/// Everything goes to products; what does not lead back from whole rows is the table below. A case
/// is a scheme, an activation, a shape and a target.
#[test]
fn the_simulator_packs_as_the_host_does() {
    let share = Share::new(22, 6);
    let schemes = catalogue();
    let cases = SHAPES.map(|shape| ["sm_90a", "wgsl"].map(|target| (target, shape)));
    let wrong = schemes.par_iter().enumerate().flat_map_iter(|(number, scheme)| {
        let mut wrong = Vec::new();
        for activation in &scheme.activations {
            for (at, &(target, shape)) in cases.as_flattened().iter().enumerate() {
                if !share.takes(number * 2 * SHAPES.len() + at) {
                    continue;
                }
                let Some(stored) = Stored::draw(scheme, activation, target, shape) else {
                    continue;
                };
                compared(&stored, &format!("{} {target} {shape:?}", scheme.name), &mut wrong);
            }
        }
        wrong
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Groups that products cut into segments or pad to whole ones, and columns that a group index sorts where
/// only some numbers are grouped: all of it is transformed on the device.
#[test]
fn the_device_arranges_columns_as_the_host_does() {
    let mut wrong = Vec::new();
    for (numbers, x) in [
        ("scale: f16 per 1x48", "f16"),
        ("scale: bf16 per 1x24", "bf16"),
        ("zero: u4 per 1x40, scale: f16 per 1x20", "f16"),
        ("zero: u8 per 1x64, scale: f32 per 5x12, shift: f16 per 1x36", "bf16"),
        ("scale: f16 per 1x64", "i8 { scale: f32 per 1x40 }"),
        ("zero: u4 per 1x32, scale: f16 per 1x32, index: i32", "f16"),
        ("zero: u8 per 1x128, scale: f16 per channel, index: i32", "f16"),
        ("shift: f16 per 1x32, scale: f16 per channel, index: i32", "f16"),
        // Products of two levels are exact in f32; one sign, and two.
        ("shift: -f16 per 1x32, shift: bf16 per 1x64, scale: f16 per 1x32", "f16"),
        ("shift: -e4m3, shift: -f16 per channel, zero: u8, scale: f16 per 1x40", "bf16"),
    ] {
        let text =
            format!("s {{ weight: u4, {numbers}, pack: u32 [k:8 | k, n], activation: {x} }}");
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
        for (target, shape) in [("sm_90a", (41, 200)), ("wgsl", (48, 520)), ("gfx942", (16, 8))] {
            let stored = Stored::draw(&scheme, &scheme.activations[0], target, shape).unwrap();
            compared(&stored, &format!("{numbers}, x in {x}, {target} {shape:?}"), &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same for products that scale their operands: codes without gaps, scales by lane, signs of scales in codes.
#[test]
fn the_device_packs_codes_that_products_scale() {
    let share = Share::new(12, 6);
    let (mut wrong, mut packed) = (Vec::new(), 0);
    for (number, scheme) in catalogue().into_iter().enumerate() {
        for activation in &scheme.activations {
            let cases =
                SHAPES.map(|shape| ["gfx950", "sm_100a", "sm_120a"].map(|chip| (chip, shape)));
            for (at, &(chip, shape)) in cases.as_flattened().iter().enumerate() {
                if !share.takes(number * 3 * SHAPES.len() + at) {
                    continue;
                }
                let problem = Problem::new(&scheme, activation, target(chip).unwrap(), shape);
                let scales = |problem: &Problem| problem.plan.compute.product.scaling().is_some();
                let stored = Stored::draw(&scheme, activation, chip, shape);
                let Some(stored) = stored.filter(|_| problem.as_ref().is_ok_and(scales)) else {
                    continue;
                };
                compared(&stored, &format!("{} {chip} {shape:?}", scheme.name), &mut wrong);
                packed += 1;
            }
        }
    }
    assert!(wrong.is_empty() && packed >= 30 / share.parts(), "{packed}: {}", wrong.join("\n"));
}

/// Notes what of a layer a transform does not move, or otherwise than the host.
fn compared(stored: &Stored, what: &str, wrong: &mut Vec<String>) {
    for part in stored.parts() {
        for direction in DIRECTIONS {
            let what = format!("{what} {part:?} {direction:?}");
            let kernel = match (written(stored, part, direction), direction) {
                (Ok(kernel), _) => verified(kernel),
                (Err(_), Direction::FromNative) => continue,
                _ if stays(stored, part) => continue,
                (Err(why), Direction::ToNative) => {
                    wrong.push(format!("{what}: {why}"));
                    continue;
                }
            };
            if let Err(fault) = stored.check(&kernel, part, direction) {
                wrong.push(format!("{what}: {fault}"));
            }
        }
    }
}

/// What of the catalogue kernels bring into place and back, and why not the rest.
#[test]
fn the_catalogue_is_covered() {
    let mut lines = Vec::new();
    for scheme in catalogue() {
        for activation in &scheme.activations {
            let stored = Stored::draw(&scheme, activation, "sm_90a", (256, 512));
            let Some(stored) = stored else {
                let problem =
                    Problem::new(&scheme, activation, target("sm_90a").unwrap(), (256, 512));
                lines.push(format!("{}: {}", scheme.name, problem.unwrap_err()));
                continue;
            };
            for part in stored.parts() {
                let said = DIRECTIONS.map(|direction| match written(&stored, part, direction) {
                    Ok(kernel) => kernel.summary.rsplit("writes ").next().unwrap().to_owned(),
                    Err(why) => why.to_string(),
                });
                let [to, from] = said;
                let (own, buffer) = (stored.own, part.role());
                lines.push(format!("{} {own} {buffer}: {to} back: {from}", scheme.name));
            }
        }
    }
    lines.dedup();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!("transforms", lines.join("\n")));
}

/// A scheme whose sums have a correction: zero points of w, beside integers of x.
const ZERO_POINTS_BESIDE_INTEGERS: &str = "s { weight: u5 - 3, zero: u4 per 1x128, scale: bf16 per 1x128, \
    pack: u32 [k:* | w, n], activation: i8 { scale: f32 per token }, \
    accuracy: exact }";

/// Of a scheme of the catalogue, or of a text.
fn of_scheme(scheme: &str, sm: &'static str, shape: (u32, u32)) -> Stored {
    let scheme = match scheme.contains('{') {
        true => quantloom_dsl::parse(scheme).unwrap(),
        false => catalogue().into_iter().find(|known| known.name == scheme).unwrap(),
    };
    Stored::draw(&scheme, &scheme.activations[0], sm, shape).unwrap()
}

#[test]
fn transforms_assemble() {
    let Some(ptxas) = ptxas::find() else { return };
    let names = [
        "awq4",
        "ct_w4a16_asym",
        "ct_w4a16_bias",
        "gptq3_v1",
        "ct_w7a16",
        "ct_fp8_block",
        "ct_nvfp4a16",
        "ct_w4a8",
        "quark_w_mxfp6_e3m2",
        "arm_w4a8_channel",
    ];
    for name in names {
        for (sm, shape) in [("sm_90a", (1024, 2048)), ("sm_80", (41, 200))] {
            let stored = of_scheme(name, sm, shape);
            for part in stored.parts() {
                for direction in DIRECTIONS {
                    let Ok(kernel) = written(&stored, part, direction) else { continue };
                    let kernel = verified(kernel);
                    let text = ptx::emit(&kernel).unwrap();
                    let assembled = ptxas.assemble(&text, sm);
                    assert!(assembled.is_clean(), "{name}:\n{}", assembled.report);
                }
            }
        }
    }
}

/// A thread writes 16 bytes where rows allow it.
#[test]
fn stores_are_wide() {
    let stored = of_scheme("awq4", "sm_90a", (256, 512));
    for part in stored.parts() {
        for direction in DIRECTIONS {
            let kernel = written(&stored, part, direction).unwrap();
            assert!(kernel.summary.contains("a thread writes 128 bits"), "{}", kernel.summary);
        }
    }
}

/// Every operation, in order.
fn each(body: &mut Body, change: &mut dyn FnMut(&mut Op)) {
    for statement in body {
        match statement {
            Statement::Op(op) => change(op),
            Statement::If { then, .. } => each(then, change),
            Statement::For { body, .. } => each(body, change),
            other => panic!("a transform has no {other:?}"),
        }
    }
}

#[test]
fn mistakes_of_transforms_are_found() {
    type Mutation = fn(&mut Op);
    let mistakes: [(&str, &str, NativeBufferKind, Mutation); 11] = [
        ("codes without a sign", "arm_w4a8_channel", NativeBufferKind::RowSums, |op| {
            if let Op::Binary { op: op @ Binary::ShrSigned, .. } = op {
                *op = Binary::Shr;
            }
        }),
        ("half of the lanes", "arm_w4a8_channel", NativeBufferKind::RowSums, |op| {
            if let Op::Shuffle { by: by @ Operand::U32(16), .. } = op {
                *by = 0u32.into();
            }
        }),
        ("two codes change places", "awq4", NativeBufferKind::Codes, |op| {
            if let Op::Binary { op: Binary::And, b: Operand::U32(mask), .. } = op
                && *mask == 0xf0
            {
                *mask = 0xf00;
            }
        }),
        ("the next row", "gptq4_v2", NativeBufferKind::Codes, |op| {
            if let Op::Load { from, .. } = op {
                from.offset += 1;
            }
        }),
        ("no mask", "ct_w4a16", NativeBufferKind::Codes, |op| {
            if let Op::Load { mask, .. } = op {
                *mask = None;
            }
        }),
        ("zero points as they are stored", "gptq4_v1", NativeBufferKind::Zeros, |op| {
            if let Op::Binary { op: Binary::Add | Binary::Sub, b: b @ Operand::U32(1), .. } = op {
                *b = Operand::U32(0);
            }
        }),
        ("a word of codes that cross it twice", "ct_w3a16", NativeBufferKind::Codes, |op| {
            if let Op::Load { from, .. } = op
                && from.offset % 3 == 2
            {
                from.offset -= 1;
            }
        }),
        ("a plane in another's place", "gptq3_v1", NativeBufferKind::Codes, |op| {
            if let Op::Store { to, .. } = op
                && to.offset > 0
            {
                to.offset -= 4;
            }
        }),
        ("no order of columns", "gptq4_v2_actorder", NativeBufferKind::Codes, |op| {
            if let Op::Load { from, .. } = op
                && matches!(from.space, Space::Global(BufferId(1)))
            {
                from.space = Space::Global(BufferId(0));
            }
        }),
        (
            "a correction with more terms",
            ZERO_POINTS_BESIDE_INTEGERS,
            NativeBufferKind::Corrections,
            |op| {
                if let Op::Ternary { op: Ternary::Fma, c, .. } = op {
                    *c = Operand::F32(1.0);
                }
            },
        ),
        ("two scales in one place", "ct_w4a16_asym", NativeBufferKind::Scales, |op| {
            if let Op::Binary { op: Binary::Shl, b: b @ Operand::U32(16), .. } = op {
                *b = Operand::U32(0);
            }
        }),
    ];
    for (what, name, part, mistake) in mistakes {
        let stored = of_scheme(name, "sm_90a", (41, 200));
        let mut found = 0;
        for direction in DIRECTIONS {
            let Ok(mut kernel) = written(&stored, part, direction) else { continue };
            let right = kernel.clone();
            each(&mut kernel.body, &mut |op| mistake(op));
            if kernel == right {
                continue;
            }
            let outcome = stored.check(&verified(kernel), part, direction);
            assert!(outcome.is_err(), "{what}, {direction:?}");
            found += 1;
        }
        assert!(found > 0, "{what} changes nothing");
    }
}

/// The same memory from stored tensors as from an unpacked layer, for every scheme of the catalogue,
/// and nothing of it by the host.
#[test]
fn a_weight_is_transformed_on_its_device() {
    let device = GpuDevice::new(Simulator::new("sm_90a").unwrap());
    let mut seen = 0;
    for scheme in catalogue() {
        let layer = Stored::draw(&scheme, &scheme.activations[0], "sm_90a", (41, 256));
        let Some(layer) = layer else { continue };
        let name = &scheme.name;
        let stored = |name: &str| layer.packed.get(name).map(Vec::as_slice);
        let shape = layer.unpacked.shape();
        let host = device.prepare(&layer.scheme, &layer.unpacked).unwrap();
        let weight = device.prepare_stored(&layer.scheme, shape, &stored).unwrap();
        for part in layer.parts() {
            for element in [BF16, F16] {
                let [of_host, of_device] =
                    [&host, &weight].map(|weight| weight.buffer(element, part.role()).unwrap());
                match (part, &of_host, &of_device) {
                    (NativeBufferKind::RowSums, Some(host), Some(device)) => {
                        layer.check_row_sums(device, host).unwrap();
                    }
                    _ => assert!(of_host == of_device, "{name}: {part:?}"),
                }
            }
            assert!(host.buffer(layer.own, part.role()).unwrap().is_some(), "{name}: {part:?}");
        }
        let explained = weight.explain(1);
        assert!(explained.contains("multiplied in "), "{name}: {explained}");
        let stays = stays(&layer, NativeBufferKind::Codes);
        assert_eq!(explained.contains("by the host"), stays, "{name}: {explained}");
        assert_eq!(explained.contains("w: transformed on the device"), !stays, "{explained}");
        assert!(!explained.contains("scale: packed"), "{name}: {explained}");
        assert!(!host.explain(1).contains("transformed"));
        seen += 1;
    }
    assert!(seen > 70, "{seen} schemes");
}

/// The stored tensors from the device's memory.
#[test]
fn stored_tensors_come_back() {
    let device = GpuDevice::new(Simulator::new("sm_90a").unwrap());
    for name in ["ct_w4a16_bias", "ct_w4a16_asym", "awq4", "gptq3_v1", "ct_w7a16", "ct_w4a8"] {
        let layer = of_scheme(name, "sm_90a", (41, 256));
        let stored = |name: &str| layer.packed.get(name).map(Vec::as_slice);
        let shape = layer.unpacked.shape();
        let weight = device.prepare_stored(&layer.scheme, shape, &stored).unwrap();
        for part in layer.parts() {
            let (native, _) = layer.native(part);
            if native.holds(native.component) {
                let (_, bytes) = layer.arrays(part, Direction::FromNative);
                assert_eq!(weight.stored(native.component).unwrap(), bytes, "{name}: {part:?}");
            }
        }
        let none = weight.stored(Component::Shift(0)).unwrap_err();
        assert!(matches!(none, ProductError::NotScheduled(_)), "{none}");
        let missing = device.prepare_stored(&layer.scheme, shape, &|_| None);
        assert!(matches!(missing, Err(ProductError::Pack(_))));
    }
}

/// Numbers that follow from integers are computed by the host; a term of floats alone is not.
#[test]
fn levels_of_integers_are_packed_by_the_host() {
    let device = GpuDevice::new(Simulator::new("sm_90a").unwrap());
    let one = |scale, correction| vec![("scale", scale), ("correction", correction)];
    let larger = |scale, correction| {
        let coarse = [("coarse_scale", "device"), ("coarse_correction", "device")];
        [one(scale, correction), coarse.to_vec()].concat()
    };
    for (numbers, parts) in [
        (
            "scale: u6 per 1x32, scale: f16 per 1x64, shift: -u6, shift: f16 per 1x64",
            one("host", "host"),
        ),
        ("scale: f16 per 1x32, shift: -u6, shift: f16 per 1x64", one("device", "host")),
        ("scale: u6 - 32 per 1x32, shift: f16", one("host", "device")),
        ("scale: f16 per 1x32, shift: -f16", one("device", "device")),
        ("scale: f16 per 1x32, shift: -f16, shift: f16 per 1x64", one("device", "device")),
        // Levels that products read as they are stored.
        (
            "scale: u6 per 1x32, scale: f16 per 1x256, shift: -u6, shift: f16 per 1x256",
            larger("host", "host"),
        ),
        (
            "scale: i8 per 1x32, scale: f16 per 1x256, shift: i8, shift: f16 per 1x256",
            larger("device", "device"),
        ),
        (
            "scale: i8 - 3 per 1x32, scale: f16 per 1x256, shift: -i8, shift: f16 per 1x256",
            one("host", "host"),
        ),
    ] {
        let text =
            format!("a {{ weight: u4, {numbers}, pack: u32 [k:8 | k, n], activation: bf16 }}");
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"));
        let layer = Stored::draw(&scheme, &scheme.activations[0], "sm_90a", (41, 192)).unwrap();
        let stored = |name: &str| layer.packed.get(name).map(Vec::as_slice);
        let host = device.prepare(&scheme, &layer.unpacked).unwrap();
        let weight = device.prepare_stored(&scheme, layer.unpacked.shape(), &stored).unwrap();
        let explained = weight.explain(1);
        for (buffer, by) in parts {
            let by = match by {
                "host" => format!("{buffer}: packed by the host: "),
                _ => format!("{buffer}: transformed on the device"),
            };
            let said = explained.split(['\n', ';']).any(|note| note.trim().starts_with(&by));
            assert!(said, "{numbers}: {by} is not in\n{explained}");
        }
        assert_eq!(
            host.native(BF16, Component::Code).unwrap(),
            weight.native(BF16, Component::Code).unwrap()
        );
    }
}

#[test]
fn what_no_transform_takes_the_host_packs() {
    let text = "a { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [~k:8 | k, n], \
                activation: bf16 }";
    let scheme = parse(text).unwrap_or_else(|faults| panic!("{faults:?}"));
    let layer = Stored::draw(&scheme, &scheme.activations[0], "sm_90a", (41, 200)).unwrap();
    let stored = |name: &str| layer.packed.get(name).map(Vec::as_slice);
    let device = GpuDevice::new(Simulator::new("sm_90a").unwrap());
    let host = device.prepare(&scheme, &layer.unpacked).unwrap();
    let weight = device.prepare_stored(&scheme, layer.unpacked.shape(), &stored).unwrap();
    let explained = weight.explain(1);
    assert!(explained.contains("w: packed by the host: no schedule on sm_90a"), "{explained}");
    assert!(explained.contains("scale: transformed on the device"), "{explained}");
    let [of_host, of_device] =
        [&host, &weight].map(|weight| weight.native(BF16, Component::Code).unwrap());
    assert_eq!(of_host, of_device);
    let back = weight.stored(Component::Code).unwrap_err();
    assert!(back.to_string().contains("digits that count down"), "{back}");
}
