//! The catalogue's schemes as types, one each: what `scheme!` would declare from the same text.
//!
//! In: a checkpoint's layer. Out: a prepared weight, `CtW4a16::load(&layer)?.prepare(&device)?`.
//!
//! Generated; do not edit.
//! Again: `cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write`.

use quantloom_runtime::declared::Declared;

use crate::decoders::e2m1::E2m1;
use crate::decoders::e2m3::E2m3;
use crate::decoders::e3m2::E3m2;
use crate::decoders::e3m4::E3m4;
use crate::decoders::e4m3::E4m3;
use crate::decoders::e4m3fnuz::E4m3fnuz;
use crate::decoders::u2::U2;
use crate::decoders::u3::U3;
use crate::decoders::u4::U4;
use crate::decoders::u5::U5;
use crate::decoders::u6::U6;
use crate::decoders::u7::U7;
use crate::decoders::u8::U8;

declared! {
    /// W4A8 int8 for Arm: int4 kept in int8, one scale a channel, asymmetric int8 tokens, bias.
    ArmW4a8Channel = "arm_w4a8_channel", U4;

    /// W4A8 int8 for Arm: int4 kept in int8, bf16 scales in groups of 32, asymmetric int8 tokens, bias.
    ArmW4a8G32 = "arm_w4a8_g32", U4;

    /// AWQ 4-bit (gemm), groups of 128, eight codes along n in the order 0 2 4 6 1 3 5 7.
    Awq4 = "awq4", U4;

    /// compressed-tensors FP8: e4m3, one scale a tensor, static activations.
    CtFp8 = "ct_fp8", E4m3;

    /// compressed-tensors FP8_BLOCK: e4m3 in blocks of 128 x 128, activations in groups of 128.
    CtFp8Block = "ct_fp8_block", E4m3;

    /// compressed-tensors FP8_DYNAMIC: e4m3, one scale a channel and one a token.
    CtFp8Dynamic = "ct_fp8_dynamic", E4m3;

    /// compressed-tensors MXFP4: e2m1 in groups of 32 with power-of-two scales, on both sides.
    CtMxfp4 = "ct_mxfp4", E2m1;

    /// compressed-tensors MXFP4A16: e2m1 in groups of 32 with power-of-two scales.
    CtMxfp4a16 = "ct_mxfp4a16", E2m1;

    /// compressed-tensors MXFP4xFP8: MXFP4 weights, e4m3 activations in groups of 128.
    CtMxfp4xfp8 = "ct_mxfp4xfp8", E2m1;

    /// compressed-tensors MXFP6A16: e2m3 in groups of 32 with power-of-two scales.
    CtMxfp6a16 = "ct_mxfp6a16", E2m3;

    /// compressed-tensors MXFP6A8: MXFP6 weights, MXFP8 activations.
    CtMxfp6a8 = "ct_mxfp6a8", E2m3;

    /// compressed-tensors MXFP8: e4m3 in groups of 32 with power-of-two scales, on both sides.
    CtMxfp8 = "ct_mxfp8", E4m3;

    /// compressed-tensors MXFP8A16: e4m3 in groups of 32 with power-of-two scales.
    CtMxfp8a16 = "ct_mxfp8a16", E4m3;

    /// compressed-tensors mxint4: int4 in groups of 32 with bf16 scales.
    CtMxint4 = "ct_mxint4", U4;

    /// compressed-tensors NVFP4: e2m1 in groups of 16, on both sides, with a dividing global scale.
    CtNvfp4 = "ct_nvfp4", E2m1;

    /// compressed-tensors NVFP4A16: e2m1 in groups of 16 with a dividing global scale.
    CtNvfp4a16 = "ct_nvfp4a16", E2m1;

    /// compressed-tensors W2A16: int2 in groups of 128, packed without gaps.
    CtW2a16 = "ct_w2a16", U2;

    /// compressed-tensors W2A4: int2 kept in int8, groups of 128, one int4 scale a token.
    CtW2a4 = "ct_w2a4", U2;

    /// compressed-tensors W2A8: int2 kept in int8, groups of 128, one int8 scale a token.
    CtW2a8 = "ct_w2a8", U2;

    /// compressed-tensors W3A16: int3 in groups of 128, packed without gaps.
    CtW3a16 = "ct_w3a16", U3;

    /// compressed-tensors W3A16 as its older releases packed it: 10 whole codes a word.
    /// Current releases read the packing without gaps only.
    CtW3a16Aligned = "ct_w3a16_aligned", U3;

    /// compressed-tensors W3A4: int3 kept in int8, groups of 128, one int4 scale a token.
    CtW3a4 = "ct_w3a4", U3;

    /// compressed-tensors W3A8: int3 kept in int8, groups of 128, one int8 scale a token.
    CtW3a8 = "ct_w3a8", U3;

    /// compressed-tensors W4A16: int4 in groups of 128, packed without gaps.
    CtW4a16 = "ct_w4a16", U4;

    /// compressed-tensors W4A16_ASYM: int4 with zero points in groups of 128.
    CtW4a16Asym = "ct_w4a16_asym", U4;

    /// compressed-tensors W4A16 in f16, with a bias.
    CtW4a16Bias = "ct_w4a16_bias", U4;

    /// compressed-tensors W4A4: int4 kept in int8, groups of 128, one int4 scale a token.
    CtW4a4 = "ct_w4a4", U4;

    /// compressed-tensors W4A8: int4 kept in int8, groups of 128, one int8 scale a token.
    CtW4a8 = "ct_w4a8", U4;

    /// compressed-tensors W4AFP8: int4 kept in int8, groups of 128, e4m3 activations per token.
    CtW4afp8 = "ct_w4afp8", U4;

    /// compressed-tensors W5A16: int5 in groups of 128, packed without gaps.
    CtW5a16 = "ct_w5a16", U5;

    /// compressed-tensors W5A16 as its older releases packed it: 6 whole codes a word.
    /// Current releases read the packing without gaps only.
    CtW5a16Aligned = "ct_w5a16_aligned", U5;

    /// compressed-tensors W5A8: int5 kept in int8, groups of 128, one int8 scale a token.
    CtW5a8 = "ct_w5a8", U5;

    /// compressed-tensors W6A16: int6 in groups of 128, packed without gaps.
    CtW6a16 = "ct_w6a16", U6;

    /// compressed-tensors W6A16 as its older releases packed it: 5 whole codes a word.
    /// Current releases read the packing without gaps only.
    CtW6a16Aligned = "ct_w6a16_aligned", U6;

    /// compressed-tensors W6A8: int6 kept in int8, groups of 128, one int8 scale a token.
    CtW6a8 = "ct_w6a8", U6;

    /// compressed-tensors W7A16: int7 in groups of 128, packed without gaps.
    CtW7a16 = "ct_w7a16", U7;

    /// compressed-tensors W7A16 as its older releases packed it: 4 whole codes a word.
    /// Current releases read the packing without gaps only.
    CtW7a16Aligned = "ct_w7a16_aligned", U7;

    /// compressed-tensors W7A8: int7 kept in int8, groups of 128, one int8 scale a token.
    CtW7a8 = "ct_w7a8", U7;

    /// compressed-tensors W8A16: int8 in groups of 128, packed without gaps.
    CtW8a16 = "ct_w8a16", U8;

    /// compressed-tensors W8A8: int8, one scale a channel and one a token.
    CtW8a8 = "ct_w8a8", U8;

    /// e3m4 in groups of 64 with e4m3 scales: of no software, the worked example of a further scheme.
    E3m4G64 = "e3m4_g64", E3m4;

    /// FP8 as DeepSeek-V3 stores it: e4m3 in blocks of 128 x 128, f32 scales, activations in groups of 128.
    Fp8Block = "fp8_block", E4m3;

    /// FP8 for AMD gfx942 in blocks of 128 x 128: e4m3fnuz, converted from e4m3 at load.
    Fp8FnuzBlock = "fp8_fnuz_block", E4m3fnuz;

    /// FP8 for AMD gfx942: e4m3fnuz, one scale a channel and one a token; converted from e4m3 at load.
    Fp8FnuzChannel = "fp8_fnuz_channel", E4m3fnuz;

    /// gpt-oss experts, second product: MXFP4, bf16 bias.
    GptOssMxfp4Down = "gpt_oss_mxfp4_down", E2m1;

    /// gpt-oss experts, first product: MXFP4, rows of gate and up alternate, bf16 bias.
    GptOssMxfp4GateUp = "gpt_oss_mxfp4_gate_up", E2m1;

    /// GPTQ 3-bit, groups of 128, zero points stored less one (version 1).
    Gptq3V1 = "gptq3_v1", U3;

    /// GPTQ 3-bit, groups of 128, zero points stored less one (version 1), columns in activation order.
    Gptq3V1Actorder = "gptq3_v1_actorder", U3;

    /// GPTQ 3-bit, groups of 128, zero points stored as they are (version 2).
    Gptq3V2 = "gptq3_v2", U3;

    /// GPTQ 3-bit, groups of 128, zero points stored as they are (version 2), columns in activation order.
    Gptq3V2Actorder = "gptq3_v2_actorder", U3;

    /// GPTQ 4-bit, groups of 128, zero points stored less one (version 1).
    Gptq4V1 = "gptq4_v1", U4;

    /// GPTQ 4-bit, groups of 128, zero points stored less one (version 1), columns in activation order.
    Gptq4V1Actorder = "gptq4_v1_actorder", U4;

    /// GPTQ 4-bit, groups of 128, zero points stored as they are (version 2).
    Gptq4V2 = "gptq4_v2", U4;

    /// GPTQ 4-bit, groups of 128, zero points stored as they are (version 2), columns in activation order.
    Gptq4V2Actorder = "gptq4_v2_actorder", U4;

    /// GPTQ 8-bit, groups of 128, zero points stored less one (version 1).
    Gptq8V1 = "gptq8_v1", U8;

    /// GPTQ 8-bit, groups of 128, zero points stored less one (version 1), columns in activation order.
    Gptq8V1Actorder = "gptq8_v1_actorder", U8;

    /// GPTQ 8-bit, groups of 128, zero points stored as they are (version 2).
    Gptq8V2 = "gptq8_v2", U8;

    /// GPTQ 8-bit, groups of 128, zero points stored as they are (version 2), columns in activation order.
    Gptq8V2Actorder = "gptq8_v2_actorder", U8;

    /// ModelOpt FP8: e4m3, one scale a tensor, static activations.
    ModeloptFp8 = "modelopt_fp8", E4m3;

    /// ModelOpt NVFP4: e2m1 in groups of 16, on both sides, with a multiplying second scale.
    ModeloptNvfp4 = "modelopt_nvfp4", E2m1;

    /// ModelOpt NVFP4 weights with 16-bit activations.
    ModeloptNvfp4a16 = "modelopt_nvfp4a16", E2m1;

    /// Quark W8A8 int8: one scale a channel, one dynamic scale a token.
    QuarkW8a8Int8Channel = "quark_w8a8_int8_channel", U8;

    /// Quark W8A8 int8: one scale a channel, static activations.
    QuarkW8a8Int8ChannelStatic = "quark_w8a8_int8_channel_static", U8;

    /// Quark W8A8 int8: one scale a tensor, one dynamic scale a tensor.
    QuarkW8a8Int8Tensor = "quark_w8a8_int8_tensor", U8;

    /// Quark W8A8 int8: one scale a tensor, static activations.
    QuarkW8a8Int8TensorStatic = "quark_w8a8_int8_tensor_static", U8;

    /// Quark OCP MX: mxfp4 weights in groups of 32, 16-bit activations.
    QuarkWMxfp4 = "quark_w_mxfp4", E2m1;

    /// Quark OCP MX: mxfp4 weights in groups of 32, static e4m3 activations.
    QuarkWMxfp4AFp8 = "quark_w_mxfp4_a_fp8", E2m1;

    /// Quark OCP MX: mxfp4 weights in groups of 32, mxfp4 activations.
    QuarkWMxfp4AMxfp4 = "quark_w_mxfp4_a_mxfp4", E2m1;

    /// Quark OCP MX: mxfp4 weights in groups of 32, mxfp6_e2m3 activations.
    QuarkWMxfp4AMxfp6E2m3 = "quark_w_mxfp4_a_mxfp6_e2m3", E2m1;

    /// Quark OCP MX: mxfp4 weights in groups of 32, mxfp6_e3m2 activations.
    QuarkWMxfp4AMxfp6E3m2 = "quark_w_mxfp4_a_mxfp6_e3m2", E2m1;

    /// Quark OCP MX: mxfp6_e2m3 weights in groups of 32, 16-bit activations.
    QuarkWMxfp6E2m3 = "quark_w_mxfp6_e2m3", E2m3;

    /// Quark OCP MX: mxfp6_e2m3 weights in groups of 32, static e4m3 activations.
    QuarkWMxfp6E2m3AFp8 = "quark_w_mxfp6_e2m3_a_fp8", E2m3;

    /// Quark OCP MX: mxfp6_e2m3 weights in groups of 32, mxfp4 activations.
    QuarkWMxfp6E2m3AMxfp4 = "quark_w_mxfp6_e2m3_a_mxfp4", E2m3;

    /// Quark OCP MX: mxfp6_e2m3 weights in groups of 32, mxfp6_e2m3 activations.
    QuarkWMxfp6E2m3AMxfp6E2m3 = "quark_w_mxfp6_e2m3_a_mxfp6_e2m3", E2m3;

    /// Quark OCP MX: mxfp6_e2m3 weights in groups of 32, mxfp6_e3m2 activations.
    QuarkWMxfp6E2m3AMxfp6E3m2 = "quark_w_mxfp6_e2m3_a_mxfp6_e3m2", E2m3;

    /// Quark OCP MX: mxfp6_e3m2 weights in groups of 32, 16-bit activations.
    QuarkWMxfp6E3m2 = "quark_w_mxfp6_e3m2", E3m2;

    /// Quark OCP MX: mxfp6_e3m2 weights in groups of 32, static e4m3 activations.
    QuarkWMxfp6E3m2AFp8 = "quark_w_mxfp6_e3m2_a_fp8", E3m2;

    /// Quark OCP MX: mxfp6_e3m2 weights in groups of 32, mxfp4 activations.
    QuarkWMxfp6E3m2AMxfp4 = "quark_w_mxfp6_e3m2_a_mxfp4", E3m2;

    /// Quark OCP MX: mxfp6_e3m2 weights in groups of 32, mxfp6_e2m3 activations.
    QuarkWMxfp6E3m2AMxfp6E2m3 = "quark_w_mxfp6_e3m2_a_mxfp6_e2m3", E3m2;

    /// Quark OCP MX: mxfp6_e3m2 weights in groups of 32, mxfp6_e3m2 activations.
    QuarkWMxfp6E3m2AMxfp6E3m2 = "quark_w_mxfp6_e3m2_a_mxfp6_e3m2", E3m2;
}
