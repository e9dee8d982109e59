//! Shared by the tests of Quantloom: paths of golden files, and files that tests make and change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quantloom_dsl::layout::{Component, GroupSize, Index, Shape};
use quantloom_dsl::reference::{PlainCodes, StoredTensors};
use quantloom_dsl::{Scheme, ZeroKind};
use quantloom_runtime::checkpoint::{Layer, Tensors};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

pub mod arrows;
pub mod codes;
pub mod driver;
pub mod file;
pub mod floats;
pub mod ops;
pub mod sums;
pub mod sweep;
pub mod tools;

/// The folder of files that third-party software wrote.
pub fn golden() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/golden"))
}

/// The path of a golden file, by its name without extension.
pub fn golden_file(name: &str) -> PathBuf {
    golden().join(format!("{name}.safetensors"))
}

/// The path of a golden GGUF file, by its name without `gguf_` and extension.
pub fn golden_gguf(name: &str) -> PathBuf {
    golden().join(format!("gguf_{name}.gguf"))
}

/// The names of the golden files that have layers with reference results: without the number
/// formats, and without layers of experts without results.
///
/// # Panics
/// If the folder cannot be read.
pub fn golden_layers() -> Vec<String> {
    let files = std::fs::read_dir(golden()).unwrap_or_else(|error| panic!("{error}"));
    let files = files.filter_map(|entry| Some(entry.ok()?.path()));
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    let names = files.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
    let mut names: Vec<String> =
        names.filter(|name| name != "codes_ml_dtypes" && !name.starts_with("moe_")).collect();
    names.sort();
    names
}

/// The checkpoint that ships with the command.
pub fn demo_file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/demo.safetensors"))
}

/// A scheme that no GPU schedule supports: f32 does not hold all scales of x.
pub const UNSCHEDULED: &str = "s { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], \
                               activation: i8 { scale: u32 per token } }";

/// Writes its declaration to a file.
///
/// # Panics
/// If the file cannot be written.
pub fn unscheduled_file(folder: &Path) -> String {
    let path = folder.join("unscheduled.scheme");
    std::fs::write(&path, UNSCHEDULED).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    path.to_string_lossy().into_owned()
}

/// Reproducible numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// Between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal, deviation 1: the sum of twelve uniform numbers.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Normal values as bf16, truncated from f32.
    pub fn bf16(&mut self, count: usize, deviation: f64) -> Vec<u16> {
        let value = |random: &mut Self| ((random.normal() * deviation) as f32).to_bits();
        (0..count).map(|_| (value(self) >> 16) as u16).collect()
    }
}

/// The values of bf16 codes.
pub fn bf16_values(codes: &[u16]) -> Vec<f64> {
    codes.iter().map(|code| f64::from(f32::from_bits(u32::from(*code) << 16))).collect()
}

/// A tensor for a new file.
pub type Made = (Dtype, Vec<usize>, Vec<u8>);

/// A tensor of bf16 codes.
pub fn bf16_tensor(shape: &[usize], codes: &[u16]) -> Made {
    (Dtype::BF16, shape.to_vec(), codes.iter().flat_map(|code| code.to_le_bytes()).collect())
}

/// A tensor of f32 values.
pub fn f32_tensor(shape: &[usize], values: &[f32]) -> Made {
    (Dtype::F32, shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

/// Writes a safetensors file with third-party code; `config` is stored in its metadata.
///
/// # Panics
/// If a tensor's bytes do not match its shape.
pub fn write_file(path: &Path, tensors: &BTreeMap<String, Made>, config: Option<&str>) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor of its shape"))
    });
    let metadata = config.map(|text| [("quantization_config".to_owned(), text.to_owned())].into());
    safetensors::serialize_to_file(views, metadata, path).expect("written");
}

/// Every tensor of a file, for a new file.
///
/// # Panics
/// If it cannot be read.
pub fn tensors_of(path: &Path) -> BTreeMap<String, Made> {
    let tensors = Tensors::open(path).expect("a safetensors file");
    let made = |name: &str| {
        let tensor = tensors.get(name).expect("a tensor that it names");
        (name.to_owned(), (tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec()))
    };
    tensors.names().map(made).collect()
}

/// The stored tensors of a layer, for the reference.
pub fn packed(layer: &Layer) -> StoredTensors {
    layer.stores().map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).collect()
}

/// The element of a component that an index belongs to.
fn element(scheme: &Scheme, plain: &PlainCodes, component: Component, index: Index) -> u32 {
    let granularity = scheme.granularity(component).expect("a component of the scheme");
    let count = |group_size: GroupSize, extent: u64| match group_size {
        GroupSize::Each(each) => extent.div_ceil(u64::from(each)),
        GroupSize::All => 1,
    };
    let at = |group_size: GroupSize, of: u64| match group_size {
        GroupSize::Each(each) => of / u64::from(each),
        GroupSize::All => 0,
    };
    let Shape { n, k, .. } = plain.shape;
    let row = index.e * count(granularity.rows, n) + at(granularity.rows, index.n);
    let column = match (scheme.index, granularity.cols, component) {
        (Some(_), GroupSize::Each(_), Component::Scale(_) | Component::Zero) => {
            u64::from(plain.of(Component::Index)[(index.e * k + index.k) as usize])
        }
        _ => at(granularity.cols, index.k),
    };
    plain.of(component)[(row * count(granularity.cols, k) + column) as usize]
}

/// Code value, zero point and product of the scales of one weight, computed from the plain codes
/// without the reference's dequantiser.
pub fn parts(scheme: &Scheme, plain: &PlainCodes, index: Index) -> (f64, f64, f64) {
    let code = scheme.weight.decode(element(scheme, plain, Component::Code, index));
    let zero = scheme.zero.map_or(0.0, |zero| {
        let stored = element(scheme, plain, Component::Zero, index);
        match zero.kind {
            ZeroKind::Codes { number, plus, .. } => number.decode(stored) + f64::from(plus),
            ZeroKind::Float(number) => number.decode(stored),
        }
    });
    let mut scale = 1.0;
    for (level, of) in (0u8..).zip(&scheme.scales) {
        let number = of.stored_number().expect("a weight's scale has a type");
        let stored = number.decode(element(scheme, plain, Component::Scale(level), index));
        let value = stored - f64::from(of.offset);
        scale = if of.divide { scale / value } else { scale * value };
    }
    (code, zero, scale)
}
