//! The launch rule of a kernel, derived from its interface.

use quantloom_runtime::source::{
    Access, Count, LaunchRule, Parameter, ParameterKind, Swizzle, TensorRule, TensorWord,
};

use crate::emit;
use crate::ir::{self, Extent, Kernel, Word};

/// A part of a kernel's interface that no rule describes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchRuleError {
    /// A scalar that is not a size of the problem.
    #[error("kernel {kernel}: the parameter `{parameter}` is not a size of a product")]
    Parameter {
        /// The kernel.
        kernel: String,
        /// The parameter.
        parameter: String,
    },
    /// A tensor map of elements that tensor maps do not have, or of no buffer.
    #[error("kernel {kernel}: the tensor map `{map}` has no rule")]
    TensorMap {
        /// The kernel.
        kernel: String,
        /// The map.
        map: String,
    },
    /// More tensor maps than a launch passes.
    #[error("kernel {kernel}: more than {} tensor maps", LaunchRule::MOST_TENSOR_MAPS)]
    TensorMaps {
        /// The kernel.
        kernel: String,
    },
}

/// How a kernel is launched: its grid, block and shared memory, and its parameters in the order of
/// the text (buffers, scalars, tensor maps).
///
/// # Errors
/// See [`LaunchRuleError`].
pub fn launch_rule(kernel: &Kernel) -> Result<LaunchRule, LaunchRuleError> {
    let scalars = scalars(kernel)?;
    let count = |extent: Extent| count(extent, &scalars);
    let mut parameters = Vec::new();
    for buffer in &kernel.buffers {
        let words = buffer.shape.iter().map(|extent| count(*extent)).reduce(|a, b| a * b);
        let bytes = words.unwrap_or(Count::Fixed(1)) * u64::from(buffer.word.bytes());
        let access = access(buffer.access);
        parameters.push(match buffer.role {
            Some(role) => Parameter::of(role, access, bytes),
            None => Parameter::buffer(&buffer.name, access, bytes),
        });
    }
    for (parameter, size) in kernel.parameters.iter().zip(&scalars) {
        parameters.push(Parameter::size(&parameter.name, size.clone()));
    }
    if kernel.tensors.len() > LaunchRule::MOST_TENSOR_MAPS {
        return Err(LaunchRuleError::TensorMaps { kernel: kernel.name.clone() });
    }
    for map in &kernel.tensors {
        let no_map =
            || LaunchRuleError::TensorMap { kernel: kernel.name.clone(), map: map.name.clone() };
        let buffer = kernel.buffers.get(map.buffer.0 as usize).ok_or_else(no_map)?;
        let rule = TensorRule {
            buffer: buffer.name.clone(),
            word: tensor_word(buffer.word).ok_or_else(no_map)?,
            dims: map.extents.iter().map(|extent| count(*extent)).collect(),
            strides: map.strides.iter().skip(1).map(|stride| count(*stride)).collect(),
            tile: map.tile.clone(),
            swizzle: swizzle(map.swizzle),
        };
        let kind = ParameterKind::TensorMap(rule);
        parameters.push(Parameter { name: map.name.clone(), kind });
    }
    let launch = kernel.launch;
    let cluster = u64::from(launch.cluster.max(1));
    let blocks = |extent| match extent {
        // In whole clusters.
        Extent::Multiprocessors if cluster > 1 => {
            count(extent).ceil_div(cluster) * Count::Fixed(cluster)
        }
        _ => count(extent),
    };
    Ok(LaunchRule {
        grid: launch.grid.map(blocks),
        threads: launch.threads,
        cluster: [launch.cluster.max(1), 1, 1],
        shared_bytes: u64::from(emit::dynamic_shared_bytes(kernel)).into(),
        overlaps: launch.programmatic,
        parameters,
    })
}

/// Each launch parameter as a size of the problem.
fn scalars(kernel: &Kernel) -> Result<Vec<Count>, LaunchRuleError> {
    let size = |parameter: &ir::Parameter| {
        let no_size = || LaunchRuleError::Parameter {
            kernel: kernel.name.clone(),
            parameter: parameter.name.clone(),
        };
        parameter.dimension.map(Count::from).ok_or_else(no_size)
    };
    kernel.parameters.iter().map(size).collect()
}

fn count(extent: Extent, scalars: &[Count]) -> Count {
    // The verifier has seen that a parameter is declared.
    let scalar = |id: ir::ParameterId| scalars.get(id.0 as usize).cloned().unwrap_or(Count::M);
    match extent {
        Extent::Constant(value) => Count::Fixed(u64::from(value)),
        Extent::Parameter(id) => scalar(id),
        Extent::CeilDiv(id, by) => scalar(id).ceil_div(u64::from(by)),
        Extent::Affine { constant, terms } => {
            let terms = terms.into_iter().filter(|(_, by)| *by > 0);
            let terms = terms.map(|(id, by)| scalar(id) * u64::from(by));
            let constant = (constant > 0).then(|| Count::Fixed(u64::from(constant)));
            let sum = constant.into_iter().chain(terms).reduce(|sum, term| sum + term);
            sum.unwrap_or(Count::Fixed(0))
        }
        Extent::Multiprocessors => Count::Multiprocessors,
    }
}

fn access(access: ir::Access) -> Access {
    match access {
        ir::Access::Constant | ir::Access::ReadOnly => Access::Read,
        ir::Access::WriteOnce | ir::Access::WriteSome => Access::Write,
        ir::Access::Workspace => Access::ReadWrite,
    }
}

fn tensor_word(word: Word) -> Option<TensorWord> {
    match word.bytes() {
        1 => Some(TensorWord::U8),
        2 => Some(TensorWord::U16),
        4 => Some(TensorWord::U32),
        _ => None,
    }
}

fn swizzle(swizzle: ir::Swizzle) -> Swizzle {
    match swizzle {
        ir::Swizzle::None => Swizzle::None,
        ir::Swizzle::B32 => Swizzle::B32,
        ir::Swizzle::B64 => Swizzle::B64,
        ir::Swizzle::B128 => Swizzle::B128,
    }
}
