//! The table of matrix instructions is consistent: each layout is a bijection of the operand onto
//! its registers and lanes, and the layouts of D of NVIDIA's instructions match the documented
//! formulas.

use quantloom_codegen::ir::{MATRIX_OPS, MatrixOp, MatrixScope};
use quantloom_codegen::target::{TARGETS, Target};
use quantloom_dsl::layout::Point;
use quantloom_dsl::parse_fragment;

fn home(row: &MatrixOp) -> &'static Target {
    TARGETS.iter().find(|target| target.has(row.needs)).unwrap()
}

#[test]
fn layouts_fill_registers_and_lanes() {
    for row in MATRIX_OPS {
        let warp = home(row).gpu.unwrap().warp;
        let [m, n, k] = row.shape;
        let registers = row.registers(warp);
        let (holders, lanes) = (row.holders(warp), row.threads(warp));
        assert_eq!(holders * row.copies, lanes, "{}", row.name);
        let operands = [
            (row.a_layout, (m, k), row.a, (registers[0], holders)),
            (row.b_layout, (n, k), row.b, (registers[1], holders)),
            (row.d_layout, (m, n), row.d, (registers[2], lanes)),
        ];
        for (text, extents, element, (count, lanes)) in operands {
            if text.is_empty() {
                assert_ne!(row.scope, MatrixScope::Warp, "{}", row.name);
                continue;
            }
            let fragment = parse_fragment(text).unwrap();
            assert_eq!(fragment.extents(), extents, "{}: {text}", row.name);
            // Elements whose width does not divide 32 continue in the next register.
            let bits = element.bits();
            let places = if 32 % bits == 0 { [32 / bits, count] } else { [32 * count / bits, 1] };
            let sizes = [places[0], places[1], lanes];
            assert_eq!(fragment.sizes(), sizes, "{}: {text}", row.name);
        }
        if let Some(scaling) = row.scaling {
            assert_eq!(k % scaling.columns, 0, "{}", row.name);
            for (of, rows) in [(scaling.a, m), (scaling.b, n)] {
                let fragment = parse_fragment(of.layout).unwrap();
                assert_eq!(fragment.extents(), (rows, k / scaling.columns), "{}", row.name);
                let lanes = 1 << of.bits.count_ones();
                assert_eq!(fragment.sizes(), [row.lane_scales(), 1, lanes], "{}", row.name);
                assert!(of.bits < row.threads(warp), "{}", row.name);
            }
        }
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = MATRIX_OPS.iter().map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), MATRIX_OPS.len());
}

/// ROCm/composable_kernel, test/mx_mfma_op/mx_mfma_op.hpp: of 8-bit elements a lane l has k = 16 (l
/// / 16) + e for the first 16 of them, then 64 + 16 (l / 16) + e; of 4 and 6 bits k = 32 (l / 16) +
/// e; it supplies the scale of row l % 16 and block l / 16, whatever elements it has. Elements lie
/// without gaps.
#[test]
fn scaled_rows_are_the_documents_formulas() {
    let scaled = MATRIX_OPS.iter().filter(|row| row.name.starts_with("mfma.scale."));
    assert_eq!(scaled.clone().count(), 25);
    for row in scaled {
        let operands = [(row.a_layout, row.a), (row.b_layout, row.b)];
        for (text, element) in operands {
            let (fragment, bits) = (parse_fragment(text).unwrap(), element.bits());
            for (lane, e) in (0..64).flat_map(|lane| (0..32).map(move |e| (lane, e))) {
                let k = match bits {
                    8 if e < 16 => 16 * (lane / 16) + e,
                    8 => 64 + 16 * (lane / 16) + (e - 16),
                    _ => 32 * (lane / 16) + e,
                };
                let place = fragment.place(Point { n: lane % 16, k });
                let first_bit = 32 * place[1] + bits * place[0];
                assert_eq!((first_bit, place[2]), (bits * e, lane), "{}", row.name);
            }
        }
        let scaling = row.scaling.unwrap();
        assert_eq!((scaling.a, scaling.columns), (scaling.b, 32), "{}", row.name);
        assert_eq!(scaling.a.bits, 0x3f, "{}", row.name);
        let (fragment, d) =
            (parse_fragment(scaling.a.layout).unwrap(), parse_fragment(row.d_layout).unwrap());
        for lane in 0..64 {
            let block = Point { n: lane % 16, k: lane / 16 };
            assert_eq!(fragment.place(block), [0, 0, lane], "{}", row.name);
            for register in 0..4 {
                let point = Point { n: 4 * (lane / 16) + register, k: lane % 16 };
                assert_eq!(d.place(point), [0, register, lane], "{}", row.name);
            }
        }
    }
}

/// The first difference of a row of WMMA from AMD's formulas (matrix instruction calculator, 32 lanes). Of RDNA3:
/// A i = lane % 16, k = (elements of a register) GPR + element; D i = 2 GPR + lane / 16, j = lane % 16. Of RDNA4,
/// 16-bit elements: k = 8 (GPR / 2) + 4 (lane / 16) + 2 (GPR % 2) + element; bytes: k = 8 (lane / 16) + 4 GPR +
/// element; 4 bits: k = 16 (lane / 16) + 8 GPR + element; D i = 8 (lane / 16) + GPR. B is A with columns instead of rows.
fn differs_from_wmma(row: &MatrixOp) -> Option<String> {
    let rdna3 = row.copies == 2;
    let [a, b, d] =
        [row.a_layout, row.b_layout, row.d_layout].map(|text| parse_fragment(text).unwrap());
    // The number here of a row i of AMD's document: of RDNA3's, rows of even number come first.
    let of_document = |i: u32| if rdna3 { i % 2 * 8 + i / 2 } else { i };
    let per = 32 / row.a.bits();
    let [registers, _, of_d] = row.registers(32);
    for lane in 0..32 {
        for (register, element) in (0..registers).flat_map(|r| (0..per).map(move |e| (r, e))) {
            let k = match (rdna3, per) {
                (true, _) => per * register + element,
                (false, 2) => 8 * (register / 2) + 4 * (lane / 16) + 2 * (register % 2) + element,
                (false, 4) => 8 * (lane / 16) + 4 * register + element,
                (false, _) => 16 * (lane / 16) + 8 * register + element,
            };
            let place = [element, register, if rdna3 { lane % 16 } else { lane }];
            let of_a = a.place(Point { n: of_document(lane % 16), k });
            let of_b = b.place(Point { n: lane % 16, k });
            if [&of_a[..], &of_b[..]] != [&place[..]; 2] {
                return Some(format!("{}: {place:?}: A {of_a:?}, B {of_b:?}", row.name));
            }
        }
        for register in 0..of_d {
            let i = if rdna3 { 2 * register + lane / 16 } else { 8 * (lane / 16) + register };
            let of_d = d.place(Point { n: of_document(i), k: lane % 16 });
            if of_d != [0, register, lane] {
                return Some(format!("{}: register {register}, lane {lane}: D {of_d:?}", row.name));
            }
        }
    }
    None
}

fn wmma_rows() -> impl Iterator<Item = &'static MatrixOp> {
    MATRIX_OPS.iter().filter(|row| row.name.starts_with("wmma."))
}

#[test]
fn wmma_rows_are_the_documents_formulas() {
    assert_eq!(wmma_rows().count(), 12);
    let wrong: Vec<String> = wmma_rows().filter_map(differs_from_wmma).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A layout with two of its digits exchanged, for every pair.
pub(crate) fn exchanged(layout: &str) -> Vec<String> {
    let digits: Vec<&str> = layout
        .split(['[', ';', ',', ']'])
        .map(str::trim)
        .filter(|digit| !digit.is_empty())
        .collect();
    let mut all = Vec::new();
    for (at, one) in digits.iter().enumerate() {
        for other in &digits[at + 1..] {
            let marked = layout.replace(one, "first");
            all.push(marked.replace(other, one).replace("first", other));
        }
    }
    all
}

/// Each operand and the result of each WMMA with two digits of the lane map exchanged: other registers, lanes or
/// rows. The formulas find all of them.
#[test]
fn wrong_lanes_of_wmma_are_found() {
    let mut tried = 0;
    for row in wmma_rows() {
        let leaked = |text: String| -> &'static str { text.leak() };
        let of_a = exchanged(row.a_layout).into_iter().map(leaked);
        let of_a = of_a.map(|a_layout| MatrixOp { a_layout, ..*row });
        let of_b = exchanged(row.b_layout).into_iter().map(leaked);
        let of_b = of_b.map(|b_layout| MatrixOp { b_layout, ..*row });
        let of_d = exchanged(row.d_layout).into_iter().map(leaked);
        let of_d = of_d.map(|d_layout| MatrixOp { d_layout, ..*row });
        for wrong in of_a.chain(of_b).chain(of_d) {
            assert!(differs_from_wmma(&wrong).is_some(), "{wrong:?}");
            tried += 1;
        }
    }
    assert!(tried >= 80, "{tried}");
}

/// Those without scales; `block_scales` has the others.
fn nvidia_rows() -> impl Iterator<Item = &'static MatrixOp> {
    MATRIX_OPS.iter().filter(|row| row.name.starts_with("mma.") && row.scaling.is_none())
}

/// PTX ISA, mma.m16n8k16: A: row = groupID for a0, a1, a4, a5, groupID + 8 otherwise; col =
/// 2 threadID_in_group + (i & 1), + 8 for i >= 4. C: row = groupID for c0, c1, groupID + 8
/// otherwise; col = 2 threadID_in_group + (i & 1). For 8-bit A: row = groupID for i in 0..4 and
/// 8..12; col = 4 threadID_in_group + (i & 3), + 16 for i >= 8.
#[test]
fn nvidia_rows_are_the_documents_formulas() {
    for row in nvidia_rows() {
        let (a, d) = (parse_fragment(row.a_layout).unwrap(), parse_fragment(row.d_layout).unwrap());
        for lane in 0..32 {
            let (group, within) = (lane / 4, lane % 4);
            for i in 0..4 {
                let point = Point { n: group + 8 * (i / 2), k: 2 * within + i % 2 };
                assert_eq!(d.place(point), [0, i, lane], "{}", row.name);
            }
            if row.shape[2] == 16 {
                for i in 0..8 {
                    let low = matches!(i, 0 | 1 | 4 | 5);
                    let n = group + if low { 0 } else { 8 };
                    let k = 2 * within + (i & 1) + if i >= 4 { 8 } else { 0 };
                    assert_eq!(a.place(Point { n, k }), [i % 2, i / 2, lane], "{}", row.name);
                }
            } else {
                for i in 0..16 {
                    let low = i < 4 || (8..12).contains(&i);
                    let n = group + if low { 0 } else { 8 };
                    let k = 4 * within + (i & 3) + if i >= 8 { 16 } else { 0 };
                    assert_eq!(a.place(Point { n, k }), [i % 4, i / 4, lane], "{}", row.name);
                }
            }
        }
    }
}
