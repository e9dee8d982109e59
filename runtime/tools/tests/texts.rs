//! The hand-written texts: against their rules, and with the real assembler where it is.

use quantloom_runtime::cuda::text_target;
use quantloom_runtime::source::{ParameterKind, Scalar};
use quantloom_tests::tools::ptxas;
use quantloom_tools::cuda::random::random_word;
use quantloom_tools::cuda::selftest::texts;

/// The parameters of an entry point: their PTX types, in order.
fn parameters(text: &str, entry: &str) -> Vec<String> {
    let (_, rest) = text.split_once(&format!(".entry {entry}(")).unwrap();
    let (list, _) = rest.split_once(')').unwrap();
    let list = list.split(',').map(str::trim).filter(|parameter| !parameter.is_empty());
    list.map(|parameter| {
        let (declaration, name) = parameter.rsplit_once(' ').unwrap();
        let array = name.find('[').map_or("", |at| &name[at..]);
        format!("{}{array}", declaration.trim_start_matches(".param "))
    })
    .collect()
}

#[test]
fn each_rule_has_its_texts_parameters() {
    for text in texts::all() {
        let expected = text.rule.parameters.iter().map(|parameter| match parameter.kind {
            ParameterKind::Buffer { .. } | ParameterKind::Scalar(Scalar::U64) => ".u64",
            ParameterKind::Size(_) | ParameterKind::Scalar(Scalar::U32) => ".u32",
            ParameterKind::Scalar(Scalar::I32) => ".s32",
            ParameterKind::Scalar(Scalar::F32) => ".f32",
            ParameterKind::TensorMap(_) => ".align 64 .b8[128]",
        });
        let expected: Vec<_> = expected.collect();
        assert_eq!(parameters(&text.text, &text.entry), expected, "{}", text.entry);
    }
}

#[test]
fn the_assembler_takes_each_text() {
    let Some(ptxas) = ptxas::find() else { return };
    for text in texts::all() {
        let target = text_target(&text.text).unwrap();
        for architecture in ["sm_80", "sm_89", "sm_90", "sm_90a"] {
            let number = |name: &str| name.trim_start_matches("sm_").trim_end_matches('a').parse();
            let (needed, given): (u32, u32) =
                (number(target).unwrap(), number(architecture).unwrap());
            if given < needed || target.ends_with('a') && target != architecture {
                continue;
            }
            let assembled = ptxas.assemble(&text.text, architecture);
            let what = format!("{} for {architecture}:\n{}", text.entry, assembled.report);
            assert!(assembled.is_clean(), "{what}");
            assert!(what.contains("0 bytes spill stores, 0 bytes spill loads"), "{what}");
            assert!(what.contains("0 bytes stack frame"), "{what}");
        }
    }
}

/// By hand from the three steps of the mixer, so that a change of a constant shows here before it
/// shows as another set of data on the device.
#[test]
fn random_words() {
    assert_eq!(random_word(0, 0), 0);
    let mut ones = [0u32; 32];
    for at in 0..10_000 {
        let word = random_word(at, 9);
        for (bit, ones) in ones.iter_mut().enumerate() {
            *ones += word >> bit & 1;
        }
    }
    // 10,000 fair bits: 5,000 with a deviation of 50; six deviations, 32 times.
    assert!(ones.iter().all(|ones| (4700..5300).contains(ones)), "{ones:?}");
}
