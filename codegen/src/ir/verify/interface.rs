//! Declarations and launch.

use super::{DeclarationError, Findings, LaunchError, ValueError, VerifyErrorKind};
use crate::ir::{Access, Cache, Extent, Kernel, Register, TensorMap};
use crate::target::{Feature, Gpu};

pub(super) fn check(findings: &mut Findings<'_>) {
    let kernel = findings.kernel;
    let Some(gpu) = kernel.target.gpu else {
        return findings.report(None, VerifyErrorKind::NotAGpu(kernel.target.name));
    };
    names(findings);
    buffers(findings, gpu);
    shared(findings, gpu);
    launch(findings, gpu);
}

fn names(findings: &mut Findings<'_>) {
    let kernel = findings.kernel;
    let lists: [(&'static str, Vec<&str>); 6] = [
        ("kernels", vec![&kernel.name]),
        ("arguments", {
            let buffers = kernel.buffers.iter().map(|buffer| buffer.name.as_str());
            let parameters = kernel.parameters.iter().map(|parameter| parameter.name.as_str());
            buffers
                .chain(parameters)
                .chain(kernel.tensors.iter().map(|t| t.name.as_str()))
                .collect()
        }),
        ("shared blocks", kernel.shared.iter().map(|block| block.name.as_str()).collect()),
        ("mbarriers", kernel.barriers.iter().map(|array| array.name.as_str()).collect()),
        ("registers", kernel.registers.iter().map(|register| register.name.as_str()).collect()),
        ("roles", Vec::new()),
    ];
    for (among, mut list) in lists {
        list.sort_unstable();
        for (at, name) in list.iter().enumerate() {
            let starts = name.starts_with(|c: char| c.is_ascii_alphabetic());
            let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let tail = name.rsplit_once('_').map_or("", |(_, tail)| tail);
            let numbered = !tail.is_empty() && tail.chars().all(|c| c.is_ascii_digit());
            let register = among == "registers";
            if !starts || !plain || register && numbered || at > 0 && list[at - 1] == *name {
                findings.report(None, VerifyErrorKind::Name { name: (*name).to_owned(), among });
            }
        }
    }
    for Register { name, len, .. } in &kernel.registers {
        if *len == 0 {
            let what = DeclarationError::EmptyRegisters;
            findings.report(None, VerifyErrorKind::Declaration { name: name.clone(), what });
        }
    }
}

fn extent(findings: &mut Findings<'_>, extent: Extent) {
    let used = match extent {
        Extent::Constant(_) | Extent::Multiprocessors => Vec::new(),
        Extent::Parameter(id) | Extent::CeilDiv(id, _) => vec![id],
        Extent::Affine { terms, .. } => terms.map(|(id, _)| id).to_vec(),
    };
    for id in used {
        if id.0 as usize >= findings.kernel.parameters.len() {
            findings.report(None, VerifyErrorKind::Unknown { what: "parameter", number: id.0 });
        }
    }
    if matches!(extent, Extent::CeilDiv(_, 0)) {
        findings.report(None, ValueError::ExtentByZero.into());
    }
}

fn buffers(findings: &mut Findings<'_>, gpu: &Gpu) {
    let kernel = findings.kernel;
    let count = kernel.buffers.len();
    if let Some(limit) = gpu.buffers.filter(|limit| count > *limit as usize) {
        let target = kernel.target.name;
        let what = LaunchError::Buffers { count, target, limit };
        findings.report(None, VerifyErrorKind::Launch(what));
    }
    for buffer in &kernel.buffers {
        for part in &buffer.shape {
            extent(findings, *part);
        }
        if buffer.shape.is_empty() {
            let what = DeclarationError::NoShape;
            findings.report(None, VerifyErrorKind::Declaration { name: buffer.name.clone(), what });
        }
    }
    for map in &kernel.tensors {
        for part in map.extents.iter().chain(&map.strides) {
            extent(findings, *part);
        }
        let what = if kernel.buffers.get(map.buffer.0 as usize).is_none() {
            DeclarationError::NoBuffer
        } else if !(1..=5).contains(&map.extents.len())
            || map.strides.len() != map.extents.len()
            || map.tile.len() != map.extents.len()
        {
            DeclarationError::Dimensions
        } else if map.strides.first() != Some(&Extent::Constant(1)) {
            DeclarationError::FirstStride
        } else if map.tile.iter().any(|size| !(1..=256).contains(size)) {
            DeclarationError::TileSize
        } else if !has_its_cache(kernel, map) {
            DeclarationError::CacheOfMap
        } else {
            continue;
        };
        findings.report(None, VerifyErrorKind::Declaration { name: map.name.clone(), what });
    }
}

/// Whether a map's copies may use the caches as it says.
fn has_its_cache(kernel: &Kernel, map: &TensorMap) -> bool {
    let buffer = kernel.buffers.get(map.buffer.0 as usize);
    match map.cache {
        Cache::Default => true,
        Cache::Stream => buffer.is_some_and(|buffer| buffer.access == Access::Constant),
        Cache::Constant => false,
    }
}

fn shared(findings: &mut Findings<'_>, gpu: &Gpu) {
    let kernel = findings.kernel;
    for (at, block) in kernel.shared.iter().enumerate() {
        let under =
            block.aliases.map(|under| (under.0 as usize, kernel.shared.get(under.0 as usize)));
        let what = if block.len == 0 {
            DeclarationError::Empty
        } else if !block.align.is_power_of_two() || block.align < 16 {
            DeclarationError::Alignment
        } else {
            match under {
                None => continue,
                Some((id, _)) if id >= at => DeclarationError::AliasesLater,
                Some((_, Some(under))) if under.bytes() < block.bytes() => {
                    DeclarationError::LongerThanAliased
                }
                Some((_, Some(under))) if under.align < block.align => {
                    DeclarationError::AlignedMoreThanAliased
                }
                Some(_) => continue,
            }
        };
        findings.report(None, VerifyErrorKind::Declaration { name: block.name.clone(), what });
    }
    let bytes = kernel.shared_map().bytes;
    if bytes > gpu.block_shared {
        let (limit, target) = (gpu.block_shared, kernel.target.name);
        findings.report(None, VerifyErrorKind::SharedSize { bytes, limit, target });
    }
}

fn launch(findings: &mut Findings<'_>, gpu: &Gpu) {
    let kernel = findings.kernel;
    let launch = kernel.launch;
    let (threads, blocks) = (launch.threads, launch.min_blocks);
    for part in launch.grid {
        extent(findings, part);
    }
    let mut report = |what: LaunchError| findings.report(None, VerifyErrorKind::Launch(what));
    if threads == 0 || !threads.is_multiple_of(gpu.warp) {
        report(LaunchError::PartialWarp { threads, warp: gpu.warp });
    }
    if threads > gpu.block_threads {
        report(LaunchError::Threads { threads, limit: gpu.block_threads });
    }
    if blocks == 0 || threads.saturating_mul(blocks) > gpu.sm_threads {
        report(LaunchError::ResidentThreads { blocks, threads, limit: gpu.sm_threads });
    }
    let bytes = kernel.shared_map().bytes.saturating_add(gpu.reserved_shared);
    if blocks > 1 && bytes.saturating_mul(blocks) > gpu.sm_shared {
        report(LaunchError::ResidentShared { blocks, bytes, limit: gpu.sm_shared });
    }
    if launch.cluster == 0 || launch.cluster > 8 {
        report(LaunchError::Cluster(launch.cluster));
    }
    let needs =
        [(launch.cluster > 1, Feature::Cluster), (launch.programmatic, Feature::GridDependency)];
    for (wanted, feature) in needs {
        if wanted && !kernel.target.has(feature) {
            findings
                .report(None, VerifyErrorKind::Unavailable { target: kernel.target.name, feature });
        }
    }
}
