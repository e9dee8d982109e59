//! Products on a GPU, whatever runs its kernels.
//!
//! In: [`Products`] (which kernel multiplies, how it wants the weight to lie), an [`Executor`]
//! (memory and launches) and an unpacked layer. Out: a [`GpuWeight`], which is an
//! [`Op`](crate::op::Op) like a weight on the CPU. The executors are `cuda::Cuda` (feature
//! `cuda`), `hip::Hip` (feature `hip`) and, in the compiler, the simulator: everything before an
//! executor's `launch` is the same for all.
//!
//! | file | what |
//! |---|---|
//! | `products` | what is asked of a source of kernels besides their texts |
//! | `native` | a constant buffer of a product: its layout, packed from an unpacked layer |
//! | `transform` | a kernel that fills or reads a native buffer, on buffers of its own |
//! | `stored` | the same from a checkpoint's own bytes, by kernels; and those bytes back |
//! | `saved` | a prepared weight in a file, and back |
//! | `static_inputs` | what is known of x before it is there: static scales and zero points |
//! | `executor` | memory and launches, as a trait |
//! | `clock` | what times calls on a device, as a trait |
//! | `tune` | the fastest kernel of a product, found by measuring |
//! | `device` | the device of an executor, where weights are prepared |
//! | `weight` | a prepared weight: its buffers, the kernels that read them |
//! | `plan` | the launches of a product, their buffers and sizes: as formulas, and for M tokens |
//! | `kept_plans` | plans that were made before |
//! | `launch` | x, y and a workspace of the executor; the launches of a plan on them |
//! | `experts` | expert layers: stacked weights, plans and the op |
//! | `matmul` | the op: x in, chunks of M, launches, y out |
//! | `accumulation` | where its kernels round, for the conformance kit |

mod accumulation;
mod clock;
mod debug;
mod device;
mod executor;
mod experts;
mod kept_plans;
mod launch;
mod matmul;
mod native;
pub(crate) mod plan;
mod products;
mod saved;
mod static_inputs;
mod stored;
mod transform;
mod tune;
mod weight;

pub use crate::column_order::{Arrangement, ColumnOrder, NO_COLUMN};
pub use crate::weight_data::Stored;
pub use clock::Clock;
pub use device::GpuDevice;
pub use executor::{Executor, Launch, LaunchBuffer, Registers};
pub use experts::{
    ExpertTensors, ExpertTuner, GpuExpertLayer, GpuExperts, LayerPlan, PlanKey, RoutedBy,
    TimedExperts, TunedExperts,
};
pub use launch::ProductTensors;
pub use native::{Computed, Form, NativeBuffer};
pub use plan::{
    LaunchPlan, LaunchStep, PlanBuffer, PlanFault, PlanLaunch, ProductPlan, WorkspaceBytes,
};
pub use products::{
    Alternatives, ChoiceSource, ChosenKernel, ExpertKernels, ExpertRequest, ParamRange, Products,
    RepackKernels, Request, Stacked, StackedAlternatives, StackedChoice, Trusted,
};
pub use saved::{BufferDamage, SavedError};
pub use transform::Transform;
pub use tune::{TimedKernel, TuneError, TuneOptions, Tuned, Tuner};
pub use weight::GpuWeight;
