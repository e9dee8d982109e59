//! Transforms on the device: a component of a weight from a checkpoint's packing to the buffer that
//! products read, and back.
//!
//! In: a [`Problem`], the scheme with its stores, a [`Part`] and a [`Direction`]. Out: a kernel, not
//! yet verified. No packing is known by name: both sides are layouts, bound to the shape, and the
//! index arithmetic follows from their digits (`affine`, `gather`). What an element becomes is its
//! `form`. A thread writes 16 bytes of the destination, fewer where its rows are odd; what no
//! element lies in becomes 0.

mod affine;
mod form;
mod gather;

use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, NUMBER_F32};
use quantloom_dsl::layout::{Bound, Component, Field, Fill, Grain, Grains, Layout, Recode, Shape};
use quantloom_dsl::{Scheme, Store, parse_layout};

use self::form::{Form, Integer};
use self::gather::{Gather, Side, THREADS, word};
use super::grouped::{Grouped, What};
use super::io::PER_ROW_LAYOUT;
use super::problem::{Problem, Unscheduled};
use crate::ir::{Access, Builder, Extent, Half, Kernel, Launch};

/// What is moved: the contents of one constant buffer of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The codes.
    Codes,
    /// The scales.
    Scales,
    /// The zero points: small integers in a checkpoint, numbers of x's type natively.
    Zeros,
    /// The bias, f32 natively.
    Bias,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Codes, Self::Scales, Self::Zeros, Self::Bias];

    /// The component of the scheme.
    pub const fn component(self) -> Component {
        match self {
            Self::Codes => Component::Code,
            Self::Scales => Component::Scale(0),
            Self::Zeros => Component::Zero,
            Self::Bias => Component::Bias,
        }
    }
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the scheme's stores to the native buffer.
    ToNative,
    /// From the native buffer to a store.
    FromNative,
}

/// Writes the kernel: buffer 0 is read, buffer 1 is written whole. The scheme is the problem's, with
/// its stores.
///
/// # Errors
/// What the schedule does not take: a part that the scheme does not have or keeps in several
/// stores, packings whose words are not all alike, a store of several components as destination.
pub fn transform(
    problem: &Problem,
    scheme: &Scheme,
    part: Part,
    direction: Direction,
) -> Result<Kernel, Unscheduled> {
    let this = Transform { problem, scheme, part, direction };
    let (store, stored) = this.stored()?;
    let native_layout = this.native_layout()?;
    let native = this.bind(&native_layout, this.native_grains()?)?;
    let (stored, native) = (this.side(&stored)?, this.side(&native)?);
    let stored_text = store.layout.display(store.owner).to_string();
    let native_text = native_layout.display(part.component()).to_string();
    let (stored, native) = (("stored", stored, stored_text), ("native", native, native_text));
    match direction {
        Direction::ToNative => this.write(&stored, &native),
        Direction::FromNative => {
            this.is_whole(&store.layout)?;
            this.write(&native, &stored)
        }
    }
}

/// An array: its name, where the part lies in it, its layout for the reader.
type Array = (&'static str, Side, String);

struct Transform<'p> {
    problem: &'p Problem,
    scheme: &'p Scheme,
    part: Part,
    direction: Direction,
}

impl Transform<'_> {
    fn unscheduled(&self, what: &str) -> Unscheduled {
        let what = format!("{what} of {} in a transform", self.part.component());
        Unscheduled::Scheme { target: self.problem.target().name, what }
    }

    const fn shape(&self) -> Shape {
        Shape::matrix(self.problem.n as u64, self.problem.k as u64)
    }

    /// The store that holds the part.
    fn stored(&self) -> Result<(&Store, Bound), Unscheduled> {
        let mut stores = self.scheme.stores_of(self.part.component());
        let (Some(store), None) = (stores.next(), stores.next()) else {
            return Err(self.unscheduled("none or several stores"));
        };
        let bound = self.scheme.bind(store, self.shape());
        let bound = bound.map_err(|error| self.unscheduled(&format!("the packing ({error})")))?;
        Ok((store, bound))
    }

    fn native_layout(&self) -> Result<Layout, Unscheduled> {
        let text = match self.part {
            Part::Codes => return Ok(self.problem.plan.native.layout.clone()),
            Part::Scales | Part::Zeros => self.grouped()?.layout(self.problem.turn),
            Part::Bias => PER_ROW_LAYOUT.to_owned(),
        };
        parse_layout(&text, self.part.component())
            .map_err(|faults| self.unscheduled(&format!("the native layout ({faults})")))
    }

    /// The native form of scales or zero points, which keeps their values.
    fn grouped(&self) -> Result<Grouped, Unscheduled> {
        let of = match self.part {
            Part::Scales => self.problem.scale,
            Part::Zeros => self.problem.zero,
            Part::Codes | Part::Bias => None,
        };
        let kept = of.filter(|of| of.what == What::Component(self.part.component()));
        kept.ok_or_else(|| self.unscheduled("products with other numbers made"))
    }

    fn native_grains(&self) -> Result<Grains, Unscheduled> {
        let (bits, cols) = match self.part {
            Part::Codes => (self.problem.plan.dequant.weight.code.bits(), Grain::Each(1)),
            Part::Scales | Part::Zeros => return Ok(self.grouped()?.grains()),
            Part::Bias => (32, Grain::All),
        };
        Ok(Grains { bits, rows: Grain::Each(1), cols })
    }

    fn bind(&self, layout: &Layout, grains: Grains) -> Result<Bound, Unscheduled> {
        let own = |component| (component == self.part.component()).then_some(grains);
        let bound = layout.bind(self.shape(), &own);
        bound.map_err(|error| self.unscheduled(&format!("the native layout ({error})")))
    }

    fn side(&self, bound: &Bound) -> Result<Side, Unscheduled> {
        let runs = bound.runs(self.part.component());
        let runs = runs.ok_or_else(|| self.unscheduled("swizzled places"))?;
        Ok(Side { runs, bits: bound.bits() })
    }

    /// A destination holds nothing but the part, and 0 around it.
    fn is_whole(&self, layout: &Layout) -> Result<(), Unscheduled> {
        let own = |field: &Field| match field {
            Field::Bits { component, .. } => *component == self.part.component(),
            Field::Pad { fill, .. } => *fill == Fill::Zero,
        };
        match layout.fields().iter().all(own) {
            true => Ok(()),
            false => Err(self.unscheduled("a store with more in it than the bits")),
        }
    }

    fn form(&self) -> Result<Form, Unscheduled> {
        let back = self.direction == Direction::FromNative;
        match self.part {
            Part::Scales => {
                let kept = self.scheme.number(self.part.component()) == Some(self.grouped()?.number);
                if kept { Ok(Form::Keep) } else { Err(self.unscheduled("another type")) }
            }
            Part::Codes => match self.problem.plan.dequant.recode {
                Recode::Keep => Ok(Form::Keep),
                Recode::Xor(mask) => Ok(Form::Xor(mask)),
                Recode::Table(_) => Err(self.unscheduled("a table")),
            },
            Part::Zeros => {
                let integer = self.scheme.zero.and_then(|zero| Integer::new(zero.kind));
                let integer = integer.ok_or_else(|| self.unscheduled("floats"))?;
                let half = self.problem.half().ok_or_else(|| self.unscheduled("integer products"))?;
                Ok(if back { Form::Stored(integer, half) } else { Form::Number(integer, half) })
            }
            Part::Bias => {
                let half = match self.scheme.number(Component::Bias) {
                    Some(NUMBER_F32) => return Ok(Form::Keep),
                    Some(NUMBER_BF16) => Half::Bf16,
                    Some(NUMBER_F16) => Half::F16,
                    _ => return Err(self.unscheduled("other than 16 or 32 bits")),
                };
                Ok(if back { Form::Narrow(half) } else { Form::Widen(half) })
            }
        }
    }

    fn write(&self, from: &Array, to: &Array) -> Result<Kernel, Unscheduled> {
        let ((from_name, from, from_text), (to_name, to, to_text)) = (from, to);
        let uneven = || self.unscheduled("words that are not all alike");
        let bits_of_word = from.word().ok_or_else(uneven)?;
        let piece = to.piece().ok_or_else(uneven)?;
        let form = self.form()?;
        let gather = Gather { shape: self.shape(), from, to, form, word: bits_of_word, piece };
        let too_large = || self.unscheduled("2^32 words and more");
        let length = |bits: u64| u32::try_from(bits).map_err(|_| too_large());
        let blocks = length(gather.pieces().next_multiple_of(u64::from(THREADS)))? / THREADS;
        let fixed = |count: u32| [Extent::Constant(count)];
        let grid = [blocks, 1, 1].map(Extent::Constant);
        let launch =
            Launch { grid, threads: THREADS, min_blocks: 1, cluster: 1, programmatic: false };
        let summary = format!(
            "{} of w[{}, {}] from `{from_name}` to `{to_name}`; a thread writes {piece} bits.",
            self.part.component(),
            self.problem.n,
            self.problem.k,
        );
        let what = format!("{}_from_{from_name}", format!("{:?}", self.part).to_lowercase());
        let name = self.problem.kernel_name(&what);
        let mut b = Builder::new(&name, &summary, self.problem.target(), launch);
        let words = length(from.bits / bits_of_word)?;
        let source =
            b.buffer(from_name, word(bits_of_word), Access::Constant, &fixed(words), from_text);
        let own = piece.min(32);
        let words = length(to.bits / own)?;
        let destination = b.buffer(to_name, word(own), Access::WriteOnce, &fixed(words), to_text);
        match gather.write(&mut b, source, destination) {
            true => Ok(b.finish()),
            false => Err(uneven()),
        }
    }
}
