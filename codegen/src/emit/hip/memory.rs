//! Loads, stores, atomics.

use super::Writer;
use crate::ir::{AtomicOp, Cache, Mask, MemoryOrder, Op, Operand, Reg, Scope, Width};

impl Writer<'_> {
    pub(super) fn memory(&mut self, op: &Op) {
        match op {
            Op::Load { dst, from, width, mask, cache } => {
                let (at, ty) = (self.address(*from), unit(*width));
                let read = match cache {
                    Cache::Default | Cache::Constant => format!("*(const {ty} *)({at})"),
                    Cache::Stream => format!("__builtin_nontemporal_load((const {ty} *)({at}))"),
                };
                self.masked_load(dst, &read, ty, *mask);
            }
            Op::Store { to, values, width, mask } => {
                let (at, ty) = (self.address(*to), unit(*width));
                let bits: Vec<String> = values.iter().map(|value| self.bits(*value)).collect();
                let value = match width {
                    Width::B8 | Width::B16 => format!("({ty})({})", bits.join(", ")),
                    Width::B32 => bits.join(", "),
                    Width::B64 | Width::B128 => format!("({ty}){{{}}}", bits.join(", ")),
                };
                if let Some(guard) = self.guard(*mask) {
                    self.line(&format!("{guard}*({ty} *)({at}) = {value};"));
                }
            }
            Op::Prefetch { from, mask } => {
                let at = self.address(*from);
                if let Some(guard) = self.guard(*mask) {
                    self.line(&format!("{guard}__builtin_prefetch({at});"));
                }
            }
            Op::Atomic { dst, op, at, value, order, scope: who } => {
                let (at, value) = (self.address(*at), self.value(*value));
                let change = match op {
                    AtomicOp::Add => "fetch_add",
                    AtomicOp::Exchange => "exchange",
                    AtomicOp::Max => "fetch_max",
                };
                let (order, who) = (order_text(*order), atomic_scope(*who));
                let call =
                    format!("__hip_atomic_{change}((word *)({at}), {value}, {order}, {who})");
                match dst {
                    Some(dst) => self.set(*dst, &call),
                    None => self.line(&format!("(void){call};")),
                }
            }
            Op::AtomicLoad { dst, from, order, scope: who } => {
                let at = self.address(*from);
                let (order, who) = (order_text(*order), atomic_scope(*who));
                self.set(*dst, &format!("__hip_atomic_load((word *)({at}), {order}, {who})"));
            }
            _ => {}
        }
    }

    /// `if (p) `, or nothing; `None` if the guard is the constant false.
    fn guard(&mut self, mask: Option<Operand>) -> Option<String> {
        match mask {
            None | Some(Operand::Pred(true)) => Some(String::new()),
            Some(Operand::Pred(false)) => None,
            Some(mask) => Some(format!("if ({}) ", self.value(mask))),
        }
    }

    /// A load in a branch, since masked-out memory must not be read.
    fn masked_load(&mut self, dst: &[Reg], read: &str, ty: &str, mask: Option<Mask>) {
        let Some(guard) = self.guard(mask.map(|mask| mask.condition)) else {
            return self.fill(dst, mask);
        };
        if guard.is_empty() {
            return self.load(dst, read, ty, "");
        }
        self.load(dst, read, ty, &guard);
        self.depth += 1;
        self.fill(dst, mask);
        self.depth -= 1;
        self.line("}");
    }

    /// A load, in a block of its own if it writes several registers. With a guard, the block's
    /// `else` stays open.
    fn load(&mut self, dst: &[Reg], read: &str, ty: &str, guard: &str) {
        let several = dst.len() > 1;
        if several || !guard.is_empty() {
            self.line(&format!("{guard}{{"));
            self.depth += 1;
        }
        match dst {
            [dst] => {
                let value = self.typed(*dst, read);
                self.set(*dst, &value);
            }
            _ => {
                self.line(&format!("const {ty} loaded = {read};"));
                for (at, reg) in dst.iter().enumerate() {
                    let value = self.typed(*reg, &format!("loaded[{at}]"));
                    self.set(*reg, &value);
                }
            }
        }
        if several || !guard.is_empty() {
            self.depth -= 1;
            self.line(if guard.is_empty() { "}" } else { "} else {" });
        }
    }

    fn fill(&mut self, dst: &[Reg], mask: Option<Mask>) {
        let Some(mask) = mask else { return };
        for reg in dst {
            let fill = self.value(mask.fill);
            self.set(*reg, &fill);
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
