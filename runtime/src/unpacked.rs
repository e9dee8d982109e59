//! An unpacked layer: plain codes and decoded scales, with rows dequantised on request.
//!
//! In: a scheme, a shape and stored bytes. Out: [`Unpacked`], which dequantises rows of the weight
//! to `f32`. Layout transforms move the codes; each weight is computed in `f64` in the order of the
//! definition and rounded once.

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::{
    BindError, Component, Field, Fill, Granularity, GroupSize, Layout, Recode, Shape, Transform,
    TransformError,
};
use quantloom_dsl::reference::StaticInput;
use quantloom_dsl::{Scheme, Store};
use rayon::prelude::*;

use crate::float_mode::standard;

mod expert;
mod plain;

pub(crate) use expert::{shard_of_stack, shards, straddling};

/// Why stored bytes could not be unpacked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The threads that would unpack belong to another process.
    #[error(transparent)]
    Forked(crate::Forked),
    /// A stored tensor is missing.
    #[error("the tensor \"{0}\" is missing")]
    Missing(String),
    /// A layout does not fit.
    #[error("the tensor \"{store}\": {error}")]
    Bind {
        /// The store.
        store: String,
        /// What does not fit.
        error: BindError,
    },
    /// A transform failed.
    #[error("the tensor \"{store}\": {error}")]
    Transform {
        /// The store.
        store: String,
        /// Why.
        error: TransformError,
    },
    /// A scale is not a valid scale.
    #[error("the tensor \"{store}\": element {element} = {value} is not a valid scale")]
    Scale {
        /// The store.
        store: String,
        /// Position among its elements.
        element: usize,
        /// The value.
        value: f64,
    },
    /// A value that the target type does not represent.
    #[error("the tensor \"{store}\": element {element} = {value} is not representable in {number}")]
    Inexact {
        /// The store.
        store: String,
        /// Position among its elements.
        element: usize,
        /// The value.
        value: f64,
        /// The type.
        number: Number,
    },
    /// A code in a wider slot that is not sign-extended there: no code of the scheme.
    #[error(
        "the tensor \"{store}\" holds {value} at position {at}, which is not a {bits}-bit code"
    )]
    Code {
        /// The store.
        store: String,
        /// Position among its bytes.
        at: usize,
        /// The byte.
        value: i8,
        /// Width of the scheme's codes.
        bits: u32,
    },
    /// The stack has no such expert, or the expert no such shard.
    #[error("there is no shard {shard} of expert {expert}")]
    NoShard {
        /// The expert.
        expert: u64,
        /// The shard.
        shard: u64,
    },
    /// A value of several rows is of rows of both shards.
    #[error(
        "the tensor \"{store}\": a value is of {each} rows, and gate and up have {rows} each: some \
         value is of rows of both"
    )]
    Straddles {
        /// The store.
        store: String,
        /// Rows of a value.
        each: u32,
        /// Rows of a shard.
        rows: u64,
    },
    /// A group index is outside of the groups.
    #[error(
        "the tensor \"{store}\": the group index of k = {k} is {group}, but there are {groups} groups"
    )]
    Group {
        /// The store.
        store: String,
        /// The column.
        k: usize,
        /// Its group.
        group: u32,
        /// Number of groups.
        groups: u64,
    },
}

/// Decoded values of a component with groups, in the order (expert, row group, column group).
#[derive(Clone, Debug)]
struct GroupValues {
    granularity: Granularity,
    values: Vec<f64>,
}

/// Plain codes and decoded parameters of one layer.
#[derive(Clone, Debug)]
pub struct Unpacked {
    scheme: Scheme,
    shape: Shape,
    /// [E, N, K], one byte per code.
    codes: Vec<u8>,
    /// Value of each code minus the offset.
    values: Vec<f64>,
    scales: Vec<(GroupValues, bool)>,
    zero: Option<GroupValues>,
    /// Per level, as factors.
    shifts: Vec<GroupValues>,
    index: Option<Vec<u32>>,
    bias: Option<Vec<f64>>,
    input: StaticInput,
    /// Columns over which every component that is grouped along k is constant.
    stride: usize,
}

impl Unpacked {
    /// Unpacks a layer; `stored` returns the bytes of a stored tensor by its name.
    ///
    /// # Errors
    /// See [`UnpackError`].
    pub fn new<'b>(
        scheme: &Scheme,
        shape: Shape,
        stored: &dyn Fn(&str) -> Option<&'b [u8]>,
    ) -> Result<Self, UnpackError> {
        crate::forked::check().map_err(UnpackError::Forked)?;
        let source = StoreReader { scheme, shape, stored };
        source.check_sign_pads()?;
        let codes = source.plain(Component::Code)?;
        Ok(Self { codes, ..Self::without_codes(scheme, shape, stored)? })
    }

    /// Unpacks everything but the codes, of which there are none then: scales, zero points, shifts,
    /// bias.
    ///
    /// # Errors
    /// See [`UnpackError`].
    pub(crate) fn without_codes<'b>(
        scheme: &Scheme,
        shape: Shape,
        stored: &dyn Fn(&str) -> Option<&'b [u8]>,
    ) -> Result<Self, UnpackError> {
        crate::forked::check().map_err(UnpackError::Forked)?;
        let source = StoreReader { scheme, shape, stored };
        let width = scheme.weight.code.bits();
        let values = (0..1u32 << width).map(|code| scheme.weight.decode(code)).collect();
        let mut scales = Vec::new();
        for (level, scale) in (0u8..).zip(&scheme.scales) {
            let component = Component::Scale(level);
            let part = source.part(component, &|code| {
                scale.stored_number().map_or(f64::NAN, |number| scale.decode(number, code))
            })?;
            source.check_scales(component, &part.values, scale.divide)?;
            scales.push((part, scale.divide));
        }
        let zero = match scheme.zero {
            Some(zero) => Some(source.part(Component::Zero, &|code| zero.kind.decode(code))?),
            None => None,
        };
        let mut shifts = Vec::new();
        for (level, shift) in (0u8..).zip(&scheme.shifts) {
            shifts.push(source.part(Component::Shift(level), &|code| shift.decode(code))?);
        }
        let bias = match scheme.bias {
            Some(number) => Some(source.part(Component::Bias, &|code| number.decode(code))?.values),
            None => None,
        };
        let mut unpacked = Self {
            scheme: scheme.clone(),
            shape,
            codes: Vec::new(),
            values,
            scales,
            zero,
            shifts,
            index: None,
            bias,
            input: source.input()?,
            stride: 1,
        };
        if scheme.index.is_some() {
            let index = source.codes(Component::Index)?;
            unpacked.check_index(&index)?;
            unpacked.index = Some(index);
        }
        unpacked.stride = unpacked.common_columns();
        Ok(unpacked)
    }

    /// The scheme.
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Plain codes [E, N, K].
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Decoded scales of a level, zero points, factors of a shift's level or the bias, in the order (expert, row
    /// group, column group).
    pub(crate) fn values(&self, component: Component) -> Option<&[f64]> {
        match component {
            Component::Bias => self.bias(),
            _ => self.group_values(component).map(|part| part.values.as_slice()),
        }
    }

    /// Decoded scales of a level, zero points or factors of a shift's level, in the order (expert, row
    /// group, column group), and what shares one.
    pub(crate) fn grouped_values(&self, component: Component) -> Option<(Granularity, &[f64])> {
        let part = self.group_values(component)?;
        Some((part.granularity, part.values.as_slice()))
    }

    fn group_values(&self, component: Component) -> Option<&GroupValues> {
        match component {
            Component::Scale(level) => self.scales.get(usize::from(level)).map(|(part, _)| part),
            Component::Zero => self.zero.as_ref(),
            Component::Shift(level) => self.shifts.get(usize::from(level)),
            _ => None,
        }
    }

    /// The value of each code less the offset.
    pub(crate) fn code_values(&self) -> &[f64] {
        &self.values
    }

    /// Static parameters of the activation, of all experts.
    pub(crate) fn static_input(&self) -> &StaticInput {
        &self.input
    }

    /// The scale of a level, the zero point, or the factor of a shift's level, of a weight of the first expert.
    pub(crate) fn value_of(&self, component: Component, n: u64, k: u64) -> Option<f64> {
        self.group_values(component).map(|part| self.value(part, 0, n, k))
    }

    /// Group index of each column [E, K], if the layer has act-order.
    pub(crate) fn index(&self) -> Option<&[u32]> {
        self.index.as_deref()
    }

    /// The parameters of a weight's group, with the levels that are constant along k separate.
    pub(crate) fn folded(&self, expert: u64, n: u64, k: u64) -> FoldedParameters {
        let group = self.group(expert, n, k);
        let mut folded = FoldedParameters {
            scale: 1.0,
            channel_scale: 1.0,
            zero: group.zero,
            shift: group.shift,
        };
        for ((part, _), (value, divide)) in self.scales.iter().zip(group.scales) {
            // A shift is added after all levels.
            let whole_row = part.granularity.cols == GroupSize::All && self.shifts.is_empty();
            let into = if whole_row { &mut folded.channel_scale } else { &mut folded.scale };
            *into = if divide { *into / value } else { *into * value };
        }
        folded
    }

    /// The sums of the rows of an expert's w, each without the scales that are constant along the row.
    pub(crate) fn row_sums(&self, expert: u64) -> Vec<f64> {
        let of_row = |n| standard(|| self.row_sum(expert, n));
        (0..self.shape.n).into_par_iter().map(of_row).collect()
    }

    fn row_sum(&self, expert: u64, n: u64) -> f64 {
        let k = self.shape.k as usize;
        let first = (expert * self.shape.n + n) as usize * k;
        let mut sum = 0.0;
        for (run, codes) in self.codes[first..first + k].chunks(self.stride).enumerate() {
            let of = self.folded(expert, n, (run * self.stride) as u64);
            let values: f64 = codes.iter().map(|code| self.values[usize::from(*code)]).sum();
            let count = codes.len() as f64;
            sum += of.scale * (values - count * of.zero) + count * of.shift;
        }
        sum
    }

    /// Bias [E, N], decoded.
    pub fn bias(&self) -> Option<&[f64]> {
        self.bias.as_deref()
    }

    /// Static parameters of the activation of an expert; of expert 0 in a layer without experts.
    pub fn input(&self, expert: u64) -> StaticInput {
        self.input.of_expert(expert, self.shape.experts)
    }

    fn grouped(&self) -> impl Iterator<Item = &GroupValues> {
        self.scales.iter().map(|(part, _)| part).chain(&self.zero).chain(&self.shifts)
    }

    fn check_index(&self, index: &[u32]) -> Result<(), UnpackError> {
        let groups = self
            .grouped()
            .filter(|part| matches!(part.granularity.cols, GroupSize::Each(_)))
            .map(|part| part.granularity.elements(self.shape).1)
            .min();
        let Some(groups) = groups else { return Ok(()) };
        match index.iter().position(|group| u64::from(*group) >= groups) {
            None => Ok(()),
            Some(k) => {
                let store = store_name(&self.scheme, Component::Index);
                Err(UnpackError::Group { store, k, group: index[k], groups })
            }
        }
    }

    /// 1 with a group index; otherwise the greatest common divisor of all groups along k.
    fn common_columns(&self) -> usize {
        fn gcd(a: usize, b: usize) -> usize {
            if b == 0 { a } else { gcd(b, a % b) }
        }
        if self.index.is_some() {
            return 1;
        }
        let groups = self.grouped().filter_map(|part| match part.granularity.cols {
            GroupSize::Each(cols) => Some(cols as usize),
            GroupSize::All => None,
        });
        let common = groups.fold(0, gcd);
        if common == 0 { self.shape.k as usize } else { common }
    }

    fn value(&self, part: &GroupValues, expert: u64, n: u64, k: u64) -> f64 {
        let (rows, cols) = part.granularity.elements(self.shape);
        let group = match (&self.index, part.granularity.cols) {
            (Some(index), GroupSize::Each(_)) => {
                u64::from(index[(expert * self.shape.k + k) as usize])
            }
            (_, group_size) => group_size.group(k),
        };
        part.values[((expert * rows + part.granularity.rows.group(n)) * cols + group) as usize]
    }

    /// Dequantises `w[n, ..]` of an expert into `row`, K values.
    ///
    /// # Panics
    /// If `row` is not K long or the row is outside the shape.
    pub fn decode_row(&self, expert: u64, n: u64, row: &mut [f32]) {
        standard(|| self.decode_row_in_mode(expert, n, row));
    }

    fn decode_row_in_mode(&self, expert: u64, n: u64, row: &mut [f32]) {
        let k = self.shape.k as usize;
        assert_eq!(row.len(), k, "a row has K values");
        let first = (expert * self.shape.n + n) as usize * k;
        let codes = &self.codes[first..first + k];
        let mut table = [0.0f32; 256];
        for (run, (out, codes)) in
            row.chunks_mut(self.stride).zip(codes.chunks(self.stride)).enumerate()
        {
            let group = self.group(expert, n, (run * self.stride) as u64);
            let levels = &group.scales[..self.scales.len()];
            // A table of all codes is faster if the columns are more than its entries.
            if codes.len() >= 2 * self.values.len() {
                for (slot, value) in table.iter_mut().zip(&self.values) {
                    *slot = group.weight(*value, levels);
                }
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = table[usize::from(*code)];
                }
            } else {
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = group.weight(self.values[usize::from(*code)], levels);
                }
            }
        }
    }

    /// The parameters that the columns from `k` on share.
    fn group(&self, expert: u64, n: u64, k: u64) -> GroupParameters {
        let of =
            |part: &Option<GroupValues>| part.as_ref().map_or(0.0, |p| self.value(p, expert, n, k));
        let mut scales = [(1.0, false); MOST_LEVELS];
        for (slot, (part, divide)) in scales.iter_mut().zip(&self.scales) {
            *slot = (self.value(part, expert, n, k), *divide);
        }
        let shifts = self.shifts.iter().map(|part| self.value(part, expert, n, k));
        let shift = shifts.reduce(|product, factor| product * factor).unwrap_or(0.0);
        GroupParameters { zero: of(&self.zero), shift, scales }
    }

    /// Dequantises rows `rows` of the stacked [E * N, K] weight, in parallel.
    ///
    /// # Panics
    /// If these are not rows of the weight.
    pub fn decode_rows(&self, rows: std::ops::Range<u64>) -> Vec<f32> {
        let all = self.shape.experts * self.shape.n;
        assert!(rows.start <= rows.end && rows.end <= all, "{rows:?} are no rows of {all}");
        let k = self.shape.k as usize;
        let mut out = vec![0.0; (rows.end - rows.start) as usize * k];
        out.par_chunks_mut(k).enumerate().for_each(|(offset, row)| {
            let at = rows.start + offset as u64;
            self.decode_row(at / self.shape.n, at % self.shape.n, row);
        });
        out
    }
}

/// The name of the stored tensor of a component, or the component's name if it has none.
fn store_name(scheme: &Scheme, component: Component) -> String {
    let store = scheme.stores_of(component).next();
    store.map_or_else(|| component.to_string(), |store| store.name.clone())
}

/// `w = channel_scale * (scale * (value - zero) + shift)`, where value is the code's value minus the
/// scheme's offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldedParameters {
    /// Product of the levels that vary along k.
    pub(crate) scale: f64,
    /// Product of the levels that are constant along k.
    pub(crate) channel_scale: f64,
    /// Zero point.
    pub(crate) zero: f64,
    /// Product of the shift's levels.
    pub(crate) shift: f64,
}

/// The most scale levels of a scheme, which the language enforces.
const MOST_LEVELS: usize = 8;

/// Zero point, shift and scale levels of one group.
struct GroupParameters {
    zero: f64,
    shift: f64,
    /// Value, and whether weights are divided by it.
    scales: [(f64, bool); MOST_LEVELS],
}

impl GroupParameters {
    /// Computes in the definition's order of operations and rounds once.
    fn weight(&self, value: f64, levels: &[(f64, bool)]) -> f32 {
        let product = levels.iter().fold(value - self.zero, |product, (scale, divide)| {
            if *divide { product / scale } else { product * scale }
        });
        (product + self.shift) as f32
    }
}

struct StoreReader<'a, 'b> {
    scheme: &'a Scheme,
    shape: Shape,
    stored: &'a dyn Fn(&str) -> Option<&'b [u8]>,
}

impl StoreReader<'_, '_> {
    /// A code that is kept in a byte must be sign-extended there: anything else is not a code.
    fn check_sign_pads(&self) -> Result<(), UnpackError> {
        let bits = self.scheme.weight.code.bits();
        for store in &self.scheme.stores {
            let Layout::Word { word, fields, inner, .. } = &store.layout else { continue };
            let [
                Field::Bits { component: Component::Code, range: None, .. },
                Field::Pad { fill: Fill::Sign, bits: pad },
            ] = fields.as_slice()
            else {
                continue;
            };
            // A longer run ends in another word: that is no slot of one code.
            if word.bits != 8 || !inner.is_empty() || bits + u32::from(*pad) != 8 {
                continue;
            }
            let limit = 1i32 << (bits - 1);
            let bytes = (self.stored)(&store.name).unwrap_or_default();
            let wrong = |byte: &u8| !(-limit..limit).contains(&i32::from(*byte as i8));
            if let Some(at) = bytes.iter().position(wrong) {
                let (store, value) = (store.name.clone(), bytes[at] as i8);
                return Err(UnpackError::Code { store, at, value, bits });
            }
        }
        Ok(())
    }

    /// One slot of 8, 16 or 32 bits per element.
    fn plain(&self, component: Component) -> Result<Vec<u8>, UnpackError> {
        let missing = || UnpackError::Missing(component.to_string());
        let granularity = self.scheme.granularity(component).ok_or_else(missing)?;
        let mut bytes = Vec::new();
        for store in self.scheme.stores_of(component) {
            self.transform(component, granularity, store, &mut bytes)?;
        }
        if bytes.is_empty() { Err(missing()) } else { Ok(bytes) }
    }

    /// Adds a stored tensor; `bytes` are allocated only after its size has been checked.
    fn transform(
        &self,
        component: Component,
        granularity: Granularity,
        store: &Store,
        bytes: &mut Vec<u8>,
    ) -> Result<(), UnpackError> {
        let name = || store.name.clone();
        let stored = (self.stored)(&store.name).ok_or_else(|| UnpackError::Missing(name()))?;
        let unbound = |error| UnpackError::Bind { store: name(), error };
        let fault = |error| UnpackError::Transform { store: name(), error };
        let bound = self.scheme.bind(store, self.shape).map_err(unbound)?;
        let (expected, found) = (bound.bytes(), stored.len() as u64);
        if expected != found {
            return Err(fault(TransformError::Size { side: "source", expected, found }));
        }
        let plain = Layout::plain(component, granularity.bits)
            .bind(self.shape, &|_| Some(granularity))
            .map_err(unbound)?;
        bytes.resize(plain.bytes() as usize, 0);
        let transform = Transform::new(component, &bound, &plain, Recode::Keep).map_err(fault)?;
        tracing::debug!(store = store.name, %component, method = ?transform.method(), "unpack");
        transform.run(stored, bytes).map_err(fault)
    }

    fn codes(&self, component: Component) -> Result<Vec<u32>, UnpackError> {
        let bits = self.scheme.granularity(component).map_or(32, |granularity| granularity.bits);
        let slot = (bits.next_power_of_two().max(8) / 8) as usize;
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        Ok(self.plain(component)?.chunks_exact(slot).map(word).collect())
    }

    fn part(
        &self,
        component: Component,
        decode: &dyn Fn(u32) -> f64,
    ) -> Result<GroupValues, UnpackError> {
        let missing = || UnpackError::Missing(component.to_string());
        let granularity = self.scheme.granularity(component).ok_or_else(missing)?;
        let values = self.codes(component)?.into_iter().map(decode).collect();
        Ok(GroupValues { granularity, values })
    }

    /// NaN is not a scale, and 0 is not a divisor.
    fn check_scales(
        &self,
        component: Component,
        values: &[f64],
        divide: bool,
    ) -> Result<(), UnpackError> {
        let wrong = |value: &f64| value.is_nan() || divide && *value == 0.0;
        match values.iter().position(wrong) {
            None => Ok(()),
            Some(element) => {
                let store = store_name(self.scheme, component);
                Err(UnpackError::Scale { store, element, value: values[element] })
            }
        }
    }

    fn input(&self) -> Result<StaticInput, UnpackError> {
        let decoded = |component: Component| match self.scheme.number(component) {
            None => Ok(Vec::new()),
            Some(number) => {
                let codes = self.codes(component)?;
                Ok(codes.into_iter().map(|code| number.decode(code)).collect())
            }
        };
        let prescale = decoded(Component::Prescale)?;
        // An infinite or NaN prescale would look like an invalid x.
        if let Some(element) = prescale.iter().position(|factor| !factor.is_finite()) {
            let store = store_name(self.scheme, Component::Prescale);
            return Err(UnpackError::Scale { store, element, value: prescale[element] });
        }
        let Some(quantiser) = self.scheme.quantiser() else {
            return Ok(StaticInput { prescale, ..StaticInput::default() });
        };
        let scales = (0u8..).zip(&quantiser.scales).map(|(level, scale)| {
            let values = decoded(Component::InputScale(level))?;
            self.check_scales(Component::InputScale(level), &values, scale.divide)?;
            Ok(values)
        });
        let scales = scales.collect::<Result<_, UnpackError>>()?;
        Ok(StaticInput { scales, zeros: decoded(Component::InputZero)?, prescale })
    }
}
