//! What a scheme becomes for its schedules: turns, runs, numbers of groups, the operand of x.

mod kernels;

use kernels::products::catalogue;
use quantloom_codegen::schedule::Problem;
use quantloom_codegen::target::target;

fn described(problem: &Problem) -> String {
    let grouped = [("scale", problem.scale), ("zero", problem.zero), ("addend", problem.addend)];
    let grouped = grouped.into_iter().filter_map(|(name, of)| {
        let of = of?;
        Some(format!("{name} {:?} {} {}x{}", of.what, of.number, of.rows, of.columns))
    });
    let mut all: Vec<String> = grouped.collect();
    if problem.factor {
        all.push("factor".to_owned());
    }
    if problem.bias {
        all.push("bias".to_owned());
    }
    let input = problem.input;
    let scale = input.scale.map(|scale| format!(", {scale:?}")).unwrap_or_default();
    let prepared = if input.prepared { "prepared " } else { "" };
    format!(
        "turn {} of runs {}; {}; {prepared}x {} of {}{scale}; y {}",
        problem.turn,
        problem.run(),
        all.join(", "),
        input.operand,
        input.columns,
        problem.output,
    )
}

#[test]
fn schemes_become_problems() {
    for name in [
        "ct_w4a16",
        "ct_mxint4",
        "ct_w3a16",
        "awq4",
        "gptq8_v2",
        "gptq4_v1_actorder",
        "ct_nvfp4a16",
        "ct_mxfp4a16",
        "fp8_block",
        "quark_w8a8_int8_channel",
        "arm_w4a8_g32",
        "ct_w4a8",
        "modelopt_nvfp4",
        "ct_fp8",
    ] {
        let scheme = catalogue().into_iter().find(|scheme| scheme.name == name).unwrap();
        for sm in ["sm_80", "sm_90a"] {
            let problem =
                Problem::new(&scheme, &scheme.activations[0], target(sm).unwrap(), (1000, 1000));
            println!(
                "{name} {sm}: {}",
                problem.map_or_else(|why| why.to_string(), |problem| described(&problem))
            );
        }
    }
}
