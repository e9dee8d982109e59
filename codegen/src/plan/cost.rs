//! The cost of steps, one row per class of targets; the planner chooses the cheapest sequence.
//!
//! A cost is in issued instructions; `None` if the class has no such instruction, so that it cannot use a
//! sequence with that step. Sources: PTX ISA (targets of `lop3`, `prmt`, `fma.bf16x2`, `cvt.f16x2.e4m3x2` and `e2m1x2`);
//! AMD's instruction set documents for CDNA3, CDNA4, RDNA3 and RDNA4. On these, arithmetic on two bf16 goes
//! through f32: two halves are widened, two operations, one permutation, since results are bf16 numbers. A
//! permutation selects with a byte per selector: nibbles are spread first.

use super::sequence::Sequence;
use super::sink::{ShiftOp, StepSink, WordOp};
use super::step::Arg;
use crate::target::{Class, ConvertedCode, Half};

/// Costs of one class.
#[derive(Clone, Copy, Debug)]
pub struct CostRow {
    /// The class.
    pub class: Class,
    /// And, or, exclusive or, addition, shifts of 32-bit words.
    pub word: u32,
    /// A rotation of a 32-bit word.
    pub rotl: Option<u32>,
    /// A function of three bits.
    pub lop3: Option<u32>,
    /// A byte permutation by a constant.
    pub prmt: Option<u32>,
    /// A byte permutation by a word of selectors.
    pub prmt_by: Option<u32>,
    /// Arithmetic on two bf16.
    pub bf16: Option<u32>,
    /// Arithmetic on two f16.
    pub f16: Option<u32>,
    /// Whether both are one operation that takes subnormal numbers as they are: PTX ISA, `fma` of half
    /// precision, "subnormal numbers are supported"; in bf16 there is no `.ftz`.
    pub subnormals: bool,
    /// Conversion of two e4m3 to f16.
    pub convert_f16: Option<u32>,
    /// Conversion of two floats of 4 or 6 bits to f16.
    pub convert_small_f16: Option<u32>,
    /// Arithmetic, comparison and conversion in f32.
    pub f32: u32,
    /// A table of 16 f32.
    pub table_16: Option<u32>,
    /// A table of 256 f32.
    pub table_256: Option<u32>,
    /// A table of 16-bit numbers in shared memory.
    pub table_half: Option<u32>,
}

/// A load from a lookup table in shared memory, with data-dependent bank conflicts: the banks serve 32
/// lanes per cycle where arithmetic serves 128, and of 32 random entries of a small table three to four
/// are in the same bank. So a table costs more than any computed sequence, and serves only codes without
/// one.
const LOOKUP: u32 = 16;

const fn gpu(class: Class, bf16: u32, convert_f16: Option<u32>) -> CostRow {
    CostRow {
        class,
        word: 1,
        rotl: Some(1),
        lop3: Some(1),
        prmt: Some(1),
        prmt_by: Some(1),
        bf16: Some(bf16),
        f16: Some(1),
        subnormals: matches!(
            class,
            Class::Ampere | Class::Ada | Class::Hopper | Class::Blackwell | Class::TensorMemory
        ),
        convert_f16,
        convert_small_f16: None,
        f32: 1,
        table_16: None,
        table_256: None,
        table_half: Some(LOOKUP),
    }
}

/// A class of words and f32 alone, and of tables of f32.
const fn plain(class: Class, table_16: u32, table_256: u32) -> CostRow {
    CostRow {
        class,
        word: 1,
        rotl: None,
        lop3: None,
        prmt: None,
        prmt_by: None,
        bf16: None,
        f16: None,
        subnormals: false,
        convert_f16: None,
        convert_small_f16: None,
        f32: 1,
        table_16: Some(table_16),
        table_256: Some(table_256),
        table_half: None,
    }
}

/// Every class.
pub const COSTS: &[CostRow] = &[
    // Two permutations and a blend if a register holds eight; a gather reads lane by lane.
    plain(Class::Lanes, 3, 16),
    gpu(Class::Ampere, 1, None),
    gpu(Class::Ada, 1, Some(1)),
    gpu(Class::Hopper, 1, Some(1)),
    CostRow { convert_small_f16: Some(1), ..gpu(Class::Blackwell, 1, Some(1)) },
    CostRow { convert_small_f16: Some(1), ..gpu(Class::TensorMemory, 1, Some(1)) },
    CostRow { lop3: Some(2), prmt_by: Some(11), ..gpu(Class::Cdna3, 5, None) },
    CostRow { prmt_by: Some(11), ..gpu(Class::Cdna4, 5, None) },
    CostRow { lop3: Some(2), prmt_by: Some(11), ..gpu(Class::Rdna3, 5, None) },
    CostRow { lop3: Some(2), prmt_by: Some(11), ..gpu(Class::Rdna4, 5, None) },
    plain(Class::Shader, LOOKUP, LOOKUP),
];

/// The costs of a class.
pub fn costs(class: Class) -> &'static CostRow {
    COSTS.iter().find(|row| row.class == class).unwrap_or(&COSTS[0])
}

impl CostRow {
    /// Instructions per 1,000 codes; `None` if the class lacks one.
    pub fn of(&self, sequence: &Sequence) -> Option<u32> {
        let mut costs = Costs { row: self, total: 0 };
        for step in &sequence.steps {
            step.lower(&mut costs)?;
        }
        Some(costs.total * 1000 / sequence.unit() as u32)
    }

    /// Arithmetic on two 16-bit floats.
    pub(super) const fn half(&self, half: Half) -> Option<u32> {
        match half {
            Half::Bf16 => self.bf16,
            Half::F16 => self.f16,
        }
    }
}

/// Whether an argument is a constant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    Constant,
    Register,
}

/// The cost of steps, as a sink.
struct Costs<'r> {
    row: &'r CostRow,
    total: u32,
}

impl Costs<'_> {
    fn add(&mut self, cost: Option<u32>) -> Option<Read> {
        self.total += cost?;
        Some(Read::Register)
    }
}

impl StepSink for Costs<'_> {
    type Value = Read;

    fn arg(&mut self, arg: Arg) -> Read {
        match arg {
            Arg::Word(_) => Read::Constant,
            Arg::Register(_) => Read::Register,
        }
    }

    fn word(&mut self, _: WordOp, _: Read, _: Read) -> Option<Read> {
        self.add(Some(self.row.word))
    }

    fn shift(&mut self, op: ShiftOp, _: Read, _: u8) -> Option<Read> {
        self.add(match op {
            ShiftOp::Left | ShiftOp::Right | ShiftOp::RightSigned => Some(self.row.word),
            ShiftOp::RotateLeft => self.row.rotl,
        })
    }

    fn lop3(&mut self, _: [Read; 3], _: u8) -> Option<Read> {
        self.add(self.row.lop3)
    }

    fn prmt(&mut self, [_, _, select]: [Read; 3]) -> Option<Read> {
        self.add(if select == Read::Constant { self.row.prmt } else { self.row.prmt_by })
    }

    fn fma16(&mut self, half: Half, _: [Read; 3]) -> Option<Read> {
        self.add(self.row.half(half))
    }

    fn sub16(&mut self, half: Half, _: [Read; 2]) -> Option<Read> {
        self.add(self.row.half(half))
    }

    fn convert_f16(&mut self, _: Read, of: ConvertedCode, _: u8) -> Option<Read> {
        self.add(match of {
            ConvertedCode::E4m3 => self.row.convert_f16,
            ConvertedCode::E2m1 | ConvertedCode::E2m3 | ConvertedCode::E3m2 => {
                self.row.convert_small_f16
            }
        })
    }

    fn lookup_f32(&mut self, table: &[u32], _: Read) -> Option<Read> {
        self.add(if table.len() <= 16 { self.row.table_16 } else { self.row.table_256 })
    }

    fn lookup_half(&mut self, _: &[u32], _: Read) -> Option<Read> {
        self.add(self.row.table_half)
    }

    fn lookup_bytes(&mut self, _: &[u8; 16], _: Read) -> Option<Read> {
        // A permutation of bytes, on CPUs.
        self.add((self.row.class == Class::Lanes).then_some(self.row.word))
    }

    fn int_to_f32(&mut self, _: Read) -> Option<Read> {
        self.add(Some(self.row.f32))
    }

    fn add_f32(&mut self, _: Read, _: Read) -> Option<Read> {
        self.add(Some(self.row.f32))
    }

    fn equal(&mut self, _: Read, _: Read) -> Option<Read> {
        self.add(Some(self.row.f32))
    }
}
