//! Prints a kernel's IR, for readers, snapshots and the content hash. The output is deterministic.

use std::fmt::{self, Write};

use super::{
    Accumulator, Address, BarrierRef, Body, Extent, Kernel, MatrixOperand, Op, Operand, Reg, Space,
    Statement, Uniformity, Verified,
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
            writeln!(f, " tile {:?} swizzle {:?}", map.tile, map.swizzle)?;
        }
        for array in &self.barriers {
            writeln!(f, "mbarriers {}[{}]", array.name, array.len)?;
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
        }
    }
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
                Statement::Op(op) => writeln!(f, "{}", self.op_text(op)?)?,
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

    fn op_text(&self, op: &Op) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let out = &mut text;
        let masked = |mask: &Option<Operand>| match mask {
            Some(mask) => format!(" where {}", self.value(*mask)),
            None => String::new(),
        };
        match op {
            Op::Comment(line) => write!(out, "# {line}")?,
            Op::Copy { dst, a } => write!(out, "{} = {}", self.reg(*dst), self.value(*a))?,
            Op::Uniform { dst, a } => {
                write!(out, "{} = uniform {}", self.reg(*dst), self.value(*a))?;
            }
            Op::Special { dst, value } => write!(out, "{} = {value:?}", self.reg(*dst))?,
            Op::Parameter { dst, parameter } => {
                let name = self.parameters.get(parameter.0 as usize).map_or("?", |p| &p.name);
                write!(out, "{} = parameter {name}", self.reg(*dst))?;
            }
            Op::Unary { dst, op, a } => {
                write!(out, "{} = {op:?} {}", self.reg(*dst), self.value(*a))?;
            }
            Op::Binary { dst, op, a, b } => {
                write!(out, "{} = {op:?} {}", self.reg(*dst), self.values(&[*a, *b]))?;
            }
            Op::Ternary { dst, op, a, b, c } => {
                write!(out, "{} = {op:?} {}", self.reg(*dst), self.values(&[*a, *b, *c]))?;
            }
            Op::Compare { dst, op, a, b } => {
                write!(out, "{} = {op:?} {}", self.reg(*dst), self.values(&[*a, *b]))?;
            }
            Op::Select { dst, condition, a, b } => {
                let [condition, a, b] = [condition, a, b].map(|value| self.value(*value));
                write!(out, "{} = {condition} ? {a} : {b}", self.reg(*dst))?;
            }
            Op::Load { dst, from, width, mask, cache } => {
                write!(out, "{} = load {width:?} {}", self.regs(dst), self.address(*from))?;
                if let Some(mask) = mask {
                    let (condition, fill) = (self.value(mask.condition), self.value(mask.fill));
                    write!(out, " where {condition} else {fill}")?;
                }
                if *cache != super::Cache::Default {
                    write!(out, ", {cache:?}")?;
                }
            }
            Op::Store { to, values, width, mask } => {
                let (to, mask) = (self.address(*to), masked(mask));
                write!(out, "store {width:?} {to} = {}{mask}", self.values(values))?;
            }
            Op::Prefetch { from, mask } => {
                write!(out, "prefetch {}{}", self.address(*from), masked(mask))?;
            }
            Op::Atomic { dst, op, at, value, order, scope } => {
                if let Some(dst) = dst {
                    write!(out, "{} = ", self.reg(*dst))?;
                }
                let (at, value) = (self.address(*at), self.value(*value));
                write!(out, "atomic {op:?} {at}, {value}, {order:?} {scope:?}")?;
            }
            Op::AtomicLoad { dst, from, order, scope } => {
                let (dst, from) = (self.reg(*dst), self.address(*from));
                write!(out, "{dst} = atomic load {from}, {order:?} {scope:?}")?;
            }
            Op::Fence { scope } => write!(out, "fence {scope:?}")?,
            Op::NamedBarrier { id, threads, wait } => {
                let what = if *wait { "wait" } else { "arrive" };
                write!(out, "named barrier {id} of {threads}, {what}")?;
            }
            Op::Shuffle { dst, op, a, by } => {
                write!(out, "{} = shuffle {op:?} {}", self.reg(*dst), self.values(&[*a, *by]))?;
            }
            Op::Vote { dst, op, a } => {
                write!(out, "{} = vote {op:?} {}", self.reg(*dst), self.value(*a))?;
            }
            Op::Ballot { dst, a } => write!(out, "{} = ballot {}", self.regs(dst), self.value(*a))?,
            Op::CopyAsync { to, from, width, mask } => {
                let (to, from, mask) = (self.address(*to), self.address(*from), masked(mask));
                write!(out, "copy async {width:?} {to} = {from}{mask}")?;
            }
            Op::CopyWait { pending } => write!(out, "copy wait, {pending} may remain")?,
            Op::CopyArrive { barrier } => write!(out, "copy arrive {}", self.mbarrier(*barrier))?,
            Op::MbarrierInit { barrier, arrivals } => {
                write!(out, "mbarrier init {}, {arrivals} arrivals", self.mbarrier(*barrier))?;
            }
            Op::MbarrierArrive { barrier, expect } => {
                write!(out, "mbarrier arrive {}", self.mbarrier(*barrier))?;
                if let Some(expect) = expect {
                    write!(out, ", expect {} bytes", self.value(*expect))?;
                }
            }
            Op::MbarrierWait { barrier, parity } => {
                let (barrier, parity) = (self.mbarrier(*barrier), self.value(*parity));
                write!(out, "mbarrier wait {barrier}, parity {parity}")?;
            }
            Op::BulkLoad { to, from, bytes, barrier } => {
                let (to, from, bytes) =
                    (self.address(*to), self.address(*from), self.value(*bytes));
                write!(out, "bulk load {to} = {from}, {bytes} bytes, {}", self.mbarrier(*barrier))?;
            }
            Op::BulkStore { to, from, bytes } => {
                let (to, from, bytes) =
                    (self.address(*to), self.address(*from), self.value(*bytes));
                write!(out, "bulk store {to} = {from}, {bytes} bytes")?;
            }
            Op::TensorLoad { to, map, at, barrier, multicast } => {
                let name = self.tensors.get(map.0 as usize).map_or("?", |map| &map.name);
                let (to, at, barrier) =
                    (self.address(*to), self.values(at), self.mbarrier(*barrier));
                write!(out, "tensor load {to} = {name}({at}), {barrier}")?;
                if let Some(mask) = multicast {
                    write!(out, ", to blocks {}", self.value(*mask))?;
                }
            }
            Op::TensorStore { map, at, from } => {
                let name = self.tensors.get(map.0 as usize).map_or("?", |map| &map.name);
                write!(out, "tensor store {name}({}) = {}", self.values(at), self.address(*from))?;
            }
            Op::BulkWait { pending, reads_only } => {
                let what = if *reads_only { " reads" } else { "" };
                write!(out, "bulk wait{what}, {pending} may remain")?;
            }
            Op::MatrixLoad { dst, from, transpose } => {
                let what = if *transpose { ", transposed" } else { "" };
                write!(out, "{} = matrix load {}{what}", self.regs(dst), self.address(*from))?;
            }
            Op::MatrixStore { to, values, transpose } => {
                let what = if *transpose { ", transposed" } else { "" };
                write!(out, "matrix store {} = {}{what}", self.address(*to), self.values(values))?;
            }
            Op::MatrixTranspose { dst, a } => {
                write!(out, "{} = transpose {}", self.reg(*dst), self.value(*a))?;
            }
            Op::Matrix { op, d, a, b, c, scales } => {
                write!(out, "{} = {}", self.regs(d), op.name)?;
                for (name, operand) in [("a", a), ("b", b)] {
                    match operand {
                        MatrixOperand::Registers(regs) => {
                            write!(out, " {name}({})", self.regs(regs))?;
                        }
                        MatrixOperand::Shared(tile) => {
                            let at = Address {
                                space: Space::Shared(tile.block),
                                index: tile.index,
                                offset: tile.offset,
                            };
                            let at = self.address(at);
                            let (leading, stride) = (tile.leading, tile.stride);
                            let swizzle = tile.swizzle;
                            write!(
                                out,
                                " {name}({at} leading {leading} stride {stride} {swizzle:?})"
                            )?;
                        }
                    }
                }
                if let Accumulator::Registers(regs) = c {
                    write!(out, " c({})", self.regs(regs))?;
                }
                for (name, scale) in ["a", "b"].iter().zip(scales.iter().flatten()) {
                    let (from, byte) = (self.reg(scale.from), scale.byte);
                    write!(out, " scale {name}({from} byte {byte})")?;
                }
            }
            Op::MatrixWait { pending } => write!(out, "matrix wait, {pending} may remain")?,
            Op::Barrier => out.push_str("barrier"),
            Op::WarpSync => out.push_str("warp sync"),
            Op::ClusterBarrier => out.push_str("cluster barrier"),
            Op::CopyCommit => out.push_str("copy commit"),
            Op::MbarrierFence => out.push_str("mbarrier fence"),
            Op::FenceAsync => out.push_str("fence async"),
            Op::BulkCommit => out.push_str("bulk commit"),
            Op::MatrixFence => out.push_str("matrix fence"),
            Op::MatrixCommit => out.push_str("matrix commit"),
            Op::GridWait => out.push_str("grid wait"),
            Op::GridLaunch => out.push_str("grid launch"),
        }
        Ok(text)
    }
}
