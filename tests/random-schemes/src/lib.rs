//! Random legal schemes through every part of Quantloom, against the reference.
//!
//! In: a seed. Out: schemes ([`schemes`], with the layouts of [`layouts`]), a shape, M and data for
//! each, the outcome of every check ([`checks`]), and each failure shrunk ([`shrink`]). The program
//! of this crate does this for a given time ([`campaign`]) and prints the counts of clauses
//! ([`coverage`]).

#![forbid(unsafe_code)]

pub mod campaign;
pub mod checks;
pub mod coverage;
pub mod dice;
pub mod layouts;
pub mod schemes;
pub mod shrink;
