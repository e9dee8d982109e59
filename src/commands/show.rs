//! `quantloom show`

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use quantloom::codegen::plan;
use quantloom::codegen::target::TARGETS;
use quantloom::dsl::layout::Method;

use super::{say, scheme, table};
use crate::picture::picture;

#[derive(Args)]
pub(crate) struct Arguments {
    /// A catalogue name or a .scheme file.
    scheme: String,
    /// Also draw the packing into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let scheme = scheme(&arguments.scheme)?;
    say(&scheme)?;
    say(format_args!("{:.4} bits per weight", scheme.bits_per_weight()))?;
    let mut stores = table(&["tensor", "holds", "type", "layout"]);
    for store in &scheme.stores {
        let held: Vec<String> = scheme
            .components()
            .into_iter()
            .filter(|component| store.layout.holds(*component))
            .map(|component| component.to_string())
            .collect();
        let dtype = quantloom::runtime::checkpoint::element_dtype(&scheme, store);
        let layout = store.layout.display(store.owner).to_string();
        stores.add_row([store.name.clone(), held.join(", "), format!("{dtype:?}"), layout]);
    }
    say(stores)?;
    let mut targets = table(&["target", "plan"]);
    for target in TARGETS {
        let text = match plan::support(&scheme, target) {
            Err(refusal) => format!("refused: {refusal}"),
            Ok(()) => portable(&plan::portable(&scheme)),
        };
        targets.add_row([target.name.to_owned(), text]);
    }
    say(targets)?;
    if let Some(path) = &arguments.svg {
        write_whole(path, &picture(&scheme))
            .with_context(|| format!("cannot write {}", path.display()))?;
        say(format_args!("wrote {}", path.display()))?;
    }
    Ok(true)
}

fn portable(plan: &plan::PortablePlan) -> String {
    let method = |method: &Method| match method {
        Method::Nest => "one loop nest",
        Method::Staged => "two loop nests",
        Method::Gather => "bit by bit",
    };
    let moves: Vec<String> =
        plan.transforms.iter().map(|(store, how)| format!("{store} by {}", method(how))).collect();
    let run = plan.run.map_or("rows".to_owned(), |run| format!("runs of {run} columns"));
    let quantises = if plan.quantises { "quantise x; " } else { "" };
    format!(
        "{quantises}unpack {}; decode {run} through a table of {} and {} scale(s) to f32; f32 dot \
         products",
        moves.join(", "),
        plan.table,
        plan.levels
    )
}

/// Writes beside the target and renames, so that nothing half-written stays.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        let what = "what is there is not an ordinary file";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o644));
    }
    let mut file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}
