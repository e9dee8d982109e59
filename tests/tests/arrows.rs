//! Which top-level module of the runtime and of its tools uses which; the compiler's table is with its own tests.

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
    ("atomic_file", &[]),
    ("source", &[]),
    ("unpacked", &["float_mode", "forked"]),
    ("op", &["accumulation", "buffer", "element", "forked", "source", "unpacked"]),
    ("pack", &["forked", "unpacked"]),
    ("weight_data", &["unpacked"]),
    ("column_order", &["unpacked"]),
    ("experts", &["accumulation", "buffer", "element", "op", "unpacked"]),
    ("backend", &["experts", "op", "weight_data"]),
    (
        "cpu",
        &[
            "accumulation",
            "backend",
            "buffer",
            "column_order",
            "element",
            "experts",
            "explanation",
            "float_mode",
            "forked",
            "op",
            "unpacked",
            "weight_data",
        ],
    ),
    ("prepared", &["backend", "buffer", "element", "op", "weight_data"]),
    (
        "checkpoint",
        &["backend", "experts", "op", "atomic_file", "prepared", "unpacked", "weight_data"],
    ),
    ("declared", &["backend", "checkpoint", "cpu", "prepared"]),
    (
        "gpu",
        &[
            "accumulation",
            "backend",
            "buffer",
            "checkpoint",
            "column_order",
            "element",
            "experts",
            "explanation",
            "float_mode",
            "op",
            "source",
            "unpacked",
            "weight_data",
        ],
    ),
    ("tensor", &["checkpoint"]),
    ("driver", &["gpu", "image_cache", "op", "source"]),
    ("cuda", &["driver", "experts", "gpu", "image_cache", "prepared", "source"]),
    ("hip", &["driver", "gpu", "prepared"]),
    ("atomic_folder", &["atomic_file"]),
    ("convert", &["atomic_file", "atomic_folder", "checkpoint", "pack", "tensor", "unpacked"]),
    ("quantise", &["checkpoint", "float_mode", "atomic_file", "pack", "tensor", "unpacked"]),
    ("wgpu", &["gpu", "op", "source"]),
];

const TOOLS: Allowed<'_> = &[
    ("conformance", &[]),
    ("cuda", &[]),
    ("forward", &[]),
    ("measure", &["conformance"]),
    ("check", &["conformance", "forward"]),
];

#[test]
fn modules_of_the_runtime_and_its_tools_use_only_modules_above_them() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    check(&tests.join("../../runtime/src"), RUNTIME);
    check(&tests.join("../../runtime/tools/src"), TOOLS);
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
