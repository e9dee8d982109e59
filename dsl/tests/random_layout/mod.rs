//! Random well-formed layouts, drawn from a tape of random bytes: digit chains of random
//! splits, placed inside and outside words at random; planes and records of such words; words
//! whose run holds the bits of its steps in a random order.

use std::fmt;

use quantloom_dsl::layout::{
    Axis, BitContent, BoundLayout, Component, Digit, DigitRange, Element, Field, Fill, Granularity,
    GroupSize, Index, Layout, OrderDigit, Recode, Shape, WordType, read_bits, write_bits,
};

pub(crate) const CODE: Component = Component::Code;
pub(crate) const SCALE: Component = Component::Scale(0);

/// Random choices; all of them the first one when it runs out.
pub(crate) struct Tape<'a>(pub(crate) std::slice::Iter<'a, u8>);

impl Tape<'_> {
    pub(crate) fn pick(&mut self, choices: usize) -> usize {
        usize::from(*self.0.next().unwrap_or(&0)) % choices
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.pick(one_in) == one_in - 1
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.pick(choices.len())]
    }

    pub(crate) fn shape(&mut self) -> Shape {
        let (experts, n) = (1 + self.pick(2) as u64, 1 + self.pick(13) as u64);
        Shape { experts, n, k: 1 + self.pick(70) as u64 }
    }
}

/// A layout of codes (and, in a record, of scales), bound to a shape.
pub(crate) struct Case {
    pub(crate) layout: Layout,
    pub(crate) bound: BoundLayout,
    /// Width of a code.
    pub(crate) bits: u32,
    /// Of the scale, where the layout is a record.
    scale: Option<Granularity>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { experts, n, k } = self.bound.shape();
        write!(f, "u{} in {}, ", self.bits, self.layout.display(CODE))?;
        if let Some(Granularity { bits, rows, cols }) = self.scale {
            write!(f, "scale of {bits} bits per {rows:?} x {cols:?}, ")?;
        }
        write!(f, "shape {experts}x{n}x{k}")
    }
}

impl Case {
    /// # Panics
    /// If the layout, which is well formed, does not bind.
    pub(crate) fn new(layout: Layout, bits: u32, scale: Option<Granularity>, shape: Shape) -> Self {
        match layout.bind(shape, &|component| granularity(component, bits, scale)) {
            Ok(bound) => Self { layout, bound, bits, scale },
            Err(error) => panic!("{} does not bind to {shape:?}: {error}", layout.display(CODE)),
        }
    }

    pub(crate) fn draw(tape: &mut Tape<'_>) -> Self {
        let (bits, shape) = (1 + tape.pick(8) as u32, tape.shape());
        Self::draw_with(tape, bits, shape)
    }

    pub(crate) fn draw_with(tape: &mut Tape<'_>, bits: u32, shape: Shape) -> Self {
        let whole = (0, bits as u8);
        let (layout, scale) = match tape.pick(10) {
            0 => record(tape, bits),
            1 if bits > 1 => {
                let cut = 1 + tape.pick(bits as usize - 1) as u8;
                let planes = [(0, cut), (cut, bits as u8)];
                let planes = planes.map(|slice| word(tape, slice, bits, shape));
                (Layout::Sequence(planes.to_vec()), None)
            }
            2 => {
                let digits = digits(tape, shape);
                let inside = tape.pick(digits.len());
                let body = Layout::elements(CODE, digits[..inside].to_vec());
                (Layout::For { digits: digits[inside..].to_vec(), body: Box::new(body) }, None)
            }
            3 => {
                let mut digits = digits(tape, shape);
                let outside = digits.split_off(digits.len() - 1);
                let body = Box::new(word_of(tape, whole, bits, digits));
                (Layout::For { digits: outside, body }, None)
            }
            4 => (words_of_steps(tape, bits, shape, 1).remove(0), None),
            5 => (Layout::Sequence(words_of_steps(tape, bits, shape, 2)), None),
            _ => (word(tape, whole, bits, shape), None),
        };
        Self::new(layout, bits, scale, shape)
    }

    pub(crate) fn granularity(&self, component: Component) -> Option<Granularity> {
        granularity(component, self.bits, self.scale)
    }

    pub(crate) fn components(&self) -> Vec<Component> {
        [CODE, SCALE].into_iter().filter(|c| self.layout.holds(*c)).collect()
    }

    /// Another layout of the same components and shape.
    pub(crate) fn bind(&self, layout: &Layout) -> BoundLayout {
        layout.bind(self.bound.shape(), &|component| self.granularity(component)).unwrap()
    }

    /// The first index of each element of a component.
    pub(crate) fn elements(&self, component: Component) -> Vec<Index> {
        let Some(granularity) = self.granularity(component) else { return Vec::new() };
        let Shape { experts, n, k } = self.bound.shape();
        let step = |group_size| match group_size {
            GroupSize::Each(count) => count as usize,
            GroupSize::All => usize::MAX,
        };
        let columns = || (0..k).step_by(step(granularity.cols));
        let rows = || (0..n).step_by(step(granularity.rows));
        let row = |e| rows().flat_map(move |n| columns().map(move |k| Index { e, n, k }));
        (0..experts).flat_map(row).collect()
    }

    /// A stored tensor of random bits.
    pub(crate) fn random(&self, tape: &mut Tape<'_>) -> Vec<u8> {
        let mut state = tape.pick(256) as u64 + 1;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as u8
        };
        (0..self.bound.bytes()).map(|_| byte()).collect()
    }
}

fn granularity(component: Component, bits: u32, scale: Option<Granularity>) -> Option<Granularity> {
    match component {
        CODE => Some(Granularity { bits, rows: GroupSize::Each(1), cols: GroupSize::Each(1) }),
        SCALE => scale,
        _ => None,
    }
}

/// `component` from `source`, stored as `from` says, bit by bit to where `to` says.
pub(crate) fn copy(
    from: &Case,
    component: Component,
    source: &[u8],
    to: &BoundLayout,
    recode: &Recode,
) -> Vec<u8> {
    let mut out = vec![0; to.bytes() as usize];
    let bits = from.granularity(component).map_or(0, |granularity| granularity.bits);
    let recoded = |index: Index| {
        let code = (0..bits).fold(0u64, |code, bit| {
            let address = from.bound.address(Element { component, index, bit });
            code | address.map_or(0, |at| read_bits(source, at, 1)) << bit
        });
        match recode {
            Recode::Keep => code,
            Recode::Xor(mask) => code ^ u64::from(*mask),
            Recode::Table(table) => u64::from(table[code as usize]),
        }
    };
    for index in from.elements(component) {
        let code = recoded(index);
        for bit in 0..bits {
            if let Some(at) = to.address(Element { component, index, bit }) {
                write_bits(&mut out, at, 1, code >> bit & 1);
            }
        }
    }
    for address in 0..to.bits() {
        if let BitContent::Sign(of, index) = to.content(address)
            && of == component
        {
            write_bits(&mut out, address, 1, recoded(index) >> (bits - 1) & 1);
        }
    }
    out
}

/// A word of a slice of the code, with every digit of the shape.
pub(crate) fn word(tape: &mut Tape<'_>, slice: (u8, u8), bits: u32, shape: Shape) -> Layout {
    let digits = digits(tape, shape);
    word_of(tape, slice, bits, digits)
}

/// A run of the first digits, as many as fill their words, placed by the others.
fn word_of(tape: &mut Tape<'_>, slice: (u8, u8), bits: u32, mut inner: Vec<Digit>) -> Layout {
    let width = tape.of(&[8u8, 32, 16, 64]);
    let msf = tape.chance(3);
    let range = if slice == (0, bits as u8) { None } else { Some(slice) };
    let mut fields = vec![Field::Bits { component: CODE, range, step: None }];
    if tape.chance(4) {
        let fill = tape.of(&[Fill::Zero, Fill::One, if msf { Fill::One } else { Fill::Sign }]);
        fields.push(Field::Pad { bits: 1 + tape.pick(9) as u8, fill });
    }
    if tape.chance(6) {
        fields.insert(0, Field::Pad { bits: 1 + tape.pick(3) as u8, fill: Fill::One });
    }
    let step: u32 = fields.iter().map(|field| taken(field, bits)).sum();
    let sizes = |inner: &[Digit]| -> Option<u32> { inner.iter().map(size_of).product() };
    let spare = |inner: &[Digit]| -> Option<u32> {
        let run = step * sizes(inner)?;
        Some(run.next_multiple_of(u32::from(width)) - run)
    };
    let mut outer = inner.split_off(tape.pick(inner.len() + 1));
    while !inner.is_empty() && spare(&inner).is_some_and(|spare| spare >= step) {
        outer.insert(0, inner.remove(inner.len() - 1));
    }
    if let Some(rest) = spare(&inner).filter(|rest| *rest >= step) {
        fields.push(Field::Pad { bits: rest as u8, fill: tape.of(&[Fill::Zero, Fill::One]) });
    }
    let one_word = sizes(&inner).is_some_and(|size| step * size <= u32::from(width));
    let mut order: Vec<OrderDigit> = outer.into_iter().map(OrderDigit::Digit).collect();
    if !one_word || tape.chance(8) {
        order.insert(tape.pick(order.len() + 1), OrderDigit::Word);
    }
    Layout::Word { word: WordType { bits: width, signed: false, msf }, fields, inner, order }
}

/// Words with the same steps, which hold each bit of each step once between them: slices of the
/// codes in any order, and pads.
pub(crate) fn words_of_steps(
    tape: &mut Tape<'_>,
    bits: u32,
    shape: Shape,
    words: usize,
) -> Vec<Layout> {
    // A whole axis cannot count steps, and is no digit among others.
    let (mut inner, mut outer) = (Vec::new(), Vec::new());
    let mut steps = 1;
    for digit in digits(tape, shape) {
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
            let high = low + 1 + tape.pick(usize::from(bits as u8 - low)) as u8;
            let whole = low == 0 && u32::from(high) == bits && tape.chance(2);
            let range = if whole { None } else { Some((low, high)) };
            slices.push(Field::Bits { component: CODE, range, step: Some(step) });
            low = high;
        }
    }
    shuffle(tape, &mut slices);
    let mut parts = vec![Vec::new(); words];
    for (position, slice) in slices.into_iter().enumerate() {
        // Each word holds some of it, if there is enough.
        let part = if position < words { position } else { tape.pick(words) };
        parts[part].push(slice);
    }
    let parts = parts.into_iter().filter(|fields| !fields.is_empty());
    parts.map(|fields| word_of_steps(tape, bits, fields, &inner, &outer)).collect()
}

fn word_of_steps(
    tape: &mut Tape<'_>,
    bits: u32,
    mut fields: Vec<Field>,
    inner: &[Digit],
    outer: &[Digit],
) -> Layout {
    while tape.chance(3) {
        let pad =
            Field::Pad { bits: 1 + tape.pick(9) as u8, fill: tape.of(&[Fill::One, Fill::Zero]) };
        fields.insert(tape.pick(fields.len() + 1), pad);
    }
    let run: u32 = fields.iter().map(|field| taken(field, bits)).sum();
    // At most three words, where there are words so wide.
    let width = tape.of(&[8u8, 32, 16, 64]).max(run.div_ceil(3).next_power_of_two().min(64) as u8);
    let rest = run.next_multiple_of(u32::from(width)) - run;
    if rest >= run {
        fields.push(Field::Pad { bits: rest as u8, fill: Fill::One });
    }
    let mut order: Vec<OrderDigit> = outer.iter().cloned().map(OrderDigit::Digit).collect();
    shuffle(tape, &mut order);
    if run > u32::from(width) || tape.chance(8) {
        order.insert(tape.pick(order.len() + 1), OrderDigit::Word);
    }
    let word = WordType { bits: width, signed: false, msf: tape.chance(3) };
    Layout::Word { word, fields, inner: inner.to_vec(), order }
}

/// Bits of a run that a field takes.
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

/// A scale and the codes of its group, again and again.
fn record(tape: &mut Tape<'_>, bits: u32) -> (Layout, Option<Granularity>) {
    let mut inside = Vec::new();
    let mut group = |tape: &mut Tape<'_>, axis, sizes: &[u32]| {
        let mut stride = 1;
        for _ in 0..tape.pick(3) {
            let size = tape.of(sizes);
            inside.push(Digit::new(axis, DigitRange::Sized { stride, size }));
            stride *= size;
        }
        stride
    };
    let cols = group(tape, Axis::K, &[4, 8, 2, 3]);
    let rows = group(tape, Axis::N, &[2, 1, 3]);
    shuffle(tape, &mut inside);
    let codes = word_of(tape, (0, bits as u8), bits, inside);
    let scale = tape.of(&[8, 16]);
    let field = Layout::Field(Field::all(SCALE));
    let mut parts = vec![field, codes];
    if tape.chance(2) {
        parts.reverse();
    }
    if tape.chance(3) {
        parts.push(Layout::Field(Field::Pad { bits: 8, fill: Fill::One }));
    }
    let mut outer = [Axis::G, Axis::N, Axis::E].map(|axis| Digit::new(axis, DigitRange::Open));
    shuffle(tape, &mut outer);
    let layout = Layout::For { digits: outer.to_vec(), body: Box::new(Layout::Sequence(parts)) };
    let granularity =
        Granularity { bits: scale, rows: GroupSize::Each(rows), cols: GroupSize::Each(cols) };
    (layout, Some(granularity))
}

/// Every digit of every axis, in a random order, some counting down, some swizzled.
fn digits(tape: &mut Tape<'_>, shape: Shape) -> Vec<Digit> {
    let mut digits = chain(tape, Axis::K, shape.k);
    digits.extend(chain(tape, Axis::N, shape.n));
    digits.push(Digit::new(Axis::E, DigitRange::Open));
    shuffle(tape, &mut digits);
    if tape.chance(4) {
        swizzle(tape, &mut digits);
    }
    digits
}

fn chain(tape: &mut Tape<'_>, axis: Axis, extent: u64) -> Vec<Digit> {
    let mut parts = Vec::new();
    let mut stride = 1;
    while parts.len() < 3 && u64::from(stride) < extent && !tape.chance(3) {
        let size = tape.of(&[2, 4, 8, 3, 5, 32]);
        if u64::from(stride * size) > 2 * extent {
            break;
        }
        parts.push(DigitRange::Sized { stride, size });
        stride *= size;
    }
    match tape.pick(5) {
        0 if parts.is_empty() => parts.push(DigitRange::Whole),
        1 => parts.extend([DigitRange::Open, DigitRange::Top { size: 2 + tape.pick(2) as u32 }]),
        2 => {
            let size = extent.div_ceil(u64::from(stride)) as u32 + tape.pick(2) as u32;
            parts.push(DigitRange::Sized { stride, size });
        }
        _ => parts.push(DigitRange::Open),
    }
    let digit = |part| Digit { down: tape.chance(5), ..Digit::new(axis, part) };
    parts.into_iter().map(digit).collect()
}

/// XORs digits of one axis with digits of the other.
fn swizzle(tape: &mut Tape<'_>, digits: &mut [Digit]) {
    let (axis, other) = tape.of(&[(Axis::K, Axis::N), (Axis::N, Axis::K)]);
    for digit in digits.iter_mut().filter(|digit| digit.axis == axis) {
        if let DigitRange::Sized { size, .. } = digit.part
            && size.is_power_of_two()
        {
            let part = DigitRange::Sized { stride: tape.of(&[1, 2, 8]), size };
            digit.swizzle = Some(Box::new(Digit::new(other, part)));
        }
    }
}

fn shuffle<T>(tape: &mut Tape<'_>, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, tape.pick(last + 1));
    }
}
