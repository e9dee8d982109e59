//! Kernels of expert layers besides the products, and the functions between the products.
//!
//! In: the sizes of a layer as constants, M at launch. Out: a [`Kernel`](crate::ir::Kernel), not yet
//! verified. The meaning is [`quantloom_dsl::reference::experts`]. In the order of a call:
//!
//! | file | kernel | from | to |
//! |---|---|---|---|
//! | `route` | `route` | logits [M, E] | ids and router weights [M, k] |
//! | `sort` | `pair_counts`, `order` | ids, expert map | `slots`: pairs sorted by expert, in token blocks |
//! | `weigh` | `weigh` | x [M, H] | x times router weights, for layers with the weight on the input |
//! | `activate` | `gate` | z [s, T B, I] of the first product | h [T B, I] |
//! | `combine` | `combine` | parts [R, H] of the second product | y [M, H] |
//!
//! `exponential`, `logarithm` and `reciprocal` write elementary functions as operations, `function` silu, gelu and the
//! gates from them; `elements` loads and stores neighbouring elements.

mod activate;
mod combine;
pub(super) mod elements;
pub mod exponential;
pub mod function;
pub mod logarithm;
pub mod reciprocal;
mod route;
mod sort;
mod weigh;

pub use activate::{GateProblem, activate};
pub use combine::{CombineProblem, combine};
pub use route::{RouteProblem, route};
pub(super) use sort::{CHUNK, Places};
pub use sort::{COUNTED_BY_ALL, SortProblem, sort};
pub use weigh::{WeighProblem, weigh};
