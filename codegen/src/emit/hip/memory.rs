//! Loads, stores, atomics.

use super::Writer;
use crate::ir::{Address, AtomicOp, Cache, Mask, MemoryOrder, Operand, Reg, Scope, Space, Width};

impl Writer<'_> {
    pub(super) fn store(
        &mut self,
        to: Address,
        values: &[Operand],
        width: Width,
        mask: Option<Operand>,
    ) {
        let (at, ty) = (self.address(to), unit(width));
        let bits: Vec<String> = values.iter().map(|value| self.bits(*value)).collect();
        let bits = bits.join(", ");
        let value = match width {
            Width::B8 | Width::B16 => format!("({ty})({bits})"),
            Width::B32 => bits,
            Width::B64 | Width::B128 => format!("({ty}){{{bits}}}"),
        };
        if let Some(guard) = self.guard(mask) {
            self.line(&format!("{guard}*({ty} *)({at}) = {value};"));
        }
    }

    pub(super) fn atomic(
        &mut self,
        dst: Option<Reg>,
        op: AtomicOp,
        at: Address,
        value: Operand,
        (order, scope): (MemoryOrder, Scope),
    ) {
        let value = self.value(value);
        let change = match op {
            AtomicOp::Add => "fetch_add",
            AtomicOp::Exchange => "exchange",
            AtomicOp::Max => "fetch_max",
        };
        let (order, scope) = (order_text(order), atomic_scope(scope));
        self.at_word(at, |this, at| {
            let call = format!("__hip_atomic_{change}({at}, {value}, {order}, {scope})");
            match dst {
                Some(dst) => this.set(dst, &call),
                None => this.line(&format!("(void){call};")),
            }
        });
    }

    /// An atomic operation with the pointer to its word. Of shared memory, an array of bytes, the compiler
    /// would take the pointer for one to a byte, but not a variable of its type.
    fn at_word(&mut self, at: Address, operation: impl FnOnce(&mut Self, &str)) {
        let pointer = format!("(word *)({})", self.address(at));
        match at.space {
            Space::Global(_) => operation(self, &pointer),
            Space::Shared(_) => self.braced("", |this| {
                this.line(&format!("word *at = {pointer};"));
                operation(this, "at");
            }),
        }
    }

    pub(super) fn atomic_load(
        &mut self,
        dst: Reg,
        from: Address,
        (order, scope): (MemoryOrder, Scope),
    ) {
        let (order, scope) = (order_text(order), atomic_scope(scope));
        self.at_word(from, |this, at| {
            this.set(dst, &format!("__hip_atomic_load({at}, {order}, {scope})"));
        });
    }

    /// `if (p) `, or nothing; `None` if the guard is the constant false.
    pub(super) fn guard(&mut self, mask: Option<Operand>) -> Option<String> {
        match mask {
            None | Some(Operand::Pred(true)) => Some(String::new()),
            Some(Operand::Pred(false)) => None,
            Some(mask) => Some(format!("if ({}) ", self.value(mask))),
        }
    }

    /// A load; a masked one in a branch, since masked-out memory must not be read.
    pub(super) fn load(
        &mut self,
        dst: &[Reg],
        from: Address,
        width: Width,
        mask: Option<Mask>,
        cache: Cache,
    ) {
        let (at, ty) = (self.address(from), unit(width));
        let read = match cache {
            Cache::Default | Cache::Constant => format!("*(const {ty} *)({at})"),
            Cache::Stream => format!("__builtin_nontemporal_load((const {ty} *)({at}))"),
        };
        let Some(guard) = self.guard(mask.map(|mask| mask.condition)) else {
            return self.fill(dst, mask);
        };
        match (guard.is_empty(), dst) {
            (true, [_]) => self.loaded(dst, &read, ty),
            (true, _) => self.braced("", |this| this.loaded(dst, &read, ty)),
            (false, _) => {
                self.line(&format!("{guard}{{"));
                self.indented(|this| this.loaded(dst, &read, ty));
                self.line("} else {");
                self.indented(|this| this.fill(dst, mask));
                self.line("}");
            }
        }
    }

    fn loaded(&mut self, dst: &[Reg], read: &str, ty: &str) {
        if let [dst] = dst {
            return self.assign(*dst, |this| this.typed(*dst, read));
        }
        self.line(&format!("const {ty} loaded = {read};"));
        for (at, reg) in dst.iter().enumerate() {
            self.assign(*reg, |this| this.typed(*reg, &format!("loaded[{at}]")));
        }
    }

    fn fill(&mut self, dst: &[Reg], mask: Option<Mask>) {
        let Some(mask) = mask else { return };
        for reg in dst {
            self.assign(*reg, |this| this.value(mask.fill));
        }
    }
}

/// The C++ type of one access.
const fn unit(width: Width) -> &'static str {
    match width {
        Width::B8 => "byte",
        Width::B16 => "half_word",
        Width::B32 => "word",
        Width::B64 => "word2",
        Width::B128 => "word4",
    }
}

const fn order_text(order: MemoryOrder) -> &'static str {
    match order {
        MemoryOrder::Relaxed => "__ATOMIC_RELAXED",
        MemoryOrder::Acquire => "__ATOMIC_ACQUIRE",
        MemoryOrder::Release => "__ATOMIC_RELEASE",
        MemoryOrder::AcquireRelease => "__ATOMIC_ACQ_REL",
    }
}

/// Without clusters, cluster scope is device scope.
const fn atomic_scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Block => "__HIP_MEMORY_SCOPE_WORKGROUP",
        Scope::Cluster | Scope::Device => "__HIP_MEMORY_SCOPE_AGENT",
    }
}
