//! The digits of one axis of one leaf as numbers: they must form a chain from the component's group
//! size to the end of the axis.

use super::bind::{BindError, GroupSize};
use super::{Axis, Component, Digit, DigitRange};

/// A digit with numbers, in units of e, n and k (never of groups).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) axis: Axis,
    pub(super) stride: u64,
    pub(super) size: u64,
}

pub(super) fn swizzle_digit(
    id: usize,
    size: u64,
    other: &Digit,
) -> Result<(Axis, u64, u64), BindError> {
    let fault = |message: String| {
        BindError::new(Some(id), message, "XOR digits of the same power-of-two size, `k:8 ^ n:8`")
    };
    let DigitRange::Sized { stride, size: other_size } = other.part else {
        return Err(fault(format!("`{other}` needs a size to be XORed")));
    };
    if stride == 0 {
        return Err(fault(format!("the digit `{other}` has stride 0")));
    }
    if other.axis == Axis::G {
        return Err(fault(format!("`{other}`: a swizzle takes the column digit `k`")));
    }
    if u64::from(other_size) != size || !size.is_power_of_two() {
        return Err(fault(format!("cannot XOR {size} values with {other_size}")));
    }
    Ok((other.axis, u64::from(stride), u64::from(other_size)))
}

/// Numbers for the digits of one axis of one leaf, in the given order.
pub(super) fn resolve_digits(
    component: Component,
    axis: Axis,
    group_size: GroupSize,
    extent: u64,
    chain: &[(usize, &Digit)],
) -> Result<Vec<Resolved>, BindError> {
    let of = axis.to_string();
    let unit = match group_size {
        GroupSize::Each(count) => u64::from(count),
        GroupSize::All => extent.max(1),
    };
    if chain.is_empty() {
        return if group_size.elements(extent) <= 1 {
            Ok(Vec::new())
        } else {
            Err(BindError::new(
                None,
                format!(
                    "the layout of `{component}` has no digit of {of}, but its values vary along it"
                ),
                format!("add the digit `{of}`"),
            ))
        };
    }
    // Explicit digits, sorted by stride, must count up from the group size without gap or overlap.
    let mut sized: Vec<(u64, u64, usize)> = Vec::new();
    for (id, digit) in chain {
        if let DigitRange::Sized { stride, size } = digit.part {
            if stride == 0 || size == 0 {
                return Err(BindError::new(
                    Some(*id),
                    format!("the digit `{digit}` has stride {stride} and size {size}"),
                    "stride and size are at least 1",
                ));
            }
            // g counts groups, n counts row groups, k always counts columns.
            let units = if digit.axis == Axis::K { 1 } else { unit };
            sized.push((u64::from(stride).saturating_mul(units), u64::from(size), *id));
        }
    }
    sized.sort_unstable();
    let mut covered = unit;
    for (stride, size, id) in &sized {
        if *stride != covered {
            let wrong = if *stride < covered { "overlap" } else { "leave a gap" };
            return Err(BindError::new(
                Some(*id),
                format!(
                    "the digits of {of} {wrong}: the digits below cover {covered}, the stride of this one is {stride}"
                ),
                format!("the next digit of the chain starts at stride {covered}"),
            ));
        }
        covered = covered.saturating_mul(*size);
    }
    let rest: Vec<&(usize, &Digit)> =
        chain.iter().filter(|(_, d)| !matches!(d.part, DigitRange::Sized { .. })).collect();
    let mut top: Option<u64> = None;
    let mut open = 0;
    for (id, digit) in &rest {
        let one_too_many = match digit.part {
            DigitRange::Top { size } => top.replace(u64::from(size)).is_some() || size == 0,
            DigitRange::Whole => chain.len() > 1,
            _ => {
                open += 1;
                open > 1
            }
        };
        if one_too_many {
            return Err(BindError::new(
                Some(*id),
                format!("`{digit}` overlaps another digit of {of}"),
                format!("one digit of {of} may be open; give the others a size, `{of}:8`"),
            ));
        }
    }
    if rest.is_empty() && covered < extent {
        return Err(BindError::new(
            chain.last().map(|(id, _)| *id),
            format!("the digits of {of} cover {covered} of {extent}"),
            format!("add the open digit `{of}` for the rest"),
        ));
    }
    let remaining = extent.div_ceil(covered);
    let top_stride = top.map(|parts| remaining.div_ceil(parts) * covered);
    if let Some(stride) = top_stride
        && open == 0
        && stride != covered
    {
        return Err(BindError::new(
            chain.last().map(|(id, _)| *id),
            format!("no digit covers {of} below its top digit"),
            format!("add the open digit `{of}`"),
        ));
    }
    let resolve_one = |digit: &Digit| -> Resolved {
        let axis = if digit.axis == Axis::G { Axis::K } else { digit.axis };
        let (stride, size) = match digit.part {
            DigitRange::Sized { stride, size } => {
                let units = if digit.axis == Axis::K { 1 } else { unit };
                (u64::from(stride).saturating_mul(units), u64::from(size))
            }
            DigitRange::Open => match top_stride {
                Some(stride) => (covered, stride / covered),
                None => (covered, remaining),
            },
            DigitRange::Top { size } => (top_stride.unwrap_or(covered), u64::from(size)),
            DigitRange::Whole => (unit, extent.div_ceil(unit)),
        };
        Resolved { axis, stride, size }
    };
    Ok(chain.iter().map(|(_, digit)| resolve_one(digit)).collect())
}
