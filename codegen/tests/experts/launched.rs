//! Kernels of an expert layer on the simulator, by the names of their buffers.

use std::collections::BTreeMap;

use quantloom_codegen::ir::{Kernel, verify};
use quantloom_codegen::sim::{Arguments, Contents, SimulationOptions, run};
use quantloom_runtime::source::{Count, ProblemSize};

/// What kernels share: sizes and buffers.
pub(super) struct Launched {
    pub(super) problem: ProblemSize,
    memory: BTreeMap<String, Contents>,
    pub(super) seed: u64,
}

impl Launched {
    /// M tokens with k experts each.
    pub(super) fn new(tokens: usize, top_k: u32) -> Self {
        let mut problem = ProblemSize::new(tokens as u64, 0, 0, 1);
        problem.routed_rows = tokens as u64 * u64::from(top_k);
        Self { problem, memory: BTreeMap::new(), seed: 1 }
    }

    pub(super) fn words(mut self, name: &str, words: &[u32]) -> Self {
        self.memory.insert(name.to_owned(), Contents::from_words(words));
        self
    }

    pub(super) fn floats(self, name: &str, values: &[f32]) -> Self {
        let words: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        self.words(name, &words)
    }

    pub(super) fn bytes(mut self, name: &str, bytes: Vec<u8>) -> Self {
        self.memory.insert(name.to_owned(), Contents::from_bytes(bytes));
        self
    }

    pub(super) fn contents(mut self, name: &str, contents: Contents) -> Self {
        self.memory.insert(name.to_owned(), contents);
        self
    }

    /// Runs a kernel; buffers that no kernel wrote before hold poison.
    ///
    /// # Errors
    /// What the verifier or the simulator says.
    pub(super) fn run(&mut self, kernel: Kernel) -> Result<(), String> {
        let kernel = verify(kernel).map_err(|refusals| refusals.to_string())?;
        let size = |dimension| Count::from(dimension).of(&self.problem).unwrap() as u32;
        let parameters: Vec<u32> =
            kernel.parameters.iter().map(|parameter| size(parameter.dimension.unwrap())).collect();
        let buffers = kernel.buffers.iter().map(|buffer| {
            let extents = buffer.shape.iter().map(|extent| extent.value(&parameters).unwrap());
            let bytes = extents.product::<u32>() * buffer.word.bytes();
            let poison = || Contents::poison(bytes as usize);
            self.memory.get(&buffer.name).cloned().unwrap_or_else(poison)
        });
        let mut arguments = Arguments { buffers: buffers.collect(), parameters };
        let options =
            SimulationOptions { seed: self.seed, limit: 1 << 24, ..SimulationOptions::default() };
        run(&kernel, &mut arguments, &options).map_err(|fault| fault.to_string())?;
        let names = kernel.buffers.iter().map(|buffer| buffer.name.clone());
        self.memory.extend(names.zip(arguments.buffers));
        Ok(())
    }

    pub(super) fn found(&self, name: &str) -> Vec<u32> {
        self.memory[name].words()
    }

    pub(super) fn found_floats(&self, name: &str) -> Vec<f32> {
        self.found(name).into_iter().map(f32::from_bits).collect()
    }

    /// The bytes of a buffer, if some kernel has it.
    pub(super) fn bytes_of(&self, name: &str) -> Option<&[u8]> {
        self.memory.get(name).map(|contents| &contents.bytes[..])
    }

    pub(super) fn found_bytes(&self, name: &str) -> &[u8] {
        &self.memory[name].bytes
    }
}

/// Numbers from a seed.
pub(super) fn random(seed: u64) -> impl FnMut(u32) -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (((state >> 32) * u64::from(below)) >> 32) as u32
    }
}
