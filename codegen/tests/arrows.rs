//! Which top-level module of this crate uses which: an arrow that the table does not have is a
//! failure, and so is one of the table that nothing uses any more.

use std::path::Path;

use quantloom_tests::arrows::{Allowed, check};

const ALLOWED: Allowed<'_> = &[
    ("target", &[]),
    ("plan", &["target"]),
    ("ir", &["target"]),
    ("sim", &["ir", "target"]),
    ("emit", &["ir", "plan", "target"]),
    ("schedule", &["ir", "plan", "target"]),
    ("support", &["plan", "schedule", "target"]),
    ("expand", &["emit", "plan", "target"]),
    ("catalogue", &["emit", "plan", "target"]),
    ("jit", &["emit", "ir", "plan", "schedule", "sim", "target"]),
];

#[test]
fn modules_use_only_modules_above_them() {
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src"), ALLOWED);
}
