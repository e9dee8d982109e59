//! Launch plans of products on the simulator: their memory is what the kernels' rules say, and a
//! workspace holds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use quantloom_codegen::jit::{Jit, Simulator};
use quantloom_dsl::format::{BF16, F32, FloatFormat};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::parse;
use quantloom_runtime::gpu::{GpuDevice, GpuWeight, Products as _, WorkspaceBytes};
use quantloom_runtime::source::{
    Access, BufferRole, KernelSource as _, ParameterKind, ProblemSize, Storage,
};
use quantloom_runtime::unpacked::Unpacked;

const PLAIN: &str = "p { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], \
                     activation: bf16 }";
const QUANTISED: &str = "q { weight: i8, scale: bf16 per channel, pack: [k, n], \
                         activation: i8 { scale: own per token }, arithmetic: own }";

fn weight(target: &str, text: &str, (n, k): (u64, u64)) -> GpuWeight<Simulator> {
    let scheme = parse(text).unwrap_or_else(|faults| panic!("{faults}"));
    let shape = Shape::matrix(n, k);
    let bytes: BTreeMap<&str, Vec<u8>> = scheme
        .stores
        .iter()
        .map(|store| {
            let bytes = scheme.bind(store, shape).unwrap().bytes() as usize;
            (store.name.as_str(), vec![0x11; bytes])
        })
        .collect();
    let stored = |name: &str| bytes.get(name).map(Vec::as_slice);
    let unpacked = Unpacked::new(&scheme, shape, &stored).unwrap();
    GpuDevice::new(Simulator::new(target).unwrap()).prepare(&scheme, &unpacked).unwrap()
}

/// What a product's kernels write besides y, each role once with the most bytes.
fn written(weight: &GpuWeight<Simulator>, own: FloatFormat, m: u64) -> BTreeMap<BufferRole, u64> {
    let request = weight.asked(own).unwrap();
    let choice = weight.choice(own, m).unwrap();
    let problem = ProblemSize::new(m, request.n, request.x_columns, 132);
    let mut written = BTreeMap::new();
    for step in Jit.steps(&request, &choice).unwrap() {
        for parameter in &Jit.text(&step.kernel).unwrap().rule.parameters {
            let ParameterKind::Buffer { access, bytes, role, .. } = &parameter.kind else {
                continue;
            };
            let role = role.unwrap_or_else(|| panic!("{} has no role", parameter.name));
            assert_eq!(role.to_string(), parameter.name);
            if *access != Access::Read && role != BufferRole::Y {
                let most = written.entry(role).or_insert(0);
                *most = bytes.of(&problem).unwrap().max(*most);
            }
        }
    }
    written
}

#[test]
fn a_workspace_is_what_the_rules_of_the_kernels_say() {
    let mut roles = Vec::new();
    for (target, text, shape, own) in [
        ("sm_90a", PLAIN, (16, 4096), BF16),
        ("sm_90a", QUANTISED, (41, 256), BF16),
        ("gfx942", QUANTISED, (41, 256), BF16),
        ("gfx1100", QUANTISED, (41, 256), BF16),
        ("wgsl", PLAIN, (41, 256), F32),
    ] {
        let weight = weight(target, text, shape);
        for m in [1, 3, 40] {
            let plan = weight.plan(own, m).unwrap();
            let written = written(&weight, own, m);
            let sum = |storage: Storage| -> u64 {
                let of = written.iter().filter(|(role, _)| role.storage() == storage);
                of.map(|(_, bytes)| bytes.next_multiple_of(256)).sum()
            };
            let expected =
                WorkspaceBytes { counters: sum(Storage::Counters), scratch: sum(Storage::Scratch) };
            assert_eq!(plan.workspace(), expected, "{target} {text} M = {m}");
            let width = u64::from(own.bits() / 8);
            assert_eq!(
                (plan.x_bytes(), plan.y_bytes()),
                (m * shape.1 * width, m * shape.0 * width)
            );
            roles.extend(written.into_keys());
        }
    }
    // Each kind of memory was there.
    for role in [
        BufferRole::Operand,
        BufferRole::OperandScale,
        BufferRole::PartialSums,
        BufferRole::Arrivals,
    ] {
        assert!(roles.contains(&role), "no plan has `{role}`");
    }
}

#[test]
fn a_plan_is_made_once() {
    let weight = weight("sm_90a", PLAIN, (16, 256));
    weight.warm(BF16, &[1, 3]).unwrap();
    let [one, again, three] = [1, 1, 3].map(|m| weight.plan(BF16, m).unwrap());
    assert!(Arc::ptr_eq(&one, &again) && !Arc::ptr_eq(&one, &three));
    assert_eq!((one.tokens(), three.tokens(), one.launches()), (1, 3, 1));
    let none = weight.plan(BF16, 0).unwrap();
    assert_eq!((none.launches(), none.workspace().total(), none.x_bytes()), (0, 0, 0));
}
