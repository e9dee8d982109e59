//! The page of keys, which is generated from the tables of formats.

use quantloom_runtime::checkpoint::CheckpointFormat;
use quantloom_runtime::checkpoint::keys::{RowSubject, Use, table};

/// `docs/checkpoint-keys.md` is generated from the tables.
#[test]
fn the_page_of_keys_is_fresh() {
    let families = [
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
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/checkpoint-keys.md");
    let old = std::fs::read_to_string(page).unwrap();
    let head = old.split("\n## ").next().unwrap().trim_end();
    let mut new = format!("{head}\n");
    for family in families {
        let table = table(family).unwrap();
        new += &format!("\n## {}\n\n{}.\n\n", family.name(), table.software);
        for (subject, title) in
            [(RowSubject::Key, "key"), (RowSubject::Tensor, "other tensor of a layer")]
        {
            let rows: Vec<_> = table.rows.iter().filter(|row| row.subject == subject).collect();
            if rows.is_empty() {
                continue;
            }
            if subject == RowSubject::Tensor {
                new.push('\n');
            }
            new += &format!("| {title} | | why |\n|---|---|---|\n");
            for row in rows {
                let what = match &row.what {
                    Use::Used => "used".to_owned(),
                    Use::Harmless => "harmless".to_owned(),
                    Use::Zeros => "has to be zeros".to_owned(),
                    Use::Reported => "reported".to_owned(),
                    Use::Refused(values) if values.is_empty() => "refused".to_owned(),
                    Use::Refused(values) => format!("refused unless {}", values.join(", ")),
                };
                let why = if row.path.last() == Some(&"?") { "any other key" } else { row.note };
                new += &format!("| `{}` | {what} | {why} |\n", row.path.join("."));
            }
        }
    }
    if std::env::var_os("QUANTLOOM_WRITE_PAGES").is_some() {
        std::fs::write(page, &new).unwrap();
    }
    assert!(old == new, "again: QUANTLOOM_WRITE_PAGES=1 cargo test --test tests page");
}
