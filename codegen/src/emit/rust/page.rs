//! A decoder as a file: a header with its description and the command that regenerates it, then the
//! items.

use quantloom_dsl::Code;
use quantloom_dsl::format::{FORMATS, Number};
use quote::{format_ident, quote};

use super::RustEmitError;
use super::decoder::{decoder_name, items, uses};
use crate::plan::templates::planes;

/// The file of a code type's decoder. `again` is the command that regenerates it.
///
/// # Errors
/// [`RustEmitError`].
pub fn decoder_page(code: &Code, again: &str) -> Result<String, RustEmitError> {
    let name = format_ident!("{}", type_name(code));
    let uses = uses(code, &quote!(quantloom_dsl), &quote!(quantloom_runtime));
    let items = items(code, &name)?;
    let file: syn::File = syn::parse_quote! {
        #uses
        #items
    };
    Ok(format!("{}\n{}", header(code, again), spaced(&prettyplease::unparse(&file))))
}

/// The Rust type of a code type's decoder: `U4`, `E4m3fnuz`.
pub fn type_name(code: &Code) -> String {
    let name = decoder_name(code);
    let mut letters = name.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn header(code: &Code, again: &str) -> String {
    let what = match code {
        Code::Number(Number::Uint(1) | Number::Int(1)) => "1-bit integers".to_owned(),
        Code::Number(Number::Uint(bits) | Number::Int(bits)) => {
            format!("{bits}-bit integers; signed ones are stored with their top bit flipped")
        }
        Code::Number(Number::Float(format)) => {
            let source = FORMATS.iter().find(|row| row.format == *format);
            let source = source.map_or(String::new(), |row| format!(" ({})", row.source));
            format!("the float format {format}{source}")
        }
        Code::Number(number) => format!("the format {number}"),
        Code::Codebook(values) => format!("a codebook of {} values", values.len()),
    };
    let slices = planes(code.bits());
    let bits: Vec<String> = slices
        .iter()
        .map(|(low, high)| match high - low {
            1 => format!("bit {low}"),
            _ => format!("bits {low} to {}", high - 1),
        })
        .collect();
    let stored = match &bits[..] {
        [_] => "stored whole".to_owned(),
        [head @ .., last] => format!("stored in planes: {} and {last}", head.join(", ")),
        [] => String::new(),
    };
    format!(
        "//! `{}`: {what}.\n//!\n//! Codes are {stored}.\n//! Where they lie in a chunk says \
         `quantloom_runtime::cpu::native`.\n//!\n//! Generated from the sequences of \
         `quantloom_codegen::plan`; do not edit.\n//! Again: `{again}`.\n",
        decoder_name(code)
    )
}

/// Formatting that the printer lacks: a blank line between items, and rows of a table.
fn spaced(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len() + 64);
    let (mut ended, mut was_use) = (false, false);
    let mut row = 0;
    for line in text.lines() {
        let is_use = line.starts_with("use ");
        if ended && !(was_use && is_use) {
            spaced.push('\n');
        }
        ended = line == "}" || line.ends_with(';') && !line.starts_with(' ');
        was_use = is_use;
        // A value of a table: eight per line.
        let value = line.trim().trim_end_matches(',').parse::<f32>().is_ok();
        if value && row > 0 && row < 8 {
            spaced.push(' ');
            spaced.push_str(line.trim());
        } else {
            spaced.push_str(line);
        }
        row = if value { row % 8 + 1 } else { 0 };
        if !value || row == 8 {
            spaced.push('\n');
        }
    }
    let methods = ["    #[inline", "    fn "];
    methods.iter().fold(spaced, |text, start| {
        text.replace(&format!("    }}\n{start}"), &format!("    }}\n\n{start}"))
            .replace(&format!(";\n{start}"), &format!(";\n\n{start}"))
    })
}
