//! Every key that a format's software writes, and its verdict.
//!
//! In: a configuration. Out: a report: unknown keys, and refused keys. The tables are the files of
//! `keys/`, one per format; `docs/checkpoint-keys.md` is generated from them.
//!
//! A line is `KIND PATH | VERDICT | NOTE`. `key` is a path of the configuration, with `*` for any
//! name, `?` for a name that no other line has, and `**` for everything below; the elements of a
//! list have the list's path. `each` is an object that describes some layers: a refusal below it
//! concerns only these layers. `tensor` is a tensor of a layer that the layer's scheme does not
//! use.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::config::{ConfigProblem, shortened};
use super::{CheckpointError, CheckpointFormat, Config};

/// The verdict of a table about a key or a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is read.
    Used,
    /// It does not change the product.
    Harmless,
    /// A tensor that must be all zeros.
    Zeros,
    /// It may change the product, and is refused unless it has one of these values.
    Refused(Vec<&'static str>),
    /// It is unknown, and is reported.
    Reported,
}

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSubject {
    /// A key of the configuration.
    Key,
    /// An object of the configuration that describes some layers.
    Each,
    /// A tensor of a layer.
    Tensor,
}

/// A line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The subject.
    pub subject: RowSubject,
    /// The parts of the path; the name of a tensor.
    pub path: Vec<&'static str>,
    /// The verdict.
    pub what: Use,
    /// The reason.
    pub note: &'static str,
}

/// The table of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The software that writes the keys, and its versions.
    pub software: &'static str,
    /// The lines.
    pub rows: Vec<Row>,
}

/// The table of a format; none for Quantloom's own files, which the scheme describes completely.
pub fn table(format: CheckpointFormat) -> Option<Table> {
    let text = match format {
        CheckpointFormat::CompressedTensors => include_str!("keys/compressed_tensors.keys"),
        CheckpointFormat::Gptq => include_str!("keys/gptq.keys"),
        CheckpointFormat::Awq => include_str!("keys/awq.keys"),
        CheckpointFormat::Quark => include_str!("keys/quark.keys"),
        CheckpointFormat::ModelOpt => include_str!("keys/modelopt.keys"),
        CheckpointFormat::Fp8 => include_str!("keys/fp8.keys"),
        CheckpointFormat::GptOss => include_str!("keys/gpt_oss.keys"),
        CheckpointFormat::BitsAndBytes => include_str!("keys/bitsandbytes.keys"),
        CheckpointFormat::Hqq => include_str!("keys/hqq.keys"),
        CheckpointFormat::Gguf => include_str!("keys/gguf.keys"),
        CheckpointFormat::Quantloom => return None,
    };
    let lines = text.lines().filter(|line| !line.is_empty());
    let software = text.lines().find_map(|line| line.strip_prefix("software "))?;
    Some(Table { software, rows: lines.filter_map(row).collect() })
}

/// Reads a line; `None` if it is malformed, which `tests` checks for.
fn row(line: &'static str) -> Option<Row> {
    let mut cells = line.splitn(3, " | ").map(str::trim);
    let (subject, path) = cells.next()?.split_once(' ')?;
    let subject = match subject {
        "key" => RowSubject::Key,
        "each" => RowSubject::Each,
        "tensor" => RowSubject::Tensor,
        _ => return None,
    };
    let what = match cells.next().unwrap_or("used") {
        "used" => Use::Used,
        "harmless" => Use::Harmless,
        "zeros" => Use::Zeros,
        "reported" => Use::Reported,
        "refused" => Use::Refused(Vec::new()),
        other => Use::Refused(other.strip_prefix("refused unless ")?.split('|').collect()),
    };
    let path = if subject == RowSubject::Tensor { vec![path] } else { path.split('.').collect() };
    Some(Row { subject, path, what, note: cells.next().unwrap_or_default() })
}

/// Why a key of a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedKey {
    /// Its value is none of those that are supported.
    #[error("`{key}` is {value}: {why}")]
    Value {
        /// The key, its path joined by dots, shortened.
        key: String,
        /// The value, shortened.
        value: String,
        /// The reason.
        why: &'static str,
    },
    /// Its meaning is not known.
    #[error(
        "`{key}` is {value}, an unknown key of {software} that may change the product; if it does not, \
         take it out of the configuration"
    )]
    Unknown {
        /// The key, its path joined by dots, shortened.
        key: String,
        /// The value, shortened.
        value: String,
        /// The software that writes the configuration, and its versions.
        software: &'static str,
    },
}

/// The result of checking a configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    notes: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Finding {
    path: Vec<String>,
    /// The start of the path that describes some layers.
    layers: Option<usize>,
    what: RefusedKey,
}

/// The most notes and findings to keep; a file may have millions of unknown keys.
const MOST: usize = 100;

impl Report {
    /// Compares a configuration with its format's table.
    pub(super) fn of(config: &Config, format: CheckpointFormat) -> Self {
        let mut report = Self::default();
        if let Some(table) = table(format) {
            let rows: Vec<&Row> =
                table.rows.iter().filter(|row| row.subject != RowSubject::Tensor).collect();
            Walk { table: &table, report: &mut report }.object(
                &config.value,
                &rows,
                &mut Vec::new(),
            );
        }
        report
    }

    /// Keys that are unknown and not refused, one sentence each.
    pub(super) fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    /// Refusals that concern the whole file.
    pub(super) fn of_the_file(&self, place: &str) -> Result<(), CheckpointError> {
        match self.findings.iter().find(|finding| finding.layers.is_none()) {
            None => Ok(()),
            Some(finding) => Err(ConfigProblem::Refused(finding.what.clone()).at(place)),
        }
    }

    /// Refusals below one of the objects that describe layers.
    pub(super) fn below(&self, path: &[&str]) -> Option<&RefusedKey> {
        let within =
            |finding: &&Finding| finding.layers.is_some() && finding.path.starts_with(&owned(path));
        self.findings.iter().find(within).map(|finding| &finding.what)
    }
}

fn owned(path: &[&str]) -> Vec<String> {
    path.iter().map(|part| (*part).to_owned()).collect()
}

struct Walk<'a> {
    table: &'a Table,
    report: &'a mut Report,
}

impl Walk<'_> {
    /// Visits an object; `rows` are the lines whose paths begin with the path so far.
    fn object(&mut self, object: &Map<String, Value>, rows: &[&Row], path: &mut Vec<String>) {
        let depth = path.len();
        for (name, value) in object {
            let named = |part: &str| {
                rows.iter().filter(|row| row.path.get(depth) == Some(&part)).copied().collect()
            };
            let mut found: Vec<&Row> = named(name);
            let any: Vec<&Row> = named("*");
            if found.is_empty() {
                found = any;
            }
            path.push(name.clone());
            if found.is_empty() {
                if named("**").is_empty() {
                    self.unknown(value, path, named("?").first().map(|row| &row.what));
                }
            } else {
                let ends =
                    |row: &&&Row| row.path.len() == depth + 1 && row.subject == RowSubject::Key;
                if let Some(row) = found.iter().find(ends) {
                    self.known(value, row, path);
                }
                let below: Vec<&Row> =
                    found.into_iter().filter(|row| row.path.len() > depth + 1).collect();
                self.value(value, &below, path);
            }
            path.pop();
        }
    }

    fn value(&mut self, value: &Value, rows: &[&Row], path: &mut Vec<String>) {
        match value {
            Value::Object(object) if !rows.is_empty() => self.object(object, rows, path),
            Value::Array(items) if !rows.is_empty() => {
                for item in items {
                    self.value(item, rows, path);
                }
            }
            _ => {}
        }
    }

    fn known(&mut self, value: &Value, row: &Row, path: &[String]) {
        let Use::Refused(accepted) = &row.what else { return };
        let text = plain(value);
        if says_nothing(value)
            || accepted.iter().any(|accepted| text.eq_ignore_ascii_case(accepted))
        {
            return;
        }
        let key = shortened(path.join("."));
        self.refuse(RefusedKey::Value { key, value: brief(value), why: row.note }, path);
    }

    /// A key without a line. It is refused if the table says so, or if its value is a list or
    /// object; otherwise it is reported, unless its value is empty.
    fn unknown(&mut self, value: &Value, path: &[String], rule: Option<&Use>) {
        let refused = match rule {
            Some(Use::Refused(_)) => true,
            Some(_) => false,
            None => matches!(value, Value::Object(_) | Value::Array(_)),
        };
        let (key, software) = (shortened(path.join(".")), self.table.software);
        if refused && !says_nothing(value) {
            self.refuse(RefusedKey::Unknown { key, value: brief(value), software }, path);
        } else if self.report.notes.len() < MOST {
            let note = format!(
                "unknown key `{key}` of {software}, which is ignored; its value is {}",
                brief(value)
            );
            self.report.notes.insert(shortened(note));
        }
    }

    fn refuse(&mut self, what: RefusedKey, path: &[String]) {
        let matches = |row: &&Row| {
            row.subject == RowSubject::Each
                && row.path.len() < path.len()
                && row.path.iter().zip(path).all(|(part, name)| *part == "*" || part == name)
        };
        let layers = self.table.rows.iter().find(matches).map(|row| row.path.len());
        if self.report.findings.len() < MOST {
            self.report.findings.push(Finding { path: path.to_vec(), layers, what });
        } else if layers.is_none() {
            // Findings beyond the limit are dropped, but still fail the file.
            self.report.findings.insert(0, Finding { path: path.to_vec(), layers, what });
            self.report.findings.truncate(MOST);
        }
    }
}

/// Null, false and empty values: the software's way to omit a setting.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.strip_prefix("torch.").unwrap_or(text).to_owned(),
        other if says_nothing(other) => other.to_string(),
        Value::Object(_) | Value::Array(_) => String::new(),
        other => other.to_string(),
    }
}

fn brief(value: &Value) -> String {
    const MOST: usize = 60;
    let mut text = match value {
        Value::Object(object) => {
            let names: Vec<&str> = object.keys().take(5).map(String::as_str).collect();
            format!("an object of {}", names.join(", "))
        }
        Value::Array(items) => format!("a list of {}", items.len()),
        other => other.to_string(),
    };
    if text.len() > MOST {
        text.truncate(text.floor_char_boundary(MOST));
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FAMILIES: [CheckpointFormat; 10] = [
        CheckpointFormat::CompressedTensors,
        CheckpointFormat::Gptq,
        CheckpointFormat::Awq,
        CheckpointFormat::Quark,
        CheckpointFormat::ModelOpt,
        CheckpointFormat::Fp8,
        CheckpointFormat::GptOss,
        CheckpointFormat::BitsAndBytes,
        CheckpointFormat::Hqq,
        CheckpointFormat::Gguf,
    ];

    #[test]
    fn every_line_is_one() {
        for format in FAMILIES {
            let table = table(format).unwrap();
            let text = match format {
                CheckpointFormat::Quark => include_str!("keys/quark.keys"),
                CheckpointFormat::CompressedTensors => include_str!("keys/compressed_tensors.keys"),
                CheckpointFormat::ModelOpt => include_str!("keys/modelopt.keys"),
                _ => continue,
            };
            let lines =
                text.lines().filter(|line| !line.is_empty() && !line.starts_with("software"));
            assert_eq!(lines.count(), table.rows.len(), "{format:?}");
        }
        for format in FAMILIES {
            let table = table(format).unwrap();
            for (at, row) in table.rows.iter().enumerate() {
                let same = |other: &Row| other.subject == row.subject && other.path == row.path;
                assert!(!table.rows[..at].iter().any(same), "{format:?}: {:?} twice", row.path);
                let silent = row.subject != RowSubject::Each
                    && !matches!(row.what, Use::Used | Use::Reported);
                let unknown = row.path.last() == Some(&"?");
                assert!(!silent || unknown || !row.note.is_empty(), "{format:?}: {:?}", row.path);
            }
        }
    }

    fn report(format: CheckpointFormat, value: Value) -> Report {
        let Value::Object(value) = value else { panic!("an object") };
        Report::of(&Config { place: "here".to_owned(), value }, format)
    }

    #[test]
    fn unknown_keys_are_named_where_they_stand() {
        let config = json!({
            "quant_method": "compressed-tensors", "colour": "red", "shape_of": {"x": 1},
            "config_groups": {
                "a": {"targets": ["Linear"], "weights": {"num_bits": 4, "hue": 3, "tone": null}},
                "b": {"targets": ["Linear"], "output_activations": {"num_bits": 8}},
            },
        });
        let report = report(CheckpointFormat::CompressedTensors, config);
        let notes: Vec<&str> = report.notes().collect();
        assert_eq!(notes.len(), 2);
        assert!(
            notes[0].contains("`colour`") && notes[1].contains("`config_groups.a.weights.tone`")
        );
        let file = report.of_the_file("here").unwrap_err().to_string();
        assert!(file.contains("`shape_of`"), "{file}");
        let of = |group: &str| report.below(&["config_groups", group]).unwrap().to_string();
        assert!(of("a").contains("`config_groups.a.weights.hue` is 3"), "{}", of("a"));
        assert!(of("b").contains("quantised outputs"), "{}", of("b"));
    }

    #[test]
    fn values_that_are_accepted() {
        let config = |value: Value| json!({"quant_method": "gptq", "bits": 4, "pack_dtype": value});
        for good in [json!("int32"), json!("torch.int32"), Value::Null] {
            assert!(report(CheckpointFormat::Gptq, config(good)).of_the_file("").is_ok());
        }
        for bad in [json!("int8"), json!(32), json!(["int32"]), json!({"int32": 1})] {
            assert!(report(CheckpointFormat::Gptq, config(bad)).of_the_file("").is_err());
        }
    }
}
