//! The syntax tree: clauses as written, before they are checked together.

use super::diagnostic::Span;
use super::layouts::LayoutSyntax;
use crate::format::Number;
use crate::rules::default_rules;
use crate::scheme::{
    Accumulate, Accuracy, Activation, Arithmetic, Code, Experts, Group, Quantiser, ScaleLevel,
    ScaleRule, ScaleType, Ties, WeightCode, ZeroKind,
};

/// The stored tensor that a clause declares, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its layout.
    pub layout: Option<LayoutSyntax>,
    /// Its name in a checkpoint, and the span of the name.
    pub name: Option<(String, Span)>,
}

/// A scale level as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleSyntax {
    /// The type.
    pub number: ScaleType,
    /// What is subtracted from a stored number.
    pub offset: i32,
    /// The group that shares one scale.
    pub group: Group,
    /// Whether weights are divided by the scale.
    pub divide: bool,
    /// How it is chosen, if written.
    pub rule: Option<ScaleRule>,
    /// `static`, of an activation's level.
    pub fixed: bool,
    /// The stored tensor.
    pub stored: Stored,
}

/// A shift level as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShiftSyntax {
    /// The type.
    pub number: Number,
    /// What is subtracted from a stored number.
    pub offset: i32,
    /// Whether a `-` is before the type.
    pub negative: bool,
    /// Group, if it is not the first scale's.
    pub group: Option<Group>,
    /// The stored tensor.
    pub stored: Stored,
}

/// An activation as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActivationSyntax {
    /// A float type.
    Float(Number),
    /// A quantiser.
    Quantised {
        /// Code type.
        code: Number,
        /// Zero point type and store.
        zero: Option<Box<(Number, Stored)>>,
        /// Levels, each with its span.
        scales: Vec<(ScaleSyntax, Span)>,
        /// How halves round.
        ties: Ties,
        /// The span from the code type to the closing brace.
        span: Span,
    },
}

/// One clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clause {
    /// `weight: u4 - 8`
    Weight(WeightCode),
    /// `zero: u4 + 1 ...`
    Zero {
        /// Kind.
        kind: ZeroKind,
        /// Group, if it is not the first scale's.
        group: Option<Group>,
        /// Store.
        stored: Stored,
    },
    /// `shift: -u6 per 1x32 ...`
    Shift(ShiftSyntax),
    /// `scale: bf16 per 1x128 ...`
    Scale(ScaleSyntax),
    /// `index: i32 ...`
    Index {
        /// Type.
        number: Number,
        /// Store.
        stored: Stored,
    },
    /// `pack: u32 [k:8 | k, n]`
    Pack {
        /// The layout.
        layout: LayoutSyntax,
        /// The name, and its span.
        name: Option<(String, Span)>,
    },
    /// `prescale: bf16`
    Prescale {
        /// Type.
        number: Number,
        /// Store.
        stored: Stored,
    },
    /// `activation: bf16 | f16`
    Activation(Vec<ActivationSyntax>),
    /// `bias: bf16`
    Bias {
        /// Type.
        number: Number,
        /// Store.
        stored: Stored,
    },
    /// `accumulate: i32`
    Accumulate(Accumulate),
    /// `output: bf16`
    Output(Number),
    /// `arithmetic: own`
    Arithmetic(Arithmetic),
    /// `accuracy: exact`
    Accuracy(Accuracy),
    /// `experts: interleaved`
    Experts(Experts),
    /// `targets: sm_80 | neon`, each with its span.
    Targets(Vec<(String, Span)>),
}

impl Clause {
    /// The word before the colon.
    pub fn keyword(&self) -> &'static str {
        match self {
            Self::Weight(_) => "weight",
            Self::Zero { .. } => "zero",
            Self::Shift(_) => "shift",
            Self::Scale(_) => "scale",
            Self::Index { .. } => "index",
            Self::Pack { .. } => "pack",
            Self::Prescale { .. } => "prescale",
            Self::Activation(_) => "activation",
            Self::Bias { .. } => "bias",
            Self::Accumulate(_) => "accumulate",
            Self::Output(_) => "output",
            Self::Arithmetic(_) => "arithmetic",
            Self::Accuracy(_) => "accuracy",
            Self::Experts(_) => "experts",
            Self::Targets(_) => "targets",
        }
    }
}

/// A scheme as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemeSyntax {
    /// Its name.
    pub name: String,
    /// The doc comment's lines.
    pub docs: Vec<String>,
    /// Clauses that could be read, each with its span.
    pub clauses: Vec<(Clause, Span)>,
    /// Keywords of clauses that could not be read; their errors are reported already.
    pub broken: Vec<&'static str>,
    /// The name's span.
    pub span: Span,
}

impl ActivationSyntax {
    /// The scheme's value, with the default rule if none is written.
    pub(super) fn to_model(&self) -> Activation {
        match self {
            Self::Float(number) => Activation::Float(*number),
            Self::Quantised { code, zero, scales, ties, .. } => {
                let asymmetric = zero.is_some();
                let weight = WeightCode { code: Code::Number(*code), offset: 0 };
                let levels = levels(scales.iter().map(|(scale, _)| scale), &weight, asymmetric);
                let fixed = scales.iter().map(|(scale, _)| scale.fixed);
                let levels = levels.into_iter().zip(fixed);
                Activation::Quantised(Quantiser {
                    code: *code,
                    zero: zero.as_ref().map(|zero| zero.0),
                    scales: levels.map(|(level, stored)| ScaleLevel { stored, ..level }).collect(),
                    ties: *ties,
                })
            }
        }
    }
}

impl ScaleSyntax {
    /// The scheme's value, with `rule` if none is written.
    fn to_model(&self, rule: ScaleRule) -> ScaleLevel {
        ScaleLevel {
            number: self.number,
            offset: self.offset,
            group: self.group,
            divide: self.divide,
            rule: self.rule.unwrap_or(rule),
            stored: true,
        }
    }
}

/// The levels of a weight or of an activation, finest first, with the default rules if none are
/// written.
pub(super) fn levels<'s>(
    written: impl Iterator<Item = &'s ScaleSyntax>,
    weight: &WeightCode,
    asymmetric: bool,
) -> Vec<ScaleLevel> {
    // The other defaults of a level do not depend on its rule.
    let none = ScaleRule::pow2(None);
    let written: Vec<&ScaleSyntax> = written.collect();
    let levels: Vec<ScaleLevel> = written.iter().map(|scale| scale.to_model(none)).collect();
    let rules = default_rules(&levels, weight, asymmetric);
    written.into_iter().zip(rules).map(|(scale, rule)| scale.to_model(rule)).collect()
}
