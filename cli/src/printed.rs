//! Text on its way to a terminal: names come from files, and must not command it.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character does something to a terminal other than showing: control characters, and
/// those that turn the direction of what follows. Lines may end and columns be set.
fn commands(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' => true,
        other => other.is_control(),
    }
}

/// The text with such characters spelled out, `\u{1b}`.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    spelled(text, commands, |character, out| {
        let _ = write!(out, "\\u{{{:x}}}", character as u32);
    })
}

/// The same in one line: of a name, which could pretend to be further lines.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    let wrong = |character| commands(character) || matches!(character, '\n' | '\t');
    spelled(text, wrong, |character, out| {
        let _ = write!(out, "\\u{{{:x}}}", character as u32);
    })
}

/// The same of JSON, where such characters occur in strings alone.
pub(crate) fn printable_json(text: &str) -> Cow<'_, str> {
    spelled(text, commands, |character, out| {
        let _ = write!(out, "\\u{:04x}", character as u32);
    })
}

fn spelled<'t>(
    text: &'t str,
    wrong: impl Fn(char) -> bool,
    spell: impl Fn(char, &mut String),
) -> Cow<'t, str> {
    if !text.contains(&wrong) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if wrong(character) { spell(character, &mut out) } else { out.push(character) }
    }
    Cow::Owned(out)
}

/// A word of a shell's command line: as it is, or in quotes.
pub(crate) fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
