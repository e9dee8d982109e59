//! What a caller decides when an expert layer is prepared.

use super::error::ExpertError;

/// What a caller decides when a layer is prepared.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExpertOptions {
    /// Which experts are here; all of them without a map.
    pub map: Option<ExpertMap>,
    /// The score bias `[E]`, if the routing has one.
    pub score_bias: Option<Vec<f32>>,
    /// Static scales of x and h.
    pub input_scales: InputScales,
    /// The most bytes of workspace of a call; calls with more tokens are cut into chunks.
    pub most_workspace: u64,
    /// The most bytes of the parts of all pairs in f32. Beyond, where y has 16 bits, parts are rounded to the type
    /// of y: half the bytes are written and read. A launch has as many parts as tokens times experts of a token,
    /// of H columns. [`u64::MAX`] keeps f32, 0 never has f32. Of GPUs; on CPUs parts are f32.
    pub most_f32_parts: u64,
}

impl Default for ExpertOptions {
    /// All experts, each with its own static scales, 1 GiB of workspace, 8 MiB of parts in f32.
    fn default() -> Self {
        Self {
            map: None,
            score_bias: None,
            input_scales: InputScales::Each,
            most_workspace: 1 << 30,
            most_f32_parts: 8 << 20,
        }
    }
}

/// Which static scale of its input an expert uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputScales {
    /// Its own, as the file says.
    #[default]
    Each,
    /// The largest of all experts, as vLLM does.
    Largest,
}

/// Which experts of the model are here, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertMap {
    places: Vec<i32>,
    local: usize,
}

impl ExpertMap {
    /// `places[expert]` is the place of an expert of the model among the `local` ones that are here,
    /// or below 0 if it is elsewhere.
    ///
    /// # Errors
    /// [`ExpertError::Map`], [`ExpertError::MapPlaces`].
    pub fn new(places: Vec<i32>, local: usize) -> Result<Self, ExpertError> {
        let elsewhere = |place: &i32| usize::try_from(*place).is_ok_and(|place| place >= local);
        if let Some(expert) = places.iter().position(elsewhere) {
            return Err(ExpertError::Map { expert, place: places[expert], local });
        }
        if local > places.len() {
            return Err(ExpertError::MapPlaces { local, experts: places.len() });
        }
        Ok(Self { places, local })
    }

    /// `[E]`.
    pub fn places(&self) -> &[i32] {
        &self.places
    }

    /// L.
    pub fn local(&self) -> usize {
        self.local
    }
}
