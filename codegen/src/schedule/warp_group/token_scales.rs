//! The scales of x that change along K, for the sums of a lane's tokens.

use super::stage::{StagedArray, Stages};
use crate::ir::{Address, Builder, Cache, Operand, Reg, Type, Uniformity, Width};
use crate::schedule::lanes::LaneMap;

/// The scales of a lane's tokens.
pub(super) struct TokenScales<'s> {
    array: &'s StagedArray,
    /// The lane's first token.
    token: Operand,
    /// The distances of the lane's tokens from the first one.
    tokens: Vec<u32>,
    /// Whether a lane's first token is even.
    paired: bool,
    /// Per token of the lane: its scale in the stage that was loaded last, 0 before.
    pub(super) scales: Vec<Reg>,
}

impl<'s> TokenScales<'s> {
    /// `None` if no scales of x change along K.
    pub(super) fn declare(
        b: &mut Builder,
        stages: &'s Stages,
        lanes: &LaneMap,
        lane: Operand,
    ) -> Option<Self> {
        let array = stages.x_scales.as_ref()?;
        let token = lanes.d.token.of(b, lane);
        let paired = lanes.d.token.least().is_multiple_of(2);
        let tokens = lanes.d.tokens.clone();
        let scales = b.array("x_scale", Type::F32, tokens.len() as u32, Uniformity::Varying);
        scales.iter().for_each(|&scale| b.set(scale, 0.0f32));
        Some(Self { array, token, paired, tokens, scales })
    }

    /// Loads the scales of a stage.
    pub(super) fn load(&self, b: &mut Builder, stage: Operand) {
        let first = self.array.of_stage(b, stage).index;
        let first = Address::new(self.array.block, b.add(first, self.token));
        let (mut scales, mut left) = (&self.scales[..], &self.tokens[..]);
        while let [token, rest @ ..] = left {
            // The lane's tokens come in pairs, the first of which is even.
            let width = match rest {
                [next, ..] if *next == token + 1 && self.paired => Width::B64,
                _ => Width::B32,
            };
            let (to, later) = scales.split_at(width.registers());
            b.load_into(to, first.plus(*token), width, None, Cache::Default);
            (scales, left) = (later, &left[to.len()..]);
        }
    }
}
