//! The language's tests: one program, so that what they share is compiled and linked once.

mod packers;
mod random_layout;

mod defaults;
mod documentation;
mod errors;
mod experts;
mod formats;
mod fragments;
mod laws;
mod notation;
mod printing;
mod shifts;
mod tokens;
mod zeros;
