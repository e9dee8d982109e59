//! One matrix of a stack of experts: an expert's, or one shard of it.

use quantloom_dsl::layout::{
    Axis, Component, Digit, DigitRange, GroupSize, Layout, OrderDigit, Shape,
};
use quantloom_dsl::reference::StaticInput;
use quantloom_dsl::{Experts, Scheme};

use super::{GroupValues, UnpackError, Unpacked, store_name};

impl Unpacked {
    /// One expert's weight, as that of a scheme without experts. `None` if there is no such expert.
    pub fn expert(&self, expert: u64) -> Option<Self> {
        let experts = self.shape.experts;
        if expert >= experts {
            return None;
        }
        let own = |count: usize| {
            let each = count / experts as usize;
            each * expert as usize..each * (expert as usize + 1)
        };
        let part = |part: &GroupValues| GroupValues {
            granularity: part.granularity,
            values: part.values[own(part.values.len())].to_vec(),
        };
        Some(Self {
            scheme: Scheme { experts: None, ..self.scheme.clone() },
            shape: Shape { experts: 1, ..self.shape },
            codes: self.codes[own(self.codes.len())].to_vec(),
            values: self.values.clone(),
            scales: self.scales.iter().map(|(scale, divide)| (part(scale), *divide)).collect(),
            zero: self.zero.as_ref().map(part),
            shifts: self.shifts.iter().map(part).collect(),
            index: self.index.as_ref().map(|index| index[own(index.len())].to_vec()),
            bias: self.bias.as_ref().map(|bias| bias[own(bias.len())].to_vec()),
            input: self.input.of_expert(expert, experts),
            stride: self.stride,
        })
    }

    /// Experts' weights as one of all, expert after expert. `None` if there is none, or if they are of different
    /// schemes or shapes, are stacks themselves, or have static parameters of x.
    pub(crate) fn stacked(experts: Vec<Self>) -> Option<Self> {
        let count = experts.len() as u64;
        let mut experts = experts.into_iter();
        let mut all = experts.next()?;
        let alone = |one: &Self| {
            one.scheme.experts.is_none()
                && one.shape.experts == 1
                && one.input == StaticInput::default()
        };
        if !alone(&all) {
            return None;
        }
        for one in experts {
            if !alone(&one) || !one.scheme.same_meaning(&all.scheme) || one.shape != all.shape {
                return None;
            }
            all.codes.extend(one.codes);
            for ((all, _), (one, _)) in all.scales.iter_mut().zip(one.scales) {
                all.values.extend(one.values);
            }
            let parts = all.zero.iter_mut().chain(&mut all.shifts);
            for (all, one) in parts.zip(one.zero.into_iter().chain(one.shifts)) {
                all.values.extend(one.values);
            }
            all.index.iter_mut().zip(one.index).for_each(|(all, one)| all.extend(one));
            all.bias.iter_mut().zip(one.bias).for_each(|(all, one)| all.extend(one));
        }
        all.scheme.experts = Some(Experts::Single);
        all.shape.experts = count;
        Some(all)
    }

    /// Shard 0 (gate) or 1 (up) of an expert's first matrix, as a weight of a scheme without experts:
    /// half of the rows if the scheme's shards are concatenated or interleaved. Otherwise shard 0 is
    /// the whole matrix.
    ///
    /// # Errors
    /// [`UnpackError::NoShard`]; [`UnpackError::Straddles`] if a scale, zero point or shift is of rows
    /// of both shards, except if it is of all rows.
    pub fn shard(&self, expert: u64, shard: u64) -> Result<Self, UnpackError> {
        let rows = ShardRows { stored: self.scheme.experts, n: self.shape.n, shard };
        let missing = UnpackError::NoShard { expert, shard };
        let odd = !self.shape.n.is_multiple_of(rows.shards());
        let whole = self.expert(expert).filter(|_| shard < rows.shards() && !odd).ok_or(missing)?;
        if rows.shards() == 1 {
            return Ok(whole);
        }
        if let Some(error) = straddling(&self.scheme, self.shape) {
            return Err(error);
        }
        let part = |part: &GroupValues| {
            let columns = part.granularity.elements(whole.shape).1 as usize;
            let values = match part.granularity.rows {
                GroupSize::All => part.values.clone(),
                GroupSize::Each(each) => rows.gathered(&part.values, columns, each),
            };
            GroupValues { granularity: part.granularity, values }
        };
        let k = whole.shape.k as usize;
        Ok(Self {
            shape: Shape { n: rows.rows(), ..whole.shape },
            codes: rows.gathered(&whole.codes, k, 1),
            scales: whole.scales.iter().map(|(scale, divide)| (part(scale), *divide)).collect(),
            zero: whole.zero.as_ref().map(part),
            shifts: whole.shifts.iter().map(part).collect(),
            bias: whole.bias.as_ref().map(|bias| rows.gathered(bias, 1, 1)),
            ..whole
        })
    }
}

/// How many shards the first product of a stack's experts has, by its scheme.
pub(crate) fn shards(scheme: &Scheme) -> u64 {
    ShardRows { stored: scheme.experts, n: 0, shard: 0 }.shards()
}

/// A shard of an expert of a stack of stored tensors: the expert's own bytes are unpacked, unless they are not
/// contiguous.
pub(crate) fn shard_of_stack<'t>(
    scheme: &Scheme,
    shape: Shape,
    stored: &dyn Fn(&str) -> Option<&'t [u8]>,
    (expert, shard): (u64, u64),
) -> Result<Unpacked, UnpackError> {
    if expert >= shape.experts {
        return Err(UnpackError::NoShard { expert, shard });
    }
    let one = Shape { experts: 1, ..shape };
    let mut own = Vec::new();
    for store in &scheme.stores {
        let bytes = stored(&store.name).unwrap_or_default();
        let whole = |bits: &u64| bits.is_multiple_of(8);
        let bits = scheme.bind(store, one).ok().map(|bound| bound.bits()).filter(whole);
        let of_one = |part: &&[u8]| bits == Some(part.len() as u64 * 8);
        // What all experts share has the size of one.
        let part = Some(bytes).filter(of_one);
        let part = part.or_else(|| expert_bytes(&store.layout, bytes, expert, shape.experts));
        own.extend(part.filter(of_one).map(|part| (&store.name, part)));
    }
    if own.len() < scheme.stores.len() {
        return Unpacked::new(scheme, shape, stored)?.shard(expert, shard);
    }
    let stored = |name: &str| own.iter().find(|(own, _)| *own == name).map(|(_, bytes)| *bytes);
    Unpacked::new(scheme, one, &stored)?.shard(0, shard)
}

/// Which rows of an expert's stored matrix are those of a shard.
struct ShardRows {
    stored: Option<Experts>,
    /// Rows of all shards.
    n: u64,
    shard: u64,
}

impl ShardRows {
    fn shards(&self) -> u64 {
        match self.stored {
            Some(Experts::Concatenated | Experts::Interleaved) => 2,
            Some(Experts::Single) | None => 1,
        }
    }

    fn rows(&self) -> u64 {
        self.n / self.shards()
    }

    /// The shard's rows of values of which `each` rows share `columns`, if no rows of both shards do.
    fn gathered<T: Copy>(&self, values: &[T], columns: usize, each: u32) -> Vec<T> {
        let groups = self.rows() / u64::from(each);
        let row = |at: u64| &values[at as usize * columns..][..columns];
        let place = |at: u64| match self.stored {
            Some(Experts::Interleaved) => at * 2 + self.shard,
            _ => self.shard * groups + at,
        };
        (0..groups).flat_map(|at| row(place(at))).copied().collect()
    }
}

/// The scale, zero point or shift of a stack that is of rows of both shards, if there is one that is not
/// of all rows.
pub(crate) fn straddling(scheme: &Scheme, shape: Shape) -> Option<UnpackError> {
    let rows = ShardRows { stored: scheme.experts, n: shape.n, shard: 0 };
    let straddles = |component: &Component| {
        let GroupSize::Each(each) = scheme.granularity(*component)?.rows else { return None };
        let apart = match scheme.experts {
            Some(Experts::Interleaved) => each == 1,
            Some(Experts::Concatenated) => rows.rows().is_multiple_of(u64::from(each)),
            Some(Experts::Single) | None => true,
        };
        let store = || store_name(scheme, *component);
        (!apart).then(|| UnpackError::Straddles { store: store(), each, rows: rows.rows() })
    };
    let parameters = scheme.components().into_iter().filter(|component| {
        matches!(component, Component::Scale(_) | Component::Zero | Component::Shift(_))
    });
    parameters.into_iter().find_map(|component| straddles(&component))
}

/// One expert's bytes of a stored tensor of a stack, if they are contiguous: where the expert is the
/// slowest digit of the layout.
pub(crate) fn expert_bytes<'b>(
    layout: &Layout,
    bytes: &'b [u8],
    expert: u64,
    experts: u64,
) -> Option<&'b [u8]> {
    let slowest = match layout {
        Layout::For { digits, .. } => digits.last(),
        Layout::Word { order, .. } => match order.last() {
            Some(OrderDigit::Digit(digit)) => Some(digit),
            _ => None,
        },
        Layout::Field(_) | Layout::Sequence(_) => None,
    };
    let whole = slowest.is_some_and(|digit| {
        digit.axis == Axis::E
            && digit.part == DigitRange::Open
            && !digit.down
            && digit.swizzle.is_none()
    });
    // A faster digit of e would put other experts between its bytes.
    let whole = whole && digits(layout).filter(|digit| digit.axis == Axis::E).count() == 1;
    let each = bytes.len().checked_div(usize::try_from(experts).ok()?)?;
    let first = usize::try_from(expert).ok()?.checked_mul(each)?;
    bytes.get(first..first.checked_add(each)?).filter(|_| whole)
}

/// Every digit of a layout, without those that swizzle another one.
fn digits(layout: &Layout) -> Box<dyn Iterator<Item = &Digit> + '_> {
    match layout {
        Layout::Field(_) => Box::new(std::iter::empty()),
        Layout::Sequence(parts) => Box::new(parts.iter().flat_map(digits)),
        Layout::For { digits: own, body } => Box::new(own.iter().chain(digits(body))),
        Layout::Word { inner, order, .. } => {
            let order = order.iter().filter_map(|digit| match digit {
                OrderDigit::Digit(digit) => Some(digit),
                OrderDigit::Word => None,
            });
            Box::new(inner.iter().chain(order))
        }
    }
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::parse;

    use super::*;

    /// A weight [E, N, K] of one-byte codes in row-major order, code = row number over all experts.
    fn stack(shards: &str, scale: &str, n: u64) -> Result<Unpacked, UnpackError> {
        let groups = if scale == "channel" { "[n, e]" } else { "[g, n, e]" };
        let text = format!(
            "s {{ weight: i8, scale: f32 per {scale} {groups}, pack: [k, n, e], bias: f32 [n, e],
               activation: bf16, experts: {shards} }}"
        );
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{faults}"));
        let shape = Shape { experts: 2, n, k: 4 };
        let stored = |name: &str| {
            let store = scheme.stores.iter().find(|store| store.name == name).unwrap();
            let bytes = scheme.bind(store, shape).unwrap().bytes();
            let bytes: Vec<u8> = match name {
                "weight" => (0..bytes).map(|at| (at / 4) as u8).collect(),
                _ => (0..bytes / 4).flat_map(|at| (at as f32 + 1.0).to_le_bytes()).collect(),
            };
            Some(&*bytes.leak())
        };
        Unpacked::new(&scheme, shape, &stored)
    }

    fn first_codes(weight: &Unpacked) -> Vec<u8> {
        weight.codes().chunks(4).map(|row| row[0]).collect()
    }

    #[test]
    fn rows_of_shards() {
        let weight = stack("concatenated", "channel", 6).unwrap();
        let up = weight.shard(1, 1).unwrap();
        assert_eq!(up.shape(), Shape { experts: 1, n: 3, k: 4 });
        assert_eq!(first_codes(&up), [9, 10, 11]);
        assert_eq!(up.values(Component::Scale(0)), Some(&[10.0, 11.0, 12.0][..]));
        assert_eq!(up.bias(), Some(&[10.0, 11.0, 12.0][..]));
        assert_eq!(up.scheme().experts, None);
        let interleaved = stack("interleaved", "channel", 6).unwrap();
        let up = interleaved.shard(1, 1).unwrap();
        assert_eq!(first_codes(&up), [7, 9, 11]);
        assert_eq!(up.values(Component::Scale(0)), Some(&[8.0, 10.0, 12.0][..]));
        assert_eq!(up.bias(), Some(&[8.0, 10.0, 12.0][..]));
        assert_eq!(first_codes(&interleaved.shard(0, 0).unwrap()), [0, 2, 4]);
        assert!(matches!(weight.shard(2, 0), Err(UnpackError::NoShard { expert: 2, shard: 0 })));
        assert!(matches!(weight.shard(0, 2), Err(UnpackError::NoShard { shard: 2, .. })));
        let single = stack("single", "channel", 6).unwrap();
        assert_eq!(first_codes(&single.shard(1, 0).unwrap()), [6, 7, 8, 9, 10, 11]);
        assert!(single.shard(1, 1).is_err());
        // An odd number of rows is not two shards.
        assert!(stack("concatenated", "channel", 5).unwrap().shard(0, 0).is_err());
    }

    #[test]
    fn scales_of_several_rows() {
        let blocks = stack("concatenated", "2x2", 8).unwrap();
        let up = blocks.shard(1, 1).unwrap();
        // 4 row groups by 2 column groups an expert.
        assert_eq!(up.values(Component::Scale(0)), Some(&[13.0, 14.0, 15.0, 16.0][..]));
        for (shards, scale, n) in [("concatenated", "2x2", 6), ("interleaved", "2x2", 8)] {
            let error = stack(shards, scale, n).unwrap().shard(0, 0).unwrap_err();
            let expected =
                UnpackError::Straddles { store: "weight_scale".to_owned(), each: 2, rows: n / 2 };
            assert_eq!(error, expected, "{shards}");
        }
    }

    #[test]
    fn bytes_of_an_expert() {
        let layout = |pack: &str| {
            let text = format!(
                "s {{ weight: u4, scale: f32 per channel [n, e], pack: u8 {pack}, activation: bf16,
                   experts: single }}"
            );
            let scheme = parse(&text).unwrap_or_else(|faults| panic!("{faults}"));
            scheme.stores_of(Component::Code).next().unwrap().layout.clone()
        };
        let bytes: Vec<u8> = (0..12).collect();
        let of = |pack: &str, expert| expert_bytes(&layout(pack), &bytes, expert, 3);
        assert_eq!(of("[k:2 | k, n, e]", 1), Some(&[4, 5, 6, 7][..]));
        assert_eq!(of("[k:2 | k, n, e]", 3), None);
        assert_eq!(of("[k:2 | k, e, n]", 1), None);
        assert_eq!(of("[k:2 | k, e:2, n, e]", 1), None);
    }
}
