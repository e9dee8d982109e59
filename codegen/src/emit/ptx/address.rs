//! Addresses: an index becomes a byte address in a register, once for all accesses that share it;
//! the constant part is an immediate of the instruction.

use super::Writer;
use crate::ir::{Address, BarrierRef, Body, Operand, Reg, Space, Statement};

/// The source of an address register: the buffer, or the size of a shared word, and the index. Of a matrix
/// descriptor the size of a word, the start of the block, the constant bits, and the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressKey {
    Global(u32, Reg),
    Shared(u32, Reg),
    Descriptor(u32, u32, u64, Reg),
}

impl AddressKey {
    const fn index(self) -> Reg {
        match self {
            Self::Global(_, reg) | Self::Shared(_, reg) | Self::Descriptor(.., reg) => reg,
        }
    }
}

impl Writer<'_> {
    /// `base+constant`, without brackets.
    pub(super) fn address(&mut self, address: Address) -> String {
        match address.space {
            Space::Global(id) => {
                let buffer = &self.kernel.buffers[id.0 as usize];
                let (name, bytes) = (format!("%{}", buffer.name), buffer.word.bytes());
                let constant = u64::from(address.offset) * u64::from(bytes);
                match address.index {
                    Operand::Reg(reg) => {
                        let at = self.at(AddressKey::Global(id.0, reg), |this, at| {
                            let index = this.reg(reg);
                            this.line(&format!("mad.wide.u32 %at{at}, {index}, {bytes}, {name};"));
                        });
                        self.plus_constant(&format!("%at{at}"), constant)
                    }
                    index => {
                        let index = constant_index(index);
                        self.plus_constant(&name, constant + index * u64::from(bytes))
                    }
                }
            }
            Space::Shared(id) => {
                let block = &self.kernel.shared[id.0 as usize];
                let bytes = block.word.bytes();
                let start = self.kernel.shared_map().blocks[id.0 as usize];
                self.shared_address(address.index, bytes, start + address.offset * bytes)
            }
        }
    }

    /// An mbarrier's address.
    pub(super) fn mbarrier(&mut self, barrier: BarrierRef) -> String {
        let start = self.kernel.shared_map().barriers[barrier.array.0 as usize];
        self.shared_address(barrier.index, 8, start)
    }

    /// A shared address: `bytes` times the index, and a constant.
    pub(super) fn shared_address(&mut self, index: Operand, bytes: u32, constant: u32) -> String {
        match index {
            Operand::Reg(reg) => {
                let at = self.at(AddressKey::Shared(bytes, reg), |this, at| {
                    let index = this.reg(reg);
                    this.line(&format!("mad.lo.u32 %near{at}, {index}, {bytes}, %shared;"));
                });
                format!("%near{at}+{constant}")
            }
            index => format!("%shared+{}", constant + constant_index(index) as u32 * bytes),
        }
    }

    /// `base+constant`; a constant that does not fit an instruction's signed 32-bit immediate is
    /// added to a new register.
    fn plus_constant(&mut self, base: &str, constant: u64) -> String {
        if constant < 1 << 31 {
            return format!("{base}+{constant}");
        }
        self.state.addresses += 1;
        let at = self.state.addresses;
        self.line(&format!("add.u64 %at{at}, {base}, {constant};"));
        format!("%at{at}")
    }

    pub(super) fn at(&mut self, key: AddressKey, make: impl FnOnce(&mut Self, u32)) -> u32 {
        if let Some(at) = self.state.known.get(&key) {
            return *at;
        }
        self.state.addresses += 1;
        let at = self.state.addresses;
        make(self, at);
        self.state.known.insert(key, at);
        at
    }

    /// Invalidates the addresses computed from a register that is about to be written.
    pub(super) fn invalidate(&mut self, reg: Reg) {
        self.state.known.retain(|key, _| key.index() != reg);
    }

    /// Invalidates the addresses computed from any register that the body writes.
    pub(super) fn invalidate_all(&mut self, body: &Body) {
        let mut counters = Vec::new();
        counters_of(body, &mut counters);
        crate::ir::each_op(body, &mut |op| counters.extend(op.writes()));
        for reg in counters {
            self.invalidate(reg);
        }
    }
}

fn constant_index(index: Operand) -> u64 {
    match index {
        Operand::U32(index) => index.into(),
        _ => 0,
    }
}

fn counters_of(body: &Body, counters: &mut Vec<Reg>) {
    for statement in body {
        if let Statement::For { counter, .. } = statement {
            counters.push(*counter);
        }
        statement.bodies().for_each(|body| counters_of(body, counters));
    }
}
