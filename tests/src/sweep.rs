//! How many of its cases a long test runs: a few by `cargo test`, a part by `.ci/run`, all by whoever
//! asks for them.

/// The variable that asks for more than a few cases: a number for a part of them, `all` for all.
pub const SWEEP: &str = "QUANTLOOM_SWEEP";

/// Whether more than a few cases are asked for.
pub fn is_asked() -> bool {
    std::env::var_os(SWEEP).is_some()
}

/// A share of the cases of a test. Which cases a part has follows from a hash: what a test says of the kinds of its cases, it
/// says of all of them, not of those that a part happens to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    parts: u64,
    part: u64,
}

impl Share {
    /// The share that [`SWEEP`] asks for, as [`Self::asked`] says.
    ///
    /// # Panics
    /// If the variable is neither a number nor `all`.
    pub fn new(few: u64, parts: u64) -> Self {
        Self::asked(few, parts, std::env::var(SWEEP).ok().as_deref())
    }

    /// Nothing asked: one case in `few`, always the same ones. A number: one of `parts` parts; those of
    /// consecutive numbers have every case between them. `all`: every case.
    ///
    /// # Panics
    /// If `sweep` is another text.
    pub fn asked(few: u64, parts: u64, sweep: Option<&str>) -> Self {
        match sweep {
            None => Self { parts: few, part: 0 },
            Some("all") => Self { parts: 1, part: 0 },
            Some(number) => {
                let number: u64 = number.parse().unwrap_or_else(|_| panic!("{SWEEP}={number}"));
                Self { parts, part: number % parts }
            }
        }
    }

    /// Whether the share has case number `case`. Neighbours are of unrelated parts, so that a part has
    /// something of each row and column of a table of cases.
    pub fn takes(self, case: usize) -> bool {
        mixed(case as u64) % self.parts == self.part
    }

    /// The cases of the share.
    pub fn of<T>(self, cases: impl IntoIterator<Item = T>) -> Vec<T> {
        let cases = cases.into_iter().enumerate();
        cases.filter(|(case, _)| self.takes(*case)).map(|(_, case)| case).collect()
    }

    /// About how many cases there are to one of the share.
    pub fn parts(self) -> usize {
        self.parts as usize
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood: Fast splittable pseudorandom number
/// generators, 2014), without the last xor: the low bits are taken from the high ones.
const fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z >> 32
}
