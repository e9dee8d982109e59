//! The catalogue on every instruction set of this machine.

mod decoders;
mod files;
mod ops;
mod products;
