//! What the second product reads of h: rows of slots that have a pair, and zeros in slots without one where the product
//! copies whole token blocks.

use quantloom_codegen::ir::{Compare, Kernel, Op, Operand};
use quantloom_codegen::jit::{Jit, JitWithOverrides};
use quantloom_codegen::sim::Contents;
use quantloom_dsl::experts::{ExpertProduct, OperandOf};
use quantloom_dsl::format::{BF16, F32, Number, Overflow};
use quantloom_dsl::{Activation, parse};
use quantloom_runtime::gpu::{Products as _, Request, Stacked};
use quantloom_runtime::source::KernelKey;

use super::mutations::found;
use super::sort::{NONE, Pairs};
use super::{Launched, TARGETS, random};
use crate::kernels::mutation::{Mutation, gone};

/// Scales of groups and of rows; groups whose scales a kernel of its own chooses; rows that are copied for their pads.
const SCHEMES: [&str; 4] = [
    "weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: e4m3 { scale: f32 per 1x128 }",
    "weight: i8, scale: f32 per channel, pack: [k, n], activation: i8 { scale: f32 per token }",
    "weight: i8, scale: f32 per 1x96, pack: [k, n], activation: i8 { scale: f32 per 1x96 }",
    "weight: u4 - 8, scale: bf16 per 1x32, pack: u32 [k:8 | k, n], activation: bf16",
];
/// Columns of h: no whole vector of 16 bytes.
const K: u64 = 260;
/// The byte of memory that no kernel has written.
const UNWRITTEN: u8 = 0xcd;
/// Rows of a tile of scales.
const TILE: usize = 32;

/// A product's kernel and the kernels of its operand, of slots and of all rows.
struct Keys {
    slots: u32,
    of_slots: Vec<KernelKey>,
    of_rows: Vec<KernelKey>,
    /// Whether the product is one of warp groups.
    whole: bool,
}

/// The keys for a scheme on a target; `None` if it has no such product.
fn keys(scheme: &str, target: &str, whole: bool) -> Option<Keys> {
    let scheme = parse(&format!("s {{ {scheme} }}")).unwrap();
    let activation = &scheme.activations[0];
    assert!(matches!(
        activation,
        Activation::Quantised(_) | Activation::Float(Number::Float(BF16))
    ));
    let (n, k) = (64, K);
    let (input_dtype, x_columns) = (BF16, k);
    let request = Request {
        scheme: &scheme,
        activation,
        input_dtype,
        target,
        n,
        k,
        x_columns,
        scales_in_range: false,
        layout_of_range: false,
    };
    let stacked = Stacked {
        product: ExpertProduct::Down,
        experts: 16,
        chosen_from: 16,
        shards: 1,
        top_k: 1,
        slots: Some(if whole { 32 } else { 8 }),
        gate: None,
        output: F32,
        direct: false,
        weighted: false,
        combined: false,
        shared: None,
        operand: OperandOf::Row,
    };
    let only = JitWithOverrides::new("use warp_group".parse().unwrap());
    let made = match whole {
        true => only.choose_stacked(&request, &stacked, 41).ok()?,
        false => Jit.choose_stacked(&request, &stacked, 41).ok()?,
    };
    let key = Some(&made.choice.key);
    let of_slots = Jit.operand_stacked(&request, &stacked, key, made.slots).unwrap();
    let of_rows = Jit.operand(&request, key).unwrap();
    Some(Keys { slots: made.slots as u32, of_slots, of_rows, whole })
}

/// Random rows of h in bf16, and which of them have a pair.
fn rows_of_h(pairs: &Pairs) -> (Vec<Vec<u8>>, Vec<bool>) {
    let order = pairs.order();
    let blocks = pairs.token_blocks();
    let mut random = random(12);
    let held = &order[1 + blocks..][..blocks * pairs.slots as usize];
    let held: Vec<bool> = held.iter().map(|pair| *pair != NONE).collect();
    let mut value = || f64::from(random(1 << 12)) / 256.0 - 8.0;
    let mut row = || -> Vec<u8> {
        (0..K)
            .flat_map(|_| {
                (Number::Float(BF16).encode(value(), Overflow::Special) as u16).to_le_bytes()
            })
            .collect()
    };
    (held.iter().map(|_| row()).collect(), held)
}

/// Compares the operand of slots with that of all rows.
///
/// # Errors
/// The first byte that differs, or the simulator's fault.
fn check(keys: &Keys, change: impl Fn(&mut Kernel)) -> Result<(), String> {
    let Keys { slots, of_slots, of_rows, whole } = keys;
    let pairs = Pairs::draw(24, 41, *slots, 9).mapped();
    assert_eq!(pairs.local, 16);
    let (rows, held) = rows_of_h(&pairs);
    let used = pairs.order()[0] as usize * pairs.slots as usize;
    // Rows without a pair are never read.
    let mut h = Contents::poison(2 * K as usize * rows.len());
    for (at, row) in rows.iter().enumerate().filter(|(at, _)| held[*at]) {
        h.set(at * row.len(), row);
    }
    let launched = |h: Contents, keys: &[KernelKey], change: &dyn Fn(&mut Kernel)| {
        let mut launched = Launched::new(rows.len(), 1).words("slots", &pairs.order());
        launched.problem.routed_rows = pairs.ids.len() as u64;
        launched = launched.contents("x", h);
        for key in keys {
            let mut kernel = Kernel::clone(&Jit.kernel(key).unwrap());
            change(&mut kernel);
            launched.run(kernel)?;
        }
        Ok::<_, String>(launched)
    };
    let all = launched(Contents::from_bytes(rows.concat()), of_rows, &|_| {})?;
    let own = launched(h, of_slots, &change)?;
    for buffer in ["operand", "x_scale"] {
        let (Some(all), Some(own)) = (all.bytes_of(buffer), own.bytes_of(buffer)) else {
            assert_eq!(buffer, "x_scale");
            continue;
        };
        assert_eq!(all.len(), own.len(), "{buffer}");
        let of_row = all.len() / rows.len();
        let row = |byte: usize| match (*whole, buffer, of_row > 4) {
            (true, "x_scale", true) => byte / (TILE * of_row) * TILE + byte / 4 % TILE,
            _ => byte / of_row,
        };
        for (at, (all, own)) in all.iter().zip(own).enumerate() {
            let row = row(at);
            let expected = match (held[row], *whole && row < used) {
                (true, _) => *all,
                (false, true) => 0,
                (false, false) => UNWRITTEN,
            };
            if *own != expected {
                return Err(format!(
                    "{buffer}: byte {at}, of slot {row}, is {own}, not {expected}"
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn rows_of_slots_without_a_pair_are_left_out() {
    let mut checked = [0; 2];
    for target in TARGETS {
        for scheme in SCHEMES {
            for whole in [false, true] {
                let Some(keys) = keys(scheme, target, whole) else { continue };
                assert!(!keys.of_slots.is_empty(), "{scheme}");
                check(&keys, |_| {}).unwrap_or_else(|why| panic!("{target}, {scheme}: {why}"));
                checked[usize::from(whole)] += 1;
            }
        }
    }
    assert!(checked[0] >= 20 && checked[1] >= 2, "{checked:?}");
}

/// Of every operand of slots.
const OF_SLOTS: &[(&str, Mutation)] = &[
    ("the order before earlier kernels end", |_, op| {
        if *op == Op::GridWait {
            gone(op);
        }
    }),
    ("the slot of another pair", |place, op| {
        if let Op::Load { from, mask: None, .. } = op
            && place.is(from.space, "slots")
        {
            from.offset += 1;
        }
    }),
    ("pairs without an expert here", |_, op| {
        if let Op::Compare { dst, op: Compare::Less, b: Operand::U32(NONE), .. } = op {
            *op = Op::Copy { dst: *dst, a: true.into() };
        }
    }),
];

/// Where the product copies whole token blocks.
const OF_WHOLE_BLOCKS: &[(&str, Mutation)] = &[
    ("no zeros", |place, op| match op {
        Op::Store { to, .. } if place.in_loop && place.is(to.space, "operand") => gone(op),
        _ => {}
    }),
    ("no scales of zeros", |place, op| match op {
        Op::Store { to, .. } if place.in_loop && place.is(to.space, "x_scale") => gone(op),
        _ => {}
    }),
    ("a slot beyond the token block", |_, op| {
        if let Op::Binary { b: last @ Operand::U32(31), .. } = op {
            *last = 32u32.into();
        }
    }),
];

#[test]
fn mistakes_in_operands_of_slots_are_found() {
    let keys = [false, true].map(|whole| keys(SCHEMES[0], "sm_90a", whole).unwrap());
    for (what, mutation) in OF_SLOTS {
        found(what, *mutation, |change| check(&keys[0], change));
    }
    for (what, mutation) in OF_SLOTS.iter().chain(OF_WHOLE_BLOCKS) {
        found(what, *mutation, |change| check(&keys[1], change));
    }
}
