//! Tensor memory (PTX ISA, "TensorCore 5th Generation Family Instructions"), of one block (`cta_group::1`).

use super::Writer;
use crate::ir::{Operand, SharedTile, Space, Swizzle, TmemAddress, TmemOp, TmemOperand, TmemScale};

/// A constant field of the descriptors that these instructions take.
const VERSION: u64 = 1 << 46;

impl Writer<'_> {
    pub(super) fn tmem(&mut self, op: &TmemOp) {
        let columns = self.kernel.tmem_columns;
        match op {
            TmemOp::Allocate { to } => {
                let to = self.address(*to);
                self.line(&format!(
                    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [{to}], {columns};"
                ));
                // The kernel allocates once: other blocks of the multiprocessor may.
                self.line("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
            }
            TmemOp::Free { base } => {
                let base = self.value(*base);
                self.line(&format!(
                    "tcgen05.dealloc.cta_group::1.sync.aligned.b32 {base}, {columns};"
                ));
            }
            TmemOp::Load { dst, from } => {
                let (count, regs, from) = (dst.len(), self.regs(dst), self.tmem_address(*from));
                self.line(&format!(
                    "tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {{{regs}}}, [{from}];"
                ));
            }
            TmemOp::Store { to, values } => {
                let (count, to) = (values.len(), self.tmem_address(*to));
                let values: Vec<String> =
                    values.iter().map(|value| self.in_register(*value)).collect();
                let values = values.join(", ");
                self.line(&format!(
                    "tcgen05.st.sync.aligned.32x32b.x{count}.b32 [{to}], {{{values}}};"
                ));
            }
            TmemOp::WaitLoads => self.line("tcgen05.wait::ld.sync.aligned;"),
            TmemOp::WaitStores => self.line("tcgen05.wait::st.sync.aligned;"),
            TmemOp::Copy { to, from } => {
                // The verifier has refused other sources.
                let Space::Shared(block) = from.space else { return };
                // 32 rows of 16 bytes: four core matrices, one after another.
                let tile = SharedTile {
                    block,
                    index: from.index,
                    offset: from.offset,
                    leading: 128,
                    stride: 128,
                    swizzle: Swizzle::None,
                };
                let (n, to) = (self.label(), self.tmem_address(*to));
                self.line(&format!("{{ .reg .b64 a{n};"));
                self.descriptor_of_version(&tile, VERSION, &format!("a{n}"));
                self.line(&format!("tcgen05.cp.cta_group::1.32x128b.warpx4 [{to}], a{n}; }}"));
            }
            TmemOp::Product { op, n, d, a, b, adds, scales } => {
                let label = self.label();
                let d = self.tmem_address(*d);
                let bytes = scales.map_or([0, 0], |of| of.map(|scale: TmemScale| scale.byte));
                let descriptor = op.tmem_descriptor(*n, bytes);
                self.line(&format!("{{ .reg .pred keep; .reg .b64 a{label}, b{label};"));
                match adds {
                    Operand::Reg(reg) => {
                        let adds = self.reg(*reg);
                        self.line(&format!("mov.pred keep, {adds};"));
                    }
                    constant => {
                        let adds = self.value(*constant);
                        self.line(&format!("setp.ne.b32 keep, {adds}, 0;"));
                    }
                }
                let a = match a {
                    TmemOperand::Tmem(at) => format!("[{}]", self.tmem_address(*at)),
                    TmemOperand::Shared(tile) => {
                        self.descriptor_of_version(tile, VERSION, &format!("a{label}"));
                        format!("a{label}")
                    }
                };
                self.descriptor_of_version(b, VERSION, &format!("b{label}"));
                let scales: String = scales
                    .iter()
                    .flatten()
                    .map(|scale| format!(", [{}]", self.tmem_address(scale.at)))
                    .collect();
                let (mnemonic, descriptor) = (op.mnemonic, self.in_register(descriptor.into()));
                self.line(&format!(
                    "{mnemonic} [{d}], {a}, b{label}, {descriptor}{scales}, keep; }}"
                ));
            }
            TmemOp::Commit { barrier } => {
                let at = self.mbarrier(*barrier);
                self.line(&format!(
                    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{at}];"
                ));
            }
            TmemOp::FenceBefore => self.line("tcgen05.fence::before_thread_sync;"),
            TmemOp::FenceAfter => self.line("tcgen05.fence::after_thread_sync;"),
        }
    }

    /// A register that holds an address, plus a number of columns.
    fn tmem_address(&mut self, TmemAddress { base, column }: TmemAddress) -> String {
        let base = self.in_register(base);
        if column == 0 { base } else { format!("{base}+{column}") }
    }
}
