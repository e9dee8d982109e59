//! Snapshots of plans and of emitted Rust for a few schemes, one per feature of the language, for
//! review of changes. Other tests check their correctness.

use std::path::Path;

use quantloom_codegen::emit::rust::page::decoder_page;
use quantloom_codegen::plan::{LANES_TILE, kernel_name, plan};
use quantloom_codegen::target::TARGETS;
use quantloom_dsl::{Scheme, parse};

const SCHEMES: &[&str] =
    &["ct_w4a16", "gptq3_v1", "ct_mxfp4a16", "quark_w_mxfp6_e3m2", "ct_fp8_block", "ct_w4a8"];

fn scheme(name: &str) -> (Scheme, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../kernels-generated/schemes/{name}.scheme"));
    let text = std::fs::read_to_string(path).unwrap();
    (parse(&text).unwrap(), text)
}

/// For each kind of target that has a layout: the kernel's name and its plan.
fn plans(scheme: &Scheme) -> String {
    let mut text = String::new();
    for name in ["x86", "sm_80", "sm_90a"] {
        let target = TARGETS.iter().find(|target| target.name == name).unwrap();
        for activation in &scheme.activations {
            text += &match plan(scheme, activation, target) {
                Ok(plan) => {
                    format!("{}\n{plan}\n\n", kernel_name(scheme, activation, LANES_TILE, target))
                }
                Err(refusal) => format!("{target}: {refusal}\n\n"),
            };
        }
    }
    text
}

#[test]
fn plans_and_decoders() {
    for name in SCHEMES {
        let (scheme, text) = scheme(name);
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("../../snapshots");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_raw_info(&text.as_str().into());
        settings.bind(|| {
            insta::assert_snapshot!(format!("{name}.plan"), plans(&scheme));
            let page =
                decoder_page(&scheme.weight.code, &format!("quantloom emit {name} --target x86"));
            insta::assert_snapshot!(format!("{name}.rust"), page.unwrap());
        });
    }
}

#[test]
fn the_same_scheme_gives_the_same_bytes() {
    for name in SCHEMES {
        let emit = || {
            let (scheme, _) = scheme(name);
            (plans(&scheme), decoder_page(&scheme.weight.code, "again").unwrap())
        };
        assert_eq!(emit(), emit(), "{name}");
    }
}
