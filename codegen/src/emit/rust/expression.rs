//! Prints a sequence as Rust expressions over `Vector`. A result that is used once is an inline
//! expression; one that is used more often gets a `let` with the name from its template.

use std::collections::BTreeMap;

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{format_ident, quote};

use super::RustEmitError;
use crate::plan::Sequence;
use crate::plan::step::{Arg, Register, Step};

/// Statements and the outputs' expressions.
pub(super) struct Body {
    pub(super) lets: TokenStream,
    pub(super) outputs: Vec<TokenStream>,
}

/// Prints the steps that some outputs need; `given` has the expressions of inputs.
pub(super) struct ExprPrinter<'a> {
    sequence: &'a Sequence,
    /// Registers that already have an expression.
    given: BTreeMap<Register, TokenStream>,
    reads: BTreeMap<Register, usize>,
    /// Constants that are read more than once.
    constants: BTreeMap<u32, Ident>,
    lets: TokenStream,
}

impl<'a> ExprPrinter<'a> {
    /// Counts the uses of registers and constants in the steps that `outputs` need.
    pub(super) fn new(
        sequence: &'a Sequence,
        outputs: &[Register],
        given: BTreeMap<Register, TokenStream>,
    ) -> Self {
        let needed = needed(sequence, outputs, &given);
        let mut reads: BTreeMap<Register, usize> = BTreeMap::new();
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
        Self { sequence, given, reads, constants, lets }
    }

    /// The statements and the outputs.
    pub(super) fn body(mut self, outputs: &[Register]) -> Result<Body, RustEmitError> {
        let outputs = outputs.iter().map(|register| self.register(*register));
        let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
        Ok(Body { lets: self.lets, outputs })
    }

    fn register(&mut self, register: Register) -> Result<TokenStream, RustEmitError> {
        if let Some(known) = self.given.get(&register) {
            return Ok(known.clone());
        }
        let text = self.step(step(self.sequence, register))?;
        if self.reads.get(&register).copied().unwrap_or(0) <= 1 {
            return Ok(text);
        }
        let name = name(self.sequence, register);
        self.lets.extend(quote!(let #name = #text;));
        let name = quote!(#name);
        self.given.insert(register, name.clone());
        Ok(name)
    }

    fn arg(&mut self, arg: Arg) -> Result<TokenStream, RustEmitError> {
        match arg {
            Arg::Register(register) => self.register(register),
            Arg::Word(word) => Ok(match self.constants.get(&word) {
                Some(name) => quote!(#name),
                None => splat(word),
            }),
        }
    }

    fn step(&mut self, step: &Step) -> Result<TokenStream, RustEmitError> {
        let method = match step {
            Step::And(..) => "and",
            Step::Or(..) => "or",
            Step::Xor(..) => "xor",
            Step::Add(..) => "add",
            Step::Shl(..) => "shl",
            Step::Shr(..) => "shr",
            Step::Sar(..) => "sar",
            Step::Equal(..) => "equal",
            Step::AddF32(..) => "add_f32",
            Step::IntToF32(_) => "to_f32",
            Step::LookupF32 { table, .. } if table.len() == 16 => "table_f32",
            Step::LookupF32 { .. } => "gather_f32",
            Step::Lop3 { .. }
            | Step::Prmt { .. }
            | Step::Rotl(..)
            | Step::Fma16(..)
            | Step::Sub16(..)
            | Step::CvtF16 { .. }
            | Step::LookupHalf { .. } => {
                let template = self.sequence.template;
                return Err(RustEmitError::Step { template, step: format!("{step:?}") });
            }
        };
        let method = format_ident!("{method}");
        match step {
            Step::Shl(word, by) | Step::Shr(word, by) | Step::Sar(word, by) => {
                let (word, by) = (self.arg(*word)?, Literal::u8_unsuffixed(*by));
                Ok(quote!(#word.#method::<#by>()))
            }
            Step::LookupF32 { index, .. } => {
                let index = self.arg(*index)?;
                Ok(quote!(#index.#method(&TABLE)))
            }
            Step::IntToF32(word) => {
                let word = self.arg(*word)?;
                Ok(quote!(#word.#method()))
            }
            _ => {
                let args = step.args();
                let (a, b) = (self.arg(args[0])?, self.operand(step, args[1])?);
                Ok(quote!(#a.#method(#b)))
            }
        }
    }

    /// The second operand; numeric constants are printed as numbers.
    fn operand(&mut self, step: &Step, arg: Arg) -> Result<TokenStream, RustEmitError> {
        match (step, arg) {
            (Step::AddF32(..), Arg::Word(word)) if !self.constants.contains_key(&word) => {
                let value = Literal::f32_suffixed(f32::from_bits(word));
                Ok(quote!(V::splat((#value).to_bits())))
            }
            _ => self.arg(arg),
        }
    }
}

/// The step that defines a register.
pub(super) fn step(sequence: &Sequence, register: Register) -> &Step {
    &sequence.steps[usize::from(register.0) - sequence.inputs.len()]
}

/// Registers that outputs need and that `given` lacks, in the order of their steps.
pub(super) fn needed(
    sequence: &Sequence,
    outputs: &[Register],
    given: &BTreeMap<Register, TokenStream>,
) -> Vec<Register> {
    let mut found: Vec<Register> = Vec::new();
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
pub(super) fn name(sequence: &Sequence, register: Register) -> Ident {
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
