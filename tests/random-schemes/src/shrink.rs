//! Shrinking: makes a failing case small by dropping clauses and simplifying types, groups,
//! layouts, shape and M, as long as it fails alike.

use std::time::Instant;

use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F32, Number};
use quantloom_dsl::layout::{
    Axis, Component, Digit, DigitRange, Field, GroupSize, Layout, OrderDigit, WordType,
};
use quantloom_dsl::{
    Accumulate, Accuracy, Activation, Arithmetic, Code, Group, Quantiser, ScaleType, Scheme, Store,
    Ties, default_layout, default_name, parse,
};

use crate::checks::{Case, Check, Fault, Outcome, Subject};

/// The smallest case found until `end` that fails `check` like `fault`, and its failure.
pub fn shrink(
    subject: &Subject,
    check: &Check,
    case: &Case,
    fault: &Fault,
    end: Instant,
) -> (Case, Fault) {
    let (mut case, mut fault) = (case.clone(), fault.clone());
    let fails = |case: &Case, like: &Fault| {
        let outcome = subject.run(case, std::slice::from_ref(check)).pop()?.1;
        match outcome {
            Outcome::Failed(fault) if fault.like(like) => Some(fault),
            _ => None,
        }
    };
    loop {
        let mut smaller = None;
        candidates(&case, &mut |candidate| {
            if Instant::now() <= end && candidate != case {
                smaller = fails(&candidate, &fault).map(|fault| (candidate, fault));
            }
            smaller.is_some() || Instant::now() > end
        });
        match smaller {
            Some(smaller) => (case, fault) = smaller,
            None => return (case, fault),
        }
    }
}

/// Proposes simpler cases, the simplest first, until one is accepted. Each is smaller in some way,
/// so shrinking ends.
fn candidates(case: &Case, take: &mut dyn FnMut(Case) -> bool) {
    if case.tokens.len() > 1
        && case.tokens.iter().any(|m| take(Case { tokens: vec![*m], ..case.clone() }))
    {
        return;
    }
    let mut taken = false;
    schemes(&case.scheme, &mut |scheme| {
        taken = take(Case { scheme, ..case.clone() });
        taken
    });
    let (n, k) = case.shape;
    let mut sizes = Vec::new();
    sizes.extend(smaller(n).into_iter().map(|n| Case { shape: (n, k), ..case.clone() }));
    sizes.extend(smaller(k).into_iter().map(|k| Case { shape: (n, k), ..case.clone() }));
    if let [m] = case.tokens[..] {
        let fewer = |m: u64| Case { tokens: vec![m as usize], ..case.clone() };
        sizes.extend(smaller(m as u64).into_iter().map(fewer));
    }
    sizes.extend((0..case.seed.min(2)).map(|seed| Case { seed, ..case.clone() }));
    let _ = taken || sizes.into_iter().any(take);
}

/// Smaller numbers, the smallest first.
fn smaller(number: u64) -> Vec<u64> {
    let rounder = |to: u64| (number - 1) / to * to;
    let mut all = vec![1, 8, 32, number / 2, rounder(32), rounder(8), number.saturating_sub(1)];
    all.retain(|small| (1..number).contains(small));
    all.sort_unstable();
    all.dedup();
    all
}

/// Proposes simpler legal schemes until one is accepted.
fn schemes(scheme: &Scheme, take: &mut dyn FnMut(Scheme) -> bool) {
    let mut taken = false;
    let mut change = |change: &dyn Fn(&mut Scheme)| {
        if taken {
            return;
        }
        let mut changed = scheme.clone();
        change(&mut changed);
        // Removed components are no longer stored; components that are no longer stored get a
        // tensor of their own.
        let legal = |scheme: &Scheme| parse(&scheme.to_string()).ok();
        let tidy = tidied(changed.clone());
        let plain = || with_plain_stores(changed);
        if let Some(simpler) = legal(&tidy).or_else(|| legal(&plain()))
            && simpler != *scheme
        {
            taken = take(simpler);
        }
    };
    change(&|s| *s = with_plain_stores(s.clone()));
    change(&|s| s.summary.clear());
    change(&|s| s.targets.clear());
    change(&|s| s.output = None);
    change(&|s| s.bias = None);
    change(&|s| s.accumulate = Accumulate::F32);
    change(&|s| s.arithmetic = Arithmetic::F32);
    change(&|s| s.accuracy = Accuracy::Fast);
    change(&|s| s.experts = None);
    change(&|s| s.index = None);
    change(&|s| s.shifts.clear());
    change(&|s| s.zero = None);
    change(&|s| s.activations = vec![Activation::Float(NUMBER_BF16)]);
    for at in 0..scheme.activations.len() {
        change(&|s| s.activations = vec![s.activations[at].clone()]);
        change(&|s| drop(s.activations.remove(at)));
    }
    for at in 0..scheme.scales.len() {
        change(&|s| _ = s.scales.remove(at));
        change(&|s| s.scales[at].divide = false);
        change(&|s| s.scales[at].offset = 0);
        change(&|s| {
            s.scales[at].offset = 0;
            s.scales[at].number = ScaleType::Number(NUMBER_F32);
        });
        change(&|s| s.scales[at].rule = quantloom_dsl::ScaleRule::amax(8.0));
        for group in groups(scheme.scales[at].group) {
            change(&|s| {
                let old = s.scales[at].group;
                s.scales[at].group = group;
                // Components that shared the group share it still.
                s.zero.iter_mut().filter(|z| z.group == old).for_each(|z| z.group = group);
                s.shifts.iter_mut().filter(|z| z.group == old).for_each(|z| z.group = group);
            });
        }
    }
    for group in scheme.zero.map(|zero| groups(zero.group)).unwrap_or_default() {
        change(&|s| s.zero.iter_mut().for_each(|zero| zero.group = group));
    }
    for at in 0..scheme.shifts.len() {
        change(&|s| _ = s.shifts.remove(at));
        change(&|s| s.shifts[at].negative = false);
        change(&|s| s.shifts[at].offset = 0);
        change(&|s| {
            s.shifts[at].offset = 0;
            s.shifts[at].number = NUMBER_F32;
        });
        for group in groups(scheme.shifts[at].group) {
            change(&|s| s.shifts[at].group = group);
        }
    }
    change(&|s| s.weight.offset = 0);
    change(&|s| s.weight.offset /= 2);
    // Only towards the first item, to avoid cycles.
    let simple = [Number::Int(8), Number::Uint(8), Number::Uint(4)].map(Code::Number);
    for code in simple.iter().take_while(|code| **code != scheme.weight.code) {
        change(&|s| s.weight.code = code.clone());
    }
    change(&|s| {
        if let Code::Codebook(values) = &mut s.weight.code {
            values.truncate(values.len() / 2);
        }
    });
    quantiser(scheme, &mut change);
    for at in 0..scheme.stores.len() {
        change(&|s| {
            let store = &mut s.stores[at];
            store.name = default_name(store.owner);
        });
        change(&|s| {
            let store = &mut s.stores[at];
            let only = store.layout.fields().iter().all(|field| match field {
                Field::Bits { component, .. } => *component == store.owner,
                Field::Pad { .. } => true,
            });
            if only && store.owner != Component::Code {
                store.layout = default_layout(store.owner);
            }
        });
    }
}

fn quantiser(scheme: &Scheme, change: &mut impl FnMut(&dyn Fn(&mut Scheme))) {
    let Some(quantiser) = scheme.quantiser() else { return };
    let with = |s: &mut Scheme, f: &dyn Fn(&mut Quantiser)| {
        for activation in &mut s.activations {
            if let Activation::Quantised(quantiser) = activation {
                f(quantiser);
            }
        }
    };
    change(&|s| with(s, &|q| q.zero = None));
    change(&|s| with(s, &|q| q.ties = Ties::Even));
    change(&|s| with(s, &|q| q.code = Number::Int(8)));
    for at in 0..quantiser.scales.len() {
        change(&|s| with(s, &|q| _ = q.scales.remove(at)));
        change(&|s| with(s, &|q| q.scales[at].divide = false));
        change(&|s| with(s, &|q| q.scales[at].stored = false));
        change(&|s| with(s, &|q| q.scales[at].number = ScaleType::Number(NUMBER_F32)));
        change(&|s| with(s, &|q| q.scales[at].rule = quantloom_dsl::ScaleRule::amax(127.0)));
        for group in groups(quantiser.scales[at].group) {
            change(&|s| with(s, &|q| q.scales[at].group = group));
        }
    }
}

/// Simpler groups.
fn groups(group: Group) -> Vec<Group> {
    let mut all = Vec::new();
    let each =
        |rows: u32, cols: u32| Group { rows: GroupSize::Each(rows), cols: GroupSize::Each(cols) };
    if group.cols != GroupSize::All {
        all.push(Group::ROW);
    }
    if let (GroupSize::Each(rows), GroupSize::Each(cols)) = (group.rows, group.cols) {
        if rows > 1 {
            all.extend([each(1, cols), each(rows / 2, cols)]);
        }
        for rounder in [128, 32] {
            if cols > rounder || cols < rounder && !cols.is_multiple_of(8) {
                all.push(each(rows, rounder));
            }
        }
        if cols > 1 << 12 {
            all.push(each(rows, cols / 2));
        }
    } else if group.rows == GroupSize::All {
        all.push(Group::ROW);
    }
    all
}

/// Without tensors of missing components, and with a tensor for every other component.
fn tidied(mut scheme: Scheme) -> Scheme {
    let components = scheme.components();
    scheme.stores.retain(|store| components.contains(&store.owner));
    for component in components {
        if scheme.stores_of(component).next().is_none() {
            scheme.stores.push(plain_store(&scheme, component));
        }
    }
    scheme.stores.sort_by_key(|store| store.owner);
    scheme
}

/// With a tensor for every component, in the simplest layout.
fn with_plain_stores(mut scheme: Scheme) -> Scheme {
    let components = scheme.components();
    scheme.stores = components.iter().map(|component| plain_store(&scheme, *component)).collect();
    scheme
}

fn plain_store(scheme: &Scheme, component: Component) -> Store {
    let experts = scheme.experts.map(|_| Digit::new(Axis::E, DigitRange::Open));
    let bits = scheme.granularity(component).map_or(8, |granularity| granularity.bits);
    let layout = match component {
        Component::Code => {
            let open = |axis| Digit::new(axis, DigitRange::Open);
            let mut digits = vec![open(Axis::K), open(Axis::N)];
            digits.extend(experts);
            match bits {
                8 => Layout::elements(component, digits),
                _ => Layout::Word {
                    word: WordType { bits: 8, signed: false, msf: false },
                    fields: vec![
                        Field::all(component),
                        Field::Pad {
                            bits: (8 - bits) as u8,
                            fill: quantloom_dsl::layout::Fill::Zero,
                        },
                    ],
                    inner: Vec::new(),
                    order: digits.into_iter().map(OrderDigit::Digit).collect(),
                },
            }
        }
        component => match (default_layout(component), experts) {
            (Layout::For { mut digits, body }, Some(experts)) => {
                digits.push(experts);
                Layout::For { digits, body }
            }
            (layout, _) => layout,
        },
    };
    Store { name: default_name(component), owner: component, layout }
}
