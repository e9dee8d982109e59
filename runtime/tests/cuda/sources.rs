//! Kernel keys and launch rules.

use quantloom_dsl::format::{BF16, F32, Number};
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::source::{Count, KernelKey, ProblemSize, Schedule, Work};

fn scheme(name: &str, group: u32, pack: &str) -> Scheme {
    let text = format!(
        "/// {name}.\n{name} {{ weight: u4 - 8, scale: bf16 per 1x{group}, pack: {pack}, \
         activation: bf16 | f16 }}"
    );
    parse(&text).unwrap()
}

const ROWS: &str = "u32 [k:8 | k, n]";
const COLUMNS: &str = "u32 [n:8 | n, k]";

#[test]
fn equal_work_has_equal_keys() {
    let a = scheme("A", 128, ROWS);
    let (bf16, f16) = (&a.activations[0], &a.activations[1]);
    let (out, wide) = (Number::Float(BF16), Number::Float(F32));
    let product = |scheme: &Scheme| Work::product(scheme, bf16, out);
    let cases = [
        ("a name", product(&a) == product(&scheme("B", 128, ROWS)), true),
        ("a packing", product(&a) == product(&scheme("A", 128, COLUMNS)), true),
        ("a group", product(&a) == product(&scheme("A", 64, ROWS)), false),
        ("an activation", product(&a) == Work::product(&a, f16, out), false),
        ("an output", product(&a) == Work::product(&a, bf16, wide), false),
        ("a name", Work::to_native(&a) == Work::to_native(&scheme("B", 128, ROWS)), true),
        ("a packing", Work::to_native(&a) == Work::to_native(&scheme("A", 128, COLUMNS)), false),
        ("a direction", Work::to_native(&a) == Work::from_native(&a), false),
    ];
    for (at, (what, equal, expected)) in cases.into_iter().enumerate() {
        assert_eq!(equal, expected, "case {at}: another {what}");
    }
}

#[test]
fn a_key_reads_as_a_sentence() {
    let a = scheme("A", 128, ROWS);
    let work = Work::product(&a, &a.activations[0], Number::Float(BF16));
    let schedule = Schedule::new("decode", [("warps", 16), ("rows", 2)]);
    let key = KernelKey { work, schedule, target: "sm_90a".to_owned() };
    let expected = "product of 4-bit codes to bf16, decode(rows=2, warps=16), sm_90a";
    assert_eq!(key.to_string(), expected);
    assert_eq!(Schedule::new("decode", []).to_string(), "decode");
}

#[test]
fn counts_are_the_formulas_they_read_as() {
    let problem = ProblemSize::new(3, 1000, 4096, 132);
    let most = Count::Fixed(u64::MAX);
    let cases = [
        (Count::M, Some(3), "M"),
        (Count::N.ceil_div(32), Some(32), "ceil(N / 32)"),
        (Count::N.ceil_div(1000), Some(1), "ceil(N / 1000)"),
        (Count::K * 4 + 16, Some(16400), "(K * 4 + 16)"),
        ((Count::K + 1) * Count::M, Some(12291), "(K + 1) * M"),
        (Count::N.min(Count::Multiprocessors * 2), Some(264), "min(N, multiprocessors * 2)"),
        (Count::N.max(Count::K), Some(4096), "max(N, K)"),
        (Count::N.ceil_div(0), None, "ceil(N / 0)"),
        (most.clone() + 1, None, "(18446744073709551615 + 1)"),
        (most * 2, None, "18446744073709551615 * 2"),
    ];
    for (count, expected, text) in cases {
        assert_eq!(count.of(&problem), expected, "{count}");
        assert_eq!(count.to_string(), text);
    }
}

#[test]
fn a_rule_survives_being_stored() {
    for text in quantloom_tools::cuda::selftest::texts::all() {
        let stored = serde_json::to_string(&text.rule).unwrap();
        let again: quantloom_runtime::source::LaunchRule = serde_json::from_str(&stored).unwrap();
        assert_eq!(&again, text.rule.as_ref(), "{stored}");
    }
}
