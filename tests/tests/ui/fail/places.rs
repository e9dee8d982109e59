//! Fragments of another macro come in invisible groups; the place is still the user's.

macro_rules! grouped {
    ($visibility:vis $name:ident, $code:ident, $group:literal) => {
        quantloom::scheme! {
            $visibility $name {
                weight: $code,
                scale: bf16 per $group,
                pack: u32 [k:8 | k, n],
                activation: bf16,
            }
        }
    };
}

grouped!(pub(crate) A, u44, 1x32);
grouped!(B, u4, 1x);

// An error without a token, and one of the shell itself, are at the whole call.
quantloom::scheme! {}

quantloom_macros::scheme_impl! {
    pub W4 {
        weight: u4 - 8,
        pack: u32 [k:8 | k, n],
        activation: bf16,
    }
}

fn main() {}
