//! Tables: what is in a cell, and how wide a table may be.

use std::fmt;
use std::io::IsTerminal as _;

use comfy_table::{ContentArrangement, LineStyle, Table, TableStyle};

use crate::printed::{one_line, printable};

/// A line under the header and no other.
const HEADER_LINE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Columns of a table of texts where no terminal says how wide it is.
const USUAL: u16 = 100;

/// A table of names and numbers.
pub(crate) struct Rows(Table);

impl Rows {
    /// Whether there is a header alone.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a row; each cell is one line.
    pub(crate) fn add_row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(|cell| one_line(cell.as_ref()).into_owned());
        self.0.add_row(cells.collect::<Vec<String>>());
    }

    /// Adds a row whose cells have lines.
    pub(crate) fn add_text<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(|cell| printable(cell.as_ref()).into_owned());
        self.0.add_row(cells.collect::<Vec<String>>());
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Wrapped cells are filled with spaces to their width.
        let text = self.0.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// A table that is wrapped to a terminal's width, and elsewhere has a row a line.
pub(crate) fn table(header: &[&str]) -> Rows {
    with_width(header, terminal())
}

/// A table of texts, which is always wrapped.
pub(crate) fn text_table(header: &[&str]) -> Rows {
    with_width(header, Some(terminal().unwrap_or(USUAL)))
}

fn with_width(header: &[&str], width: Option<u16>) -> Rows {
    let mut table = Table::new();
    table.load_style(HEADER_LINE).set_header(header.to_vec());
    match width {
        Some(width) => {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.max(60))
        }
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    Rows(table)
}

/// Columns of the terminal that reads our output, if one does.
fn terminal() -> Option<u16> {
    let out = std::io::stdout();
    let size = out.is_terminal().then(|| terminal_size::terminal_size_of(&out)).flatten();
    size.map(|(width, _)| width.0)
}
