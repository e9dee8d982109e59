//! Declarations and launch.

use super::{Findings, VerifyErrorKind};
use crate::ir::{Extent, Register};
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
            let what = "a register array of length 0".to_owned();
            findings.report(None, VerifyErrorKind::Declaration { name: name.clone(), what });
        }
    }
}

fn extent(findings: &mut Findings<'_>, extent: Extent) {
    let used = match extent {
        Extent::Constant(_) => Vec::new(),
        Extent::Parameter(id) | Extent::CeilDiv(id, _) => vec![id],
        Extent::Affine { terms, .. } => terms.map(|(id, _)| id).to_vec(),
    };
    for id in used {
        if id.0 as usize >= findings.kernel.parameters.len() {
            findings.report(None, VerifyErrorKind::Unknown { what: "parameter", number: id.0 });
        }
    }
    if matches!(extent, Extent::CeilDiv(_, 0)) {
        findings.report(None, VerifyErrorKind::Value("an extent is divided by 0".to_owned()));
    }
}

fn buffers(findings: &mut Findings<'_>, gpu: &Gpu) {
    let kernel = findings.kernel;
    let count = kernel.buffers.len();
    if let Some(limit) = gpu.buffers.filter(|limit| count > *limit as usize) {
        let target = kernel.target.name;
        let what = format!("{count} buffers; a kernel of {target} has at most {limit}");
        findings.report(None, VerifyErrorKind::Launch(what));
    }
    for buffer in &kernel.buffers {
        for part in &buffer.shape {
            extent(findings, *part);
        }
        if buffer.shape.is_empty() {
            let what = "a buffer without a shape".to_owned();
            findings.report(None, VerifyErrorKind::Declaration { name: buffer.name.clone(), what });
        }
    }
    for map in &kernel.tensors {
        for part in map.extents.iter().chain(&map.strides) {
            extent(findings, *part);
        }
        let what = if kernel.buffers.get(map.buffer.0 as usize).is_none() {
            "its buffer is not declared"
        } else if !(1..=5).contains(&map.extents.len())
            || map.strides.len() != map.extents.len()
            || map.tile.len() != map.extents.len()
        {
            "extents, strides and tile must have the same one to five dimensions"
        } else if map.strides.first() != Some(&Extent::Constant(1)) {
            "its first stride must be 1"
        } else if map.tile.iter().any(|size| !(1..=256).contains(size)) {
            "a tile's dimension is 1 to 256"
        } else {
            continue;
        };
        let what = what.to_owned();
        findings.report(None, VerifyErrorKind::Declaration { name: map.name.clone(), what });
    }
}

fn shared(findings: &mut Findings<'_>, gpu: &Gpu) {
    let kernel = findings.kernel;
    for (at, block) in kernel.shared.iter().enumerate() {
        let under =
            block.aliases.map(|under| (under.0 as usize, kernel.shared.get(under.0 as usize)));
        let what = if block.len == 0 {
            "its length is 0"
        } else if !block.align.is_power_of_two() || block.align < 16 {
            "its alignment is not a power of two of at least 16"
        } else {
            match under {
                None => continue,
                Some((id, _)) if id >= at => "it aliases a block that is declared later",
                Some((_, Some(under))) if under.bytes() < block.bytes() => {
                    "it is longer than the block that it aliases"
                }
                Some((_, Some(under))) if under.align < block.align => {
                    "its alignment is larger than that of the block that it aliases"
                }
                Some(_) => continue,
            }
        };
        let what = what.to_owned();
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
    for part in launch.grid {
        extent(findings, part);
    }
    let mut report = |what: String| findings.report(None, VerifyErrorKind::Launch(what));
    if launch.threads == 0 || !launch.threads.is_multiple_of(gpu.warp) {
        report(format!(
            "{} threads are not a multiple of the warp of {}",
            launch.threads, gpu.warp
        ));
    }
    if launch.threads > gpu.block_threads {
        report(format!("{} threads; a block has at most {}", launch.threads, gpu.block_threads));
    }
    let together = launch.threads.saturating_mul(launch.min_blocks);
    if launch.min_blocks == 0 || together > gpu.sm_threads {
        report(format!(
            "{} resident blocks of {} threads; an SM (CU) has {} threads",
            launch.min_blocks, launch.threads, gpu.sm_threads
        ));
    }
    let bytes = kernel.shared_map().bytes.saturating_add(gpu.reserved_shared);
    if launch.min_blocks > 1 && bytes.saturating_mul(launch.min_blocks) > gpu.sm_shared {
        report(format!(
            "{} resident blocks of {bytes} bytes of shared memory; an SM (CU) has {} bytes",
            launch.min_blocks, gpu.sm_shared
        ));
    }
    if launch.cluster == 0 || launch.cluster > 8 {
        report(format!("a cluster of {} blocks; only 1 to 8 are portable", launch.cluster));
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
