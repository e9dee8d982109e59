//! GPU products behind the common interface, run by the simulator: select, pack, launch rule,
//! arguments. On hardware only the executor's last call differs.

use std::sync::Arc;

use quantloom::codegen::jit::{Jit, Simulator};
use quantloom::runtime::check::{Finding, Subject, Verdict, check};
use quantloom::runtime::conformance::{Failure, Suite, Summary};
use quantloom::runtime::gpu::{Choice, GpuDevice, NativePart, Products, Request};
use quantloom::runtime::source::{KernelKey, KernelSource, KernelText, Refusal};
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_tests::golden_file;

fn scheme(name: &str) -> &'static Scheme {
    quantloom_kernels::scheme(name).unwrap()
}

fn simulator(target: &str) -> Simulator {
    Simulator::new(target).unwrap()
}

/// One shape, these M, seeds of both types of x.
fn verify(
    simulator: Simulator,
    scheme: &Scheme,
    shape: (u64, u64),
    tokens: &[usize],
) -> Result<Summary, Box<Failure>> {
    let suite =
        Suite { shapes: vec![shape], tokens: tokens.to_vec(), seeds: vec![0, 1, 5], every: 1 };
    suite.run(scheme, &[&GpuDevice::new(simulator)], &|_| {}).remove(0).map_err(Box::new)
}

#[test]
fn int4_products_are_right_on_ragged_shapes() {
    // N and K whole; with tails of tiles, chunks and groups; a K as in real models; tiny.
    for (name, target, shape, tokens) in [
        ("ct_w4a16", "sm_90a", (64, 512), &[1, 3, 8, 16][..]),
        ("ct_w4a16", "sm_90a", (41, 200), &[1, 3, 8, 16]),
        ("ct_w4a16", "sm_80", (48, 2880), &[1, 8]),
        ("ct_w4a16", "sm_89", (5, 8), &[1, 16]),
        ("ct_w4a16_asym", "sm_90a", (72, 648), &[1, 3, 8, 16]),
        ("ct_w4a16_bias", "sm_90a", (41, 264), &[1, 3, 16]),
        ("awq4", "sm_90a", (48, 384), &[2, 16]),
        ("gptq4_v2", "sm_80", (33, 328), &[3, 8]),
    ] {
        let done = verify(simulator(target), scheme(name), shape, tokens)
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(done.products, tokens.len() * 3, "{name}: {done:?}");
        // Results are rounded to 16 bits, which alone may take the whole bound.
        assert!(done.not_scheduled.is_empty() && done.share > 0.1, "{name}: {done:?}");
    }
}

#[test]
fn products_of_any_number_of_rows_are_right() {
    for (name, shape, tokens) in [
        ("ct_w4a16", (48, 256), &[17, 64, 130][..]),
        ("ct_w4a16_asym", (41, 200), &[35]),
        ("ct_w4a16_bias", (72, 264), &[19]),
        // Few rows of w and many groups: K is split over blocks.
        ("ct_w4a16", (32, 2048), &[33]),
    ] {
        let done = verify(simulator("sm_90a"), scheme(name), shape, tokens)
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(done.products, tokens.len() * 3, "{name}: {done:?}");
    }
}

/// The compiler's kernels, chosen in another way.
struct Chosen(fn(&Request<'_>, u64) -> Result<Choice, Refusal>);

impl KernelSource for Chosen {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        Jit.text(key)
    }
}

impl Products for Chosen {
    fn native(&self, request: &Request<'_>) -> Result<Vec<NativePart>, Refusal> {
        Jit.native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<Choice, Refusal> {
        self.0(request, tokens)
    }

    fn operand(&self, request: &Request<'_>) -> Result<Vec<KernelKey>, Refusal> {
        Jit.operand(request)
    }
}

#[test]
fn more_rows_than_a_launch_takes_are_cut_into_pieces() {
    let few = Chosen(|request, tokens| Jit.choose(request, tokens.min(16)));
    let simulator = simulator("sm_90a").with_source(Arc::new(few));
    let done = verify(simulator, scheme("ct_w4a16"), (32, 256), &[17, 35]);
    let done = done.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!((done.products, done.elements), (6, 3 * (17 + 35) * 32), "{done:?}");
}

#[test]
fn blocks_that_split_k_find_their_workspaces() {
    let split = Chosen(|request, tokens| {
        let mut choice = Jit.choose(request, tokens)?;
        choice.key.schedule.parameters.insert("splits".to_owned(), 3);
        Ok(choice)
    });
    let simulator = simulator("sm_90a").with_source(Arc::new(split));
    let done = verify(simulator, scheme("ct_w4a16_asym"), (48, 512), &[1, 9, 20]);
    let done = done.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(done.products, 9, "{done:?}");
}

#[test]
fn what_no_schedule_takes_is_never_a_pass() {
    for (name, shape, reason) in [
        ("ct_fp8", (64, 256), "quantised activations"),
        ("gptq4_v1_actorder", (64, 256), "columns in the order of activation"),
        ("ct_w4a16", (64, 36), "K = 36: expected a multiple of 8"),
    ] {
        let result = verify(simulator("sm_90a"), scheme(name), shape, &[1]);
        let Some(Failure::NotScheduled { why, case }) = result.as_ref().err().map(Box::as_ref)
        else {
            panic!("{name}: {result:?}")
        };
        assert!(why.contains(reason), "{case}: {why}");
    }
    // A scheme of which some shapes are scheduled passes with those, and says which are not.
    let suite = Suite { seeds: vec![0], tokens: vec![1], every: 1, ..Suite::default() };
    let device = GpuDevice::new(simulator("sm_90a"));
    let done = suite.run(scheme("ct_w4a16"), &[&device], &|_| {}).remove(0).unwrap();
    assert!(done.products > 2, "{done:?}");
    assert!(done.not_scheduled.iter().any(|(_, why)| why.contains("K = 37")), "{done:?}");
}

#[test]
fn a_type_of_x_without_kernels_is_refused_by_name() {
    let scheme = parse(
        "s { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: f32 }",
    );
    let result = verify(simulator("sm_90a"), &scheme.unwrap(), (32, 128), &[1]);
    let refused = result.as_ref().err().map(Box::as_ref);
    assert!(matches!(refused, Some(Failure::NotScheduled { .. })), "{result:?}");
}

fn golden(name: &str) -> Vec<Finding> {
    let path = golden_file(name);
    let checkpoint = Checkpoint::open_with(&path, Options::default()).unwrap();
    check(&checkpoint, &GpuDevice::new(simulator("sm_90a")))
}

#[test]
fn other_peoples_results_are_met() {
    // The last two have weights alone: those are multiplied with an x of our own.
    for name in ["ct_w4a16", "ct_w4a16_asym", "ct_w4a16_bias", "gptq4", "awq4"] {
        let findings = golden(name);
        let product = findings.iter().find(|finding| finding.subject == Subject::Product);
        let product = product.unwrap_or_else(|| panic!("{name} has no product: {findings:?}"));
        assert_eq!(product.verdict, Verdict::Pass, "{name}: {product:?}");
    }
    for (name, expected) in [
        ("gptq4_v1_actorder", "columns in the order of activation"),
        ("gptq8", "zero points other than integers of 4 bits"),
    ] {
        let findings = golden(name);
        let reason = findings.iter().find_map(|finding| match &finding.verdict {
            Verdict::NotChecked(why) => Some(why.as_str()),
            _ => None,
        });
        assert!(reason.is_some_and(|why| why.contains(expected)), "{name}: {findings:?}");
    }
}
