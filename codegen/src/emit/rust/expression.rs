//! Prints a sequence as Rust expressions over `Vector`. A result that is used once is an inline
//! expression; one that is used more often gets a `let` with the name from its template.

use std::collections::BTreeMap;

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{format_ident, quote};

use super::RustEmitError;
use crate::plan::Sequence;
use crate::plan::sink::{ShiftOp, StepSink, WordOp};
use crate::plan::step::{Arg, SequenceRegister, Step};

/// Statements and the outputs' expressions.
pub(super) struct Body {
    pub(super) lets: TokenStream,
    pub(super) outputs: Vec<TokenStream>,
}

/// Prints the steps that some outputs need; `given` has the expressions of inputs.
pub(super) struct ExprPrinter<'a> {
    sequence: &'a Sequence,
    /// Registers that already have an expression.
    given: BTreeMap<SequenceRegister, TokenStream>,
    reads: BTreeMap<SequenceRegister, usize>,
    /// Constants that are read more than once.
    constants: BTreeMap<u32, Ident>,
    lets: TokenStream,
    /// The first step that vectors have no method for.
    missing: Option<RustEmitError>,
}

impl<'a> ExprPrinter<'a> {
    /// Counts the uses of registers and constants in the steps that `outputs` need.
    pub(super) fn new(
        sequence: &'a Sequence,
        outputs: &[SequenceRegister],
        given: BTreeMap<SequenceRegister, TokenStream>,
    ) -> Self {
        let needed = needed(sequence, outputs, &given);
        let mut reads: BTreeMap<SequenceRegister, usize> = BTreeMap::new();
        let mut words: BTreeMap<u32, usize> = BTreeMap::new();
        for register in &needed {
            for arg in step(sequence, *register).args() {
                match arg {
                    Arg::Register(register) => *reads.entry(register).or_default() += 1,
                    Arg::Word(word) => *words.entry(word).or_default() += 1,
                }
            }
        }
        for output in outputs {
            *reads.entry(*output).or_default() += 1;
        }
        let mut lets = TokenStream::new();
        let mut constants = BTreeMap::new();
        // In the order in which the sequence names them.
        for (what, name) in &sequence.names {
            let Arg::Word(word) = *what else { continue };
            if words.get(&word).is_some_and(|count| *count > 1) {
                let name = format_ident!("{name}");
                let value = splat(word);
                lets.extend(quote!(let #name = #value;));
                constants.insert(word, name);
            }
        }
        Self { sequence, given, reads, constants, lets, missing: None }
    }

    /// The statements and the outputs.
    pub(super) fn body(mut self, outputs: &[SequenceRegister]) -> Result<Body, RustEmitError> {
        let outputs = outputs.iter().map(|register| self.register(*register)).collect();
        match self.missing {
            Some(missing) => Err(missing),
            None => Ok(Body { lets: self.lets, outputs }),
        }
    }

    fn register(&mut self, register: SequenceRegister) -> TokenStream {
        if let Some(known) = self.given.get(&register) {
            return known.clone();
        }
        let step = step(self.sequence, register);
        let Some(Spelled { text, .. }) = step.lower(self) else {
            let template = self.sequence.template;
            let missing = RustEmitError::Step { template, step: format!("{step:?}") };
            self.missing.get_or_insert(missing);
            return TokenStream::new();
        };
        if self.reads.get(&register).copied().unwrap_or(0) <= 1 {
            return text;
        }
        let name = name(self.sequence, register);
        self.lets.extend(quote!(let #name = #text;));
        let name = quote!(#name);
        self.given.insert(register, name.clone());
        name
    }
}

/// What a step reads or leaves, as an expression.
pub(super) struct Spelled {
    text: TokenStream,
    /// The word, if the expression is a constant without a name.
    word: Option<u32>,
}

impl Spelled {
    const fn new(text: TokenStream) -> Self {
        Self { text, word: None }
    }

    /// A method of the vector with one argument.
    fn method(self, name: &str, argument: &TokenStream) -> Self {
        let (this, name) = (self.text, format_ident!("{name}"));
        Self::new(quote!(#this.#name(#argument)))
    }
}

impl StepSink for ExprPrinter<'_> {
    type Value = Spelled;

    fn arg(&mut self, arg: Arg) -> Spelled {
        match arg {
            Arg::Register(register) => Spelled::new(self.register(register)),
            Arg::Word(word) => match self.constants.get(&word) {
                Some(name) => Spelled::new(quote!(#name)),
                None => Spelled { text: splat(word), word: Some(word) },
            },
        }
    }

    fn word(&mut self, op: WordOp, a: Spelled, b: Spelled) -> Option<Spelled> {
        let method = match op {
            WordOp::And => "and",
            WordOp::Or => "or",
            WordOp::Xor => "xor",
            WordOp::Add => "add",
        };
        Some(a.method(method, &b.text))
    }

    fn shift(&mut self, op: ShiftOp, a: Spelled, by: u8) -> Option<Spelled> {
        let method = match op {
            ShiftOp::Left => format_ident!("shl"),
            ShiftOp::Right => format_ident!("shr"),
            ShiftOp::RightSigned => format_ident!("sar"),
            ShiftOp::RotateLeft => return None,
        };
        let (word, by) = (a.text, Literal::u8_unsuffixed(by));
        Some(Spelled::new(quote!(#word.#method::<#by>())))
    }

    fn lookup_f32(&mut self, table: &[u32], index: Spelled) -> Option<Spelled> {
        let method = if table.len() == 16 { "table_f32" } else { "gather_f32" };
        Some(index.method(method, &quote!(&TABLE)))
    }

    fn int_to_f32(&mut self, a: Spelled) -> Option<Spelled> {
        Some(a.method("to_f32", &TokenStream::new()))
    }

    /// The second operand says which number it is, if it is a constant.
    fn add_f32(&mut self, a: Spelled, b: Spelled) -> Option<Spelled> {
        let b = match b.word {
            Some(word) => {
                let value = Literal::f32_suffixed(f32::from_bits(word));
                quote!(V::splat((#value).to_bits()))
            }
            None => b.text,
        };
        Some(a.method("add_f32", &b))
    }

    fn equal(&mut self, a: Spelled, b: Spelled) -> Option<Spelled> {
        Some(a.method("equal", &b.text))
    }
}

/// The step that defines a register.
pub(super) fn step(sequence: &Sequence, register: SequenceRegister) -> &Step {
    &sequence.steps[usize::from(register.0) - sequence.inputs.len()]
}

/// Registers that outputs need and that `given` lacks, in the order of their steps.
pub(super) fn needed(
    sequence: &Sequence,
    outputs: &[SequenceRegister],
    given: &BTreeMap<SequenceRegister, TokenStream>,
) -> Vec<SequenceRegister> {
    let mut found: Vec<SequenceRegister> = Vec::new();
    let mut open = outputs.to_vec();
    while let Some(register) = open.pop() {
        if given.contains_key(&register) || found.contains(&register) {
            continue;
        }
        found.push(register);
        open.extend(step(sequence, register).args().iter().filter_map(|arg| match arg {
            Arg::Register(register) => Some(*register),
            Arg::Word(_) => None,
        }));
    }
    found.sort_unstable();
    found
}

/// The name of a register.
pub(super) fn name(sequence: &Sequence, register: SequenceRegister) -> Ident {
    let named = sequence.names.iter().find(|(what, _)| *what == Arg::Register(register));
    match named {
        Some((_, name)) => Ident::new(name, Span::call_site()),
        None => format_ident!("word_{}", register.0),
    }
}

/// A word in every lane.
fn splat(word: u32) -> TokenStream {
    let word = hex(word);
    quote!(V::splat(#word))
}

/// `0x0f0f_0f0f`; `0xff` where it is short.
pub(super) fn hex(word: u32) -> TokenStream {
    let text = match word {
        0..=0xffff => format!("{word:#x}"),
        _ => format!("0x{:04x}_{:04x}", word >> 16, word & 0xffff),
    };
    // The formatted text is always a valid literal.
    text.parse().unwrap_or_default()
}
