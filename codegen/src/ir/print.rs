//! Prints a kernel's IR, for readers, snapshots and the content hash. The output is deterministic.

use std::fmt;

use super::operation::OperationPart;
use super::{
    Address, BarrierRef, Body, Cache, Extent, Kernel, Op, Operand, Reg, Space, Statement,
    Uniformity, Verified,
};

impl fmt::Display for Verified<Kernel> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {} for {}", self.name, self.target)?;
        for line in self.summary.lines() {
            writeln!(f, "  # {line}")?;
        }
        for (slot, buffer) in self.buffers.iter().enumerate() {
            write!(f, "buffer {slot} {}: {:?} {:?} [", buffer.name, buffer.access, buffer.word)?;
            for (at, part) in buffer.shape.iter().enumerate() {
                let comma = if at == 0 { "" } else { ", " };
                write!(f, "{comma}{}", ExtentText(self, *part))?;
            }
            writeln!(f, "]  # {}", buffer.layout)?;
        }
        for parameter in &self.parameters {
            writeln!(f, "parameter {}  # {}", parameter.name, parameter.meaning)?;
        }
        for map in &self.tensors {
            let buffer = self.buffers.get(map.buffer.0 as usize).map_or("?", |b| &b.name);
            write!(f, "tensor {} of {buffer}: extents", map.name)?;
            for part in &map.extents {
                write!(f, " {}", ExtentText(self, *part))?;
            }
            f.write_str(" strides")?;
            for part in &map.strides {
                write!(f, " {}", ExtentText(self, *part))?;
            }
            write!(f, " tile {:?} swizzle {:?}", map.tile, map.swizzle)?;
            match map.cache {
                Cache::Default => writeln!(f)?,
                cache => writeln!(f, " cache {cache:?}")?,
            }
        }
        for array in &self.barriers {
            writeln!(f, "mbarriers {}[{}]", array.name, array.len)?;
        }
        if self.tmem_columns > 0 {
            writeln!(f, "tensor memory {} columns", self.tmem_columns)?;
        }
        for block in &self.shared {
            write!(
                f,
                "shared {}: {:?} [{}] align {}",
                block.name, block.word, block.len, block.align
            )?;
            if let Some(under) = block.aliases.and_then(|under| self.shared.get(under.0 as usize)) {
                write!(f, " over {}", under.name)?;
            }
            writeln!(f, "  # {}", block.layout)?;
        }
        let launch = self.launch;
        let [x, y, z] = launch.grid.map(|part| ExtentText(self, part));
        write!(f, "launch {x} x {y} x {z} blocks of {} threads, ", launch.threads)?;
        write!(f, "at least {} at once, clusters of {}", launch.min_blocks, launch.cluster)?;
        writeln!(f, "{}", if launch.programmatic { ", programmatic" } else { "" })?;
        // Temporaries show their type in their name; the others are declared.
        for register in &self.registers {
            let (letter, number) = register.name.split_at(1);
            let temporary = matches!(letter, "u" | "f" | "p")
                && number.chars().all(|c| c.is_ascii_digit())
                && register.uniformity == Uniformity::Varying
                && register.len == 1;
            if !temporary {
                let (name, ty) = (&register.name, register.ty);
                write!(f, "register {name}: {ty}")?;
                if register.len > 1 {
                    write!(f, " x {}", register.len)?;
                }
                writeln!(f, ", {}", register.uniformity)?;
            }
        }
        let mut at = 0;
        self.write_body(f, &self.body, &mut at, 0)
    }
}

struct ExtentText<'k>(&'k Kernel, Extent);

impl fmt::Display for ExtentText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |id: super::ParameterId| {
            self.0.parameters.get(id.0 as usize).map_or("?", |parameter| &parameter.name)
        };
        match self.1 {
            Extent::Constant(value) => write!(f, "{value}"),
            Extent::Parameter(id) => f.write_str(name(id)),
            Extent::CeilDiv(id, by) => write!(f, "ceil({} / {by})", name(id)),
            Extent::Affine { constant, terms } => {
                f.write_str(&affine(constant, terms.map(|(id, by)| (name(id), by))))
            }
            Extent::Multiprocessors => f.write_str("multiprocessors"),
        }
    }
}

/// A sum of parameters times constants: `1 + 17 * token_blocks + routed`.
pub(crate) fn affine<N: fmt::Display>(constant: u32, terms: [(N, u32); 2]) -> String {
    let terms = terms.into_iter().filter_map(|(name, by)| match by {
        0 => None,
        1 => Some(name.to_string()),
        _ => Some(format!("{by} * {name}")),
    });
    let constant = (constant > 0).then(|| constant.to_string());
    let parts: Vec<String> = constant.into_iter().chain(terms).collect();
    if parts.is_empty() { "0".to_owned() } else { parts.join(" + ") }
}

impl Kernel {
    /// A register's element as text.
    pub(crate) fn reg(&self, reg: Reg) -> String {
        match self.registers.get(reg.id.0 as usize) {
            Some(register) if register.len == 1 && reg.at == 0 => register.name.clone(),
            Some(register) => format!("{}[{}]", register.name, reg.at),
            None => format!("?{}[{}]", reg.id.0, reg.at),
        }
    }

    fn value(&self, operand: Operand) -> String {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::U32(value) if value > 0xffff => format!("{value:#010x}"),
            Operand::U32(value) => value.to_string(),
            Operand::F32(value) => format!("{value:?}f"),
            Operand::Pred(value) => value.to_string(),
        }
    }

    fn regs(&self, regs: &[Reg]) -> String {
        let names: Vec<String> = regs.iter().map(|reg| self.reg(*reg)).collect();
        names.join(", ")
    }

    fn values(&self, values: &[Operand]) -> String {
        let names: Vec<String> = values.iter().map(|value| self.value(*value)).collect();
        names.join(", ")
    }

    fn address(&self, address: Address) -> String {
        let name = match address.space {
            Space::Global(id) => self.buffers.get(id.0 as usize).map_or("?", |b| &b.name),
            Space::Shared(id) => self.shared.get(id.0 as usize).map_or("?", |b| &b.name),
        };
        let index = self.value(address.index);
        match address.offset {
            0 => format!("{name}[{index}]"),
            offset => format!("{name}[{index} + {offset}]"),
        }
    }

    fn mbarrier(&self, barrier: BarrierRef) -> String {
        let name = self.barriers.get(barrier.array.0 as usize).map_or("?", |b| &b.name);
        format!("{name}[{}]", self.value(barrier.index))
    }

    fn write_body(
        &self,
        f: &mut fmt::Formatter<'_>,
        body: &Body,
        at: &mut usize,
        depth: usize,
    ) -> fmt::Result {
        let pad = "  ".repeat(depth);
        for statement in body {
            write!(f, "{at:>5}  {pad}")?;
            *at += 1;
            match statement {
                Statement::Op(op) => {
                    self.write_op(f, op)?;
                    writeln!(f)?;
                }
                Statement::If { condition, then, otherwise } => {
                    writeln!(f, "if {} {{", self.value(*condition))?;
                    self.write_body(f, then, at, depth + 1)?;
                    if !otherwise.is_empty() {
                        writeln!(f, "       {pad}}} else {{")?;
                        self.write_body(f, otherwise, at, depth + 1)?;
                    }
                    writeln!(f, "       {pad}}}")?;
                }
                Statement::For { counter, start, end, step, body } => {
                    let [start, end, step] = [start, end, step].map(|bound| self.value(*bound));
                    writeln!(f, "for {} in {start}..{end} by {step} {{", self.reg(*counter))?;
                    self.write_body(f, body, at, depth + 1)?;
                    writeln!(f, "       {pad}}}")?;
                }
                Statement::While { test, condition, body } => {
                    writeln!(f, "while {} after {{", self.reg(*condition))?;
                    self.write_body(f, test, at, depth + 1)?;
                    writeln!(f, "       {pad}}} do {{")?;
                    self.write_body(f, body, at, depth + 1)?;
                    writeln!(f, "       {pad}}}")?;
                }
                Statement::Roles(roles) => {
                    writeln!(f, "roles {{")?;
                    for role in roles {
                        let (name, warps) = (&role.name, &role.warps);
                        write!(f, "       {pad}{name}: warps {}..{}", warps.start, warps.end)?;
                        if let Some(registers) = role.registers {
                            write!(f, ", {registers} registers")?;
                        }
                        writeln!(f, " {{")?;
                        self.write_body(f, &role.body, at, depth + 1)?;
                        writeln!(f, "       {pad}}}")?;
                    }
                    writeln!(f, "       {pad}}}")?;
                }
            }
        }
        Ok(())
    }

    fn write_op(&self, f: &mut fmt::Formatter<'_>, op: &Op) -> fmt::Result {
        let mut form = "";
        for part in op.row().parts {
            let text = match part {
                OperationPart::Form(next) => {
                    f.write_str(form)?;
                    form = next;
                    continue;
                }
                OperationPart::Attribute(value) => format!("{value:?}"),
                OperationPart::Writes(.., regs) | OperationPart::Registers(.., regs) => {
                    self.regs(regs)
                }
                OperationPart::Reads(.., values) => self.values(values),
                OperationPart::Mask(mask) => self.value(mask),
                OperationPart::Memory(access) => self.address(access.address),
                OperationPart::Mbarrier(barrier) => self.mbarrier(barrier),
                OperationPart::Parameter(id) => {
                    self.parameters.get(id.0 as usize).map_or("?", |p| &p.name).to_owned()
                }
                OperationPart::Tensor(id, at) => {
                    let name = self.tensors.get(id.0 as usize).map_or("?", |map| &map.name);
                    format!("{name}({})", self.values(at))
                }
            };
            debug_assert!(form.contains("{}"), "no place for `{text}` in `{form}`");
            let (before, after) = form.split_once("{}").unwrap_or((form, ""));
            write!(f, "{before}{text}")?;
            form = after;
        }
        f.write_str(form)
    }
}
