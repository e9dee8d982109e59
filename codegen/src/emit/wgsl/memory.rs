//! Loads, stores, atomic operations.

use super::Writer;
use super::address::{ArrayKind, WordRef};
use crate::emit::walk::unsigned;
use crate::ir::{Address, AtomicOp, Mask, Operand, Reg, Type, Width};

impl Writer<'_> {
    pub(super) fn masked_load(
        &mut self,
        dst: &[Reg],
        from: Address,
        width: Width,
        mask: Option<Mask>,
    ) {
        let place = self.word_ref(from, width);
        match mask {
            None | Some(Mask { condition: Operand::Pred(true), .. }) => {
                self.load(dst, &place, width);
            }
            Some(Mask { condition: Operand::Pred(false), fill }) => self.fill(dst, fill),
            Some(Mask { condition, fill }) => {
                let condition = self.value(condition);
                self.braced(&format!("if ({condition}) "), |this| this.load(dst, &place, width));
                self.braced("else ", |this| this.fill(dst, fill));
            }
        }
    }

    pub(super) fn masked_store(
        &mut self,
        to: Address,
        values: &[Operand],
        width: Width,
        mask: Option<Operand>,
    ) {
        let place = self.word_ref(to, width);
        match mask {
            None | Some(Operand::Pred(true)) => self.store(&place, values, width),
            Some(Operand::Pred(false)) => {}
            Some(mask) => {
                let mask = self.value(mask);
                self.braced(&format!("if ({mask}) "), |this| this.store(&place, values, width));
            }
        }
    }

    pub(super) fn atomic(&mut self, dst: Option<Reg>, op: AtomicOp, at: Address, value: Operand) {
        let (place, value) = (self.word_ref(at, Width::B32), self.value(value));
        let name = match op {
            AtomicOp::Add => "atomicAdd",
            AtomicOp::Exchange => "atomicExchange",
            AtomicOp::Max => "atomicMax",
        };
        let old = format!("{name}(&{}, {value})", place.element(0));
        match dst {
            Some(dst) => self.set(dst, &old),
            None => self.line(&format!("{old};")),
        }
    }

    pub(super) fn atomic_load(&mut self, dst: Reg, from: Address) {
        let place = self.word_ref(from, Width::B32);
        self.set(dst, &format!("atomicLoad(&{})", place.element(0)));
    }

    fn fill(&mut self, dst: &[Reg], fill: Operand) {
        let fill = self.value(fill);
        for reg in dst {
            self.set(*reg, &fill);
        }
    }

    /// Assigns a word to a register of any type.
    fn set_word(&mut self, reg: Reg, word: &str) {
        match self.type_of(reg.into()) {
            Type::F32 => self.set(reg, &format!("bitcast<f32>({word})")),
            Type::U32 | Type::Pred => self.set(reg, word),
        }
    }

    fn load(&mut self, dst: &[Reg], place: &WordRef, width: Width) {
        let read = |word: String| match place.kind {
            ArrayKind::Atomic => format!("atomicLoad(&{word})"),
            _ => word,
        };
        match (dst, width, place.kind) {
            ([dst], Width::B8 | Width::B16, _) => {
                let ones = if width == Width::B8 { "0xffu" } else { "0xffffu" };
                let word = read(place.element(0));
                let word = match &place.shift {
                    Some(shift) => format!("({word} >> {shift})"),
                    None => word,
                };
                self.set(*dst, &format!("{word} & {ones}"));
            }
            ([dst], ..) => self.set_word(*dst, &read(place.element(0))),
            (dst, _, kind) => {
                // The load may overwrite the register of its index.
                self.braced("", |this| {
                    let words: Vec<String> = if kind == ArrayKind::Fours {
                        this.line(&format!("let four = {};", place.four()));
                        ["four.x", "four.y", "four.z", "four.w"].map(str::to_owned).to_vec()
                    } else {
                        this.line(&format!("let at = {};", place.index));
                        let word = |plus| read(format!("{}[at + {plus}u]", place.array));
                        (0..dst.len()).map(word).collect()
                    };
                    for (reg, word) in dst.iter().zip(words) {
                        this.set_word(*reg, &word);
                    }
                });
            }
        }
    }

    /// A value's bits, as stored in memory.
    fn bits(&mut self, value: Operand) -> String {
        match value {
            Operand::F32(bits) => unsigned(bits.to_bits()),
            _ if self.type_of(value) == Type::F32 => {
                format!("bitcast<u32>({})", self.value(value))
            }
            _ => self.value(value),
        }
    }

    fn store(&mut self, place: &WordRef, values: &[Operand], width: Width) {
        let values: Vec<String> = values.iter().map(|value| self.bits(*value)).collect();
        if let ([value], Width::B8 | Width::B16) = (&values[..], width) {
            let ones = if width == Width::B8 { "0xffu" } else { "0xffffu" };
            let (word, zero) = (place.element(0), "0u".to_owned());
            let shift = place.shift.as_ref().unwrap_or(&zero);
            self.line(&format!("atomicAnd(&{word}, ~({ones} << {shift}));"));
            return self.line(&format!("atomicOr(&{word}, ({value} & {ones}) << {shift});"));
        }
        if place.kind == ArrayKind::Fours {
            let line = format!("{} = vec4<u32>({});", place.four(), values.join(", "));
            return self.line(&line);
        }
        for (plus, value) in (0..).zip(values) {
            let word = place.element(plus);
            self.line(&match place.kind {
                ArrayKind::Atomic => format!("atomicStore(&{word}, {value});"),
                _ => format!("{word} = {value};"),
            });
        }
    }
}
