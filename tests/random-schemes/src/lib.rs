//! Random legal schemes through every part of Quantloom, against the reference.
//!
//! In: a seed. Out: schemes ([`schemes`], with the layouts of [`layouts`]), a shape, M and data for
//! each, what became of every check ([`checks`]), and each failure made small ([`shrink`]). The
//! program of this crate does so for a given time ([`campaign`]) and prints which clauses were
//! drawn ([`coverage`]).

#![forbid(unsafe_code)]

pub mod campaign;
pub mod checks;
pub mod coverage;
pub mod dice;
pub mod layouts;
pub mod schemes;
pub mod shrink;
