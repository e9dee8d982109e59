//! The page `docs/refusals.md`: the targets that it names refuse its schemes, in its words.

use quantloom::codegen::jit::Simulator;
use quantloom_dsl::parse;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tools::conformance::{Failure, Suite};

#[test]
fn the_page_of_refusals_is_true() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/refusals.md");
    let page = std::fs::read_to_string(page).unwrap();
    let suite = Suite { shapes: vec![(33, 160)], tokens: vec![3], seeds: vec![0], every: 1 };
    let mut refused = 0;
    for case in page.split("Refused on ").skip(1) {
        let (targets, rest) = case.split_once(" with \"").unwrap();
        let (words, rest) = rest.split_once('"').unwrap();
        let text = rest.split("```scheme\n").nth(1).unwrap().split("```").next().unwrap();
        let scheme = parse(text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        assert_eq!(scheme.to_string(), text);
        let done = suite.run(&scheme, &[&CpuDevice::portable()], &|_| {}).remove(0);
        done.unwrap_or_else(|failure| panic!("{failure}"));
        for target in targets.split(", ") {
            let device = GpuDevice::new(Simulator::new(target).unwrap());
            match suite.run(&scheme, &[&device], &|_| {}).remove(0) {
                Err(Failure::NotScheduled { why, .. }) => {
                    assert!(why.to_string().contains(words), "{target}: {why}");
                }
                other => panic!("{target}: {other:?}"),
            }
            refused += 1;
        }
    }
    assert!(refused >= 8, "{refused}");
}
