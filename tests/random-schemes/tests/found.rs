//! The random schemes cover every clause of the language; correct code passes; deliberate errors
//! are found and shrunk.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::{PlainCodes, StoredTensors};
use quantloom_dsl::{Accumulate, Arithmetic, Scheme};
use quantloom_random_schemes::campaign::{CampaignOptions, Event, Finding, Report, run};
use quantloom_random_schemes::checks::{Check, FailureKind, Subject, backend};
use quantloom_runtime::accumulation::Accumulation;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::op::{Op, ProductError, Values, ValuesMut, Workspace};
use quantloom_runtime::unpacked::UnpackError;
use quantloom_runtime::weight_data::WeightData;

fn options(seed: u64, count: u64, checks: Vec<Check>) -> CampaignOptions {
    CampaignOptions {
        seed,
        first: 0,
        count,
        time: Duration::from_secs(600),
        findings: 1,
        shrinking: Duration::from_secs(60),
        draw: Duration::from_secs(600),
        checks,
    }
}

#[test]
fn every_clause_is_drawn() {
    let report = run(&Subject::default(), &options(5, 2000, Vec::new()), &|_| {});
    assert_eq!(report.broken, [""; 0]);
    assert_eq!(report.coverage.absent(), [""; 0]);
    assert!(report.legal() * 10 >= report.draws * 9, "{:?}", report.rejected);
    assert!(report.unshaped * 20 <= report.draws, "{} fit no shape", report.unshaped);
}

#[test]
fn a_draw_is_decided_by_its_seed() {
    use quantloom_random_schemes::campaign::drawn_text;
    let texts = |seed| (0..20).map(|draw| drawn_text(seed, draw).0).collect::<Vec<_>>();
    assert_eq!(texts(1), texts(1));
    assert_ne!(texts(1), texts(2));
}

#[test]
fn what_is_right_passes() {
    let report = run(&Subject::default(), &options(4, 8, Check::all()), &|_| {});
    let found: Vec<String> = report.findings.iter().map(|finding| format!("{finding:?}")).collect();
    assert!(found.is_empty() && report.broken.is_empty(), "{}", found.join("\n"));
    assert!(report.totals().0 > 40, "{}", report.text());
}

#[test]
fn a_draw_that_takes_too_long_is_reported() {
    let slow = Subject {
        print: |scheme| {
            std::thread::sleep(Duration::from_millis(400));
            scheme.to_string()
        },
        ..Subject::default()
    };
    let said = |limit| {
        let said = Mutex::new(Vec::new());
        let options = CampaignOptions { draw: limit, ..options(9, 3, vec![Check::Print]) };
        run(&slow, &options, &|event| match event {
            Event::Finding(finding) => panic!("{finding:?}"),
            Event::Endless { draw, .. } => said.lock().unwrap().push(draw),
        });
        said.into_inner().unwrap()
    };
    assert_eq!(said(Duration::from_secs(600)), [0u64; 0]);
    let draws = said(Duration::from_millis(100));
    assert!(matches!(draws[..], [0..3]), "{draws:?}");
}

/// The only finding of a subject with a deliberate error.
fn found(subject: &Subject, check: Check) -> Finding {
    let Report { mut findings, broken, .. } = run(subject, &options(9, 400, vec![check]), &|_| {});
    assert_eq!(broken, [""; 0]);
    assert!(!findings.is_empty(), "no finding");
    findings.remove(0)
}

/// No clause that the failure does not need.
fn bare(scheme: &Scheme) -> bool {
    scheme.bias.is_none()
        && scheme.output.is_none()
        && scheme.experts.is_none()
        && scheme.targets.is_empty()
        && scheme.summary.is_empty()
        && scheme.accumulate == Accumulate::F32
        && scheme.arithmetic == Arithmetic::F32
        && scheme.activations.len() == 1
        && scheme.quantiser().is_none()
}

#[test]
fn a_wrong_packer_is_found() {
    fn wrong(scheme: &Scheme, plain: &PlainCodes) -> Result<StoredTensors, UnpackError> {
        let mut packed = quantloom_runtime::pack::pack(scheme, plain)?;
        if !scheme.shifts.is_empty()
            && let Some(first) = packed.values_mut().find_map(|bytes| bytes.first_mut())
        {
            *first ^= 1;
        }
        Ok(packed)
    }
    let Finding { case, fault, .. } =
        found(&Subject { pack: wrong, ..Subject::default() }, Check::Pack);
    assert_eq!(fault.kind, FailureKind::Wrong);
    assert!(!case.scheme.shifts.is_empty(), "{}", case.scheme);
    let clauses = case.scheme.index.is_none() && case.scheme.zero.is_none();
    assert!(clauses && bare(&case.scheme), "{}", case.scheme);
    assert_eq!((case.shape, &case.tokens[..], case.seed), ((1, 1), &[1][..], 0));
}

#[test]
fn a_panic_is_found() {
    fn wrong(scheme: &Scheme, plain: &PlainCodes) -> Result<StoredTensors, UnpackError> {
        assert!(scheme.zero.is_none(), "zero points are beyond me");
        quantloom_runtime::pack::pack(scheme, plain)
    }
    let Finding { case, fault, .. } =
        found(&Subject { pack: wrong, ..Subject::default() }, Check::Pack);
    assert_eq!(fault.kind, FailureKind::Panic);
    assert!(fault.message.contains("zero points are beyond me"), "{}", fault.message);
    assert!(case.scheme.zero.is_some() && bare(&case.scheme), "{}", case.scheme);
}

#[test]
fn a_wrong_printer_is_found() {
    let print = |scheme: &Scheme| scheme.to_string().replace("ties: away", "ties: even");
    let Finding { case, fault, .. } = found(&Subject { print, ..Subject::default() }, Check::Print);
    assert_eq!(fault.kind, FailureKind::Wrong);
    let printed = case.scheme.to_string();
    assert!(printed.contains("ties: away"), "{printed}");
    assert!(case.scheme.bias.is_none() && case.scheme.experts.is_none(), "{printed}");
    assert!(case.scheme.scales.is_empty() && case.scheme.index.is_none(), "{printed}");
}

#[test]
fn a_wrong_product_is_found() {
    let wrong = |name: &str| backend(name).map(|right| Box::new(Wrong(right)) as Box<dyn Backend>);
    let subject = Subject { backend: Arc::new(wrong), ..Subject::default() };
    let Finding { case, fault, .. } = found(&subject, Check::Products("portable".to_owned()));
    assert_eq!(fault.kind, FailureKind::Wrong);
    assert!(case.scheme.bias.is_some(), "{}", case.scheme);
    let clauses = case.scheme.zero.is_none() && case.scheme.index.is_none();
    assert!(clauses && bare(&Scheme { bias: None, ..case.scheme.clone() }), "{}", case.scheme);
    assert!(case.shape.0 * case.shape.1 <= 64, "{:?}", case.shape);
}

/// A backend whose products are infinite where there is a bias.
struct Wrong(Box<dyn Backend>);

impl Backend for Wrong {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn prepare_weight(&self, weight: &WeightData<'_>) -> Result<Box<dyn Op>, ProductError> {
        Ok(Box::new(WrongOp(self.0.prepare_weight(weight)?)))
    }
}

struct WrongOp(Box<dyn Op>);

impl Op for WrongOp {
    fn scheme(&self) -> &Scheme {
        self.0.scheme()
    }

    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn kernel(&self, tokens: usize) -> String {
        self.0.kernel(tokens)
    }

    fn explain(&self, tokens: usize) -> String {
        self.0.explain(tokens)
    }

    fn accumulation(&self) -> &dyn Accumulation {
        self.0.accumulation()
    }

    fn workspace_size(&self, tokens: usize) -> usize {
        self.0.workspace_size(tokens)
    }

    fn matmul_into(
        &self,
        expert: u64,
        x: Values<'_>,
        mut y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ProductError> {
        match &mut y {
            ValuesMut::F32(y) if self.scheme().bias.is_some() => {
                self.0.matmul_into(expert, x, ValuesMut::F32(y), workspace)?;
                y[0] = f32::INFINITY;
                Ok(())
            }
            _ => self.0.matmul_into(expert, x, y, workspace),
        }
    }
}

#[test]
fn the_program_ends_with_its_totals() {
    let program = env!("CARGO_BIN_EXE_quantloom-random-schemes");
    let run = |arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = run(&["--seed", "3", "--count", "5", "--only", "print"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("seed 3\n") && said.ends_with("\n5 passed, 0 failed\n"), "{said}");
    let (code, said) = run(&["--count", "0"]);
    assert!(code == Some(0) && said.starts_with("seed "), "a fresh seed is printed: {said}");
    assert_eq!(run(&["--only", "nothing"]).0, Some(2));
    assert_eq!(run(&["--target", "sim:nothing"]).0, Some(2));
}
