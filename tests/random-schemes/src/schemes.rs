//! Random texts of schemes, most of them legal: every clause of the language in random
//! combinations.

use std::fmt::Write as _;

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::{Component, Granularity, GroupSize, Layout};

use crate::dice::Dice;
use crate::layouts::{Placed, layouts, record, super_record, together};

/// A scale level, as drawn.
#[derive(Clone)]
struct Level {
    number: Option<Number>,
    group: Group,
    text: String,
}

/// Rows by columns; `None` is all of them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Group(Option<u32>, Option<u32>);

impl Group {
    const ROW: Self = Self(Some(1), None);
    const TENSOR: Self = Self(None, None);

    fn text(self, row: &str) -> String {
        match self {
            Self(Some(rows), Some(cols)) => format!("{rows}x{cols}"),
            Self(Some(_), None) => row.to_owned(),
            Self(None, _) => "tensor".to_owned(),
        }
    }

    fn granularity(self, bits: u32) -> Granularity {
        let group_size = |count: Option<u32>| count.map_or(GroupSize::All, GroupSize::Each);
        Granularity { bits, rows: group_size(self.0), cols: group_size(self.1) }
    }
}

/// The text of a scheme. The language rejects a few of the texts.
pub fn text(dice: &mut Dice) -> String {
    Drawing { dice, experts: false, placed: Vec::new(), names: 0 }.scheme()
}

struct Drawing<'d> {
    dice: &'d mut Dice,
    experts: bool,
    /// Components that a record stores already.
    placed: Vec<Component>,
    /// Names that are used already.
    names: usize,
}

impl Drawing<'_> {
    fn scheme(&mut self) -> String {
        self.experts = self.dice.percent(12);
        let (weight, bits, integers) = self.weight();
        let zero = integers && self.dice.percent(45);
        let levels = self.levels(zero, &(1, 8));
        let first = levels.first().map(|level| level.group);
        let zero = zero.then(|| self.zero(bits, first)).flatten();
        let shifts = if self.dice.percent(15) { self.shifts(first) } else { Vec::new() };
        let groups = || levels.iter().map(|level| level.group).chain(zero.iter().map(|z| z.1));
        let grouped = groups().any(|group| group.1.is_some());
        let index = (grouped && self.dice.percent(14)).then(|| self.index_type());
        let bias = self.dice.percent(20).then(|| self.float());
        let (activation, exact) = self.activations(integers);

        let mut clauses = vec![weight];
        let code = Placed {
            component: Component::Code,
            granularity: Group(Some(1), Some(1)).granularity(bits),
            experts: self.experts,
        };
        let packs = self.packs(code, &levels, &zero, shifts.first());
        let shared = self.shared(&levels, &zero, shifts.first());
        if let Some((text, group, number)) = &zero {
            clauses.push(format!("zero: {text}{}", self.stored(Component::Zero, *group, *number)));
        }
        for (at, (text, group, number)) in (0u8..).zip(&shifts) {
            let stored = self.stored(Component::Shift(at), *group, *number);
            clauses.push(format!("shift: {text}{stored}"));
        }
        for (at, level) in (0u8..).zip(&levels) {
            let number = level.number.unwrap_or(Number::Uint(8));
            let stored = match (&shared, at) {
                (Some(layout), 0) => format!(" {layout}{}", self.name()),
                _ => self.stored(Component::Scale(at), level.group, number),
            };
            clauses.push(format!("scale: {}{stored}", level.text));
        }
        if let Some(number) = index {
            let stored = self.stored(Component::Index, Group(None, Some(1)), number);
            clauses.push(format!("index: {number}{stored}"));
        }
        clauses.extend(packs);
        clauses.push(format!("activation: {activation}"));
        if let Some(number) = bias {
            let stored = self.stored(Component::Bias, Group::ROW, number);
            clauses.push(format!("bias: {number}{stored}"));
        }
        if !self.experts && self.dice.percent(12) {
            let number = self.float();
            let stored = self.stored(Component::Prescale, Group(None, Some(1)), number);
            clauses.push(format!("prescale: {number}{stored}"));
        }
        if exact && self.dice.percent(35) {
            clauses.push("accumulate: i32".to_owned());
        }
        if self.dice.percent(25) {
            clauses.push(format!("output: {}", self.float()));
        }
        if self.dice.percent(25) {
            clauses.push("arithmetic: own".to_owned());
        }
        if self.dice.percent(10) {
            clauses.push("accuracy: exact".to_owned());
        }
        if self.experts {
            let how = self.dice.of(&["single", "concatenated", "interleaved"]);
            clauses.push(format!("experts: {how}"));
        }
        if self.dice.percent(5) {
            clauses.push(format!("targets: {}", self.dice.of(&["sm_80", "sm_90a | neon", "avx2"])));
        }
        let summary = if self.dice.percent(15) { "/// A random scheme.\n" } else { "" };
        let mut text = format!("{summary}Random {{\n");
        for clause in clauses {
            let _ = writeln!(text, "    {clause},");
        }
        text + "}\n"
    }

    /// Its clause, the width of a code, whether codes are integers.
    fn weight(&mut self) -> (String, u32, bool) {
        match self.dice.below(10) {
            0..=4 => {
                let bits = self.dice.of(&[4, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
                let number = integer(self.dice.one_in(2), bits);
                let offset = match self.dice.below(10) {
                    0..=4 => String::new(),
                    5..=6 => format!(" - {}", 1u32 << (bits - 1)),
                    7 => format!(" - {}", self.dice.within(1, 20)),
                    8 => format!(" + {}", self.dice.within(1, 300)),
                    _ => {
                        let sign = self.dice.of(&["-", "+"]);
                        let most = 1 << self.dice.within(9, 16);
                        format!(" {sign} {}", self.dice.within(1, most))
                    }
                };
                (format!("weight: {number}{offset}"), bits, true)
            }
            5..=7 => {
                let number = self.float_code();
                (format!("weight: {number}"), number.bits(), false)
            }
            _ => {
                let bits = self.dice.of(&[4, 1, 2, 3, 4, 5, 6, 7, 8]);
                (format!("weight: {}", self.codebook(bits)), bits, false)
            }
        }
    }

    fn codebook(&mut self, bits: u32) -> String {
        let size = self.dice.of(&[1.0, 1.0, 6.0, 1e-3, 300.0, 1e4]);
        let rounded = self.dice.one_in(2);
        let mut values: Vec<f64> = (0..1 << bits)
            .map(|_| {
                let value = self.dice.normal() * size;
                if rounded { (value * 64.0).round() / 64.0 } else { value }
            })
            .collect();
        if self.dice.percent(70) {
            values.sort_by(f64::total_cmp);
        }
        let unusual = self.dice.below(values.len());
        match self.dice.below(6) {
            0 => values[unusual] = 0.0,
            1 => values[unusual] = -0.0,
            2 => values[0] = values[unusual],
            _ => {}
        }
        let values: Vec<String> = values.iter().map(|value| format!("{value:.6}")).collect();
        format!("codebook({})", values.join(", "))
    }

    fn float_code(&mut self) -> Number {
        let common = ["e2m1", "e4m3", "e2m3", "e3m2", "e5m2", "e4m3fnuz", "e5m2fnuz", "e3m4"];
        match self.dice.percent(60) {
            true => Number::from_name(self.dice.of(&common)).unwrap_or(Number::Uint(4)),
            false => {
                let all = small_floats();
                self.dice.of(&all)
            }
        }
    }

    /// f32, f16 or bf16.
    fn float(&mut self) -> Number {
        let name = self.dice.of(&["bf16", "f16", "f32"]);
        Number::from_name(name).unwrap_or(Number::Uint(32))
    }

    /// A group of columns, a block, a row or all.
    fn group(&mut self, row: u32) -> Group {
        let cols = self.cols();
        match self.dice.below(20) {
            0..=9 => Group(Some(1), Some(cols)),
            10..=12 => {
                let rows = self.dice.of(&[2, 3, 4, 5, 8, 16, 32, 33, 64, 128]);
                Group(Some(rows), Some(cols))
            }
            13 => Group(Some(row), Some(self.dice.of(&[1 << 24, 1, 4096]))),
            14 => Group(Some(self.dice.of(&[1 << 24, 1, 40])), Some(cols)),
            15..=17 => Group::ROW,
            _ => Group::TENSOR,
        }
    }

    fn cols(&mut self) -> u32 {
        match self.dice.below(10) {
            0..=5 => self.dice.of(&[32, 128, 64, 16, 256, 8]),
            6..=7 => self.dice.of(&[24, 40, 48, 72, 96, 100, 160, 512]),
            8 => self.dice.of(&[1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 20]),
            _ => self.dice.within(1, 300),
        }
    }

    /// Any type that a scale may have.
    fn scale_type(&mut self) -> Number {
        let name = match self.dice.below(20) {
            0..=4 => "bf16",
            5..=8 => "f16",
            9..=12 => "f32",
            13..=14 => "e8m0",
            15..=16 => "e4m3",
            17 => return self.float_code(),
            18 => return Number::Int(self.dice.of(&[8, 6, 4, 2, 7, 16, 32])),
            _ => return Number::Uint(self.dice.of(&[8, 6, 4, 1, 3, 16, 32])),
        };
        Number::from_name(name).unwrap_or(Number::Uint(8))
    }

    /// The weight's levels, finest first.
    fn levels(&mut self, zero: bool, (few, most): &(usize, usize)) -> Vec<Level> {
        let count = match self.dice.below(40) {
            0..=2 => 0,
            3..=26 => *few,
            27..=34 => few + 1,
            35..=37 => few + 2,
            _ => self.dice.within(4, *most as u32) as usize,
        };
        let mut levels: Vec<Level> = Vec::new();
        for _ in 0..count {
            let mut group = self.group(1);
            // Usually a coarser level with as many rows.
            if let Some(Level { group: Group(Some(rows), Some(cols)), .. }) = levels.last()
                && self.dice.percent(70)
            {
                let times = self.dice.of(&[8, 2, 4, 16, 3]);
                let coarser = Group(Some(*rows), Some(cols.saturating_mul(times).min(1 << 24)));
                group = self.dice.of(&[coarser, Group::ROW, Group::TENSOR]);
            }
            let number = self.scale_type();
            let divide = if self.dice.percent(12) { "divide " } else { "" };
            let offset = match divide {
                "" if self.dice.percent(35) => self.offset(number),
                _ => String::new(),
            };
            let rule = self.rule(zero);
            let text = format!("{divide}{number}{offset} per {}{rule}", group.text("channel"));
            levels.push(Level { number: Some(number), group, text });
        }
        levels
    }

    fn rule(&mut self, zero: bool) -> String {
        let divisor =
            self.dice.of(&["127", "7", "7.5", "448", "6", "2688", "31", "0.3", "1", "1e3"]);
        match self.dice.below(20) {
            0..=12 => String::new(),
            13..=15 => format!(" from amax / {divisor}"),
            16 if zero => format!(" from range / {divisor}"),
            17 => " from pow2".to_owned(),
            18 => format!(" from pow2 above {}", self.dice.of(&["1", "1.5", "1.75", "1.9375"])),
            _ => String::new(),
        }
    }

    /// Clause, group, type.
    fn zero(&mut self, bits: u32, first: Option<Group>) -> Option<(String, Group, Number)> {
        let (mut text, number) = match self.dice.below(10) {
            0..=6 => {
                let width = match self.dice.below(6) {
                    0..=3 => bits,
                    4 => 8,
                    _ => self.dice.within(1, 16),
                };
                let number = integer(self.dice.one_in(4), width);
                let plus = match self.dice.below(6) {
                    0 => " + 1".to_owned(),
                    1 => format!(" + {}", self.dice.within(2, 256)),
                    _ => String::new(),
                };
                let wraps = if self.dice.one_in(5) { " wraps" } else { "" };
                (format!("{number}{plus}{wraps}"), number)
            }
            7 => {
                let number = self.float_code();
                (number.to_string(), number)
            }
            _ => {
                let number = self.float();
                (number.to_string(), number)
            }
        };
        let group = self.own_group(&mut text, first)?;
        Some((text, group, number))
    }

    /// The levels of a shift, finest first, at least one of them a float.
    fn shifts(&mut self, first: Option<Group>) -> Vec<(String, Group, Number)> {
        let count = self.dice.of(&[1, 1, 1, 2, 2, 2, 2, 3, 4]);
        let float = self.dice.below(count);
        let mut levels: Vec<(String, Group, Number)> = Vec::new();
        for at in 0..count {
            let number = match at == float || self.dice.one_in(5) {
                true if self.dice.one_in(5) => self.float_code(),
                true => self.float(),
                false => {
                    let bits = self.dice.of(&[6, 4, 8, 5, 3, 7, 1, 16]);
                    integer(self.dice.one_in(4), bits)
                }
            };
            let sign = if self.dice.one_in(3) { "-" } else { "" };
            let offset = if self.dice.one_in(3) { self.offset(number) } else { String::new() };
            let mut text = format!("{sign}{number}{offset}");
            let coarser = match levels.last() {
                Some((_, Group(rows, Some(cols)), _)) if self.dice.percent(70) => {
                    let times = self.dice.of(&[8, 2, 4, 16, 3]);
                    Some(Group(*rows, Some(cols.saturating_mul(times).min(1 << 24))))
                }
                _ => None,
            };
            let group = match coarser {
                Some(group) => {
                    let _ = write!(text, " per {}", group.text("channel"));
                    Some(group)
                }
                None => self.own_group(&mut text, first),
            };
            levels.extend(group.map(|group| (text, group, number)));
        }
        levels
    }

    /// What is subtracted from integers, or added to them; nothing for floats.
    fn offset(&mut self, number: Number) -> String {
        let half = match number {
            Number::Uint(bits) | Number::Int(bits) => 1 << (bits - 1).min(12),
            _ => return String::new(),
        };
        match self.dice.below(4) {
            0 => format!(" + {}", self.dice.within(1, 300)),
            1 => format!(" - {}", self.dice.within(1, half)),
            _ => format!(" - {half}"),
        }
    }

    /// Usually the group of the first scale.
    fn own_group(&mut self, text: &mut String, first: Option<Group>) -> Option<Group> {
        match first {
            Some(first) if self.dice.percent(75) => Some(first),
            _ => {
                let group = self.group(1);
                let _ = write!(text, " per {}", group.text("channel"));
                Some(group)
            }
        }
    }

    fn index_type(&mut self) -> Number {
        let bits = self.dice.of(&[32, 32, 16, 8, 31, 12]);
        if self.dice.one_in(3) { Number::Uint(bits) } else { Number::Int(bits) }
    }

    /// The clause's value, and whether `accumulate: i32` is legal.
    fn activations(&mut self, integers: bool) -> (String, bool) {
        let mut floats = ["bf16", "f16", "f32"];
        self.dice.shuffle(&mut floats);
        let count = self.dice.of(&[1, 1, 1, 2, 2, 3]);
        let mut list: Vec<String> = floats[..count].iter().map(|name| (*name).to_owned()).collect();
        if self.dice.percent(50) {
            return (list.join(" | "), false);
        }
        let (text, exact) = self.quantiser();
        if self.dice.percent(80) {
            return (text, exact && integers);
        }
        list.insert(self.dice.below(list.len() + 1), text);
        (list.join(" | "), false)
    }

    fn quantiser(&mut self) -> (String, bool) {
        let number = match self.dice.below(10) {
            0..=4 => Number::Int(8),
            5 => integer(true, self.dice.within(1, 8)),
            6 => Number::Uint(self.dice.of(&[8, 8, 4, 1, 2, 3, 5, 6, 7])),
            _ => self.float_code(),
        };
        let mut clauses = Vec::new();
        let zero = !number.is_float() && self.dice.percent(25);
        let count = self.dice.of(&[1, 1, 1, 1, 1, 1, 2, 2, 3]);
        let mut first_static = false;
        for level in 0..count {
            let group = match self.dice.below(10) {
                0..=4 => Group::ROW,
                5..=7 => Group(Some(1), Some(self.cols())),
                8 => Group::TENSOR,
                _ => self.group(1),
            };
            // Usually finest first.
            let last = level + 1 == count && self.dice.percent(60);
            let group = match (level, last) {
                (0, _) if count > 1 && self.dice.percent(70) => Group(Some(1), Some(self.cols())),
                (1.., true) => self.dice.of(&[Group::TENSOR, Group::ROW]),
                _ => group,
            };
            let fixed = group == Group::TENSOR && self.dice.percent(60);
            let scale =
                if !fixed && self.dice.percent(30) { None } else { Some(self.scale_type()) };
            let divide = if self.dice.percent(10) { "divide " } else { "" };
            let rule = self.rule(zero);
            let kind = scale.map_or("own".to_owned(), |number| number.to_string());
            let mut text = format!("scale: {divide}{kind} per {}{rule}", group.text("token"));
            if fixed {
                first_static |= level == 0;
                text.push_str(" static");
                let number = scale.unwrap_or(Number::Uint(8));
                text.push_str(&self.stored(Component::InputScale(level), group, number));
            }
            clauses.push(text);
        }
        if zero {
            let number = if self.dice.percent(75) { number } else { Number::Uint(8) };
            let stored = match first_static {
                true => self.stored(Component::InputZero, Group::TENSOR, number),
                false => String::new(),
            };
            clauses.push(format!("zero: {number}{stored}"));
        }
        if self.dice.percent(25) {
            clauses.push("ties: away".to_owned());
        }
        (format!("{number} {{ {} }}", clauses.join(", ")), !number.is_float())
    }

    /// The `pack` clauses, which may also store scales, zero points and shifts.
    fn packs(
        &mut self,
        code: Placed,
        levels: &[Level],
        zero: &Option<(String, Group, Number)>,
        shift: Option<&(String, Group, Number)>,
    ) -> Vec<String> {
        let layouts = match self.dice.percent(15) {
            true => self.record(code, levels, zero, shift).map(|layout| vec![layout]),
            false => None,
        };
        let layouts = layouts.unwrap_or_else(|| layouts_of(self.dice, code));
        let pack = |layout: &Layout| format!("pack: {}", layout.display(Component::Code));
        let mut packs: Vec<String> = layouts.iter().map(pack).collect();
        for pack in &mut packs {
            pack.push_str(&self.name());
        }
        packs
    }

    fn record(
        &mut self,
        code: Placed,
        levels: &[Level],
        zero: &Option<(String, Group, Number)>,
        shift: Option<&(String, Group, Number)>,
    ) -> Option<Layout> {
        let group @ Group(Some(rows), Some(cols)) = levels.first()?.group else { return None };
        if u64::from(rows) * u64::from(cols) > 512 {
            return None;
        }
        let placed = |component, number: Number, group: Group| Placed {
            component,
            granularity: group.granularity(number.bits()),
            experts: code.experts,
        };
        let mut small = vec![placed(Component::Scale(0), levels[0].number?, group)];
        let others = [(Component::Zero, zero.as_ref()), (Component::Shift(0), shift)];
        for (component, other) in others {
            if let Some((_, its, number)) = other
                && *its == group
                && self.dice.percent(70)
            {
                small.push(placed(component, *number, group));
            }
        }
        let second = levels.get(1).and_then(|level| match level.group {
            Group(Some(1), Some(wide)) if rows == 1 && wide > cols && wide % cols == 0 => {
                Some((placed(Component::Scale(1), level.number?, level.group), wide / cols))
            }
            _ => None,
        });
        self.placed.extend(small.iter().map(|placed| placed.component));
        Some(match second {
            Some((large, times)) if times <= 16 => {
                self.placed.push(large.component);
                super_record(self.dice, code, &small, &[large], cols, times)
            }
            _ => record(self.dice, code, &small, (rows, cols)),
        })
    }

    /// The layout of the first scale, which may also store the zero point or the shift.
    fn shared(
        &mut self,
        levels: &[Level],
        zero: &Option<(String, Group, Number)>,
        shift: Option<&(String, Group, Number)>,
    ) -> Option<String> {
        let Level { number, group, .. } = levels.first()?;
        if self.placed.contains(&Component::Scale(0)) || self.dice.percent(75) {
            return None;
        }
        let experts = self.experts;
        let part = |component, number: Number| Placed {
            component,
            granularity: group.granularity(number.bits()),
            experts,
        };
        let mut all = vec![part(Component::Scale(0), (*number)?)];
        for (component, other) in [(Component::Zero, zero.as_ref()), (Component::Shift(0), shift)] {
            if let Some((_, its, number)) = other
                && its == group
            {
                all.push(part(component, *number));
            }
        }
        if all.len() < 2 {
            return None;
        }
        self.placed.extend(all.iter().skip(1).map(|placed| placed.component));
        Some(together(self.dice, &all).display(Component::Scale(0)).to_string())
    }

    /// ` LAYOUT as "name"` of a component, each if necessary; empty if a record stores the
    /// component.
    fn stored(&mut self, component: Component, group: Group, number: Number) -> String {
        if self.placed.contains(&component) {
            return String::new();
        }
        let usual = !self.experts && self.dice.percent(45);
        let layout = match usual {
            true => String::new(),
            false => {
                let granularity = group.granularity(number.bits());
                let placed = Placed { component, granularity, experts: self.experts };
                // One layout per clause.
                let mut layouts = layouts_of(self.dice, placed);
                let layout = match layouts.len() {
                    1 => layouts.remove(0),
                    _ => Layout::Sequence(layouts),
                };
                format!(" {}", layout.display(component))
            }
        };
        layout + &self.name()
    }

    fn name(&mut self) -> String {
        if self.dice.percent(65) {
            return String::new();
        }
        self.names += 1;
        let stem =
            self.dice.of(&["qweight", "w [x]", "größe", "a.b", "_packed", "scales-inv", "W"]);
        format!(" as \"{stem}{}\"", self.names)
    }
}

fn integer(signed: bool, bits: u32) -> Number {
    let bits = bits as u8;
    if signed { Number::Int(bits) } else { Number::Uint(bits) }
}

fn layouts_of(dice: &mut Dice, placed: Placed) -> Vec<Layout> {
    layouts(dice, placed)
}

/// Every float type of at most 8 bits that may be a code.
pub fn small_floats() -> Vec<Number> {
    let mut all = Vec::new();
    for (exponent, mantissa) in (1..=7).flat_map(|e| (0..=6).map(move |m| (e, m))) {
        for variant in ["", "ieee", "fn", "fnuz", "finite"] {
            let number = Number::from_name(&format!("e{exponent}m{mantissa}{variant}"));
            all.extend(number.filter(|number| number.bits() <= 8 && *number != Number::E8m0));
        }
    }
    all
}
