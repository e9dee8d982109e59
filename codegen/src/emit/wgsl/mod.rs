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
use super::walk::{element, unsigned};
use super::{header, walk};
use crate::ir::{Access, Kernel, Operand, Type, Verified};
use crate::target::Chip;

/// The kernel is for another kind of target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel} is for {target}; WGSL is for the targets wgsl and wgsl_subgroups")]
#[non_exhaustive]
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
    let (buffers, shared) = (address::buffers(kernel), address::shared(kernel));
    let mut writer = Writer::new(kernel, State { buffers, shared, helpers: BTreeSet::new() });
    writer.body(&kernel.body);
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = module(&mut text, &writer);
    Ok(text)
}

type Writer<'k> = walk::Writer<'k, State>;

/// What a source needs besides the kernel's statements.
struct State {
    /// How each buffer is declared.
    buffers: Vec<ArrayKind>,
    /// How shared memory is declared.
    shared: ArrayKind,
    helpers: BTreeSet<Helper>,
}

impl Writer<'_> {
    fn value(&mut self, operand: Operand) -> String {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::U32(value) => unsigned(value),
            Operand::Pred(value) => value.to_string(),
            // WGSL has no literals of infinity, NaN and subnormal numbers.
            Operand::F32(value) if value == 0.0 && value.is_sign_positive() => "0.0f".to_owned(),
            Operand::F32(value) if value.is_normal() && value > 0.0 => format!("{value:?}f"),
            Operand::F32(value) if value.is_normal() => format!("({value:?}f)"),
            Operand::F32(value) => {
                format!("{}({})", self.helper(Helper::Float), unsigned(value.to_bits()))
            }
        }
    }

    /// The name of a function of the prelude; the module then defines it.
    fn helper(&mut self, helper: Helper) -> &'static str {
        self.state.helpers.insert(helper);
        helper.name()
    }
}

/// The module around the statements.
fn module(out: &mut String, writer: &Writer<'_>) -> std::fmt::Result {
    let kernel = writer.kernel;
    let map = kernel.shared_map();
    header::write_title(out, kernel)?;
    header::write_shared(out, kernel)?;
    writeln!(out)?;
    for (at, (buffer, array)) in kernel.buffers.iter().zip(&writer.state.buffers).enumerate() {
        let access = match buffer.access {
            Access::Constant | Access::ReadOnly => "read",
            Access::WriteOnce | Access::WriteSome | Access::Workspace => "read_write",
        };
        let (name, shape) = (&buffer.name, header::shape(kernel, buffer));
        let bits = 8 * buffer.word.bytes();
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
        let (element, words) = (writer.state.shared.element(), map.bytes.div_ceil(4));
        writeln!(out, "var<workgroup> shared_words: array<{element}, {words}>;")?;
    }
    for helper in &writer.state.helpers {
        writeln!(out, "\n{}", helper.text())?;
    }
    writeln!(out, "\n@compute @workgroup_size({})", kernel.launch.threads)?;
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
    for register in &kernel.registers {
        let ty = match register.ty {
            Type::Pred => "bool",
            Type::U32 => "u32",
            Type::F32 => "f32",
        };
        for at in 0..register.len {
            let item = format!(" var _{}: {ty};", element(register, at));
            if line.len() + item.len() > 90 {
                writeln!(out, "   {line}")?;
                line.clear();
            }
            line.push_str(&item);
        }
    }
    if line.is_empty() { Ok(()) } else { writeln!(out, "   {line}") }
}
