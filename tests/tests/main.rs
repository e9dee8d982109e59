//! Golden and cross-crate tests: one program, so that what they share is compiled and linked once.

mod activations;
mod arrows;
mod catalogue;
mod checkpoint_experts;
mod conformance;
mod device;
mod experts;
mod experts_faults;
mod experts_reference;
mod golden;
mod gpu;
mod gpu_catalogue;
mod gpu_codes;
mod gpu_expert_calls;
mod gpu_experts;
mod gpu_groups;
mod plans;
mod quantize;
mod refusals;
pub mod scheme_macro;
mod settings;
mod transforms;
mod ui;
mod warp_group;
