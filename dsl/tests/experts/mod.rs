//! Expert layers: their text and checks, and each step of their reference against values that were
//! worked out apart from it.

mod documentation;
mod gate;
mod layer;
mod routing;
mod text;

use quantloom_dsl::experts::ExpertLayer;

/// A layer from its text.
fn described(text: &str) -> ExpertLayer {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}
