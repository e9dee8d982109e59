//! Layouts as text: the inverse of the layout parser, `parse(print(L)) = L`.

use std::fmt::{self, Display, Formatter};

use super::{Axis, Component, Digit, DigitRange, Field, Fill, Layout, OrderDigit, WordType};

impl Display for Component {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code => f.write_str("code"),
            Self::Scale(0) => f.write_str("scale"),
            Self::Scale(level) => write!(f, "scale{}", level + 1),
            Self::Zero => f.write_str("zero"),
            Self::Shift(0) => f.write_str("shift"),
            Self::Shift(level) => write!(f, "shift{}", level + 1),
            Self::Index => f.write_str("index"),
            Self::Bias => f.write_str("bias"),
            Self::InputScale(0) => f.write_str("input_scale"),
            Self::InputScale(level) => write!(f, "input_scale{}", level + 1),
            Self::InputZero => f.write_str("input_zero"),
            Self::Prescale => f.write_str("prescale"),
        }
    }
}

impl Display for Axis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::E => "e",
            Self::N => "n",
            Self::K => "k",
            Self::G => "g",
        })
    }
}

impl Display for Digit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.down {
            f.write_str("~")?;
        }
        write!(f, "{}", self.axis)?;
        match self.part {
            DigitRange::Sized { stride: 1, size } => write!(f, ":{size}")?,
            DigitRange::Sized { stride, size } => write!(f, "/{stride}:{size}")?,
            DigitRange::Open => {}
            DigitRange::Top { size } => write!(f, "/top:{size}")?,
            DigitRange::Whole => f.write_str(":*")?,
        }
        match &self.swizzle {
            Some(other) => write!(f, " ^ {other}"),
            None => Ok(()),
        }
    }
}

impl Display for OrderDigit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digit(digit) => digit.fmt(f),
            Self::Word => f.write_str("w"),
        }
    }
}

impl Display for Field {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits { component, range, step } => {
                component.fmt(f)?;
                if let Some((low, high)) = range {
                    write!(f, "[{low}..{high}]")?;
                }
                step.map_or(Ok(()), |step| write!(f, " @{step}"))
            }
            Self::Pad { bits, fill } => {
                write!(f, "pad {bits}")?;
                match fill {
                    Fill::Zero => Ok(()),
                    Fill::One => f.write_str(" = 1"),
                    Fill::Sign => f.write_str(" = sign"),
                }
            }
        }
    }
}

impl Display for WordType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.signed { 'i' } else { 'u' }, self.bits)?;
        if self.msf { f.write_str(" msf") } else { Ok(()) }
    }
}

impl Layout {
    /// The text in a clause of component `own`: a run or a list of digits without fields addresses
    /// that component.
    pub fn display(&self, own: Component) -> impl Display + '_ {
        Shown { layout: self, own }
    }
}

struct Shown<'a> {
    layout: &'a Layout,
    own: Component,
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let own = self.own;
        match self.layout {
            Layout::Field(field) => field.fmt(f),
            Layout::Sequence(parts) => {
                f.write_str("{ ")?;
                list(f, parts.iter().map(|layout| Shown { layout, own }))?;
                f.write_str(" }")
            }
            Layout::For { digits, body } if **body == Layout::Field(Field::all(own)) => {
                f.write_str("[")?;
                list(f, digits)?;
                f.write_str("]")
            }
            Layout::For { digits, body } => {
                f.write_str("for [")?;
                list(f, digits)?;
                write!(f, "] {}", Shown { layout: body, own })
            }
            Layout::Word { word, fields, inner, order } => {
                write!(f, "{word} [")?;
                let implied = fields[..] == [Field::all(own)] && !inner.is_empty();
                if !implied {
                    list(f, fields)?;
                    if !inner.is_empty() {
                        f.write_str(", ")?;
                    }
                }
                list(f, inner)?;
                if !order.is_empty() {
                    f.write_str(" | ")?;
                    list(f, order)?;
                }
                f.write_str("]")
            }
        }
    }
}

fn list<T: Display>(f: &mut Formatter<'_>, items: impl IntoIterator<Item = T>) -> fmt::Result {
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}
