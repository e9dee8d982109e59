//! The command from outside: what it prints, writes and refuses.

mod book;
mod convert;
mod cuda;
mod custom_scheme;
mod documents;
mod emit;
mod experts;
mod explicit_scheme;
mod gguf;
mod gpu;
mod hostile;
mod outputs;
mod quantize;
mod ran;
mod usage;
mod verify_experts;
