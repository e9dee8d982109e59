//! A layer's values as codes of another scheme, or why that scheme does not hold them.
//!
//! In: an unpacked layer and the scheme to store it by. Out: plain codes of that scheme that stand for
//! the same reals, to the last bit. Nothing is rounded: each number is computed exactly or refused
//! (`exact`).
//!
//! A weight of the layer is `(v - z) s + t`: v is its code's value, z the zero point, s the product of the scale
//! levels, t that of the shift levels; a layer has z or t or neither, or both if the target has them too. The target may have either one,
//! whatever the layer has, since `(v - z) s = v s + (-z s)`. A constant d may be added to all values of codes if
//! it is added to zero points too, or taken from shifts: `((v + d) - (z + d)) s`. d makes the smallest code
//! of the layer the smallest code of the target.
//!
//! - A target without zero points and shifts has codes for `v - z`.
//! - A target with zero points has codes for `v + d`, and `z + d`.
//! - A target with shifts has codes for `v + d`, and `t - d s`.
//!
//! A group of the target is part of a group of the layer, so that its number is the layer's.

use std::collections::HashMap;

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::{Component, Granularity, GroupSize, Shape};
use quantloom_dsl::{Activation, Arithmetic, Scheme};
use rayon::prelude::*;

use super::exact;
use super::inexact::Inexact;
use crate::pack::Slots;
use crate::unpacked::Unpacked;

/// The layer's values as plain codes of `to`; N and K are to be multiples of `whole`.
///
/// # Errors
/// See [`Inexact`].
pub(super) fn recode(from: &Unpacked, to: &Scheme, whole: (u64, u64)) -> Result<Slots, Inexact> {
    clauses(from.scheme(), to)?;
    layouts(from.shape(), to, whole)?;
    let recoder = Recoder { from, to, shape: from.shape(), minus: less(from, to) };
    let mut slots = Slots::new(from.shape());
    recoder.scales(&mut slots)?;
    recoder.zeros_and_shifts(&mut slots)?;
    recoder.others(&mut slots)?;
    slots.set_codes(recoder.codes()?);
    Ok(slots)
}

/// What the schemes say besides the numbers of the weight.
fn clauses(from: &Scheme, to: &Scheme) -> Result<(), Inexact> {
    match (from.experts, to.experts) {
        (Some(_), None) => {
            return Err(Inexact::Experts("the layer is a stack of experts, and one matrix there"));
        }
        (None, Some(_)) => {
            return Err(Inexact::Experts("the layer is one matrix, and a stack of experts there"));
        }
        (from, to) if from != to => {
            return Err(Inexact::Experts("gate and up are stored in another order of rows there"));
        }
        _ => {}
    }
    let quantised = |scheme: &Scheme| scheme.quantiser().cloned();
    if quantised(from) != quantised(to) {
        let what = from.activations.iter().find_map(|activation| match activation {
            Activation::Quantised(quantiser) => Some(quantiser.code.to_string()),
            Activation::Float(_) => None,
        });
        return Err(Inexact::Activation(what.unwrap_or_else(|| "16 bits".to_owned())));
    }
    let name = |arithmetic: Arithmetic| match arithmetic {
        Arithmetic::F32 => "f32",
        Arithmetic::InputDtype => "x's own",
    };
    if from.quantiser().is_some() && from.arithmetic != to.arithmetic {
        let (from, to) = (name(from.arithmetic), name(to.arithmetic));
        return Err(Inexact::Arithmetic { from, to });
    }
    if from.prescale.is_some() && to.prescale.is_none() {
        return Err(Inexact::Prescale);
    }
    if from.index.is_some() && to.index.is_none() {
        return Err(Inexact::Order);
    }
    if from.accumulate != to.accumulate {
        return Err(Inexact::Clause("accumulate"));
    }
    if from.output != to.output {
        return Err(Inexact::Clause("output"));
    }
    if from.bias.is_some() != to.bias.is_some() {
        return Err(Inexact::Clause("bias"));
    }
    Ok(())
}

/// Every layout fits the shape.
fn layouts(shape: Shape, to: &Scheme, whole: (u64, u64)) -> Result<(), Inexact> {
    for (axis, size, of) in [("N", shape.n, whole.0), ("K", shape.k, whole.1)] {
        if !size.is_multiple_of(of) {
            return Err(Inexact::Multiple { axis, size, of });
        }
    }
    for store in &to.stores {
        if let Err(error) = to.bind(store, shape) {
            return Err(Inexact::Layout { store: store.name.clone(), error });
        }
    }
    Ok(())
}

/// d: from the smallest code of the layer to that of the target.
fn less(from: &Unpacked, to: &Scheme) -> f64 {
    let smallest = |values: &mut dyn Iterator<Item = f64>| {
        values.filter(|value| value.is_finite()).fold(f64::INFINITY, f64::min)
    };
    let theirs = smallest(&mut from.code_values().iter().copied());
    let ours = smallest(&mut codes_of(to).map(|(_, value)| value));
    ours - theirs
}

/// The codes of a scheme's weights, and their values.
fn codes_of(scheme: &Scheme) -> impl Iterator<Item = (u8, f64)> + '_ {
    (0..1u32 << scheme.weight.code.bits()).map(|code| (code as u8, scheme.weight.decode(code)))
}

struct Recoder<'a> {
    from: &'a Unpacked,
    to: &'a Scheme,
    shape: Shape,
    /// d of the module's documentation.
    minus: f64,
}

/// Where a group begins: an expert, its first row, its first column.
#[derive(Clone, Copy)]
struct GroupOrigin {
    e: u64,
    n: u64,
    k: u64,
}

impl Recoder<'_> {
    /// The layer's number of a component for a group that begins at an origin. An order of columns is not looked
    /// at: column k is one of the group that has the number of k.
    fn at(&self, component: Component, origin: GroupOrigin) -> Option<f64> {
        let (granularity, values) = self.from.grouped_values(component)?;
        let (rows, cols) = granularity.elements(self.shape);
        let row = origin.e * rows + granularity.rows.group(origin.n);
        values.get((row * cols + granularity.cols.group(origin.k)) as usize).copied()
    }

    /// The levels of scales or shifts of the layer.
    fn scale_levels(&self) -> Vec<(Component, bool)> {
        let levels = (0u8..).zip(&self.from.scheme().scales);
        levels.map(|(at, level)| (Component::Scale(at), level.divide)).collect()
    }

    fn shift_levels(&self) -> Vec<Component> {
        (0u8..).zip(&self.from.scheme().shifts).map(|(at, _)| Component::Shift(at)).collect()
    }

    /// The product of some levels of scales at an origin; `None` if it is not exact. A product of none is 1.
    fn scale_of(&self, levels: &[(Component, bool)], origin: GroupOrigin) -> Option<f64> {
        let mut product: Option<f64> = None;
        for (component, divide) in levels {
            let value = self.at(*component, origin)?;
            product = Some(match (product, divide) {
                (None, false) => value,
                (None, true) => exact::quotient(1.0, value)?,
                (Some(product), false) => exact::product(product, value)?,
                (Some(product), true) => exact::quotient(product, value)?,
            });
        }
        Some(product.unwrap_or(1.0))
    }

    /// t at an origin: the product of the shift levels, or what zero points make of it.
    fn shift_of(&self, origin: GroupOrigin) -> Option<f64> {
        let levels = self.shift_levels();
        if levels.is_empty() {
            let Some(zero) = self.at(Component::Zero, origin) else { return Some(0.0) };
            return exact::product(-zero, self.scale_of(&self.scale_levels(), origin)?);
        }
        let first = self.at(*levels.first()?, origin)?;
        levels[1..]
            .iter()
            .try_fold(first, |all, level| exact::product(all, self.at(*level, origin)?))
    }

    /// z at an origin: the zero point, or what shifts make of it.
    fn zero_of(&self, origin: GroupOrigin) -> Option<f64> {
        if self.from.scheme().shifts.is_empty() {
            return Some(self.at(Component::Zero, origin).unwrap_or(0.0));
        }
        let (shift, scale) = (self.shift_of(origin)?, self.scale_of(&self.scale_levels(), origin)?);
        if shift == 0.0 { Some(0.0) } else { exact::quotient(-shift, scale) }
    }

    /// Checks that each group of a component of the target is within a group of each of the layer's.
    fn within(&self, component: Component, of: &[Component]) -> Result<(), Inexact> {
        let Some(to) = self.to.granularity(component) else { return Ok(()) };
        for part in of {
            let Some((from, _)) = self.from.grouped_values(*part) else { continue };
            // An index gives each column a group, whose number is that of the target's group.
            let same = self.from.index().is_none() || from.cols == to.cols;
            let inside = part_of(to.rows, from.rows, self.shape.n)
                && part_of(to.cols, from.cols, self.shape.k);
            if !same || !inside {
                let (from, to) = ((from.rows, from.cols), (to.rows, to.cols));
                return Err(Inexact::Group { component: *part, from, to });
            }
        }
        Ok(())
    }

    /// Adds a component whose numbers are computed for each of its groups.
    fn component(
        &self,
        slots: &mut Slots,
        component: Component,
        number: Number,
        value: &dyn Fn(GroupOrigin) -> Option<f64>,
        code: &dyn Fn(f64) -> Option<u32>,
    ) -> Result<(), Inexact> {
        let Some(granularity) = self.to.granularity(component) else { return Ok(()) };
        let mut codes = Vec::new();
        for origin in origins(granularity, self.shape) {
            let (n, k) = (origin.n, origin.k);
            let value = value(origin).ok_or_else(|| self.not_merged(component, origin))?;
            let code = code(value).ok_or(Inexact::Value { component, n, k, value, number })?;
            codes.push(code);
        }
        slots.extend(self.to, component, &codes);
        Ok(())
    }

    /// Why the number of a component is not computed exactly.
    fn not_merged(&self, component: Component, origin: GroupOrigin) -> Inexact {
        let GroupOrigin { n, k, .. } = origin;
        match component {
            Component::Zero if !self.from.scheme().shifts.is_empty() => {
                Inexact::NoZeroPoint { n, k }
            }
            Component::Scale(level) => {
                let levels = self.scale_levels();
                let own = if self.to.scales.len() == 1 {
                    levels.first()
                } else {
                    levels.get(usize::from(level))
                };
                let alone = self.to.scales.len() > 1 || levels.len() == 1;
                let value = own.and_then(|(own, _)| self.at(*own, origin));
                match value.filter(|_| alone) {
                    Some(value) => Inexact::Reciprocal { component, n, k, value },
                    None => Inexact::Merge { component, n, k },
                }
            }
            component => Inexact::Merge { component, n, k },
        }
    }

    fn scales(&self, slots: &mut Slots) -> Result<(), Inexact> {
        let levels = self.scale_levels();
        let (from, to) = (levels.len(), self.to.scales.len());
        if to != 1 && from != 1 && from != to {
            return Err(Inexact::Levels { what: "scales", from, to });
        }
        for (at, level) in self.to.scales.iter().enumerate() {
            let component = Component::Scale(at as u8);
            // All levels are merged into the only one; levels that the layer lacks are 1.
            let own: &[(Component, bool)] = match to {
                1 => &levels,
                _ => levels.get(at..=at).unwrap_or_default(),
            };
            let of: Vec<Component> = own.iter().map(|(component, _)| *component).collect();
            self.within(component, &of)?;
            let Some(number) = level.stored_number() else { continue };
            let value = |origin: GroupOrigin| {
                // A divisor is stored as it is.
                if let ([(component, true)], true) = (own, level.divide) {
                    return self.at(*component, origin);
                }
                let scale = self.scale_of(own, origin)?;
                if level.divide { exact::quotient(1.0, scale) } else { Some(scale) }
            };
            let code = |value: f64| {
                let code = exact::code(number, level.stored_value(value))?;
                (level.decode(number, code) == value).then_some(code)
            };
            self.component(slots, component, number, &value, &code)?;
        }
        Ok(())
    }

    fn zeros_and_shifts(&self, slots: &mut Slots) -> Result<(), Inexact> {
        let scheme = self.from.scheme();
        // Zero points and levels of shifts of the same codes are kept as they are.
        let kept = scheme.zero.is_some() == self.to.zero.is_some()
            && self.minus == 0.0
            && scheme.shifts.len() == self.to.shifts.len();
        if !kept && scheme.zero.is_some() && !scheme.shifts.is_empty() {
            return Err(Inexact::ZeroAndShift);
        }
        let mut all: Vec<Component> = self.shift_levels();
        if scheme.zero.is_some() {
            all.push(Component::Zero);
        }
        if !scheme.shifts.is_empty() || !self.to.shifts.is_empty() {
            all.extend(self.scale_levels().iter().map(|(component, _)| *component));
        }
        if let Some(zero) = self.to.zero {
            self.within(Component::Zero, if kept { &[Component::Zero] } else { &all })?;
            let value = |origin: GroupOrigin| match kept {
                true => self.at(Component::Zero, origin),
                false => exact::sum(self.zero_of(origin)?, self.minus),
            };
            let code = |value: f64| {
                let code = zero.kind.encode(value);
                (zero.kind.decode(code) == value).then_some(code)
            };
            self.component(slots, Component::Zero, zero.kind.number(), &value, &code)?;
        }
        if !kept && self.to.shifts.len() > 1 {
            let (from, to) = (scheme.shifts.len(), self.to.shifts.len());
            return Err(Inexact::Levels { what: "shifts", from, to });
        }
        for (at, level) in (0u8..).zip(&self.to.shifts) {
            let component = Component::Shift(at);
            if kept {
                self.within(component, &[component])?;
            } else {
                self.within(component, &all)?;
            }
            let value = |origin: GroupOrigin| {
                if kept {
                    return self.at(component, origin);
                }
                let scale = self.scale_of(&self.scale_levels(), origin)?;
                exact::sum(self.shift_of(origin)?, -exact::product(self.minus, scale)?)
            };
            let code = |value: f64| {
                let code = exact::code(level.number, level.stored_value(value))?;
                (level.decode(code) == value).then_some(code)
            };
            self.component(slots, component, level.number, &value, &code)?;
        }
        Ok(())
    }

    /// The bias, the order of columns, and what is stored of x.
    fn others(&self, slots: &mut Slots) -> Result<(), Inexact> {
        let input = self.from.static_input();
        for component in self.to.components() {
            let values: Option<&[f64]> = match component {
                Component::Bias => self.from.bias(),
                Component::InputScale(level) => {
                    input.scales.get(usize::from(level)).map(Vec::as_slice)
                }
                Component::InputZero => Some(&input.zeros),
                Component::Prescale => Some(&input.prescale),
                _ => None,
            };
            let Some(number) = self.to.number(component) else { continue };
            if component == Component::Index {
                let index = self.from.index().unwrap_or_default();
                slots.extend(self.to, component, index);
            }
            let Some(values) = values else { continue };
            let code = |(at, value): (u64, &f64)| {
                let (n, k) = (at, 0);
                let value = *value;
                let inexact = Inexact::Value { component, n, k, value, number };
                exact::code(number, value).ok_or(inexact)
            };
            let codes: Result<Vec<u32>, Inexact> = (0..).zip(values).map(code).collect();
            slots.extend(self.to, component, &codes?);
        }
        Ok(())
    }

    /// The codes of all weights [E, N, K].
    fn codes(&self) -> Result<Vec<u8>, Inexact> {
        let scheme = self.from.scheme();
        let alone = self.to.zero.is_none() && self.to.shifts.is_empty();
        let per_group = alone && (scheme.zero.is_some() || !scheme.shifts.is_empty());
        let mut known: HashMap<u64, u8> = HashMap::new();
        for (code, value) in codes_of(self.to) {
            known.entry(value.to_bits()).or_insert(code);
        }
        let same = scheme.weight == self.to.weight;
        // The target's code of each code of the layer, if this is added to values.
        let table = |added: f64| -> Vec<Option<u8>> {
            let values = self.from.code_values().iter();
            let code = |(code, value): (usize, &f64)| {
                if same && added == 0.0 {
                    return Some(code as u8);
                }
                let value = if added == 0.0 { *value } else { exact::sum(*value, added)? };
                let other = if value == 0.0 { -value } else { value };
                known.get(&value.to_bits()).or_else(|| known.get(&other.to_bits())).copied()
            };
            values.enumerate().map(code).collect()
        };
        let added = if alone { 0.0 } else { self.minus };
        let all = table(added);
        let k = self.shape.k as usize;
        let mut out = vec![0u8; self.from.codes().len()];
        let rows = out.par_chunks_mut(k).zip(self.from.codes().par_chunks(k)).enumerate();
        rows.try_for_each(|(row, (out, codes))| {
            let (e, n) = (row as u64 / self.shape.n, row as u64 % self.shape.n);
            let mut tables: HashMap<u64, Vec<Option<u8>>> = HashMap::new();
            for (k, (out, code)) in out.iter_mut().zip(codes).enumerate() {
                let (table, added) = if per_group {
                    let column = self.column(e, k as u64);
                    let origin = GroupOrigin { e, n, k: column };
                    let merge = || self.not_merged(Component::Zero, origin);
                    let added = -self.zero_of(origin).ok_or_else(merge)?;
                    (&*tables.entry(added.to_bits()).or_insert_with(|| table(added)), added)
                } else {
                    (&all, added)
                };
                let missing = || Inexact::Code {
                    n,
                    k: k as u64,
                    value: self.from.code_values()[usize::from(*code)] + added,
                    codes: self.to.weight.to_string(),
                };
                *out = table[usize::from(*code)].ok_or_else(missing)?;
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// A column of the group that a column is of.
    fn column(&self, e: u64, k: u64) -> u64 {
        let Some(index) = self.from.index() else { return k };
        let group = index.get((e * self.shape.k + k) as usize).copied().unwrap_or(0);
        let of = [Component::Zero, Component::Shift(0)];
        let grouped = of.iter().find_map(|component| self.from.grouped_values(*component));
        match grouped.map(|(granularity, _)| granularity.cols) {
            Some(GroupSize::Each(cols)) => u64::from(group) * u64::from(cols),
            _ => k,
        }
    }
}

/// Whether groups of one size are each within a group of the other.
fn part_of(small: GroupSize, large: GroupSize, extent: u64) -> bool {
    match (small, large) {
        (_, GroupSize::All) => true,
        (GroupSize::All, GroupSize::Each(count)) => extent <= u64::from(count),
        (GroupSize::Each(small), GroupSize::Each(large)) => {
            large % small == 0 || extent <= u64::from(large)
        }
    }
}

/// Where each group begins, in the order of its elements.
fn origins(granularity: Granularity, shape: Shape) -> impl Iterator<Item = GroupOrigin> {
    let (rows, cols) = granularity.elements(shape);
    let step = |group_size: GroupSize, extent: u64| match group_size {
        GroupSize::Each(count) => u64::from(count),
        GroupSize::All => extent,
    };
    let (by_n, by_k) = (step(granularity.rows, shape.n), step(granularity.cols, shape.k));
    (0..shape.experts).flat_map(move |e| {
        (0..rows)
            .flat_map(move |r| (0..cols).map(move |c| GroupOrigin { e, n: r * by_n, k: c * by_k }))
    })
}
