//! A layer of a checkpoint with random contents, and the native buffers as the host packs them.

use std::collections::BTreeMap;

use quantloom_codegen::ir::{Kernel, Verified};
use quantloom_codegen::jit::Jit;
use quantloom_codegen::schedule::Problem;
use quantloom_codegen::schedule::transform::{Direction, Part};
use quantloom_codegen::sim::{Arguments, Contents, Options, run};
use quantloom_codegen::target::target;
use quantloom_dsl::format::Number;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::{Packed, Plain};
use quantloom_dsl::{Activation, Scheme};
use quantloom_runtime::gpu::{Products as _, Request};
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::Unpacked;

use super::product::Random;

/// A stored layer, for products with one type of x.
pub struct Stored {
    pub scheme: Scheme,
    pub problem: Problem,
    pub packed: Packed,
    pub unpacked: Unpacked,
    native: Vec<(Part, Vec<u8>)>,
}

impl Stored {
    /// `None` if no schedule multiplies it.
    pub fn draw(
        scheme: &Scheme,
        activation: &Activation,
        sm: &'static str,
        (n, k): (u32, u32),
    ) -> Option<Self> {
        let problem = Problem::new(scheme, activation, target(sm)?, (n, k)).ok()?;
        let shape = Shape::matrix(n.into(), k.into());
        let mut random = Random(u64::from(n * k));
        let mut components = BTreeMap::new();
        for component in scheme.components() {
            let grains = scheme.grains(component)?;
            let (rows, columns) = grains.elements(shape);
            // Of 16 bits, the exponents of finite and positive numbers.
            let mask = if grains.bits == 16 { 0x3fff } else { (1 << grains.bits) - 1 };
            let codes = (0..rows * columns).map(|_| random.next() as u32 & mask);
            components.insert(component, codes.collect());
        }
        let packed = pack(scheme, &Plain { shape, components }).unwrap();
        let bytes = |name: &str| packed.get(name).map(Vec::as_slice);
        let unpacked = Unpacked::new(scheme, shape, &bytes).unwrap();
        let Activation::Float(Number::Float(own)) = *activation else { return None };
        let (n, k) = (n.into(), k.into());
        let request = Request { scheme, activation, own, target: sm, n, k, x_columns: k };
        let parts = Jit.native(&request).unwrap();
        let of = |component| Part::ALL.into_iter().find(|part| part.component() == component);
        let native = parts
            .iter()
            .map(|part| (of(part.component).unwrap(), part.pack(&unpacked, None).unwrap()))
            .collect();
        Some(Self { scheme: scheme.clone(), problem, packed, unpacked, native })
    }

    /// The parts that it has.
    pub fn parts(&self) -> Vec<Part> {
        self.native.iter().map(|(part, _)| *part).collect()
    }

    /// The array before and after a transform.
    pub fn arrays(&self, part: Part, direction: Direction) -> (&[u8], &[u8]) {
        let store = self.scheme.stores_of(part.component()).next().unwrap();
        let stored = &self.packed[&store.name];
        let (_, native) = self.native.iter().find(|(other, _)| *other == part).unwrap();
        match direction {
            Direction::ToNative => (stored, native),
            Direction::FromNative => (native, stored),
        }
    }

    /// Runs a transform's kernel in the simulator.
    ///
    /// # Errors
    /// The simulator's fault, or the first byte that is another than the host's.
    pub fn check(
        &self,
        kernel: &Verified<Kernel>,
        part: Part,
        direction: Direction,
    ) -> Result<(), String> {
        let (before, after) = self.arrays(part, direction);
        let buffers = vec![Contents::of(before.to_vec()), Contents::poison(after.len())];
        let mut arguments = Arguments { parameters: Vec::new(), buffers };
        run(kernel, &mut arguments, &Options::default()).map_err(|fault| fault.to_string())?;
        let found = &arguments.buffers[1].bytes;
        match found.iter().zip(after).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => {
                Err(format!("byte {at} is {:#04x}, expected {:#04x}", found[at], after[at]))
            }
        }
    }
}
