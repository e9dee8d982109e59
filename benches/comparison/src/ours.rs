//! Our side: products of random layers, prepared for the best instruction set of this machine.

use std::error::Error;

use quantloom::dsl::Scheme;
use quantloom::dsl::experts::{ExpertLayer, ExpertProduct};
use quantloom::dsl::format::{BF16, F32};
use quantloom::dsl::layout::Shape;
use quantloom::runtime::backend::Backend as _;
use quantloom::runtime::cpu::CpuDevice;
use quantloom::runtime::cpu::weight::CpuWeight;
use quantloom::runtime::element::bf16;
use quantloom::runtime::experts::{
    ExpertCall, ExpertError, ExpertOp, ExpertOptions, ExpertSource, Routed,
};
use quantloom::runtime::op::{Op as _, Values, ValuesMut, Workspace};
use quantloom::runtime::pack::pack;
use quantloom::runtime::unpacked::Unpacked;
use quantloom_tools::measure::{last_level_cache, normal};

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

/// A matrix of normal numbers, quantised.
fn matrix(scheme: &Scheme, shape: Shape) -> Result<Unpacked, Box<dyn Error>> {
    let packed = pack(scheme, &normal::layer(scheme, shape, 0)?)?;
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    Ok(Unpacked::new(scheme, shape, &stored)?)
}

/// A random layer.
pub fn layer(text: &str, n: usize, k: usize) -> Result<PreparedCopies, Box<dyn Error>> {
    let scheme = quantloom::dsl::parse(text)?;
    let weight = device().prepare(&scheme, &matrix(&scheme, Shape::matrix(n as u64, k as u64))?)?;
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
        let x = normal::tokens(F32, m, k as usize, 0);
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

/// Random matrices of an expert layer, the same few for all experts: each expert has a place of its own in
/// the prepared layer.
struct RandomExperts {
    scheme: Scheme,
    gate_up: Unpacked,
    down: Unpacked,
}

impl ExpertSource for RandomExperts {
    fn scheme(&self, _: ExpertProduct) -> &Scheme {
        &self.scheme
    }

    fn matrix(&self, product: ExpertProduct, _: u32, _: u32) -> Result<Unpacked, ExpertError> {
        Ok(match product {
            ExpertProduct::GateUp => self.gate_up.clone(),
            ExpertProduct::Down => self.down.clone(),
        })
    }
}

/// A random expert layer.
pub fn experts(text: &str, layer: &ExpertLayer) -> Result<Box<dyn ExpertOp>, Box<dyn Error>> {
    let scheme = quantloom::dsl::parse(text)?;
    let (hidden, intermediate) = (layer.hidden, layer.intermediate);
    let gate_up = matrix(&scheme, Shape::matrix(intermediate, hidden))?;
    let down = matrix(&scheme, Shape::matrix(hidden, intermediate))?;
    let weights = RandomExperts { scheme, gate_up, down };
    Ok(device().prepare_experts(layer, &weights, &ExpertOptions::default())?)
}

/// Calls of an expert layer, each with other experts.
pub struct ExpertCalls {
    x: Vec<f32>,
    y: Vec<f32>,
    /// [call][token][choice].
    ids: Vec<Vec<i32>>,
    weights: Vec<f32>,
    workspace: Workspace,
}

impl ExpertCalls {
    /// As many as ggml has: experts of a token are different ones, drawn uniformly.
    const CALLS: usize = 16;

    pub fn new(layer: &ExpertLayer, m: usize) -> Self {
        let (experts, top) = (layer.experts as usize, layer.top_k as usize);
        let mut state = 1u64;
        let mut below = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            (state >> 33) as usize % most
        };
        let mut order: Vec<i32> = (0..experts as i32).collect();
        let mut call = || {
            let mut ids = Vec::with_capacity(m * top);
            for _ in 0..m {
                for choice in 0..top {
                    order.swap(choice, choice + below(experts - choice));
                }
                ids.extend_from_slice(&order[..top]);
            }
            ids
        };
        let ids = (0..Self::CALLS).map(|_| call()).collect();
        let hidden = layer.hidden as usize;
        let x = (0..m * hidden).map(|at| ((at * 7919 % 1013) as f32 - 506.0) / 256.0).collect();
        let (y, weights) = (vec![0.0; m * hidden], vec![1.0 / top as f32; m * top]);
        Self { x, y, ids, weights, workspace: Workspace::default() }
    }

    /// y of one of the calls, from the ids of experts.
    pub fn forward(&mut self, op: &dyn ExpertOp, turn: usize) -> Result<(), Box<dyn Error>> {
        let ids = &self.ids[turn % self.ids.len()];
        let routed = Routed::Chosen { ids, weights: &self.weights };
        let call = ExpertCall { x: Values::F32(&self.x), routed, shared: None };
        op.forward_into(&call, ValuesMut::F32(&mut self.y), &mut self.workspace)?;
        std::hint::black_box(&self.y);
        Ok(())
    }
}
