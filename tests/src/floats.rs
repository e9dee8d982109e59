//! A float checkpoint to quantise: a few layers, and tensors that stay.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::Shape;
use quantloom_runtime::checkpoint::Tensors;
use quantloom_runtime::quantise::{Outcome, candidates, quantise_checkpoint};
use safetensors::Dtype;

use crate::{Made, Random, bf16_tensor, write_file};

/// A layer of the float checkpoint.
#[derive(Clone, Debug)]
pub struct Float {
    /// Its name, without `.weight`.
    pub layer: String,
    /// Experts, rows, columns.
    pub shape: Shape,
    /// bf16 codes, row by row.
    pub weight: Vec<u16>,
    /// bf16 codes, one a row.
    pub bias: Option<Vec<u16>>,
}

/// Two layers, the second with a bias; a block and a row of zeros in the first.
pub fn floats(scheme: &Scheme) -> Vec<Float> {
    let mut random = Random(7);
    let mut float = |at: usize, n: u64, k: u64| {
        let experts = if scheme.experts.is_some() { 2 } else { 1 };
        let shape = Shape { experts, n, k };
        let name = match scheme.experts {
            None => ["self_attn.q_proj", "mlp.down_proj"][at],
            Some(quantloom_dsl::Experts::Single) => "mlp.experts.down_proj",
            Some(_) => "mlp.experts.gate_up_proj",
        };
        let mut weight = random.bf16(shape.elements().unwrap() as usize, 0.05);
        if at == 0 {
            weight[3 * k as usize + 128..][..128].fill(0);
            weight[5 * k as usize..][..k as usize].fill(0);
        }
        let bias = (at == 1).then(|| random.bf16((experts * n) as usize, 1.0));
        Float { layer: format!("model.layers.{at}.{name}"), shape, weight, bias }
    };
    vec![float(0, 96, 384), float(1, 64, 256)]
}

/// Tensors that no quantiser takes.
pub fn untouched() -> BTreeMap<String, Made> {
    let mut random = Random(8);
    BTreeMap::from([
        ("lm_head.weight".to_owned(), bf16_tensor(&[16, 64], &random.bf16(1024, 1.0))),
        ("model.norm.weight".to_owned(), bf16_tensor(&[64], &random.bf16(64, 1.0))),
        ("model.rotary.steps".to_owned(), (Dtype::I64, vec![2], (0..16).collect())),
        ("model.empty".to_owned(), (Dtype::F32, vec![0, 4], Vec::new())),
    ])
}

fn dims(shape: Shape, stacked: bool) -> Vec<usize> {
    let all = [shape.experts as usize, shape.n as usize, shape.k as usize];
    all[usize::from(!stacked)..].to_vec()
}

/// Writes layers and the [`untouched`] tensors.
///
/// # Panics
/// If the file cannot be written.
pub fn float_file(path: &Path, scheme: &Scheme, layers: &[Float]) {
    let stacked = scheme.experts.is_some();
    let mut tensors = untouched();
    for float in layers {
        let weight = bf16_tensor(&dims(float.shape, stacked), &float.weight);
        let join = if stacked { ("", "_bias") } else { (".weight", ".bias") };
        tensors.insert(format!("{}{}", float.layer, join.0), weight);
        if let Some(bias) = &float.bias {
            let all = dims(float.shape, stacked);
            let bias = bf16_tensor(&all[..all.len() - 1], bias);
            tensors.insert(format!("{}{}", float.layer, join.1), bias);
        }
    }
    write_file(path, &tensors, None);
}

/// Quantises the two layers of a file, and checks what the progress adds up to.
///
/// # Panics
/// If that fails.
pub fn quantised(scheme: &Scheme, from: &Path, to: &Path) -> Vec<Outcome> {
    let tensors = Tensors::open(from).unwrap();
    let mut chosen = candidates(&tensors, scheme);
    chosen.retain(|candidate| candidate.layer.contains("layers"));
    let told = AtomicU64::new(0);
    let progress = |weights: u64| {
        told.fetch_add(weights, Ordering::Relaxed);
    };
    let outcomes =
        quantise_checkpoint(&tensors, scheme, &chosen, to, &progress).expect(&scheme.name);
    let weights: u64 = chosen.iter().filter_map(|candidate| candidate.shape.elements()).sum();
    assert_eq!((told.into_inner(), outcomes.len()), (weights, 2), "{}", scheme.name);
    outcomes
}
