//! The conformance kit of expert layers finds each of a list of faults: correct layers, made wrong on
//! purpose in their matrices, their description or their calls.

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::{ExpertLayer, Gate};
use quantloom_dsl::format::FloatFormat;
use quantloom_runtime::accumulation::Sums;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::element::ValuesMut;
use quantloom_runtime::experts::{
    ExpertCall, ExpertError, ExpertOp, ExpertOptions, ExpertProduct, ExpertSource, InputScales,
    Routed,
};
use quantloom_runtime::op::{Op, ProductError, Workspace};
use quantloom_runtime::unpacked::Unpacked;
use quantloom_runtime::weight_data::WeightData;
use quantloom_tools::check::{Subject, Verdict, check};
use quantloom_tools::conformance::experts::{ExpertFailure, ExpertSuite, RoutingKind};

/// How a broken layer differs from a correct one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Expert 0's weights for all.
    FirstExpert,
    /// The second product's alone.
    FirstDown,
    /// Gate and up swapped.
    Swapped,
    /// Up is gate.
    UpIsGate,
    /// Limits are left out.
    NoLimit,
    /// Alpha is 1.
    AlphaOne,
    /// Not `u + 1` but u.
    NoPlusOne,
    /// The largest static scale where each expert's own was asked.
    Largest,
    /// The router weight of the next pair.
    NeighbourWeight,
    /// The router weight twice.
    WeightTwice,
    /// No router weight.
    NoWeight,
    /// A token's experts in another order, its weights not.
    IdsReversed,
    /// An expert that is chosen twice counts once.
    DuplicateLost,
    /// -1 is the last expert.
    LastForNone,
    /// The result of shared experts is left out.
    NoShared,
    /// The last token is not computed.
    LastToken,
    /// Rows of y that have no expert keep what was there.
    NotWritten,
    /// Router weights are divided by their sum where they are not, and not where they are.
    Renormalised,
}

struct Breaks(Fault);

struct BrokenSource<'a> {
    source: &'a dyn ExpertSource,
    fault: Fault,
}

impl ExpertSource for BrokenSource<'_> {
    fn scheme(&self, product: ExpertProduct) -> &Scheme {
        self.source.scheme(product)
    }

    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError> {
        let (expert, shard) = match (self.fault, product) {
            (Fault::FirstExpert, _) | (Fault::FirstDown, ExpertProduct::Down) => (0, shard),
            (Fault::Swapped, ExpertProduct::GateUp) => (expert, 1 - shard),
            (Fault::UpIsGate, _) => (expert, 0),
            _ => (expert, shard),
        };
        self.source.matrix(product, expert, shard)
    }
}

impl Backend for Breaks {
    fn name(&self) -> &str {
        "cpu"
    }

    fn prepare_weight(&self, weight: &WeightData<'_>) -> Result<Box<dyn Op>, ProductError> {
        CpuDevice::best().prepare_weight(weight)
    }

    fn prepare_experts(
        &self,
        layer: &ExpertLayer,
        source: &dyn ExpertSource,
        options: &ExpertOptions,
    ) -> Result<Box<dyn ExpertOp>, ExpertError> {
        let fault = self.0;
        let mut wrong = *layer;
        wrong.gate = match (fault, layer.gate) {
            (Fault::NoLimit, Gate::SiluLimit { .. }) => Gate::Silu,
            (Fault::NoLimit, Gate::SwigluOai { alpha, .. }) => {
                Gate::SwigluOai { alpha, limit: 1e30 }
            }
            (Fault::AlphaOne, Gate::SwigluOai { limit, .. }) => {
                Gate::SwigluOai { alpha: 1.0, limit }
            }
            (Fault::NoPlusOne, Gate::SwigluOai { limit, .. }) => Gate::SiluLimit { limit },
            (_, gate) => gate,
        };
        if fault == Fault::Renormalised {
            wrong.routing.renormalise = !wrong.routing.renormalise;
        }
        let mut options = options.clone();
        if fault == Fault::Largest {
            options.input_scales = InputScales::Largest;
        }
        let source = BrokenSource { source, fault };
        let op = CpuDevice::best().prepare_experts(&wrong, &source, &options)?;
        Ok(Box::new(Broken { op, layer: *layer, fault }))
    }
}

struct Broken {
    op: Box<dyn ExpertOp>,
    layer: ExpertLayer,
    fault: Fault,
}

impl ExpertOp for Broken {
    fn layer(&self) -> &ExpertLayer {
        &self.layer
    }
    fn schemes(&self) -> [&Scheme; 2] {
        self.op.schemes()
    }
    fn kernels(&self, tokens: usize) -> Vec<String> {
        self.op.kernels(tokens)
    }
    fn explain(&self, tokens: usize) -> String {
        self.op.explain(tokens)
    }
    fn sums(&self, x: FloatFormat, tokens: usize) -> [Sums; 2] {
        self.op.sums(x, tokens)
    }
    fn workspace_size(&self, tokens: usize) -> usize {
        self.op.workspace_size(tokens)
    }
    fn route(
        &self,
        logits: &[f32],
        ids: &mut [i32],
        weights: &mut [f32],
    ) -> Result<(), ExpertError> {
        self.op.route(logits, ids, weights)
    }

    fn forward_into(
        &self,
        call: &ExpertCall<'_>,
        mut y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ExpertError> {
        let Routed::Chosen { ids, weights } = call.routed else {
            return self.op.forward_into(call, y, workspace);
        };
        let (mut ids, mut weights) = (ids.to_vec(), weights.to_vec());
        let k = self.layer.top_k as usize;
        let mut call = *call;
        match self.fault {
            Fault::NeighbourWeight if !weights.is_empty() => weights.rotate_left(1),
            Fault::WeightTwice => weights.iter_mut().for_each(|weight| *weight *= *weight),
            Fault::NoWeight => weights.fill(1.0),
            Fault::IdsReversed => ids.chunks_mut(k).for_each(<[i32]>::reverse),
            Fault::DuplicateLost => {
                for ids in ids.chunks_mut(k) {
                    for at in 1..ids.len() {
                        if ids[..at].contains(&ids[at]) {
                            ids[at] = -1;
                        }
                    }
                }
            }
            Fault::LastForNone => {
                let last = self.layer.experts as i32 - 1;
                ids.iter_mut().filter(|id| **id < 0).for_each(|id| *id = last);
            }
            Fault::NoShared => call.shared = None,
            Fault::LastToken => {
                let last = ids.len().saturating_sub(k);
                ids[last..].fill(-1);
            }
            _ => {}
        }
        call.routed = Routed::Chosen { ids: &ids, weights: &weights };
        let whole = match &mut y {
            ValuesMut::F32(y) => ValuesMut::F32(y),
            ValuesMut::F16(y) => ValuesMut::F16(y),
            ValuesMut::Bf16(y) => ValuesMut::Bf16(y),
        };
        self.op.forward_into(&call, whole, workspace)?;
        let hidden = self.layer.hidden as usize;
        if let (Fault::NotWritten, ValuesMut::F32(y)) = (self.fault, &mut y) {
            for (row, ids) in y.chunks_mut(hidden).zip(ids.chunks(k)) {
                if ids.iter().all(|id| *id < 0) {
                    row.fill(f32::NAN);
                }
            }
        }
        Ok(())
    }
}

#[test]
fn each_fault_is_found() {
    let swiglu = Gate::SwigluOai { alpha: 1.702, limit: 3.0 };
    let limited = Gate::SiluLimit { limit: 2.0 };
    let floats = "ct_w4a16";
    let with_static = "quark_w8a8_int8_channel_static";
    for (fault, gate, name, routing) in [
        (Fault::FirstExpert, Gate::Silu, floats, RoutingKind::Random),
        (Fault::FirstDown, Gate::Silu, "arm_w4a8_g32", RoutingKind::Batched),
        (Fault::Swapped, Gate::Silu, floats, RoutingKind::Random),
        (Fault::Swapped, Gate::GeluTanh, "arm_w4a8_g32", RoutingKind::One),
        (Fault::UpIsGate, Gate::Silu, "ct_mxfp4", RoutingKind::Random),
        (Fault::NoLimit, limited, floats, RoutingKind::Random),
        (Fault::NoLimit, swiglu, "arm_w4a8_g32", RoutingKind::Random),
        (Fault::AlphaOne, swiglu, floats, RoutingKind::Random),
        (Fault::NoPlusOne, swiglu, floats, RoutingKind::Random),
        (Fault::Largest, Gate::Silu, with_static, RoutingKind::Random),
        (Fault::NeighbourWeight, Gate::Silu, floats, RoutingKind::Random),
        (Fault::WeightTwice, Gate::Silu, floats, RoutingKind::Random),
        (Fault::NoWeight, Gate::Silu, "arm_w4a8_g32", RoutingKind::Random),
        (Fault::IdsReversed, Gate::Silu, floats, RoutingKind::Random),
        (Fault::DuplicateLost, Gate::Silu, floats, RoutingKind::Random),
        (Fault::DuplicateLost, Gate::Silu, floats, RoutingKind::One),
        (Fault::LastForNone, Gate::Silu, floats, RoutingKind::Random),
        (Fault::LastForNone, Gate::Silu, floats, RoutingKind::None),
        (Fault::NoShared, Gate::Silu, floats, RoutingKind::None),
        (Fault::LastToken, Gate::Silu, "ct_w4a8", RoutingKind::Random),
        (Fault::NotWritten, Gate::Silu, floats, RoutingKind::None),
        (Fault::Renormalised, Gate::Silu, floats, RoutingKind::Logits),
    ] {
        let suite = ExpertSuite {
            experts: (6, 3),
            shapes: vec![(64, 96)],
            gates: vec![gate],
            routings: vec![routing],
            tokens: vec![8, 17],
            seeds: vec![0],
            every: 1,
        };
        let scheme = quantloom_kernels::scheme(name).unwrap();
        let best: [&dyn Backend; 1] = [&CpuDevice::best()];
        let right = suite.run(scheme, name, &best, &|_| {}).remove(0);
        assert!(right.is_ok(), "{fault:?}: {right:?}");
        let broken: [&dyn Backend; 1] = [&Breaks(fault)];
        let result = suite.run(scheme, name, &broken, &|_| {}).remove(0);
        let found = match &result {
            Err(ExpertFailure::Mismatch { case, .. } | ExpertFailure::Routing { case, .. }) => {
                case.again()
            }
            _ => panic!("{fault:?} with {name} is not found: {result:?}"),
        };
        // The command that reproduces it names everything that determines the numbers.
        let gate = format!("--gate '{gate}' --routing {} --m ", routing.name());
        assert!(found.starts_with(&format!("quantloom verify {name} ")), "{found}");
        assert!(found.contains("--experts 6x3 --shape ") && found.contains(&gate), "{found}");
    }
}

/// The bound of `check` is derived from the numbers of a file's layer, and finds faults too: in a layer with
/// static scales of each expert and in one whose activations are floats.
#[test]
fn faults_are_found_by_the_check_of_a_file() {
    for (file, faults) in [
        ("moe_ct_w4a16", &[Fault::FirstExpert, Fault::Swapped][..]),
        ("moe_quark_int8", &[Fault::FirstDown, Fault::Largest]),
        ("moe_qwen2_shared", &[Fault::UpIsGate]),
    ] {
        let path = quantloom_tests::golden_file(file);
        let checkpoint = Checkpoint::open_with(path, Options::default()).unwrap();
        let product = |backend: &dyn Backend| {
            let mut found = check(&checkpoint, backend).into_iter();
            found.find(|found| found.subject == Subject::Product).unwrap()
        };
        let right = product(&CpuDevice::best());
        assert_eq!(right.verdict, Verdict::Pass, "{file}: {right:?}");
        for fault in faults {
            let wrong = product(&Breaks(*fault));
            let found = matches!(wrong.verdict, Verdict::Fail(_)) && wrong.error > wrong.bound;
            assert!(found, "{file}, {fault:?}: {wrong:?}");
        }
    }
}
