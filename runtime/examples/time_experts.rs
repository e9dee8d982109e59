//! Times an expert layer on the CPU, beside the time in which the machine reads the bytes of the experts
//! that are met.
//!
//!     cargo run --release --locked --example time_experts
//!
//! The layer is that of Qwen3-30B-A3B with int4 weights in groups of 32 and int8 tokens. Every call has
//! other experts, drawn uniformly. Reading memory and calls are measured in turns; each line gives
//! medians, so that what else runs on the machine slows both.

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::element::{Values, ValuesMut};
use quantloom_runtime::experts::{
    ExpertCall, ExpertError, ExpertOptions, ExpertProduct, ExpertSource, Routed,
};
use quantloom_runtime::op::Workspace;
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tools::measure::{Memory, median};

const LAYER: &str = "128 experts of 2048 x 768, top 8, softmax renormalised, silu";
const SCHEME: &str = "w4a8_g32 { weight: i4, scale: bf16 per 1x32, pack: i8 [code, pad 4 = sign | k, n], \
     activation: i8 { zero: i8, scale: f32 per token, ties: away } }";

/// A random stream (SplitMix64).
struct Stream(u64);

impl Stream {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

/// Matrices of random codes, drawn when they are asked for.
struct RandomMatrices {
    scheme: Scheme,
    layer: ExpertLayer,
}

impl ExpertSource for RandomMatrices {
    fn scheme(&self, _: ExpertProduct) -> &Scheme {
        &self.scheme
    }

    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError> {
        let (n, k) = match product {
            ExpertProduct::GateUp => (self.layer.intermediate, self.layer.hidden),
            ExpertProduct::Down => (self.layer.hidden, self.layer.intermediate),
        };
        let mut stream = Stream(u64::from(expert) << 8 | u64::from(shard));
        let code = |_| (stream.bits() >> 60) as i8 - 8;
        let codes: Vec<u8> = (0..n * k).map(code).map(|code| code as u8).collect();
        let scales = 0x3c00u16.to_le_bytes().repeat((n * k / 32) as usize);
        let stores = &self.scheme.stores;
        let stored = |name: &str| {
            let first = stores.first().is_some_and(|store| store.name == name);
            Some(if first { codes.as_slice() } else { scales.as_slice() })
        };
        Ok(Unpacked::new(&self.scheme, Shape::matrix(n, k), &stored)?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let layer: ExpertLayer = LAYER.parse()?;
    let source = RandomMatrices { scheme: parse(SCHEME)?, layer };
    let (hidden, k) = (layer.hidden as usize, layer.top_k as usize);
    let op = CpuDevice::best().prepare_experts(&layer, &source, &ExpertOptions::default())?;
    // Codes of four bits and a 16-bit scale for 32 of them.
    let bytes = 3.0 * layer.hidden as f64 * layer.intermediate as f64 * (0.5 + 2.0 / 32.0);
    let memory = Memory::beyond_the_caches();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{LAYER}; {}", op.kernels(1).join("; "))?;
    let mut stream = Stream(1);
    for tokens in [1usize, 8, 32, 256] {
        let x: Vec<f32> =
            (0..tokens * hidden).map(|_| (stream.bits() >> 40) as f32 / 1e7 - 0.8).collect();
        let weights = vec![0.125f32; tokens * k];
        let mut y = vec![0.0f32; tokens * hidden];
        let mut workspace = Workspace::new(op.workspace_size(tokens));
        let (mut times, mut rates, mut hits) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..if tokens < 32 { 40 } else { 12 } {
            rates.push(memory.sample());
            for _ in 0..if tokens == 1 { 10 } else { 1 } {
                let mut ids = Vec::new();
                for _ in 0..tokens {
                    let mut own: Vec<i32> = Vec::new();
                    while own.len() < k {
                        let id = (stream.bits() % u64::from(layer.experts)) as i32;
                        if !own.contains(&id) {
                            own.push(id);
                        }
                    }
                    ids.extend(own);
                }
                let mut hit = ids.clone();
                hit.sort_unstable();
                hit.dedup();
                let routed = Routed::Chosen { ids: &ids, weights: &weights };
                let call = ExpertCall { x: Values::F32(&x), routed, shared: None };
                let begun = Instant::now();
                op.forward_into(&call, ValuesMut::F32(&mut y), &mut workspace)?;
                if round > 1 {
                    times.push(begun.elapsed().as_secs_f64() * 1e3);
                    hits.push(hit.len() as f64);
                }
            }
        }
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        let (time, rate, hit) = (median(&mut times), median(&mut rates), median(&mut hits));
        let floor = hit * bytes / rate / 1e6;
        writeln!(
            out,
            "M = {tokens:3}: {time:.3} ms (best {best:.3}), {hit} experts; their bytes at {rate:.1} \
             GB/s: {floor:.3} ms, {:.2} times that",
            time / floor
        )?;
    }
    Ok(())
}
