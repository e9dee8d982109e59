//! A product of random numbers: the arguments of its kernel, laid out by hand here, and how far
//! y may be from the exact product.

use quantloom_codegen::ir::{Access, Kernel, Verified};
use quantloom_codegen::schedule::{GroupParams, ParamKind, Problem};
use quantloom_codegen::sim::{Arguments, Contents, Report, SimulationOptions, run};
use quantloom_dsl::format::{FloatFormat, Number, Overflow};
use quantloom_dsl::layout::{Component, Granularity, GroupSize, Shape};
use quantloom_tests::codes::placed;
use quantloom_tests::sums;

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// In -1..1.
    fn signed(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

fn format(number: Number) -> FloatFormat {
    match number {
        Number::Float(format) => format,
        other => panic!("{other} is no float"),
    }
}

/// Groups of a row; the last one may be short.
fn groups(problem: &Problem) -> usize {
    groups_of(problem, problem.scale.unwrap())
}

fn groups_of(problem: &Problem, of: GroupParams) -> usize {
    problem.k.div_ceil(of.columns) as usize
}

/// A matrix of 16-bit floats: bits and values.
struct Halves {
    bits: Vec<u16>,
    values: Vec<f64>,
}

impl Halves {
    fn draw(count: usize, number: Number, mut value: impl FnMut() -> f64) -> Self {
        let format = format(number);
        let bits = (0..count).map(|_| format.encode(value(), Overflow::Saturate) as u16);
        let bits: Vec<u16> = bits.collect();
        let values = bits.iter().map(|&bits| format.decode(u32::from(bits))).collect();
        Self { bits, values }
    }
}

/// Numbers of groups: each is one, or a byte times one of a larger group.
struct Levels {
    /// The bits of the numbers, of 8, 16 or 32, as products have them.
    bits: Vec<u32>,
    /// Those of the larger groups.
    coarse: Vec<u16>,
    /// What they stand for, by group.
    values: Vec<f64>,
}

impl Levels {
    /// `value` is for numbers that are no bytes.
    fn draw(
        (problem, random): (&Problem, &mut Random),
        (of, coarse): (GroupParams, Option<GroupParams>),
        mut value: impl FnMut(&mut Random) -> f64,
    ) -> Self {
        let (n, groups) = (problem.n as usize, groups_of(problem, of));
        let Some(coarse) = coarse else {
            let format = format(of.number);
            let bits = (0..n * groups).map(|_| format.encode(value(random), Overflow::Saturate));
            let bits: Vec<u32> = bits.collect();
            let values = bits.iter().map(|&bits| format.decode(bits)).collect();
            return Self { bits, coarse: Vec::new(), values };
        };
        let (all, ratio) = (groups_of(problem, coarse), (coarse.columns / of.columns) as usize);
        let larger = Halves::draw(n * all, coarse.number, || value(random));
        // As far as K-quants have them: 6 bits, of which minima are negative.
        let (least, largest) = (of.number.min().max(-63.0), of.number.max().min(63.0));
        let span = (largest - least) as u64 + 1;
        let integers = (0..n * groups).map(|_| least + (random.next() % span) as f64);
        let integers: Vec<f64> = integers.collect();
        let of_group = |(at, byte): (usize, &f64)| {
            let (row, group) = (at / groups, at % groups);
            byte * larger.values[row * all + group / ratio]
        };
        let values = integers.iter().enumerate().map(of_group).collect();
        let encode = |value: &f64| of.number.encode(*value, Overflow::Saturate);
        Self { bits: integers.iter().map(encode).collect(), coarse: larger.bits, values }
    }
}

/// Random operands of a product.
pub struct RandomProduct {
    problem: Problem,
    m: usize,
    codes: Vec<u32>,
    scales: Levels,
    zeros: Option<Halves>,
    /// Terms that are added to weights.
    terms: Option<Levels>,
    bias: Option<Vec<f32>>,
    x: Halves,
    /// Whether the kernel multiplies weights by their scales, and rounds them.
    scaled_weights: bool,
    /// Whether an element of y is a weight.
    single_columns: bool,
}

impl RandomProduct {
    pub fn draw(problem: &Problem, m: usize, seed: u64) -> Self {
        let (n, k, groups) = (problem.n as usize, problem.k as usize, groups(problem));
        let mut random = Random(seed);
        let bits = problem.plan.dequant.weight.code.bits();
        let codes = (0..n * k).map(|_| random.next() as u32 & ((1 << bits) - 1)).collect();
        // Neighbouring groups differ by powers of two, so that a scale in the wrong place shows.
        let size = |random: &mut Random| 2f64.powi(-(random.next() as i32 & 7) - 2);
        let levels = (problem.scale.unwrap(), problem.coarse_scale);
        let scales = Levels::draw((problem, &mut random), levels, |random| {
            let size = size(random);
            size * (1.0 + random.signed() / 4.0)
        });
        let mut integer = || (random.next() & 15) as f64;
        let zeros = problem.zero.map(|of| Halves::draw(n * groups, of.number, &mut integer));
        // No multiple of a scale, and, of f32, with more digits than a 16-bit float has.
        let terms = problem.correction.map(|of| {
            let levels = (of, problem.coarse_correction);
            Levels::draw((problem, &mut random), levels, Random::signed)
        });
        let x = Halves::draw(m * k, problem.input.operand.number(), || random.signed());
        // Of the size of a product, so that a bias that is missing or there twice shows.
        let bias = problem.bias.then(|| (0..n).map(|_| (8.0 * random.signed()) as f32).collect());
        let problem = problem.clone();
        let (scaled_weights, single_columns) = (problem.plan.scale.rounds_weights(), false);
        Self { problem, m, codes, scales, zeros, terms, bias, x, scaled_weights, single_columns }
    }

    /// The same with one element of each row of x, 1: each element of y is a weight in parts, which y holds.
    pub fn with_single_columns(self) -> Self {
        let (k, number) = (self.problem.k as usize, self.problem.input.operand.number());
        let mut at = 0;
        let x = Halves::draw(self.m * k, number, || {
            let (row, column) = (at / k, at % k);
            at += 1;
            if column == row * 37 % k { 1.0 } else { 0.0 }
        });
        Self { x, single_columns: true, ..self }
    }

    /// The same for a kernel that multiplies weights by their scales.
    pub fn with_scaled_weights(self) -> Self {
        Self { scaled_weights: true, ..self }
    }

    /// The same for a kernel that multiplies sums by scales.
    pub fn with_exact_weights(self) -> Self {
        Self { scaled_weights: false, ..self }
    }

    /// The arguments of a kernel, by the names of its buffers.
    fn arguments(&self, kernel: &Kernel) -> Arguments {
        let parameters = vec![self.m as u32];
        let buffer = |buffer: &quantloom_codegen::ir::Buffer| {
            let extents = buffer.shape.iter().map(|extent| extent.value(&parameters).unwrap());
            let bytes = extents.product::<u32>() as usize * buffer.word.bytes() as usize;
            let bytes_of = |halves: &[u16]| halves.iter().flat_map(|h| h.to_le_bytes()).collect();
            let contents = match buffer.name.as_str() {
                "w" => Contents::from_bytes(self.native_codes()),
                "scale" => Contents::from_bytes(self.native(self.problem.scale, &self.scales)),
                "coarse_scale" => {
                    let of = self.problem.coarse_scale.unwrap();
                    let halves = self.per_group(of, &self.scales.coarse, [0x7fff, 0]);
                    Contents::from_bytes(bytes_of(&halves))
                }
                "coarse_correction" => {
                    let of = self.problem.coarse_correction.unwrap();
                    let terms = self.terms.as_ref().unwrap();
                    Contents::from_bytes(bytes_of(&self.per_group(of, &terms.coarse, [0x7fff, 0])))
                }
                "zero" => {
                    let (of, zeros) = (self.problem.zero.unwrap(), self.zeros.as_ref().unwrap());
                    let zeros = self.per_group(of, &zeros.bits, [0x7fff, 0]);
                    Contents::from_bytes(bytes_of(&zeros))
                }
                "correction" => {
                    let terms = self.terms.as_ref().unwrap();
                    Contents::from_bytes(self.native(self.problem.correction, terms))
                }
                "bias" => {
                    let bias = self.bias.as_ref().unwrap();
                    Contents::from_bytes(
                        bias.iter().flat_map(|value| value.to_le_bytes()).collect(),
                    )
                }
                "x" => Contents::from_bytes(bytes_of(&self.x.bits)),
                "arrivals" => Contents::from_bytes(vec![0; bytes]),
                _ => Contents::poison(bytes),
            };
            assert_eq!(contents.bytes.len(), bytes, "{}", buffer.name);
            contents
        };
        let buffers = kernel.buffers.iter().map(buffer).collect();
        Arguments { parameters, buffers }
    }

    fn native_codes(&self) -> Vec<u8> {
        let (n, k) = (u64::from(self.problem.n), u64::from(self.problem.k));
        let bits = self.problem.plan.dequant.weight.code.bits();
        let granularity = Granularity { bits, rows: GroupSize::Each(1), cols: GroupSize::Each(1) };
        let native = &self.problem.plan.native;
        let padded = |size: u64, to: u32| size.next_multiple_of(u64::from(to));
        let shape = Shape { experts: 1, n: padded(n, native.rows), k: padded(k, native.columns) };
        let of = |part| (part == Component::Code).then_some(granularity);
        let bound = native.layout.bind(shape, &of).unwrap();
        placed(&bound, (k, bits), &self.codes)
    }

    /// The numbers of the finest level; NaN where there is no row. Those that are computed have the unit of sums.
    fn native(&self, of: Option<GroupParams>, levels: &Levels) -> Vec<u8> {
        let of = of.unwrap();
        let bits = match of.kind {
            ParamKind::ZeroPointCorrection => {
                let unit = 2f32.powi(self.problem.correction_exponent());
                let of_unit = |&bits: &u32| (f32::from_bits(bits) * unit).to_bits();
                levels.bits.iter().map(of_unit).collect()
            }
            _ => levels.bits.clone(),
        };
        let bytes = of.number.bits() as usize / 8;
        let numbers = self.per_group(of, &bits, [u32::MAX >> 1 >> (32 - 8 * bytes), 0]);
        numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(bytes)).collect()
    }

    /// Row g of a tile beside row g + 8, the groups of a k-tile one pair after another, k-tiles after
    /// one another, with what is where there is no row, and no group.
    fn per_group<T: Copy>(
        &self,
        of: GroupParams,
        numbers: &[T],
        [no_row, no_group]: [T; 2],
    ) -> Vec<T> {
        let (n, groups) = (self.problem.n as usize, groups_of(&self.problem, of));
        let of_k_tile = (self.problem.k_tile() / of.columns).max(1) as usize;
        let padded = groups.next_multiple_of(of_k_tile);
        // Those of one lane are adjacent.
        let apart = of.apart as usize;
        let mut all = vec![no_row; n.next_multiple_of(16) * padded];
        for row in 0..n {
            for group in 0..padded {
                let group_of_tile = group % of_k_tile;
                let of_lane = group_of_tile % apart * (of_k_tile / apart) + group_of_tile / apart;
                let place = (row % 8 * of_k_tile + of_lane) * 2 + row % 16 / 8;
                let k_tile = (row / 16 * padded + group / of_k_tile * of_k_tile) * 16;
                let there = group < groups;
                all[k_tile + place] = if there { numbers[row * groups + group] } else { no_group };
            }
        }
        all
    }

    /// y and how far a result may be from it, element by element. With u = 2^-24: a product of 16
    /// columns rounds once (as the simulator does it), a group sums `group / 16` of them, its scale
    /// once more, then groups, and what `parts` warps and blocks have, are added up, the bias as a
    /// group: each term of the sum meets at most so many roundings. y itself is rounded once to its
    /// type. If weights are multiplied by their scales, each of them is rounded once to the operand's type,
    /// by half of its epsilon at most, or in parts and with a term as the conformance kit's bound says: scales here are far
    /// from the type's smallest number.
    fn expected(&self, parts: usize) -> Vec<(f64, f64)> {
        let (n, k) = (self.problem.n as usize, self.problem.k as usize);
        let group = self.problem.scale.unwrap().columns as usize;
        let groups = groups(&self.problem);
        // Of scaled weights a row is added up at once.
        let steps = if self.scaled_weights { k / 16 + 1 } else { group / 16 + groups };
        let roundings = (steps + parts) as f64 * 2f64.powi(-24);
        let operand = self::format(self.problem.input.operand.number());
        let format = format(self.problem.output);
        let smallest = format.decode(1) / 2.0;
        let weight = &self.problem.plan.dequant.weight;
        let parts = self.problem.plan.scale.parts();
        // Of each weight its code times its scale, and what is added, which all tokens share.
        let weights: Vec<(f64, f64)> = (0..n * k)
            .map(|index| {
                let (row, column) = (index / k, index % k);
                let at = row * groups + column / group;
                let zero = self.zeros.as_ref().map_or(0.0, |zeros| zeros.values[at]);
                let scaled = (weight.decode(self.codes[index]) - zero) * self.scales.values[at];
                let added = self.terms.as_ref().map_or(0.0, |terms| terms.values[at]);
                (scaled, added)
            })
            .collect();
        let mut all = Vec::new();
        for token in 0..self.m {
            let x = &self.x.values[token * k..][..k];
            for row in 0..n {
                let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[row]));
                let (sum, size) = sums::of(x, &weights[row * k..][..k]);
                let (sum, size) = (bias + sum, bias.abs() + size);
                let rounding = operand.epsilon() / 2.0;
                if self.single_columns && parts == Some(1) {
                    all.push((sum, rounding * (2.0 + rounding) * size));
                    continue;
                }
                if self.single_columns {
                    // With e = rounding, and a term: the first part is within 2 e of `size` of the weight, and loses e
                    // of itself, as their sum does; the second one and the low parts lose 4 e e (1 + e) of `size`.
                    let (roundings, parts) =
                        if self.terms.is_some() { (2.0, 8.0) } else { (1.0, 5.0) };
                    all.push((sum, rounding * (roundings * sum.abs() + parts * rounding * size)));
                    continue;
                }
                let of_weights = match (self.scaled_weights, parts) {
                    (false, _) => 0.0,
                    (true, None) => rounding,
                    // Scales and terms are rounded before.
                    (true, Some(1)) => rounding * (2.0 + rounding),
                    (true, Some(_)) => {
                        let roundings = if self.terms.is_some() { 2.0 } else { 1.0 };
                        roundings * rounding * (1.0 + 8.0 * rounding)
                    }
                };
                let each = (1.0 + roundings / (1.0 - roundings)) * (1.0 + of_weights) - 1.0;
                let computed = each * size;
                let own = (sum.abs() + computed) * format.epsilon() / 2.0;
                all.push((sum, computed + own.max(smallest)));
            }
        }
        all
    }

    /// Runs the kernel in the simulator.
    ///
    /// # Errors
    /// The simulator's fault, or the first element of y that is too far off.
    pub fn simulate(
        &self,
        kernel: &Verified<Kernel>,
        parts: u32,
        seed: u64,
    ) -> Result<Report, String> {
        let mut arguments = self.arguments(kernel);
        let options = SimulationOptions { seed, limit: 1 << 24, ..SimulationOptions::default() };
        let report = run(kernel, &mut arguments, &options).map_err(|fault| fault.to_string())?;
        let y = kernel.buffers.iter().position(|buffer| buffer.access == Access::WriteOnce);
        let bytes = &arguments.buffers[y.unwrap()].bytes;
        let format = format(self.problem.output);
        let n = self.problem.n as usize;
        for (at, (expected, bound)) in self.expected(parts as usize).into_iter().enumerate() {
            let size = format.bits() as usize / 8;
            let mut bits = [0; 4];
            bits[..size].copy_from_slice(&bytes[size * at..][..size]);
            let found = format.decode(u32::from_le_bytes(bits));
            let off = (found - expected).abs();
            // A NaN is too far off too.
            if off.is_nan() || off > bound {
                let place = format!("y[{}, {}]", at / n, at % n);
                return Err(format!("{place} = {found}, expected {expected} within {bound}"));
            }
        }
        Ok(report)
    }
}
