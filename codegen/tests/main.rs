//! The compiler's tests: one program, so that what they share is compiled and linked once.

mod kernels;

mod activation;
mod arrows;
mod assembles;
mod block_scales;
mod choose;
mod expand;
mod experts;
mod hip;
mod hip_conformance;
mod hip_products;
mod jit;
mod launch_plans;
mod matrix_rows;
mod measured;
mod mistakes;
mod mutations;
mod native;
mod overrides;
mod problem;
mod saved;
mod schedules;
mod scheme_mutations;
mod sequences;
mod simulated;
mod snapshots;
mod stacked;
mod stacked_mutations;
mod stacked_warp_group;
mod tables;
mod texts;
mod transforms;
mod verifier;
mod warp_group;
mod wgsl;
