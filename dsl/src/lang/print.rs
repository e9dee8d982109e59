//! A scheme as text: the inverse of the parser, `parse(print(s)) = s`. Defaults are not printed.

use std::fmt::{self, Display, Formatter, Write as _};

use crate::layout::{Component, GroupSize};
use crate::rules::default_rules;
use crate::scheme::{
    Accumulate, Accuracy, Activation, Arithmetic, Code, Experts, Group, Quantiser, ScaleLevel,
    ScaleRule, ScaleType, Scheme, Ties, WeightCode, ZeroKind, default_layout, default_name,
};

impl Display for Scheme {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.summary.is_empty() {
            for line in self.summary.split('\n') {
                writeln!(f, "{}", format!("/// {line}").trim_end())?;
            }
        }
        writeln!(f, "{} {{", self.name)?;
        writeln!(f, "    weight: {},", self.weight)?;
        if let Some(zero) = &self.zero {
            let group = self.other_group(zero.group);
            writeln!(f, "    zero: {}{group}{},", zero.kind, self.stored(Component::Zero))?;
        }
        for (level, shift) in (0u8..).zip(&self.shifts) {
            let sign = if shift.negative { "-" } else { "" };
            let number = format!("{sign}{}{}", shift.number, offset_text(shift.offset));
            let (group, stored) =
                (self.other_group(shift.group), self.stored(Component::Shift(level)));
            writeln!(f, "    shift: {number}{group}{stored},")?;
        }
        let usual = default_rules(&self.scales, &self.weight, self.zero.is_some());
        for ((level, scale), usual) in (0u8..).zip(&self.scales).zip(usual) {
            let text = scale_text(scale, usual, false);
            writeln!(f, "    scale: {text}{},", self.stored(Component::Scale(level)))?;
        }
        if let Some(number) = self.index {
            writeln!(f, "    index: {number}{},", self.stored(Component::Index))?;
        }
        let mut packs = 0;
        for store in self.stores.iter().filter(|store| store.owner == Component::Code) {
            write!(f, "    pack: {}", store.layout.display(Component::Code))?;
            packs += 1;
            let usual = match packs {
                1 => default_name(Component::Code),
                more => format!("{}_{more}", default_name(Component::Code)),
            };
            if store.name != usual {
                write!(f, " as \"{}\"", store.name)?;
            }
            f.write_str(",\n")?;
        }
        if let Some(number) = self.prescale {
            writeln!(f, "    prescale: {number}{},", self.stored(Component::Prescale))?;
        }
        f.write_str("    activation: ")?;
        for (position, activation) in self.activations.iter().enumerate() {
            if position > 0 {
                f.write_str(" | ")?;
            }
            match activation {
                Activation::Float(number) => write!(f, "{number}")?,
                Activation::Quantised(quantiser) => self.quantiser_text(f, quantiser)?,
            }
        }
        f.write_str(",\n")?;
        if let Some(number) = self.bias {
            writeln!(f, "    bias: {number}{},", self.stored(Component::Bias))?;
        }
        if self.accumulate == Accumulate::I32 {
            f.write_str("    accumulate: i32,\n")?;
        }
        if let Some(number) = self.output {
            writeln!(f, "    output: {number},")?;
        }
        if self.arithmetic == Arithmetic::InputDtype {
            f.write_str("    arithmetic: own,\n")?;
        }
        if self.accuracy == Accuracy::Exact {
            f.write_str("    accuracy: exact,\n")?;
        }
        if let Some(experts) = self.experts {
            let word = match experts {
                Experts::Single => "single",
                Experts::Concatenated => "concatenated",
                Experts::Interleaved => "interleaved",
            };
            writeln!(f, "    experts: {word},")?;
        }
        if !self.targets.is_empty() {
            writeln!(f, "    targets: {},", self.targets.join(" | "))?;
        }
        f.write_str("}\n")
    }
}

impl Scheme {
    /// ` per GROUP` if the group differs from that of the first scale.
    fn other_group(&self, group: Group) -> String {
        match self.scales.first() {
            Some(scale) if scale.group == group => String::new(),
            _ => format!(" per {}", group_text(group, "channel")),
        }
    }

    /// Layout and name of a component's own store, if they are not the defaults.
    fn stored(&self, component: Component) -> String {
        let Some(store) = self.stores.iter().find(|store| store.owner == component) else {
            return String::new();
        };
        let mut text = String::new();
        if store.layout != default_layout(component) {
            let _ = write!(text, " {}", store.layout.display(component));
        }
        if store.name != default_name(component) {
            let _ = write!(text, " as \"{}\"", store.name);
        }
        text
    }

    fn quantiser_text(&self, f: &mut Formatter<'_>, quantiser: &Quantiser) -> fmt::Result {
        write!(f, "{} {{ ", quantiser.code)?;
        let weight = WeightCode { code: Code::Number(quantiser.code), offset: 0 };
        let mut parts = Vec::new();
        if let Some(zero) = quantiser.zero {
            parts.push(format!("zero: {zero}{}", self.stored(Component::InputZero)));
        }
        let usual = default_rules(&quantiser.scales, &weight, quantiser.zero.is_some());
        for ((level, scale), usual) in (0u8..).zip(&quantiser.scales).zip(usual) {
            let text = scale_text(scale, usual, true);
            parts.push(format!("scale: {text}{}", self.stored(Component::InputScale(level))));
        }
        if quantiser.ties == Ties::Away {
            parts.push("ties: away".to_owned());
        }
        write!(f, "{} }}", parts.join(", "))
    }
}

fn scale_text(scale: &ScaleLevel, usual: ScaleRule, activation: bool) -> String {
    let mut text = String::new();
    if scale.divide {
        text.push_str("divide ");
    }
    match scale.number {
        ScaleType::InputDtype => text.push_str("own"),
        ScaleType::Number(number) => {
            let _ = write!(text, "{number}{}", offset_text(scale.offset));
        }
    }
    let row = if activation { "token" } else { "channel" };
    let _ = write!(text, " per {}", group_text(scale.group, row));
    if scale.rule != usual {
        let _ = match scale.rule {
            ScaleRule::Amax(divisor) => write!(text, " from amax / {}", f64::from_bits(divisor)),
            ScaleRule::Range(divisor) => write!(text, " from range / {}", f64::from_bits(divisor)),
            ScaleRule::Pow2Over(divisor) => {
                write!(text, " from pow2 / {}", f64::from_bits(divisor))
            }
            ScaleRule::Pow2 { above: None } => write!(text, " from pow2"),
            ScaleRule::Pow2 { above: Some(above) } => {
                write!(text, " from pow2 above {}", f64::from_bits(above))
            }
        };
    }
    if activation && scale.stored {
        text.push_str(" static");
    }
    text
}

fn group_text(group: Group, row: &str) -> String {
    match (group.rows, group.cols) {
        (GroupSize::All, _) => "tensor".to_owned(),
        (GroupSize::Each(1), GroupSize::All) => row.to_owned(),
        (GroupSize::Each(rows), GroupSize::Each(cols)) => format!("{rows}x{cols}"),
        (GroupSize::Each(rows), GroupSize::All) => format!("{rows}x{}", 1 << 24),
    }
}

impl Display for WeightCode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.code {
            Code::Number(number) => write!(f, "{number}")?,
            Code::Codebook(values) => {
                f.write_str("codebook(")?;
                for (position, bits) in values.iter().enumerate() {
                    if position > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{}", f64::from(f32::from_bits(*bits)))?;
                }
                f.write_str(")")?;
            }
        }
        f.write_str(&offset_text(self.offset))
    }
}

/// ` - 8` if 8 is subtracted from a stored number, ` + 8` if it is added.
pub(crate) fn offset_text(offset: i32) -> String {
    match offset {
        0 => String::new(),
        offset if offset > 0 => format!(" - {offset}"),
        offset => format!(" + {}", offset.unsigned_abs()),
    }
}

impl Display for ZeroKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(number) => write!(f, "{number}"),
            Self::Codes { number, plus, wraps } => {
                write!(f, "{number}")?;
                if *plus != 0 {
                    write!(f, " + {plus}")?;
                }
                if *wraps { f.write_str(" wraps") } else { Ok(()) }
            }
        }
    }
}
