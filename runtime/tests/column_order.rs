//! Columns in the order of their groups: a layer whose groups are uneven, one empty, one longer than
//! a group.

use std::collections::BTreeMap;

use quantloom_dsl::format::NUMBER_F32;
use quantloom_dsl::layout::{Component, Granularity, GroupSize, Recode, Shape};
use quantloom_dsl::reference::PlainCodes;
use quantloom_dsl::{Scheme, parse, parse_layout};
use quantloom_runtime::gpu::{Arrangement, ColumnOrder, Computed, Form, NO_COLUMN, NativeBuffer};
use quantloom_runtime::pack::pack;
use quantloom_runtime::source::BufferRole;
use quantloom_runtime::unpacked::Unpacked;

const N: u64 = 3;
/// Five columns of group 0, none of group 1, seven of group 2.
const INDEX: [u32; 12] = [2, 0, 0, 2, 0, 0, 0, 2, 2, 2, 2, 2];
/// The same by groups of four, in each the columns in their order.
const ORDER: [u32; 16] =
    [1, 2, 4, 5, 6, NO_COLUMN, NO_COLUMN, NO_COLUMN, 0, 3, 7, 8, 9, 10, 11, NO_COLUMN];

fn scheme(index: &str) -> Scheme {
    let text = format!(
        "s {{ weight: u8 - 128, scale: f32 per 1x4{index}, pack: [k, n], activation: bf16 }}"
    );
    parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn code(n: u64, k: u32) -> u8 {
    (16 * n + u64::from(k) + 1) as u8
}

fn scale(n: u64, group: u32) -> f32 {
    (10 * n + u64::from(group)) as f32 + 0.5
}

fn weight(scheme: &Scheme) -> Unpacked {
    let shape = Shape::matrix(N, INDEX.len() as u64);
    let mut components = BTreeMap::new();
    let codes = (0..N).flat_map(|n| (0..12).map(move |k| u32::from(code(n, k))));
    components.insert(Component::Code, codes.collect());
    let scales = (0..N).flat_map(|n| (0..3).map(move |group| scale(n, group).to_bits()));
    components.insert(Component::Scale(0), scales.collect());
    if scheme.index.is_some() {
        components.insert(Component::Index, INDEX.to_vec());
    }
    let packed = pack(scheme, &PlainCodes { shape, components }).unwrap();
    Unpacked::new(scheme, shape, &|name: &str| packed.get(name).map(Vec::as_slice)).unwrap()
}

/// Columns of one index together, in segments of so many.
const fn by_index(segment: u32) -> Arrangement {
    Arrangement { segment, indexed: true, groups: Vec::new(), whole: segment }
}

fn part(
    component: Component,
    layout: &str,
    (bits, columns): (u32, u32),
    form: Form,
) -> NativeBuffer {
    let granularity =
        Granularity { bits, rows: GroupSize::Each(1), cols: GroupSize::Each(columns) };
    let layout = parse_layout(layout, component).unwrap_or_else(|faults| panic!("{faults}"));
    NativeBuffer { role: BufferRole::Codes, component, layout, granularity, form }
}

#[test]
fn columns_of_a_group_are_neighbours() {
    let weight = weight(&scheme(", index: i32"));
    let order = ColumnOrder::of(&by_index(4), &weight);
    assert_eq!(order.columns(), ORDER);
    assert_eq!(order.shape(weight.shape()), Shape::matrix(N, 16));
    // As many as kernels take at a time.
    let order = ColumnOrder::of(&Arrangement { whole: 24, ..by_index(4) }, &weight);
    assert_eq!(order.columns()[..16], ORDER);
    assert_eq!(order.columns()[16..], [NO_COLUMN; 8]);
}

/// Groups of 6 and of 4 columns: segments end where either does, and runs of 2 and 4 fill them.
#[test]
fn segments_are_padded_to_runs() {
    const NONE: u32 = NO_COLUMN;
    let arrangement = Arrangement { segment: 2, indexed: false, groups: vec![6, 4], whole: 1 };
    let order = ColumnOrder::new(&arrangement, None, 11);
    assert_eq!(order.columns(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, NONE]);
    let order = ColumnOrder::new(&Arrangement { segment: 4, whole: 8, ..arrangement }, None, 7);
    let pads = [NONE; 4];
    let expected = [&[0, 1, 2, 3, 4, 5, NONE, NONE, 6, NONE, NONE, NONE], &pads[..]].concat();
    assert_eq!(order.columns(), expected);
    // With an index the columns of one of its values come together, those of a group of x in them.
    let arrangement = Arrangement { segment: 2, indexed: true, groups: vec![3], whole: 1 };
    let order = ColumnOrder::new(&arrangement, Some(&[1, 0, 1, 1, 0, 0]), 6);
    assert_eq!(order.columns(), [1, NONE, 4, 5, 0, 2, 3, NONE]);
}

#[test]
fn codes_and_scales_are_packed_in_that_order() {
    let weight = weight(&scheme(", index: i32"));
    let order = Some(ColumnOrder::of(&by_index(4), &weight));
    let codes = part(Component::Code, "[k, n]", (8, 1), Form::Codes(Recode::Keep));
    let at = |n: u64, k: u32| if k == NO_COLUMN { 0 } else { code(n, k) };
    let expected: Vec<u8> = (0..N).flat_map(|n| ORDER.map(|k| at(n, k))).collect();
    assert_eq!(codes.pack(&weight, order.as_ref()).unwrap(), expected);
    // The group of each four places, whether as stored or computed.
    let expected: Vec<u8> = (0..N)
        .flat_map(|n| [0, 0, 2, 2].map(|group| scale(n, group).to_le_bytes()))
        .flatten()
        .collect();
    for form in [Form::Numbers(NUMBER_F32), Form::Computed(Computed::Scale)] {
        let scales = part(Component::Scale(0), "[g, n]", (32, 4), form);
        assert_eq!(scales.pack(&weight, order.as_ref()).unwrap(), expected, "{:?}", scales.form);
    }
    // Half of a group where products want it.
    let halves = part(Component::Scale(0), "[g, n]", (32, 2), Form::Computed(Computed::Scale));
    let halves = halves.pack(&weight, order.as_ref()).unwrap();
    let groups = [Some(0), Some(0), Some(0), None, Some(2), Some(2), Some(2), Some(2)];
    let value = |n, group: Option<u32>| group.map_or(0.0, |group| scale(n, group)).to_le_bytes();
    let expected: Vec<u8> =
        (0..N).flat_map(|n| groups.map(|group| value(n, group))).flatten().collect();
    assert_eq!(halves, expected);
}
