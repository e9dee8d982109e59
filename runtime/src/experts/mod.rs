//! Expert layers (mixture of experts): what a program calls, and what every device shares.
//!
//! In: an [`ExpertLayer`], its matrices one at a time ([`ExpertSource`]) and [`ExpertOptions`]; then
//! x [M, H] and the router's logits, or the experts that the caller chose ([`Routed`]). Out: y [M, H].
//! A [`Backend`](crate::backend::Backend) makes an [`ExpertOp`] of a layer. The meaning of a layer is
//! [`quantloom_dsl::reference::experts`]; docs/expert-layers.md explains it.
//!
//! Letters: M tokens, H hidden size, I intermediate size, E experts of the model, L experts that are
//! here, k = top-k. A pair is a token's choice of an expert: pair `m * k + j` is token m's j-th.

mod error;
mod inputs;
mod not_scheduled;
mod op;
mod options;
mod order;
mod route;
mod source;

pub use error::ExpertError;
pub use inputs::take_largest;
pub use not_scheduled::{ExpertsNotScheduled, QuantiserRule};
pub use op::{ExpertCall, ExpertOp, Routed};
pub use options::{ExpertMap, ExpertOptions, InputScales};
pub use order::{order, place};
pub use quantloom_dsl::experts::ExpertLayer;
pub(crate) use route::same_length;
pub use route::{check_bias, route};
pub use source::{ExpertMatrices, ExpertProduct, ExpertSource, WithProducts};
