//! PTX for NVIDIA GPUs.
//!
//! In: a verified kernel for an `sm_*` target. Out: the source of a module with one entry, in the
//! lowest PTX version that has the instructions used. Binding contract: the entry's parameters are
//! the buffers as 64-bit global addresses, the launch parameters as `.u32`, the tensor maps as 128
//! bytes, in the kernel's order; shared memory is dynamic, [`Kernel::shared_map`] bytes, set at
//! launch (above 48 KiB with an opt-in); grid, block and cluster as in [`Kernel::launch`].
//!
//! Names: `$lane` is the kernel's register `lane`, `$acc_3` element 3 of its register array `acc`,
//! `%...` belongs to the emitter. `body` has control flow, the other files one family of operations
//! each. A multiply and an add are never contracted: every float instruction names its rounding.

mod address;
mod arithmetic;
mod body;
mod division;
mod matrix;
mod memory;
mod sync;
mod tmem;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::walk::integer;
use super::{header, walk};
use crate::ir::{Kernel, Operand, Reg, Type, Verified};
use crate::target::{Chip, PtxVersion};

use address::AddressKey;

/// The kernel is for another kind of target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel} is for {target}; PTX is for sm_* targets")]
#[non_exhaustive]
pub struct PtxEmitError {
    /// The kernel's name.
    pub kernel: String,
    /// Its target.
    pub target: &'static str,
}

/// The source of a kernel.
///
/// # Errors
/// [`PtxEmitError`] if the target is not an NVIDIA GPU.
pub fn emit(kernel: &Verified<Kernel>) -> Result<String, PtxEmitError> {
    let version = version(kernel)
        .ok_or_else(|| PtxEmitError { kernel: kernel.name.clone(), target: kernel.target.name })?;
    let mut writer = Writer::new(kernel, State::default());
    writer.body(&kernel.body);
    Ok(module(&writer, version))
}

/// The lowest PTX version that has all instructions of the kernel.
pub fn version(kernel: &Verified<Kernel>) -> Option<PtxVersion> {
    let gpu = kernel.target.gpu?;
    let mut version = gpu.ptx?;
    let mut all = true;
    let launch = kernel.launch;
    let of_launch = [
        (launch.cluster > 1, crate::target::Feature::Cluster),
        (launch.programmatic, crate::target::Feature::GridDependency),
    ];
    let of_launch = of_launch.into_iter().filter_map(|(used, feature)| used.then_some(feature));
    for feature in of_launch.chain(kernel.features()) {
        match kernel.target.ptx(feature) {
            Some(lowest) => version = version.max(lowest),
            None => all = false,
        }
    }
    all.then_some(version)
}

type Writer<'k> = walk::Writer<'k, State>;

/// What a kernel's statements have in registers.
#[derive(Default)]
struct State {
    /// The number of address registers.
    addresses: u32,
    /// Addresses in registers; valid while their index is unchanged.
    known: BTreeMap<AddressKey, u32>,
    /// Constants in registers, for instructions without constant operands: whether as f32, and the
    /// word.
    constants: BTreeSet<(bool, u32)>,
    /// Constants in registers all the time, which the assembler does not know to be constants.
    opaque: BTreeSet<u32>,
}

impl Writer<'_> {
    fn value(&self, operand: Operand) -> String {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::U32(value) => integer(value),
            Operand::F32(value) => format!("0f{:08X}", value.to_bits()),
            Operand::Pred(value) => u32::from(value).to_string(),
        }
    }

    /// The operand in a register, for instructions without constant operands.
    fn in_register(&mut self, operand: Operand) -> String {
        let (float, word) = match operand {
            Operand::U32(word) => (false, word),
            Operand::F32(value) => (true, value.to_bits()),
            operand => return self.value(operand),
        };
        self.state.constants.insert((float, word));
        constant(float, word)
    }

    /// The constant in a register all the time: the assembler does not know that this is one.
    fn opaque(&mut self, word: u32) -> String {
        self.state.opaque.insert(word);
        opaque(word)
    }

    fn regs(&self, regs: &[Reg]) -> String {
        regs.iter().map(|reg| self.reg(*reg)).collect::<Vec<_>>().join(", ")
    }

    fn values(&self, values: &[Operand]) -> String {
        values.iter().map(|value| self.value(*value)).collect::<Vec<_>>().join(", ")
    }

    /// `@$p `, or nothing; `None` if the guard is the constant false.
    fn guard(&self, mask: Option<Operand>) -> Option<String> {
        match mask {
            None | Some(Operand::Pred(true)) => Some(String::new()),
            Some(Operand::Pred(false)) => None,
            Some(mask) => Some(format!("@{} ", self.value(mask))),
        }
    }

    fn number(&self) -> u32 {
        match self.kernel.target.gpu.map(|gpu| gpu.chip) {
            Some(Chip::Sm { number, .. }) => number,
            _ => 0,
        }
    }
}

/// The module around the statements.
fn module(writer: &Writer<'_>, version: PtxVersion) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write_module(&mut text, writer, version);
    text
}

fn write_module(out: &mut String, writer: &Writer<'_>, version: PtxVersion) -> std::fmt::Result {
    let (kernel, addresses) = (writer.kernel, writer.state.addresses);
    let launch = kernel.launch;
    let map = kernel.shared_map();
    header::write(out, kernel)?;
    writeln!(out, "\n.version {version}\n.target {}\n.address_size 64\n", kernel.target.name)?;
    if map.bytes > 0 {
        let align = kernel.shared.iter().map(|block| block.align).fold(16, u32::max);
        writeln!(out, ".extern .shared .align {align} .b8 shared_memory[];\n")?;
    }
    write!(out, ".visible .entry {}(", kernel.name)?;
    let buffers =
        kernel.buffers.iter().map(|b| format!(".param .u64 .ptr .global .align 16 arg_{}", b.name));
    let scalars = kernel.parameters.iter().map(|p| format!(".param .u32 arg_{}", p.name));
    let maps = kernel.tensors.iter().map(|t| format!(".param .align 64 .b8 arg_{}[128]", t.name));
    let arguments: Vec<String> = buffers.chain(scalars).chain(maps).collect();
    writeln!(out, "\n    {}\n)", arguments.join(",\n    "))?;
    writeln!(out, ".maxntid {}, 1, 1\n.minnctapersm {}", launch.threads, launch.min_blocks)?;
    if launch.cluster > 1 {
        writeln!(out, ".explicitcluster\n.reqnctapercluster {}, 1, 1", launch.cluster)?;
    }
    writeln!(out, "{{")?;
    write_registers(out, kernel)?;
    writeln!(out, "    .reg .b64 %at<{}>, %state;", addresses + 1)?;
    for buffer in &kernel.buffers {
        let name = &buffer.name;
        writeln!(out, "    .reg .b64 %{name};")?;
        writeln!(out, "    ld.param.u64 %{name}, [arg_{name}];")?;
        writeln!(out, "    cvta.to.global.u64 %{name}, %{name};")?;
    }
    for map in &kernel.tensors {
        let name = &map.name;
        writeln!(out, "    .reg .b64 %{name};")?;
        writeln!(out, "    mov.b64 %{name}, arg_{name};")?;
        writeln!(out, "    cvta.param.u64 %{name}, %{name};")?;
    }
    if map.bytes > 0 {
        writeln!(out, "    .reg .b32 %shared, %near<{}>;", addresses + 1)?;
        writeln!(out, "    mov.u32 %shared, shared_memory;")?;
    }
    for &(float, word) in &writer.state.constants {
        let (name, ty) = (constant(float, word), if float { "f32" } else { "b32" });
        let value = if float { format!("0f{word:08X}") } else { format!("{word:#010x}") };
        writeln!(out, "    .reg .{ty} {name};\n    mov.{ty} {name}, {value};")?;
    }
    if !writer.state.opaque.is_empty() {
        // 0, since a block has fewer threads: ptxas of CUDA 13 does not conclude that, and would copy a constant for each use.
        writeln!(
            out,
            "    .reg .b32 %no_thread;\n    mov.u32 %no_thread, %tid.x;\n    shr.u32 %no_thread, %no_thread, 20;"
        )?;
    }
    for &word in &writer.state.opaque {
        let name = opaque(word);
        writeln!(out, "    .reg .b32 {name};\n    xor.b32 {name}, %no_thread, {word:#010x};")?;
    }
    writeln!(out, "\n{}    ret;\n}}", writer.text)
}

/// The register of a constant.
fn constant(float: bool, word: u32) -> String {
    format!("%{}{word:08x}", if float { "f" } else { "c" })
}

/// The register of a constant that the assembler does not know.
fn opaque(word: u32) -> String {
    format!("%u{word:08x}")
}

/// `.reg` declarations: scalars and arrays by type, wrapped.
fn write_registers(out: &mut String, kernel: &Kernel) -> std::fmt::Result {
    for (ty, name) in [(Type::Pred, "pred"), (Type::U32, "b32"), (Type::F32, "f32")] {
        let registers = kernel.registers.iter().filter(|register| register.ty == ty);
        let items = registers.map(|register| match register.len {
            1 => format!("${}", register.name),
            len => format!("${}_<{len}>", register.name),
        });
        walk::write_list(out, &format!("    .reg .{name} "), items)?;
    }
    Ok(())
}
