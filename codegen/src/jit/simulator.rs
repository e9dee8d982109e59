//! The simulator as an executor of products: the kernels of a device, run and counted on the CPU.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quantloom_runtime::gpu::{Executor, Launch, LaunchBuffer, Products};
use quantloom_runtime::op::ProductError;
use quantloom_runtime::source::{KernelKey, LaunchRule, ParameterKind, ProblemSize, Refusal};

use super::compile::{built, gpu, verified};
use super::{Jit, JitError, launch_rule};
use crate::ir::{Kernel, Verified};
use crate::sim::{self, Arguments, Contents, Fault, Report, SimulationOptions};
use crate::target::Target;

/// Why a launch on the simulator failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// There is no kernel.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The simulator reported a fault.
    #[error(transparent)]
    Fault(Box<Fault>),
    /// A size of the launch does not fit into 32 bits, or the problem does not have that size.
    #[error("launching {kernel}: the parameter `{parameter}` has no 32-bit value")]
    Size {
        /// The kernel.
        kernel: String,
        /// The parameter of the kernel.
        parameter: String,
    },
}

impl From<SimError> for ProductError {
    fn from(error: SimError) -> Self {
        match error {
            SimError::Refused(why) => why.into(),
            error => Self::device(error),
        }
    }
}

/// A kernel and its rule.
pub struct Simulated {
    kernel: Verified<Kernel>,
    rule: LaunchRule,
}

/// Runs the kernels of [`Jit`] for a target, without a device.
pub struct Simulator {
    name: String,
    target: &'static Target,
    source: Arc<dyn Products>,
    change: Option<Change>,
    options: SimulationOptions,
    kernels: Mutex<HashMap<KernelKey, Arc<Simulated>>>,
    reports: Mutex<Reports>,
}

/// The latest reports, and the cost of all launches.
#[derive(Default)]
struct Reports {
    latest: VecDeque<Report>,
    totals: Totals,
}

/// The cost of all launches of a simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Launches.
    pub launches: u64,
    /// Warp instructions.
    pub instructions: u64,
    /// Rounds of shared memory beyond one for each part of a warp: bank conflicts.
    pub conflicts: u64,
}

impl Reports {
    fn add(&mut self, report: Report) {
        self.totals.launches += 1;
        self.totals.instructions += report.instructions();
        self.totals.conflicts += report.conflicts();
        if self.latest.len() == KEPT_REPORTS {
            self.latest.pop_front();
        }
        self.latest.push_back(report);
    }
}

/// The most reports that a simulator keeps: those of a few products, so that memory is bounded.
pub const KEPT_REPORTS: usize = 256;

/// A change of a kernel before it is verified.
type Change = Arc<dyn Fn(&mut Kernel) + Send + Sync>;

/// SMs of the simulated device: those of an H200.
const MULTIPROCESSORS: u64 = 132;

impl Simulator {
    /// The simulator of a GPU target.
    ///
    /// # Errors
    /// A target without kernels.
    pub fn new(target: &str) -> Result<Self, Refusal> {
        let target = gpu(target)?;
        Ok(Self {
            name: format!("sim:{target}"),
            target,
            source: Arc::new(Jit),
            change: None,
            options: SimulationOptions::default(),
            kernels: Mutex::default(),
            reports: Mutex::default(),
        })
    }

    /// With another order of blocks, warps and copies.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.options.seed = seed;
        self
    }

    /// With the coarsest sums that FP8 products may have ([`SimulationOptions::truncate_fp8`]).
    #[must_use]
    pub fn with_truncated_fp8(mut self) -> Self {
        self.options.truncate_fp8 = true;
        self
    }

    /// With another choice among the kernels of [`Jit`].
    #[must_use]
    pub fn with_source(self, source: Arc<dyn Products>) -> Self {
        Self { source, ..self }
    }

    /// With a change of every kernel before it is verified, to test that mistakes are found.
    #[must_use]
    pub fn with_change(self, change: impl Fn(&mut Kernel) + Send + Sync + 'static) -> Self {
        Self { change: Some(Arc::new(change)), ..self }
    }

    /// The reports of the launches since the last call, in order; at most the latest [`KEPT_REPORTS`].
    pub fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut lock(&self.reports).latest).into()
    }

    /// The cost of all launches.
    pub fn totals(&self) -> Totals {
        lock(&self.reports).totals
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Executor for Simulator {
    type Memory = Contents;
    type Kernel = Arc<Simulated>;
    type Ready = (Arc<Simulated>, Vec<u32>);
    type Error = SimError;

    fn name(&self) -> &str {
        &self.name
    }

    fn target(&self) -> &str {
        self.target.name
    }

    fn multiprocessors(&self) -> u64 {
        MULTIPROCESSORS
    }

    fn source(&self) -> &dyn Products {
        &*self.source
    }

    fn is_loaded(&self, key: &KernelKey) -> bool {
        lock(&self.kernels).contains_key(key)
    }

    fn kernel(&self, key: &KernelKey) -> Result<Arc<Simulated>, SimError> {
        if let Some(kernel) = lock(&self.kernels).get(key) {
            return Ok(kernel.clone());
        }
        let mut kernel = built(key, self.target).map_err(Refusal::from)?;
        if let Some(change) = &self.change {
            change(&mut kernel);
        }
        let kernel = verified(kernel, key).map_err(Refusal::from)?;
        let rule = launch_rule(&kernel).map_err(|error| Refusal::from(JitError::from(error)))?;
        let simulated = Arc::new(Simulated { kernel, rule });
        lock(&self.kernels).insert(key.clone(), simulated.clone());
        Ok(simulated)
    }

    fn rule<'k>(&self, kernel: &'k Arc<Simulated>) -> &'k LaunchRule {
        &kernel.rule
    }

    fn ready(
        &self,
        kernel: &Arc<Simulated>,
        problem: &ProblemSize,
    ) -> Result<Self::Ready, SimError> {
        let mut parameters = Vec::new();
        for parameter in &kernel.rule.parameters {
            if let ParameterKind::Size(count) = &parameter.kind {
                let size = count.of(problem).and_then(|size| u32::try_from(size).ok());
                let none = || SimError::Size {
                    kernel: kernel.kernel.name.clone(),
                    parameter: parameter.name.clone(),
                };
                parameters.push(size.ok_or_else(none)?);
            }
        }
        Ok((kernel.clone(), parameters))
    }

    fn upload(&self, bytes: &[u8]) -> Result<Contents, SimError> {
        Ok(Contents::from_bytes(bytes.to_vec()))
    }

    fn output(&self, bytes: u64) -> Result<Contents, SimError> {
        Ok(Contents::poison(bytes as usize))
    }

    fn zeroed(&self, bytes: u64) -> Result<Contents, SimError> {
        Ok(Contents::from_bytes(vec![0; bytes as usize]))
    }

    fn download(&self, memory: &Contents) -> Result<Vec<u8>, SimError> {
        Ok(memory.bytes.clone())
    }

    /// A launch runs at once.
    fn wait(&self) -> Result<(), SimError> {
        Ok(())
    }

    fn launch(&self, mut launch: Launch<'_, '_, Self>) -> Result<(), SimError> {
        let (kernel, parameters) = launch.kernel();
        let (slots, parameters) = (launch.slots(), parameters.clone());
        let held = |slot: &mut LaunchBuffer<'_, Contents>| match slot {
            LaunchBuffer::Read(memory) => (*memory).clone(),
            LaunchBuffer::Write(memory) => std::mem::take(*memory),
        };
        let mut given = Arguments { parameters, buffers: slots.iter_mut().map(held).collect() };
        let report = sim::run(&kernel.kernel, &mut given, &self.options);
        for (slot, left) in slots.iter_mut().zip(given.buffers) {
            if let LaunchBuffer::Write(memory) = slot {
                **memory = left;
            }
        }
        lock(&self.reports).add(report.map_err(SimError::Fault)?);
        Ok(())
    }
}
