//! Repacking on the device: from a checkpoint's packing to the buffers that products read, and back.
//!
//! In: a [`Problem`], the scheme with its stores, a [`NativeBufferKind`] and a [`Direction`]. Out: a kernel, not yet
//! verified. No packing has code of its own: both sides are layouts, bound to the shape, and the index
//! arithmetic follows from their digits (`affine`, `plane`, `gather`). `conversion` converts an element;
//! `formula` computes numbers that no component stores, `row_sums` adds the codes of rows. A thread writes 16 bytes of the destination, fewer
//! if rows are odd; bits without an element become 0.

mod affine;
mod conversion;
mod formula;
mod gather;
mod kind;
mod plane;
mod row_sums;

use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, NUMBER_F32, Number};
use quantloom_dsl::layout::{
    AffineRun, BoundLayout, Component, Field, Fill, Granularity, GroupSize, Layout, Recode, Shape,
};
use quantloom_dsl::{BufferRole, Code, Scheme, Store, ZeroKind, parse_layout};

use self::conversion::{Conversion, Integer};
use self::formula::{Formula, Wanted};
use self::gather::{Array, Gather, Input, Sorted, THREADS, word, word_of};
use self::plane::{Plane, planes};
use self::row_sums::Summed;
use super::buffers::PER_ROW_LAYOUT;
use super::group_params::{GroupParams, ParamKind, is_read};
use super::problem::Problem;
use super::unscheduled::{TransformLimit, Unscheduled, UnscheduledPart};
use crate::ir::{Access, Builder, Extent, Half, Kernel, LaunchConfig};

pub use self::kind::NativeBufferKind;

/// The direction of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the scheme's stores to the native buffer.
    ToNative,
    /// From the native buffer to a store.
    FromNative,
}

/// Writes the kernel. Its first buffers are read: the stores in the order of [`stores`], or the native
/// buffer on the way back; its last buffer is written completely. The scheme is the problem's, with its
/// stores. If the problem's columns have an order, they are sorted and padded, and `columns` is the
/// number of the stored weight's columns; kernels of buffers with [`NativeBufferKind::is_sorted`] read the order as
/// their last array (u32 for each of the problem's columns; any number beyond the stored columns is a
/// pad), and there is no way back.
///
/// # Errors
/// A buffer that the problem does not have, types without a conversion to f32, packings whose vectors
/// differ; on the way back also computed numbers, and stores with other components.
pub fn transform(
    problem: &Problem,
    scheme: &Scheme,
    columns: u32,
    buffer: NativeBufferKind,
    direction: Direction,
) -> Result<Kernel, Unscheduled> {
    let this = Transform { problem, scheme, columns, buffer };
    match direction {
        Direction::ToNative => this.move_to_native(),
        Direction::FromNative => this.move_back(),
    }
}

/// The stores that a buffer is computed from, in the scheme's order.
///
/// # Errors
/// A buffer that the problem does not have, or types without a conversion to f32.
pub fn stores<'s>(
    problem: &Problem,
    scheme: &'s Scheme,
    buffer: NativeBufferKind,
) -> Result<Vec<&'s Store>, Unscheduled> {
    let this = Transform { problem, scheme, columns: problem.k, buffer };
    let (_, components) = this.made_of()?;
    let index = this.reads_index().then_some(Component::Index);
    Ok(holding(scheme, &components.into_iter().chain(index).collect::<Vec<_>>()))
}

/// The stores that hold any of the components.
fn holding<'s>(scheme: &'s Scheme, components: &[Component]) -> Vec<&'s Store> {
    let holds = |store: &&Store| components.iter().any(|component| store.layout.holds(*component));
    scheme.stores.iter().filter(holds).collect()
}

/// An array of a kernel: its name, its bits (whole bytes: the last byte may be padded), its layout as
/// text.
struct Side {
    name: String,
    bits: u64,
    text: String,
}

impl Side {
    /// The array of a bound layout.
    fn of(name: String, bound: &BoundLayout, text: String) -> Self {
        Self { name, bits: bound.bytes() * 8, text }
    }
}

/// The product of the scales of a group, and their components.
type Scales = (Formula, Vec<Component>);

struct Transform<'p> {
    problem: &'p Problem,
    scheme: &'p Scheme,
    /// Columns of the stored weight.
    columns: u32,
    buffer: NativeBufferKind,
}

impl Transform<'_> {
    fn unscheduled(&self, limit: TransformLimit) -> Unscheduled {
        let part = UnscheduledPart::Transform { buffer: self.buffer.role(), limit };
        Unscheduled::Scheme { target: self.problem.target().name, part }
    }

    const fn shape(&self) -> Shape {
        Shape::matrix(self.problem.n as u64, self.problem.k as u64)
    }

    /// The shape in the checkpoint.
    const fn stored_shape(&self) -> Shape {
        Shape::matrix(self.problem.n as u64, self.columns as u64)
    }

    /// Whether this buffer's columns are sorted.
    const fn sorts(&self) -> bool {
        self.problem.order.is_some() && self.buffer.is_sorted()
    }

    /// Whether a group index selects the parameters of a column.
    fn reads_index(&self) -> bool {
        let indexed = self.problem.order.as_ref().is_some_and(|order| order.indexed);
        indexed && self.sorts() && self.buffer != NativeBufferKind::Codes
    }

    /// The sorting of columns; `order` is the number of the array with the order.
    fn sorted(
        &self,
        order: usize,
        components: &[Component],
        index: Option<Input>,
    ) -> Result<Option<Sorted>, Unscheduled> {
        if !self.sorts() {
            return Ok(None);
        }
        let Some(index) = index else { return Ok(Some(Sorted { order, groups: None })) };
        let grouped = |component: &Component| match self.scheme.granularity(*component)?.cols {
            GroupSize::Each(columns) => Some(columns),
            GroupSize::All => None,
        };
        let mut columns = components.iter().filter_map(grouped);
        let first = columns.next().unwrap_or(self.columns);
        if columns.any(|columns| columns != first) {
            return Err(self.unscheduled(TransformLimit::SortedGroups));
        }
        let count = self.columns.div_ceil(first);
        let groups = Some((index, [u64::from(count), u64::from(first)]));
        Ok(Some(Sorted { order, groups }))
    }

    fn move_to_native(&self) -> Result<Kernel, Unscheduled> {
        let (conversion, mut components) = self.made_of()?;
        components.extend(self.reads_index().then_some(Component::Index));
        let stores = holding(self.scheme, &components);
        let (mut from, mut inputs) = (Vec::new(), vec![Input::new(); components.len()]);
        for (array, store) in stores.into_iter().enumerate() {
            let bound = self.stored(store)?;
            for (input, component) in inputs.iter_mut().zip(&components) {
                if store.layout.holds(*component) {
                    input.push((array, self.runs(&bound, *component)?));
                }
            }
            let text = store.layout.display(store.owner).to_string();
            from.push(Side::of(format!("stored_{array}"), &bound, text));
        }
        if inputs.iter().any(Vec::is_empty) {
            return Err(self.unscheduled(TransformLimit::NotStored));
        }
        if self.sorts() {
            let bits = u64::from(self.problem.k) * 32;
            from.push(Side {
                name: BufferRole::ColumnOrder.to_string(),
                bits,
                text: "u32 [k]".to_owned(),
            });
        }
        let index = if self.reads_index() {
            components.pop();
            inputs.pop()
        } else {
            None
        };
        if self.buffer == NativeBufferKind::RowSums {
            return self.write_sums(&from, &inputs);
        }
        let sorted = self.sorted(from.len().saturating_sub(1), &components, index)?;
        let (native, runs) = self.native()?;
        self.write(&from, (&inputs, sorted), &conversion, (&native, &runs))
    }

    fn move_back(&self) -> Result<Kernel, Unscheduled> {
        let component = self.kept()?;
        if self.sorts() {
            return Err(self.unscheduled(TransformLimit::BackFromSorted));
        }
        let mut stores = self.scheme.stores_of(component);
        let (Some(store), None) = (stores.next(), stores.next()) else {
            return Err(self.unscheduled(TransformLimit::BackToStores));
        };
        let own = |field: &Field| match field {
            Field::Bits { component: other, .. } => *other == component,
            Field::Pad { fill, .. } => *fill != Fill::One,
        };
        if !store.layout.fields().iter().all(own) {
            return Err(self.unscheduled(TransformLimit::BackToShared));
        }
        let bound = self.stored(store)?;
        let runs = self.runs(&bound, component)?;
        let conversion = self.back(component, &runs)?;
        let (native, from) = self.native()?;
        let text = store.layout.display(store.owner).to_string();
        let stored = Side::of("stored_0".to_owned(), &bound, text);
        self.write(&[native], (&[vec![(0, from)]], None), &conversion, (&stored, &runs))
    }

    fn stored(&self, store: &Store) -> Result<BoundLayout, Unscheduled> {
        let bound = self.scheme.bind(store, self.stored_shape());
        bound.map_err(|error| self.unscheduled(TransformLimit::Packing(Box::new(error))))
    }

    /// The affine runs of a component's bits.
    fn runs(
        &self,
        bound: &BoundLayout,
        component: Component,
    ) -> Result<Vec<AffineRun>, Unscheduled> {
        let runs = bound.runs(component);
        let runs = runs.ok_or_else(|| self.unscheduled(TransformLimit::Swizzled))?;
        let up = |run: &AffineRun| {
            let up = |digit: &quantloom_dsl::layout::AffineDigit| {
                digit.fixed.is_some() || digit.place > 0
            };
            run.base >= 0 && run.digits.iter().all(up)
        };
        if runs.iter().all(up) {
            Ok(runs)
        } else {
            Err(self.unscheduled(TransformLimit::Descending))
        }
    }

    /// The native buffer, and the affine runs of its elements.
    fn native(&self) -> Result<(Side, Vec<AffineRun>), Unscheduled> {
        let component = self.buffer.component();
        let (text, granularity) = match self.buffer {
            NativeBufferKind::Codes => {
                let bits = self.problem.plan.dequant.weight.code.bits();
                (None, Granularity { bits, rows: GroupSize::Each(1), cols: GroupSize::Each(1) })
            }
            NativeBufferKind::Scales
            | NativeBufferKind::Zeros
            | NativeBufferKind::Corrections
            | NativeBufferKind::CoarseScales
            | NativeBufferKind::CoarseCorrections => {
                let params = self.group_params()?;
                (Some(params.layout(self.problem)), params.granularity())
            }
            NativeBufferKind::Bias
            | NativeBufferKind::ChannelScales
            | NativeBufferKind::RowSums => {
                let granularity =
                    Granularity { bits: 32, rows: GroupSize::Each(1), cols: GroupSize::All };
                (Some(PER_ROW_LAYOUT.to_owned()), granularity)
            }
        };
        let layout: Layout = match text {
            None => self.problem.plan.native.layout.clone(),
            Some(text) => parse_layout(&text, component)
                .map_err(|faults| self.unscheduled(TransformLimit::NativeText(Box::new(faults))))?,
        };
        let own = |other| (other == component).then_some(granularity);
        let bound = layout.bind(self.shape(), &own);
        let bound =
            bound.map_err(|error| self.unscheduled(TransformLimit::Native(Box::new(error))))?;
        let runs = self.runs(&bound, component)?;
        let text = layout.display(component).to_string();
        Ok((Side::of("native".to_owned(), &bound, text), runs))
    }

    /// The buffer as a group parameter.
    fn group_params(&self) -> Result<GroupParams, Unscheduled> {
        let of = match self.buffer {
            NativeBufferKind::Scales => self.problem.scale,
            NativeBufferKind::Zeros => self.problem.zero,
            NativeBufferKind::Corrections => self.problem.correction,
            NativeBufferKind::CoarseScales => self.problem.coarse_scale,
            NativeBufferKind::CoarseCorrections => self.problem.coarse_correction,
            NativeBufferKind::Codes
            | NativeBufferKind::Bias
            | NativeBufferKind::ChannelScales
            | NativeBufferKind::RowSums => None,
        };
        of.ok_or_else(|| self.unscheduled(TransformLimit::NotRead))
    }

    /// The component whose signs the codes take.
    fn signs(&self) -> Option<Component> {
        match self.problem.scale?.kind {
            ParamKind::Magnitudes(component) => Some(component),
            _ => None,
        }
    }

    /// The component whose values the native buffer keeps.
    fn kept(&self) -> Result<Component, Unscheduled> {
        let computed = || self.unscheduled(TransformLimit::BackFromComputed);
        match self.buffer {
            NativeBufferKind::Codes if self.signs().is_some() => Err(computed()),
            NativeBufferKind::Codes => Ok(Component::Code),
            NativeBufferKind::Bias => Ok(Component::Bias),
            NativeBufferKind::ChannelScales | NativeBufferKind::RowSums => Err(computed()),
            NativeBufferKind::Scales
            | NativeBufferKind::Zeros
            | NativeBufferKind::Corrections
            | NativeBufferKind::CoarseScales
            | NativeBufferKind::CoarseCorrections => match self.group_params()?.kind {
                ParamKind::Stored(component) => Ok(component),
                ParamKind::Magnitudes(_) | ParamKind::Scale | ParamKind::ZeroPointCorrection => {
                    Err(computed())
                }
            },
        }
    }

    /// The conversion of elements to the native form, and the components that it reads.
    fn made_of(&self) -> Result<(Conversion, Vec<Component>), Unscheduled> {
        let wanted = match self.buffer {
            NativeBufferKind::Corrections
                if self.group_params()?.kind == ParamKind::ZeroPointCorrection =>
            {
                let terms = self.problem.correction_terms();
                Wanted::Correction { terms, exponent: self.problem.correction_exponent() }
            }
            NativeBufferKind::ChannelScales if self.problem.plan.scale.input_in_channel_scale() => {
                Wanted::ChannelScaleOfInput
            }
            NativeBufferKind::ChannelScales => Wanted::ChannelScale,
            NativeBufferKind::RowSums => {
                let (codes, scale) = self.terms_of_rows()?;
                let components = scale.into_iter().flat_map(|(_, components)| components);
                return Ok((codes, [Component::Code].into_iter().chain(components).collect()));
            }
            NativeBufferKind::Codes if let Some(signs) = self.signs() => {
                return Ok((Conversion::Signed, vec![Component::Code, signs]));
            }
            NativeBufferKind::Scales if let Some(signs) = self.signs() => {
                return Ok((Conversion::Magnitude, vec![signs]));
            }
            NativeBufferKind::Scales if self.group_params()?.kind == ParamKind::Scale => {
                Wanted::Scale
            }
            _ => {
                let component = self.kept()?;
                return Ok((self.to_products(component)?, vec![component]));
            }
        };
        let formula = Formula::new(self.scheme, wanted);
        let (formula, components) =
            formula.ok_or_else(|| self.unscheduled(TransformLimit::NoFormula))?;
        Ok((Conversion::Computed(formula), components))
    }

    /// The terms of the sums of rows: codes that are integers, and the scales that change along K with their components. (A group
    /// index would say which scale a column has.)
    fn terms_of_rows(&self) -> Result<(Conversion, Option<Scales>), Unscheduled> {
        let none = || self.unscheduled(TransformLimit::NoFormula);
        let Scheme { weight, zero, shifts, .. } = self.scheme;
        let integer = match weight.code {
            Code::Number(number) if zero.is_none() && shifts.is_empty() => {
                Integer::new(ZeroKind::Codes { number, plus: -weight.offset, wraps: false })
            }
            _ => None,
        };
        let scale = Formula::new(self.scheme, Wanted::Scale).ok_or_else(none)?;
        let scale = (!scale.1.is_empty()).then_some(scale);
        if scale.is_some() && self.scheme.index.is_some() {
            return Err(none());
        }
        Ok((Conversion::Integer(integer.ok_or_else(none)?), scale))
    }

    fn recoded(&self) -> Result<Conversion, Unscheduled> {
        match self.problem.plan.dequant.recode {
            Recode::Keep => Ok(Conversion::Keep),
            Recode::Xor(mask) => Ok(Conversion::Xor(mask)),
            Recode::Table(_) => Err(self.unscheduled(TransformLimit::CodeTable)),
        }
    }

    /// The stored type of zero points, and the compute dtype.
    fn zeros(&self) -> Result<(Integer, Half), Unscheduled> {
        let integer = self.scheme.zero.and_then(|zero| Integer::new(zero.kind));
        let integer = integer.ok_or_else(|| self.unscheduled(TransformLimit::FloatZeros))?;
        let half = self.problem.half();
        Ok((integer, half.ok_or_else(|| self.unscheduled(TransformLimit::IntegerProducts))?))
    }

    /// The stored type and the native type of a component.
    fn numbers(&self, component: Component) -> Result<(Number, Number), Unscheduled> {
        let stored = self.scheme.number(component);
        let stored = stored.ok_or_else(|| self.unscheduled(TransformLimit::NoType))?;
        let native = if self.buffer == NativeBufferKind::Bias {
            NUMBER_F32
        } else {
            self.group_params()?.number
        };
        Ok((stored, native))
    }

    fn to_products(&self, component: Component) -> Result<Conversion, Unscheduled> {
        match self.buffer {
            NativeBufferKind::Codes => return self.recoded(),
            NativeBufferKind::Zeros => {
                return self.zeros().map(|(integer, half)| Conversion::Number(integer, half));
            }
            _ => {}
        }
        match self.numbers(component)? {
            (stored, native) if stored == native => Ok(Conversion::Keep),
            (stored, NUMBER_F32) if is_read(stored) => Ok(Conversion::Widen(stored)),
            (from, to) => Err(self.unscheduled(TransformLimit::Conversion { from, to })),
        }
    }

    fn back(&self, component: Component, runs: &[AffineRun]) -> Result<Conversion, Unscheduled> {
        match self.buffer {
            NativeBufferKind::Codes => {
                let conversion = self.recoded()?;
                let bits = self.problem.plan.dequant.weight.code.bits();
                let above = |run: &AffineRun| run.sign_extension;
                return match (runs.iter().map(above).max(), &conversion) {
                    (None | Some(0), _) => Ok(conversion),
                    (Some(more), _) if runs.iter().all(|run| run.high - run.low == bits) => {
                        let mask = conversion.inverted().unwrap_or(0);
                        Ok(Conversion::Extended { mask, bits, width: bits + more })
                    }
                    _ => Err(self.unscheduled(TransformLimit::CutSigns)),
                };
            }
            NativeBufferKind::Zeros => {
                return self.zeros().map(|(integer, half)| Conversion::Stored(integer, half));
            }
            _ => {}
        }
        match self.numbers(component)? {
            (stored, native) if stored == native => Ok(Conversion::Keep),
            (NUMBER_BF16, NUMBER_F32) => Ok(Conversion::Narrow(Half::Bf16)),
            (NUMBER_F16, NUMBER_F32) => Ok(Conversion::Narrow(Half::F16)),
            (to, from) => Err(self.unscheduled(TransformLimit::Conversion { from, to })),
        }
    }

    fn write(
        &self,
        from: &[Side],
        (inputs, sorted): (&[Input], Option<Sorted>),
        conversion: &Conversion,
        (to, runs): (&Side, &[AffineRun]),
    ) -> Result<Kernel, Unscheduled> {
        let uneven = || self.unscheduled(TransformLimit::UnevenWords);
        let (vector, planes) = planes(runs, to.bits).ok_or_else(uneven)?;
        let own = if vector.is_power_of_two() { vector.min(32) } else { word_of(vector) };
        let length = |words| self.length(words);
        let threads = |plane: &Plane<'_>| plane.vectors.next_multiple_of(u64::from(THREADS));
        let blocks = length(planes.iter().map(threads).sum())? / THREADS;
        let does = format!("a thread writes {vector} bits");
        let (mut b, arrays) = self.started((blocks, THREADS), from, (to, &does))?;
        let words = [Extent::Constant(length(to.bits / own)?)];
        let destination = b.buffer(&to.name, word(own), Access::WriteOnce, &words, &to.text);
        let gather = Gather {
            shape: self.shape(),
            stored: self.stored_shape(),
            sorted,
            arrays: &arrays,
            inputs,
            conversion,
            planes: &planes,
            destination,
            vector,
            word: own,
        };
        match gather.write(&mut b) {
            Ok(()) => Ok(b.finish()),
            Err(why) => Err(self.unscheduled(why)),
        }
    }

    /// The kernel that adds the codes of each row of w.
    fn write_sums(&self, from: &[Side], inputs: &[Input]) -> Result<Kernel, Unscheduled> {
        let (to, _) = self.native()?;
        let (codes, scale) = self.terms_of_rows()?;
        let summed = Summed { codes: &codes, scale: scale.as_ref().map(|(formula, _)| formula) };
        let warp = self.problem.target().gpu.map_or(THREADS, |gpu| gpu.warp);
        let place = (&to, "a warp adds the codes of a row");
        let (mut b, arrays) = self.started((self.problem.n, warp), from, place)?;
        let rows = [Extent::Constant(self.problem.n)];
        let sums = b.buffer(&to.name, word(32), Access::WriteOnce, &rows, &to.text);
        let gather = Gather {
            shape: self.stored_shape(),
            stored: self.stored_shape(),
            sorted: None,
            arrays: &arrays,
            inputs,
            conversion: &codes,
            planes: &[],
            destination: sums,
            vector: 32,
            word: 32,
        };
        match gather.sum_rows(&mut b, summed) {
            Ok(()) => Ok(b.finish()),
            Err(why) => Err(self.unscheduled(why)),
        }
    }

    /// A kernel with so many blocks and threads of a block, and the arrays that are read.
    fn started(
        &self,
        (blocks, threads): (u32, u32),
        from: &[Side],
        (to, does): (&Side, &str),
    ) -> Result<(Builder, Vec<Array>), Unscheduled> {
        let grid = [blocks, 1, 1].map(Extent::Constant);
        let launch = LaunchConfig { grid, threads, min_blocks: 1, cluster: 1, programmatic: false };
        let names: Vec<String> = from.iter().map(|side| format!("`{}`", side.name)).collect();
        let summary = format!(
            "{} of w[{}, {}] from {} to `{}`; {does}.",
            self.buffer.role(),
            self.problem.n,
            self.problem.k,
            names.join(", "),
            to.name,
        );
        let first = from.first().map_or("nothing", |side| side.name.as_str());
        let name = self.problem.kernel_name(&format!("{}_from_{first}", self.buffer.label()));
        let mut b = Builder::new(&name, &summary, self.problem.target(), launch);
        let mut arrays = Vec::new();
        for side in from {
            let own = word_of(side.bits);
            let words = [Extent::Constant(self.length(side.bits / own)?)];
            let buffer = b.buffer(&side.name, word(own), Access::Constant, &words, &side.text);
            arrays.push(Array { buffer, word: own });
        }
        Ok((b, arrays))
    }

    /// A number of words that 32 bits index.
    fn length(&self, words: u64) -> Result<u32, Unscheduled> {
        u32::try_from(words).map_err(|_| self.unscheduled(TransformLimit::Words))
    }
}
