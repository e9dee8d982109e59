//! The scales of x that change along K, for the sums of a lane's tokens.

use super::stage::{Part, Stages};
use crate::ir::{Address, Builder, Cache, Operand, Reg, Type, Uniformity, Width};
use crate::schedule::lanes::LaneMap;

/// The scales of a lane's tokens.
pub(super) struct TokenScales<'s> {
    part: &'s Part,
    /// The lane's first token.
    token: Operand,
    /// The distances of the lane's tokens from the first one.
    tokens: Vec<u32>,
    /// Whether a lane's first token is even.
    paired: bool,
    /// The word of the first token's scale for the segments that are added next.
    at: Reg,
}

impl<'s> TokenScales<'s> {
    /// `None` if no scales of x change along K.
    pub(super) fn declare(
        b: &mut Builder,
        stages: &'s Stages,
        lanes: &LaneMap,
        lane: Operand,
    ) -> Option<Self> {
        let part = stages.x_scales.as_ref()?;
        let token = lanes.d.token.of(b, lane);
        let at = b.variable("x_scale_at", Type::U32, Uniformity::Varying);
        b.set(at, token);
        let paired = lanes.d.token.least().is_multiple_of(2);
        Some(Self { part, token, paired, tokens: lanes.d.tokens.clone(), at })
    }

    /// The scales that follow are those of this stage.
    pub(super) fn reach(&self, b: &mut Builder, stage: Operand) {
        let first = self.part.of_stage(b, stage).index;
        let at = b.add(first, self.token);
        b.set(self.at, at);
    }

    /// The scales, one per token of the lane.
    pub(super) fn read(&self, b: &mut Builder) -> Vec<Operand> {
        let first = Address::new(self.part.block, self.at);
        let (mut scales, mut left): (Vec<Operand>, _) = (Vec::new(), &self.tokens[..]);
        while let [token, rest @ ..] = left {
            // The lane's tokens come in pairs, the first of which is even.
            let width = match rest {
                [next, ..] if *next == token + 1 && self.paired => Width::B64,
                _ => Width::B32,
            };
            let read = b.load_as(Type::F32, first.plus(*token), width, None, Cache::Default);
            scales.extend(read.into_iter().map(Operand::from));
            left = &left[width.registers()..];
        }
        scales
    }
}
