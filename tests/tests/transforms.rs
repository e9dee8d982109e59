//! The layouts of the catalogue: packing, unpacking and moving codes, against the scalar
//! reference and against the address function.

use std::collections::BTreeMap;

use quantloom_dsl::format::{Number, Overflow};
use quantloom_dsl::layout::{
    BitContent, BoundLayout, Component, Element, GroupSize, Index, Recode, Shape, Transform,
    read_bits,
};
use quantloom_dsl::reference::{PlainCodes, StoredTensors, pack, unpack};
use quantloom_dsl::{Scheme, Store};
use quantloom_kernels::catalogue;
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tests::sweep;
use quantloom_tests::{Random, parts};
use rayon::prelude::*;

/// A multiple of every group and word, and a multiple of nothing.
fn shapes(scheme: &Scheme) -> [Shape; 2] {
    let rows = match scheme.scales.iter().map(|scale| scale.group.rows).next() {
        Some(GroupSize::Each(rows)) => u64::from(rows),
        _ => 1,
    };
    let (whole, ragged) = if rows > 1 { (2 * rows, rows + 3) } else { (32, 37) };
    let experts = if scheme.experts.is_some() { 3 } else { 1 };
    [Shape { experts, n: whole, k: 256 }, Shape { experts, n: ragged, k: 203 }]
}

/// Random codes; scales are random too, but are scales, and group indices are of groups.
fn random(scheme: &Scheme, shape: Shape, random: &mut Random) -> PlainCodes {
    let groups = scheme.scales.iter().map(|scale| scale.group.cols.elements(shape.k)).min();
    let mut components = BTreeMap::new();
    for component in scheme.components() {
        let granularity = scheme.granularity(component).unwrap();
        let (rows, cols) = granularity.elements(shape);
        let is_float = scheme.number(component).is_some_and(Number::is_float);
        let number = match component {
            Component::Scale(_) | Component::InputScale(_) => scheme.number(component),
            _ => scheme.number(component).filter(|_| is_float && component != Component::Code),
        };
        let code = |_| match (component, number) {
            (Component::Index, _) => random.below(groups.unwrap_or(1)) as u32,
            (_, Some(number)) => number.encode(0.5 + random.unit(), Overflow::Saturate),
            (_, None) => (random.bits() >> (64 - granularity.bits)) as u32,
        };
        components.insert(component, (0..shape.experts * rows * cols).map(code).collect());
    }
    PlainCodes { shape, components }
}

#[test]
fn packing_and_unpacking_are_the_references() {
    catalogue().par_iter().enumerate().for_each(|(number, scheme)| {
        let mut numbers = Random(number as u64);
        // Every layout of the catalogue supports a partial shape: addresses beyond the shape are
        // holes.
        for shape in shapes(scheme) {
            let case = format!("{} at {shape:?}", scheme.name);
            let plain = random(scheme, shape, &mut numbers);
            let packed = pack(scheme, &plain).unwrap_or_else(|error| panic!("{case}: {error}"));
            let ours = quantloom_runtime::pack::pack(scheme, &plain).unwrap();
            assert_eq!(ours.keys().collect::<Vec<_>>(), packed.keys().collect::<Vec<_>>());
            for (store, bytes) in &packed {
                let first = ours[store].iter().zip(bytes).position(|(ours, theirs)| ours != theirs);
                assert_eq!(first, None, "{case}: the store {store} differs at that byte");
                assert_eq!(ours[store].len(), bytes.len(), "{case}: {store}");
            }
            assert!(unpack(scheme, shape, &packed).unwrap() == plain, "{case}: read(write(x))");
            decoded(scheme, &plain, &ours, &case);
        }
    });
}

/// The runtime's unpacking: codes are unchanged, and weights agree with the formula.
fn decoded(scheme: &Scheme, plain: &PlainCodes, packed: &StoredTensors, case: &str) {
    let shape = plain.shape;
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    let unpacked = Unpacked::new(scheme, shape, &stored).unwrap();
    let codes: Vec<u8> = plain.of(Component::Code).iter().map(|code| *code as u8).collect();
    assert!(unpacked.codes() == codes, "{case}: codes");
    let rows = unpacked.decode_rows(0..shape.experts * shape.n);
    for (at, ours) in rows.iter().enumerate().step_by(7) {
        let (row, k) = (at as u64 / shape.k, at as u64 % shape.k);
        let (code, zero, scale) =
            parts(scheme, plain, Index { e: row / shape.n, n: row % shape.n, k });
        let exact = (code - zero) * scale;
        let close = (f64::from(*ours) - exact).abs() <= exact.abs() * (-23f64).exp2();
        // Codes of 8-bit floats include NaN and infinities.
        let special = exact == f64::from(*ours) || exact.is_nan() && ours.is_nan();
        assert!(close || special, "{case}: {row}, {k}: {ours}, {exact}");
    }
}

fn codes_of(scheme: &Scheme) -> &Store {
    scheme.stores_of(Component::Code).next().expect("codes are stored")
}

/// The distinct layouts of codes in the catalogue, by width and number of experts.
fn packings() -> BTreeMap<(u32, u64), Vec<&'static Scheme>> {
    let mut packings: BTreeMap<_, Vec<&'static Scheme>> = BTreeMap::new();
    for scheme in catalogue() {
        let experts: &[u64] = if scheme.experts.is_some() { &[1, 3] } else { &[1] };
        for experts in experts {
            let alike = packings.entry((scheme.weight.code.bits(), *experts)).or_default();
            if alike.iter().all(|other| codes_of(other).layout != codes_of(scheme).layout) {
                alike.push(scheme);
            }
        }
    }
    packings
}

/// Every bit of the destination, by the address functions of both sides.
fn moved(from: &BoundLayout, to: &BoundLayout, bits: u32, source: &[u8]) -> Vec<u8> {
    let bit = |index: Index, bit: u32| {
        let element = Element { component: Component::Code, index, bit };
        read_bits(source, from.address(element).expect("every bit has a place"), 1) as u8
    };
    let mut bytes = vec![0; to.bytes() as usize];
    for address in 0..to.bits() {
        let value = match to.content(address) {
            BitContent::Bit(element) => bit(element.index, element.bit),
            BitContent::Sign(_, index) => bit(index, bits - 1),
            BitContent::Hole(_) => 0,
        };
        bytes[address as usize / 8] |= value << (address % 8);
    }
    bytes
}

#[test]
fn codes_move_between_all_packings() {
    let mut numbers = Random(2);
    let (mut kinds, mut compared) = (0, 0);
    for ((bits, experts), schemes) in packings() {
        kinds += schemes.len();
        let shapes = [Shape { experts, n: 32, k: 128 }, Shape { experts, n: 21, k: 203 }];
        for (number, shape) in shapes.into_iter().enumerate() {
            let bind = |scheme: &Scheme| scheme.bind(codes_of(scheme), shape).unwrap();
            for (from_number, from) in schemes.iter().enumerate() {
                let plain = random(from, shape, &mut numbers);
                let source = &pack(from, &plain).unwrap()[&codes_of(from).name];
                for (at, to) in schemes.iter().enumerate() {
                    // Pairs take turns between the shapes, unless a sweep is asked for.
                    if !sweep::is_asked() && (at + from_number + number) % 2 == 0 {
                        continue;
                    }
                    let case = format!("{} to {} at {shape:?}", from.name, to.name);
                    let (out, into) = (bind(from), bind(to));
                    let transform =
                        Transform::new(Component::Code, &out, &into, Recode::Keep).unwrap();
                    let mut destination = into.blank(&codes_of(to).layout);
                    transform.run(source, &mut destination).unwrap();
                    let method = transform.method();
                    assert!(destination == moved(&out, &into, bits, source), "{case}, {method:?}");
                    compared += 1;
                }
            }
        }
    }
    // 26 packings; the pairs of one width, in both directions and to themselves, at one or both of two shapes.
    assert_eq!((kinds, compared), (26, if sweep::is_asked() { 200 } else { 100 }));
}
