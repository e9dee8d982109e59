//! The scales of x that change along K, for the sums of a lane's tokens.
//!
//! A stage has of each token the four groups of a vector, the least that a tensor copy moves; one of them is that of
//! the stage's columns.

use super::stage::{Part, Stages, group_of_x};
use crate::ir::{Address, Builder, Cache, Operand, Reg, Type, Uniformity, Width};
use crate::schedule::input::VECTOR_SCALES;
use crate::schedule::lanes::LaneMap;
use crate::schedule::mapping::MainLoop;

/// The scales of a lane's tokens.
pub(super) struct TokenScales<'s> {
    part: &'s Part,
    /// The word of the lane's first token in a stage, of the first group.
    of_lane: Operand,
    /// The distances of the lane's tokens from the first one.
    tokens: Vec<u32>,
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
        let of_lane = b.mul(token, VECTOR_SCALES);
        let at = b.variable("x_scale_at", Type::U32, Uniformity::Varying);
        b.set(at, of_lane);
        Some(Self { part, of_lane, tokens: lanes.d.tokens.clone(), at })
    }

    /// The scales that follow are those of k-tile `number`, which is in this stage.
    pub(super) fn reach(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        (number, stage): (Operand, Operand),
    ) {
        let group = group_of_x(b, main, number);
        let of_vector = b.rem(group, VECTOR_SCALES);
        let first = self.part.of_stage(b, stage).index;
        let at = b.add(first, self.of_lane);
        let at = b.add(at, of_vector);
        b.set(self.at, at);
    }

    /// The scales, one per token of the lane.
    pub(super) fn read(&self, b: &mut Builder) -> Vec<Operand> {
        let first = Address::new(self.part.block, self.at);
        let read = |&token: &u32| {
            let from = first.plus(token * VECTOR_SCALES);
            b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0].into()
        };
        self.tokens.iter().map(read).collect()
    }
}
