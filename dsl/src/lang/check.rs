//! Clauses to a scheme: reports clauses that are missing, duplicate or contradictory. All errors
//! are collected; there is a scheme only if there are none.

use super::bit_coverage::{BitCoverage, CoverageError};
use super::diagnostic::{Diagnostic, Span};
use super::layouts::LayoutSyntax;
use super::print::offset_text;
use super::syntax::{
    ActivationSyntax, Clause, ScaleSyntax, SchemeSyntax, ShiftSyntax, Stored, levels,
};
use crate::format::Number;
use crate::layout::{Component, Field, GroupSize, Shape, Stepped};
use crate::scheme::{
    Accumulate, Accuracy, Activation, Arithmetic, Code, Group, ScaleRule, ScaleType, Scheme,
    ShiftLevel, Store, Zero, default_layout, default_name,
};

/// Builds the scheme and reports every error.
pub fn check(syntax: &SchemeSyntax, faults: &mut Vec<Diagnostic>) -> Option<Scheme> {
    let before = faults.len();
    duplicates(syntax, faults);
    missing(syntax, faults);
    let mut checker = Checker { syntax, faults, layouts: Vec::new(), names: Vec::new() };
    let scheme = checker.scheme()?;
    checker.rules(&scheme);
    checker.stores(&scheme);
    (faults.len() == before).then_some(scheme)
}

/// Clauses that may occur more than once.
const REPEATED: &[&str] = &["scale", "shift", "pack"];

fn duplicates(syntax: &SchemeSyntax, faults: &mut Vec<Diagnostic>) {
    for (position, (clause, span)) in syntax.clauses.iter().enumerate() {
        let keyword = clause.keyword();
        let again = syntax.clauses[..position].iter().any(|(other, _)| other.keyword() == keyword);
        if again && !REPEATED.contains(&keyword) {
            let fault = Diagnostic::new(*span, format!("a second `{keyword}` clause"));
            faults.push(fault.help("remove one"));
        }
    }
}

fn missing(syntax: &SchemeSyntax, faults: &mut Vec<Diagnostic>) {
    let needed = [
        ("weight", "weight: u4 - 8"),
        ("pack", "pack: u32 [k:8 | k, n]"),
        ("activation", "activation: bf16"),
    ];
    for (keyword, example) in needed {
        let there = syntax.clauses.iter().any(|(clause, _)| clause.keyword() == keyword);
        if !there && !syntax.broken.contains(&keyword) {
            let message = format!("the scheme has no `{keyword}` clause");
            faults
                .push(Diagnostic::new(syntax.span, message).help(format!("add one: `{example}`")));
        }
    }
}

struct Checker<'a> {
    syntax: &'a SchemeSyntax,
    faults: &'a mut Vec<Diagnostic>,
    /// The span of each store's layout.
    layouts: Vec<Option<&'a LayoutSyntax>>,
    /// The span of each store's name.
    names: Vec<Option<Span>>,
}

impl<'a> Checker<'a> {
    fn fault(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        self.faults.push(Diagnostic::new(span, message).help(help));
    }

    fn find<T>(&self, pick: impl Fn(&'a Clause) -> Option<T>) -> Option<(T, Span)> {
        self.syntax.clauses.iter().find_map(|(clause, span)| Some((pick(clause)?, *span)))
    }

    fn scheme(&mut self) -> Option<Scheme> {
        let weight =
            self.optional(|c| if let Clause::Weight(weight) = c { Some(weight) } else { None })?;
        let weight = weight.clone();
        let zero = self.find(|clause| match clause {
            Clause::Zero { kind, group, .. } => Some((*kind, *group)),
            _ => None,
        });
        let asymmetric = zero.is_some();
        let scales: Vec<&ScaleSyntax> = self
            .syntax
            .clauses
            .iter()
            .filter_map(|(clause, _)| match clause {
                Clause::Scale(scale) => Some(scale),
                _ => None,
            })
            .collect();
        let first_group = scales.first().map(|scale| scale.group);
        let zero = zero.and_then(|((kind, group), span)| {
            let group = self.group_of(group.or(first_group), "zero", span)?;
            Some(Zero { kind, group })
        });
        let shifts = self.shifts(first_group);
        let activations: Vec<Activation> = self
            .optional(|c| if let Clause::Activation(list) = c { Some(list) } else { None })
            .map_or_else(Vec::new, |list| list.iter().map(ActivationSyntax::to_model).collect());
        let mut scheme = Scheme {
            name: self.syntax.name.clone(),
            summary: self.syntax.docs.join("\n"),
            scales: levels(scales.into_iter(), &weight, asymmetric),
            weight,
            zero,
            shifts,
            index: self.optional(|c| {
                if let Clause::Index { number, .. } = c { Some(*number) } else { None }
            }),
            stores: Vec::new(),
            prescale: self.optional(|c| {
                if let Clause::Prescale { number, .. } = c { Some(*number) } else { None }
            }),
            activations,
            bias: self.optional(|c| {
                if let Clause::Bias { number, .. } = c { Some(*number) } else { None }
            }),
            accumulate: self.choice(
                |c| if let Clause::Accumulate(a) = c { Some(*a) } else { None },
                Accumulate::F32,
            ),
            output: self
                .optional(|c| if let Clause::Output(number) = c { Some(*number) } else { None }),
            arithmetic: self.choice(
                |c| if let Clause::Arithmetic(a) = c { Some(*a) } else { None },
                Arithmetic::F32,
            ),
            accuracy: self.choice(
                |c| if let Clause::Accuracy(a) = c { Some(*a) } else { None },
                Accuracy::Fast,
            ),
            experts: self
                .optional(|c| if let Clause::Experts(experts) = c { Some(*experts) } else { None }),
            targets: self
                .optional(|c| if let Clause::Targets(targets) = c { Some(targets) } else { None })
                .map_or_else(Vec::new, |targets| {
                    targets.iter().map(|(name, _)| name.clone()).collect()
                }),
        };
        self.collect_stores(&mut scheme);
        Some(scheme)
    }

    /// The shift's levels; a group that is left out is that of the first scale.
    fn shifts(&mut self, first_group: Option<Group>) -> Vec<ShiftLevel> {
        let clauses = self.syntax.clauses.iter();
        let shifts = clauses.filter_map(|(clause, span)| match clause {
            Clause::Shift(shift) => Some((shift, *span)),
            _ => None,
        });
        let level = |(shift, span): (&ShiftSyntax, Span)| {
            let ShiftSyntax { number, offset, negative, group, .. } = *shift;
            let group = self.group_of(group.or(first_group), "shift", span)?;
            Some(ShiftLevel { number, offset, negative, group })
        };
        shifts.filter_map(level).collect()
    }

    /// What the clause that is picked says, if the scheme has it.
    fn optional<T>(&self, pick: impl Fn(&'a Clause) -> Option<T>) -> Option<T> {
        self.find(pick).map(|(value, _)| value)
    }

    fn choice<T: Copy>(&self, pick: impl Fn(&'a Clause) -> Option<T>, default: T) -> T {
        self.optional(pick).unwrap_or(default)
    }

    fn group_of<T>(&mut self, group: Option<T>, what: &str, span: Span) -> Option<T> {
        if group.is_none() {
            self.fault(
                span,
                format!("`{what}` has no group, and there is no scale whose group it could use"),
                format!("give it a group: `{what}: ... per 1x128`"),
            );
        }
        group
    }

    /// One store for each clause that has a layout, or whose component is in no other layout.
    fn collect_stores(&mut self, scheme: &mut Scheme) {
        let clauses = &self.syntax.clauses;
        let mut packs = 0;
        for (clause, _) in clauses {
            if let Clause::Pack { layout, name } = clause {
                let usual = match packs {
                    0 => default_name(Component::Code),
                    more => format!("{}_{}", default_name(Component::Code), more + 1),
                };
                packs += 1;
                self.push(scheme, Component::Code, Some(layout), name.as_ref(), usual);
            }
        }
        let (mut level, mut shift_level) = (0u8, 0u8);
        let mut parts: Vec<(Component, &'a Stored)> = Vec::new();
        for (clause, _) in clauses {
            match clause {
                Clause::Scale(scale) => {
                    parts.push((Component::Scale(level), &scale.stored));
                    level = level.saturating_add(1);
                }
                Clause::Zero { stored, .. } => parts.push((Component::Zero, stored)),
                Clause::Shift(shift) => {
                    parts.push((Component::Shift(shift_level), &shift.stored));
                    shift_level = shift_level.saturating_add(1);
                }
                Clause::Index { stored, .. } => parts.push((Component::Index, stored)),
                Clause::Bias { stored, .. } => parts.push((Component::Bias, stored)),
                Clause::Prescale { stored, .. } => parts.push((Component::Prescale, stored)),
                Clause::Activation(list) => activation_parts(scheme, list, &mut parts),
                _ => {}
            }
        }
        // Sorted, so that the order of the clauses does not matter.
        parts.sort_by_key(|(component, _)| *component);
        for (component, stored) in &parts {
            let holds = |written: &LayoutSyntax| written.layout.holds(*component);
            let elsewhere = scheme.stores.iter().any(|store| store.layout.holds(*component))
                || parts.iter().any(|(_, other)| other.layout.as_ref().is_some_and(holds));
            // Words that name no component have been reported already.
            let known = scheme.granularity(*component).is_some();
            if known && (stored.layout.is_some() || !elsewhere) {
                let (layout, name) = (stored.layout.as_ref(), stored.name.as_ref());
                self.push(scheme, *component, layout, name, default_name(*component));
            } else if known && let Some((name, span)) = &stored.name {
                self.fault(
                    *span,
                    format!("`{component}` is named \"{name}\", but is stored in another tensor"),
                    "give the name after that tensor's layout, and remove it here",
                );
            }
        }
    }

    fn push(
        &mut self,
        scheme: &mut Scheme,
        owner: Component,
        written: Option<&'a LayoutSyntax>,
        name: Option<&(String, Span)>,
        usual: String,
    ) {
        let layout =
            written.map_or_else(|| default_layout(owner), |written| written.layout.clone());
        self.names.push(name.map(|(_, span)| *span));
        let name = name.map_or(usual, |(name, _)| name.clone());
        scheme.stores.push(Store { name, owner, layout });
        self.layouts.push(written);
    }

    /// Contradictions between clauses.
    fn rules(&mut self, scheme: &Scheme) {
        let float_code = scheme.weight.code.is_float();
        for (clause, span) in &self.syntax.clauses {
            match clause {
                Clause::Weight(weight) => {
                    if let Code::Number(number) = weight.code {
                        self.code_has_values(number, *span);
                    }
                    if float_code && weight.offset != 0 {
                        self.fault(
                            *span,
                            "an offset for a float code",
                            "float codes have a sign bit; remove the offset",
                        );
                    }
                }
                Clause::Zero { .. } if float_code => self.fault(
                    *span,
                    "a zero point for a float code",
                    "float codes are symmetric about 0; remove the zero point, or use `shift`",
                ),
                Clause::Accumulate(Accumulate::I32) => self.integers_only(scheme, *span),
                Clause::Scale(scale) => self.scale_rules(scale, *span, scheme.zero.is_some()),
                Clause::Index { number, .. } if number.is_float() => self.fault(
                    *span,
                    format!("a group index of type {number}"),
                    "a group index is an integer, `index: i32`",
                ),
                Clause::Index { .. } if !grouped(scheme) => self.fault(
                    *span,
                    "a group index, but no scale, zero point or shift varies along k",
                    "give the scale a group along k, `per 1x128`, or remove the index",
                ),
                Clause::Shift(shift) => self.shift_rules(shift, *span),
                Clause::Prescale { .. } if scheme.experts.is_some() => self.fault(
                    *span,
                    "a prescale with stacked experts",
                    "all experts multiply the same x; multiply x before the product, or remove \
                     `experts` out",
                ),
                Clause::Activation(list) => self.activation_rules(list),
                _ => {}
            }
        }
        if scheme.scales.len() > 8 {
            self.fault(self.syntax.span, "more than 8 scale levels", "merge some of them");
        }
        if scheme.shifts.len() > 8 {
            self.fault(self.syntax.span, "more than 8 shift levels", "merge some of them");
        }
        let integer = |shift: &ShiftLevel| !shift.number.is_float();
        if !scheme.shifts.is_empty() && scheme.shifts.iter().all(integer) {
            let first = self.find(|clause| matches!(clause, Clause::Shift(_)).then_some(()));
            self.fault(
                first.map_or(self.syntax.span, |(_, span)| span),
                "a shift of integers alone",
                "add the level that they are multiplied with, `shift: f16 per 1x256`; a zero point in \
                 units of codes is `zero`",
            );
        }
    }

    fn integers_only(&mut self, scheme: &Scheme, span: Span) {
        let float_activation = |activation: &Activation| match activation {
            Activation::Float(_) => true,
            Activation::Quantised(quantiser) => quantiser.code.is_float(),
        };
        if scheme.weight.code.is_float() {
            self.fault(span, "i32 accumulation of float codes", "accumulate in f32");
        } else if scheme.activations.iter().any(float_activation) {
            self.fault(
                span,
                "i32 accumulation of float activations",
                "quantise the activation to integers, `i8 { scale: own per token }`, or \
                 accumulate in f32",
            );
        }
    }

    fn scale_rules(&mut self, scale: &ScaleSyntax, span: Span, asymmetric: bool) {
        if scale.number == ScaleType::InputDtype {
            self.fault(
                span,
                "a stored scale needs a type",
                "give it a type: `scale: bf16 per 1x128`",
            );
        }
        if scale.fixed {
            self.fault(span, "every weight scale is stored", "remove `static`");
        }
        if let ScaleType::Number(number) = scale.number {
            self.offset_of_integer(number, scale.offset, span);
        }
        if scale.divide && scale.offset != 0 {
            self.fault(
                span,
                "an offset of a scale that divides",
                "a divisor of 0 has no meaning; remove the offset, or multiply",
            );
        }
        self.scale_is_positive(scale, span);
        self.range_needs_zero(scale.rule, asymmetric, span);
    }

    fn shift_rules(&mut self, shift: &ShiftSyntax, span: Span) {
        let ShiftSyntax { number, offset, .. } = *shift;
        if number == Number::E8m0 {
            self.fault(
                span,
                format!("a shift of type {number}"),
                "a level of a shift is a float with a sign, `shift: f16`, or an integer",
            );
        }
        self.offset_of_integer(number, offset, span);
    }

    /// Floats have a sign, and powers of two none at all.
    fn offset_of_integer(&mut self, number: Number, offset: i32, span: Span) {
        if offset != 0 && !matches!(number, Number::Uint(_) | Number::Int(_)) {
            self.fault(
                span,
                format!("an offset of a number of type {number}"),
                "only integers have an offset, `u6 - 32`; remove it",
            );
        }
    }

    /// No scale can be chosen in a type of nothing above 0: `i1`, `e1m0fn`, `u4 - 15`.
    fn scale_is_positive(&mut self, scale: &ScaleSyntax, span: Span) {
        if let ScaleType::Number(number) = scale.number
            && number.max() - f64::from(scale.offset) <= 0.0
        {
            let name = format!("{number}{}", offset_text(scale.offset));
            let text = format!("no number of {name} is larger than 0, and so none is a scale");
            self.fault(span, text, "take a type with more bits");
        }
    }

    /// Codes that are all 0 or NaN (`e1m0fn`) say nothing, and no scale follows from them.
    fn code_has_values(&mut self, number: Number, span: Span) {
        if number.max() <= 0.0 && number.min() >= 0.0 {
            let text = format!("no code of {number} is a number other than 0");
            self.fault(span, text, "take a type with more bits");
        }
    }

    fn range_needs_zero(&mut self, rule: Option<ScaleRule>, asymmetric: bool, span: Span) {
        if matches!(rule, Some(ScaleRule::Range(_))) && !asymmetric {
            self.fault(
                span,
                "a scale from the whole range needs a zero point",
                "add `zero`, or choose the scale `from amax / ...`",
            );
        }
    }

    fn activation_rules(&mut self, list: &[ActivationSyntax]) {
        let mut quantised = 0;
        for activation in list {
            let ActivationSyntax::Quantised { code, zero, scales, span: here, .. } = activation
            else {
                continue;
            };
            let here = *here;
            quantised += 1;
            if quantised == 2 {
                self.fault(
                    here,
                    "several quantised activations",
                    "list one quantiser, with any number of float types; a second one needs another scheme",
                );
            }
            self.code_has_values(*code, here);
            if scales.is_empty() {
                self.fault(
                    here,
                    format!("the activation is quantised to {code} without a scale"),
                    format!("add one: `{code} {{ scale: own per token }}`"),
                );
            }
            if scales.len() > 8 {
                self.fault(here, "more than 8 scale levels", "merge some of them");
            }
            if zero.is_some() && code.is_float() {
                self.fault(here, "a zero point for a float activation", "remove `zero`");
            }
            for (scale, span) in scales {
                let stored = &scale.stored;
                if !scale.fixed && (stored.layout.is_some() || stored.name.is_some()) {
                    self.fault(
                        *span,
                        "a dynamic scale is not stored, and has no layout or name",
                        "remove them, or write `static` before them",
                    );
                }
                if scale.fixed && scale.number == ScaleType::InputDtype {
                    self.fault(
                        *span,
                        "a static scale is stored and needs a type",
                        "give it a type",
                    );
                }
                if scale.fixed && scale.group.rows != GroupSize::All {
                    self.fault(
                        *span,
                        "a static scale cannot be per token",
                        "the number of tokens is known only at run time; use `per tensor`",
                    );
                }
                if scale.offset != 0 {
                    self.fault(
                        *span,
                        "an offset of an activation's scale",
                        "only a weight's scales have an offset; remove it",
                    );
                }
                self.scale_is_positive(scale, *span);
                self.range_needs_zero(scale.rule, zero.is_some(), *span);
            }
        }
    }

    /// Every layout binds, and every bit of every component is stored exactly once.
    fn stores(&mut self, scheme: &Scheme) {
        // Divisible by every usual digit, so that no partial group hides an error.
        let probe = Shape {
            experts: if scheme.experts.is_some() { 6 } else { 1 },
            n: 1 << 13,
            k: 15 << 13,
        };
        for (store, written) in scheme.stores.iter().zip(self.layouts.clone()) {
            if let Err(error) = scheme.bind(store, probe) {
                let span = written.map_or(self.syntax.span, |written| {
                    let digit = error.digit.and_then(|digit| written.digits.get(digit));
                    let field = error.field.and_then(|field| written.fields.get(field));
                    let part = error.part.and_then(|part| written.parts.get(part as usize));
                    digit.or(field).or(part).copied().unwrap_or(written.span)
                });
                let mut fault = Diagnostic::new(span, error.message);
                fault.help = error.help;
                self.faults.push(fault);
            }
        }
        for component in scheme.components() {
            self.placed_once(scheme, component);
        }
        for (position, store) in scheme.stores.iter().enumerate() {
            let named_so = |other: &Store| other.name == store.name;
            let Some(first) = scheme.stores[..position].iter().position(named_so) else { continue };
            let span = self.names[position].or(self.names[first]).unwrap_or(self.syntax.span);
            let message = format!("two stored tensors are named \"{}\"", store.name);
            self.fault(span, message, "rename one of them: `as \"name\"`");
        }
    }

    fn placed_once(&mut self, scheme: &Scheme, component: Component) {
        let Some(granularity) = scheme.granularity(component) else { return };
        let mut placed = vec![BitCoverage::default(); granularity.bits as usize];
        let mut wrong = None;
        for (store, written) in scheme.stores.iter().zip(&self.layouts) {
            // Binding has reported wrong steps and bits beyond the width.
            let Some(fields) = store.layout.stepped() else { return };
            for (position, of_step) in fields.iter().enumerate() {
                let Field::Bits { component: here, range, .. } = of_step.field else { continue };
                if here != component {
                    continue;
                }
                let (low, high) = range.unwrap_or((0, granularity.bits as u8));
                for bit in low..high {
                    let Some(bits) = placed.get_mut(usize::from(bit)) else { return };
                    if let Err(clash) = bits.place(of_step) {
                        let span = written.and_then(|w| w.fields.get(position).copied());
                        wrong = wrong.or(Some((bit, clash, span.unwrap_or(self.syntax.span))));
                    }
                }
            }
        }
        let absent = |(bit, placed): (usize, &BitCoverage<'_>)| Some((bit, placed.absent()?));
        if let Some((bit, clash, span)) = wrong {
            let (message, help) = match clash {
                CoverageError::Twice(step) => (
                    format!("bit {bit} of `{component}` is stored twice{step}"),
                    "store each bit once: remove one, or split the code into slices, \
                     `code[0..4]`",
                ),
                CoverageError::Digits([here, elsewhere]) => (
                    format!(
                        "the steps of bit {bit} of `{component}` are counted by `{here}` here and \
                         by `{elsewhere}` elsewhere"
                    ),
                    "count the steps by the same digits, in the same order, in every word that \
                     holds the bit",
                ),
            };
            self.fault(span, message, help);
        } else if let Some((bit, step)) = placed.iter().enumerate().find_map(absent) {
            // Missing or unreadable clauses have been reported already.
            if component == Component::Code && self.syntax.broken.contains(&"pack") {
                return;
            }
            let mut stores = scheme.stores.iter().zip(&self.layouts);
            let own = |store: &Store| store.layout.holds(component) || store.owner == component;
            let Some((store, written)) = stores.find(|(store, _)| own(store)) else { return };
            // Reported at the last field of the component, if there is one.
            let beside = written.and_then(|written| {
                let fields = store.layout.stepped()?;
                let holds = |field: &Stepped<'_>| matches!(field.field, Field::Bits { component: here, .. } if here == component);
                written.fields.get(fields.iter().rposition(holds)?)
            });
            let span = beside.copied().or(written.map(|w| w.span)).unwrap_or(self.syntax.span);
            self.fault(
                span,
                format!("bit {bit} of `{component}` is not stored{step}"),
                format!("store all {} of its bits", granularity.bits),
            );
        }
    }
}

/// The stored parameters of a quantised activation: static levels and their zero point.
fn activation_parts<'a>(
    scheme: &Scheme,
    list: &'a [ActivationSyntax],
    parts: &mut Vec<(Component, &'a Stored)>,
) {
    let quantised = list.iter().find_map(|activation| match activation {
        ActivationSyntax::Quantised { zero, scales, .. } => Some((zero.as_deref(), scales)),
        ActivationSyntax::Float(_) => None,
    });
    let Some((zero, scales)) = quantised else { return };
    for (level, (scale, _)) in scales.iter().enumerate() {
        let component = Component::InputScale(u8::try_from(level).unwrap_or(u8::MAX));
        if scale.fixed && scale.group.rows == GroupSize::All {
            parts.push((component, &scale.stored));
        }
    }
    if let (Some((_, stored)), Some(_)) = (zero, scheme.granularity(Component::InputZero)) {
        parts.push((Component::InputZero, stored));
    }
}

fn grouped(scheme: &Scheme) -> bool {
    let along_k = |cols: GroupSize| matches!(cols, GroupSize::Each(_));
    scheme.scales.iter().any(|scale| along_k(scale.group.cols))
        || scheme.zero.is_some_and(|zero| along_k(zero.group.cols))
        || scheme.shifts.iter().any(|shift| along_k(shift.group.cols))
}
