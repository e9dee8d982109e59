//! What comes before what: vector clocks over warps and the engines behind mbarriers.
//!
//! An *entity* is a warp of the cluster that runs, the engine that copies for an mbarrier, or the
//! grid before this one. Each entity counts *epochs*; an access remembers the epoch, the entity and
//! the lane. A [`Clock`] says up to which epoch of each entity its holder has seen everything.
//!
//! Lanes of a warp are ordered among themselves only where the warp synchronises. A release by some
//! lanes therefore publishes two numbers: what all lanes did up to the last synchronisation, and
//! what these lanes did up to now ([`Known`]).

use std::collections::BTreeMap;
use std::sync::Arc;

/// A lane number that stands for all lanes of a warp, or for an engine.
pub(super) const ALL_LANES: u8 = 0xff;

/// What is known of one entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Everything up to this epoch, of all lanes.
    pub(super) full: u32,
    /// Of `lanes`, everything up to this epoch.
    pub(super) part: u32,
    /// See `part`.
    pub(super) lanes: u64,
}

impl Known {
    /// Whether an access of that epoch and lane has been seen.
    pub(super) fn covers(&self, epoch: u32, lane: u8) -> bool {
        epoch <= self.full
            || (epoch <= self.part && lane != ALL_LANES && self.lanes >> lane & 1 == 1)
    }

    /// Both. Where the lanes of two differ, the lower epoch is kept for all of them: less is known
    /// than could be, never more.
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

/// What is known of every entity.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Clock {
    /// Of the entities of the own unit.
    pub(super) own: Vec<Known>,
    /// Of other units, by their number.
    others: BTreeMap<u32, Arc<[Known]>>,
}

impl Clock {
    /// Nothing is known yet.
    pub(super) fn new(entities: usize) -> Self {
        Self { own: vec![Known::default(); entities], others: BTreeMap::new() }
    }

    /// Learns what another clock of the same unit knows.
    pub(super) fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.own.iter_mut().zip(&other.own) {
            mine.join(theirs);
        }
        for (&unit, known) in &other.others {
            self.join_unit(unit, known);
        }
    }

    /// Learns what a clock of another unit knows.
    pub(super) fn join_foreign(&mut self, own_unit: u32, unit: u32, other: &Self) {
        self.join_unit(unit, &other.own.clone().into());
        for (&third, known) in &other.others {
            if third != own_unit {
                self.join_unit(third, known);
            }
        }
    }

    fn join_unit(&mut self, unit: u32, known: &Arc<[Known]>) {
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

    /// What is known of an entity of a unit.
    pub(super) fn of(&self, own_unit: u32, unit: u32, entity: u16) -> Known {
        let known = if unit == own_unit {
            Some(&self.own[..])
        } else {
            self.others.get(&unit).map(|k| &k[..])
        };
        known.and_then(|known| known.get(usize::from(entity))).copied().unwrap_or_default()
    }
}

/// Who makes an access, and what he has seen.
pub(super) struct Observer<'a> {
    pub(super) unit: u32,
    pub(super) entity: u16,
    pub(super) epoch: u32,
    pub(super) point: u32,
    pub(super) clock: &'a Clock,
    /// What only some lanes have seen.
    pub(super) some: Option<&'a (u64, Clock)>,
}

/// One access that was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// 0: there was none.
    pub(super) epoch: u32,
    pub(super) unit: u32,
    pub(super) point: u32,
    pub(super) entity: u16,
    pub(super) lane: u8,
    pub(super) atomic: bool,
}

impl Observer<'_> {
    /// The record of an access by a lane.
    pub(super) fn record(&self, lane: u8) -> Record {
        Record {
            epoch: self.epoch,
            unit: self.unit,
            point: self.point,
            entity: self.entity,
            lane,
            atomic: false,
        }
    }

    /// Whether an access came before what the lane does now.
    pub(super) fn follows(&self, lane: u8, earlier: &Record) -> bool {
        if earlier.epoch == 0 {
            return true;
        }
        let Record { unit, entity, epoch, .. } = *earlier;
        if unit == self.unit && entity == self.entity && earlier.lane == lane && lane != ALL_LANES {
            return true;
        }
        self.clock.of(self.unit, unit, entity).covers(epoch, earlier.lane)
            || self.some.is_some_and(|(lanes, clock)| {
                let sees = lane != ALL_LANES && lanes >> lane & 1 == 1;
                sees && clock.of(self.unit, unit, entity).covers(epoch, earlier.lane)
            })
    }
}
