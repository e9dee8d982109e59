//! `verify --experts`: whole expert layers from the command line.

use crate::ran::{Ran, quantloom};

fn run(line: &str) -> Ran {
    quantloom(&line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn verify_compares_whole_layers() {
    let ran = run(
        "verify ct_w4a16 arm_w4a8_g32 --backend portable --experts 16x4 --shape 64x96 --gate silu \
         --routing random --m 1,3,17 --seed 0",
    )
    .done();
    assert!(ran.out.contains("2 passed, 0 failed"), "{}", ran.out);
    assert!(ran.out.contains("gate_up: portable") && ran.out.contains("combine"), "{}", ran.out);
    // The text of a gate with numbers, and every kind of routing.
    for routing in ["one", "none", "logits", "batched"] {
        let line = [
            "verify",
            "ct_w4a16",
            "--backend",
            "portable",
            "--experts",
            "6x2",
            "--shape",
            "41x200",
            "--gate",
            "swigluoai alpha 1.702 limit 7",
            "--routing",
            routing,
            "--m",
            "3",
            "--seed",
            "1",
        ];
        let ran = quantloom(&line).done();
        assert!(ran.out.contains("1 passed, 0 failed"), "{routing}: {}", ran.out);
    }
}

#[test]
fn devices_and_numbers_that_have_no_layers_are_refused_in_words() {
    let ran = run("verify ct_w4a16 --backend portable --experts 4x5 --shape 64x96");
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.err.contains("top 5 of 4 experts: top-k is 1 to 4"), "{}", ran.err);
    for line in ["verify ct_w4a16 --experts 4", "verify ct_w4a16 --gate silu"] {
        let ran = run(line);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{}", ran.err);
    }
    let ran = run("verify ct_w4a16 --experts 4x2 --gate relu");
    assert!(ran.code == Some(2) && ran.err.contains("expected"), "{}", ran.err);
}
