//! Tokens to clauses. Each clause is read independently: an error in one does not hide errors in
//! another.

use super::diagnostic::{Diagnostic, Span};
use super::layouts;
use super::lex::{Token, TokenKind};
use super::reader::{Parsed, Reader, nearest};
use super::syntax::{ActivationSyntax, Clause, ScaleSyntax, SchemeSyntax, ShiftSyntax, Stored};
use crate::format::{NUMBER_BF16, NUMBER_F16, NUMBER_F32, Number};
use crate::layout::{Component, GroupSize};
use crate::scheme::{
    Accumulate, Accuracy, Arithmetic, Code, Experts, Group, ScaleRule, ScaleType, Ties, WeightCode,
    ZeroKind,
};

const KEYWORDS: &[&str] = &[
    "weight",
    "zero",
    "shift",
    "scale",
    "index",
    "pack",
    "prescale",
    "activation",
    "bias",
    "accumulate",
    "output",
    "arithmetic",
    "accuracy",
    "experts",
    "targets",
];

/// Reads `/// doc`, `pub Name { clause, ... }`.
pub(super) fn parse(
    tokens: &[Token],
    end: usize,
    faults: &mut Vec<Diagnostic>,
) -> Option<SchemeSyntax> {
    let mut reader = Reader::new(tokens, end);
    let mut syntax = match header(&mut reader) {
        Ok(syntax) => syntax,
        Err(fault) => {
            faults.push(fault);
            return None;
        }
    };
    while !reader.take_mark('}') {
        if reader.peek().is_none() {
            faults.push(reader.expected("`}` that closes the scheme"));
            return Some(syntax);
        }
        let (start, position) = (reader.span(), reader.position());
        let count = |is: fn(&Clause) -> bool| {
            let levels = syntax.clauses.iter().filter(|(clause, _)| is(clause)).count();
            u8::try_from(levels).unwrap_or(u8::MAX)
        };
        let levels = Levels {
            scales: count(|clause| matches!(clause, Clause::Scale(_))),
            shifts: count(|clause| matches!(clause, Clause::Shift(_))),
        };
        match clause(&mut reader, levels) {
            Ok(clause) => syntax.clauses.push((clause, reader.since(start))),
            Err((keyword, fault)) => {
                let at = fault.span;
                faults.push(fault);
                syntax.broken.extend(keyword);
                reader.recover(position);
                // If the clause ended because the next one starts, there is nothing to skip.
                if at == reader.span() {
                    reader.take_mark(',');
                    continue;
                }
            }
        }
        if !reader.take_mark(',') && !reader.at_mark('}') && reader.peek().is_some() {
            if reader.at_clause() {
                let message = format!("a comma is missing before {}", reader.found());
                let fault = Diagnostic::new(reader.span(), message);
                faults.push(fault.help("clauses are separated by commas"));
            } else {
                faults.push(reader.expected("`,` or `}` after the clause"));
                reader.recover(reader.position());
                reader.take_mark(',');
            }
        }
    }
    if let Err(fault) = reader.finish() {
        faults.push(fault.help("a declaration has one scheme"));
    }
    Some(syntax)
}

fn header(reader: &mut Reader<'_>) -> Parsed<SchemeSyntax> {
    let mut docs = Vec::new();
    while let Some(TokenKind::Doc(line)) = reader.peek() {
        docs.push(line.clone());
        reader.skip();
    }
    reader.take_word("pub");
    let (name, span) = reader.word("the scheme's name")?;
    reader.mark('{', "that opens the scheme")?;
    let name = name.to_owned();
    Ok(SchemeSyntax { name, docs, clauses: Vec::new(), broken: Vec::new(), span })
}

type Broken = (Option<&'static str>, Diagnostic);

/// How many levels are written before a clause.
#[derive(Clone, Copy)]
struct Levels {
    scales: u8,
    shifts: u8,
}

fn clause(reader: &mut Reader<'_>, levels: Levels) -> Result<Clause, Broken> {
    let (word, span) = reader.word("a clause").map_err(|fault| (None, fault))?;
    let Some(keyword) = KEYWORDS.iter().find(|keyword| **keyword == word) else {
        let fault = Diagnostic::new(span, format!("unknown clause `{word}`"));
        let near = nearest(word, KEYWORDS);
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the clauses are {}", KEYWORDS.join(", ")),
        };
        // A misspelled clause is not reported as missing too.
        let meant = near.and_then(|near| KEYWORDS.iter().find(|keyword| **keyword == near));
        return Err((meant.copied(), fault.help(help)));
    };
    body(reader, keyword, levels).map_err(|fault| (Some(*keyword), fault))
}

fn body(reader: &mut Reader<'_>, keyword: &str, levels: Levels) -> Parsed<Clause> {
    reader.mark(':', "after the clause's name")?;
    match keyword {
        "weight" => weight(reader).map(Clause::Weight),
        "zero" => zero(reader),
        "shift" => {
            let negative = reader.take_mark('-');
            let number = number(reader)?;
            let offset = offset(reader)?;
            let group = optional_group(reader)?;
            let stored = stored(reader, Component::Shift(levels.shifts))?;
            Ok(Clause::Shift(ShiftSyntax { number, offset, negative, group, stored }))
        }
        "scale" => scale(reader, Component::Scale(levels.scales)).map(Clause::Scale),
        "index" => {
            let number = number(reader)?;
            Ok(Clause::Index { number, stored: stored(reader, Component::Index)? })
        }
        "pack" => {
            let layout = layouts::layout(reader, Component::Code)?;
            Ok(Clause::Pack { layout, name: reader.name()? })
        }
        "prescale" => {
            let number = float_type(reader)?;
            Ok(Clause::Prescale { number, stored: stored(reader, Component::Prescale)? })
        }
        "activation" => activations(reader).map(Clause::Activation),
        "bias" => {
            let number = float_type(reader)?;
            Ok(Clause::Bias { number, stored: stored(reader, Component::Bias)? })
        }
        "accumulate" => choice(
            reader,
            &[
                ("f32", Clause::Accumulate(Accumulate::F32)),
                ("i32", Clause::Accumulate(Accumulate::I32)),
            ],
        ),
        "output" => float_type(reader).map(Clause::Output),
        "arithmetic" => choice(
            reader,
            &[
                ("f32", Clause::Arithmetic(Arithmetic::F32)),
                ("own", Clause::Arithmetic(Arithmetic::InputDtype)),
            ],
        ),
        "accuracy" => choice(
            reader,
            &[
                ("fast", Clause::Accuracy(Accuracy::Fast)),
                ("exact", Clause::Accuracy(Accuracy::Exact)),
            ],
        ),
        "experts" => choice(
            reader,
            &[
                ("single", Clause::Experts(Experts::Single)),
                ("concatenated", Clause::Experts(Experts::Concatenated)),
                ("interleaved", Clause::Experts(Experts::Interleaved)),
            ],
        ),
        _ => {
            let mut targets = Vec::new();
            loop {
                let (name, span) = reader.word("a target's name")?;
                targets.push((name.to_owned(), span));
                if !reader.take_mark('|') {
                    return Ok(Clause::Targets(targets));
                }
            }
        }
    }
}

fn choice(reader: &mut Reader<'_>, choices: &[(&str, Clause)]) -> Parsed<Clause> {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let (word, span) = reader.word(&names.join(" or "))?;
    let found = choices.iter().find(|(name, _)| *name == word);
    found.map(|(_, clause)| clause.clone()).ok_or_else(|| {
        let fault = Diagnostic::new(span, format!("`{word}` is not an option here"));
        match nearest(word, &names) {
            Some(near) => fault.help(format!("did you mean `{near}`?")),
            None => fault.help(format!("choose {}", names.join(" or "))),
        }
    })
}

fn weight(reader: &mut Reader<'_>) -> Parsed<WeightCode> {
    let start = reader.span();
    let code = if reader.take_word("codebook") {
        codebook(reader, start)?
    } else {
        Code::Number(code_type(reader)?)
    };
    Ok(WeightCode { code, offset: offset(reader)? })
}

/// What is subtracted from a stored number: `- 8`, `+ 8`, or nothing.
fn offset(reader: &mut Reader<'_>) -> Parsed<i32> {
    let sign = if reader.take_mark('-') {
        1
    } else if reader.take_mark('+') {
        -1
    } else {
        0
    };
    let span = reader.span();
    let offset = if sign == 0 { 0 } else { reader.integer("the offset")? };
    let offset = i32::try_from(offset)
        .ok()
        .filter(|offset| *offset <= 1 << 16)
        .ok_or_else(|| Diagnostic::new(span, "an offset is at most 65536"))?;
    Ok(sign * offset)
}

fn codebook(reader: &mut Reader<'_>, start: Span) -> Parsed<Code> {
    reader.mark('(', "before the codebook's values")?;
    let mut values = Vec::new();
    while !reader.take_mark(')') {
        let span = reader.span();
        let value = reader.real("a value of the codebook")? as f32;
        if !value.is_finite() {
            return Err(Diagnostic::new(span, "a codebook's values are finite f32"));
        }
        values.push(value.to_bits());
        if !reader.at_mark(')') {
            reader.mark(',', "between two values")?;
        }
    }
    if !(2..=256).contains(&values.len()) || !values.len().is_power_of_two() {
        let message = format!("a codebook of {} values", values.len());
        return Err(Diagnostic::new(reader.since(start), message)
            .help("a codebook has a power of two of values, 2 to 256: one per code"));
    }
    Ok(Code::Codebook(values))
}

fn number(reader: &mut Reader<'_>) -> Parsed<Number> {
    let (word, span) = reader.word("a number type, such as u4, e4m3 or bf16")?;
    Number::from_name(word).ok_or_else(|| {
        let fault = Diagnostic::new(span, format!("unknown number type `{word}`"));
        // The default suffix may need more bits than the type has.
        let with_suffix = ["fn", "fnuz", "finite"].map(|suffix| format!("{word}{suffix}"));
        if let Some(name) = with_suffix.iter().find(|name| Number::from_name(name).is_some()) {
            return fault.help(format!(
                "8 bits without a suffix are `ieee`, which needs a mantissa bit and two exponent bits: \
                 say `{name}`"
            ));
        }
        let names = [
            "u4", "u8", "i4", "i8", "e2m1", "e2m3", "e3m2", "e4m3", "e4m3fnuz", "e5m2", "e5m2fnuz",
            "e8m0", "f16", "bf16", "f32", "i32",
        ];
        match nearest(word, &names) {
            Some(near) => fault.help(format!("did you mean `{near}`?")),
            None => fault.help(
                "types are u1..u32, i1..i32, eXmY of up to 8 bits (with ieee, fn, fnuz or finite), \
                 e8m0, f16, bf16, f32",
            ),
        }
    })
}

fn code_type(reader: &mut Reader<'_>) -> Parsed<Number> {
    let span = reader.span();
    let number = number(reader)?;
    if number.bits() > 8 || number == Number::E8m0 {
        return Err(Diagnostic::new(span, format!("`{number}` cannot be a code"))
            .help("a code is an integer or a float of at most 8 bits"));
    }
    Ok(number)
}

fn float_type(reader: &mut Reader<'_>) -> Parsed<Number> {
    let span = reader.span();
    let number = number(reader)?;
    if ![NUMBER_F32, NUMBER_F16, NUMBER_BF16].contains(&number) {
        return Err(Diagnostic::new(span, format!("`{number}` is not f32, f16 or bf16")));
    }
    Ok(number)
}

fn zero(reader: &mut Reader<'_>) -> Parsed<Clause> {
    let span = reader.span();
    let number = number(reader)?;
    let kind = match number {
        Number::Uint(bits) | Number::Int(bits) => {
            if bits > 16 {
                return Err(Diagnostic::new(span, "a zero point's code has at most 16 bits"));
            }
            let mut plus = 0;
            if reader.take_mark('+') {
                let at = reader.span();
                plus = i32::try_from(reader.integer("what is added to the stored code")?)
                    .ok()
                    .filter(|plus| *plus <= 256)
                    .ok_or_else(|| Diagnostic::new(at, "at most 256 is added"))?;
            }
            ZeroKind::Codes { number, plus, wraps: reader.take_word("wraps") }
        }
        Number::Float(_) => ZeroKind::Float(number),
        Number::E8m0 => {
            return Err(Diagnostic::new(span, "a power of two cannot be a zero point")
                .help("a zero point is an integer code or a float"));
        }
    };
    let group = optional_group(reader)?;
    Ok(Clause::Zero { kind, group, stored: stored(reader, Component::Zero)? })
}

fn stored(reader: &mut Reader<'_>, own: Component) -> Parsed<Stored> {
    let layout =
        if layouts::at_layout(reader) { Some(layouts::layout(reader, own)?) } else { None };
    Ok(Stored { layout, name: reader.name()? })
}

fn optional_group(reader: &mut Reader<'_>) -> Parsed<Option<Group>> {
    if reader.take_word("per") { group(reader).map(Some) } else { Ok(None) }
}

fn group(reader: &mut Reader<'_>) -> Parsed<Group> {
    let span = reader.span();
    let fault = |text: &str| {
        Diagnostic::new(span, format!("`{text}` is not a group"))
            .help("groups are `1x128` (rows x columns), `channel`, `token` or `tensor`")
    };
    match reader.peek() {
        Some(TokenKind::Word(word)) => {
            let group = match word.as_str() {
                "channel" | "token" => Group::ROW,
                "tensor" => Group::TENSOR,
                _ => return Err(fault(word)),
            };
            reader.skip();
            Ok(group)
        }
        Some(TokenKind::Number(text)) => {
            let extent = |text: &str| {
                text.parse::<u32>().ok().filter(|extent| (1..=1 << 24).contains(extent))
            };
            let sides = text.split_once('x').and_then(|(r, c)| Some((extent(r)?, extent(c)?)));
            let (rows, cols) = sides.ok_or_else(|| fault(text))?;
            reader.skip();
            Ok(Group { rows: GroupSize::Each(rows), cols: GroupSize::Each(cols) })
        }
        _ => Err(reader.expected("a group, such as `1x128`, `channel` or `tensor`")),
    }
}

fn scale(reader: &mut Reader<'_>, own: Component) -> Parsed<ScaleSyntax> {
    let divide = reader.take_word("divide");
    let (number, offset) = if reader.take_word("own") {
        (ScaleType::InputDtype, 0)
    } else {
        (ScaleType::Number(number(reader)?), offset(reader)?)
    };
    reader
        .take_word("per")
        .then_some(())
        .ok_or_else(|| reader.expected("`per` and what shares one scale, such as `per 1x128`"))?;
    let group = group(reader)?;
    let rule = if reader.take_word("from") { Some(rule(reader)?) } else { None };
    let fixed = reader.take_word("static");
    Ok(ScaleSyntax { number, offset, group, divide, rule, fixed, stored: stored(reader, own)? })
}

fn rule(reader: &mut Reader<'_>) -> Parsed<ScaleRule> {
    let (word, span) = reader.word("`amax`, `range` or `pow2`")?;
    if word == "pow2" {
        if reader.take_mark('/') {
            return Ok(ScaleRule::pow2_over(divisor(reader)?));
        }
        if !reader.take_word("above") {
            return Ok(ScaleRule::pow2(None));
        }
        let at = reader.span();
        let above = reader.real("the mantissa from which it rounds up")?;
        if !(1.0..2.0).contains(&above) {
            return Err(Diagnostic::new(at, "a mantissa is in 1..2"));
        }
        return Ok(ScaleRule::pow2(Some(above)));
    }
    let make = match word {
        "amax" => ScaleRule::amax as fn(f64) -> ScaleRule,
        "range" => ScaleRule::range,
        _ => {
            return Err(Diagnostic::new(span, format!("`{word}` does not choose a scale"))
                .help("scales are chosen `from amax / 7.5`, `from range / 15` or `from pow2`"));
        }
    };
    reader.mark('/', "and what the extent is divided by")?;
    Ok(make(divisor(reader)?))
}

fn divisor(reader: &mut Reader<'_>) -> Parsed<f64> {
    let at = reader.span();
    let divisor = reader.real("the divisor")?;
    if !(divisor > 0.0 && divisor.is_finite()) {
        return Err(Diagnostic::new(at, "the divisor is greater than 0"));
    }
    Ok(divisor)
}

fn activations(reader: &mut Reader<'_>) -> Parsed<Vec<ActivationSyntax>> {
    let mut list = vec![activation(reader)?];
    while reader.take_mark('|') {
        list.push(activation(reader)?);
    }
    Ok(list)
}

fn activation(reader: &mut Reader<'_>) -> Parsed<ActivationSyntax> {
    if !matches!(reader.peek_second(), Some(TokenKind::Mark('{'))) {
        let start = reader.span();
        let number = number(reader)?;
        return if [NUMBER_F32, NUMBER_F16, NUMBER_BF16].contains(&number) {
            Ok(ActivationSyntax::Float(number))
        } else {
            Err(Diagnostic::new(start, format!("how is the activation quantised to {number}?"))
                .help(format!("say how: `{number} {{ scale: own per token }}`")))
        };
    }
    let opens = reader.span();
    let code = code_type(reader)?;
    reader.mark('{', "before the quantiser's clauses")?;
    let (mut zero, mut scales, mut ties) = (None, Vec::new(), Ties::Even);
    while !reader.take_mark('}') {
        let start = reader.span();
        let (word, span) = reader.word("`scale`, `zero` or `ties`")?;
        reader.mark(':', "after the clause's name")?;
        match word {
            "scale" => {
                let level = u8::try_from(scales.len()).unwrap_or(u8::MAX);
                let scale = scale(reader, Component::InputScale(level))?;
                scales.push((scale, reader.since(start)));
            }
            "zero" if zero.is_some() => {
                return Err(Diagnostic::new(span, "a second `zero`").help("one is enough"));
            }
            "zero" => {
                let at = reader.span();
                let number = code_type(reader)?;
                if number.is_float() {
                    return Err(Diagnostic::new(at, "a zero point of an activation is an integer"));
                }
                zero = Some(Box::new((number, stored(reader, Component::InputZero)?)));
            }
            "ties" => {
                let (word, span) = reader.word("even or away")?;
                ties = match word {
                    "even" => Ties::Even,
                    "away" => Ties::Away,
                    _ => return Err(Diagnostic::new(span, "halves round to even or away")),
                };
            }
            _ => {
                return Err(Diagnostic::new(span, format!("a quantiser has no clause `{word}`"))
                    .help("its clauses are scale, zero and ties"));
            }
        }
        if !reader.at_mark('}') {
            reader.mark(',', "between two clauses")?;
        }
    }
    Ok(ActivationSyntax::Quantised { code, zero, scales, ties, span: reader.since(opens) })
}
