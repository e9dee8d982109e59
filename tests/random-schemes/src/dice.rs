//! Random choices from a seed.

use quantloom_tests::Random;

/// A stream of random choices.
#[derive(Clone, Debug)]
pub struct Dice(Random);

impl Dice {
    /// The stream of one draw: streams of different draws are independent.
    pub fn new(seed: u64, draw: u64) -> Self {
        let mut random = Random(seed ^ draw.wrapping_mul(0xd134_2543_de82_ef95));
        random.bits();
        Self(random)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    /// A number in `first..=last`.
    pub fn within(&mut self, first: u32, last: u32) -> u32 {
        first + self.below((last - first) as usize + 1) as u32
    }

    /// True once in `times` times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// True in `percent` of a hundred times.
    pub fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    /// One of the items.
    ///
    /// # Panics
    /// If there are none.
    pub fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// About normal, deviation 1.
    pub fn normal(&mut self) -> f64 {
        self.0.normal()
    }

    /// Between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
