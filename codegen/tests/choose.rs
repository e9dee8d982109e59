//! The choice of a schedule: it can be written, and its key's name and parameters give it back.

mod kernels;

use std::collections::BTreeMap;

use kernels::products::problem;
use quantloom_codegen::ir::verify;
use quantloom_codegen::schedule::{Chosen, choose};

#[test]
fn what_is_chosen_is_written_and_read_back() {
    for sm in ["sm_80", "sm_89", "sm_90a"] {
        for shape in [(4096, 4096), (5760, 2880), (1024, 4096), (8192, 28_672), (48, 128)] {
            let problem = problem("asym", 0, sm, shape);
            for tokens in [1, 3, 8, 16, 17, 64, 257] {
                let chosen = choose(&problem, tokens).unwrap();
                assert!(
                    chosen.tokens().is_none_or(|most| most >= tokens),
                    "{sm} {shape:?} {tokens}: {chosen:?}"
                );
                let parameters: BTreeMap<String, u64> = chosen
                    .parameters()
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect();
                assert_eq!(Chosen::read(chosen.name(), &parameters).unwrap(), chosen);
                let kernel = chosen.write(&problem).unwrap();
                verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
            }
        }
    }
}

#[test]
fn a_key_that_says_too_little_is_refused() {
    let chosen = choose(&problem("sym", 0, "sm_90a", (4096, 4096)), 1).unwrap();
    for (missing, _) in chosen.parameters() {
        let others = chosen.parameters().into_iter().filter(|(name, _)| *name != missing);
        let others = others.map(|(name, value)| (name.to_owned(), value)).collect();
        let error = Chosen::read(chosen.name(), &others).unwrap_err().to_string();
        assert!(error.contains(missing), "{missing}: {error}");
    }
    let error = Chosen::read("coded", &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("no schedule coded"), "{error}");
}
