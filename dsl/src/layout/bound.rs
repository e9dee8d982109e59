//! A layout with numbers, and its two functions: the address of a bit, and the bit at an address.

use super::bind::Granularity;
use super::{Axis, Component, Fill, Shape};

/// An index (expert, row, column).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Index {
    /// Expert.
    pub e: u64,
    /// Output row.
    pub n: u64,
    /// Input column.
    pub k: u64,
}

impl Index {
    fn on(self, axis: Axis) -> u64 {
        match axis {
            Axis::E => self.e,
            Axis::N => self.n,
            Axis::K | Axis::G => self.k,
        }
    }

    fn add(&mut self, axis: Axis, amount: u64) {
        match axis {
            Axis::E => self.e += amount,
            Axis::N => self.n += amount,
            Axis::K | Axis::G => self.k += amount,
        }
    }
}

/// A digit with numbers: `floor(i / stride) mod size` of e, n or k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundDigit {
    /// [`Axis::E`], [`Axis::N`] or [`Axis::K`].
    pub axis: Axis,
    /// Stride, in indices of the axis.
    pub stride: u64,
    /// Number of values.
    pub size: u64,
    /// Whether the digit counts down.
    pub down: bool,
    /// Axis, stride and size of the digit that this one is XORed with.
    pub swizzle: Option<(Axis, u64, u64)>,
}

impl BoundDigit {
    /// The value of the digit at an index.
    fn value(&self, index: Index) -> u64 {
        let mut value = index.on(self.axis) / self.stride % self.size;
        if let Some((axis, stride, size)) = self.swizzle {
            value ^= index.on(axis) / stride % size;
        }
        if self.down { self.size - 1 - value } else { value }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodePlace {
    Word,
    Digit(BoundDigit),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Bits {
        component: Component,
        granularity: Granularity,
        low: u32,
        high: u32,
    },
    Pad {
        fill: Fill,
    },
    /// Only the indices at which each digit has this value.
    Step {
        digits: Vec<(BoundDigit, u64)>,
        body: Box<Node>,
    },
    /// Offsets in bits.
    Sequence(Vec<(u64, Node)>),
    /// Stride in bits.
    For {
        digit: BoundDigit,
        stride: u64,
        body: Box<Node>,
    },
    Word {
        width: u64,
        msf: bool,
        /// Bits of the run.
        run: u64,
        /// Words of the run.
        words: u64,
        /// Offset in the run, width, field.
        fields: Vec<(u64, u64, Node)>,
        /// Offset in the run per value, digit.
        inner: Vec<(u64, BoundDigit)>,
        /// Offset in bits per value, digit.
        places: Vec<(u64, NodePlace)>,
    },
}

/// What a bit address stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitContent {
    /// A bit of a component's element; the index is the element's first.
    Bit(Element),
    /// A pad bit that copies the top bit of the field before it: component and index of that field.
    Sign(Component, Index),
    /// An unused bit: a pad, the rest of a word, or an index beyond a partial group.
    Hole(Fill),
}

/// One bit of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// The component.
    pub component: Component,
    /// The first index that shares the element.
    pub index: Index,
    /// Bit of the element, 0 = least significant.
    pub bit: u32,
}

/// A layout bound to a shape.
#[derive(Clone, Debug)]
pub struct BoundLayout {
    shape: Shape,
    pub(super) root: Node,
    bits: u64,
    dims: Vec<u64>,
}

impl BoundLayout {
    pub(super) fn new(shape: Shape, root: Node, bits: u64, dims: Vec<u64>) -> Self {
        Self { shape, root, bits, dims }
    }

    /// The shape that the layout was bound to.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Size of the stored tensor in bits.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Size of the stored tensor in bytes.
    pub fn bytes(&self) -> u64 {
        self.bits.div_ceil(8)
    }

    /// Dimensions of the stored tensor in its word or element type, slowest first.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Bit address of one bit of a component's element at an index inside the shape.
    ///
    /// `None` if the layout does not place that bit.
    pub fn address(&self, element: Element) -> Option<u64> {
        self.root.address(element)
    }

    /// What a bit address below [`BoundLayout::bits`] stores.
    pub fn content(&self, address: u64) -> BitContent {
        let mut digits = Vec::with_capacity(8);
        let leaf = self.root.content(address, &mut digits);
        let index = self.index(&digits);
        let inside =
            index.e < self.shape.experts && index.n < self.shape.n && index.k < self.shape.k;
        match leaf {
            Leaf::Hole(fill) => BitContent::Hole(fill),
            _ if !inside => BitContent::Hole(Fill::Zero),
            Leaf::Sign(component) => BitContent::Sign(component, index),
            Leaf::Bit { component, bit } => BitContent::Bit(Element { component, index, bit }),
        }
    }

    /// Which bits of a component this layout stores.
    pub(super) fn held(&self, component: Component) -> Option<Held> {
        let mut fields = Vec::new();
        self.root.held(component, 1, &mut fields);
        let granularity = fields.first()?.granularity;
        let bits = fields.iter().fold(0, |bits, field| bits | field.bits);
        // A bit that is stored at single steps is in as many fields as there are steps, or some
        // elements lack it.
        let everywhere = |bit: u32| {
            let here = || fields.iter().filter(|field| field.bits >> bit & 1 == 1);
            here().map(|field| field.steps).max() <= Some(here().count() as u64)
        };
        let partial = (0..32).filter(|bit| bits >> bit & 1 == 1).any(|bit| !everywhere(bit));
        Some(Held { granularity, bits, partial })
    }

    /// Adds up the digits to an index; swizzled digits last, since they depend on plain ones.
    fn index(&self, digits: &[(BoundDigit, u64)]) -> Index {
        let mut index = Index::default();
        let plain = |digit: &BoundDigit, value: u64| {
            if digit.down { digit.size - 1 - value } else { value }
        };
        for (digit, value) in digits.iter().filter(|(digit, _)| digit.swizzle.is_none()) {
            index.add(digit.axis, plain(digit, *value) * digit.stride);
        }
        for (digit, value) in digits {
            if let Some((axis, stride, size)) = digit.swizzle {
                let value = plain(digit, *value) ^ (index.on(axis) / stride % size);
                index.add(digit.axis, value * digit.stride);
            }
        }
        index
    }
}

/// Which bits of a component a layout stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) granularity: Granularity,
    /// Mask of the bits.
    pub(super) bits: u32,
    /// Some elements lack some of these bits, which another tensor stores.
    pub(super) partial: bool,
}

/// A field of a component: the mask of its bits, and the number of steps that it is one of.
struct HeldField {
    granularity: Granularity,
    bits: u32,
    steps: u64,
}

enum Leaf {
    Bit { component: Component, bit: u32 },
    Sign(Component),
    Hole(Fill),
}

impl Node {
    /// Collects the fields of a component; this node belongs to one of `steps` steps.
    fn held(&self, wanted: Component, steps: u64, held: &mut Vec<HeldField>) {
        match self {
            Self::Bits { component, granularity, low, high } if *component == wanted => {
                let below = |bit: u32| ((1u64 << bit) - 1) as u32;
                let bits = below(*high) & !below(*low);
                held.push(HeldField { granularity: *granularity, bits, steps });
            }
            Self::Bits { .. } | Self::Pad { .. } => {}
            Self::Step { digits, body } => {
                let all =
                    digits.iter().fold(steps, |all, (digit, _)| all.saturating_mul(digit.size));
                body.held(wanted, all, held);
            }
            Self::Sequence(parts) => {
                parts.iter().for_each(|(_, node)| node.held(wanted, steps, held));
            }
            Self::For { body, .. } => body.held(wanted, steps, held),
            Self::Word { fields, .. } => {
                fields.iter().for_each(|(.., node)| node.held(wanted, steps, held));
            }
        }
    }

    fn address(&self, element: Element) -> Option<u64> {
        match self {
            Self::Bits { component, low, high, .. } => {
                let here = *component == element.component;
                (here && (*low..*high).contains(&element.bit)).then(|| u64::from(element.bit - low))
            }
            Self::Pad { .. } => None,
            Self::Step { digits, body } => {
                let here = digits.iter().all(|(digit, value)| digit.value(element.index) == *value);
                if here { body.address(element) } else { None }
            }
            Self::Sequence(parts) => {
                parts.iter().find_map(|(offset, node)| Some(offset + node.address(element)?))
            }
            Self::For { digit, stride, body } => {
                Some(body.address(element)? + digit.value(element.index) * stride)
            }
            Self::Word { width, msf, fields, inner, places, .. } => {
                let (offset, bits, within) = fields.iter().find_map(|(offset, bits, node)| {
                    Some((*offset, *bits, node.address(element)?))
                })?;
                // In a most-significant-first run the top bit of a field has the lowest position.
                let within = if *msf { bits - 1 - within } else { within };
                let step: u64 =
                    inner.iter().map(|(stride, digit)| digit.value(element.index) * stride).sum();
                let position = offset + within + step;
                let (word, bit) = (position / width, position % width);
                let bit = if *msf { width - 1 - bit } else { bit };
                let placed: u64 = places
                    .iter()
                    .map(|(stride, place)| match place {
                        NodePlace::Word => word * stride,
                        NodePlace::Digit(digit) => digit.value(element.index) * stride,
                    })
                    .sum();
                Some(placed + bit)
            }
        }
    }

    fn content(&self, address: u64, digits: &mut Vec<(BoundDigit, u64)>) -> Leaf {
        match self {
            Self::Bits { component, low, .. } => {
                Leaf::Bit { component: *component, bit: low + address as u32 }
            }
            Self::Pad { fill } => Leaf::Hole(*fill),
            Self::Step { digits: held, body } => {
                digits.extend(held);
                body.content(address, digits)
            }
            Self::Sequence(parts) => {
                let at = parts.partition_point(|(offset, _)| *offset <= address).saturating_sub(1);
                let (offset, node) = &parts[at];
                node.content(address - offset, digits)
            }
            Self::For { digit, stride, body } => {
                digits.push((*digit, address / stride));
                body.content(address % stride, digits)
            }
            Self::Word { width, msf, run, fields, inner, places, .. } => {
                let (mut rest, bit) = (address / width, address % width);
                let mut word = 0;
                for (stride, place) in places.iter().rev() {
                    let value = rest / (stride / width);
                    rest %= stride / width;
                    match place {
                        NodePlace::Word => word = value,
                        NodePlace::Digit(digit) => digits.push((*digit, value)),
                    }
                }
                let bit = if *msf { width - 1 - bit } else { bit };
                let mut position = word * width + bit;
                if position >= *run {
                    return Leaf::Hole(Fill::Zero);
                }
                for (stride, digit) in inner.iter().rev() {
                    digits.push((*digit, position / stride));
                    position %= stride;
                }
                let at = fields.partition_point(|(offset, ..)| *offset <= position) - 1;
                let (offset, bits, node) = &fields[at];
                let within = position - offset;
                let within = if *msf { bits - 1 - within } else { within };
                let leaf = node.content(within, digits);
                sign_of_field_before(leaf, fields[..at].last().map(|(.., node)| node))
            }
        }
    }
}

fn sign_of_field_before(leaf: Leaf, before: Option<&Node>) -> Leaf {
    match (leaf, before) {
        (Leaf::Hole(Fill::Sign), Some(Node::Bits { component, .. })) => Leaf::Sign(*component),
        (leaf, _) => leaf,
    }
}
