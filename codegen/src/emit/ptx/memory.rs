//! Loads, stores, atomics, copies.

use super::Writer;
use crate::ir::{
    Address, AtomicOp, BarrierRef, Cache, Mask, MemoryOrder, Operand, Reg, Scope, Space, TensorId,
    Width,
};

impl Writer<'_> {
    pub(super) fn load(
        &mut self,
        dst: &[Reg],
        from: Address,
        width: Width,
        mask: Option<Mask>,
        cache: Cache,
    ) {
        let space = space(from.space);
        let way = match cache {
            Cache::Default => "",
            Cache::Constant => ".nc",
            // Without `.nc`: the assembler may reorder such loads, and moves them below a grid
            // wait.
            Cache::Stream => ".L1::no_allocate",
        };
        let at = self.address(from);
        if let Some(guard) = self.fill(dst, mask) {
            let (suffix, dst) = (vector(width, "u"), braced(self.regs(dst), width));
            self.line(&format!("{guard}ld.{space}{way}{suffix} {dst}, [{at}];"));
        }
    }

    /// A load from another block's shared memory, whose address `mapa` gives.
    pub(super) fn cluster_load(
        &mut self,
        dst: &[Reg],
        from: Address,
        width: Width,
        block: Operand,
    ) {
        let (at, block) = (self.address(from), self.value(block));
        let (base, plus) = at.split_once('+').unwrap_or((&at, "0"));
        let (suffix, dst) = (vector(width, "u"), braced(self.regs(dst), width));
        self.line(&format!("{{ .reg .b32 place; add.u32 place, {base}, {plus};"));
        self.line(&format!("mapa.shared::cluster.u32 place, place, {block};"));
        self.line(&format!("ld.shared::cluster{suffix} {dst}, [place]; }}"));
    }

    pub(super) fn store(
        &mut self,
        to: Address,
        values: &[Operand],
        width: Width,
        mask: Option<Operand>,
    ) {
        let (space, at) = (space(to.space), self.address(to));
        if let Some(guard) = self.guard(mask) {
            let (suffix, values) = (vector(width, "b"), braced(self.values(values), width));
            self.line(&format!("{guard}st.{space}{suffix} [{at}], {values};"));
        }
    }

    pub(super) fn atomic(
        &mut self,
        dst: Option<Reg>,
        op: AtomicOp,
        at: Address,
        value: Operand,
        (order, who): (MemoryOrder, Scope),
    ) {
        let (place, address) = (space(at.space), self.address(at));
        let (order, who) = (order_text(order), scope(who));
        let change = match op {
            AtomicOp::Add => "add.u32",
            AtomicOp::Exchange => "exch.b32",
            AtomicOp::Max => "max.u32",
        };
        let value = self.value(value);
        let (open, dst, close) = match dst {
            Some(dst) => ("", self.reg(dst), ""),
            None => ("{ .reg .b32 old; ", "old".to_owned(), " }"),
        };
        self.line(&format!(
            "{open}atom.{order}.{who}.{place}.{change} {dst}, [{address}], {value};{close}"
        ));
    }

    pub(super) fn atomic_load(
        &mut self,
        dst: Reg,
        from: Address,
        (order, who): (MemoryOrder, Scope),
    ) {
        let (place, at) = (space(from.space), self.address(from));
        let (order, who, dst) = (order_text(order), scope(who), self.reg(dst));
        self.line(&format!("ld.{order}.{who}.{place}.u32 {dst}, [{at}];"));
    }

    pub(super) fn copy_async(
        &mut self,
        to: Address,
        from: Address,
        width: Width,
        mask: Option<Operand>,
    ) {
        let (to, from, bytes) = (self.address(to), self.address(from), width.bytes());
        // 16-byte copies can bypass L1.
        let way = if width == Width::B128 { "cg" } else { "ca" };
        let copy = format!("cp.async.{way}.shared.global [{to}], [{from}], {bytes}");
        match mask {
            None | Some(Operand::Pred(true)) => self.line(&format!("{copy};")),
            Some(Operand::Pred(false)) => self.line(&format!("{copy}, 0;")),
            Some(mask) => {
                let mask = self.value(mask);
                self.line(&format!(
                    "{{ .reg .b32 size; selp.b32 size, {bytes}, 0, {mask}; {copy}, size; }}"
                ));
            }
        }
    }

    pub(super) fn tensor_load(
        &mut self,
        to: Address,
        (map, at): (TensorId, &[Operand]),
        barrier: BarrierRef,
        multicast: Option<Operand>,
    ) {
        let (to, from) = (self.address(to), self.tensor(map, at));
        let (rank, barrier) = (at.len(), self.mbarrier(barrier));
        let copy = format!(
            "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        );
        let (mut before, mut after, mut kind) = (String::new(), String::new(), String::new());
        if let Some(mask) = multicast {
            let mask = self.value(mask);
            before += &format!(".reg .b16 blocks; cvt.u16.u32 blocks, {mask}; ");
            after += ", blocks";
            kind += ".multicast::cluster";
        }
        if self.kernel.tensors[map.0 as usize].cache == Cache::Stream {
            before += ".reg .b64 hint; createpolicy.fractional.L2::evict_first.b64 hint, 1.0; ";
            after += ", hint";
            kind += ".L2::cache_hint";
        }
        let copy = format!("{copy}{kind} [{to}], {from}, [{barrier}]{after};");
        match before.is_empty() {
            true => self.line(&copy),
            false => self.line(&format!("{{ {before}{copy} }}")),
        }
    }

    pub(super) fn tensor(&self, map: TensorId, at: &[Operand]) -> String {
        let name = &self.kernel.tensors[map.0 as usize].name;
        format!("[%{name}, {{{}}}]", self.values(at))
    }

    /// Writes the fill of a masked load first; the predicated load then overwrites it.
    pub(super) fn fill(&mut self, dst: &[Reg], mask: Option<Mask>) -> Option<String> {
        let guard = self.guard(mask.map(|mask| mask.condition));
        let Some(mask) = mask else { return guard };
        if mask.condition != Operand::Pred(true) {
            let fill = self.value(mask.fill);
            for reg in dst {
                let line = format!("mov.b32 {}, {fill};", self.reg(*reg));
                self.line(&line);
            }
        }
        guard
    }
}

const fn space(space: Space) -> &'static str {
    match space {
        Space::Global(_) => "global",
        Space::Shared(_) => "shared",
    }
}

fn vector(width: Width, narrow: &str) -> String {
    match width {
        Width::B8 => format!(".{narrow}8"),
        Width::B16 => format!(".{narrow}16"),
        Width::B32 => ".b32".to_owned(),
        Width::B64 => ".v2.b32".to_owned(),
        Width::B128 => ".v4.b32".to_owned(),
    }
}

fn braced(list: String, width: Width) -> String {
    if width.registers() > 1 { format!("{{{list}}}") } else { list }
}

const fn order_text(order: MemoryOrder) -> &'static str {
    match order {
        MemoryOrder::Relaxed => "relaxed",
        MemoryOrder::Acquire => "acquire",
        MemoryOrder::Release => "release",
        MemoryOrder::AcquireRelease => "acq_rel",
    }
}

pub(super) const fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Block => "cta",
        Scope::Cluster => "cluster",
        Scope::Device => "gpu",
    }
}
