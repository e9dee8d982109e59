//! Which top-level module of the runtime uses which; the compiler's table is with its own tests.

use std::collections::BTreeSet;
use std::path::Path;

use quantloom_tests::arrows::{Allowed, check, used};

const RUNTIME: Allowed<'_> = &[
    ("accumulation", &[]),
    ("buffer", &[]),
    ("element", &[]),
    ("explanation", &[]),
    ("float_mode", &[]),
    ("forked", &[]),
    ("image_cache", &[]),
    ("output", &[]),
    ("source", &[]),
    ("measure", &["buffer"]),
    ("unpacked", &["float_mode", "forked"]),
    ("op", &["accumulation", "buffer", "element", "forked", "source", "unpacked"]),
    ("pack", &["forked", "unpacked"]),
    ("weight_data", &["unpacked"]),
    ("backend", &["op", "weight_data"]),
    (
        "cpu",
        &[
            "accumulation",
            "backend",
            "buffer",
            "element",
            "explanation",
            "float_mode",
            "forked",
            "op",
            "unpacked",
            "weight_data",
        ],
    ),
    ("prepared", &["backend", "buffer", "element", "op", "weight_data"]),
    ("checkpoint", &["backend", "op", "output", "prepared", "unpacked", "weight_data"]),
    ("declared", &["backend", "checkpoint", "cpu", "prepared"]),
    (
        "forward",
        &["backend", "checkpoint", "element", "float_mode", "op", "unpacked", "weight_data"],
    ),
    (
        "gpu",
        &[
            "accumulation",
            "backend",
            "buffer",
            "checkpoint",
            "element",
            "explanation",
            "float_mode",
            "op",
            "source",
            "unpacked",
            "weight_data",
        ],
    ),
    ("tensor", &["checkpoint"]),
    (
        "conformance",
        &[
            "accumulation",
            "backend",
            "cpu",
            "declared",
            "element",
            "float_mode",
            "op",
            "pack",
            "unpacked",
            "weight_data",
        ],
    ),
    ("cuda", &["gpu", "image_cache", "op", "prepared", "source"]),
    ("hip", &["gpu", "image_cache", "op", "source"]),
    ("quantise", &["checkpoint", "float_mode", "output", "pack", "tensor", "unpacked"]),
    ("wgpu", &["gpu", "op", "source"]),
    (
        "check",
        &[
            "backend",
            "checkpoint",
            "conformance",
            "float_mode",
            "forward",
            "op",
            "tensor",
            "unpacked",
        ],
    ),
];

#[test]
fn modules_of_the_runtime_use_only_modules_above_them() {
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/src"), RUNTIME);
}

#[test]
fn paths_are_read() {
    let text = "use crate::{ir::{Op, Reg}, plan, target::*};\n\
                // crate::comment\n\
                /// [`crate::link`]\n\
                fn f() -> crate::emit::Text { let x = crate::sim::run; x } // crate::end\n\
                #[cfg(test)]\n\
                mod tests { use crate::jit::Jit; }\n";
    let expected = ["emit", "ir", "plan", "sim", "target"].map(str::to_owned);
    assert_eq!(used(text), BTreeSet::from(expected));
}
