//! Matrix operations.

use super::Writer;
use super::address::AddressKey;
use crate::ir::{
    Accumulator, Element, MatrixOp, MatrixOperand, MatrixScale, MatrixScope, Operand, Reg,
    SharedTile, Swizzle,
};

impl Writer<'_> {
    pub(super) fn matrix(
        &mut self,
        op: &MatrixOp,
        d: &[Reg],
        a: &MatrixOperand,
        b: &MatrixOperand,
        (c, scales): (&Accumulator, Option<[MatrixScale; 2]>),
    ) {
        match op.scope {
            MatrixScope::Warp => self.warp_matrix(op, d, (a, b), (c, scales)),
            MatrixScope::WarpGroup => self.warp_group_matrix(op, d, a, b, c),
            // The verifier has refused it.
            MatrixScope::TensorMemory => {}
        }
    }

    /// `mma`. Scales are a register each, of which the instruction takes the bytes from a number on, of the lanes that
    /// thread-id 0 selects.
    fn warp_matrix(
        &mut self,
        op: &MatrixOp,
        d: &[Reg],
        (a, b): (&MatrixOperand, &MatrixOperand),
        (c, scales): (&Accumulator, Option<[MatrixScale; 2]>),
    ) {
        let registers = |this: &Self, operand: &MatrixOperand| match operand {
            MatrixOperand::Registers(regs) => this.regs(regs),
            MatrixOperand::Shared(_) => String::new(),
        };
        let (a, b) = (registers(self, a), registers(self, b));
        let c = match c {
            Accumulator::Registers(regs) => self.regs(regs),
            Accumulator::Zero => {
                let zero = match op.d {
                    Element::F32 => self.in_register(0.0f32.into()),
                    _ => self.in_register(0u32.into()),
                };
                vec![zero; d.len()].join(", ")
            }
        };
        let scales = scales
            .iter()
            .flatten()
            .map(|MatrixScale { from, byte }| format!(", {{{}}}, {{{byte}, 0}}", self.reg(*from)));
        let scales: String = scales.collect();
        let (mnemonic, d) = (op.mnemonic, self.regs(d));
        self.line(&format!("{mnemonic} {{{d}}}, {{{a}}}, {{{b}}}, {{{c}}}{scales};"));
    }

    /// `wgmma`: an operand in shared memory is a 64-bit descriptor (PTX ISA, "Matrix descriptor
    /// format"); a predicate says whether D is added. 16-bit floats have immediates for the signs
    /// and the transposition of A and B, 8-bit floats for the signs only, integers none.
    fn warp_group_matrix(
        &mut self,
        op: &MatrixOp,
        d: &[Reg],
        a: &MatrixOperand,
        b: &MatrixOperand,
        c: &Accumulator,
    ) {
        let n = self.label();
        self.line(&format!("{{ .reg .pred keep; .reg .b64 a{n}, b{n};"));
        let keep = u32::from(matches!(c, Accumulator::Registers(_)));
        self.line(&format!("setp.ne.b32 keep, {keep}, 0;"));
        let mut from_registers = false;
        let mut operand = |this: &mut Self, operand: &MatrixOperand, name: String| match operand {
            MatrixOperand::Registers(regs) => {
                from_registers = true;
                format!("{{{}}}", this.regs(regs))
            }
            MatrixOperand::Shared(tile) => {
                this.descriptor(tile, &name);
                name
            }
        };
        let first = operand(self, a, format!("a{n}"));
        let second = operand(self, b, format!("b{n}"));
        let tail = match (op.a.bits(), op.d) {
            (_, Element::S32) => "",
            (16, _) if from_registers => ", 1, 1, 0",
            (16, _) => ", 1, 1, 0, 0",
            _ => ", 1, 1",
        };
        let (mnemonic, d) = (op.mnemonic, self.regs(d));
        self.line(&format!("{mnemonic} {{{d}}}, {first}, {second}, keep{tail}; }}"));
    }

    /// The matrix descriptor of a tile, in a 64-bit register (PTX ISA, "Matrix descriptor format"). That of
    /// the tile at an index is computed once; a further offset is a sum, since an address in units of 16
    /// bytes does not leave its 14 bits.
    fn descriptor(&mut self, tile: &SharedTile, name: &str) {
        self.descriptor_of_version(tile, 0, name);
    }

    /// The same with the bits that say for which instructions a descriptor is.
    pub(super) fn descriptor_of_version(&mut self, tile: &SharedTile, version: u64, name: &str) {
        let block = &self.kernel.shared[tile.block.0 as usize];
        let bytes = block.word.bytes();
        let start = self.kernel.shared_map().blocks[tile.block.0 as usize];
        let (mode, leading) = match tile.swizzle {
            Swizzle::None => (0u64, tile.leading >> 4),
            Swizzle::B128 => (1, 1),
            Swizzle::B64 => (2, 1),
            Swizzle::B32 => (3, 1),
        };
        let layout = mode << 62 | u64::from(tile.stride >> 4) << 32 | u64::from(leading) << 16;
        let constant = layout | version;
        let first = match tile.index {
            Operand::Reg(index) => {
                let key = AddressKey::Descriptor(bytes, start, constant, index);
                self.at(key, |this, at| this.first_descriptor(tile, (bytes, start), constant, at))
            }
            _ => {
                self.state.addresses += 1;
                let at = self.state.addresses;
                self.first_descriptor(tile, (bytes, start), constant, at);
                at
            }
        };
        let further = (tile.offset * bytes) >> 4;
        self.line(&format!("add.s64 {name}, %at{first}, {further};"));
    }

    /// The descriptor of the tile at an index, without its offset, in address register `at`.
    fn first_descriptor(
        &mut self,
        tile: &SharedTile,
        (bytes, start): (u32, u32),
        constant: u64,
        at: u32,
    ) {
        let place = self.shared_address(tile.index, bytes, start);
        let (base, plus) = place.split_once('+').unwrap_or((&place, "0"));
        self.line(&format!("{{ .reg .b32 place; add.u32 place, {base}, {plus};"));
        self.line("and.b32 place, place, 0x3ffff;");
        self.line("shr.u32 place, place, 4;");
        self.line(&format!("cvt.u64.u32 %at{at}, place;"));
        self.line(&format!("or.b64 %at{at}, %at{at}, {constant:#018x}; }}"));
    }
}
