//! Properties of catalogue entries that no golden file proves, written down from the formats' own
//! sources and not from the catalogue.

use quantloom_dsl::layout::{Component, GroupSize};
use quantloom_dsl::{Activation, Group, Quantiser, Ties};

const ALL: (u32, u32) = (0, 0);
const ROW: (u32, u32) = (1, 0);

/// Rows and columns that share one scale; 0 is a whole axis.
fn sides(group: Group) -> (u32, u32) {
    let side = |group_size| match group_size {
        GroupSize::Each(count) => count,
        GroupSize::All => 0,
    };
    (side(group.rows), side(group.cols))
}

/// Name, code, weight groups, activation code and its groups (none for 16 bits), static levels.
type Fact = (
    &'static str,
    &'static str,
    &'static [(u32, u32)],
    Option<(&'static str, &'static [(u32, u32)], usize)>,
);

const MX: &[(u32, u32)] = &[(1, 32)];

/// Sources: KleidiAI's qai8dxp/qsi4c32p packings; DeepSeek-V3's `weight_block_size`; AMD Quark's
/// OCP MX export (groups of 32); ModelOpt's NVFP4 (groups of 16); vLLM's Quark int8 methods. No
/// software writes `e3m4_g64`.
const FACTS: &[Fact] = &[
    ("arm_w4a8_channel", "i4", &[ROW], Some(("i8", &[ROW], 0))),
    ("arm_w4a8_g32", "i4", &[(1, 32)], Some(("i8", &[ROW], 0))),
    ("e3m4_g64", "e3m4", &[(1, 64)], None),
    ("fp8_block", "e4m3", &[(128, 128)], Some(("e4m3", &[(1, 128)], 0))),
    ("fp8_fnuz_block", "e4m3fnuz", &[(128, 128)], Some(("e4m3fnuz", &[(1, 128)], 0))),
    ("fp8_fnuz_channel", "e4m3fnuz", &[ROW], Some(("e4m3fnuz", &[ROW], 0))),
    ("modelopt_fp8", "e4m3", &[ALL], Some(("e4m3", &[ALL], 1))),
    ("modelopt_nvfp4a16", "e2m1", &[(1, 16), ALL], None),
    ("quark_w8a8_int8_channel_static", "i8", &[ROW], Some(("i8", &[ALL], 1))),
    ("quark_w8a8_int8_tensor_static", "i8", &[ALL], Some(("i8", &[ALL], 1))),
    ("quark_w_mxfp4_a_fp8", "e2m1", MX, Some(("e4m3", &[ALL], 1))),
    ("quark_w_mxfp4_a_mxfp6_e2m3", "e2m1", MX, Some(("e2m3", MX, 0))),
    ("quark_w_mxfp4_a_mxfp6_e3m2", "e2m1", MX, Some(("e3m2", MX, 0))),
    ("quark_w_mxfp6_e2m3_a_fp8", "e2m3", MX, Some(("e4m3", &[ALL], 1))),
    ("quark_w_mxfp6_e2m3_a_mxfp4", "e2m3", MX, Some(("e2m1", MX, 0))),
    ("quark_w_mxfp6_e2m3_a_mxfp6_e3m2", "e2m3", MX, Some(("e3m2", MX, 0))),
    ("quark_w_mxfp6_e3m2_a_fp8", "e3m2", MX, Some(("e4m3", &[ALL], 1))),
    ("quark_w_mxfp6_e3m2_a_mxfp4", "e3m2", MX, Some(("e2m1", MX, 0))),
    ("quark_w_mxfp6_e3m2_a_mxfp6_e2m3", "e3m2", MX, Some(("e2m3", MX, 0))),
];

#[test]
fn entries_are_what_their_formats_say() {
    for (name, code, groups, activation) in FACTS {
        let scheme = quantloom_kernels::scheme(name).unwrap_or_else(|| panic!("{name}"));
        let number = scheme.number(Component::Code).unwrap();
        assert_eq!(number.to_string(), *code, "{name}");
        let found: Vec<_> = scheme.scales.iter().map(|scale| sides(scale.group)).collect();
        assert_eq!(found, *groups, "{name}: weight groups");
        let of = |quantiser: &Quantiser| {
            let groups: Vec<_> = quantiser.scales.iter().map(|scale| sides(scale.group)).collect();
            let fixed = quantiser.scales.iter().filter(|scale| scale.stored).count();
            (quantiser.code.to_string(), groups, fixed)
        };
        let found = scheme.activations.iter().find_map(|activation| match activation {
            Activation::Quantised(quantiser) => Some(of(quantiser)),
            Activation::Float(_) => None,
        });
        let expected =
            activation.map(|(code, groups, fixed)| (code.to_owned(), groups.to_vec(), fixed));
        assert_eq!(found, expected, "{name}: activation");
    }
}

/// KleidiAI's tokens: asymmetric int8 over 255 steps, rounded half away from zero, f32 bias.
#[test]
fn arm_tokens_are_asymmetric() {
    for name in ["arm_w4a8_channel", "arm_w4a8_g32"] {
        let scheme = quantloom_kernels::scheme(name).unwrap();
        let quantiser = scheme.quantiser().unwrap();
        assert_eq!(quantiser.zero.map(|zero| zero.to_string()).as_deref(), Some("i8"), "{name}");
        assert_eq!(quantiser.ties, Ties::Away, "{name}");
        assert_eq!(quantiser.scales[0].rule, quantloom_dsl::ScaleRule::range(255.0), "{name}");
        assert_eq!(scheme.bias.map(|bias| bias.to_string()).as_deref(), Some("f32"), "{name}");
    }
}
