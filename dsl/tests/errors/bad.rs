//! Texts with mistakes, and what is said about them.

/// Per mistake, in the order of the text: what is underlined, how the message starts, and a
/// part of the help.
pub(crate) struct Bad {
    pub(crate) text: &'static str,
    #[allow(dead_code, reason = "the macro's front end is compared with the text's")]
    pub(crate) faults: &'static [(&'static str, &'static str, &'static str)],
}

/// One table for both front ends.
pub(crate) const BAD: &[Bad] = &[
    Bad {
        text: "S { wieght: u4, pack: u32 [k:8 | k, n], activation: bf16 }",
        faults: &[("wieght", "unknown clause `wieght`", "did you mean `weight`?")],
    },
    Bad {
        text: "S { weight: u4, colour: red, pack: u32 [k:8 | k, n], activation: bf16 }",
        faults: &[("colour", "unknown clause `colour`", "the clauses are weight, zero,")],
    },
    Bad {
        text: "S { weight: u4, scale: bf61 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 }",
        faults: &[("bf61", "unknown number type `bf61`", "did you mean `bf16`?")],
    },
    Bad {
        text: "S { weight: e4m3fnux, pack: [k, n], activation: bf16 }",
        faults: &[("e4m3fnux", "unknown number type `e4m3fnux`", "did you mean `e4m3fnuz`?")],
    },
    Bad {
        text: "S { weight: e1m6, pack: [k, n], activation: bf16 }",
        faults: &[("e1m6", "unknown number type `e1m6`", "say `e1m6fn`")],
    },
    Bad {
        text: "S { weight: e7m0, pack: [k, n], activation: bf16 }",
        faults: &[("e7m0", "unknown number type `e7m0`", "say `e7m0fn`")],
    },
    Bad {
        text: "S { weight: u9, pack: [k, n], activation: bf16 }",
        faults: &[("u9", "`u9` cannot be a code", "at most 8 bits")],
    },
    Bad {
        text: "S { weight: e8m0, pack: [k, n], activation: bf16 }",
        faults: &[("e8m0", "`e8m0` cannot be a code", "at most 8 bits")],
    },
    Bad {
        text: "S { weight: codebook(0, 1, 2), pack: [k, n], activation: bf16 }",
        faults: &[("codebook(0, 1, 2)", "a codebook of 3 values", "a power of two of values")],
    },
    Bad {
        text: "S { weight: u4, weight: u4 - 8, pack: u32 [k:8 | k, n], activation: bf16 }",
        faults: &[("weight: u4 - 8", "a second `weight` clause", "remove one")],
    },
    Bad {
        text: "S { }",
        faults: &[
            ("S", "the scheme has no `weight` clause", "`weight: u4 - 8`"),
            ("S", "the scheme has no `pack` clause", "`pack: u32 [k:8 | k, n]`"),
            ("S", "the scheme has no `activation` clause", "`activation: bf16`"),
        ],
    },
    Bad {
        text: "S { weight: u4, pack: u32 [k:8 | k/16:4, k, n], activation: bf16 }",
        faults: &[(
            "k/16:4",
            "the digits of k leave a gap: the digits below cover 8, the stride of this one is 16",
            "starts at stride 8",
        )],
    },
    Bad {
        text: "S { weight: u4, pack: u32 [k:8 | k/4:4, k, n], activation: bf16 }",
        faults: &[(
            "k/4:4",
            "the digits of k overlap: the digits below cover 8, the stride of this one is 4",
            "starts at stride 8",
        )],
    },
    Bad {
        text: "S { weight: u4, pack: u32 [k:8 | n], activation: bf16 }",
        faults: &[("k:8", "the digits of k cover 8 of 122880", "add the open digit `k`")],
    },
    Bad {
        text: "S { weight: u4, pack: u32 [k:8 | k], activation: bf16 }",
        faults: &[(
            "u32 [k:8 | k]",
            "the layout of `code` has no digit of n, but its values vary along it",
            "add the digit `n`",
        )],
    },
    Bad {
        text: "S { weight: u4, pack: u32 [k:8 | k, k, n], activation: bf16 }",
        faults: &[("k", "`k` overlaps another digit of k", "may be open")],
    },
    Bad {
        text: "S { weight: u4, pack: u32 [k:8 | k/4:*, n], activation: bf16 }",
        faults: &[("*", "expected the digit's size, found `*`", "")],
    },
    Bad {
        text: "S { weight: u4, pack: u32 [k:8 | k:/2, k, n], activation: bf16 }",
        faults: &[("/", "expected the digit's size, found `/`", "")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code, code | k, n], activation: bf16 }",
        faults: &[("code", "bit 0 of `code` is stored twice", "store each bit once")],
    },
    Bad {
        text: "S { weight: u6, pack: u8 [code[0..4], k:2 | k, n] as \"low\",
            pack: u8 [code[3..6], pad 1, k:2 | k, n] as \"high\", activation: bf16 }",
        faults: &[("code[3..6]", "bit 3 of `code` is stored twice", "split the code into slices")],
    },
    Bad {
        text: "S { weight: u6, pack: u8 [code[0..4], k:2 | k, n], activation: bf16 }",
        faults: &[("code[0..4]", "bit 4 of `code` is not stored", "store all 6")],
    },
    Bad {
        text: "S { weight: u6, pack: u8 [code[0..4], k:2 | k, n], pack: u8 [code[4..6], k: | k, n],
            activation: bf16 }",
        faults: &[("|", "expected the digit's size, found `|`", "")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code[2..5], pad 5 | k, n], activation: bf16 }",
        faults: &[("code[2..5]", "`code[2..5]` is not a slice of its 4 bits", "high <= 4")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code | k, n], activation: bf16 }",
        faults: &[(
            "u8 [code | k, n]",
            "the run takes 4 bits and leaves 4 of 8 unused",
            "or add `pad 4`",
        )],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @0, code[0..2] @1, code @0, pad 6, k:2 | w, k, n],
            activation: bf16 }",
        faults: &[("code @0", "bit 0 of `code` is stored twice at step 0", "store each bit once")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @0, code[0..2] @1, pad 2, k:2 | k, n],
            activation: bf16 }",
        faults: &[("code[0..2] @1", "bit 2 of `code` is not stored at step 1", "store all 4")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @1, code @0, k:2 | k, n] as \"a\",
            pack: u8 [code[0..2], k:4 | k, n] as \"b\", activation: bf16 }",
        faults: &[("code[0..2]", "bit 0 of `code` is stored twice", "store each bit once")],
    },
    Bad {
        text: "S { weight: u4, pack: for [k, n] { u8 [code @0, code @3, k:2, k/2:2],
            u8 [code @1, code @2, k:4] }, activation: bf16 }",
        faults: &[(
            "code @1",
            "the steps of bit 0 of `code` are counted by `k:4` here and by `k:2, k/2:2` elsewhere",
            "by the same digits, in the same order",
        )],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @0, code[2..4], code[0..2] @1, k:2 | k, n],
            activation: bf16 }",
        faults: &[(
            "code[2..4]",
            "`code[2..4]` has no step, and another field of its word has one",
            "`code[2..4] @0`",
        )],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @0, code @2, k:2 | k, n], activation: bf16 }",
        faults: &[("code @2", "step 2 of a run of 2 steps", "count the steps: here from 0 to 1")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @0, code @1 | k, n], activation: bf16 }",
        faults: &[("code @1", "step 1 of a run that has one step", "here from 0 to 0")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @0, code @1, k | w, n], activation: bf16 }",
        faults: &[("k", "the digit `k` has no size, so the run has no fixed", "such as `k:8`")],
    },
    Bad {
        text: "S { weight: i2, pack: i8 [code @0, pad 2 = sign, code @1, pad 2, k:2 | k, n],
            activation: bf16 }",
        faults: &[(
            "pad 2 = sign",
            "a pad of sign bits among fields of single steps",
            "fill it with 0 or 1",
        )],
    },
    Bad {
        text: "S { weight: u8, pack: for [k:2, k, n] code @0, activation: bf16 }",
        faults: &[(
            "code @0",
            "`code @0` has a step, but is not in a word",
            "only fields of a word",
        )],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @0, code @65536, k:2 | k, n], activation: bf16 }",
        faults: &[("65536", "a step is at most 65535", "")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @0, pad 4 @1, k:2 | k, n], activation: bf16 }",
        faults: &[("@", "a pad has no step", "remove the step")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [code @, code @1, k:2 | k, n], activation: bf16 }",
        faults: &[(",", "expected the step of the run that the field is of, found `,`", "")],
    },
    Bad {
        text: "S { weight: u3, pack: u32 [k:32 | n, k], activation: bf16 }",
        faults: &[("u32 [k:32 | n, k]", "a run of 96 bits fills 3 words of 32", "word digit `w`")],
    },
    Bad {
        text: "S { weight: u4, pack: u12 [k:3 | k, n], activation: bf16 }",
        faults: &[("u12", "words of 12 bits are not supported", "8, 16, 32 or 64 bits")],
    },
    Bad {
        text: "S { weight: u4, scale: f16 per 1x3, pack: for [k, n] { scale, [k:3] }, activation: bf16 }",
        faults: &[("[k:3]", "this part of a record takes 12 bits", "whole bytes")],
    },
    // In a long record the part at fault is marked, not all of it.
    Bad {
        text: "S { weight: u4, scale: f16 per 1x32, scale: u6 per 1x32, shift: f16 per 1x32,
            pack: for [g, n] { scale, shift, scale2, u8 [k:16, k/16:2 | w] }, activation: f16 }",
        faults: &[("scale2", "this part of a record takes 6 bits", "whole bytes")],
    },
    Bad {
        text: "S { weight: u4, scale: f16 per 1x32, shift: f16 per 1x32,
            pack: for [g, n] { scale, shift, u16 [code | k:32] }, activation: f16 }",
        faults: &[(
            "u16 [code | k:32]",
            "the run takes 4 bits and leaves 12 of 16 unused",
            "or add `pad 12`",
        )],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [cod, k:2 | k, n], activation: bf16 }",
        faults: &[("cod", "`cod` is not a component", "did you mean `code`?")],
    },
    Bad {
        text: "S { weight: u4, pack: for [k, n] { u8 [k:2], zero }, activation: bf16 }",
        faults: &[("zero", "the layout places `zero`, which the scheme does not have", "declare")],
    },
    Bad {
        text: "S { weight: u4, pack: u32 [k:8 | k, m], activation: bf16 }",
        faults: &[("m", "`m` is not an axis", "the axes are n (output rows), k")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [k:2 | k/2:8 ^ n:4, k, n], activation: bf16 }",
        faults: &[("k/2:8 ^ n:4", "cannot XOR 8 values with 4", "same power-of-two size")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [k:2 | k/2:8 ^ n/0:8, k, n], activation: bf16 }",
        faults: &[("k/2:8 ^ n/0:8", "the digit `n/0:8` has stride 0", "")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [k:2 | k/2:8 ^ k/2:8, k, n], activation: bf16 }",
        faults: &[("k/2:8 ^ k/2:8", "`k/2:8` is itself XORed", "also written without XOR")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [k:2 | k/2:8 ^ n:8, k, n:8 ^ k/2:8, n], activation: bf16 }",
        faults: &[("k/2:8 ^ n:8", "`n:8` is itself XORed", "also written without XOR")],
    },
    Bad {
        text: "S { weight: e2m1, zero: u4 per 1x32, pack: u8 [k:2 | k, n], activation: bf16 }",
        faults: &[("zero: u4 per 1x32", "a zero point for a float code", "remove the zero point")],
    },
    Bad {
        text: "S { weight: e2m1 - 1, pack: u8 [k:2 | k, n], activation: bf16 }",
        faults: &[("weight: e2m1 - 1", "an offset for a float code", "remove the offset")],
    },
    Bad {
        text: "S { weight: u4, zero: u4, pack: u8 [k:2 | k, n], activation: bf16 }",
        faults: &[("zero: u4", "`zero` has no group, and there is no scale", "per 1x128")],
    },
    Bad {
        text: "S { weight: e2m1, pack: u8 [k:2 | k, n], activation: i8 { scale: own per token },
            accumulate: i32 }",
        faults: &[("accumulate: i32", "i32 accumulation of float codes", "accumulate in f32")],
    },
    Bad {
        text: "S { weight: i8, pack: [k, n], activation: bf16, accumulate: i32 }",
        faults: &[(
            "accumulate: i32",
            "i32 accumulation of float activations",
            "quantise the activation",
        )],
    },
    Bad {
        text: "S { weight: i8, pack: [k, n], activation: bf16, accumulate: i23 }",
        faults: &[("i23", "`i23` is not an option here", "did you mean `i32`?")],
    },
    Bad {
        text: "S { weight: i8, pack: [k, n], activation: i8 }",
        faults: &[("i8", "how is the activation quantised to i8?", "scale: own per token")],
    },
    Bad {
        text: "S { weight: i8, pack: [k, n], activation: i8 { scale: f32 per token static } }",
        faults: &[("scale: f32 per token static", "a static scale cannot be per token", "tensor")],
    },
    Bad {
        text: "S { weight: i8, scale: e1m0fn per channel, pack: [k, n], \
            activation: i8 { scale: i1 per token } }",
        faults: &[
            ("scale: e1m0fn per channel", "no number of e1m0fn is larger than 0", "more bits"),
            ("scale: i1 per token", "no number of i1 is larger than 0", "more bits"),
        ],
    },
    Bad {
        text: "S { weight: e1m0fn, pack: [k, n], activation: e1m0fn { scale: f32 per token } }",
        faults: &[
            ("weight: e1m0fn", "no code of e1m0fn is a number other than 0", "more bits"),
            (
                "e1m0fn { scale: f32 per token }",
                "no code of e1m0fn is a number other than 0",
                "more bits",
            ),
        ],
    },
    Bad {
        text: "S { weight: i8, scale: own per channel, pack: [k, n], activation: bf16 }",
        faults: &[("scale: own per channel", "a stored scale needs a type", "give it a type")],
    },
    Bad {
        text: "S { weight: u4, scale: f16 per 1x32 from range / 15, pack: u8 [k:2 | k, n],
            activation: bf16 }",
        faults: &[(
            "scale: f16 per 1x32 from range / 15",
            "a scale from the whole range needs a zero point",
            "add `zero`",
        )],
    },
    Bad {
        text: "S { weight: u4, scale: f16 per row, pack: u8 [k:2 | k, n], activation: bf16 }",
        faults: &[("row", "`row` is not a group", "`channel`, `token` or `tensor`")],
    },
    Bad {
        text: "S { weight: u4, scale: f16 per channel, index: i32, pack: u8 [k:2 | k, n],
            activation: bf16 }",
        faults: &[(
            "index: i32",
            "a group index, but no scale, zero point or shift varies along k",
            "group along k",
        )],
    },
    Bad {
        text: "S { weight: u4, scale: f16 per 1x32, pack: u8 [k:2 | k, n] as \"weight_scale\",
            activation: bf16 }",
        faults: &[(
            "\"weight_scale\"",
            "two stored tensors are named \"weight_scale\"",
            "as \"name\"",
        )],
    },
    Bad {
        text: "S { weight: u4, scale: f16 per 1x32 as \"lost\", activation: bf16,
            pack: for [k, n] { scale, u8 [k/16:2 | k:16] } }",
        faults: &[(
            "\"lost\"",
            "`scale` is named \"lost\", but is stored in another",
            "remove it here",
        )],
    },
    Bad {
        text: "S { weight: i8, pack: [k, n], activation: bf16 | i8 { } | e4m3 { scale: own per token } }",
        faults: &[
            ("i8 { }", "the activation is quantised to i8 without a scale", "own per token"),
            ("e4m3 { scale: own per token }", "several quantised activations", "another scheme"),
        ],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [k:2 | k, n], activation: bf16",
        faults: &[("", "expected `}` that closes the scheme, the text ends", "")],
    },
    Bad {
        text: "S { weight: u4, pack: u8 [k:2 | k, n] as \"weight, activation: bf16 }",
        faults: &[
            ("S", "the scheme has no `activation` clause", "activation: bf16"),
            ("\"weight, activation: bf16 }", "this name has no closing quote", "close it with"),
            ("", "expected the tensor's name in quotes, the text ends", ""),
            ("", "expected `}` that closes the scheme, the text ends", ""),
        ],
    },
    Bad {
        text: "S { weight: ü4, pack: u8 [k:2 | k, n], activation: bf16 }",
        faults: &[("ü", "`ü` has no meaning in a scheme", ""), ("4", "expected a number type", "")],
    },
    Bad {
        text: "S { weight: u4 - 8 scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 }",
        faults: &[("scale", "a comma is missing before `scale`", "separated by commas")],
    },
    Bad {
        text: "S { weight: u4 - 8 scael: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 }",
        faults: &[
            ("scael", "a comma is missing before `scael`", "separated by commas"),
            ("scael", "unknown clause `scael`", "`scale`"),
        ],
    },
    Bad {
        text: "S { weight: u44 pack: u32 [k:8 | k, n] as activation: bf16 output: f32 }",
        faults: &[
            ("u44", "unknown number type `u44`", "`u4`"),
            ("pack", "a comma is missing before `pack`", "separated by commas"),
            ("activation", "expected the tensor's name in quotes, found `activation`", ""),
            ("output", "a comma is missing before `output`", "separated by commas"),
        ],
    },
    Bad {
        text: "S { weight: e2m1, pack: u8 [k:2 | k, n, e], prescale: f32 [k, e], activation: f16,
            experts: single }",
        faults: &[(
            "prescale: f32 [k, e]",
            "a prescale with stacked experts",
            "multiply x before the product",
        )],
    },
    Bad {
        text:
            "S { weight: u4, scale: f16 per 1x32, shift: -u6, shift: u4 - 8, pack: u8 [k:2 | k, n],
            activation: f16 }",
        faults: &[("shift: -u6", "a shift of integers alone", "`shift: f16 per 1x256`")],
    },
    Bad {
        text: "S { weight: u4, scale: f16 - 32 per 1x32, shift: -e8m0, shift: bf16 + 4, shift: - 4,
            pack: u8 [k:2 | k, n], activation: f16 }",
        faults: &[
            ("scale: f16 - 32 per 1x32", "an offset of a number of type f16", "`u6 - 32`; remove"),
            ("shift: -e8m0", "a shift of type e8m0", "a float with a sign"),
            ("shift: bf16 + 4", "an offset of a number of type bf16", "only integers"),
            ("4", "expected a number type", ""),
        ],
    },
    Bad {
        text: "S { weight: u4, scale: divide u6 - 32 per 1x32, scale: u4 - 15 per 1x64,
            scale: f16 per tensor, pack: u8 [k:2 | k, n],
            activation: i8 { scale: u8 - 1 per token } }",
        faults: &[
            (
                "scale: divide u6 - 32 per 1x32",
                "an offset of a scale that divides",
                "a divisor of 0",
            ),
            ("scale: u4 - 15 per 1x64", "no number of u4 - 15 is larger than 0", "more bits"),
            ("scale: u8 - 1 per token", "an offset of an activation's scale", "remove it"),
        ],
    },
    Bad {
        text:
            "S { weight: u4, scale: f16 per 1x32, shift: -u6, shift: f16 [g, n] as \"weight_shift\",
            pack: for [g, n] { scale, shift3, u8 [k:2 | k:16] }, activation: f16 }",
        faults: &[
            ("\"weight_shift\"", "two stored tensors are named \"weight_shift\"", "rename"),
            ("shift3", "the layout places `shift3`, which the scheme does not have", "declare it"),
        ],
    },
    Bad {
        text: "S { weight: u4 u5 pack: u32 [k:8 | k, n], activation: bf16 }",
        faults: &[("u5", "expected `,` or `}` after the clause, found `u5`", "")],
    },
    Bad {
        text: "S { weight: u4,, pack: u32 [k:8 | k, n], activation: bf16 }",
        faults: &[(",", "expected a clause, found `,`", "")],
    },
    Bad {
        text: "S { weight: u4, scael: f16 per 1x32, zero: u44, pack: u32 [k:4 | k, nn],
            activation: i8, accumulate: i16, targets: sm_80 | , output: u8 }",
        faults: &[
            ("scael", "unknown clause `scael`", "`scale`"),
            ("u44", "unknown number type `u44`", "`u4`"),
            ("nn", "`nn` is not an axis", "the axes are"),
            ("i8", "how is the activation quantised to i8?", "say how"),
            ("i16", "`i16` is not an option here", ""),
            (",", "expected a target's name, found `,`", ""),
            ("u8", "`u8` is not f32, f16 or bf16", ""),
        ],
    },
];
