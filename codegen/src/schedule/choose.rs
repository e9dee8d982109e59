//! Which schedule, with which free choices, multiplies so many rows of x.
//!
//! In: a [`Problem`] and a number of tokens. Out: a [`Chosen`], which writes the kernel, and is the
//! name and the parameters of a kernel's key; [`Chosen::read`] is the way back from a key. What was
//! measured comes before what is computed.

use std::collections::BTreeMap;

use super::decode::{DecodeTile, decode};
use super::measured::measured;
use super::problem::{Problem, Unscheduled};
use super::shader::{ShaderTile, shader};
use super::tile::{TileShape, tile};
use crate::ir::Kernel;

/// A schedule and its free choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chosen {
    /// The decode product, up to 16 tokens.
    Decode(DecodeTile),
    /// The product in tiles, any number of tokens.
    Tile(TileShape),
    /// The product of lanes by themselves, any number of tokens.
    Shader(ShaderTile),
}

/// The schedule for a number of tokens (rows of x, M): the one that was measured to be the fastest,
/// else by the schedules' models.
///
/// # Errors
/// If no schedule takes the problem with so many tokens.
pub fn choose(problem: &Problem, tokens: u32) -> Result<Chosen, Unscheduled> {
    measured(problem, tokens).map_or_else(|| choose_by_model(problem, tokens), Ok)
}

/// The schedule for a number of tokens by the schedules' models alone.
///
/// # Errors
/// If no schedule takes the problem with so many tokens.
pub fn choose_by_model(problem: &Problem, tokens: u32) -> Result<Chosen, Unscheduled> {
    match tokens {
        _ if problem.product.is_none() => ShaderTile::choose(problem, tokens).map(Chosen::Shader),
        1..=16 => DecodeTile::choose(problem, tokens).map(Chosen::Decode),
        _ => TileShape::choose(problem, tokens).map(Chosen::Tile),
    }
}

impl Chosen {
    /// The names of all schedules.
    pub const NAMES: [&str; 3] = ["decode", "tile", "shader"];

    /// Writes the kernel.
    ///
    /// # Errors
    /// What the schedule does not take.
    pub fn write(&self, problem: &Problem) -> Result<Kernel, Unscheduled> {
        self.fits_product(problem)?;
        match self {
            Self::Decode(choice) => decode(problem, *choice),
            Self::Tile(choice) => tile(problem, *choice),
            Self::Shader(choice) => shader(problem, *choice),
        }
    }

    /// Whether the schedule takes these choices for the problem.
    ///
    /// # Errors
    /// The rule that they break.
    pub fn check(&self, problem: &Problem) -> Result<(), Unscheduled> {
        self.fits_product(problem)?;
        match self {
            Self::Decode(choice) => choice.check(problem),
            Self::Tile(choice) => choice.check(problem),
            Self::Shader(choice) => choice.check(problem),
        }
    }

    /// Whether the schedule multiplies as the problem's plan says: by matrix instructions or not.
    fn fits_product(&self, problem: &Problem) -> Result<(), Unscheduled> {
        if matches!(self, Self::Shader(_)) == problem.product.is_none() {
            return Ok(());
        }
        let (name, target) = (self.name(), problem.target());
        Err(Unscheduled::Tile(format!("the schedule {name} has no products of {target}")))
    }

    /// Whether the schedule takes the problem, so many tokens in one launch, and blocks fit.
    pub fn takes(&self, problem: &Problem, tokens: u32) -> bool {
        let fits = match self {
            Self::Decode(choice) => choice.fits(problem),
            Self::Tile(choice) => choice.fits(problem),
            Self::Shader(choice) => choice.check(problem).is_ok(),
        };
        fits && self.tokens(problem) >= tokens
    }

    /// The most rows of x that one launch takes: those of a decode tile; those whose elements of
    /// x, of y and of the sums of a split K are numbered in 32 bits.
    pub fn tokens(&self, problem: &Problem) -> u32 {
        match self {
            Self::Decode(choice) => choice.tokens,
            Self::Tile(choice) => choice.most_tokens(problem),
            Self::Shader(choice) => choice.most_tokens(problem),
        }
    }

    /// The schedule's name in a kernel's key.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Decode(_) => "decode",
            Self::Tile(_) => "tile",
            Self::Shader(_) => "shader",
        }
    }

    /// The free choices by name, for a kernel's key. N and K, which are constants of the text too,
    /// are the problem's.
    pub fn parameters(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Decode(choice) => choice.parameters(),
            Self::Tile(choice) => choice.parameters(),
            Self::Shader(choice) => choice.parameters(),
        }
    }

    /// The schedule of a key: the inverse of [`Self::name`] and [`Self::parameters`]. Parameters
    /// of other names are not looked at.
    ///
    /// # Errors
    /// An unknown name, or a parameter that is missing or too large.
    pub fn read(name: &str, parameters: &BTreeMap<String, u64>) -> Result<Self, Unscheduled> {
        let of = |parameter: &str| {
            let value = parameters.get(parameter).copied();
            value.and_then(|value| u32::try_from(value).ok()).ok_or_else(|| {
                Unscheduled::Tile(format!("schedule {name} needs the parameter {parameter}"))
            })
        };
        match name {
            "decode" => DecodeTile::read(of).map(Self::Decode),
            "tile" => TileShape::read(of).map(Self::Tile),
            "shader" => ShaderTile::read(of).map(Self::Shader),
            _ => {
                let known = Self::NAMES.join(", ");
                Err(Unscheduled::Tile(format!("there is no schedule {name}, only {known}")))
            }
        }
    }
}
