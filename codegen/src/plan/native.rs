//! Native layouts of codes: the words that a lane loads are the words that the sequence dequantises, in order.
//!
//! No layout is written by hand. The sequence defines the order of the codes of a word (as elements of a
//! register, and as registers); the instruction's fragment defines the row and column of each element,
//! register and lane. Together they are a chain of digits, printed in the layout language and parsed.
//!
//! **The order of columns is free.** A product sums over k, so the columns of a chunk may be permuted if those
//! of x are permuted in the same way. For matrix instructions they are numbered so that a lane's columns are
//! contiguous: first the elements of a register, then registers and words, then the lanes. With 4-bit codes
//! lane t holds columns 16t to 16t + 15 of 64 (for product j of the chunk 16t + 4j to 16t + 4j + 3), so that
//! its x is two loads of 16 bytes. If segments are shorter than a chunk, lanes are numbered within a segment:
//! with segments of 32 columns lane t holds columns 8t to 8t + 7 of each, so that a segment is whole steps of
//! the product. An instruction that scales its operands defines which columns share a scale; there columns
//! keep the order of its fragment.

use quantloom_dsl::layout::{Component, Layout};
use quantloom_dsl::{parse_fragment, parse_layout};

use super::compute::Product;
use super::dequant::DequantPlan;
use super::sequence::{Field, Sequence};
use crate::target::{Class, MATRIX_OPS};

/// A digit with two values: axis and stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bit {
    axis: char,
    stride: u32,
}

const fn n(stride: u32) -> Bit {
    Bit { axis: 'n', stride }
}

const fn k(stride: u32) -> Bit {
    Bit { axis: 'k', stride }
}

/// How the lanes of a product hold the operand of w: the rows and columns of a register's elements, of a
/// lane's registers, and of the lanes.
struct Holding {
    /// Elements of a register.
    element: Vec<Bit>,
    /// Registers of a lane, as many as needed.
    registers: Vec<Bit>,
    lanes: Vec<Bit>,
    /// Words that a lane loads at once, as a power of two; if words hold whole codes, the words of the
    /// next lane follow after that many.
    lane_words: u32,
    /// Whether columns keep the instruction's order, each with its scale.
    keeps_columns: bool,
}

/// The most steps of a matrix instruction whose registers a lane holds consecutively, as a power of two.
const STEPS: u32 = 5;

impl Holding {
    /// For a matrix instruction: the fragment of A, and further registers for the following k steps.
    /// `None` if the class has no layout of lanes.
    fn new(product: &Product, class: Class) -> Option<Self> {
        let Some(row) = product.matrix else { return Self::of_lanes(class) };
        let row = MATRIX_OPS.iter().find(|op| op.name == row)?;
        let fragment = parse_fragment(row.a_layout).ok()?;
        let [positions, registers, lanes] = fragment.sizes()[..] else { return None };
        let bits = |output: usize, size: u32| {
            let bit = |bit: u32| {
                let mut place = [0; 3];
                place[output] = 1 << bit;
                let point = fragment.point(&place);
                if point.k == 0 { n(point.n) } else { k(point.k) }
            };
            (0..size.ilog2()).map(bit).collect::<Vec<_>>()
        };
        let steps = (0..STEPS).map(|step| k(row.shape[2] << step));
        Some(Self {
            element: bits(0, positions),
            registers: bits(1, registers).into_iter().chain(steps).collect(),
            lanes: bits(2, lanes),
            lane_words: 2,
            keeps_columns: row.scaling.is_some(),
        })
    }

    /// For scalar arithmetic per lane: a lane is a row, and a word has four columns. A CPU vector loads
    /// one word of all lanes, a shader's lane four words at once.
    fn of_lanes(class: Class) -> Option<Self> {
        let lane_words = match class {
            Class::Lanes => 0,
            Class::Shader => 2,
            _ => return None,
        };
        Some(Self {
            element: vec![k(1), k(2)],
            registers: vec![k(4), k(8), k(16)],
            lanes: vec![n(1), n(2), n(4), n(8)],
            lane_words,
            keeps_columns: false,
        })
    }
}

/// The most bytes of a row of x that are distributed over the lanes of a row at a time: a row of shared
/// memory's banks.
pub const SHARED_BYTES: u32 = 128;

/// The most columns of those bytes for one lane, for elements of `bits` bits: four lanes share a row of
/// A in every instruction of NVIDIA and AMD.
pub const fn lane_columns(bits: u32) -> u32 {
    SHARED_BYTES * 8 / bits / 4
}

/// The layout of the codes of w for a product.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeLayout {
    /// All bit planes in one layout.
    pub layout: Layout,
    /// N is padded to a multiple of this; pad codes are 0.
    pub rows: u32,
    /// K is padded to a multiple of this.
    pub columns: u32,
    /// Words of one lane in each plane of a chunk, contiguous: a plane holds those of all lanes. A lane
    /// loads 1, 2 or 4 words at a time.
    pub plane_words: Vec<u32>,
}

impl NativeLayout {
    /// The layout for sums over segments of columns; `None` for sums over whole rows.
    ///
    /// `None` if the class has no fragment table.
    pub fn new(
        dequant: &DequantPlan,
        product: &Product,
        segment: Option<u32>,
        class: Class,
    ) -> Option<Self> {
        let holding = &Holding::new(product, class)?;
        let most = SHARED_BYTES * 8 / product.weight.bits();
        let chain =
            Chain::new(dequant, holding, segment.map_or(most, |segment| segment.min(most)))?;
        let code_bits = dequant.weight.code.bits();
        let plane = |&plane| chain.plane(plane, code_bits, holding);
        let planes: Vec<String> = match dequant.placed() {
            Some(sequence) => vec![chain.placed(sequence)],
            None => dequant.planes.iter().map(plane).collect(),
        };
        let text = match &planes[..] {
            [only] => format!("{}, k, n]", only.trim_end_matches(']')),
            several => format!("for [k, n] {{ {} }}", several.join(", ")),
        };
        let layout = parse_layout(&text, Component::Code).ok()?;
        let of = |axis| {
            let held = chain.codes.iter().chain(&chain.lanes).filter(|bit| bit.axis == axis);
            1 << held.count()
        };
        let words = |bits: u32| (bits << chain.codes.len()) / 32;
        let plane_words = match dequant.placed() {
            Some(sequence) => chain.plane_words(sequence),
            None => dequant.planes.iter().map(|(low, high)| words((high - low).into())).collect(),
        };
        Some(Self { layout, rows: of('n'), columns: of('k'), plane_words })
    }
}

/// Contiguous codes of a lane, as a power of two, if planes are joined or a sequence defines the
/// positions of bits: those that fill a word of a plane of one bit. CPU vectors always have as many.
const UNIT: usize = 5;

/// The contiguous codes of a lane, in the order of their numbers.
struct Chain {
    /// The axis and stride of each bit of a code's number.
    codes: Vec<Bit>,
    /// The axis and stride of each bit of a lane's number.
    lanes: Vec<Bit>,
    /// Whether planes are joined: the low bits of the number count bytes, the next ones fields.
    joined: bool,
    /// Bits of the number that count the codes of a word (bytes, if planes are joined), or of a unit
    /// whose sequence defines the positions of bits.
    in_word: usize,
}

impl Chain {
    fn new(dequant: &DequantPlan, holding: &Holding, segment: u32) -> Option<Self> {
        let joined = dequant.joins_planes();
        // The sequence that determines the order of codes.
        let last = if joined { dequant.stages.get(1) } else { dequant.stages.first() };
        let field = if joined { 8 } else { dequant.weight.code.bits() };
        // If words do not hold whole codes, the codes of a unit cross words.
        let whole = if 32u32.is_multiple_of(field) { 32 / field } else { 1 << UNIT };
        let unit = dequant.placed().map_or(whole, |sequence| sequence.unit() as u32);
        let in_word = unit.ilog2() as usize;
        let elements = holding.element.len();
        let registers = in_word.checked_sub(elements)?;
        let (element, register) = (&holding.element[..], holding.registers.get(..registers)?);
        let mut codes = match last.map(order) {
            None | Some(Order::ElementsFirst) => [element, register].concat(),
            Some(Order::RegistersFirst) => [register, element].concat(),
        };
        // The next words hold the following registers.
        let unit = joined || dequant.placed().is_some() || holding.lane_words == 0;
        let more = match unit {
            true => UNIT - in_word,
            // Two units: for 6 bits three loads of four words.
            false if share_words(dequant) => 1,
            false => holding.lane_words as usize,
        };
        codes.extend(holding.registers.get(registers..registers + more)?);
        let mut lanes = holding.lanes.clone();
        if holding.keeps_columns {
            return Some(Self { codes, lanes, joined, in_word });
        }
        // Strides grow from elements to registers to words, whatever the order of codes; the lanes are
        // inserted at the end of a segment, or last.
        let mut columns: Vec<&mut Bit> = codes.iter_mut().filter(|bit| bit.axis == 'k').collect();
        columns.sort_by_key(|bit| bit.stride);
        let of_lanes: Vec<&mut Bit> = lanes.iter_mut().filter(|bit| bit.axis == 'k').collect();
        let in_segment =
            if segment.is_power_of_two() { segment.ilog2() as usize } else { usize::MAX };
        let after = in_segment.saturating_sub(of_lanes.len()).min(columns.len());
        columns.splice(after..after, of_lanes);
        for (number, bit) in columns.into_iter().enumerate() {
            bit.stride = 1 << number;
        }
        Some(Self { codes, lanes, joined, in_word })
    }

    /// The layout of one plane, without the open digits.
    fn plane(&self, (low, high): (u8, u8), bits: u32, holding: &Holding) -> String {
        let (bytes, after) = self.codes.split_at(self.in_word);
        let places = if self.joined { (8 / u32::from(high - low)).ilog2() as usize } else { 0 };
        let (place, words) = after.split_at(places);
        let inner = digits(&[place, bytes].concat());
        if !32u32.is_multiple_of(high as u32 - low as u32) {
            return format!("u32 [{inner} | w, {}]", digits(&[words, &self.lanes[..]].concat()));
        }
        let order = match holding.lane_words {
            0 => digits(&[&self.lanes[..], words].concat()),
            _ => digits(&[words, &self.lanes[..]].concat()),
        };
        let code = match u32::from(high - low) == bits {
            true => String::new(),
            false => format!("code[{low}..{high}], "),
        };
        format!("u32 [{code}{inner} | {order}]")
    }

    /// The layout of units whose sequence defines the positions of bits, without the open digits. The
    /// same word of all units of a lane is contiguous, then the other words: of the lane if their number
    /// is a power of two, else of all lanes.
    fn placed(&self, sequence: &Sequence) -> String {
        let (unit, units) = self.codes.split_at(self.in_word);
        let field = |field: &Field| {
            let Field { slice: (low, high), code, .. } = field;
            format!("code[{low}..{high}] @{code}, ")
        };
        let mut words = sequence.inputs.clone();
        words.iter_mut().for_each(|fields| fields.sort_by_key(|field| field.at));
        let fields: String = words.iter().flatten().map(field).collect();
        let [unit, units, lanes] = [unit, units, &self.lanes[..]].map(digits);
        match sequence.inputs.len() {
            1 => format!("u32 [{fields}{unit} | {units}, {lanes}]"),
            words if words.is_power_of_two() => {
                format!("u32 [{fields}{unit} | {units}, w, {lanes}]")
            }
            _ => format!("u32 [{fields}{unit} | {units}, {lanes}, w]"),
        }
    }

    /// Words of one lane in each plane of such units.
    fn plane_words(&self, sequence: &Sequence) -> Vec<u32> {
        let (units, words) = (1 << (self.codes.len() - self.in_word), sequence.inputs.len());
        match words.is_power_of_two() {
            true => vec![units * words as u32],
            false => vec![units; words],
        }
    }
}

/// Whether stored codes cross words.
fn share_words(dequant: &DequantPlan) -> bool {
    let whole = 32u32.is_multiple_of(dequant.weight.code.bits());
    !whole && dequant.planes.len() == 1 && dequant.placed().is_none()
}

enum Order {
    /// Codes 0 and 1 are adjacent in a register.
    ElementsFirst,
    /// Codes 0 and 1 are the first of two registers.
    RegistersFirst,
}

/// The order in which a sequence numbers its codes.
fn order(sequence: &Sequence) -> Order {
    // With one element per word, adjacent bytes become registers.
    let neighbours = |codes: &Vec<u8>| codes.len() == 1 || codes[1] == codes[0] + 1;
    let all = sequence.outputs.iter().all(|output| neighbours(&output.codes));
    if all { Order::ElementsFirst } else { Order::RegistersFirst }
}

/// Digits of two values as text: adjacent digits of an axis are joined.
fn digits(bits: &[Bit]) -> String {
    let mut joined: Vec<(Bit, u32)> = Vec::new();
    for bit in bits {
        match joined.last_mut() {
            Some((first, size)) if first.axis == bit.axis && first.stride * *size == bit.stride => {
                *size *= 2;
            }
            _ => joined.push((*bit, 2)),
        }
    }
    let text = |(bit, size): &(Bit, u32)| match bit.stride {
        1 => format!("{}:{size}", bit.axis),
        stride => format!("{}/{stride}:{size}", bit.axis),
    };
    joined.iter().map(text).collect::<Vec<_>>().join(", ")
}
