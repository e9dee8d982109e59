//! `quantloom quantize` beside the library.

use quantloom::kernels::scheme;
use quantloom_tests::floats::{float_file, floats, quantised};

use crate::ran::quantloom;

/// The command writes what the library writes, and leaves `lm_head` and norms as they are.
#[test]
fn the_command_quantises_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["ct_w4a16", "gptq3_v1", "awq4", "modelopt_nvfp4", "gpt_oss_mxfp4_gate_up"] {
        let scheme = scheme(name).unwrap();
        float_file(&path("float"), scheme, &floats(scheme));
        quantised(scheme, &path("float"), &path("by_library"));
        let (from, to) = (path("float"), path("by_command"));
        let arguments = ["quantize".as_ref(), from.as_os_str(), "--scheme".as_ref(), name.as_ref()];
        let out = ["--force".as_ref(), "--out".as_ref(), to.as_os_str()];
        let ran = quantloom(&[&arguments[..], &out].concat()).done();
        let read = |name: &str| std::fs::read(path(name)).unwrap();
        assert!(read("by_library") == read("by_command"), "{name}");
        assert_eq!(ran.out.matches(" dB").count(), 2, "a line of accuracy each:\n{}", ran.out);
        assert!(!ran.out.contains("lm_head"), "{}", ran.out);
    }
}
