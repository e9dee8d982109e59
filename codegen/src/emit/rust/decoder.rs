//! The decoder of a code type: `struct NAME` and its implementation of `CodeDecoder`.

use std::collections::BTreeMap;

use proc_macro2::{Ident, Literal, TokenStream};
use quantloom_dsl::format::{FORMATS, FloatFormat, Number};
use quantloom_dsl::{Code, TableIntegers, WeightCode};
use quote::{format_ident, quote};

use super::RustEmitError;
use super::expression::{Body, ExprPrinter, hex, needed, step};
use crate::plan::step::{Arg, SequenceRegister, Step};
use crate::plan::templates::{planes, planes_to_bytes};
use crate::plan::{DequantPlan, OperandType, Sequence};
use crate::target::Class;

/// A repeated decoder of fewer steps than this is inlined.
const SHORT: usize = 4;

/// The name of a code type's decoder: the name of the type. Signed integers are stored with the top
/// bit flipped and share the decoder of unsigned ones.
pub fn decoder_name(code: &Code) -> String {
    match code {
        Code::Number(Number::Int(bits)) => Number::Uint(*bits).to_string(),
        Code::Number(number) => number.to_string(),
        Code::Codebook(values) => format!("codebook{}", values.len()),
    }
}

/// The items of a code type's decoder, for a separate module: `use` items, `pub struct #name`, and
/// its `CodeDecoder`. `root` is the path of a module that contains `dsl` and `runtime`.
///
/// # Errors
/// [`RustEmitError`]: a code wider than 8 bits.
pub fn decoder(
    code: &Code,
    name: &Ident,
    root: &TokenStream,
) -> Result<TokenStream, RustEmitError> {
    let uses = uses(code, &quote!(#root::dsl), &quote!(#root::runtime));
    let items = items(code, name)?;
    Ok(quote!(#uses #items))
}

/// The `use` items.
pub(super) fn uses(code: &Code, dsl: &TokenStream, runtime: &TokenStream) -> TokenStream {
    let format = match code {
        Code::Number(Number::Float(format)) => {
            let spelled = constant(*format);
            let name = spelled.map_or_else(
                || quote!(FloatFormat, Number, Variant),
                |name| {
                    let name = format_ident!("{name}");
                    quote!(#name, Number)
                },
            );
            quote!(use #dsl::format::{#name};)
        }
        Code::Number(_) => quote!(use #dsl::format::Number;),
        Code::Codebook(_) => TokenStream::new(),
    };
    quote! {
        use #dsl::Code;
        #format
        use #runtime::cpu::decoder::CodeDecoder;
        use #runtime::cpu::vector::Vector;
    }
}

/// The struct and its implementation.
pub(super) fn items(code: &Code, name: &Ident) -> Result<TokenStream, RustEmitError> {
    let stored = match code {
        Code::Number(Number::Int(bits)) => Code::Number(Number::Uint(*bits)),
        code => code.clone(),
    };
    let weight = WeightCode { code: stored, offset: 0 };
    let plan = DequantPlan::new(&weight, OperandType::F32, Class::Lanes);
    let no_sequence = || RustEmitError::NoSequence(weight.to_string());
    let plan = plan.ok_or_else(no_sequence)?;
    let decode = plan.stages.last().ok_or_else(no_sequence)?;
    let (label, bits) = (decoder_name(code), Literal::u32_unsuffixed(code.bits()));
    let (serves, codes) = (serves(code), codes(&planes_to_bytes(&weight))?);
    let (integers, table) = (!code.is_float(), TableIntegers::of(code).is_some());
    let Values { table: constants, body, helper } = values(decode)?;
    let doc = format!(" The decoder of `{label}` codes.");
    Ok(quote! {
        #[doc = #doc]
        #[derive(Clone, Copy, Debug)]
        pub struct #name;

        #constants

        impl CodeDecoder for #name {
            const NAME: &'static str = #label;
            const BITS: usize = #bits;
            const INTEGERS: bool = #integers;
            const TABLE: bool = #table;

            fn serves(&self, code: &Code) -> bool {
                #serves
            }

            #[inline(always)]
            fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
                #codes
            }

            #[inline(always)]
            fn values<V: Vector>(&self, codes: V) -> [V; 4] {
                #body
            }
        }

        #helper
    })
}

/// The constant of `dsl::format` that names a format.
fn constant(format: FloatFormat) -> Option<String> {
    FORMATS.iter().find(|row| row.format == format).map(|row| row.name.to_uppercase())
}

fn serves(code: &Code) -> TokenStream {
    match code {
        Code::Number(Number::Uint(bits) | Number::Int(bits)) => {
            let bits = Literal::u8_unsuffixed(*bits);
            quote!(matches!(code, Code::Number(Number::Uint(#bits) | Number::Int(#bits))))
        }
        Code::Number(Number::Float(format)) => {
            let spelled = match constant(*format) {
                Some(name) => {
                    let name = format_ident!("{name}");
                    quote!(#name)
                }
                None => {
                    let exponent = Literal::u8_unsuffixed(format.exponent_bits);
                    let mantissa = Literal::u8_unsuffixed(format.mantissa_bits);
                    let variant = format_ident!("{}", format!("{:?}", format.variant));
                    quote!(FloatFormat::new(#exponent, #mantissa, Variant::#variant))
                }
            };
            quote!(*code == Code::Number(Number::Float(#spelled)))
        }
        Code::Number(Number::E8m0) => quote!(*code == Code::Number(Number::E8m0)),
        Code::Codebook(values) => {
            let values = values.iter().map(|bits| hex(*bits));
            quote!(matches!(code, Code::Codebook(values) if values[..] == [#(#values),*]))
        }
    }
}

/// Loads of the planes' vectors, then a vector of codes for every four columns.
fn codes(sequence: &Sequence) -> Result<TokenStream, RustEmitError> {
    let mut given = BTreeMap::new();
    let mut loads = TokenStream::new();
    let mut first = 0u16;
    for (low, high) in planes(sequence.weight.code.bits()) {
        let count = u16::from(high - low);
        let load = |at: u16| {
            let at = Literal::u16_unsuffixed(at);
            quote!(V::load(&planes[#at]))
        };
        let name = super::expression::name(sequence, SequenceRegister(first));
        let of_plane = (first..first + count).map(load);
        match count {
            // Each input vector is an output without steps: it is inlined.
            8 => given.extend((first..first + count).map(|at| (SequenceRegister(at), load(at)))),
            1 => {
                loads.extend(quote!(let #name = #(#of_plane)*;));
                given.insert(SequenceRegister(first), quote!(#name));
            }
            _ => {
                loads.extend(quote!(let #name = [#(#of_plane),*];));
                for at in 0..count {
                    let index = Literal::u16_unsuffixed(at);
                    given.insert(SequenceRegister(first + at), quote!(#name[#index]));
                }
            }
        }
        first += count;
    }
    let outputs: Vec<SequenceRegister> =
        sequence.outputs.iter().map(|output| output.register).collect();
    let Body { lets, outputs } = ExprPrinter::new(sequence, &outputs, given).body(&outputs)?;
    Ok(quote!(#loads #lets [#(#outputs),*]))
}

struct Values {
    table: TokenStream,
    body: TokenStream,
    /// A function that decodes one of the four columns, if it is too long to inline.
    helper: TokenStream,
}

/// Four columns of values from a vector of codes.
fn values(sequence: &Sequence) -> Result<Values, RustEmitError> {
    let table = table(sequence);
    let outputs: Vec<SequenceRegister> =
        sequence.outputs.iter().map(|output| output.register).collect();
    let codes = BTreeMap::from([(SequenceRegister(0), quote!(codes))]);
    if let Some(columns) = columns(sequence, &outputs) {
        let column = quote!(column);
        let first = &columns[0];
        let given = BTreeMap::from([(first.leaf, column)]);
        let last = [first.output];
        let Body { lets, outputs } = ExprPrinter::new(sequence, &last, given).body(&last)?;
        let helper = quote! {
            /// The values of the codes in the top bits of each lane.
            #[inline(always)]
            fn value<V: Vector>(column: V) -> V {
                #lets
                #(#outputs)*
            }
        };
        let leaves: Vec<SequenceRegister> = columns.iter().map(|column| column.leaf).collect();
        let Body { lets, outputs } = ExprPrinter::new(sequence, &leaves, codes).body(&leaves)?;
        let body = quote!(#lets [#(value(#outputs)),*]);
        return Ok(Values { table, body, helper });
    }
    let Body { lets, outputs } = ExprPrinter::new(sequence, &outputs, codes).body(&outputs)?;
    Ok(Values { table, body: quote!(#lets [#(#outputs),*]), helper: TokenStream::new() })
}

/// One output, and the register at which its steps start: the word or the shifted word.
struct Column {
    leaf: SequenceRegister,
    output: SequenceRegister,
}

/// The columns, if all outputs have the same steps after a shift of the word, and at least
/// [`SHORT`] of them.
fn columns(sequence: &Sequence, outputs: &[SequenceRegister]) -> Option<Vec<Column>> {
    let input = BTreeMap::from([(SequenceRegister(0), TokenStream::new())]);
    let mut columns = Vec::new();
    let mut pattern: Option<Vec<Step>> = None;
    for output in outputs {
        let registers = needed(sequence, &[*output], &input);
        let first = *registers.first()?;
        let shifted =
            matches!(step(sequence, first), Step::Shl(Arg::Register(SequenceRegister(0)), _));
        let leaf = if shifted { first } else { SequenceRegister(0) };
        // Registers are renumbered from the leaf, so that equal steps compare equal.
        let place = |register: SequenceRegister| {
            let place = registers.iter().filter(|at| **at != leaf).position(|at| *at == register);
            SequenceRegister(place.map_or(0, |place| place as u16 + 1))
        };
        let body: Vec<Step> = registers
            .iter()
            .filter(|register| **register != leaf)
            .map(|register| step(sequence, *register).with_registers(&place))
            .collect();
        if body.len() < SHORT || pattern.as_ref().is_some_and(|pattern| *pattern != body) {
            return None;
        }
        pattern = Some(body);
        columns.push(Column { leaf, output: *output });
    }
    Some(columns)
}

/// The table of the sequence, if it has one.
fn table(sequence: &Sequence) -> TokenStream {
    let table = sequence.steps.iter().find_map(|step| match step {
        Step::LookupF32 { table, .. } => Some(table),
        _ => None,
    });
    let Some(table) = table else { return TokenStream::new() };
    let values = table.iter().map(|bits| {
        let value = f32::from_bits(*bits);
        if value.is_finite() {
            let value = Literal::f32_unsuffixed(value.abs());
            if bits >> 31 == 1 { quote!(-#value) } else { quote!(#value) }
        } else {
            let bits = hex(*bits);
            quote!(f32::from_bits(#bits))
        }
    });
    let size = Literal::usize_unsuffixed(table.len());
    quote! {
        /// The value of each code.
        const TABLE: [f32; #size] = [#(#values),*];
    }
}
