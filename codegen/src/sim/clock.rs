//! The happens-before order: vector clocks over warps and the copy engines of mbarriers.
//!
//! An *entity* is a warp of the cluster, the engine that copies for an mbarrier, or the grid before
//! this one. Each entity counts *epochs*; an access records the epoch, the entity and the lane. A
//! [`Clock`] says up to which epoch of each entity its holder has seen all accesses.
//!
//! Lanes of a warp are ordered among themselves only where the warp synchronises. A release by some
//! lanes therefore publishes two epochs: that of the last synchronisation, for all lanes, and the
//! current one, for these lanes ([`SeenEpochs`]).

use std::collections::BTreeMap;
use std::sync::Arc;

/// A lane number that means all lanes of a warp, or an engine.
pub(super) const ALL_LANES: u8 = 0xff;

/// The epochs of one entity of which all accesses have been seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenEpochs {
    /// Last epoch seen of all lanes.
    pub(super) full: u32,
    /// Last epoch seen of `lanes`.
    pub(super) part: u32,
    /// The lanes of `part`.
    pub(super) lanes: u64,
}

impl SeenEpochs {
    /// Whether an access of that epoch and lane has been seen.
    pub(super) fn covers(&self, epoch: u32, lane: u8) -> bool {
        epoch <= self.full
            || (epoch <= self.part && lane != ALL_LANES && self.lanes >> lane & 1 == 1)
    }

    /// The union of both. If their lanes differ, the lower epoch is kept for all of them: the
    /// result may be less than the union, never more.
    pub(super) fn join(&mut self, other: &Self) {
        self.full = self.full.max(other.full);
        if self.part <= self.full {
            (self.part, self.lanes) = (0, 0);
        }
        if other.part <= self.full {
            return;
        }
        if self.lanes & !other.lanes == 0 && other.part >= self.part {
            (self.part, self.lanes) = (other.part, other.lanes);
        } else if other.lanes & !self.lanes != 0 || other.part > self.part {
            self.part = self.part.min(other.part);
            self.lanes |= other.lanes;
        }
    }
}

/// A vector clock: what has been seen of every entity.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Clock {
    /// Entities of the own unit.
    pub(super) own: Vec<SeenEpochs>,
    /// Entities of other units, by the unit's number.
    others: BTreeMap<u32, Arc<[SeenEpochs]>>,
}

impl Clock {
    /// A clock that has seen nothing.
    pub(super) fn new(entities: usize) -> Self {
        Self { own: vec![SeenEpochs::default(); entities], others: BTreeMap::new() }
    }

    /// Joins another clock of the same unit.
    pub(super) fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.own.iter_mut().zip(&other.own) {
            mine.join(theirs);
        }
        for (&unit, known) in &other.others {
            self.join_unit(unit, known);
        }
    }

    /// Joins a clock of another unit.
    pub(super) fn join_foreign(&mut self, own_unit: u32, unit: u32, other: &Self) {
        self.join_unit(unit, &other.own.clone().into());
        for (&third, known) in &other.others {
            if third != own_unit {
                self.join_unit(third, known);
            }
        }
    }

    fn join_unit(&mut self, unit: u32, known: &Arc<[SeenEpochs]>) {
        match self.others.get_mut(&unit) {
            None => {
                self.others.insert(unit, known.clone());
            }
            Some(mine) if mine == known => {}
            Some(mine) => {
                let joined = mine.iter().zip(known.iter()).map(|(a, b)| {
                    let mut both = *a;
                    both.join(b);
                    both
                });
                *mine = joined.collect();
            }
        }
    }

    /// What has been seen of an entity of a unit.
    pub(super) fn of(&self, own_unit: u32, unit: u32, entity: u16) -> SeenEpochs {
        let known = if unit == own_unit {
            Some(&self.own[..])
        } else {
            self.others.get(&unit).map(|k| &k[..])
        };
        known.and_then(|known| known.get(usize::from(entity))).copied().unwrap_or_default()
    }
}

/// The maker of an access, and what it has seen.
pub(super) struct Observer<'a> {
    pub(super) unit: u32,
    pub(super) entity: u16,
    pub(super) epoch: u32,
    pub(super) point: u32,
    pub(super) clock: &'a Clock,
    /// A clock that only the lanes of the mask have seen.
    pub(super) partial: Option<&'a (u64, Clock)>,
}

/// A record of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AccessRecord {
    /// The epoch of the entity; 0 if there was no access.
    pub(super) epoch: u32,
    pub(super) unit: u32,
    pub(super) point: u32,
    pub(super) entity: u16,
    pub(super) lane: u8,
    pub(super) atomic: bool,
}

impl Observer<'_> {
    /// The record of an access by a lane.
    pub(super) fn record(&self, lane: u8) -> AccessRecord {
        AccessRecord {
            epoch: self.epoch,
            unit: self.unit,
            point: self.point,
            entity: self.entity,
            lane,
            atomic: false,
        }
    }

    /// Whether an earlier access happens before what the lane does now.
    pub(super) fn follows(&self, lane: u8, earlier: &AccessRecord) -> bool {
        if earlier.epoch == 0 {
            return true;
        }
        let AccessRecord { unit, entity, epoch, .. } = *earlier;
        if unit == self.unit && entity == self.entity && earlier.lane == lane && lane != ALL_LANES {
            return true;
        }
        self.clock.of(self.unit, unit, entity).covers(epoch, earlier.lane)
            || self.partial.is_some_and(|(lanes, clock)| {
                let sees = lane != ALL_LANES && lanes >> lane & 1 == 1;
                sees && clock.of(self.unit, unit, entity).covers(epoch, earlier.lane)
            })
    }
}
