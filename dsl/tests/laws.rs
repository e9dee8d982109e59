//! The laws of the layout algebra, on random layouts and random ragged shapes.
//!
//! A layout is drawn from a tape of random bytes, so that a failing case shrinks to a short
//! one; it prints as the notation and the shape that reproduce it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ops::Range;

use crate::random_layout::{CODE, Case, SCALE, Tape, copy, word, words_of_steps};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use proptest::{prop_assert, prop_assert_eq};
use quantloom_dsl::layout::{
    AffineDigit, AffineRun, Axis, BitContent, BoundLayout, Component, Element, Fill, Index, Layout,
    Method, Recode, Shape, Transform, TransformError, read_bits,
};
use quantloom_dsl::parse_layout;

type Checked = Result<(), TestCaseError>;

fn check(cases: u32, law: impl Fn(&mut Tape<'_>) -> Checked) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&vec(any::<u8>(), 120), |bytes| law(&mut Tape(bytes.iter())));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, bytes)) => panic!("{reason}\nfrom the tape {bytes:?}"),
        Err(error) => panic!("{error}"),
    }
}

fn transform(
    component: Component,
    from: &BoundLayout,
    to: &BoundLayout,
    recode: &Recode,
    source: &[u8],
    destination: &mut [u8],
) -> Result<Method, TestCaseError> {
    let fail = |error| TestCaseError::fail(format!("{error}"));
    let transform = Transform::new(component, from, to, recode.clone()).map_err(fail)?;
    transform.run(source, destination).map_err(fail)?;
    Ok(transform.method())
}

fn recode(tape: &mut Tape<'_>, bits: u32) -> Recode {
    match tape.pick(3) {
        0 => Recode::Keep,
        1 => Recode::Xor(tape.pick(1 << bits) as u32),
        _ => {
            let mut table: Vec<u32> = (0..1 << bits).collect();
            let (shift, swap) = (tape.pick(1 << bits), tape.pick(1 << bits));
            table.rotate_left(shift);
            table.swap(0, swap);
            Recode::Table(table)
        }
    }
}

#[test]
fn addresses_and_slots_are_inverse() {
    check(400, |tape| {
        let case = Case::draw(tape);
        let bound = &case.bound;
        let mut placed = HashSet::new();
        for component in case.components() {
            let bits = case.granularity(component).map_or(0, |granularity| granularity.bits);
            for index in case.elements(component) {
                for bit in 0..bits {
                    let element = Element { component, index, bit };
                    let address = bound.address(element);
                    prop_assert!(address.is_some_and(|at| at < bound.bits()), "{case}");
                    let address = address.unwrap_or(0);
                    prop_assert!(placed.insert(address), "{case}: twice at {address}");
                    prop_assert_eq!(bound.content(address), BitContent::Bit(element), "{}", case);
                }
            }
        }
        for address in 0..bound.bits() {
            let filled = matches!(bound.content(address), BitContent::Bit(_));
            prop_assert_eq!(filled, placed.contains(&address), "{} at {}", case, address);
        }
        Ok(())
    });
}

/// Each bit lies in exactly one affine run, at the address that the algebra gives it.
#[test]
fn runs_are_the_addresses() {
    let (affine, swizzled) = (Cell::new(0), Cell::new(0));
    check(300, |tape| {
        let case = Case::draw(tape);
        for component in case.components() {
            let Some(runs) = case.bound.runs(component) else {
                swizzled.set(swizzled.get() + 1);
                continue;
            };
            affine.set(affine.get() + 1);
            let bits = case.granularity(component).map_or(0, |granularity| granularity.bits);
            for index in case.elements(component) {
                let here =
                    |run: &&AffineRun| run.digits.iter().all(|digit| at(digit, index).is_some());
                let runs: Vec<&AffineRun> = runs.iter().filter(here).collect();
                for bit in 0..bits {
                    let address = |run: &&AffineRun| {
                        let steps = run.digits.iter().filter_map(|digit| at(digit, index));
                        run.base + steps.sum::<i64>() + i64::from(bit - run.low)
                    };
                    let holds = |run: &&&AffineRun| (run.low..run.high).contains(&bit);
                    let found: Vec<i64> = runs.iter().filter(holds).map(address).collect();
                    let expected = case.bound.address(Element { component, index, bit });
                    prop_assert_eq!(found, [expected.unwrap() as i64], "{}, {:?}", case, index);
                }
            }
        }
        Ok(())
    });
    assert!(affine.get() >= 100 && swizzled.get() >= 10, "{affine:?} affine, {swizzled:?} not");
}

/// Bits of address of an index along a digit; `None` if the run is for another value of it.
fn at(digit: &AffineDigit, index: Index) -> Option<i64> {
    let index = match digit.axis {
        Axis::E => index.e,
        Axis::N => index.n,
        Axis::K | Axis::G => index.k,
    };
    let value = index / digit.stride % digit.size;
    let held = digit.fixed.is_none_or(|fixed| fixed == value);
    held.then_some(value as i64 * digit.place)
}

#[test]
fn layouts_print_and_read_back() {
    check(400, |tape| {
        let layout = Case::draw(tape).layout;
        let text = layout.display(CODE).to_string();
        prop_assert_eq!(parse_layout(&text, CODE), Ok(layout), "{}", text);
        Ok(())
    });
}

/// Plain codes through a layout and back; what is no code keeps its fill.
#[test]
fn reading_gives_what_was_written() {
    check(400, |tape| {
        let case = Case::draw(tape);
        for component in case.components() {
            let bits = case.granularity(component).map_or(0, |granularity| granularity.bits);
            let plain = case.bind(&Layout::plain(component, bits));
            let codes = copy(&case, component, &case.random(tape), &plain, &Recode::Keep);
            let mut stored = case.bound.blank(&case.layout);
            transform(component, &plain, &case.bound, &Recode::Keep, &codes, &mut stored)?;
            let mut back = vec![0; plain.bytes() as usize];
            transform(component, &case.bound, &plain, &Recode::Keep, &stored, &mut back)?;
            prop_assert_eq!(&back, &codes, "{}", case);
            for address in 0..case.bound.bits() {
                let expected = match case.bound.content(address) {
                    BitContent::Hole(fill) => u64::from(fill == Fill::One),
                    BitContent::Sign(of, index) if of == component => {
                        let top = Element { component, index, bit: bits - 1 };
                        case.bound.address(top).map_or(0, |at| read_bits(&stored, at, 1))
                    }
                    BitContent::Sign(..) => 0,
                    BitContent::Bit(at) if at.component != component => 0,
                    BitContent::Bit(_) => continue,
                };
                let found = read_bits(&stored, address, 1);
                prop_assert_eq!(found, expected, "{} at {}", case, address);
            }
        }
        Ok(())
    });
}

/// A transform does what copying bit by bit through the addresses does, recoded or not,
/// whichever way it runs; and its inverse undoes it.
#[test]
fn transforms_copy_bit_by_bit() {
    let reached = RefCell::new(Vec::new());
    check(1000, |tape| {
        let from = Case::draw(tape);
        let to = Case::draw_with(tape, from.bits, from.bound.shape());
        let recode = recode(tape, from.bits);
        let source = from.random(tape);
        let expected = copy(&from, CODE, &source, &to.bound, &recode);
        let mut found = vec![0; to.bound.bytes() as usize];
        let method = transform(CODE, &from.bound, &to.bound, &recode, &source, &mut found)?;
        reached.borrow_mut().push(method);
        prop_assert!(found == expected, "{method:?} {recode:?}\n  {from}\n  {to}");

        let inverse = recode.inverse();
        prop_assert!(inverse.is_some(), "{recode:?}");
        let mut back = vec![0; from.bound.bytes() as usize];
        transform(CODE, &to.bound, &from.bound, &inverse.unwrap(), &found, &mut back)?;
        let kept = copy(&from, CODE, &source, &from.bound, &Recode::Keep);
        prop_assert!(back == kept, "back, {recode:?}\n  {from}\n  {to}");
        Ok(())
    });
    let reached = reached.into_inner();
    for method in [Method::Nest, Method::Staged, Method::Gather] {
        let times = reached.iter().filter(|other| **other == method).count();
        assert!(times >= 50, "{method:?} is reached {times} times only");
    }
}

#[test]
fn transforms_compose() {
    check(400, |tape| {
        let a = Case::draw(tape);
        let [b, c] = [(); 2].map(|()| Case::draw_with(tape, a.bits, a.bound.shape()));
        let source = a.random(tape);
        let run = |from: &Case, to: &Case, bytes: &[u8]| -> Result<Vec<u8>, TestCaseError> {
            let mut out = vec![0; to.bound.bytes() as usize];
            transform(CODE, &from.bound, &to.bound, &Recode::Keep, bytes, &mut out)?;
            Ok(out)
        };
        let direct = run(&a, &c, &source)?;
        let by_b = run(&b, &c, &run(&a, &b, &source)?)?;
        prop_assert!(direct == by_b, "\n  {a}\n  {b}\n  {c}");
        Ok(())
    });
}

/// A slice of a code on both sides, as a store of one bit plane has it.
#[test]
fn transforms_move_bit_planes() {
    check(300, |tape| {
        let shape = tape.shape();
        let bits = 2 + tape.pick(7) as u32;
        let cut = bits as u8 / 2;
        let slice = [(0, cut), (cut, bits as u8)][tape.pick(2)];
        let mut plane = || Case::new(word(tape, slice, bits, shape), bits, None, shape);
        let (from, to) = (plane(), plane());
        let source = from.random(tape);
        let recode = [Recode::Keep, Recode::Xor(tape.pick(1 << bits) as u32)][tape.pick(2)].clone();
        let expected = copy(&from, CODE, &source, &to.bound, &recode);
        let mut found = vec![0; to.bound.bytes() as usize];
        let method = transform(CODE, &from.bound, &to.bound, &recode, &source, &mut found)?;
        prop_assert!(found == expected, "{method:?}\n  {from}\n  {to}");
        Ok(())
    });
}

/// Two slices in stores of their own: moved one after the other they make whole codes, and
/// whole codes part into them again.
#[test]
fn transforms_join_bit_planes() {
    check(300, |tape| {
        let shape = tape.shape();
        let bits = 2 + tape.pick(7) as u32;
        let cut = bits as u8 / 2;
        let whole = Case::new(word(tape, (0, bits as u8), bits, shape), bits, None, shape);
        let mut joined = vec![0; whole.bound.bytes() as usize];
        let mut expected = joined.clone();
        let slices = [(0, cut), (cut, bits as u8)];
        let planes =
            slices.map(|slice| Case::new(word(tape, slice, bits, shape), bits, None, shape));
        let stored = planes.each_ref().map(|plane| plane.random(tape));
        for (plane, bytes) in planes.iter().zip(&stored) {
            transform(CODE, &plane.bound, &whole.bound, &Recode::Keep, bytes, &mut joined)?;
            let copied = copy(plane, CODE, bytes, &whole.bound, &Recode::Keep);
            expected.iter_mut().zip(copied).for_each(|(byte, more)| *byte |= more);
        }
        prop_assert!(joined == expected, "\n  {whole}");
        for (plane, bytes) in planes.iter().zip(&stored) {
            let mut back = vec![0; bytes.len()];
            transform(CODE, &whole.bound, &plane.bound, &Recode::Keep, &joined, &mut back)?;
            let parted = copy(&whole, CODE, &joined, &plane.bound, &Recode::Keep);
            prop_assert!(back == parted, "\n  {whole}\n  {plane}");
        }
        Ok(())
    });
}

/// Two stores that hold other bits of the codes at each step: the same.
#[test]
fn transforms_join_bits_of_steps() {
    check(300, |tape| {
        let (bits, shape) = (1 + tape.pick(8) as u32, tape.shape());
        let whole = Case::new(word(tape, (0, bits as u8), bits, shape), bits, None, shape);
        let codes = whole.random(tape);
        let mut joined = vec![0; whole.bound.bytes() as usize];
        for layout in words_of_steps(tape, bits, shape, 2) {
            let part = Case::new(layout, bits, None, shape);
            let mut stored = vec![0; part.bound.bytes() as usize];
            transform(CODE, &whole.bound, &part.bound, &Recode::Keep, &codes, &mut stored)?;
            let parted = copy(&whole, CODE, &codes, &part.bound, &Recode::Keep);
            prop_assert!(stored == parted, "\n  {whole}\n  {part}");
            transform(CODE, &part.bound, &whole.bound, &Recode::Keep, &stored, &mut joined)?;
        }
        let kept = copy(&whole, CODE, &codes, &whole.bound, &Recode::Keep);
        prop_assert!(joined == kept, "\n  {whole}");
        Ok(())
    });
}

/// Steps count the digits before the bar, the first one fastest; fields lie where they are
/// written, from bit 0 of the run on or from its top.
#[test]
fn fields_of_steps_lie_where_they_are_written() {
    let code = |n, k, bits: Range<u32>| -> Vec<BitContent> {
        let index = Index { e: 0, n, k };
        bits.map(|bit| BitContent::Bit(Element { component: CODE, index, bit })).collect()
    };
    let pad = |bits, fill| vec![BitContent::Hole(fill); bits];
    // Text, width of a code, addresses of the run's words, its bits from the lowest on.
    let table = [
        (
            "u16 [code[0..3] @0, code[3..4] @3, code @2, code[0..3] @3, code[3..4] @0, code @1, \
             k:2, n/2:2 | k, n:2, n, e]",
            4,
            [0].as_slice(),
            [
                code(0, 0, 0..3),
                code(2, 1, 3..4),
                code(2, 0, 0..4),
                code(2, 1, 0..3),
                code(0, 0, 3..4),
                code(0, 1, 0..4),
            ]
            .concat(),
        ),
        (
            "u8 [code[3..6] @1, pad 2 = 1, code @0, code[0..3] @1, pad 2, k:2 | n, w, k, e]",
            6,
            &[0, 24],
            [
                code(0, 1, 3..6),
                pad(2, Fill::One),
                code(0, 0, 0..6),
                code(0, 1, 0..3),
                pad(2, Fill::Zero),
            ]
            .concat(),
        ),
        (
            "u8 msf [code[2..4] @1, code @0, code[0..2] @1, ~k:2 | k, n, e]",
            4,
            &[0],
            [code(0, 0, 0..2), code(0, 1, 0..4), code(0, 0, 2..4)].concat(),
        ),
    ];
    for (text, bits, words, slots) in table {
        let layout = parse_layout(text, CODE).unwrap_or_else(|faults| panic!("{faults}"));
        let bound = Case::new(layout, bits, None, Shape::matrix(3, 4)).bound;
        let width = slots.len() / words.len();
        for (bit, slot) in slots.into_iter().enumerate() {
            let address = words[bit / width] + (bit % width) as u64;
            assert_eq!(bound.content(address), slot, "{text}, bit {bit}");
        }
    }
}

#[test]
fn transforms_refuse_what_is_not_alike() {
    let case = |text, bits, k| {
        let layout = parse_layout(text, CODE).unwrap();
        Case::new(layout, bits, None, Shape::matrix(8, k)).bound
    };
    let new = |from: &BoundLayout, to: &BoundLayout| {
        Transform::new(CODE, from, to, Recode::Keep).map(|transform| transform.method())
    };
    let (a, b) = (case("[k, n]", 4, 8), case("u32 [k:8 | k, n]", 4, 8));
    let swizzled = case("u8 [k:2 | k/2:4 ^ n:4, k, n]", 4, 8);
    assert_eq!(new(&a, &b), Ok(Method::Nest));
    assert_eq!(new(&a, &swizzled), Ok(Method::Gather));
    let wider = case("[k, n]", 5, 8);
    let slice = case("u8 [code[0..2], k:4 | k, n]", 4, 8);
    let longer = case("[k, n]", 4, 16);
    for other in [&a, &b, &swizzled] {
        assert_eq!(new(other, &wider), Err(TransformError::Component(CODE)));
        let recoded = Transform::new(CODE, other, &slice, Recode::Xor(1)).map(|_| ());
        assert_eq!(recoded, Err(TransformError::Component(CODE)));
        assert!(matches!(new(other, &longer), Err(TransformError::Shapes(..))));
        assert!(Transform::new(SCALE, other, &a, Recode::Keep).is_err());
    }
    // Of every bit some code is here, of no code every bit.
    let some = case("u8 [code[0..2] @0, code[2..4] @1, pad 4, k:2 | k, n]", 4, 8);
    let other = case("u8 [code[0..2] @1, code[2..4] @0, pad 4, k:2 | k, n]", 4, 8);
    let all = case(
        "u8 [code[0..2] @0, code[2..4] @1, code @2, code[2..4] @0, code[0..2] @1, pad 4, k:3 | w, k, n]",
        4,
        8,
    );
    assert_eq!(new(&a, &some), Ok(Method::Nest));
    for recode in [Recode::Xor(1), Recode::Table((0..16).collect())] {
        let recoded = |from, to| Transform::new(CODE, from, to, recode.clone()).map(|_| ());
        for from in [&a, &some, &other] {
            assert_eq!(recoded(from, &some), Err(TransformError::Component(CODE)));
        }
        assert_eq!(recoded(&a, &all), Ok(()));
        assert_eq!(recoded(&all, &a), Ok(()));
    }
    let short = Transform::new(CODE, &a, &b, Recode::Keep).unwrap().run(&[0; 32], &mut [0; 31]);
    let side = "destination";
    assert_eq!(short, Err(TransformError::Size { side, expected: 32, found: 31 }));
}

#[test]
fn recodes_have_inverses() {
    assert_eq!(Recode::Keep.inverse(), Some(Recode::Keep));
    assert_eq!(Recode::Xor(0x88).inverse(), Some(Recode::Xor(0x88)));
    assert_eq!(Recode::Table(vec![2, 0, 1]).inverse(), Some(Recode::Table(vec![1, 2, 0])));
    assert_eq!(Recode::Table(vec![0, 0]).inverse(), None);
    assert_eq!(Recode::Table(vec![0, 2]).inverse(), None);
}

/// Short forms and what they stand for.
const SUGAR: &[(&str, &str)] = &[
    ("[n, g, e]", "for [n, g, e] code"),
    ("[k, n, e]", "for [e] for [n] for [k] code"),
    ("u32 [k:8 | n, k, e]", "u32 [code, k:8 | n, k, e]"),
    ("u32 [k:8 | n, k, e]", "for [n, k, e] u32 [k:8]"),
    ("u32 [k:8 | n, k, e]", "for [e] for [k] for [n] u32 [k/1:2, k/2:4]"),
    ("u32 [k:8 | w, n, k, e]", "u32 [k:8 | n, k, e]"),
    ("u32 [k:* | w, n, e]", "u32 [k:2, k | w, n, e]"),
    ("u32 [k:32 | w, n, k, e]", "u8 [k:32 | w, n, k, e]"),
    ("u32 [n/2:4, n:2 | n, k, e]", "u32 [n/2:2, n/4:2, n:2 | n, k, e]"),
    ("u8 [k:2 | k, n//2, n, e]", "u8 [k:2 | k, n/top:2, n, e]"),
    ("i8 [code, pad 4 | k, n, e]", "u8 [code, pad 4 | k, n, e]"),
    ("u8 [code[0..4], k:2 | k, n, e]", "u8 [code[0..2], code[2..4], k:2 | k, n, e]"),
];

#[test]
fn sugar_is_its_expansion() {
    for (short, long) in SUGAR {
        for (n, k) in [(16, 64), (5, 37), (1, 1)] {
            let shape = Shape { experts: 2, n, k };
            let [a, b] = [short, long].map(|text| {
                let layout = parse_layout(text, CODE).unwrap_or_else(|error| panic!("{error}"));
                Case::new(layout, 4, None, shape)
            });
            assert_eq!(a.bound.bits(), b.bound.bits(), "{short} = {long}, {n} x {k}");
            for address in 0..a.bound.bits() {
                let (a, b) = (a.bound.content(address), b.bound.content(address));
                assert_eq!(a, b, "{short} = {long}, {n} x {k}, bit {address}");
            }
        }
    }
}
