//! Our side: products of random layers, prepared for the best instruction set of this machine.

use std::error::Error;

use quantloom::dsl::Scheme;
use quantloom::dsl::format::{BF16, F32};
use quantloom::dsl::layout::Shape;
use quantloom::runtime::cpu::CpuDevice;
use quantloom::runtime::cpu::weight::CpuWeight;
use quantloom::runtime::element::bf16;
use quantloom::runtime::op::{Op as _, Values, ValuesMut, Workspace};
use quantloom::runtime::pack::pack;
use quantloom::runtime::unpacked::Unpacked;
use quantloom_tools::conformance::draw;
use quantloom_tools::measure::last_level_cache;

/// int4 in groups of 32, activations quantised to int8 with one scale a token.
pub const W4A8: &str = "w4a8_g32 {
    weight: u4 - 8,
    scale: bf16 per 1x32,
    pack: u8 [k:2 | k, n],
    activation: i8 { scale: f32 per token },
}";

/// int4 in groups of 32, activations as they are.
pub const W4A16: &str = "w4a16_g32 {
    weight: u4 - 8,
    scale: bf16 per 1x32,
    pack: u8 [k:2 | k, n],
    activation: bf16 | f16,
}";

/// A prepared weight, as often as it takes to be twice the last level of cache.
pub struct PreparedCopies {
    pub scheme: Scheme,
    pub copies: Vec<CpuWeight>,
}

/// A random layer.
pub fn layer(text: &str, n: usize, k: usize) -> Result<PreparedCopies, Box<dyn Error>> {
    let scheme = quantloom::dsl::parse(text)?;
    let shape = Shape::matrix(n as u64, k as u64);
    let packed = pack(&scheme, &draw::layer(&scheme, shape, 0))?;
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    let unpacked = Unpacked::new(&scheme, shape, &stored)?;
    let weight = device().prepare(&scheme, &unpacked)?;
    let count = (2 * last_level_cache()).div_ceil(weight.bytes());
    Ok(PreparedCopies { scheme, copies: vec![weight; count] })
}

/// Where it runs.
pub fn device() -> CpuDevice {
    CpuDevice::best().with_decoders(quantloom::kernels::DECODERS)
}

/// A place for what a product needs besides the weight.
pub struct Call {
    x: Vec<f32>,
    /// x in 16 bits, where the scheme multiplies such tokens.
    narrow: Option<Vec<bf16>>,
    y: Vec<f32>,
    workspace: Workspace,
}

impl Call {
    pub fn new(layer: &PreparedCopies, m: usize) -> Self {
        let Shape { n, k, .. } = layer.copies[0].shape();
        let x = draw::tokens(&layer.scheme, F32, m, k as usize, 0);
        let x: Vec<f32> = x.into_iter().map(|x| x as f32).collect();
        let listed = layer.scheme.activation_choices().any(|choice| choice.own == BF16);
        let quantised = layer.scheme.quantiser().is_some();
        let narrow = (listed && !quantised).then(|| x.iter().map(|x| bf16::from_f32(*x)).collect());
        Self { x, narrow, y: vec![0.0; m * n as usize], workspace: Workspace::default() }
    }

    /// y = x w^T with one of the copies. x is `f32`, as candle's and ggml's is, and quantised in the call; of
    /// schemes that multiply x in 16 bits it is bf16 already, which ggml rounds to in its call.
    pub fn multiply(&mut self, weight: &CpuWeight) -> Result<(), Box<dyn Error>> {
        let y = ValuesMut::F32(&mut self.y);
        let x = match &self.narrow {
            None => Values::F32(&self.x),
            Some(narrow) => Values::Bf16(narrow),
        };
        weight.matmul_into(0, x, y, &mut self.workspace)?;
        std::hint::black_box(&self.y);
        Ok(())
    }
}
