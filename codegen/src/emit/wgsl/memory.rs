//! Loads, stores, atomic operations.

use super::Writer;
use super::address::{ArrayKind, WordRef};
use crate::ir::{AtomicOp, Mask, Op, Operand, Reg, Type, Width};

impl Writer<'_> {
    pub(super) fn memory(&mut self, op: &Op) {
        match op {
            Op::Load { dst, from, width, mask, .. } => {
                let place = self.word_ref(*from, *width);
                match mask {
                    None | Some(Mask { condition: Operand::Pred(true), .. }) => {
                        self.load(dst, &place, *width);
                    }
                    Some(Mask { condition: Operand::Pred(false), fill }) => self.fill(dst, *fill),
                    Some(Mask { condition, fill }) => {
                        let condition = self.value(*condition);
                        self.braced(&format!("if ({condition}) "), |this| {
                            this.load(dst, &place, *width);
                        });
                        self.braced("else ", |this| this.fill(dst, *fill));
                    }
                }
            }
            Op::Store { to, values, width, mask } => {
                let place = self.word_ref(*to, *width);
                match mask {
                    None | Some(Operand::Pred(true)) => self.store(&place, values, *width),
                    Some(Operand::Pred(false)) => {}
                    Some(mask) => {
                        let mask = self.value(*mask);
                        self.braced(&format!("if ({mask}) "), |this| {
                            this.store(&place, values, *width);
                        });
                    }
                }
            }
            Op::Atomic { dst, op, at, value, .. } => {
                let (place, value) = (self.word_ref(*at, Width::B32), self.value(*value));
                let name = match op {
                    AtomicOp::Add => "atomicAdd",
                    AtomicOp::Exchange => "atomicExchange",
                    AtomicOp::Max => "atomicMax",
                };
                let old = format!("{name}(&{}, {value})", place.element(0));
                match dst {
                    Some(dst) => {
                        let dst = self.reg(*dst);
                        self.line(&format!("{dst} = {old};"));
                    }
                    None => self.line(&format!("{old};")),
                }
            }
            Op::AtomicLoad { dst, from, .. } => {
                let (dst, place) = (self.reg(*dst), self.word_ref(*from, Width::B32));
                self.line(&format!("{dst} = atomicLoad(&{});", place.element(0)));
            }
            _ => {}
        }
    }

    fn fill(&mut self, dst: &[Reg], fill: Operand) {
        let fill = self.value(fill);
        for reg in dst {
            let line = format!("{} = {fill};", self.reg(*reg));
            self.line(&line);
        }
    }

    /// Assigns a word to a register of any type.
    fn word_to_register(&self, reg: Reg, word: &str) -> String {
        match self.type_of(reg) {
            Type::F32 => format!("{} = bitcast<f32>({word});", self.reg(reg)),
            _ => format!("{} = {word};", self.reg(reg)),
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
                let line = format!("{} = {word} & {ones};", self.reg(*dst));
                self.line(&line);
            }
            ([dst], ..) => {
                let line = self.word_to_register(*dst, &read(place.element(0)));
                self.line(&line);
            }
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
                        let line = this.word_to_register(*reg, &word);
                        this.line(&line);
                    }
                });
            }
        }
    }

    /// A value's bits, as stored in memory.
    fn bits(&mut self, value: Operand) -> String {
        let float = match value {
            Operand::Reg(reg) => self.type_of(reg) == Type::F32,
            Operand::F32(bits) => return super::word(bits.to_bits()),
            _ => false,
        };
        let value = self.value(value);
        if float { format!("bitcast<u32>({value})") } else { value }
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
