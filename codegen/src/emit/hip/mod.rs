//! HIP C++ for AMD GPUs.
//!
//! In: a verified kernel for a `gfx*` target. Out: a source with one kernel that needs no header,
//! for hiprtc and for clang (`clang -x hip --cuda-device-only --no-gpu-bundle-output
//! --offload-arch=gfx942 -nogpulib -nogpuinc -O3`).
//!
//! Binding contract: the kernel's arguments are the buffers as 64-bit global addresses, then the
//! launch parameters as 32-bit unsigned integers, in the kernel's order; shared memory is static,
//! so that a launch needs no dynamic one; grid and block as in [`Kernel::launch`], one-dimensional
//! blocks.
//!
//! Names: `$lane` is the kernel's register `lane`, `$acc_3` element 3 of its register array `acc`,
//! `arg_x` the argument `x`. All other names are the emitter's. `body` has control flow, `prelude`
//! the functions that a source defines, `logic` three-operand bit functions as expressions, the
//! other files one family of operations each.
//!
//! Rounding: a pragma in the source disables contraction. Division and square root are correctly
//! rounded, and subnormals are kept, unless a compiler gets `-ffast-math` or one of its parts,
//! which is not allowed.

mod address;
mod arithmetic;
mod body;
mod logic;
mod matrix;
mod memory;
mod prelude;
mod sync;

use std::collections::BTreeSet;
use std::fmt::Write;

use super::walk::{element, unsigned};
use super::{header, walk};
use crate::ir::{Access, Kernel, Operand, Reg, Type, Verified};
use crate::target::{Chip, Feature};

use prelude::{Helper, Vector};

/// SIMD units of a compute unit (on RDNA: of a workgroup processor), to which the waves of its blocks are distributed.
const UNITS: u32 = 4;

/// Why a kernel cannot be printed as HIP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HipEmitError {
    /// The kernel is for another kind of target.
    #[error("kernel {kernel} is for {target}; HIP is for gfx* targets")]
    Target {
        /// The kernel's name.
        kernel: String,
        /// Its target.
        target: &'static str,
    },
    /// The target has a feature that this emitter cannot print.
    #[error("kernel {kernel} needs {feature:?}, which the HIP emitter does not support")]
    Feature {
        /// The kernel's name.
        kernel: String,
        /// The feature that it needs.
        feature: Feature,
    },
}

/// The source of a kernel.
///
/// # Errors
/// [`HipEmitError`] if the target is not an AMD GPU, or the kernel needs an unsupported operation.
pub fn emit(kernel: &Verified<Kernel>) -> Result<String, HipEmitError> {
    let Some(Chip::Gfx(chip)) = kernel.target.gpu.map(|gpu| gpu.chip) else {
        let (kernel, target) = (kernel.name.clone(), kernel.target.name);
        return Err(HipEmitError::Target { kernel, target });
    };
    let mut writer = Writer::new(
        kernel,
        State { chip, helpers: BTreeSet::new(), vectors: BTreeSet::new(), unsupported: None },
    );
    writer.body(&kernel.body);
    if let Some(feature) = writer.state.unsupported {
        return Err(HipEmitError::Feature { kernel: kernel.name.clone(), feature });
    }
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write_text(&mut text, &writer);
    Ok(text)
}

type Writer<'k> = walk::Writer<'k, State>;

/// What a source needs besides the kernel's statements.
struct State {
    chip: &'static str,
    /// Functions of the prelude that the source uses.
    helpers: BTreeSet<Helper>,
    /// Vector types that the source uses.
    vectors: BTreeSet<Vector>,
    /// The first feature that the kernel needs and this emitter does not support.
    unsupported: Option<Feature>,
}

impl Writer<'_> {
    /// Records an unsupported feature; the source is then discarded.
    fn unsupported(&mut self, feature: Feature) -> String {
        self.state.unsupported.get_or_insert(feature);
        String::new()
    }

    /// Lanes of a warp.
    fn lanes(&self) -> u32 {
        self.kernel.target.gpu.map_or(0, |gpu| gpu.warp)
    }

    /// The name of a function of the prelude; the source then defines it.
    fn helper(&mut self, helper: Helper) -> &'static str {
        self.state.helpers.insert(helper);
        helper.name()
    }

    /// The name of a vector type; the source then defines it.
    fn vector(&mut self, vector: Vector) -> String {
        self.state.vectors.insert(vector);
        vector.to_string()
    }

    fn value(&mut self, operand: Operand) -> String {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::U32(value) => unsigned(value),
            Operand::F32(value) if value.is_finite() => format!("{value:?}f"),
            Operand::F32(value) => {
                format!("{}({})", self.helper(Helper::AsF32), unsigned(value.to_bits()))
            }
            Operand::Pred(value) => value.to_string(),
        }
    }

    /// The operand's bits as an unsigned integer.
    fn bits(&mut self, operand: Operand) -> String {
        match (operand, self.type_of(operand)) {
            (Operand::F32(value), _) => unsigned(value.to_bits()),
            (_, Type::F32) => {
                format!("{}({})", self.helper(Helper::AsU32), self.value(operand))
            }
            _ => self.value(operand),
        }
    }

    /// Bits as a value of the register's type.
    fn typed(&mut self, dst: Reg, bits: &str) -> String {
        match self.type_of(dst.into()) {
            Type::F32 => format!("{}({bits})", self.helper(Helper::AsF32)),
            _ => bits.to_owned(),
        }
    }
}

/// Lines of a comment. A line must not end in a backslash: it would continue on the next line.
fn comment(text: &str) -> impl Iterator<Item = String> {
    text.lines().map(|line| {
        let open = line.trim_end().ends_with('\\');
        format!("// {line}{}", if open { " ." } else { "" })
    })
}

fn write_text(out: &mut String, writer: &Writer<'_>) -> std::fmt::Result {
    let kernel = writer.kernel;
    let launch = kernel.launch;
    let mut head = String::new();
    header::write(&mut head, kernel)?;
    for line in head.lines() {
        let line = line.strip_prefix("//").unwrap_or(line);
        match comment(line.strip_prefix(' ').unwrap_or(line)).next() {
            Some(line) => writeln!(out, "{line}")?,
            None => writeln!(out, "//")?,
        }
    }
    // A source for another chip could compile, and convert or multiply differently.
    let chip = writer.state.chip;
    writeln!(
        out,
        "\n#if defined(__HIP_DEVICE_COMPILE__) && !defined(__{chip}__)\n\
         #error \"this text is for {chip}\"\n#endif\n"
    )?;
    writeln!(out, "#pragma clang fp contract(off)\n\nnamespace quantloom {{\n")?;
    prelude::write(out, kernel.target, &writer.state.helpers, &writer.state.vectors)?;
    let bytes = kernel.shared_map().bytes;
    if bytes > 0 {
        let align = kernel.shared.iter().map(|block| block.align).fold(16, u32::max);
        writeln!(
            out,
            "static __attribute__((shared, aligned({align}))) byte shared_memory[{bytes}];\n"
        )?;
    }
    let waves = (launch.min_blocks * kernel.warps()).div_ceil(UNITS);
    writeln!(
        out,
        "extern \"C\" __attribute__((global))\n\
         __attribute__((amdgpu_flat_work_group_size({0}, {0}), amdgpu_waves_per_eu({waves})))\n\
         void {1}(",
        launch.threads, kernel.name
    )?;
    let buffers = kernel.buffers.iter().map(|buffer| {
        // Memory that other threads may change during the kernel is not `__restrict`.
        let way = match buffer.access {
            Access::Constant | Access::ReadOnly => "const byte *__restrict",
            Access::WriteOnce | Access::WriteSome => "byte *__restrict",
            Access::Workspace => "byte *",
        };
        format!("    {way} arg_{}", buffer.name)
    });
    let scalars = kernel.parameters.iter().map(|p| format!("    unsigned arg_{}", p.name));
    let arguments: Vec<String> = buffers.chain(scalars).collect();
    writeln!(out, "{})\n{{", arguments.join(",\n"))?;
    write_registers(out, kernel)?;
    writeln!(out, "\n{}}}\n\n}} // namespace quantloom", writer.text)
}

/// Declarations of registers by type, wrapped. Predicates are initialised to false, since in C++ a
/// copy of an uninitialised `bool` is undefined.
fn write_registers(out: &mut String, kernel: &Kernel) -> std::fmt::Result {
    let types =
        [(Type::Pred, "bool", " = false"), (Type::U32, "unsigned", ""), (Type::F32, "float", "")];
    for (ty, name, start) in types {
        let registers = kernel.registers.iter().filter(|register| register.ty == ty);
        let items = registers.flat_map(|register| {
            (0..register.len).map(move |at| format!("${}{start}", element(register, at)))
        });
        walk::write_list(out, &format!("    {name} "), items)?;
    }
    Ok(())
}
