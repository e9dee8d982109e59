//! WGSL, for any GPU with WebGPU, Vulkan, Metal or Direct3D 12.
//!
//! In: a verified kernel for the target `wgsl` or `wgsl_subgroups`. Out: the source of a module
//! with one entry. Binding contract: group 0 has the buffers in the kernel's order, from binding 0,
//! as storage buffers of 32-bit words (bound with a length that is a multiple of 16 bytes), `read`
//! if the kernel only reads them; then, if the kernel has parameters, one uniform buffer of them as
//! `u32` in their order. Shared memory is declared in the module. The grid is [`Kernel::launch`]'s.
//!
//! Names: `_lane` is the kernel's register `lane`, `_acc_3` element 3 of its register array `acc`,
//! `buffer_x` its buffer `x`; `prelude` has the functions that a module defines. `body` has control
//! flow, the other files one family of operations each.
//!
//! # Floats
//! [`ir::arithmetic`](crate::ir) rounds once, to nearest even, and keeps subnormals. WGSL
//! guarantees less of f32 (WGSL specification, "Floating Point Evaluation" and "Floating Point
//! Accuracy"):
//! - a sum, difference or product is one of the two neighbours of the exact result; `fma` may round
//!   twice. So sums of products have the error of f32 sums with a unit roundoff of twice the size;
//! - a quotient may differ by 2.5 units in the last place: it is used as an estimate, which the
//!   remainder of the significands, an integer, corrects (`prelude`);
//! - subnormal operands and results may be flushed. Decoding makes none: codes become f32 by
//!   integer conversion or by their bits with a larger exponent;
//! - expressions may be reassociated: `(a + b) - b` may be a, and is on some drivers. Kernels for
//!   this target round by operations on bits or by `round`;
//! - NaN and infinity may be assumed absent. They are passed on as bits (the source has them as
//!   integer words); the result of arithmetic on them depends on the driver.
//!
//! Exact operations do not depend on these rules: packing to bf16 and f16, f16 to f32, and
//! quotients that are normal numbers use integer arithmetic; integers up to 2^24 in f32, and
//! products with powers of two that stay normal, are exact in any rounding.
//!
//! # Words
//! WGSL has no arrays of bytes or halves: a store of 8 or 16 bits is two atomic operations on its
//! word, and its array is an array of atomics. An array that is only read by 16 bytes is an array
//! of `vec4<u32>`.
//!
//! # Subgroups
//! WGSL does not specify which threads of a block are a subgroup. A kernel with shuffles, on the
//! target that has them, numbers its threads as `subgroup_id * subgroup_size +
//! subgroup_invocation_id`. Neighbours by this number are neighbours in a subgroup, and each number
//! occurs once, since all subgroups have one size and a block consists of whole subgroups
//! ([`ShuffleGroup`](crate::target::ShuffleGroup)). The verifier checks that control is uniform at
//! shuffles. The line `enable subgroups;`, which WebGPU requires, is not in the source: naga 30
//! accepts the operations without it, and refuses the line.
//!
//! # 16-bit floats
//! `enable f16` is never used. No kernel computes in f16, since the error bound needs f32 sums; and
//! f16 inputs must convert to f32 exactly, subnormals included, which WGSL's conversions do not
//! guarantee.
//!
//! The targets `spirv` and `msl` are this source, translated by naga, as in
//! `codegen/tests/wgsl.rs`.

mod address;
mod arithmetic;
mod body;
mod memory;
mod prelude;
mod subgroups;

use std::collections::BTreeSet;
use std::fmt::Write;

use self::address::ArrayKind;
use self::prelude::Helper;
use crate::ir::{Access, Extent, Kernel, Operand, Reg, Type, Verified};
use crate::target::Chip;

/// The kernel is for another kind of target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel} is for {target}; WGSL is for the targets wgsl and wgsl_subgroups")]
pub struct WgslEmitError {
    /// The kernel's name.
    pub kernel: String,
    /// Its target.
    pub target: &'static str,
}

/// The source of a kernel.
///
/// # Errors
/// [`WgslEmitError`] if the target is neither `wgsl` nor `wgsl_subgroups`.
pub fn emit(kernel: &Verified<Kernel>) -> Result<String, WgslEmitError> {
    if kernel.target.gpu.is_none_or(|gpu| gpu.chip != Chip::Wgsl) {
        return Err(WgslEmitError { kernel: kernel.name.clone(), target: kernel.target.name });
    }
    let mut writer = Writer {
        kernel,
        buffers: address::buffers(kernel),
        shared: address::shared(kernel),
        helpers: BTreeSet::new(),
        text: String::new(),
        depth: 1,
        loops: 0,
    };
    writer.body(&kernel.body);
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = module(&mut text, &writer);
    Ok(text)
}

/// Writes the statements of one kernel.
struct Writer<'k> {
    kernel: &'k Kernel,
    /// How each buffer is declared.
    buffers: Vec<ArrayKind>,
    /// How shared memory is declared.
    shared: ArrayKind,
    helpers: BTreeSet<Helper>,
    text: String,
    depth: usize,
    loops: u32,
}

impl Writer<'_> {
    fn line(&mut self, line: &str) {
        let pad = "    ".repeat(self.depth);
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "{pad}{line}");
    }

    /// Lines between braces, after `head`.
    fn braced(&mut self, head: &str, inside: impl FnOnce(&mut Self)) {
        self.line(&format!("{head}{{"));
        self.depth += 1;
        inside(self);
        self.depth -= 1;
        self.line("}");
    }

    fn reg(&self, reg: Reg) -> String {
        name(self.kernel, reg)
    }

    fn type_of(&self, reg: Reg) -> Type {
        self.kernel.registers[reg.id.0 as usize].ty
    }

    fn value(&mut self, operand: Operand) -> String {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::U32(value) => word(value),
            Operand::Pred(value) => value.to_string(),
            // WGSL has no literals of infinity, NaN and subnormal numbers.
            Operand::F32(value) if value == 0.0 && value.is_sign_positive() => "0.0f".to_owned(),
            Operand::F32(value) if value.is_normal() && value > 0.0 => format!("{value:?}f"),
            Operand::F32(value) if value.is_normal() => format!("({value:?}f)"),
            Operand::F32(value) => {
                format!("{}({})", self.helper(Helper::Float), word(value.to_bits()))
            }
        }
    }

    /// The name of a function of the prelude; the module then defines it.
    fn helper(&mut self, helper: Helper) -> &'static str {
        self.helpers.insert(helper);
        helper.name()
    }
}

/// A literal.
fn word(value: u32) -> String {
    if value > 0xffff { format!("{value:#010x}u") } else { format!("{value}u") }
}

/// The name of a register.
fn name(kernel: &Kernel, reg: Reg) -> String {
    let register = &kernel.registers[reg.id.0 as usize];
    if register.len == 1 {
        format!("_{}", register.name)
    } else {
        format!("_{}_{}", register.name, reg.at)
    }
}

fn extent(kernel: &Kernel, extent: Extent) -> String {
    match extent {
        Extent::Constant(value) => value.to_string(),
        Extent::Parameter(id) => kernel.parameters[id.0 as usize].name.clone(),
        Extent::CeilDiv(id, by) => {
            format!("ceil({} / {by})", kernel.parameters[id.0 as usize].name)
        }
    }
}

/// The module around the statements.
fn module(out: &mut String, writer: &Writer<'_>) -> std::fmt::Result {
    let kernel = writer.kernel;
    let map = kernel.shared_map();
    writeln!(out, "// {}", kernel.name)?;
    for line in kernel.summary.lines() {
        writeln!(out, "// {line}")?;
    }
    let [x, y, z] = kernel.launch.grid.map(|part| extent(kernel, part));
    let threads = kernel.launch.threads;
    writeln!(out, "//\n// grid {x} x {y} x {z}, {threads} threads, {} bytes shared", map.bytes)?;
    for (block, start) in kernel.shared.iter().zip(&map.blocks) {
        let (name, bytes, layout) = (&block.name, block.bytes(), &block.layout);
        writeln!(out, "// shared + {start}: {name}, {bytes} bytes; {layout}")?;
    }
    writeln!(out)?;
    for (at, (buffer, array)) in kernel.buffers.iter().zip(&writer.buffers).enumerate() {
        let shape: Vec<String> = buffer.shape.iter().map(|part| extent(kernel, *part)).collect();
        let access = match buffer.access {
            Access::Constant | Access::ReadOnly => "read",
            Access::WriteOnce | Access::Workspace => "read_write",
        };
        let (name, shape, bits) = (&buffer.name, shape.join(", "), 8 * buffer.word.bytes());
        writeln!(out, "// {name}: {bits}-bit words [{shape}]; {}", buffer.layout)?;
        let element = array.element();
        writeln!(
            out,
            "@group(0) @binding({at}) var<storage, {access}> buffer_{name}: array<{element}>;"
        )?;
    }
    if !kernel.parameters.is_empty() {
        writeln!(out, "struct Parameters {{")?;
        for parameter in &kernel.parameters {
            writeln!(out, "    // {}\n    {}: u32,", parameter.meaning, parameter.name)?;
        }
        let binding = kernel.buffers.len();
        writeln!(out, "}}\n@group(0) @binding({binding}) var<uniform> parameters: Parameters;")?;
    }
    if map.bytes > 0 {
        let (element, words) = (writer.shared.element(), map.bytes.div_ceil(4));
        writeln!(out, "var<workgroup> shared_words: array<{element}, {words}>;")?;
    }
    for helper in &writer.helpers {
        writeln!(out, "\n{}", helper.text())?;
    }
    writeln!(out, "\n@compute @workgroup_size({threads})")?;
    writeln!(out, "fn {}(", kernel.name)?;
    let (arguments, first) = subgroups::thread(kernel);
    for argument in arguments {
        writeln!(out, "    {argument},")?;
    }
    writeln!(out, "    @builtin(workgroup_id) block: vec3<u32>,")?;
    writeln!(out, "    @builtin(num_workgroups) blocks: vec3<u32>,\n) {{")?;
    for line in first {
        writeln!(out, "    {line}")?;
    }
    registers(out, kernel)?;
    writeln!(out, "{}}}", writer.text)
}

/// Declarations of registers, several per line.
fn registers(out: &mut String, kernel: &Kernel) -> std::fmt::Result {
    let mut line = String::new();
    for (id, register) in (0..).zip(&kernel.registers) {
        let ty = match register.ty {
            Type::Pred => "bool",
            Type::U32 => "u32",
            Type::F32 => "f32",
        };
        for at in 0..register.len {
            let name = name(kernel, Reg { id: crate::ir::RegisterId(id), at });
            let item = format!(" var {name}: {ty};");
            if line.len() + item.len() > 90 {
                writeln!(out, "   {line}")?;
                line.clear();
            }
            line.push_str(&item);
        }
    }
    if line.is_empty() { Ok(()) } else { writeln!(out, "   {line}") }
}
