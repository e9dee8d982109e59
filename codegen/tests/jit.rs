//! The compiler as a source of kernels: texts, their launch rules, and what is refused.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use quantloom_codegen::jit::{Jit, JitWithOverrides, TileTable, launch_rule};
use quantloom_codegen::schedule::{Case, Chosen, Measured};
use quantloom_dsl::format::{BF16, F16, NUMBER_BF16, NUMBER_F16, NUMBER_F32, Number};
use quantloom_dsl::{Accuracy, Activation, Scheme, parse};
use quantloom_runtime::accumulation::ScaleDigits;
use quantloom_runtime::gpu::{Alternatives, ChoiceSource, Form, Products as _, Request};
use quantloom_runtime::source::{
    Access, BufferRole, Count, KernelKey, KernelSource as _, ParameterKind, ProblemSize, Refusal,
    Schedule, Work,
};

fn asymmetric() -> Scheme {
    let text = "a { weight: u4, zero: u4 u32 [n:8 | n, g], scale: bf16 per 1x128, \
                pack: u32 [k:8 | k, n], activation: bf16 | f16 }";
    parse(text).unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn request(scheme: &Scheme, activation: usize, shape: (u64, u64)) -> Request<'_> {
    let activation = &scheme.activations[activation];
    let Activation::Float(Number::Float(own)) = *activation else { panic!("{activation:?}") };
    let (n, k) = shape;
    Request::new(scheme, activation, own, "sm_90a", [n, k])
}

/// A kernel says how it rounds weights: the bound of its error is made of that.
#[test]
fn a_kernel_says_how_it_rounds_weights() {
    use ScaleDigits::{InParts, Rounded, Whole};
    for (numbers, in_bf16, in_f16) in [
        ("weight: u4 - 8, scale: bf16 per 1x32", Some((Whole, false)), Some((Whole, false))),
        ("weight: u4 - 8, scale: f16 per 1x32", Some((InParts, false)), Some((Whole, false))),
        ("weight: u4 - 8, scale: f32 per 1x32", Some((InParts, false)), Some((Rounded, false))),
        (
            "weight: u4, shift: f16, scale: f16 per 1x32",
            Some((InParts, true)),
            Some((Rounded, true)),
        ),
        ("weight: u4 - 8, scale: f16 per 1x32, accuracy: exact", None, None),
        ("weight: u4 - 8, scale: f16 per 1x128", None, None),
    ] {
        for (x, expected) in [("bf16", in_bf16), ("f16", in_f16)] {
            let scheme = format!("s {{ {numbers}, pack: u32 [k:8 | k, n], activation: {x} }}");
            let scheme = parse(&scheme).unwrap_or_else(|faults| panic!("{faults:?}"));
            let of_range = x == "f16" && expected.is_some();
            let of = Request {
                scales_in_range: of_range,
                layout_of_range: of_range,
                ..request(&scheme, 0, (256, 512))
            };
            for tokens in [1, 3, 64] {
                let choice = Jit.choose(&of, tokens).unwrap();
                let found =
                    choice.decoded.scaled.map(|weights| (weights.scales, weights.adds_term));
                // One token leaves columns for the sums of groups, which scales multiply that would have to be made.
                let expected = expected.filter(|&(scales, _)| tokens > 1 || scales == Whole);
                assert_eq!(found, expected, "{numbers}, x in {x}, M = {tokens}");
            }
        }
    }
}

#[test]
fn a_rule_says_what_the_kernel_says() {
    let scheme = asymmetric();
    // N = 41 is 3 tiles of 16 rows, K = 200 is 4 chunks of 64 columns and 2 groups of 128.
    let choice = Jit.choose(&request(&scheme, 0, (41, 200)), 3).unwrap();
    let text = Jit.text(&choice.key).unwrap();
    let kernel = Jit.kernel(&choice.key).unwrap();
    assert_eq!(*text.rule, launch_rule(&kernel).unwrap());
    assert!(text.text.contains(&format!(".visible .entry {}(", text.entry)), "{}", text.text);
    let problem = ProblemSize::new(3, 41, 200, 132);
    let rows = 16 * choice.key.schedule.parameters["row_tiles"];
    let grid = text.rule.grid.clone().map(|count| count.of(&problem).unwrap());
    assert_eq!(grid, [41u64.div_ceil(rows), 1, 1]);
    assert_eq!(u64::from(text.rule.threads), 32 * choice.key.schedule.parameters["warps"]);
    assert_eq!(text.rule.shared_bytes, Count::Fixed(u64::from(kernel.shared_map().bytes)));
    assert!(text.rule.overlaps);
    let parameters: Vec<(&str, Option<Access>, u64)> = text
        .rule
        .parameters
        .iter()
        .map(|parameter| match &parameter.kind {
            ParameterKind::Buffer { access, bytes, .. } => {
                (parameter.name.as_str(), Some(*access), bytes.of(&problem).unwrap())
            }
            ParameterKind::Size(count) => {
                (parameter.name.as_str(), None, count.of(&problem).unwrap())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        ("w", Some(Access::Read), 3 * 16 * 4 * 64 / 2),
        ("x", Some(Access::Read), 3 * 200 * 2),
        ("y", Some(Access::Write), 3 * 41 * 2),
        ("scale", Some(Access::Read), 3 * 16 * 2 * 2),
        ("zero", Some(Access::Read), 3 * 16 * 2 * 2),
        ("m", None, 3),
    ];
    assert_eq!(parameters, expected);
}

#[test]
fn the_same_key_gives_the_same_text() {
    let scheme = asymmetric();
    for target in ["sm_80", "sm_89", "sm_90a"] {
        let request = Request { target, ..request(&scheme, 1, (4096, 4096)) };
        let choice = Jit.choose(&request, 16).unwrap();
        let (first, second) = (Jit.text(&choice.key).unwrap(), Jit.text(&choice.key).unwrap());
        assert_eq!(first, second);
        assert!(first.text.contains(&format!(".target {target}\n")), "{target}");
        // A grid waits for the one before it from sm_90 on.
        assert_eq!(first.rule.overlaps, target == "sm_90a");
    }
}

#[test]
fn types_of_x_share_codes_and_scales() {
    let scheme = asymmetric();
    let [bf16, f16] = [0, 1].map(|of| Jit.native(&request(&scheme, of, (64, 256))).unwrap());
    let names: Vec<String> = bf16.iter().map(|part| part.role.to_string()).collect();
    assert_eq!(names, ["w", "scale", "zero"]);
    // Scales are stored as the scheme has them, zero points as numbers of x's type.
    assert_eq!(bf16[1], f16[1]);
    assert_eq!(bf16[2].form, Form::Numbers(NUMBER_BF16));
    assert_eq!(f16[2].form, Form::Numbers(NUMBER_F16));
}

#[test]
fn a_bias_is_stored_as_f32() {
    let text = "b { weight: u4 - 8, scale: bf16 per 1x128, bias: f16, pack: u32 [k:8 | k, n], \
                activation: bf16 | f16 }";
    let scheme = parse(text).unwrap_or_else(|faults| panic!("{faults:?}"));
    let [bf16, f16] = [0, 1].map(|of| Jit.native(&request(&scheme, of, (41, 256))).unwrap());
    let (part, form) = (&bf16[2], Form::Numbers(NUMBER_F32));
    assert_eq!((part.role, &part.form, part), (BufferRole::Bias, &form, &f16[2]));
    // The rule's buffer is as long as what is packed: a number a row, no pads.
    let choice = Jit.choose(&request(&scheme, 0, (41, 256)), 2).unwrap();
    let rule = Jit.text(&choice.key).unwrap().rule.into_owned();
    let bias = rule.parameters.iter().find(|parameter| parameter.name == "bias").unwrap();
    let ParameterKind::Buffer { access, bytes, .. } = &bias.kind else { panic!("{bias:?}") };
    let problem = ProblemSize::new(2, 41, 256, 132);
    assert_eq!((*access, bytes.of(&problem).unwrap()), (Access::Read, 4 * 41));
}

#[test]
fn few_tokens_and_many_have_schedules_of_their_own() {
    let scheme = asymmetric();
    // Of a tile as many as have their elements of x, [M, 1024], numbered in 32 bits.
    let tile = 1000..=u64::from(u32::MAX) / 1024;
    let cases = [
        ("sm_89", 1, "skinny", 1..=1),
        ("sm_89", 9, "skinny", 16..=16),
        ("sm_89", 1000, "tile", tile.clone()),
        ("sm_90a", 1, "skinny", 1..=1),
        ("sm_90a", 9, "skinny", 16..=16),
        ("sm_90a", 17, "warp_group", tile.clone()),
        ("sm_90a", 1000, "warp_group", tile),
    ];
    for (target, tokens, name, most) in cases {
        let request = Request { target, ..request(&scheme, 0, (256, 1024)) };
        let choice = Jit.choose(&request, tokens).unwrap();
        assert_eq!(choice.key.schedule.name, name, "{target}, {tokens}");
        assert!(most.contains(&choice.tokens), "{target}, {tokens}: {}", choice.tokens);
        assert!(!Jit.text(&choice.key).unwrap().text.is_empty());
    }
}

/// Tiles in memory.
#[derive(Debug, Default)]
pub(crate) struct Tiles {
    rows: Mutex<Vec<Measured>>,
    at_first_use: bool,
}

impl Tiles {
    /// Adds a line, whatever it says.
    pub(crate) fn push(&self, row: Measured) {
        self.rows.lock().unwrap().push(row);
    }

    /// Writes all lines, and reads them again.
    pub(crate) fn reread(&self) {
        for row in self.rows.lock().unwrap().iter_mut() {
            *row = row.to_string().parse().unwrap();
        }
    }
}

impl TileTable for Tiles {
    fn fastest(&self, case: &Case) -> Option<Chosen> {
        let rows = self.rows.lock().unwrap();
        rows.iter().find(|row| row.case == *case).map(|row| row.chosen)
    }

    fn keep(&self, row: Measured) -> Result<(), Refusal> {
        self.rows.lock().unwrap().push(row);
        Ok(())
    }

    fn tunes_at_first_use(&self) -> bool {
        self.at_first_use
    }
}

/// A tile that was measured on the device comes before the table's and the model's, for its product, shape and M alone.
#[test]
fn tiles_of_the_device_come_first() {
    let scheme = asymmetric();
    let request = request(&scheme, 0, (256, 1024));
    let plain = Jit.choose(&request, 16).unwrap();
    assert_ne!(plain.by, ChoiceSource::Tuned);
    let table = Arc::new(Tiles::default());
    let jit = JitWithOverrides::default().with_tiles(table.clone());
    // M is rounded up; the model's choice is the first, and no two are the same.
    let Alternatives { tokens, kernels } = jit.alternatives(&request, 13).unwrap();
    assert_eq!((tokens, &kernels[0].key), (16, &plain.key));
    assert!(kernels.len() > 10 && kernels.iter().all(|kernel| kernel.tokens >= 16));
    let keys: HashSet<&KernelKey> = kernels.iter().map(|kernel| &kernel.key).collect();
    assert_eq!(keys.len(), kernels.len());
    let fastest = kernels.last().unwrap();
    jit.keep(&request, 16, fastest).unwrap();
    table.reread();
    for tokens in [9, 13, 16] {
        let choice = jit.choose(&request, tokens).unwrap();
        assert_eq!((choice.by, &choice.key), (ChoiceSource::Tuned, &fastest.key));
    }
    for other in [17, 8] {
        assert_ne!(jit.choose(&request, other).unwrap().by, ChoiceSource::Tuned, "M = {other}");
    }
    let wide = Request { n: 512, ..request };
    assert_ne!(jit.choose(&wide, 16).unwrap().by, ChoiceSource::Tuned);
    // A row whose tile does not take so many tokens serves nobody.
    let few = jit.choose(&request, 8).unwrap();
    table.rows.lock().unwrap().clear();
    jit.keep(&request, 16, &few).unwrap();
    assert_eq!(jit.choose(&request, 16).unwrap().key, plain.key);
}

/// Of one token blocks make the operand of x where that is faster, whatever tile was measured; the table does not have that.
#[test]
fn who_makes_the_operand_follows_from_the_tile() {
    let text = "w8a8 { weight: i8, scale: bf16 per channel, pack: [k, n], activation: i8 { scale: own per token } }";
    let scheme = parse(text).unwrap_or_else(|faults| panic!("{faults:?}"));
    let of = |k| Request::new(&scheme, &scheme.activations[0], BF16, "sm_90a", [256, k]);
    let makes = |key: &KernelKey| key.schedule.parameters.contains_key("makes_operand");
    let request = of(4096);
    let (model, table) = (Jit.choose(&request, 1).unwrap(), Arc::new(Tiles::default()));
    assert!(makes(&model.key) && Jit.operand(&request, Some(&model.key)).unwrap().is_empty());
    let f16 = Jit.choose(&Request { input_dtype: F16, ..request }, 1).unwrap();
    assert!(makes(&f16.key) && f16.key != model.key);
    for (request, tokens) in [(of(4112), 1), (of(4096), 2)] {
        let other = Jit.choose(&request, tokens).unwrap();
        assert!(!makes(&other.key) && !Jit.operand(&request, Some(&other.key)).unwrap().is_empty());
    }
    let jit = JitWithOverrides::default().with_tiles(table.clone());
    let Alternatives { kernels, .. } = jit.alternatives(&request, 1).unwrap();
    assert_eq!(kernels[0].key, model.key);
    let fastest = kernels.iter().rev().find(|kernel| makes(&kernel.key)).unwrap();
    jit.keep(&request, 1, fastest).unwrap();
    table.reread();
    assert!(!table.rows.lock().unwrap()[0].to_string().contains("makes_operand"));
    let choice = jit.choose(&request, 1).unwrap();
    assert_eq!((choice.by, &choice.key), (ChoiceSource::Tuned, &fastest.key));
    // An override of something else leaves it to the tile, which here has too few threads; one that names it decides.
    for (choices, expected) in [
        ("skinny(interleaved=1)", true),
        ("skinny(warps=2)", false),
        ("skinny(makes_operand=0)", false),
        ("use skinny", true),
    ] {
        let jit = JitWithOverrides::new(choices.parse().unwrap());
        assert_eq!(makes(&jit.choose(&request, 1).unwrap().key), expected, "{choices}");
    }
    let jit = JitWithOverrides::new("skinny(makes_operand=1, warps=2)".parse().unwrap());
    assert!(jit.choose(&request, 1).is_err());
}

/// Of exact products the table has no lines; without a table nothing is kept, and nothing measured at first use.
#[test]
fn exact_products_are_neither_kept_nor_measured_at_first_use() {
    let [scheme, exact] = [asymmetric(), asymmetric().with_accuracy(Accuracy::Exact)];
    let [request, exact] = [&scheme, &exact].map(|scheme| request(scheme, 0, (256, 1024)));
    let rows = Mutex::default();
    let table = Tiles { rows, at_first_use: true };
    let jit = JitWithOverrides::default().with_tiles(Arc::new(table));
    assert!(jit.tunes_at_first_use(&request) && !jit.tunes_at_first_use(&exact));
    let choice = jit.choose(&exact, 16).unwrap();
    let refused = jit.keep(&exact, 16, &choice).unwrap_err().to_string();
    assert_eq!(refused, "the table of tiles has no lines of exact products");
    let without = JitWithOverrides::default();
    assert!(!without.tunes_at_first_use(&request) && !Jit.tunes_at_first_use(&request));
    let refused = without.keep(&request, 16, &choice).unwrap_err().to_string();
    assert_eq!(refused, "this source of kernels keeps no measurements");
}

/// More tiles than multiprocessors: blocks persist, one for each multiprocessor of the device that launches; fewer: a block a tile.
#[test]
fn blocks_that_persist_are_as_many_as_multiprocessors() {
    let scheme = asymmetric();
    let request = request(&scheme, 0, (8192, 1024));
    for multiprocessors in [78, 114, 132] {
        let grid = |m: u64| {
            let choice = Jit.choose(&request, m).unwrap();
            let problem = ProblemSize::new(m, 8192, 1024, multiprocessors);
            let rule = Jit.text(&choice.key).unwrap().rule;
            rule.grid.clone().map(|count| count.of(&problem).unwrap())
        };
        assert_eq!(grid(4096), [multiprocessors, 1, 1]);
        assert_eq!(grid(256).into_iter().product::<u64>(), 128);
    }
    // Blocks that share copies of x: whole clusters.
    let mut shared = Jit.choose(&request, 4096).unwrap().key;
    shared.schedule.parameters.insert("multicast".to_owned(), 2);
    let rule = Jit.text(&shared).unwrap().rule;
    for (multiprocessors, blocks) in [(113, 114), (132, 132)] {
        let problem = ProblemSize::new(4096, 8192, 1024, multiprocessors);
        assert_eq!(rule.grid[0].of(&problem), Some(blocks));
    }
}

#[test]
fn what_has_no_kernel_says_why() {
    let scheme = asymmetric();
    let good = Jit.choose(&request(&scheme, 0, (64, 256)), 1).unwrap().key;
    let without = |parameter: &str| {
        let mut key = good.clone();
        key.schedule.parameters.remove(parameter);
        key
    };
    let cases = [
        (without("n"), "does not say n"),
        (without("k"), "does not say k"),
        (without("warps"), "needs the parameter warps"),
        (KernelKey { target: "msl".to_owned(), ..good.clone() }, "only for sm_80"),
        (
            KernelKey { target: "gfx942".to_owned(), ..good.clone() },
            "dependent launch is not supported on gfx942",
        ),
        (
            KernelKey { schedule: Schedule::new("magic", [("n", 64), ("k", 256)]), ..good.clone() },
            "magic",
        ),
        (KernelKey { work: Work::to_native(&scheme), ..good.clone() }, "native layout"),
        (
            KernelKey {
                work: Work::product(&scheme, &scheme.activations[0], Number::E8m0),
                ..good.clone()
            },
            "results in e8m0",
        ),
    ];
    for (key, expected) in cases {
        let refusal = Jit.text(&key).unwrap_err();
        assert!(!matches!(refusal, Refusal::Fault(_)), "{refusal}");
        assert!(refusal.to_string().contains(expected), "`{expected}` is not in: {refusal}");
    }
}
