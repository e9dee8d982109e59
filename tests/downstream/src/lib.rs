//! What an inference engine does with the catalogue: load a layer, prepare it, multiply.
//!
//! The only dependency is `quantloom-kernels`; nothing is generated while this builds.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

use quantloom_kernels::ops::CtW4a16;
use quantloom_kernels::runtime::checkpoint::Checkpoint;
use quantloom_kernels::runtime::cpu::CpuDevice;
use quantloom_kernels::runtime::declared::Declared as _;

/// `y = x w^T` with the layer of this name, which must be of compressed-tensors W4A16.
///
/// # Errors
/// The file is missing or not a checkpoint, the layer is missing or of another scheme, x does not
/// fit the layer.
pub fn multiply(file: &Path, layer: &str, x: &[f32]) -> Result<Vec<f32>, Box<dyn Error>> {
    let checkpoint = Checkpoint::open(file)?;
    let weight = CtW4a16::load(checkpoint.layer(layer)?)?.prepare(&CpuDevice::best())?;
    Ok(weight.matmul(x)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quantloom_kernels::runtime::checkpoint::Tensors;
    use quantloom_kernels::runtime::tensor::reals;

    /// A file that compressed-tensors wrote, with its own x and y in 16 bits; the bound is that of
    /// `quantloom check` for such products: three roundings to bf16.
    #[test]
    fn the_product_is_the_files_own() {
        let file =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/ct_w4a16.safetensors"));
        let tensors = Tensors::open(file).unwrap();
        let tensor = |name: &str| reals(tensors.get(name).unwrap()).unwrap();
        let (x, reference) = (tensor("ref.x"), tensor("ref.y"));
        let x: Vec<f32> = x.into_iter().map(|x| x as f32).collect();
        let y = multiply(file, "layer", &x).unwrap();
        assert_eq!(y.len(), reference.len());
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let error = norm(&mut y.iter().zip(&reference).map(|(y, r)| f64::from(*y) - r));
        let share = error / norm(&mut reference.iter().copied());
        assert!(share < 0.006, "{share}");
        assert!(multiply(file, "layer", &x[1..]).is_err() && multiply(file, "none", &x).is_err());
    }
}
