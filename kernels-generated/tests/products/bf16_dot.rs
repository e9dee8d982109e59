//! x in bf16 by dot products of bf16 numbers: which operand a scheme's weights are, and their products
//! against the reference.

use quantloom_dsl::experts::{ExpertLayer, ExpertProduct};
use quantloom_dsl::format::{BF16, F16, F32};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::bf16_row::MOST_BITS;
use quantloom_runtime::cpu::blocking::Instruction;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::cpu::native::{Bf16Code, Bf16Operand};
use quantloom_runtime::cpu::weight::CpuWeight;
use quantloom_runtime::experts::{ExpertCall, ExpertError, ExpertOptions, ExpertSource, Routed};
use quantloom_runtime::op::{Op, Values, ValuesMut, Workspace, bf16};
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tools::conformance::{Suite, draw};

/// Code and groups, columns K, and the operand of dot products, if there is one.
pub(super) const SCHEMES: &[(&str, u64, Option<Bf16Operand>)] = {
    const fn code(offset: i32, corrected: bool) -> Option<Bf16Operand> {
        Some(Bf16Operand::Code(Bf16Code { offset, corrected }))
    }
    const WEIGHT: Option<Bf16Operand> = Some(Bf16Operand::Weight);
    &[
        ("weight: u4 - 8, scale: bf16 per 1x32", 640, code(8, false)),
        ("weight: i4, scale: f32 per 1x128", 640, code(8, false)),
        ("weight: u4, zero: u4 per 1x32, scale: f16 per 1x32", 640, code(0, true)),
        ("weight: u4, shift: f16 per 1x32, scale: f16 per 1x32", 384, code(0, true)),
        // Groups that are padded, and so another order of columns.
        ("weight: u4, zero: u4 per 1x24, scale: f16 per 1x24", 216, code(0, true)),
        ("weight: u3, zero: f16 per 1x64, scale: f16 per 1x64", 640, code(0, true)),
        // One of several equal parts of the only group, and a shorter one at the end.
        ("weight: u2 - 1, scale: f32 per channel", 600, code(1, false)),
        ("weight: i6, scale: f16 per 1x96", 288, code(32, false)),
        ("weight: e2m1, scale: e8m0 per 1x32", 640, code(0, false)),
        ("weight: codebook(-1, -0.5, 0.25, 3), scale: f16 per 1x32", 640, code(0, false)),
        // Codes too wide for a table, in blocks alone.
        ("weight: i8, scale: f16 per 1x32", 640, code(128, false)),
        ("weight: u8, zero: u8 per 1x64, scale: f16 per 1x64", 640, code(0, true)),
        ("weight: e4m3, scale: f32 per 1x128", 640, code(0, false)),
        ("weight: e5m2, scale: e8m0 per 1x32", 640, None),
        ("weight: e4m3, scale: e8m0 per 1x32", 640, WEIGHT),
        // Groups of half a step: the scales are in the weights.
        ("weight: e2m1, scale: e4m3 per 1x16", 640, WEIGHT),
        ("weight: u4 - 8, scale: f16 per 1x16", 640, None),
        // A value of 9 bits.
        ("weight: codebook(0, 257), scale: f16 per 1x32", 640, None),
    ]
};

fn device() -> Option<CpuDevice> {
    let device = super::present(Isa::Avx512Bf16)?.with_decoders(quantloom_kernels::DECODERS);
    Some(device.with_bf16_dot(true))
}

fn texts(activation: &str) -> impl Iterator<Item = (String, u64, Option<Bf16Operand>)> {
    SCHEMES.iter().map(move |(code, k, operand)| {
        (format!("s {{ {code}, pack: [k, n], activation: {activation} }}"), *k, *operand)
    })
}

pub(super) fn prepare(device: CpuDevice, text: &str, k: u64) -> CpuWeight {
    let scheme = parse(text).unwrap();
    let unpacked = super::groups::layer(&scheme, Shape::matrix(48, k), 0);
    device.prepare(&scheme, &unpacked).unwrap()
}

#[test]
fn the_operand_is_the_code_or_the_weight_where_that_is_one_bf16_number() {
    let Some(device) = device() else { return };
    for (text, k, operand) in texts("bf16 | f16") {
        let (with, without) = (prepare(device, &text, k), device.with_bf16_dot(false));
        let without = prepare(without, &text, k);
        // Without a decoder, codes take 8 bits.
        let decoder = device.decoder(&parse(&text).unwrap().weight.code);
        let narrow = decoder.is_some_and(|decoder| decoder.bits() <= MOST_BITS);
        for tokens in [1, 8, 9, 33] {
            let expected = operand
                .filter(|operand| tokens > 8 || narrow && matches!(operand, Bf16Operand::Code(_)))
                .map(Instruction::Bf16Dot);
            assert_eq!(with.blocking(tokens, BF16).instruction, expected, "{text}, M = {tokens}");
            let said = with.kernel(tokens).contains("bf16 dot");
            assert_eq!(said, expected.is_some(), "{text}, M = {tokens}");
            let rejected = |op: &CpuWeight, why: &str| op.explain(tokens).contains(why);
            assert_eq!(rejected(&with, "single bf16 numbers"), operand.is_none(), "{text}");
            assert!(!rejected(&with, "declined") && rejected(&without, "declined"), "{text}");
            for none in [
                with.blocking(tokens, F16).instruction,
                with.blocking(tokens, F32).instruction,
                without.blocking(tokens, BF16).instruction,
            ] {
                assert_eq!(none, None, "{text}, M = {tokens}");
            }
        }
    }
}

#[test]
fn products_are_those_of_the_reference() {
    let Some(device) = device() else { return };
    for activation in ["bf16 | f16", "e4m3 { scale: e8m0 per 1x32 from pow2 }"] {
        for (text, k, operand) in texts(activation) {
            let scheme = parse(&text).unwrap();
            // One panel, more panels than are read side by side, a single one at the end.
            let shapes = [16, 70].map(|n| (n, k)).to_vec();
            let suite =
                Suite { shapes, tokens: super::TOKENS.to_vec(), seeds: vec![0, 4], every: 1 };
            for result in suite.run(&scheme, &[&device as &dyn Backend], &|_| {}) {
                let summary = result.unwrap_or_else(|failure| panic!("{text}: {failure}"));
                assert!(summary.products >= 7, "{text}");
                let said = summary.kernels.iter().any(|kernel| kernel.contains("bf16 dot"));
                assert_eq!(said, operand.is_some(), "{text}: {:?}", summary.kernels);
            }
        }
    }
}

/// Two experts, of which the first has no zero points, so that its codes count from an offset and those of
/// the second have a correction.
pub(super) struct UnlikeExperts {
    pub(super) scheme: Scheme,
    pub(super) matrices: [[Unpacked; 2]; 2],
}

impl UnlikeExperts {
    pub(super) fn new(layer: &ExpertLayer) -> Self {
        let scheme = parse(
            "s { weight: u4 - 8, zero: u4 per 1x32, scale: f16 per 1x32, pack: [k, n], activation: bf16 }",
        )
        .unwrap();
        let matrix = |expert: u64, n, k| {
            let shape = Shape::matrix(n, k);
            let mut packed = pack(&scheme, &draw::layer(&scheme, shape, expert)).unwrap();
            if expert == 0 {
                let name = packed.keys().find(|name| name.contains("zero")).cloned();
                let name = name.unwrap_or_else(|| panic!("{:?}", packed.keys()));
                packed.get_mut(&name).unwrap().fill(0);
            }
            let stored = |name: &str| packed.get(name).map(Vec::as_slice);
            Unpacked::new(&scheme, shape, &stored).unwrap()
        };
        let (hidden, intermediate) = (layer.hidden, layer.intermediate);
        let matrices = [0, 1].map(|expert| {
            [matrix(expert, intermediate, hidden), matrix(expert, hidden, intermediate)]
        });
        Self { scheme, matrices }
    }
}

impl ExpertSource for UnlikeExperts {
    fn scheme(&self, _: ExpertProduct) -> &Scheme {
        &self.scheme
    }

    fn matrix(&self, product: ExpertProduct, expert: u32, _: u32) -> Result<Unpacked, ExpertError> {
        let matrix = usize::from(product == ExpertProduct::Down);
        Ok(self.matrices[expert as usize][matrix].clone())
    }
}

#[test]
fn experts_with_unlike_operands_multiply_as_without_dot_products() {
    let Some(device) = device() else { return };
    let layer: ExpertLayer = "2 experts of 64 x 96, top 2, softmax, silu".parse().unwrap();
    let source = UnlikeExperts::new(&layer);
    let op = |expert: usize| device.prepare(&source.scheme, &source.matrices[expert][0]).unwrap();
    assert_ne!(op(0).blocking(9, BF16).instruction, op(1).blocking(9, BF16).instruction);
    multiply_alike(&layer, &source, [device, device.with_bf16_dot(false)], &[1, 3, 8, 9, 20]);
}

/// A layer on two devices, whose kernels differ for most of these numbers of tokens: nearly the same results, and not all equal.
pub(super) fn multiply_alike(
    layer: &ExpertLayer,
    source: &UnlikeExperts,
    devices: [CpuDevice; 2],
    all: &[usize],
) {
    let mut differ = 0;
    for &tokens in all {
        let x: Vec<bf16> = (0..tokens * 64)
            .map(|at| bf16::from_f32((at * 7919 % 401) as f32 / 256.0 - 0.7))
            .collect();
        let ids: Vec<i32> =
            (0..tokens).flat_map(|token| [token % 2, 1 - token % 2]).map(|id| id as i32).collect();
        let weights = vec![0.5; ids.len()];
        let [with, without] = devices.map(|device| {
            let op = device.prepare_experts(layer, source, &ExpertOptions::default()).unwrap();
            let routed = Routed::Chosen { ids: &ids, weights: &weights };
            let call = ExpertCall { x: Values::Bf16(&x), routed, shared: None };
            let mut y = vec![0.0f32; tokens * 64];
            op.forward_into(&call, ValuesMut::F32(&mut y), &mut Workspace::default()).unwrap();
            y
        });
        differ += usize::from(with != without);
        let largest = without.iter().fold(0.0f32, |most, y| most.max(y.abs()));
        for (with, without) in with.iter().zip(&without) {
            assert!((with - without).abs() <= 1e-4 * largest, "M = {tokens}: {with}, {without}");
        }
    }
    assert!(differ + 1 >= all.len(), "two kernels: {differ} of {}", all.len());
}
