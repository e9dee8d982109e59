//! Binding: a symbolic layout and a shape give digits with numbers.
//!
//! Each component's index space is (e, n, k) seen through its [`Grains`]: a scale per 1 x 32
//! has one element per row and per 32 columns, so its chain of k digits starts at stride 32.
//! The digits on the path from the root to a leaf, sorted by stride, must form a chain for
//! each axis: start at the grain, each stride the product of what lies below, cover the axis.

use super::bound::{Bound, BoundDigit, Node, NodePlace};
use super::{Axis, Component, Digit, Field, Fill, Layout, Part, Place, Shape, WordType};

/// How many consecutive indices of an axis share one element of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grain {
    /// One element per this many indices (the last group may be ragged).
    Each(u32),
    /// One element for the whole axis.
    All,
}

impl Grain {
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

/// Width and grains of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grains {
    /// Bits of one element.
    pub bits: u32,
    /// Rows (n) per element.
    pub rows: Grain,
    /// Columns (k) per element.
    pub cols: Grain,
}

impl Grains {
    /// Elements along n and along k.
    pub fn elements(self, shape: Shape) -> (u64, u64) {
        (self.rows.elements(shape.n), self.cols.elements(shape.k))
    }
}

/// Why a layout does not fit a scheme or a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BindError {
    /// What is wrong, in units of the layout's own digits.
    pub message: String,
    /// What would be right.
    pub help: Option<String>,
    /// The digit at fault: its number in the order of the text.
    pub digit: Option<usize>,
    /// The field at fault: its number in the order of the text.
    pub field: Option<usize>,
    /// Set if the fault lies in the shape and not in the layout.
    pub of_shape: bool,
}

impl BindError {
    fn new(digit: Option<usize>, message: impl Into<String>, help: impl Into<String>) -> Self {
        let help = help.into();
        let help = (!help.is_empty()).then_some(help);
        Self { message: message.into(), help, digit, field: None, of_shape: false }
    }

    fn shape(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None, digit: None, field: None, of_shape: true }
    }
}

/// No store is larger than this many bits (2 PiB): all address arithmetic stays in `u64`.
const MOST_BITS: u64 = 1 << 54;

impl Layout {
    /// Gives the layout's digits numbers for one shape.
    ///
    /// `grains` says which components the scheme has, and their widths and grains.
    ///
    /// # Errors
    /// A chain that has a gap, an overlap or no end; a run that needs `w` or leaves room for
    /// another step; digits of a shared loop that mean different strides to two components; a
    /// word or record that is not whole bytes; a shape that the layout cannot hold.
    pub fn bind(
        &self,
        shape: Shape,
        grains: &dyn Fn(Component) -> Option<Grains>,
    ) -> Result<Bound, BindError> {
        if shape.elements().is_none_or(|elements| elements > MOST_BITS) {
            return Err(BindError::shape(format!(
                "a shape of {} x {} x {} is beyond what can be addressed",
                shape.experts, shape.n, shape.k
            )));
        }
        if shape.experts == 0 || shape.n == 0 || shape.k == 0 {
            return Err(BindError::shape(format!(
                "a shape of {} x {} x {} holds nothing",
                shape.experts, shape.n, shape.k
            )));
        }
        let mut binder = Binder { shape, grains, resolved: Vec::new(), fields: 0 };
        binder.resolve(self, &mut Vec::new())?;
        let mut next = 0;
        let (root, bits) = binder.build(self, &mut next)?;
        Ok(Bound::new(shape, root, bits, self.dims(&binder.resolved, bits)))
    }

    /// Sizes of the stored tensor's dimensions, slowest first: one a digit; `w` joins the
    /// neighbouring digit of the axis that its run is of.
    fn dims(&self, resolved: &[Option<Resolved>], bits: u64) -> Vec<u64> {
        let size = |id: usize| resolved[id].map_or(1, |digit| digit.size);
        let mut dims: Vec<u64> = match self {
            Self::For { digits, body } => {
                let mut dims: Vec<u64> = (0..digits.len()).map(size).collect();
                let total: u64 = dims.iter().product();
                let of_elements = matches!(**body, Self::Field(Field::Bits { range: None, .. }));
                if !of_elements && total > 0 {
                    dims.insert(0, bits / 8 / total);
                }
                dims
            }
            Self::Word { word, inner, order, .. } => {
                let mut id = inner.len();
                let mut dims: Vec<(Option<Axis>, u64)> = Vec::new();
                let mut placed = 1;
                for place in order {
                    if let Place::Digit(digit) = place {
                        dims.push((Some(digit.axis), size(id)));
                        placed *= size(id);
                        id += 1;
                    } else {
                        dims.push((None, 0));
                    }
                }
                let words = bits / u64::from(word.bits);
                join_word_dim(dims, words / placed.max(1), inner)
            }
            _ => vec![bits / 8],
        };
        dims.reverse();
        dims
    }
}

fn join_word_dim(dims: Vec<(Option<Axis>, u64)>, words: u64, inner: &[Digit]) -> Vec<u64> {
    let axis = inner.first().map(|digit| digit.axis);
    let Some(at) = dims.iter().position(|(axis, _)| axis.is_none()) else {
        return dims.into_iter().map(|(_, size)| size).collect();
    };
    let mut sizes: Vec<u64> = dims.iter().map(|(_, size)| *size).collect();
    let same = |other: Option<&(Option<Axis>, u64)>| other.is_some_and(|(a, _)| *a == axis);
    if same(dims.get(at + 1)) {
        sizes[at + 1] *= words;
        sizes.remove(at);
    } else if at > 0 && same(dims.get(at - 1)) {
        sizes[at - 1] *= words;
        sizes.remove(at);
    } else {
        sizes[at] = words;
    }
    sizes
}

/// A digit with numbers, in units of e, n and k (never of groups).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resolved {
    axis: Axis,
    stride: u64,
    size: u64,
}

/// What stands before a pad in a word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Signed {
    msf: bool,
    bits: bool,
}

struct Binder<'a> {
    shape: Shape,
    grains: &'a dyn Fn(Component) -> Option<Grains>,
    resolved: Vec<Option<Resolved>>,
    /// Fields resolved so far.
    fields: usize,
}

impl<'a> Binder<'a> {
    /// Pass 1: resolves the digits on the path of every leaf, and compares shared ones.
    fn resolve<'l>(
        &mut self,
        layout: &'l Layout,
        path: &mut Vec<(usize, &'l Digit)>,
    ) -> Result<(), BindError> {
        match layout {
            Layout::Field(field) => self.resolve_field(*field, path),
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
                    Place::Digit(digit) => Some(digit),
                    Place::Word => None,
                });
                for digit in inner.iter().chain(placed) {
                    path.push((self.new_id(), digit));
                }
                for field in fields {
                    self.resolve_field(*field, path)?;
                }
                path.truncate(depth);
                Ok(())
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
        let Field::Bits { component, range } = field else { return Ok(()) };
        let here = |error: BindError| BindError { field: Some(position), ..error };
        let grains = self.grains_of(component).map_err(here)?;
        slice(component, range, grains.bits).map_err(here)?;
        for axis in [Axis::E, Axis::N, Axis::K] {
            self.resolve_chain(component, grains, axis, path)?;
        }
        self.swizzles(path)
    }

    /// A digit is XORed with a plain one: else two indices could have one place.
    fn swizzles(&self, path: &[(usize, &Digit)]) -> Result<(), BindError> {
        let swizzled = || path.iter().filter(|(_, digit)| digit.swizzle.is_some());
        for (id, digit) in swizzled() {
            let Some(other) = digit.swizzle.as_deref() else { continue };
            let Part::Sized { stride, size } = other.part else { continue };
            let (low, high) = (u64::from(stride), u64::from(stride) * u64::from(size));
            let overlaps = |digit: &Resolved| {
                let top = digit.stride.saturating_mul(digit.size);
                digit.axis == other.axis && digit.size > 1 && low < top && digit.stride < high
            };
            if swizzled().filter_map(|(id, _)| self.resolved[*id].as_ref()).any(overlaps) {
                return Err(BindError::new(
                    Some(*id),
                    format!("`{other}` is not plain: it is XORed itself"),
                    "XOR with a digit that stands alone elsewhere in the layout",
                ));
            }
        }
        Ok(())
    }

    fn grains_of(&self, component: Component) -> Result<Grains, BindError> {
        (self.grains)(component).ok_or_else(|| {
            BindError::new(
                None,
                format!("the layout places `{component}`, which the scheme does not have"),
                "declare it in a clause of its own, or leave it out of the layout",
            )
        })
    }

    fn resolve_chain(
        &mut self,
        component: Component,
        grains: Grains,
        axis: Axis,
        path: &[(usize, &Digit)],
    ) -> Result<(), BindError> {
        let (grain, extent) = match axis {
            Axis::E => (Grain::Each(1), self.shape.experts),
            Axis::N => (grains.rows, self.shape.n),
            _ => (grains.cols, self.shape.k),
        };
        let on_axis =
            |digit: &Digit| digit.axis == axis || axis == Axis::K && digit.axis == Axis::G;
        let chain: Vec<(usize, &Digit)> =
            path.iter().copied().filter(|(_, digit)| on_axis(digit)).collect();
        let numbers = resolve_digits(component, axis, grain, extent, &chain)?;
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

    /// Pass 2: sizes and bit strides, inside out.
    fn build(&self, layout: &Layout, next: &mut usize) -> Result<(Node, u64), BindError> {
        match layout {
            Layout::Field(field) => self.build_field(*field, None),
            Layout::Sequence(parts) => {
                let mut offset = 0;
                let mut nodes = Vec::with_capacity(parts.len());
                for part in parts {
                    let (node, bits) = self.build(part, next)?;
                    nodes.push((offset, node));
                    offset = add(offset, bits)?;
                    if bits % 8 != 0 {
                        return Err(BindError::new(
                            None,
                            format!("a part of this record takes {bits} bits"),
                            "make every part of a record whole bytes, with `pad` or words",
                        ));
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
                    "write it behind the code, `i8 [code, pad 4 = sign | k, n]`",
                ))
            }
            Field::Pad { bits, fill } => Ok((Node::Pad { fill }, u64::from(bits))),
            Field::Bits { component, range } => {
                let grains = self.grains_of(component)?;
                let (low, high) = slice(component, range, grains.bits)?;
                let node = Node::Bits { component, grains, low, high };
                Ok((node, u64::from(high - low)))
            }
        }
    }

    fn build_word(
        &self,
        word: WordType,
        fields: &[Field],
        inner: &[Digit],
        order: &[Place],
        next: &mut usize,
    ) -> Result<(Node, u64), BindError> {
        let mut offset = 0;
        let mut nodes = Vec::with_capacity(fields.len());
        let mut after_bits = false;
        for field in fields {
            let before = Signed { msf: word.msf, bits: after_bits };
            let (node, bits) = self.build_field(*field, Some(before))?;
            after_bits = matches!(field, Field::Bits { .. });
            nodes.push((offset, bits, node));
            offset = add(offset, bits)?;
        }
        let step = offset;
        let mut run = step;
        let mut inner_digits = Vec::with_capacity(inner.len());
        for digit in inner {
            let digit = self.digit(*next, digit)?;
            *next += 1;
            let size = digit.size;
            inner_digits.push((run, digit));
            run = mul(run, size)?;
        }
        let width = u64::from(word.bits);
        let words = run.div_ceil(width).max(1);
        let whole_axis = inner.iter().any(|digit| !matches!(digit.part, Part::Sized { .. }));
        let spare = words * width - run;
        if step > 0 && spare >= step && !whole_axis {
            return Err(BindError::new(
                None,
                format!("the run takes {run} bits and leaves {spare} of {} unused", words * width),
                format!("fill the word, or say so: `pad {spare}`"),
            ));
        }
        if words > 1 && !order.contains(&Place::Word) {
            return Err(BindError::new(
                None,
                format!("a run of {run} bits fills {words} words of {width}"),
                "say where each word goes with the word digit `w` after the `|`",
            ));
        }
        let mut stride = width;
        let mut places = Vec::with_capacity(order.len());
        for place in order {
            match place {
                Place::Word => {
                    places.push((stride, NodePlace::Word));
                    stride = mul(stride, words)?;
                }
                Place::Digit(digit) => {
                    let digit = self.digit(*next, digit)?;
                    *next += 1;
                    let size = digit.size;
                    places.push((stride, NodePlace::Digit(digit)));
                    stride = mul(stride, size)?;
                }
            }
        }
        let node = Node::Word {
            width,
            msf: word.msf,
            run,
            words,
            fields: nodes,
            inner: inner_digits,
            places,
        };
        Ok((node, stride))
    }

    fn digit(&self, id: usize, digit: &Digit) -> Result<BoundDigit, BindError> {
        let Some(Resolved { axis, stride, size }) = self.resolved[id] else {
            return Err(BindError::new(
                Some(id),
                format!("no component lies under the digit `{digit}`"),
                "name what is repeated, for instance `code`",
            ));
        };
        let swizzle = match &digit.swizzle {
            None => None,
            Some(other) => Some(swizzle_digit(id, size, other)?),
        };
        Ok(BoundDigit { axis, stride, size, down: digit.down, swizzle })
    }
}

/// First bit, and one past the last, of a field.
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
        format!("`{component}[{low}..{high}]` is not a part of its {bits} bits"),
        format!("a slice is low..high with low < high <= {bits}"),
    ))
}

fn swizzle_digit(id: usize, size: u64, other: &Digit) -> Result<(Axis, u64, u64), BindError> {
    let fault = |message: String| {
        BindError::new(Some(id), message, "XOR digits of the same power-of-two size, `k:8 ^ n:8`")
    };
    let Part::Sized { stride, size: other_size } = other.part else {
        return Err(fault(format!("`{other}` needs a size to be XORed")));
    };
    if stride == 0 {
        return Err(fault(format!("the digit `{other}` has stride 0")));
    }
    if other.axis == Axis::G {
        return Err(fault(format!("`{other}`: name the column digit `k` in a swizzle")));
    }
    if u64::from(other_size) != size || !size.is_power_of_two() {
        return Err(fault(format!("cannot XOR {size} values with {other_size}")));
    }
    Ok((other.axis, u64::from(stride), u64::from(other_size)))
}

/// Numbers for one axis's digits of one leaf, in the order given.
fn resolve_digits(
    component: Component,
    axis: Axis,
    grain: Grain,
    extent: u64,
    chain: &[(usize, &Digit)],
) -> Result<Vec<Resolved>, BindError> {
    let of = axis.to_string();
    let unit = match grain {
        Grain::Each(count) => u64::from(count),
        Grain::All => extent.max(1),
    };
    if chain.is_empty() {
        return if grain.elements(extent) <= 1 {
            Ok(Vec::new())
        } else {
            Err(BindError::new(
                None,
                format!(
                    "the layout of `{component}` has no digit of {of}, but its values vary along it"
                ),
                format!("add the digit `{of}`"),
            ))
        };
    }
    // Explicit digits, sorted by stride, must count up from the grain without gap or overlap.
    let mut sized: Vec<(u64, u64, usize)> = Vec::new();
    for (id, digit) in chain {
        if let Part::Sized { stride, size } = digit.part {
            if stride == 0 || size == 0 {
                return Err(BindError::new(
                    Some(*id),
                    format!("the digit `{digit}` has stride {stride} and size {size}"),
                    "stride and size are at least 1",
                ));
            }
            // g counts groups, n counts row groups, k always counts columns.
            let units = if digit.axis == Axis::K { 1 } else { unit };
            sized.push((u64::from(stride).saturating_mul(units), u64::from(size), *id));
        }
    }
    sized.sort_unstable();
    let mut covered = unit;
    for (stride, size, id) in &sized {
        if *stride != covered {
            let wrong = if *stride < covered { "overlap" } else { "leave a gap" };
            return Err(BindError::new(
                Some(*id),
                format!(
                    "the digits of {of} {wrong}: the ones below reach {covered}, this one steps by {stride}"
                ),
                format!("the next digit of the chain starts at stride {covered}"),
            ));
        }
        covered = covered.saturating_mul(*size);
    }
    let rest: Vec<&(usize, &Digit)> =
        chain.iter().filter(|(_, d)| !matches!(d.part, Part::Sized { .. })).collect();
    let mut top: Option<u64> = None;
    let mut open = 0;
    for (id, digit) in &rest {
        let one_too_many = match digit.part {
            Part::Top { size } => top.replace(u64::from(size)).is_some() || size == 0,
            Part::Whole => chain.len() > 1,
            _ => {
                open += 1;
                open > 1
            }
        };
        if one_too_many {
            return Err(BindError::new(
                Some(*id),
                format!("`{digit}` covers what another digit of {of} covers already"),
                format!("one digit of {of} may be open; give the others a size, `{of}:8`"),
            ));
        }
    }
    if rest.is_empty() && covered < extent {
        return Err(BindError::new(
            chain.last().map(|(id, _)| *id),
            format!("the digits of {of} cover {covered} of {extent}"),
            format!("add the open digit `{of}` for what remains"),
        ));
    }
    let remaining = extent.div_ceil(covered);
    let top_stride = top.map(|parts| remaining.div_ceil(parts) * covered);
    if let Some(stride) = top_stride
        && open == 0
        && stride != covered
    {
        return Err(BindError::new(
            chain.last().map(|(id, _)| *id),
            format!("nothing covers {of} below its top digit"),
            format!("add the open digit `{of}`"),
        ));
    }
    let resolve_one = |digit: &Digit| -> Resolved {
        let axis = if digit.axis == Axis::G { Axis::K } else { digit.axis };
        let (stride, size) = match digit.part {
            Part::Sized { stride, size } => {
                let units = if digit.axis == Axis::K { 1 } else { unit };
                (u64::from(stride).saturating_mul(units), u64::from(size))
            }
            Part::Open => match top_stride {
                Some(stride) => (covered, stride / covered),
                None => (covered, remaining),
            },
            Part::Top { size } => (top_stride.unwrap_or(covered), u64::from(size)),
            Part::Whole => (unit, extent.div_ceil(unit)),
        };
        Resolved { axis, stride, size }
    };
    Ok(chain.iter().map(|(_, digit)| resolve_one(digit)).collect())
}

fn mul(a: u64, b: u64) -> Result<u64, BindError> {
    a.checked_mul(b).filter(|bits| *bits <= MOST_BITS).ok_or_else(too_large)
}

fn add(a: u64, b: u64) -> Result<u64, BindError> {
    a.checked_add(b).filter(|bits| *bits <= MOST_BITS).ok_or_else(too_large)
}

fn too_large() -> BindError {
    BindError::shape("the stored tensor is beyond what can be addressed".to_owned())
}
