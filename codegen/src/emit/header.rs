//! The comment at the start of a kernel's source, in lines with `//`.

use std::fmt::{Result, Write};

use crate::ir::{Access, Buffer, Extent, Kernel, ParameterId, Word, affine};

/// Writes name, summary, grid, buffers, parameters and the map of shared memory.
pub(super) fn write(out: &mut String, kernel: &Kernel) -> Result {
    write_title(out, kernel)?;
    for buffer in &kernel.buffers {
        let access = match buffer.access {
            Access::Constant => "constant",
            Access::ReadOnly => "read only",
            Access::WriteOnce => "written once",
            Access::WriteSome => "written in part, once",
            Access::Workspace => "workspace",
        };
        let word = match buffer.word {
            Word::U8 => "bytes",
            Word::U16 => "16-bit words",
            Word::U32 => "32-bit words",
        };
        let (name, layout) = (&buffer.name, &buffer.layout);
        let shape = shape(kernel, buffer);
        writeln!(out, "// {name}: {word} [{shape}], {access}; {layout}")?;
    }
    for parameter in &kernel.parameters {
        writeln!(out, "// {}: {}", parameter.name, parameter.meaning)?;
    }
    write_shared(out, kernel)
}

/// Writes name, summary and grid.
pub(super) fn write_title(out: &mut String, kernel: &Kernel) -> Result {
    let launch = kernel.launch;
    writeln!(out, "// {}", kernel.name)?;
    for line in kernel.summary.lines() {
        writeln!(out, "// {line}")?;
    }
    let [x, y, z] = launch.grid.map(|part| extent(kernel, part));
    let (threads, bytes) = (launch.threads, kernel.shared_map().bytes);
    let clusters = match launch.cluster {
        0 | 1 => String::new(),
        blocks => format!(" in clusters of {blocks}"),
    };
    writeln!(out, "//\n// grid {x} x {y} x {z}{clusters}, {threads} threads, {bytes} bytes shared")
}

/// Writes the map of shared memory.
pub(super) fn write_shared(out: &mut String, kernel: &Kernel) -> Result {
    let map = kernel.shared_map();
    for (array, start) in kernel.barriers.iter().zip(&map.barriers) {
        writeln!(out, "// shared + {start}: {} mbarriers `{}`", array.len, array.name)?;
    }
    for (block, start) in kernel.shared.iter().zip(&map.blocks) {
        let (name, bytes, layout) = (&block.name, block.bytes(), &block.layout);
        writeln!(out, "// shared + {start}: {name}, {bytes} bytes; {layout}")?;
    }
    Ok(())
}

/// A buffer's extents.
pub(super) fn shape(kernel: &Kernel, buffer: &Buffer) -> String {
    let extents: Vec<String> = buffer.shape.iter().map(|part| extent(kernel, *part)).collect();
    extents.join(", ")
}

fn extent(kernel: &Kernel, extent: Extent) -> String {
    let name = |id: ParameterId| &kernel.parameters[id.0 as usize].name;
    match extent {
        Extent::Constant(value) => value.to_string(),
        Extent::Parameter(id) => name(id).clone(),
        Extent::CeilDiv(id, by) => format!("ceil({} / {by})", name(id)),
        Extent::Affine { constant, terms } => {
            affine(constant, terms.map(|(id, by)| (name(id), by)))
        }
        Extent::Multiprocessors => "multiprocessors".to_owned(),
    }
}
