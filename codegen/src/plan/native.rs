//! Native layouts of codes: the words that a lane loads are the words that the sequence dequantises, in order.
//!
//! No layout is written by hand. The sequence defines the order of the codes of a word (as elements of a
//! register, and as registers); the instruction's fragment defines the row and column of each element,
//! register and lane. Together they are a chain of digits, printed in the layout language and parsed.
//!
//! **The order of columns is free.** A product sums over k, so the columns of a chunk may be permuted if those
//! of x are permuted in the same way. For matrix instructions they are numbered so that a lane's columns are
//! contiguous, and its x is loads of 16 bytes. If segments are shorter than a chunk, lanes are numbered within a
//! segment: with segments of 32 columns lane t holds columns 8t to 8t + 7 of each, so that a segment is whole
//! steps of the product. An instruction that scales its operands defines which columns share a scale; there
//! columns keep the order of its fragment.
//!
//! **One layout for two ways to load.** Within a lane the columns are numbered so that two kinds of kernels can
//! read the codes: one whose lanes load their own words, and one that needs fragments in the order of x, as a
//! tensor copy leaves x. That one loads with `ldmatrix`, which gives word i of each 16-byte row to lane i of
//! four. Where the lanes of a row of A are adjacent, the number of a word in its 16 bytes therefore counts the
//! lowest columns after the elements of a register; the registers of a word follow, then the lanes. With 4-bit
//! codes and 16-bit operands word j of lane t has, of 64 columns,
//!
//! | register | row | columns |
//! |---|---|---|
//! | 0, 1 | g, g + 8 | 16t + 2j, 16t + 2j + 1 |
//! | 2, 3 | g, g + 8 | 16t + 8 + 2j, 16t + 8 + 2j + 1 |
//!
//! If row g of matrix i of `ldmatrix` is the 16 bytes of lane (g, i), register i of lane (g, t) is word t of lane
//! (g, i): columns 16i + 2t + {0, 1, 8, 9} of rows g and g + 8, which is the fragment of step i in the order of x.
//! A lane that loads its own words makes two steps of two words: of registers 0 and 1 of both, and of registers
//! 2 and 3 ([`NativeLayout::in_order_of_columns`]). Their x is adjacent registers of one load, which the
//! instruction's B has to be. The same holds for other widths, per load of `ldmatrix.x4`:
//!
//! | codes | operand | 16 bytes of a lane | fragments of the four registers |
//! |---|---|---|---|
//! | 1 bit | 16 bits | words of 32 codes, 256 columns | steps i, 4 + i, 8 + i and 12 + i in register i |
//! | 2 bits | 16 bits | words of 16 codes, 128 columns | steps i and 4 + i in register i |
//! | 4 bits | 16 bits | words of 8 codes, 64 columns | step i in register i |
//! | 8 bits | 16 bits | words of 4 codes, 32 columns | step 0 in registers 0, 1; step 1 in 2, 3 |
//! | 2 bits | 8 bits | words of 16 codes, 128 columns | step i in register i |
//! | 4 bits | 8 bits | words of 8 codes, 64 columns | step 0 in registers 0, 1; step 1 in 2, 3 |
//!
//! Where a sequence places bits in several words, a unit of 16 codes has word j of two or three planes, each with
//! 16 bytes of a lane for 128 columns:
//!
//! | codes | operand | 16 bytes of a lane, of each plane | fragments of the four registers of all planes |
//! |---|---|---|---|
//! | e2m1, e2m3, e3m2 | 16 bits | word j of 16 codes, 128 columns | steps i and 4 + i in register i |
//!
//! Where warp groups multiply codes of 8 bits as they are stored (`DequantPlan::of_rows`), a word is of four neighbouring columns of one row,
//! and a lane's 16 bytes are 16 columns: a unit has word j of row g and of row g + 8, each with a plane. `ldmatrix` gives
//! lane (g, t) columns 16i + 4t + {0, 1, 2, 3} in register i, which is a fragment of bytes in the order of x; and eight lanes' 16 bytes are
//! rows of an operand in shared memory, 64 bytes each.
//!
//! | codes | operand | 16 bytes of a lane, of each plane | fragments of the four registers of both planes |
//! |---|---|---|---|
//! | e4m3 | 8 bits | words of 4 codes of a row, 64 columns | step 0 in registers 0, 1; step 1 in 2, 3 |
//!
//! Segments shorter than a chunk of 1- or 2-bit codes keep their own columns in whole products, so that the
//! words of a chunk's half hold them, and no longer all words. Codes in planes (3, 5, 6 and 7 bits) have the
//! columns of 4-bit codes: the plane of 4 bits is loaded as these are; of the smaller planes the lane that
//! multiplies needs a part of the words of four lanes, 2 bits: the half 4 (t mod 2) of each byte of word t / 2,
//! 1 bit: bits 2t and 2t + 1 of each byte. With an 8-bit operand they have the columns of its 4-bit codes, and the same parts. For 8-bit
//! codes of 8-bit operands, and where segments end within a chunk of placed codes, lanes load their own words only.

use quantloom_dsl::layout::{Component, Layout};
use quantloom_dsl::{parse_fragment, parse_layout};

use super::compute::ProductInstruction;
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
    /// Whether the lanes of a row are adjacent, as `ldmatrix` distributes a row's words.
    adjacent: bool,
}

/// The most steps of a matrix instruction whose registers a lane holds consecutively, as a power of two.
const STEPS: u32 = 5;

impl Holding {
    /// For a matrix instruction: the fragment of A, and further registers for the following k steps.
    /// `None` if the class has no layout of lanes.
    fn new(product: &ProductInstruction, class: Class) -> Option<Self> {
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
        let lanes = bits(2, lanes);
        Some(Self {
            element: bits(0, positions),
            registers: bits(1, registers).into_iter().chain(steps).collect(),
            lane_words: 2,
            keeps_columns: row.scaling.is_some(),
            adjacent: lanes.first().is_some_and(|bit| bit.axis == 'k'),
            lanes,
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
            adjacent: false,
        })
    }
}

/// The most bytes of a row of x that are distributed over the lanes of a row at a time: a row of shared
/// memory's banks.
pub const SHARED_BYTES: u32 = 128;

/// The lanes over which a product distributes a row of A: 1, 2 or 4 with a matrix instruction, else 1.
pub fn row_lanes(product: &ProductInstruction, class: Class) -> u32 {
    let lanes = Holding::new(product, class).map_or(Vec::new(), |holding| holding.lanes);
    1 << lanes.iter().filter(|bit| bit.axis == 'k').count()
}

/// The most columns of those bytes for one lane of a product.
pub fn lane_columns(product: &ProductInstruction, class: Class) -> u32 {
    SHARED_BYTES * 8 / product.weight.bits() / row_lanes(product, class)
}

/// Columns of a chunk of codes in the layout for sums over whole rows; 0 if the class has no layout of lanes.
pub fn chunk_columns(dequant: &DequantPlan, product: &ProductInstruction, class: Class) -> u32 {
    NativeLayout::new(dequant, product, None, class).map_or(0, |native| native.columns)
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
    /// Words of one lane in each plane of a chunk, contiguous: a plane holds those of [`Self::lanes`] lanes. A
    /// lane loads 1, 2 or 4 words at a time.
    pub plane_words: Vec<u32>,
    /// Lanes that have words of their own. Where a warp has more, lane l has the words of lane `l % lanes`.
    pub lanes: u32,
    /// For each register of a lane's row in a chunk, in the order of codes: its number in the order of
    /// columns. Empty if the two orders are the same.
    order: Vec<usize>,
}

impl NativeLayout {
    /// The layout for sums over segments of columns; `None` for sums over whole rows.
    ///
    /// `None` if the class has no fragment table.
    pub fn new(
        dequant: &DequantPlan,
        product: &ProductInstruction,
        segment: Option<u32>,
        class: Class,
    ) -> Option<Self> {
        let holding = &Holding::new(product, class)?;
        let most = SHARED_BYTES * 8 / product.weight.bits();
        let chain = Chain::new(dequant, holding, (segment, most))?;
        let code_bits = dequant.weight.code.bits();
        let plane = |&plane| chain.plane(plane, code_bits, holding);
        let planes: Vec<String> = match dequant.placed() {
            Some(sequence) if dequant.has_words_of_rows() => vec![chain.whole(sequence)],
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
        let lanes = 1 << chain.lanes.len();
        let order = chain.order;
        Some(Self { layout, rows: of('n'), columns: of('k'), plane_words, lanes, order })
    }

    /// The number, in the order of columns, of a register of a lane's row in a chunk; `register` is its number in
    /// the order of codes. The registers of a segment, or of a chunk if segments are longer, have the same
    /// numbers in both orders.
    pub fn in_order_of_columns(&self, register: usize) -> usize {
        self.order.get(register).copied().unwrap_or(register)
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
    /// See [`NativeLayout`].
    order: Vec<usize>,
}

/// Bits of the number of a word in 16 bytes.
const WORD_BITS: usize = 2;

impl Chain {
    /// For sums over segments; `most` columns are distributed over the lanes of a row at a time.
    fn new(
        dequant: &DequantPlan,
        holding: &Holding,
        (segment, most): (Option<u32>, u32),
    ) -> Option<Self> {
        let joined = dequant.joining().is_some();
        // The sequence that determines the order of codes.
        let last = dequant.decoding();
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
            // Four units, of each of whose words a lane has 16 bytes.
            true if dequant.placed().is_some() && distributes(holding, segment, in_word) => {
                WORD_BITS
            }
            true => UNIT - in_word,
            // Two units: for 6 bits three loads of four words.
            false if share_words(dequant) => 1,
            false => holding.lane_words as usize,
        };
        codes.extend(holding.registers.get(registers..registers + more)?);
        let mut lanes = holding.lanes.clone();
        if holding.keeps_columns {
            return Some(Self { codes, lanes, joined, in_word, order: Vec::new() });
        }
        // Strides grow from elements to words to registers, whatever the order of codes; the lanes are
        // inserted at the end of a segment, or last.
        let mut columns: Vec<&mut Bit> = codes.iter_mut().filter(|bit| bit.axis == 'k').collect();
        columns.sort_by_key(|bit| bit.stride);
        let of_lanes: Vec<&mut Bit> = lanes.iter_mut().filter(|bit| bit.axis == 'k').collect();
        let chunk = 1 << (columns.len() + of_lanes.len());
        let shared = segment.map_or(most, |segment| segment.min(most));
        let in_segment =
            if shared.is_power_of_two() { shared.ilog2() as usize } else { usize::MAX };
        let after = in_segment.saturating_sub(of_lanes.len()).min(columns.len());
        // A segment's registers stay together in the order of codes.
        let whole = segment.is_none_or(|segment| segment >= chunk);
        let together = if whole { columns.len() } else { after };
        let distributed = holding.adjacent && !dequant.has_words_of_rows();
        let bits = columns.get_mut(elements..together).filter(|_| distributed);
        bits.into_iter().for_each(|bits| bits.rotate_right(WORD_BITS.min(bits.len())));
        let strides: Vec<u32> = columns.iter().skip(elements).map(|bit| bit.stride).collect();
        columns.splice(after..after, of_lanes);
        for (number, bit) in columns.into_iter().enumerate() {
            bit.stride = 1 << number;
        }
        Some(Self { codes, lanes, joined, in_word, order: order_of_columns(&strides) })
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

    /// Whether the words of a unit whose sequence defines the positions of bits are stored apart: in planes, of
    /// each of which a lane has the same word of all of its units. Else a lane's words are contiguous.
    fn apart(&self, sequence: &Sequence) -> bool {
        let units = self.codes.len() - self.in_word;
        units == WORD_BITS || !sequence.inputs.len().is_power_of_two()
    }

    /// The layout of units whose sequence defines the positions of bits, without the open digits. The
    /// same word of all units of a lane is contiguous, then the other words: of all lanes if they are stored
    /// apart, else of the lane.
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
            _ if self.apart(sequence) => format!("u32 [{fields}{unit} | {units}, {lanes}, w]"),
            _ => format!("u32 [{fields}{unit} | {units}, w, {lanes}]"),
        }
    }

    /// The layout of units of several words with whole codes, without the open digits: the same word of all units and lanes
    /// is adjacent.
    fn whole(&self, sequence: &Sequence) -> String {
        let (unit, units) = self.codes.split_at(self.in_word);
        // Codes 1, 2, 4, ... of a unit are a bit of the number each: of those in a word, or of a unit's words.
        let bits = |codes: Vec<u8>| {
            let ones = codes.into_iter().filter(|code| code.is_power_of_two());
            ones.map(|code| unit[code.trailing_zeros() as usize]).collect::<Vec<Bit>>()
        };
        let word = bits(sequence.inputs[0].iter().map(|field| field.code).collect());
        let words = bits(sequence.inputs.iter().map(|fields| fields[0].code).collect());
        let places = digits(&[units, &self.lanes[..], &words].concat());
        format!("u32 [{} | {places}]", digits(&word))
    }

    /// Words of one lane in each plane of such units.
    fn plane_words(&self, sequence: &Sequence) -> Vec<u32> {
        let (units, words) = (1 << (self.codes.len() - self.in_word), sequence.inputs.len());
        match self.apart(sequence) {
            true => vec![units; words],
            false => vec![units * words as u32],
        }
    }
}

/// Whether `ldmatrix` can distribute units of codes, `2^in_word` each, of which a lane has four: the lanes of a row
/// are adjacent, and no segment ends within the columns of those units.
fn distributes(holding: &Holding, segment: Option<u32>, in_word: usize) -> bool {
    let registers = (in_word + WORD_BITS).saturating_sub(holding.element.len());
    let codes = holding.element.iter().chain(holding.registers.iter().take(registers));
    let columns = codes.chain(&holding.lanes).filter(|bit| bit.axis == 'k').count();
    holding.adjacent && segment.is_none_or(|segment| segment.is_multiple_of(1 << columns))
}

/// The numbers, in the order of columns, of registers in the order of codes. `strides` are those in the product
/// of the bits of their columns, in the order of columns. Empty if both orders are the same.
fn order_of_columns(strides: &[u32]) -> Vec<usize> {
    if strides.is_sorted() {
        return Vec::new();
    }
    let in_product = |stride| strides.iter().filter(|&&other| other < stride).count();
    let in_product: Vec<usize> = strides.iter().map(|&stride| in_product(stride)).collect();
    let number = |register: usize| {
        let bits = in_product.iter().enumerate();
        bits.map(|(bit, at)| (register >> at & 1) << bit).sum()
    };
    (0..1 << strides.len()).map(number).collect()
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
