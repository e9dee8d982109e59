//! The conformance kit: correct products pass, and each of a list of faults is found.

use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::dequantise;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::accumulation::Accumulation;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::element::{Values, ValuesMut};
use quantloom_runtime::op::{Op, ProductError, Workspace};
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::Unpacked;
use quantloom_runtime::weight_data::WeightData;
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::{self, Failure, Suite, draw};

/// How a broken kernel changes a correct result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// One column of the weight is never multiplied.
    DroppedColumn,
    /// The columns after the last whole chunk of 32 are left out.
    RaggedChunk,
    /// The bias is added twice.
    BiasTwice,
    /// The bias is forgotten.
    NoBias,
    /// NaN becomes 0.
    NanSwallowed,
    /// The last token of a tile of four is not computed.
    TokenTail,
    /// The last row of a panel of 16 is not written.
    RowUnwritten,
    /// Two neighbouring rows are exchanged.
    RowsExchanged,
    /// Each result is off by a few units in the last place but four.
    LostBits,
}

/// A correct product, broken afterwards.
struct Broken {
    op: Box<dyn Op>,
    fault: Fault,
    /// [E, N, K]
    weights: Vec<f32>,
    bias: Option<Vec<f64>>,
}

impl Op for Broken {
    fn scheme(&self) -> &Scheme {
        self.op.scheme()
    }
    fn shape(&self) -> Shape {
        self.op.shape()
    }
    fn kernel(&self, tokens: usize) -> String {
        self.op.kernel(tokens)
    }
    fn explain(&self, tokens: usize) -> String {
        self.op.explain(tokens)
    }
    fn accumulation(&self) -> &dyn Accumulation {
        self.op.accumulation()
    }
    fn workspace_size(&self, tokens: usize) -> usize {
        self.op.workspace_size(tokens)
    }
    fn matmul_into(
        &self,
        expert: u64,
        x: Values<'_>,
        mut y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ProductError> {
        let before = match &y {
            ValuesMut::F32(y) => y.first().copied().unwrap_or(0.0),
            _ => 0.0,
        };
        let whole = match &mut y {
            ValuesMut::F32(y) => ValuesMut::F32(y),
            ValuesMut::F16(y) => ValuesMut::F16(y),
            ValuesMut::Bf16(y) => ValuesMut::Bf16(y),
        };
        self.op.matmul_into(expert, x, whole, workspace)?;
        // 16-bit results stay correct: the fault must show in f32.
        if let ValuesMut::F32(y) = &mut y {
            self.harm(expert, x, y, before);
        }
        Ok(())
    }
}

impl Broken {
    fn harm(&self, expert: u64, x: Values<'_>, y: &mut [f32], before: f32) {
        let Shape { n, k, .. } = self.shape();
        let (n, k) = (n as usize, k as usize);
        let rows = &self.weights[expert as usize * n * k..][..n * k];
        let part = |token: usize, row: usize, columns: std::ops::Range<usize>| -> f32 {
            columns.map(|k_at| x.get(token * k + k_at) * rows[row * k + k_at]).sum()
        };
        for (at, y) in y.iter_mut().enumerate() {
            let (token, row) = (at / n, at % n);
            match self.fault {
                Fault::DroppedColumn => *y -= part(token, row, k / 2..k / 2 + 1),
                Fault::RaggedChunk => *y -= part(token, row, k / 32 * 32..k),
                Fault::BiasTwice => *y += self.bias_of(expert, row),
                Fault::NoBias => *y -= self.bias_of(expert, row),
                Fault::NanSwallowed if y.is_nan() => *y = 0.0,
                Fault::TokenTail if token % 4 == 3 => *y = 0.0,
                Fault::RowUnwritten if row % 16 == 15 => *y = before,
                Fault::LostBits => *y = f32::from_bits(y.to_bits() & !0xfff),
                _ => {}
            }
        }
        if self.fault == Fault::RowsExchanged {
            y.chunks_mut(n).filter(|token| token.len() > 1).for_each(|token| token.swap(0, 1));
        }
    }

    fn bias_of(&self, expert: u64, row: usize) -> f32 {
        let at = expert as usize * self.shape().n as usize + row;
        self.bias.as_ref().map_or(0.0, |bias| bias[at] as f32)
    }
}

/// The CPU, with broken products.
struct BreaksOn(Fault);

impl Backend for BreaksOn {
    fn name(&self) -> &str {
        "cpu"
    }

    fn prepare_weight(&self, data: &WeightData<'_>) -> Result<Box<dyn Op>, ProductError> {
        let weight = data.unpack()?;
        let op = Box::new(CpuDevice::best().prepare(data.scheme(), weight)?);
        let shape = weight.shape();
        let weights = weight.decode_rows(0..shape.experts * shape.n);
        let bias = weight.bias().map(<[f64]>::to_vec);
        Ok(Box::new(Broken { op, fault: self.0, weights, bias }))
    }
}

/// A float activation, so that a column's share can be subtracted; float codes with NaN.
fn schemes() -> [Scheme; 3] {
    [
        "ints { weight: i8, scale: bf16 per 1x32, pack: [k, n], activation: f32, bias: f32 }",
        "floats { weight: e4m3, scale: f16 per 1x32, pack: [k, n], activation: f32, bias: f32 }",
        "odd { weight: u3, zero: u3, scale: f32 per 1x20, pack: u32 [k:* | w, n],
               activation: f32, bias: f32 }",
    ]
    .map(|text| parse(text).unwrap())
}

#[test]
fn what_is_right_conforms() {
    for scheme in Share::new(2, 2).of(schemes()) {
        let done = conformance::check(&scheme).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(done.iter().any(|summary| summary.backend == "portable"));
        for summary in done {
            assert!(summary.products > 100 && summary.elements > 100_000, "{summary:?}");
            // A bound that is far above every kernel's error would find nothing.
            assert!((0.01..=1.0).contains(&summary.share), "{summary:?}");
        }
    }
}

#[test]
fn each_fault_is_found() {
    let [ints, floats, odd] = schemes();
    for (fault, scheme) in [
        (Fault::DroppedColumn, &ints),
        (Fault::DroppedColumn, &odd),
        (Fault::RaggedChunk, &ints),
        (Fault::BiasTwice, &floats),
        (Fault::NoBias, &ints),
        (Fault::NanSwallowed, &floats),
        (Fault::TokenTail, &ints),
        (Fault::RowUnwritten, &ints),
        (Fault::RowsExchanged, &odd),
        (Fault::LostBits, &ints),
    ] {
        let backends: [&dyn Backend; 1] = [&BreaksOn(fault)];
        let result = Suite::default().run(scheme, &backends, &|_| {}).remove(0);
        let Err(Failure::Mismatch { case, miss, .. }) = result else {
            panic!("{fault:?} in {} is not found: {result:?}", scheme.name)
        };
        // The command to reproduce it names everything that determines the numbers.
        let again = case.again();
        let Shape { n, k, .. } = case.shape;
        let tail = format!("--shape {n}x{k} --m {} --seed {}", case.tokens, case.seed);
        assert!(again.starts_with(&format!("quantloom verify {} ", scheme.name)), "{again}");
        assert!(again.ends_with(&tail) && miss.at.1 < case.tokens, "{again}");
        // And it does: that case alone fails in the same place.
        let alone = Suite {
            shapes: vec![(n, k)],
            tokens: vec![case.tokens],
            seeds: vec![case.seed],
            every: 1,
        };
        let file = "'my file.scheme'";
        let result = alone.run_named(scheme, file, &backends, &|_| {}).remove(0);
        let Err(failure @ Failure::Mismatch { .. }) = &result else {
            panic!("{again}: {result:?}")
        };
        let named = format!("\nagain: quantloom verify {file} --backend cpu {tail}");
        assert!(failure.to_string().ends_with(&named), "{failure}");
        let Err(Failure::Mismatch { miss: same, .. }) = result else { panic!("{again}") };
        assert_eq!(
            (same.at, same.reference.to_bits()),
            (miss.at, miss.reference.to_bits()),
            "{again}"
        );
    }
}

#[test]
fn comparing_nothing_is_no_success() {
    let scheme = parse("s { weight: i8, pack: [k, n], activation: f32 }").unwrap();
    let suite = Suite { shapes: Vec::new(), ..Suite::default() };
    let result = suite.run(&scheme, &[&CpuDevice::portable()], &|_| {}).remove(0);
    assert!(matches!(result, Err(Failure::NoShape(_))), "{result:?}");
}

/// The codes of an unpacked layer decode to the numbers of those that were packed.
#[test]
fn unpacked_layers_have_their_codes() {
    let text = "s { weight: u4, scale: u6 - 32 per 1x16, scale: f16 per 1x256, shift: -u6 - 3,
        shift: -f16 per 1x64, pack: [k, n], activation: f32 }";
    let levels = parse(text).unwrap_or_else(|faults| panic!("{faults}"));
    let schemes = quantloom_kernels::catalogue().iter().filter(|scheme| scheme.experts.is_none());
    let mut compared = 0;
    for scheme in schemes.chain([&levels]) {
        let shape = Shape::matrix(16, 384);
        if scheme.stores.iter().any(|store| scheme.bind(store, shape).is_err()) {
            continue;
        }
        let plain = draw::layer(scheme, shape, 5);
        let packed = pack(scheme, &plain).unwrap();
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        let found = Unpacked::new(scheme, shape, &stored).unwrap().plain();
        let bits = |plain| -> Vec<u64> {
            dequantise(scheme, plain).unwrap().into_iter().map(f64::to_bits).collect()
        };
        assert_eq!(bits(&found), bits(&plain), "{}", scheme.name);
        assert_eq!(found.of(Component::Bias), plain.of(Component::Bias), "{}", scheme.name);
        compared += 1;
    }
    assert!(compared > 50, "{compared}");
}
