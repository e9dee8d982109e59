//! Codes that warp groups multiply as bytes and other instructions otherwise, and the order that columns of x then
//! have.
//!
//! A warp-group instruction reads x from shared memory: position `16 h + 4 t + e` of each 32 bytes of a row belongs to
//! byte `e` of the registers that lane `(g, t)` has of the half `h` (`target::matrix`). A lane's bytes of the native
//! layout are of other columns. So the kernel that quantises x writes, at each position, the column that the lane has
//! there.

use quantloom_dsl::layout::{Component, Recode};
use quantloom_dsl::{Activation, Code};

use crate::plan::compute::PRODUCTS;
use crate::plan::templates::signed_nibbles;
use crate::plan::{ComputePlan, DequantPlan, OperandType, Plan};
use crate::target::Feature;

/// Columns of a step of a product of bytes.
pub(super) const STEP: u32 = 32;

/// The product whose lanes and columns warp groups have too.
const MMA_E4M3: &str = "mma_e4m3";
/// The native layouts whose bytes a fragment is made of, in the notation of docs/scheme-language.md.
const WHOLE: &str = "u32 [k:4 | n/8:2, k/4:8, n:8, k, n]";
const ROWS: &str = "u32 [k:4 | k/4:16, n:16, k, n]";
const NIBBLES: &str = "u32 [n/8:2, k/8:2, k:2 | k/2:4, k/16:4, n:8, k, n]";

/// How a lane's bytes of the native layout become a fragment of A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteFragments {
    /// The lane's own 16 bytes are a fragment, as they are stored.
    Whole,
    /// `ldmatrix` distributes words of four columns of a row, which are the registers of a fragment; columns of x are in
    /// their own order.
    Rows,
    /// `ldmatrix` distributes words of four columns of two rows, in 4 bits: a register has a row's codes of a word.
    Nibbles,
}

impl ByteFragments {
    /// The bytes of a plan's codes, if warp groups of its target multiply these; and the plan with their product.
    ///
    /// Codes are integers that are the operand's elements, or codes beside x in e4m3 that other instructions multiply
    /// in 16 bits: e4m3, or 4-bit integers that are made e4m3.
    pub(super) fn of(plan: &Plan) -> Option<(Self, Plan)> {
        let Activation::Quantised(quantiser) = &plan.activation else { return None };
        let DequantPlan { weight, recode, stages, .. } = &plan.dequant;
        let layout = plan.native.layout.display(Component::Code).to_string();
        let stored = weight.code.bits() == 8 && *recode == Recode::Keep && weight.offset == 0;
        if !plan.target.has(Feature::Wgmma) {
            return None;
        }
        let e4m3 = OperandType::E4m3.number();
        let (fragments, stages) = match plan.compute.product.activation {
            OperandType::I8 if stored && stages.is_empty() && layout == WHOLE => {
                return Some((Self::Whole, plan.clone()));
            }
            OperandType::F16 | OperandType::Bf16 if quantiser.code == e4m3 => match layout.as_str()
            {
                ROWS if stored && weight.code == Code::Number(e4m3) => (Self::Rows, Vec::new()),
                NIBBLES => (Self::Nibbles, vec![signed_nibbles(weight)?]),
                _ => return None,
            },
            _ => return None,
        };
        let product = *PRODUCTS.iter().find(|product| product.name == MMA_E4M3)?;
        let compute = ComputePlan { product, exponent: 0, ..plan.compute };
        let dequant = DequantPlan { stages, operand: OperandType::E4m3, ..plan.dequant.clone() };
        Some((fragments, Plan { compute, dequant, ..plan.clone() }))
    }

    /// The column of x at a position of a row of the operand.
    pub const fn column(self, position: u32) -> u32 {
        let (step, half) = (position / STEP, position / 16 % 2);
        let (lane, byte) = (position / 4 % 4, position % 4);
        let within = match self {
            Self::Whole => 8 * lane + 4 * half + byte,
            Self::Rows => return position,
            Self::Nibbles => 16 * half + 8 * (byte % 2) + 2 * lane + byte / 2,
        };
        step * STEP + within
    }
}
