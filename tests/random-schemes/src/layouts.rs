//! Random layouts of a component: digit chains with random splits, in elements, words, loops, bit
//! planes and words of single steps, legal for every shape.

use quantloom_dsl::layout::{
    Axis, Component, Digit, DigitRange, Field, Fill, Granularity, GroupSize, Layout, OrderDigit,
    WordType,
};

use crate::dice::Dice;

/// A component that needs a layout.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// The component.
    pub component: Component,
    /// Its width and group.
    pub granularity: Granularity,
    /// Whether experts are stacked.
    pub experts: bool,
}

/// Layouts that together store the whole component: one layout, or several bit planes for the code.
pub fn layouts(dice: &mut Dice, placed: Placed) -> Vec<Layout> {
    let code = placed.component == Component::Code;
    let bits = placed.granularity.bits;
    match dice.below(if code { 14 } else { 10 }) {
        0..=2 => vec![elements(dice, placed)],
        3 => {
            let mut digits = digits(dice, placed);
            let outside = digits.split_off(digits.len().saturating_sub(1));
            let body = Box::new(word_of(dice, placed, None, digits));
            vec![Layout::For { digits: outside, body }]
        }
        4 if steppable(bits) => words_of_steps(dice, placed, 1),
        5 if bits > 1 => vec![Layout::Sequence(planes(dice, placed))],
        6 if steppable(bits) => vec![Layout::Sequence(words_of_steps(dice, placed, 2))],
        10 if bits > 1 => planes(dice, placed),
        11 if steppable(bits) => words_of_steps(dice, placed, 2),
        12 | 13 => vec![dense(dice, placed)],
        _ => vec![word(dice, placed, None)],
    }
}

/// Wide codes would make runs of many words.
fn steppable(bits: u32) -> bool {
    bits <= 8
}

/// `[k, n]`, mostly in the usual order.
fn elements(dice: &mut Dice, placed: Placed) -> Layout {
    let digits = digits(dice, placed);
    if digits.len() > 1 && dice.one_in(4) {
        let inside = dice.below(digits.len());
        let body = Layout::elements(placed.component, digits[..inside].to_vec());
        return Layout::For { digits: digits[inside..].to_vec(), body: Box::new(body) };
    }
    Layout::elements(placed.component, digits)
}

/// Layouts of common software: rows of words with the codes along k, or their transpose.
fn dense(dice: &mut Dice, placed: Placed) -> Layout {
    let bits = placed.granularity.bits;
    let width = [8u32, 32, 16, 64];
    let width = dice.of(&width);
    let size = (width / bits).max(1);
    let open = |axis| OrderDigit::Digit(Digit::new(axis, DigitRange::Open));
    let e = placed.experts.then(|| open(Axis::E));
    let whole = width.is_multiple_of(bits) && dice.one_in(2);
    let (inner, mut order) = if whole {
        let digit = Digit::new(Axis::K, DigitRange::Sized { stride: 1, size });
        (vec![digit], vec![open(Axis::K), open(Axis::N)])
    } else {
        (vec![Digit::new(Axis::K, DigitRange::Whole)], vec![OrderDigit::Word, open(Axis::N)])
    };
    if dice.one_in(3) {
        order.reverse();
    }
    order.extend(e);
    let word = WordType { bits: width as u8, signed: dice.one_in(2), msf: dice.one_in(5) };
    Layout::Word { word, fields: vec![Field::all(placed.component)], inner, order }
}

/// Two or three slices of the bits, each with all digits.
fn planes(dice: &mut Dice, placed: Placed) -> Vec<Layout> {
    let bits = placed.granularity.bits as u8;
    let mut cuts = vec![0, 1 + dice.below(usize::from(bits) - 1) as u8, bits];
    if bits > 3 && dice.one_in(4) {
        cuts.push(1 + dice.below(usize::from(bits) - 1) as u8);
    }
    cuts.sort_unstable();
    cuts.dedup();
    let slices: Vec<(u8, u8)> = cuts.windows(2).map(|cut| (cut[0], cut[1])).collect();
    slices.into_iter().map(|slice| word(dice, placed, Some(slice))).collect()
}

fn word(dice: &mut Dice, placed: Placed, range: Option<(u8, u8)>) -> Layout {
    let digits = digits(dice, placed);
    word_of(dice, placed, range, digits)
}

/// A run of the first digits, as many as fill their words, ordered by the other digits.
pub fn word_of(
    dice: &mut Dice,
    placed: Placed,
    range: Option<(u8, u8)>,
    mut inner: Vec<Digit>,
) -> Layout {
    let all = placed.granularity.bits;
    let width: u32 = dice.of(&[8, 32, 16, 64]);
    let msf = dice.one_in(4);
    let mut fields = vec![Field::Bits { component: placed.component, range, step: None }];
    if dice.one_in(5) {
        let fill = dice.of(&[Fill::Zero, Fill::One, if msf { Fill::One } else { Fill::Sign }]);
        fields.push(Field::Pad { bits: dice.within(1, 9) as u8, fill });
    }
    if dice.one_in(8) {
        let fill = dice.of(&[Fill::Zero, Fill::One]);
        fields.insert(0, Field::Pad { bits: dice.within(1, 3) as u8, fill });
    }
    let step: u32 = fields.iter().map(|field| taken(field, all)).sum();
    let sizes = |inner: &[Digit]| -> Option<u32> { inner.iter().map(size_of).product() };
    let spare = |inner: &[Digit]| -> Option<u32> {
        let run = step * sizes(inner)?;
        Some(run.next_multiple_of(width) - run)
    };
    let at = if dice.one_in(3) { dice.below(inner.len() + 1) } else { sized_first(&inner) };
    let mut outer = inner.split_off(at);
    while !inner.is_empty() && spare(&inner).is_some_and(|spare| spare >= step) {
        outer.insert(0, inner.remove(inner.len() - 1));
    }
    if let Some(rest) = spare(&inner).filter(|rest| *rest >= step) {
        fields.push(Field::Pad { bits: rest as u8, fill: dice.of(&[Fill::Zero, Fill::One]) });
    }
    let mut order: Vec<OrderDigit> = outer.into_iter().map(OrderDigit::Digit).collect();
    let one_word = sizes(&inner).is_some_and(|size| step * size <= width);
    if !one_word || dice.one_in(8) {
        order.insert(dice.below(order.len() + 1), OrderDigit::Word);
    }
    let word = WordType { bits: width as u8, signed: dice.one_in(2), msf };
    Layout::Word { word, fields, inner, order }
}

/// How many of the first digits have a size.
fn sized_first(digits: &[Digit]) -> usize {
    digits.iter().take_while(|digit| size_of(digit).is_some()).count()
}

/// Words with the same steps, which together store each bit of each step once: slices of the codes
/// in any order, and pads.
fn words_of_steps(dice: &mut Dice, placed: Placed, words: usize) -> Vec<Layout> {
    let bits = placed.granularity.bits;
    let (mut inner, mut outer) = (Vec::new(), Vec::new());
    let mut steps = 1;
    for digit in digits(dice, placed) {
        match size_of(&digit) {
            Some(size) if bits * steps * size <= 128 => {
                steps *= size;
                inner.push(digit);
            }
            _ => outer.push(digit),
        }
    }
    let mut slices = Vec::new();
    for step in 0..steps as u16 {
        let mut low = 0;
        while low < bits as u8 {
            let high = dice.within(u32::from(low) + 1, bits) as u8;
            let whole = low == 0 && u32::from(high) == bits && dice.one_in(2);
            let range = if whole { None } else { Some((low, high)) };
            slices.push(Field::Bits { component: placed.component, range, step: Some(step) });
            low = high;
        }
    }
    dice.shuffle(&mut slices);
    let mut parts = vec![Vec::new(); words];
    for (position, slice) in slices.into_iter().enumerate() {
        let part = if position < words { position } else { dice.below(words) };
        parts[part].push(slice);
    }
    let parts = parts.into_iter().filter(|fields| !fields.is_empty());
    parts.map(|fields| word_of_steps(dice, bits, fields, &inner, &outer)).collect()
}

fn word_of_steps(
    dice: &mut Dice,
    bits: u32,
    mut fields: Vec<Field>,
    inner: &[Digit],
    outer: &[Digit],
) -> Layout {
    while dice.one_in(4) {
        let fill = dice.of(&[Fill::One, Fill::Zero]);
        let pad = Field::Pad { bits: dice.within(1, 9) as u8, fill };
        fields.insert(dice.below(fields.len() + 1), pad);
    }
    let run: u32 = fields.iter().map(|field| taken(field, bits)).sum();
    // At most three words, if the words are that wide.
    let width = dice.of(&[8u32, 32, 16, 64]).max(run.div_ceil(3).next_power_of_two().min(64));
    let rest = run.next_multiple_of(width) - run;
    if rest >= run {
        fields.push(Field::Pad { bits: rest as u8, fill: Fill::One });
    }
    let mut order: Vec<OrderDigit> = outer.iter().cloned().map(OrderDigit::Digit).collect();
    if dice.one_in(2) {
        dice.shuffle(&mut order);
    }
    if run > width || dice.one_in(8) {
        order.insert(dice.below(order.len() + 1), OrderDigit::Word);
    }
    let word = WordType { bits: width as u8, signed: dice.one_in(3), msf: dice.one_in(3) };
    Layout::Word { word, fields, inner: inner.to_vec(), order }
}

/// Bits of a field in a run.
fn taken(field: &Field, bits: u32) -> u32 {
    match field {
        Field::Bits { range, .. } => range.map_or(bits, |(low, high)| u32::from(high - low)),
        Field::Pad { bits, .. } => u32::from(*bits),
    }
}

fn size_of(digit: &Digit) -> Option<u32> {
    match digit.part {
        DigitRange::Sized { size, .. } => Some(size),
        _ => None,
    }
}

/// The digits of every axis along which the component varies, often k first, some counting down,
/// some swizzled.
fn digits(dice: &mut Dice, placed: Placed) -> Vec<Digit> {
    let Placed { granularity, experts, component } = placed;
    let mut digits =
        chain(dice, if component == Component::Code { Axis::K } else { Axis::G }, granularity.cols);
    digits.extend(chain(dice, Axis::N, granularity.rows));
    match dice.below(4) {
        0 => digits.reverse(),
        1 => dice.shuffle(&mut digits),
        2 => digits.sort_by_key(|digit| size_of(digit).is_none()),
        _ => {}
    }
    if experts {
        let at = if dice.one_in(3) { dice.below(digits.len() + 1) } else { digits.len() };
        digits.insert(at, Digit::new(Axis::E, DigitRange::Open));
    }
    if dice.one_in(6) {
        swizzle(dice, &mut digits, granularity);
    }
    digits
}

/// The digits of one axis: digits with sizes from the group size on, then an open one; or the whole
/// axis.
fn chain(dice: &mut Dice, axis: Axis, group_size: GroupSize) -> Vec<Digit> {
    let unit = match group_size {
        // A default layout has digits along which the component does not vary.
        GroupSize::All if dice.one_in(6) => return vec![Digit::new(axis, DigitRange::Open)],
        GroupSize::All => return Vec::new(),
        GroupSize::Each(unit) => unit,
    };
    // Digits g count from the group on; digits k from the group's columns on.
    let (axis, first) = match axis {
        Axis::G if dice.one_in(3) => (Axis::K, unit),
        Axis::K if dice.one_in(8) => (Axis::G, 1),
        axis => (axis, 1),
    };
    let mut parts = Vec::new();
    let (mut stride, mut most) = (first, if axis == Axis::N { 32 } else { 128 });
    while parts.len() < 3 && unit <= 1 << 12 && dice.one_in(2) {
        let size = dice.of(&[2, 8, 4, 16, 3, 5, 10, 32, 7, 64]);
        if size > most {
            break;
        }
        parts.push(DigitRange::Sized { stride, size });
        stride *= size;
        most /= size;
    }
    match dice.below(12) {
        0 if parts.is_empty() => parts.push(DigitRange::Whole),
        1 => parts.extend([DigitRange::Open, DigitRange::Top { size: dice.within(2, 3) }]),
        _ => parts.push(DigitRange::Open),
    }
    let digit = |part| Digit { down: dice.one_in(8), ..Digit::new(axis, part) };
    parts.into_iter().map(digit).collect()
}

/// XORs digits of one axis with whole groups of the other.
fn swizzle(dice: &mut Dice, digits: &mut [Digit], granularity: Granularity) {
    let on_n = |digit: &Digit| digit.axis == Axis::N;
    let rows_first = dice.one_in(2);
    let (other, group_size) =
        if rows_first { (Axis::K, granularity.cols) } else { (Axis::N, granularity.rows) };
    let GroupSize::Each(unit) = group_size else { return };
    for digit in digits.iter_mut().filter(|digit| on_n(digit) == rows_first) {
        if let DigitRange::Sized { size, .. } = digit.part
            && size.is_power_of_two()
            && digit.axis != Axis::E
        {
            let part = DigitRange::Sized { stride: unit * dice.of(&[1, 2, 8]), size };
            digit.swizzle = Some(Box::new(Digit::new(other, part)));
        }
    }
}

/// A record for every group: the codes of the group and its shared components, each whole bytes.
///
/// `shared` are components with one value per group of `rows` x `cols`, the group of the record.
pub fn record(
    dice: &mut Dice,
    code: Placed,
    shared: &[Placed],
    (rows, cols): (u32, u32),
) -> Layout {
    let codes = inside(dice, code, (1, rows), (1, cols));
    let body = record_body(dice, codes, shared);
    let mut outer =
        vec![Digit::new(Axis::K, DigitRange::Open), Digit::new(Axis::N, DigitRange::Open)];
    if dice.one_in(5) && rows == 1 {
        outer[1].part = DigitRange::Sized { stride: 1, size: 4 };
        outer.push(Digit::new(Axis::N, DigitRange::Open));
    }
    if dice.one_in(8) {
        outer.push(Digit::new(Axis::K, DigitRange::Top { size: 2 }));
    }
    if code.experts {
        outer.push(Digit::new(Axis::E, DigitRange::Open));
    }
    if dice.one_in(3) {
        dice.shuffle(&mut outer);
    }
    Layout::For { digits: outer, body: Box::new(body) }
}

/// A record of records: `large` are components with one value for `times` small records along k.
pub fn super_record(
    dice: &mut Dice,
    code: Placed,
    small: &[Placed],
    large: &[Placed],
    cols: u32,
    times: u32,
) -> Layout {
    let codes = inside(dice, code, (1, 1), (1, cols));
    let body = record_body(dice, codes, small);
    let digits = vec![Digit::new(Axis::K, DigitRange::Sized { stride: cols, size: times })];
    let mut parts = vec![Layout::For { digits, body: Box::new(body) }];
    parts.extend(large.iter().map(|placed| single(dice, *placed)));
    dice.shuffle(&mut parts);
    let mut outer =
        vec![Digit::new(Axis::K, DigitRange::Open), Digit::new(Axis::N, DigitRange::Open)];
    if code.experts {
        outer.push(Digit::new(Axis::E, DigitRange::Open));
    }
    Layout::For { digits: outer, body: Box::new(Layout::Sequence(parts)) }
}

/// Several components of one group, in records or in words, for every group.
pub fn together(dice: &mut Dice, placed: &[Placed]) -> Layout {
    let mut order: Vec<Digit> = digits(dice, placed[0]);
    // A digit of groups with a size would mean other columns for a component with another group.
    order.iter_mut().for_each(|digit| digit.swizzle = None);
    if dice.one_in(2) {
        let body = placed.iter().map(|placed| single(dice, *placed)).collect();
        return Layout::For { digits: order, body: Box::new(Layout::Sequence(body)) };
    }
    let mut fields: Vec<Field> = placed.iter().map(|p| Field::all(p.component)).collect();
    dice.shuffle(&mut fields);
    let run: u32 = placed.iter().map(|placed| placed.granularity.bits).sum();
    let width = dice.of(&[32u32, 64, 16, 8]);
    let rest = run.next_multiple_of(width) - run;
    if rest >= run {
        fields.push(Field::Pad { bits: rest as u8, fill: dice.of(&[Fill::Zero, Fill::One]) });
    }
    let mut order: Vec<OrderDigit> = order.into_iter().map(OrderDigit::Digit).collect();
    if run > width {
        order.insert(dice.below(order.len() + 1), OrderDigit::Word);
    }
    let word = WordType { bits: width as u8, signed: dice.one_in(3), msf: dice.one_in(4) };
    Layout::Word { word, fields, inner: Vec::new(), order }
}

fn record_body(dice: &mut Dice, codes: Vec<Layout>, shared: &[Placed]) -> Layout {
    let mut parts = codes;
    parts.extend(shared.iter().map(|placed| single(dice, *placed)));
    if dice.one_in(4) {
        let fill = dice.of(&[Fill::Zero, Fill::One]);
        parts.push(Layout::Field(Field::Pad { bits: 8 * dice.within(1, 2) as u8, fill }));
    }
    dice.shuffle(&mut parts);
    Layout::Sequence(parts)
}

/// One value, padded to whole bytes.
fn single(dice: &mut Dice, placed: Placed) -> Layout {
    let bits = placed.granularity.bits;
    match bits.is_multiple_of(8) && dice.percent(70) {
        true => Layout::Field(Field::all(placed.component)),
        false if bits > 8 && dice.one_in(2) => {
            let cut = dice.within(1, bits - 1) as u8;
            let slices = [(0, cut), (cut, bits as u8)];
            let words = slices.map(|slice| word_of(dice, placed, Some(slice), Vec::new()));
            Layout::Sequence(words.to_vec())
        }
        false => word_of(dice, placed, None, Vec::new()),
    }
}

/// The codes of a group of rows and columns that starts at a stride: one word, or two bit planes.
fn inside(dice: &mut Dice, code: Placed, rows: (u32, u32), cols: (u32, u32)) -> Vec<Layout> {
    let slices = match code.granularity.bits {
        bits if bits > 1 && dice.one_in(4) => {
            let cut = dice.within(1, bits - 1) as u8;
            vec![Some((0, cut)), Some((cut, bits as u8))]
        }
        _ => vec![None],
    };
    let mut plane = |range| {
        let mut digits = split(dice, Axis::K, cols);
        digits.extend(split(dice, Axis::N, rows));
        if dice.one_in(3) {
            dice.shuffle(&mut digits);
        }
        word_of(dice, code, range, digits)
    };
    slices.into_iter().map(&mut plane).collect()
}

/// Digits with sizes that cover a number of columns or rows exactly.
fn split(dice: &mut Dice, axis: Axis, (mut stride, mut count): (u32, u32)) -> Vec<Digit> {
    let mut digits = Vec::new();
    while count > 1 {
        let divisors: Vec<u32> = (2..=count).filter(|size| count.is_multiple_of(*size)).collect();
        let size = if dice.one_in(2) { count } else { dice.of(&divisors) };
        digits.push(Digit {
            down: dice.one_in(10),
            ..Digit::new(axis, DigitRange::Sized { stride, size })
        });
        stride *= size;
        count /= size;
    }
    digits
}
