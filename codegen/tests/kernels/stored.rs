//! A layer of a checkpoint with random contents, and the native buffers as the host packs them.

use std::collections::BTreeMap;

use quantloom_codegen::ir::{Kernel, Verified};
use quantloom_codegen::jit::Jit;
use quantloom_codegen::schedule::Problem;
use quantloom_codegen::schedule::transform::{Direction, NativeBufferKind, stores};
use quantloom_codegen::sim::{Arguments, Contents, SimulationOptions, run};
use quantloom_codegen::target::target;
use quantloom_dsl::format::{BF16, FloatFormat, Number};
use quantloom_dsl::layout::{Component, GroupSize, Shape};
use quantloom_dsl::reference::{PlainCodes, StoredTensors};
use quantloom_dsl::{Activation, ScaleLevel, Scheme};
use quantloom_runtime::gpu::{ColumnOrder, NativeBuffer, Products as _, Request};
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::Unpacked;

use super::product::Random;

/// A stored layer, for products with one type of x.
pub struct Stored {
    pub scheme: Scheme,
    pub activation: Activation,
    pub own: FloatFormat,
    pub problem: Problem,
    pub packed: StoredTensors,
    pub unpacked: Unpacked,
    /// Of columns that products take in another one.
    order: Option<Vec<u8>>,
    /// As the host packs them.
    pub native: Vec<(NativeBuffer, Vec<u8>)>,
}

/// Codes of a component.
fn codes(scheme: &Scheme, component: Component, shape: Shape, random: &mut Random) -> Vec<u32> {
    let granularity = scheme.granularity(component).unwrap();
    let (rows, columns) = granularity.elements(shape);
    let mask = ((1u64 << granularity.bits) - 1) as u32;
    // Numbers are finite, since a NaN has many codes; scales are no divisors that are 0, nor so large
    // that products of them are not f32.
    let usual = |code: &u32| match (component, scheme.number(component)) {
        (Component::Scale(_), Some(number @ Number::Float(_))) => {
            (2f64.powi(-24)..2f64.powi(20)).contains(&number.decode(*code).abs())
        }
        (Component::InputScale(_), Some(number @ Number::Float(_))) => {
            (2f64.powi(-24)..2f64.powi(20)).contains(&number.decode(*code))
        }
        (Component::Code | Component::Index, _) | (_, None) => true,
        (_, Some(number)) => number.decode(*code).is_finite(),
    };
    let groups = shape.k.div_ceil(128) as u32;
    let draw = |_| match component {
        Component::Index => random.next() as u32 % groups,
        _ => std::iter::repeat_with(|| random.next() as u32 & mask).find(usual).unwrap(),
    };
    (0..rows * columns).map(draw).collect()
}

impl Stored {
    /// `None` if no schedule multiplies it.
    pub fn draw(
        scheme: &Scheme,
        activation: &Activation,
        sm: &'static str,
        (n, k): (u32, u32),
    ) -> Option<Self> {
        Problem::new(scheme, activation, target(sm)?, (n, k)).ok()?;
        let shape = Shape::matrix(n.into(), k.into());
        let mut random = Random(u64::from(n * k));
        let mut components = BTreeMap::new();
        for component in scheme.components() {
            components.insert(component, codes(scheme, component, shape, &mut random));
        }
        let packed = pack(scheme, &PlainCodes { shape, components }).unwrap();
        let bytes = |name: &str| packed.get(name).map(Vec::as_slice);
        let unpacked = Unpacked::new(scheme, shape, &bytes).unwrap();
        let own = match activation {
            Activation::Float(Number::Float(own)) => *own,
            _ => BF16,
        };
        let (n, x_columns) = (shape.n, shape.k);
        let request = Request::new(scheme, activation, own, sm, [n, x_columns]);
        let arrangement = Jit.arrangement(&request).unwrap();
        let order = arrangement.map(|arrangement| ColumnOrder::of(&arrangement, &unpacked));
        let k = order.as_ref().map_or(x_columns, |order| order.shape(shape).k);
        let size = |size: u64| u32::try_from(size).unwrap();
        let problem = Problem::new(scheme, activation, target(sm)?, (size(n), size(k))).unwrap();
        let request = Request { k, ..request };
        let native = Jit.native(&request).unwrap().into_iter().map(|part| {
            let bytes = part.pack(&unpacked, order.as_ref()).unwrap();
            (part, bytes)
        });
        let native = native.collect();
        let order = order.map(|order| order.bytes());
        let (scheme, activation) = (scheme.clone(), activation.clone());
        Some(Self { scheme, activation, own, problem, packed, unpacked, order, native })
    }

    /// Columns of the stored weight.
    pub fn columns(&self) -> u32 {
        u32::try_from(self.unpacked.shape().k).unwrap()
    }

    /// The parts that it has.
    pub fn parts(&self) -> Vec<NativeBufferKind> {
        let of = |part: &NativeBuffer| {
            NativeBufferKind::ALL.into_iter().find(|all| all.role() == part.role)
        };
        self.native.iter().map(|(part, _)| of(part).unwrap()).collect()
    }

    /// A part.
    pub fn native(&self, part: NativeBufferKind) -> &(NativeBuffer, Vec<u8>) {
        self.native.iter().find(|(native, _)| native.role == part.role()).unwrap()
    }

    /// The arrays before a transform, and the one after it.
    pub fn arrays(&self, part: NativeBufferKind, direction: Direction) -> (Vec<&[u8]>, &[u8]) {
        let stores = stores(&self.problem, &self.scheme, part).unwrap();
        let stored = stores.into_iter().map(|store| self.packed[&store.name].as_slice());
        let ordered = self.order.as_deref().filter(|_| part.is_sorted());
        let stored: Vec<&[u8]> = stored.chain(ordered).collect();
        let (_, native) = self.native(part);
        match direction {
            Direction::ToNative => (stored, native),
            Direction::FromNative => (vec![native], stored[0]),
        }
    }

    /// By how many units in the last place the device's numbers may differ from the host's. The host rounds the
    /// product of a row's scales once, the device after each level. The rounding of an earlier level moves the
    /// exact product by at most 2^-24 of it, at most one unit; numbers one unit apart round to neighbours.
    fn most_units(&self, part: NativeBufferKind) -> u32 {
        match part {
            NativeBufferKind::ChannelScales => stores(&self.problem, &self.scheme, part)
                .map_or(0, |levels| levels.len() as u32 - 1),
            _ => 0,
        }
    }

    /// Compares sums of rows: a lane adds 8 of each 256 columns with a rounding each, levels of scales and 5 sums of lanes have
    /// some more; each loses 2^-24 of the magnitudes so far at most. Integers are exact.
    ///
    /// # Errors
    /// A sum further from the expected one.
    pub fn check_row_sums(&self, found: &[u8], expected: &[u8]) -> Result<(), String> {
        let k = self.unpacked.shape().k as usize;
        let of_row = |level: &ScaleLevel| level.group.cols == GroupSize::All;
        let integers = self.scheme.scales.iter().all(of_row);
        assert!(
            integers || !self.scheme.scales.iter().any(of_row),
            "magnitudes are of whole weights"
        );
        let levels = self.scheme.scales.len();
        let roundings = if integers { 0 } else { 8 * k.div_ceil(256) + levels + 5 };
        let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
        let sums = found.chunks_exact(4).map(float).zip(expected.chunks_exact(4).map(float));
        for (row, (found, expected)) in sums.enumerate() {
            let mut weights = vec![0.0; k];
            self.unpacked.decode_row(0, row as u64, &mut weights);
            let magnitude: f64 = weights.iter().map(|weight| f64::from(weight.abs())).sum();
            let most = roundings as f64 / (1u64 << 24) as f64 * magnitude;
            if f64::from((found - expected).abs()) > most {
                return Err(format!("the sum of row {row} is {found}, expected {expected}"));
            }
        }
        Ok(())
    }

    /// Runs a transform's kernel in the simulator.
    ///
    /// # Errors
    /// The simulator's fault, or the first byte that is another than the host's, or the first f32 further than
    /// [`Self::most_units`] from the host's.
    pub fn check(
        &self,
        kernel: &Verified<Kernel>,
        part: NativeBufferKind,
        direction: Direction,
    ) -> Result<(), String> {
        let (before, after) = self.arrays(part, direction);
        let before = before.into_iter().map(|bytes| Contents::from_bytes(bytes.to_vec()));
        let buffers = before.chain([Contents::poison(after.len())]).collect();
        let mut arguments = Arguments { parameters: Vec::new(), buffers };
        run(kernel, &mut arguments, &SimulationOptions::default())
            .map_err(|fault| fault.to_string())?;
        let found = &arguments.buffers.last().unwrap().bytes;
        if part == NativeBufferKind::RowSums {
            return self.check_row_sums(found, after);
        }
        let most = self.most_units(part);
        if most > 0 {
            return compared(found, after, most);
        }
        match found.iter().zip(after).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => {
                Err(format!("byte {at} is {:#04x}, expected {:#04x}", found[at], after[at]))
            }
        }
    }
}

/// Compares arrays of f32. Neighbouring numbers have neighbouring bits.
fn compared(found: &[u8], expected: &[u8], most: u32) -> Result<(), String> {
    let numbers = |bytes: &[u8]| -> Vec<u32> {
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| u32::from_le_bytes(*word)).collect()
    };
    let (found, expected) = (numbers(found), numbers(expected));
    match found.iter().zip(&expected).position(|(found, expected)| found.abs_diff(*expected) > most)
    {
        None => Ok(()),
        Some(at) => {
            let [found, expected] = [found[at], expected[at]].map(f32::from_bits);
            Err(format!(
                "number {at} is {found:e}, expected {expected:e}, off by more than {most} ulp"
            ))
        }
    }
}
