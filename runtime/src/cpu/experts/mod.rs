//! Expert layers on the CPU.
//!
//! In: the description of a layer, its matrices one at a time; then x and the experts of each token.
//! Out: y. Each matrix is packed as a dense weight (`stack`). A call sorts its pairs by expert,
//! cuts the slots of each expert into token blocks (`blocks`), and then takes four steps, each
//! with one queue over all threads: rows of x are packed for their experts (`pack`); panels of gate
//! and up are multiplied and combined to h by the same thread (`product`, `gate`); rows of h are
//! packed; panels of down are multiplied, and a token's parts are added in the order of choice
//! (`combine`). `forward` runs the steps in the memory that `memory` cuts.
//!
//! Nothing depends on which thread computes what: every number has one place and one order of
//! operations, so that the same call gives the same bits on any number of threads.

mod blocks;
mod combine;
mod forward;
mod gate;
mod memory;
mod op;
mod pack;
mod prepare;
mod product;
mod stack;

pub use op::CpuExperts;
