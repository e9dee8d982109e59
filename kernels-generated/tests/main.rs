//! The catalogue on every instruction set of this machine.

mod families;
mod files;
mod ops;
mod products;
