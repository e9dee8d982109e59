//! The language's tests: one program, so that what they share is compiled and linked once.

mod packers;
mod random_layout;

mod activation_choice;
mod correction;
mod defaults;
mod documentation;
mod errors;
mod experts;
mod formats;
mod fragments;
mod integers;
mod laws;
mod notation;
mod printing;
mod rules;
mod shifts;
mod tokens;
mod zeros;
