//! What each format can store: the readers run backwards.
//!
//! In: the scheme of a layer. Out: the ways in which a format may store such a layer, the smallest first
//! ([`Storage`]): a scheme whose stores are the format's tensors, and the settings with which the format's
//! reader recognises that scheme. Whether a way holds the values of the layer is not judged here (see
//! `crate::convert`), nor is it trusted that the reader agrees: what is written is read back.
//!
//! One file a format. Its `storages` writes the same text as the format's reader, from what a
//! layer needs instead of from a configuration; `config` is the configuration of a file.

mod awq;
mod compressed_tensors;
mod fp8;
mod gguf;
mod gptq;
mod modelopt;
mod own;
mod quark;

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::{Component, GroupSize, Shape};
use quantloom_dsl::{Activation, Code, Group, Scheme, Store, default_layout, parse};
use serde_json::{Map, Value};

use super::CheckpointFormat;
use super::describe::Extras;
use super::gguf::BlockType;

/// A way to store a layer.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    /// The scheme that the format's reader recognises.
    pub(crate) scheme: Scheme,
    /// What the format calls it.
    pub(crate) label: String,
    /// The layer's part of the configuration.
    pub(crate) settings: Map<String, Value>,
    /// Tensors besides those of the scheme.
    pub(crate) extras: Extras,
    /// GGUF's type of the tensor `weight`.
    pub(crate) blocks: Option<BlockType>,
    /// N and K are multiples of these.
    pub(crate) whole: (u64, u64),
    /// A setting that is true if all zero points are stored as this code.
    pub(crate) middle: Option<(&'static str, u8)>,
}

/// A layer of a file: its name, its shape and how it is stored.
pub(crate) struct StoredLayer<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: Shape,
    pub(crate) storage: &'a Storage,
}

/// Why a layer cannot be in one file with another: the format says something once for all of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingConflict {
    /// An AWQ file has one group size; -1 is a row.
    #[error(
        "AWQ has one group size for all layers: {of_first} of \"{first}\", and {of_layer} of this layer"
    )]
    AwqGroupSize {
        /// The first layer of the file.
        first: String,
        /// Its group size.
        of_first: i64,
        /// The group size of the layer that does not fit.
        of_layer: i64,
    },
    /// An FP8 file has one form of scales.
    #[error("FP8 files have one setting for all layers, and \"{first}\" another")]
    Fp8 {
        /// The first layer of the file.
        first: String,
    },
}

/// Why layers cannot be in one file: the position of one of them, and the reason.
pub(crate) type Apart = (usize, SettingConflict);

/// A configuration, if the format has one.
pub(crate) type Configuration = Result<Option<Map<String, Value>>, Apart>;

/// What a format's files say of all layers alike, where a format leaves a choice.
pub(crate) struct Variant {
    /// What the format stores, for a message: `AWQ stores ...`.
    pub(crate) stores: &'static str,
    /// The ways to store a layer.
    pub(crate) storages: fn(&Wanted<'_>) -> Vec<Storage>,
    /// The `quantization_config` of a file with these layers; the names are those of other matrices.
    /// `None` if the format has no configuration.
    pub(crate) config: fn(&[StoredLayer<'_>], &[String]) -> Configuration,
}

/// The variants of a format that can be written, the preferred one first; empty if it cannot be.
pub(crate) fn variants(format: CheckpointFormat) -> &'static [Variant] {
    match format {
        CheckpointFormat::CompressedTensors => compressed_tensors::VARIANTS,
        CheckpointFormat::Gptq => gptq::VARIANTS,
        CheckpointFormat::Awq => awq::VARIANTS,
        CheckpointFormat::Quark => quark::VARIANTS,
        CheckpointFormat::ModelOpt => modelopt::VARIANTS,
        CheckpointFormat::Fp8 => fp8::VARIANTS,
        CheckpointFormat::Gguf => gguf::VARIANTS,
        CheckpointFormat::Quantloom => own::VARIANTS,
        CheckpointFormat::GptOss | CheckpointFormat::BitsAndBytes | CheckpointFormat::Hqq => &[],
    }
}

/// What a layer needs.
pub(crate) struct Wanted<'s> {
    /// The layer's scheme.
    pub(crate) from: &'s Scheme,
}

/// Float types of scales, in the language's names.
const FLOATS: [&str; 3] = ["f16", "bf16", "f32"];

impl Wanted<'_> {
    /// Bits of a code.
    fn bits(&self) -> u32 {
        self.from.weight.code.bits()
    }

    /// Whether codes are of this type.
    fn has_codes(&self, name: &str) -> bool {
        let Code::Number(number) = self.from.weight.code else { return false };
        self.from.weight.offset == 0 && Number::from_name(name) == Some(number)
    }

    /// Whether all codes stand for integers.
    fn is_integer(&self) -> bool {
        let codes = 0..1u32 << self.bits();
        codes.map(|code| self.from.weight.decode(code)).all(|value| value.fract() == 0.0)
    }

    /// Whether x is quantised.
    fn quantises_input(&self) -> bool {
        self.from.quantiser().is_some()
    }

    /// The rows and columns that share all of scales, zero points and shifts.
    fn group(&self) -> Group {
        let groups = self.from.scales.iter().map(|scale| scale.group);
        let groups = groups.chain(self.from.zero.map(|zero| zero.group));
        let groups = groups.chain(self.from.shifts.iter().map(|shift| shift.group));
        let smaller = |a: GroupSize, b: GroupSize| match (a, b) {
            (GroupSize::Each(a), GroupSize::Each(b)) => GroupSize::Each(a.min(b)),
            (GroupSize::Each(a), GroupSize::All) | (GroupSize::All, GroupSize::Each(a)) => {
                GroupSize::Each(a)
            }
            (GroupSize::All, GroupSize::All) => GroupSize::All,
        };
        groups.fold(Group::TENSOR, |a, b| Group {
            rows: smaller(a.rows, b.rows),
            cols: smaller(a.cols, b.cols),
        })
    }

    /// Columns of a group of one row: `channel` or `1xC`; of a tensor it is `channel`.
    fn row_group(&self) -> String {
        match self.group().cols {
            GroupSize::Each(cols) => format!("1x{cols}"),
            GroupSize::All => "channel".to_owned(),
        }
    }

    /// The number of columns, or -1 for a row.
    fn group_size(&self) -> i64 {
        match self.group().cols {
            GroupSize::Each(cols) => i64::from(cols),
            GroupSize::All => -1,
        }
    }

    /// Types that may hold the scales: the layer's own first.
    fn floats(&self) -> Vec<String> {
        let own = self.from.scales.first().and_then(|scale| scale.stored_number());
        let own = own.map(|number| number.to_string());
        let own = own.filter(|name| FLOATS.contains(&name.as_str()));
        let mut all: Vec<String> = own.into_iter().collect();
        for name in FLOATS {
            if !all.iter().any(|known| known == name) {
                all.push(name.to_owned());
            }
        }
        all
    }

    /// `bias: TYPE,` if the layer has a bias.
    fn bias(&self) -> String {
        self.from.bias.map_or_else(String::new, |number| format!("bias: {number},"))
    }

    /// A way to store the layer from the text of a scheme without a quantised x: if the format says how x
    /// is quantised, that of the layer takes its place. `global` is the name of a static scale of the
    /// second level; `None` if the format says nothing of x.
    fn storage(
        &self,
        text: &str,
        label: impl Into<String>,
        global: Option<&str>,
    ) -> Option<Storage> {
        let mut scheme = parse(text).ok()?;
        if let Some(global) = global.filter(|_| self.quantises_input()) {
            let quantised =
                |activation: &&Activation| matches!(activation, Activation::Quantised(_));
            scheme.activations = self.from.activations.iter().filter(quantised).cloned().collect();
            for component in self.from.components() {
                let name = match component {
                    Component::InputScale(0) => "input_scale",
                    Component::InputScale(_) => global,
                    Component::InputZero => "input_zero_point",
                    _ => continue,
                };
                let layout = default_layout(component);
                scheme.stores.push(Store { name: name.to_owned(), owner: component, layout });
            }
        }
        // Read again: a reader has the stores in the order of clauses.
        let scheme = parse(&scheme.to_string()).ok()?;
        let (label, settings) = (label.into(), Map::new());
        let (extras, blocks, whole, middle) = (Extras::None, None, (1, 1), None);
        Some(Storage { scheme, label, settings, extras, blocks, whole, middle })
    }
}

impl Storage {
    fn with(mut self, settings: Value) -> Self {
        if let Value::Object(settings) = settings {
            self.settings = settings;
        }
        self
    }
}
