//! `quantloom verify`

use anyhow::Result;
use clap::Args;
use quantloom::dsl::Scheme;
use quantloom::runtime::conformance::{Backend, Failure, Suite, Summary};

use super::sizes::{Tokens, shape};
use super::{backend, say, say_error, scheme, table};
use crate::progress::Progress;

/// Products of random layers against the f64 reference, element by element.
#[derive(Args)]
#[command(
    after_help = "Codes are random over all codes, scales vary from group to group over the \
    whole range of their type, columns are in random groups where the scheme has an index; the \
    bound of each element is derived, not tuned. Scheme, shape, M and seed decide all numbers: a \
    miss prints the one command that does it again.\n\n\
    Examples:\n  \
    quantloom verify all\n  \
    quantloom verify ct_w4a16 gptq4_v1_actorder --backend avx2\n  \
    quantloom verify my.scheme --backend portable --shape 33x160 --m 1-17 --seed 3"
)]
pub(crate) struct Arguments {
    /// Catalogue names or .scheme files; `all` is the whole catalogue.
    #[arg(required = true, value_name = "SCHEME")]
    schemes: Vec<String>,
    /// What multiplies: `all` takes every instruction set that is present, `cpu` the best of
    /// them, `portable` plain Rust; or one by its name.
    #[arg(long, default_value = "all")]
    backend: String,
    /// Only this shape, instead of seven that are whole, ragged, tiny and long.
    #[arg(long, value_name = "NxK", value_parser = shape)]
    shape: Option<(u64, u64)>,
    /// Only these M: 1,8,32 or 1-17.
    #[arg(long, value_name = "LIST")]
    m: Option<Tokens>,
    /// Only this seed, instead of 0 to 11; a seed decides what kind of scales are drawn too.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let mut schemes: Vec<Scheme> = Vec::new();
    for name in &arguments.schemes {
        match name.as_str() {
            "all" => schemes.extend(quantloom::kernels::catalogue().iter().cloned()),
            name => schemes.push(scheme(name)?),
        }
    }
    let devices = backend::devices(&arguments.backend)?;
    let backends: Vec<Backend> = devices.into_iter().map(Backend::from).collect();
    let suite = suite(arguments);
    let steps: usize = schemes.iter().map(|scheme| suite.steps(scheme)).sum();
    let progress = Progress::new("verifying", steps as u64);
    let mut rows =
        table(&["scheme", "backend", "kernel", "products", "elements", "error / bound", "verdict"]);
    let mut failures = Vec::new();
    let mut passed = 0;
    for scheme in &schemes {
        let results = suite.run(scheme, &backends, &|steps| progress.advance(steps as u64));
        for (backend, result) in backends.iter().zip(results) {
            rows.add_row(row(scheme, backend, &result));
            match result {
                Ok(_) => passed += 1,
                Err(failure) => failures.push(failure),
            }
        }
    }
    drop(progress);
    say(rows)?;
    say(format_args!("{passed} passed, {} failed", failures.len()))?;
    for failure in &failures {
        say_error(&format!("quantloom: {failure}"));
    }
    Ok(failures.is_empty() && passed > 0)
}

/// The default suite, narrowed to what was asked for; what is named is taken whole.
fn suite(arguments: &Arguments) -> Suite {
    let mut suite = Suite::default();
    if let Some(shape) = arguments.shape {
        suite.shapes = vec![shape];
    }
    if let Some(Tokens(tokens)) = &arguments.m {
        suite.tokens.clone_from(tokens);
    }
    if let Some(seed) = arguments.seed {
        suite.seeds = vec![seed];
    }
    if arguments.shape.is_some() || arguments.m.is_some() || arguments.seed.is_some() {
        suite.every = 1;
    }
    suite
}

fn row(scheme: &Scheme, backend: &Backend, result: &Result<Summary, Failure>) -> [String; 7] {
    let (scheme, backend) = (scheme.name.clone(), backend.name().to_owned());
    match result {
        Ok(done) => [
            scheme,
            backend,
            done.kernels.join("; "),
            done.products.to_string(),
            done.elements.to_string(),
            format!("{:.3}", done.share),
            "ok".to_owned(),
        ],
        Err(failure) => {
            let kernel = match failure {
                Failure::Miss { case, .. } => case.kernel.clone(),
                _ => String::new(),
            };
            let none = String::new;
            [scheme, backend, kernel, none(), none(), none(), "FAILED".to_owned()]
        }
    }
}
