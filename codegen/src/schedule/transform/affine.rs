//! Index arithmetic: sums of a thread's values times constants. Exact divisions are done at generation,
//! others by an operation.
//!
//! The bound of each value is known, so that `(16 t + j) / 4` is `4 t` if j < 4, and costs nothing; other
//! divisions become a shift, a mask, a quotient or a remainder, which is computed once.

use std::collections::{BTreeMap, HashMap};

use crate::ir::{Builder, Operand};

/// `constant + sum(coefficient * value)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Affine {
    /// By number of the value; no coefficient is 0.
    terms: BTreeMap<usize, u64>,
    pub(super) constant: u64,
}

impl Affine {
    pub(super) fn constant(constant: u64) -> Self {
        Self { terms: BTreeMap::new(), constant }
    }

    /// Adds `times` the other sum.
    pub(super) fn add(&mut self, other: &Self, times: u64) {
        if times == 0 {
            return;
        }
        self.constant += other.constant * times;
        for (value, coefficient) in &other.terms {
            *self.terms.entry(*value).or_insert(0) += coefficient * times;
        }
    }

    /// The constant, if there are no other terms.
    pub(super) fn fixed(&self) -> Option<u64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The greatest common divisor of its coefficients and a number.
    pub(super) fn common(&self, with: u64) -> u64 {
        self.terms.values().fold(with, |common, coefficient| gcd(common, *coefficient))
    }

    /// Whether the sum may equal this number, judged by its coefficients alone.
    pub(super) fn reaches(&self, number: u64) -> bool {
        let above = number.checked_sub(self.constant);
        above.is_some_and(|above| above.is_multiple_of(self.common(0)))
    }

    /// The sum without its constant.
    pub(super) fn varying(&self) -> Self {
        Self { terms: self.terms.clone(), constant: 0 }
    }

    /// `(a, b)` with this = `by a + b`, and b as small as possible without arithmetic.
    fn split(&self, by: u64) -> (Self, Self) {
        let (mut whole, mut rest) =
            (Self::constant(self.constant / by), Self::constant(self.constant % by));
        for (value, coefficient) in &self.terms {
            match coefficient % by {
                0 => whole.terms.insert(*value, coefficient / by),
                _ => rest.terms.insert(*value, *coefficient),
            };
        }
        (whole, rest)
    }

    fn divided(&self, by: u64) -> Self {
        let terms = self.terms.iter().map(|(value, coefficient)| (*value, coefficient / by));
        Self { terms: terms.collect(), constant: self.constant / by }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A thread's values, and the values computed from them.
#[derive(Default)]
pub(super) struct Values {
    /// Each value with its maximum.
    known: Vec<(Operand, u64)>,
    /// Quotients and remainders.
    derived: HashMap<(Affine, DivisionResult, u64), Affine>,
    written: HashMap<Affine, Operand>,
    /// Whether a computed sum may exceed a register.
    exceeded: bool,
}

/// Which result of a division by a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DivisionResult {
    Quotient,
    Remainder,
}

impl Values {
    /// A value with its maximum `most`.
    pub(super) fn value(&mut self, value: Operand, most: u64) -> Affine {
        if most == 0 {
            return Affine::default();
        }
        self.known.push((value, most));
        Affine { terms: BTreeMap::from([(self.known.len() - 1, 1)]), constant: 0 }
    }

    /// The maximum of a sum.
    pub(super) fn most(&self, sum: &Affine) -> u64 {
        let terms = sum.terms.iter().map(|(value, coefficient)| self.known[*value].1 * coefficient);
        sum.constant + terms.sum::<u64>()
    }

    /// The quotient, rounded down.
    pub(super) fn quotient(&mut self, b: &mut Builder, sum: &Affine, by: u64) -> Affine {
        let (mut whole, rest) = sum.split(by);
        if self.most(&rest) >= by {
            let common = rest.common(by);
            let rest = rest.divided(common);
            whole.add(&self.compute(b, rest, DivisionResult::Quotient, by / common), 1);
        }
        whole
    }

    /// The remainder.
    pub(super) fn remainder(&mut self, b: &mut Builder, sum: &Affine, by: u64) -> Affine {
        let (_, rest) = sum.split(by);
        if self.most(&rest) < by {
            return rest;
        }
        let common = rest.common(by);
        let mut remainder = Affine::constant(rest.constant % common);
        let rest = rest.divided(common);
        remainder.add(&self.compute(b, rest, DivisionResult::Remainder, by / common), common);
        remainder
    }

    fn compute(&mut self, b: &mut Builder, sum: Affine, part: DivisionResult, by: u64) -> Affine {
        let most = self.most(&sum);
        let key = (sum, part, by);
        if let Some(known) = self.derived.get(&key) {
            return known.clone();
        }
        let value = self.operand(b, &key.0);
        let (value, most) = match part {
            DivisionResult::Quotient => (b.div(value, by as u32), most / by),
            DivisionResult::Remainder => (b.rem(value, by as u32), most.min(by - 1)),
        };
        let value = self.value(value, most);
        self.derived.insert(key, value.clone());
        value
    }

    /// Whether a computed sum may exceed 32 bits, so that the kernel is invalid.
    pub(super) fn exceeded(&self) -> bool {
        self.exceeded
    }

    /// The sum, computed.
    pub(super) fn operand(&mut self, b: &mut Builder, sum: &Affine) -> Operand {
        if let Some(written) = self.written.get(sum) {
            return *written;
        }
        self.exceeded |= self.most(sum) > u64::from(u32::MAX);
        let mut total = Operand::U32(sum.constant as u32);
        for (value, coefficient) in &sum.terms {
            total = b.mad(self.known[*value].0, *coefficient as u32, total);
        }
        self.written.insert(sum.clone(), total);
        total
    }
}
