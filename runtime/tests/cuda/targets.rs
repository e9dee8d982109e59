//! Which device a text is for.

use quantloom_runtime::cuda::{runs, text_target};

#[test]
fn targets() {
    let cases = [
        ("sm_80", (8, 0), true),
        ("sm_80", (9, 0), true),
        ("sm_80", (12, 0), true),
        ("sm_89", (8, 6), false),
        ("sm_90", (8, 9), false),
        ("sm_90", (10, 0), true),
        ("sm_90a", (9, 0), true),
        ("sm_90a", (10, 0), false),
        ("sm_100a", (10, 0), true),
        ("gfx942", (9, 0), false),
        ("sm_", (9, 0), false),
    ];
    for (target, compute, expected) in cases {
        assert_eq!(runs(target, compute), expected, "{target} {compute:?}");
    }
    let lines = [
        (".version 8.0\n.target sm_90a\n", Some("sm_90a")),
        ("// .target sm_80\n  .target\tsm_89, debug\n", Some("sm_89")),
        (".version 8.0\n", None),
        (".target \n", None),
    ];
    for (text, expected) in lines {
        assert_eq!(text_target(text), expected, "{text:?}");
    }
}
