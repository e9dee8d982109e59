//! Binding: from a symbolic layout and a shape to digits with numbers.
//!
//! The index space of each component is (e, n, k) divided by its [`Granularity`]: a scale per 1 x 32 has
//! one element per row and per 32 columns, so its chain of k digits starts at stride 32. The digits
//! on the path from the root to a leaf, sorted by stride, must form a chain for each axis: the
//! first stride is the group size, each next stride is the product of the sizes below it, and the
//! chain covers the axis.

use std::cell::Cell;

use super::bound::{BoundDigit, BoundLayout, Node, NodePlace};
use super::chain::{Resolved, resolve_digits, swizzle_digit};
use super::steps::{outside_of_words, steps};
use super::{Axis, Component, Digit, DigitRange, Field, Fill, Layout, OrderDigit, Shape, WordType};

/// How many consecutive indices of an axis share one element of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupSize {
    /// One element per this many indices (the last group may be partial).
    Each(u32),
    /// One element for the whole axis.
    All,
}

impl GroupSize {
    /// The number of elements along an axis of the given extent.
    pub fn elements(self, extent: u64) -> u64 {
        match self {
            Self::Each(count) => extent.div_ceil(u64::from(count)),
            Self::All => 1,
        }
    }

    /// The group of an index.
    pub fn group(self, index: u64) -> u64 {
        match self {
            Self::Each(count) => index / u64::from(count),
            Self::All => 0,
        }
    }
}

/// The width of a component and the group that shares one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// Bits of one element.
    pub bits: u32,
    /// Rows (n) per element.
    pub rows: GroupSize,
    /// Columns (k) per element.
    pub cols: GroupSize,
}

impl Granularity {
    /// Elements along n and along k.
    pub fn elements(self, shape: Shape) -> (u64, u64) {
        (self.rows.elements(shape.n), self.cols.elements(shape.k))
    }
}

/// Why a layout does not fit a scheme or a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct BindError {
    /// What is wrong, in terms of the layout's digits: for the layout's author. A program is told where
    /// the mistake is, and whose ([`Self::of_shape`]).
    pub message: String,
    /// A suggestion.
    pub help: Option<String>,
    /// The wrong digit: its number in the order of the text.
    pub digit: Option<usize>,
    /// The wrong field: its number in the order of the text.
    pub field: Option<usize>,
    /// The wrong node (a record, a word, a loop, a field): its number in the order of the text,
    /// parents before children.
    pub part: Option<u32>,
    /// Whether the shape is wrong, and not the layout.
    pub of_shape: bool,
}

impl BindError {
    pub(super) fn new(
        digit: Option<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        let help = help.into();
        let help = (!help.is_empty()).then_some(help);
        Self { message: message.into(), help, digit, field: None, part: None, of_shape: false }
    }

    fn shape(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { message, help: None, digit: None, field: None, part: None, of_shape: true }
    }
}

/// The largest stored tensor in bits (2 PiB): all address arithmetic fits `u64`.
const MOST_BITS: u64 = 1 << 54;

impl Layout {
    /// Computes the layout's digits for one shape.
    ///
    /// `granularity` gives the width and the group of each component of the scheme.
    ///
    /// # Errors
    /// A chain with a gap, an overlap or no end; a run that needs `w`, or that has room for another
    /// step; digits of a shared loop that mean different strides for two components; a word or
    /// record that is not whole bytes; steps beyond the run; a shape that the layout cannot store.
    pub fn bind(
        &self,
        shape: Shape,
        granularity: &dyn Fn(Component) -> Option<Granularity>,
    ) -> Result<BoundLayout, BindError> {
        if shape.elements().is_none_or(|elements| elements > MOST_BITS) {
            return Err(BindError::shape(format!(
                "a shape of {} x {} x {} is too large to address",
                shape.experts, shape.n, shape.k
            )));
        }
        if shape.experts == 0 || shape.n == 0 || shape.k == 0 {
            return Err(BindError::shape(format!(
                "a shape of {} x {} x {} is empty",
                shape.experts, shape.n, shape.k
            )));
        }
        let mut binder =
            Binder { shape, granularity, resolved: Vec::new(), fields: 0, parts: Cell::new(0) };
        binder.resolve(self, &mut Vec::new())?;
        let mut next = 0;
        let (root, bits) = binder.build(self, &mut next)?;
        Ok(BoundLayout::new(shape, root, bits, self.dims(&binder.resolved, bits)))
    }
}

/// The field before a pad in a word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Signed {
    msf: bool,
    bits: bool,
}

struct Binder<'a> {
    shape: Shape,
    granularity: &'a dyn Fn(Component) -> Option<Granularity>,
    resolved: Vec<Option<Resolved>>,
    /// Number of fields resolved so far.
    fields: usize,
    /// Number of nodes built or begun so far.
    parts: Cell<u32>,
}

impl<'a> Binder<'a> {
    /// Pass 1: resolves the digits on the path of every leaf, and compares shared digits.
    fn resolve<'l>(
        &mut self,
        layout: &'l Layout,
        path: &mut Vec<(usize, &'l Digit)>,
    ) -> Result<(), BindError> {
        match layout {
            Layout::Field(field) => {
                outside_of_words(*field)
                    .map_err(|error| BindError { field: Some(self.fields), ..error })?;
                self.resolve_field(*field, path)
            }
            Layout::Sequence(parts) => parts.iter().try_for_each(|part| self.resolve(part, path)),
            Layout::For { digits, body } => {
                let depth = path.len();
                for digit in digits {
                    path.push((self.new_id(), digit));
                }
                self.resolve(body, path)?;
                path.truncate(depth);
                Ok(())
            }
            Layout::Word { fields, inner, order, .. } => {
                let depth = path.len();
                let placed = order.iter().filter_map(|place| match place {
                    OrderDigit::Digit(digit) => Some(digit),
                    OrderDigit::Word => None,
                });
                let (first_digit, first_field) = (self.resolved.len(), self.fields);
                for digit in inner.iter().chain(placed) {
                    path.push((self.new_id(), digit));
                }
                for field in fields {
                    self.resolve_field(*field, path)?;
                }
                path.truncate(depth);
                let within = |error: BindError| BindError {
                    digit: error.digit.map(|digit| first_digit + digit),
                    field: error.field.map(|field| first_field + field),
                    ..error
                };
                steps(fields, inner).map(|_| ()).map_err(within)
            }
        }
    }

    fn new_id(&mut self) -> usize {
        self.resolved.push(None);
        self.resolved.len() - 1
    }

    fn resolve_field(&mut self, field: Field, path: &[(usize, &Digit)]) -> Result<(), BindError> {
        let position = self.fields;
        self.fields += 1;
        let Field::Bits { component, range, .. } = field else { return Ok(()) };
        let here = |error: BindError| BindError { field: Some(position), ..error };
        let granularity = self.grains_of(component).map_err(here)?;
        slice(component, range, granularity.bits).map_err(here)?;
        for axis in [Axis::E, Axis::N, Axis::K] {
            self.resolve_chain(component, granularity, axis, path)?;
        }
        self.swizzles(path)
    }

    /// A digit may be XORed only with a plain one; otherwise two indices could have one address.
    fn swizzles(&self, path: &[(usize, &Digit)]) -> Result<(), BindError> {
        let swizzled = || path.iter().filter(|(_, digit)| digit.swizzle.is_some());
        for (id, digit) in swizzled() {
            let Some(other) = digit.swizzle.as_deref() else { continue };
            let DigitRange::Sized { stride, size } = other.part else { continue };
            let (low, high) = (u64::from(stride), u64::from(stride) * u64::from(size));
            let overlaps = |digit: &Resolved| {
                let top = digit.stride.saturating_mul(digit.size);
                digit.axis == other.axis && digit.size > 1 && low < top && digit.stride < high
            };
            if swizzled().filter_map(|(id, _)| self.resolved[*id].as_ref()).any(overlaps) {
                return Err(BindError::new(
                    Some(*id),
                    format!("`{other}` is itself XORed"),
                    "XOR with a digit that is also written without XOR",
                ));
            }
        }
        Ok(())
    }

    fn grains_of(&self, component: Component) -> Result<Granularity, BindError> {
        (self.granularity)(component).ok_or_else(|| {
            BindError::new(
                None,
                format!("the layout places `{component}`, which the scheme does not have"),
                "declare it in a clause of its own, or remove it from the layout",
            )
        })
    }

    fn resolve_chain(
        &mut self,
        component: Component,
        granularity: Granularity,
        axis: Axis,
        path: &[(usize, &Digit)],
    ) -> Result<(), BindError> {
        let (group_size, extent) = match axis {
            Axis::E => (GroupSize::Each(1), self.shape.experts),
            Axis::N => (granularity.rows, self.shape.n),
            _ => (granularity.cols, self.shape.k),
        };
        let on_axis =
            |digit: &Digit| digit.axis == axis || axis == Axis::K && digit.axis == Axis::G;
        let chain: Vec<(usize, &Digit)> =
            path.iter().copied().filter(|(_, digit)| on_axis(digit)).collect();
        let numbers = resolve_digits(component, axis, group_size, extent, &chain)?;
        for ((id, _), number) in chain.iter().zip(numbers) {
            match self.resolved[*id] {
                Some(other) if other != number => {
                    return Err(BindError::new(
                        Some(*id),
                        format!(
                            "this digit is shared, but steps by {} for one component and by {} \
                             for `{component}`",
                            other.stride, number.stride
                        ),
                        "give the components of one record the same group",
                    ));
                }
                _ => self.resolved[*id] = Some(number),
            }
        }
        Ok(())
    }

    /// Pass 2: sizes and bit strides, from the leaves to the root.
    fn build(&self, layout: &Layout, next: &mut usize) -> Result<(Node, u64), BindError> {
        let part = self.parts.get();
        self.parts.set(part + 1);
        // The innermost node that reports an error is the wrong one.
        let here = |error: BindError| BindError { part: error.part.or(Some(part)), ..error };
        self.build_part(layout, next).map_err(here)
    }

    fn build_part(&self, layout: &Layout, next: &mut usize) -> Result<(Node, u64), BindError> {
        match layout {
            Layout::Field(field) => self.build_field(*field, None),
            Layout::Sequence(parts) => {
                let mut offset = 0;
                let mut nodes = Vec::with_capacity(parts.len());
                for part in parts {
                    let number = self.parts.get();
                    let (node, bits) = self.build(part, next)?;
                    nodes.push((offset, node));
                    offset = add(offset, bits)?;
                    if bits % 8 != 0 {
                        let error = BindError::new(
                            None,
                            format!("this part of a record takes {bits} bits"),
                            "fill every part of a record to whole bytes, with `pad` or words",
                        );
                        return Err(BindError { part: Some(number), ..error });
                    }
                }
                Ok((Node::Sequence(nodes), offset))
            }
            Layout::For { digits, body } => {
                let first = *next;
                *next += digits.len();
                let (mut node, mut bits) = self.build(body, next)?;
                for (position, digit) in digits.iter().enumerate() {
                    let digit = self.digit(first + position, digit)?;
                    let size = digit.size;
                    node = Node::For { digit, stride: bits, body: Box::new(node) };
                    bits = mul(bits, size)?;
                }
                Ok((node, bits))
            }
            Layout::Word { word, fields, inner, order } => {
                self.build_word(*word, fields, inner, order, next)
            }
        }
    }

    fn build_field(&self, field: Field, word: Option<Signed>) -> Result<(Node, u64), BindError> {
        match field {
            Field::Pad { fill: Fill::Sign, .. }
                if word != Some(Signed { msf: false, bits: true }) =>
            {
                Err(BindError::new(
                    None,
                    "a pad of sign bits follows the bits of a code in a word",
                    "write it after the code, `i8 [code, pad 4 = sign | k, n]`",
                ))
            }
            Field::Pad { bits, fill } => Ok((Node::Pad { fill }, u64::from(bits))),
            Field::Bits { component, range, .. } => {
                let granularity = self.grains_of(component)?;
                let (low, high) = slice(component, range, granularity.bits)?;
                let node = Node::Bits { component, granularity, low, high };
                Ok((node, u64::from(high - low)))
            }
        }
    }

    fn build_word(
        &self,
        word: WordType,
        fields: &[Field],
        inner: &[Digit],
        order: &[OrderDigit],
        next: &mut usize,
    ) -> Result<(Node, u64), BindError> {
        let mut digits = Vec::with_capacity(inner.len());
        for digit in inner {
            digits.push(self.digit(*next, digit)?);
            *next += 1;
        }
        let mut offset = 0;
        let mut nodes = Vec::with_capacity(fields.len());
        let mut after_bits = false;
        for field in fields {
            let before = Signed { msf: word.msf, bits: after_bits };
            let (node, bits) = self.build_field(*field, Some(before))?;
            after_bits = matches!(field, Field::Bits { .. });
            nodes.push((offset, bits, at_its_step(*field, node, &digits)));
            offset = add(offset, bits)?;
        }
        let step = offset;
        let mut run = step;
        let mut repeated = Vec::with_capacity(digits.len());
        if steps(fields, inner)?.is_none() {
            for digit in digits {
                repeated.push((run, digit));
                run = mul(run, digit.size)?;
            }
        }
        let width = u64::from(word.bits);
        let words = run.div_ceil(width).max(1);
        let whole_axis = inner.iter().any(|digit| !matches!(digit.part, DigitRange::Sized { .. }));
        let spare = words * width - run;
        if step > 0 && spare >= step && !whole_axis {
            return Err(BindError::new(
                None,
                format!("the run takes {run} bits and leaves {spare} of {} unused", words * width),
                format!("fill the word, or add `pad {spare}`"),
            ));
        }
        if words > 1 && !order.contains(&OrderDigit::Word) {
            return Err(BindError::new(
                None,
                format!("a run of {run} bits fills {words} words of {width}"),
                "order the words with the word digit `w` after the `|`",
            ));
        }
        let mut stride = width;
        let mut places = Vec::with_capacity(order.len());
        for place in order {
            match place {
                OrderDigit::Word => {
                    places.push((stride, NodePlace::Word));
                    stride = mul(stride, words)?;
                }
                OrderDigit::Digit(digit) => {
                    let digit = self.digit(*next, digit)?;
                    *next += 1;
                    let size = digit.size;
                    places.push((stride, NodePlace::Digit(digit)));
                    stride = mul(stride, size)?;
                }
            }
        }
        let node =
            Node::Word { width, msf: word.msf, run, words, fields: nodes, inner: repeated, places };
        Ok((node, stride))
    }

    fn digit(&self, id: usize, digit: &Digit) -> Result<BoundDigit, BindError> {
        let Some(Resolved { axis, stride, size }) = self.resolved[id] else {
            return Err(BindError::new(
                Some(id),
                format!("the digit `{digit}` has no component to repeat"),
                "name the component that it repeats, for instance `code`",
            ));
        };
        let swizzle = match &digit.swizzle {
            None => None,
            Some(other) => Some(swizzle_digit(id, size, other)?),
        };
        Ok(BoundDigit { axis, stride, size, down: digit.down, swizzle })
    }
}

/// Restricts a field that belongs to one step to the digit values of that step.
fn at_its_step(field: Field, node: Node, digits: &[BoundDigit]) -> Node {
    let Field::Bits { step: Some(step), .. } = field else { return node };
    let mut rest = u64::from(step);
    let mut held = Vec::with_capacity(digits.len());
    for digit in digits {
        held.push((*digit, rest % digit.size));
        rest /= digit.size;
    }
    Node::Step { digits: held, body: Box::new(node) }
}

/// The first bit of a field, and one past its last.
fn slice(
    component: Component,
    range: Option<(u8, u8)>,
    bits: u32,
) -> Result<(u32, u32), BindError> {
    let Some((low, high)) = range else { return Ok((0, bits)) };
    let (low, high) = (u32::from(low), u32::from(high));
    if low < high && high <= bits {
        return Ok((low, high));
    }
    Err(BindError::new(
        None,
        format!("`{component}[{low}..{high}]` is not a slice of its {bits} bits"),
        format!("a slice is low..high with low < high <= {bits}"),
    ))
}

fn mul(a: u64, b: u64) -> Result<u64, BindError> {
    a.checked_mul(b).filter(|bits| *bits <= MOST_BITS).ok_or_else(too_large)
}

fn add(a: u64, b: u64) -> Result<u64, BindError> {
    a.checked_add(b).filter(|bits| *bits <= MOST_BITS).ok_or_else(too_large)
}

fn too_large() -> BindError {
    BindError::shape("the stored tensor is too large to address".to_owned())
}
