//! Layouts as text.

use super::diagnostic::{Diagnostic, Span};
use super::lex::TokenKind;
use super::reader::{Parsed, Reader, nearest};
use crate::layout::{
    Axis, Component, Digit, DigitRange, Field, Fill, Layout, OrderDigit, WordType,
};

/// A layout and the spans at which its errors are reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutSyntax {
    /// The layout.
    pub layout: Layout,
    /// The span of the whole layout.
    pub span: Span,
    /// The span of each digit, in the order of the text.
    pub digits: Vec<Span>,
    /// The span of each field, in the order of the text; a field that is implied has the span of
    /// its word.
    pub fields: Vec<Span>,
    /// The span of each node of the tree, parents before children.
    pub parts: Vec<Span>,
}

/// Deeper trees are rejected, so that no input exhausts the stack.
const DEEPEST: usize = 16;

struct Layouts<'r, 'a> {
    reader: &'r mut Reader<'a>,
    own: Component,
    digits: Vec<Span>,
    fields: Vec<Span>,
    parts: Vec<Span>,
}

pub(super) fn layout(reader: &mut Reader<'_>, own: Component) -> Parsed<LayoutSyntax> {
    let start = reader.span();
    let mut layouts = Layouts::new(reader, own);
    let layout = layouts.layout(0)?;
    let Layouts { reader, digits, fields, parts, .. } = layouts;
    Ok(LayoutSyntax { layout, span: reader.since(start), digits, fields, parts })
}

/// Whether a layout starts here.
pub(super) fn at_layout(reader: &Reader<'_>) -> bool {
    let word = matches!(reader.peek(), Some(TokenKind::Word(word)) if word_bits(word).is_some());
    let bracket = reader.peek_second() == Some(&TokenKind::Mark('['))
        || matches!(reader.peek_second(), Some(TokenKind::Word(word)) if word == "msf");
    reader.at_mark('[') || reader.at_mark('{') || reader.at_word("for") || word && bracket
}

/// Outputs of a fragment, `[.. ; .. ; ..]`.
pub(super) fn fragment(reader: &mut Reader<'_>) -> Parsed<Vec<Vec<Digit>>> {
    let mut layouts = Layouts::new(reader, Component::Code);
    layouts.reader.mark('[', "that opens the fragment")?;
    let mut outputs = vec![Vec::new()];
    while !layouts.reader.take_mark(']') {
        if layouts.reader.take_mark(';') {
            outputs.push(Vec::new());
            continue;
        }
        let digit = layouts.digit(0)?;
        if let Some(output) = outputs.last_mut() {
            output.push(digit);
        }
        let ends = layouts.reader.at_mark(']') || layouts.reader.at_mark(';');
        if !ends {
            layouts.reader.mark(',', "between two digits")?;
        }
    }
    Ok(outputs)
}

impl<'r, 'a> Layouts<'r, 'a> {
    fn new(reader: &'r mut Reader<'a>, own: Component) -> Self {
        Self { reader, own, digits: Vec::new(), fields: Vec::new(), parts: Vec::new() }
    }
}

impl Layouts<'_, '_> {
    fn layout(&mut self, depth: usize) -> Parsed<Layout> {
        let (start, part) = (self.reader.span(), self.parts.len());
        self.parts.push(start);
        let layout = self.part_of_tree(depth)?;
        let whole = self.reader.since(start);
        self.parts[part] = whole;
        Ok(layout)
    }

    fn part_of_tree(&mut self, depth: usize) -> Parsed<Layout> {
        if depth > DEEPEST {
            let message = format!("layouts nest at most {DEEPEST} deep");
            return Err(Diagnostic::new(self.reader.span(), message));
        }
        if self.reader.take_mark('{') {
            let mut parts = Vec::new();
            loop {
                parts.push(self.layout(depth + 1)?);
                if !self.reader.take_mark(',') || self.reader.at_mark('}') {
                    break;
                }
            }
            self.reader.mark('}', "that closes the record")?;
            return Ok(Layout::Sequence(parts));
        }
        if self.reader.take_word("for") {
            let digits = self.bracketed_digits()?;
            let body = Box::new(self.layout(depth + 1)?);
            return Ok(Layout::For { digits, body });
        }
        if self.reader.at_mark('[') {
            let start = self.reader.span();
            let digits = self.bracketed_digits()?;
            self.fields.push(self.reader.since(start));
            // The repeated field is implied.
            self.parts.push(self.reader.since(start));
            return Ok(Layout::elements(self.own, digits));
        }
        if let Some(TokenKind::Word(word)) = self.reader.peek()
            && let Some((signed, bits)) = word_bits(word)
        {
            return self.word(signed, bits);
        }
        Ok(Layout::Field(self.field()?))
    }

    fn bracketed_digits(&mut self) -> Parsed<Vec<Digit>> {
        self.reader.mark('[', "before the digits")?;
        let mut digits = Vec::new();
        while !self.reader.take_mark(']') {
            digits.push(self.digit(0)?);
            if !self.reader.at_mark(']') {
                self.reader.mark(',', "between two digits")?;
            }
        }
        Ok(digits)
    }

    fn word(&mut self, signed: bool, bits: u32) -> Parsed<Layout> {
        let span = self.reader.span();
        self.reader.skip();
        if ![8, 16, 32, 64].contains(&bits) {
            let fault = Diagnostic::new(span, format!("words of {bits} bits are not supported"));
            return Err(fault.help("words have 8, 16, 32 or 64 bits"));
        }
        let msf = self.reader.take_word("msf");
        let word = WordType { bits: bits as u8, signed, msf };
        self.reader.mark('[', "before what fills the word")?;
        let (mut fields, mut inner, mut order) = (Vec::new(), Vec::new(), Vec::new());
        while !self.reader.at_mark(']') && !self.reader.at_mark('|') {
            if self.at_digit() {
                inner.push(self.digit(0)?);
            } else if inner.is_empty() {
                fields.push(self.field()?);
            } else {
                return Err(self.reader.expected("a digit (fields precede the digits)"));
            }
            if !self.reader.at_mark(']') && !self.reader.at_mark('|') {
                self.reader.mark(',', "between two parts of the run")?;
            }
        }
        if fields.is_empty() && inner.is_empty() {
            return Err(self.reader.expected("what fills the word: fields or digits"));
        }
        let implied = fields.is_empty();
        if implied {
            fields.push(Field::all(self.own));
        }
        if self.reader.take_mark('|') {
            while !self.reader.at_mark(']') {
                order.push(self.place(&order)?);
                if !self.reader.at_mark(']') {
                    self.reader.mark(',', "between two digits")?;
                }
            }
        }
        self.reader.mark(']', "that closes the word")?;
        if implied {
            self.fields.push(self.reader.since(span));
        }
        Ok(Layout::Word { word, fields, inner, order })
    }

    fn place(&mut self, before: &[OrderDigit]) -> Parsed<OrderDigit> {
        let span = self.reader.span();
        if !self.reader.take_word("w") {
            return self.digit(0).map(OrderDigit::Digit);
        }
        if before.contains(&OrderDigit::Word) {
            return Err(Diagnostic::new(span, "the word digit `w` occurs twice"));
        }
        Ok(OrderDigit::Word)
    }

    fn at_digit(&self) -> bool {
        let axis =
            matches!(self.reader.peek(), Some(TokenKind::Word(word)) if axis(word).is_some());
        self.reader.at_mark('~') || axis
    }

    fn digit(&mut self, depth: usize) -> Parsed<Digit> {
        let start = self.reader.span();
        let down = self.reader.take_mark('~');
        let (name, span) = self.reader.word("a digit, such as `k:8`, `n` or `k/2:4`")?;
        let Some(axis) = axis(name) else {
            let fault = Diagnostic::new(span, format!("`{name}` is not an axis"));
            return Err(fault.help(
                "the axes are n (output rows), k (input columns), g (groups along k), e (experts); \
                 `w` is the word of a run and comes after the `|`",
            ));
        };
        let part = self.part()?;
        let swizzle = if self.reader.take_mark('^') {
            if depth > 0 {
                return Err(Diagnostic::new(span, "a digit is XORed with one other digit"));
            }
            let digits = self.digits.len();
            let other = self.digit(depth + 1)?;
            self.digits.truncate(digits);
            Some(Box::new(other))
        } else {
            None
        };
        self.digits.push(self.reader.since(start));
        Ok(Digit { axis, part, down, swizzle })
    }

    fn part(&mut self) -> Parsed<DigitRange> {
        if self.reader.take_mark('/') {
            if self.reader.take_mark('/') {
                let size = self.reader.integer("the number of parts")?;
                return Ok(DigitRange::Top { size });
            }
            if self.reader.take_word("top") {
                self.reader.mark(':', "before the number of parts")?;
                let size = self.reader.integer("the number of parts")?;
                return Ok(DigitRange::Top { size });
            }
            let stride = self.reader.integer("the digit's stride, or `top`")?;
            self.reader.mark(':', "before the digit's size")?;
            let size = self.reader.integer("the digit's size")?;
            return Ok(DigitRange::Sized { stride, size });
        }
        if !self.reader.take_mark(':') {
            return Ok(DigitRange::Open);
        }
        if self.reader.take_mark('*') {
            return Ok(DigitRange::Whole);
        }
        let size = self.reader.integer("the digit's size")?;
        Ok(DigitRange::Sized { stride: 1, size })
    }

    fn field(&mut self) -> Parsed<Field> {
        let start = self.reader.span();
        if self.reader.take_word("pad") {
            let span = self.reader.span();
            let bits = self.reader.integer("the number of bits")?;
            let bits = u8::try_from(bits).ok().filter(|bits| (1..=64).contains(bits));
            let bits = bits.ok_or_else(|| Diagnostic::new(span, "a pad has 1 to 64 bits"))?;
            let fill = self.fill()?;
            if self.reader.at_mark('@') {
                let fault = Diagnostic::new(self.reader.span(), "a pad has no step");
                return Err(fault.help("remove the step: a pad is stored where it is written"));
            }
            self.fields.push(self.reader.since(start));
            return Ok(Field::Pad { bits, fill });
        }
        let (name, span) = self.reader.word("a component, such as `code` or `scale`")?;
        let Some(component) = component(name) else {
            let mut fault = Diagnostic::new(span, format!("`{name}` is not a component"));
            let names = ["code", "scale", "zero", "shift", "index", "bias", "pad", "input_scale"];
            fault.help = Some(match nearest(name, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    "the components are code, scale, scale2, zero, shift, shift2, index, bias, \
                         input_scale, input_zero"
                        .to_owned()
                }
            });
            return Err(fault);
        };
        let mut range = None;
        if self.reader.take_mark('[') {
            let low = self.reader.integer("the first bit of the slice")?;
            self.reader.mark('.', "of `low..high`")?;
            self.reader.mark('.', "of `low..high`")?;
            let high = self.reader.integer("one past the last bit of the slice")?;
            self.reader.mark(']', "that closes the slice")?;
            let bit = |bit: u32| {
                u8::try_from(bit).map_err(|_| Diagnostic::new(span, "codes have fewer bits"))
            };
            range = Some((bit(low)?, bit(high)?));
        }
        let step = self.step()?;
        self.fields.push(self.reader.since(start));
        Ok(Field::Bits { component, range, step })
    }

    fn step(&mut self) -> Parsed<Option<u16>> {
        if !self.reader.take_mark('@') {
            return Ok(None);
        }
        let span = self.reader.span();
        let step = self.reader.integer("the step of the run that the field is of")?;
        let most = || Diagnostic::new(span, format!("a step is at most {}", u16::MAX));
        u16::try_from(step).map(Some).map_err(|_| most())
    }

    fn fill(&mut self) -> Parsed<Fill> {
        if !self.reader.take_mark('=') {
            return Ok(Fill::Zero);
        }
        if self.reader.take_word("sign") {
            return Ok(Fill::Sign);
        }
        let span = self.reader.span();
        match self.reader.integer("what fills the pad: 0, 1 or sign")? {
            0 => Ok(Fill::Zero),
            1 => Ok(Fill::One),
            _ => Err(Diagnostic::new(span, "a pad is filled with 0, 1 or sign")),
        }
    }
}

fn axis(name: &str) -> Option<Axis> {
    match name {
        "n" => Some(Axis::N),
        "k" => Some(Axis::K),
        "g" => Some(Axis::G),
        "e" => Some(Axis::E),
        _ => None,
    }
}

/// Signedness and width of `u32`, `i8` and the like.
fn word_bits(name: &str) -> Option<(bool, u32)> {
    let (signed, digits) = match name.as_bytes().first()? {
        b'u' => (false, &name[1..]),
        b'i' => (true, &name[1..]),
        _ => return None,
    };
    digits.parse().ok().map(|bits| (signed, bits))
}

fn component(name: &str) -> Option<Component> {
    let level = |rest: &str| match rest {
        "" => Some(0),
        digits => digits.parse::<u8>().ok().filter(|level| *level >= 2).map(|level| level - 1),
    };
    match name {
        "code" => Some(Component::Code),
        "zero" => Some(Component::Zero),
        "index" => Some(Component::Index),
        "bias" => Some(Component::Bias),
        "input_zero" => Some(Component::InputZero),
        "prescale" => Some(Component::Prescale),
        _ => match name.strip_prefix("input_scale") {
            Some(rest) => level(rest).map(Component::InputScale),
            None => match name.strip_prefix("shift") {
                Some(rest) => level(rest).map(Component::Shift),
                None => level(name.strip_prefix("scale")?).map(Component::Scale),
            },
        },
    }
}
