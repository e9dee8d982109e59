//! Which rules of scales clip.

use quantloom_dsl::parse;

fn clips(clauses: &str) -> Vec<String> {
    let text = format!("s {{ {clauses}, pack: u8 [k:* | w, n], activation: f32 }}");
    parse(&text).unwrap_or_else(|faults| panic!("{faults}")).clipping()
}

#[test]
fn defaults_do_not_clip_and_written_rules_that_do_are_found() {
    for code in ["i1", "i2", "i4", "i8", "u4 - 8", "u4 - 3", "u8 + 9", "e2m1", "e4m3"] {
        for scales in ["f32 per 1x32", "i8 per 1x16, scale: f16 per 1x256", "bf16 per channel"] {
            let clipped = clips(&format!("weight: {code}, scale: {scales}"));
            let one_sided = ["i1", "u8 + 9"].contains(&code);
            assert_eq!(clipped.len(), usize::from(one_sided), "{code}, {scales}: {clipped:?}");
        }
    }
    for clauses in [
        "weight: i8, scale: e8m0 per 1x32",
        "weight: u4, zero: u4, scale: e8m0 per 1x32",
        "weight: u4, shift: f16, scale: e8m0 per 1x32",
        "weight: u4, shift: f16, scale: f16 per 1x32",
        "weight: e2m1, scale: e8m0 per 1x32 from pow2 above 1.75",
        "weight: e4m3, scale: e8m0 per 1x32 from pow2 above 1.75",
        "weight: e2m3, scale: e8m0 per 1x32 from pow2 above 1.9375",
        "weight: e2m1, scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688",
        "weight: u4 - 8, scale: f16 per 1x32 from amax / 7",
    ] {
        assert_eq!(clips(clauses), [""; 0], "{clauses}");
    }
    for clauses in [
        "weight: u4 - 8, scale: f16 per 1x32 from amax / 8",
        "weight: i8, scale: e8m0 per 1x32 from pow2",
        "weight: i8, scale: e8m0 per 1x32 from amax / 127",
        "weight: e2m1, scale: e8m0 per 1x32 from pow2",
        "weight: u4, zero: u4, scale: f16 per 1x32 from range / 17",
        "weight: u6 - 32, scale: i8 per 1x16, scale: f16 per 1x256 from amax / 5000",
        "weight: u4, scale: f16 per 1x32",
    ] {
        assert_eq!(clips(clauses).len(), 1, "{clauses}");
    }
}
