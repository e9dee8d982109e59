//! Native layouts: where codes lie in memory so that what a product's lane loads is what the
//! sequence decodes, in order.
//!
//! Nothing is laid out by hand. The sequence says in which order the codes of a word come out (as
//! elements of a register, as registers), the product's fragment says which row and column each
//! element, register and lane holds; put together they are a chain of digits, printed in the
//! layout language and read by its parser.
//!
//! **Which column meets which is free.** A product adds over k, so the columns of a piece may take
//! any places along k, if those of x take the same. On matrix machines they are numbered so that a
//! lane's columns are neighbours: first the elements of a register, then registers and words, then
//! the lanes. Of 4-bit codes a lane t holds columns 16t to 16t + 15 of 64 (for product j of the
//! piece 16t + 4j to 16t + 4j + 3), so that the x it meets are two loads of 16 bytes. Where columns
//! share a scale in shorter segments than a piece, the lanes are counted within a segment: of segments of 32, a
//! lane t holds columns 8t to 8t + 7 of each, so that the sum of a segment is one of whole steps. So they
//! are within 128 bytes of x. An instruction that scales its operands says which columns share a scale:
//! there columns are those of its fragment.

use quantloom_dsl::layout::{Component, Layout};
use quantloom_dsl::{parse_fragment, parse_layout};

use super::compute::Product;
use super::dequant::DequantPlan;
use super::sequence::{Field, Sequence};
use crate::target::{Class, MATRIX_OPS};

/// A digit of two values: axis and stride.
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

/// How a product's lanes hold the weight's operand: which rows and columns are the elements of a
/// register, a lane's registers, and the lanes.
struct Holding {
    /// Inside a register.
    element: Vec<Bit>,
    /// Registers of a lane, as many as are needed.
    registers: Vec<Bit>,
    lanes: Vec<Bit>,
    /// Words that a lane loads at once, as a power of two; where each holds whole codes, lanes lie side
    /// by side in memory after that many words.
    lane_words: u32,
    /// Whether columns stay where the instruction has them, each with its scale.
    keeps_columns: bool,
}

/// Steps of a matrix instruction that follow one another in a lane's registers, at most, as a power of
/// two.
const STEPS: u32 = 5;

impl Holding {
    /// Of a matrix instruction the fragment of A; the same of the k steps that follow are further
    /// registers. `None` if the class has no holding for products of lanes.
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

    /// Of lanes that multiply by themselves: a lane is a row; four columns a word. A vector loads one
    /// word of all lanes, a lane of a shader four words at once.
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

/// Bytes of a row of x that the lanes of a row share out at a time, at most: a row of shared memory's
/// banks.
pub const SHARED_BYTES: u32 = 128;

/// Columns of a row that a lane has of those bytes, at most, for elements of so many bits: four lanes
/// share a row of A in every instruction of NVIDIA's and AMD's.
pub const fn lane_columns(bits: u32) -> u32 {
    SHARED_BYTES * 8 / bits / 4
}

/// Where the codes of a weight lie for a product.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeLayout {
    /// All planes, one layout.
    pub layout: Layout,
    /// N is padded to a multiple of this; pad codes are 0.
    pub rows: u32,
    /// K is padded to a multiple of this.
    pub columns: u32,
    /// Words that a lane has of each plane of a piece, side by side: a plane holds those of all
    /// lanes, which load as many at a time as divide them, four at most.
    pub plane_words: Vec<u32>,
}

impl NativeLayout {
    /// The layout for sums over segments of columns; `None` = over whole rows.
    ///
    /// `None` if the class has no fragment table yet.
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

/// Codes that a lane holds in one piece where planes are joined or a sequence says where bits lie, as a
/// power of two: those that fill a word of a plane of one bit. A vector machine always takes as many.
const UNIT: usize = 5;

/// The codes that a lane holds in one piece, in the order in which they are numbered.
struct Chain {
    /// Per bit of a code's number, what it counts.
    codes: Vec<Bit>,
    /// Per bit of a lane's number, what it counts.
    lanes: Vec<Bit>,
    /// Whether planes are joined: the number's low bits count bytes, the next ones places.
    joined: bool,
    /// Bits of the number that count the codes of a word (the bytes, where planes are joined), or of
    /// a unit that says itself where they lie.
    in_word: usize,
}

impl Chain {
    fn new(dequant: &DequantPlan, holding: &Holding, segment: u32) -> Option<Self> {
        let joined = dequant.joins_planes();
        // What orders them.
        let last = if joined { dequant.stages.get(1) } else { dequant.stages.first() };
        let field = if joined { 8 } else { dequant.weight.code.bits() };
        // Where words do not hold whole codes, those of a unit go on from word to word.
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
        // The words after this one hold the registers that follow.
        let unit = joined || dequant.placed().is_some() || holding.lane_words == 0;
        let more = match unit {
            true => UNIT - in_word,
            // Two units, of 6 bits three loads of four words.
            false if share_words(dequant) => 1,
            false => holding.lane_words as usize,
        };
        codes.extend(holding.registers.get(registers..registers + more)?);
        let mut lanes = holding.lanes.clone();
        if holding.keeps_columns {
            return Some(Self { codes, lanes, joined, in_word });
        }
        // Strides grow from elements over registers to words, in whatever order codes come out; the
        // lanes come where a segment ends, or last.
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

    /// The layout of units of words that say where their bits lie, without the open digits. The same
    /// word of all units of a lane side by side, then the other words: of the lane, where they are a
    /// power of two, else of all lanes.
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

    /// Words of a lane in each plane of such units.
    fn plane_words(&self, sequence: &Sequence) -> Vec<u32> {
        let (units, words) = (1 << (self.codes.len() - self.in_word), sequence.inputs.len());
        match words.is_power_of_two() {
            true => vec![units * words as u32],
            false => vec![units; words],
        }
    }
}

/// Whether codes go on from word to word, as they are stored.
fn share_words(dequant: &DequantPlan) -> bool {
    let whole = 32u32.is_multiple_of(dequant.weight.code.bits());
    !whole && dequant.planes.len() == 1 && dequant.placed().is_none()
}

enum Order {
    /// Code 0 and code 1 are neighbours in a register.
    ElementsFirst,
    /// Code 0 and code 1 begin two registers.
    RegistersFirst,
}

/// How a sequence numbers its codes.
fn order(sequence: &Sequence) -> Order {
    // With one element a word, what lies side by side are the bytes that become registers.
    let neighbours = |codes: &Vec<u8>| codes.len() == 1 || codes[1] == codes[0] + 1;
    let all = sequence.outputs.iter().all(|output| neighbours(&output.codes));
    if all { Order::ElementsFirst } else { Order::RegistersFirst }
}

/// Digits of two values as digits: neighbours of one axis join.
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
