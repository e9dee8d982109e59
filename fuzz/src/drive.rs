//! What is done with hostile input, and what must hold. The fuzz targets call it, and
//! tests/tests/hostile replays the corpus through it without a fuzzer.

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::{PlainCodes, pack, unpack};
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::checkpoint::{Checkpoint, GgufValue, Layer, Options};
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tools::check::check;

/// The reference works bit by bit: more stored bits than this take too long for a fuzzer.
const MOST_BITS: u64 = 1 << 13;

/// More weights than this are not decoded.
const MOST_WEIGHTS: u64 = 1 << 16;

/// One row, a ragged edge, whole words, experts.
const SHAPES: [Shape; 4] = [
    Shape::matrix(1, 1),
    Shape::matrix(3, 37),
    Shape::matrix(8, 64),
    Shape { experts: 2, n: 4, k: 32 },
];

/// Parses; what parses must print, read back, bind or refuse, and survive a round trip.
pub(crate) fn scheme_text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let scheme = match parse(text) {
        Ok(scheme) => scheme,
        Err(faults) => {
            assert!(!faults.faults().is_empty(), "refused without a reason");
            assert!(!faults.to_string().is_empty());
            return;
        }
    };
    let printed = scheme.to_string();
    match parse(&printed) {
        Ok(again) => assert_eq!(again, scheme, "{printed}"),
        Err(faults) => panic!("what it prints is refused:\n{printed}\n{faults}"),
    }
    assert!(scheme.bits_per_weight().is_finite(), "{printed}");
    for shape in SHAPES {
        let bits: Result<Vec<u64>, _> = scheme
            .stores
            .iter()
            .map(|store| scheme.bind(store, shape).map(|bound| bound.bits()))
            .collect();
        if bits.is_ok_and(|bits| bits.into_iter().try_fold(0, u64::checked_add) <= Some(MOST_BITS))
        {
            round_trip(&scheme, shape);
        }
    }
}

/// Packs codes with the reference and with the transforms, which must agree, and takes them
/// out again with both.
fn round_trip(scheme: &Scheme, shape: Shape) {
    let plain = plain_codes(scheme, shape);
    let packed = pack(scheme, &plain).unwrap_or_else(|error| panic!("{scheme}\n{error}"));
    let again = unpack(scheme, shape, &packed).unwrap_or_else(|error| panic!("{scheme}\n{error}"));
    assert_eq!(again, plain, "{scheme}\n{shape:?}");
    let fast = quantloom_runtime::pack::pack(scheme, &plain)
        .unwrap_or_else(|error| panic!("{scheme}\n{error}"));
    assert_eq!(fast, packed, "{scheme}\n{shape:?}");
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    // Arbitrary bits may be a NaN scale or a group that is not there.
    if let Ok(unpacked) = Unpacked::new(scheme, shape, &stored) {
        let codes = plain.of(Component::Code);
        assert!(unpacked.codes().iter().map(|code| u32::from(*code)).eq(codes.iter().copied()));
        unpacked.decode_rows(0..shape.experts * shape.n);
    }
}

/// Codes of every component that differ from their neighbours.
fn plain_codes(scheme: &Scheme, shape: Shape) -> PlainCodes {
    let codes = |component| {
        let granularity = scheme.granularity(component)?;
        let (rows, cols) = granularity.elements(shape);
        let mask = u32::try_from((1u64 << granularity.bits) - 1).unwrap_or(u32::MAX);
        let count = u32::try_from(shape.experts * rows * cols).ok()?;
        let code = |at: u32| at.wrapping_mul(2_654_435_761).rotate_left(13) & mask;
        Some((component, (0..count).map(code).collect()))
    };
    PlainCodes { shape, components: scheme.components().into_iter().filter_map(codes).collect() }
}

/// Opens; what opens is unpacked, decoded and compared with the references it carries.
pub(crate) fn checkpoint(bytes: &[u8]) {
    let checkpoint = match Checkpoint::from_bytes(bytes.to_vec(), Options::default()) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for (_, layer) in checkpoint.layers() {
        match layer {
            Ok(layer) => decode(layer),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    check(&checkpoint, &quantloom_runtime::cpu::CpuDevice::best());
}

/// What is done with a checkpoint, to a GGUF file, whose values are read too.
pub(crate) fn gguf(bytes: &[u8]) {
    checkpoint(bytes);
    let Ok(checkpoint) = Checkpoint::from_bytes(bytes.to_vec(), Options::default()) else { return };
    let Some(gguf) = checkpoint.tensors().gguf() else { return };
    for key in gguf.keys() {
        let value = gguf.value(key).unwrap_or_else(|| panic!("{key} was valid and has no value"));
        if let GgufValue::List(list) = value {
            assert_eq!(list.iter().count() as u64, list.len(), "{key}");
        }
    }
}

/// The description of an expert layer as text, or a file: what parses prints back; the matrices of what
/// opens are unpacked, its router multiplies, and its references are compared.
pub(crate) fn expert_layer(bytes: &[u8]) {
    if let Ok(layer) = std::str::from_utf8(bytes).unwrap_or_default().parse::<ExpertLayer>() {
        assert_eq!(layer.to_string().parse(), Ok(layer));
        return;
    }
    let Ok(checkpoint) = Checkpoint::from_bytes(bytes.to_vec(), Options::default()) else { return };
    for (name, experts) in checkpoint.expert_layers() {
        let experts = match experts {
            Ok(experts) => experts,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        assert!(checkpoint.expert_layer(&name).is_ok());
        let sizes = experts.sizes();
        for expert in 0..sizes.experts {
            // A stored scale may be NaN.
            if let Ok(weights) = experts.expert_weights(expert) {
                assert_eq!(weights.gate_up.len(), sizes.shards);
                let values = (sizes.hidden * sizes.intermediate) as usize;
                let all = weights.gate_up.iter().chain([&weights.down]);
                assert!(all.into_iter().all(|matrix| matrix.values.len() == values));
            }
        }
        if let Ok(router) = experts.router() {
            let logits = router.logits(&vec![0.5; sizes.hidden as usize]);
            assert_eq!(logits.len(), sizes.experts as usize);
        }
    }
    check(&checkpoint, &quantloom_runtime::cpu::CpuDevice::best());
}

fn decode(layer: &Layer) {
    let shape = layer.shape();
    let weights = shape.elements().expect("a layer's shape was bound");
    let Ok(unpacked) = layer.unpack() else { return };
    assert_eq!(unpacked.codes().len() as u64, weights);
    if weights < MOST_WEIGHTS {
        let decoded = unpacked.decode_rows(0..shape.experts * shape.n);
        assert_eq!(decoded.len() as u64, weights);
    }
}
