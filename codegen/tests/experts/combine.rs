//! The kernels between the products: h of z, weighted rows, and sums of parts.

use quantloom_codegen::ir::Kernel;
use quantloom_codegen::schedule::experts::{
    CombineProblem, GateProblem, WeighProblem, activate, combine, weigh,
};
use quantloom_codegen::target::target;
use quantloom_dsl::experts::Gate;
use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Overflow};
use quantloom_dsl::reference::experts;

use super::function::{GATES, bound, is_near};
use super::sort::{NONE, Pairs};
use super::{Launched, TARGETS, UNIT, off, random};

const OWN: [FloatFormat; 3] = [BF16, F16, F32];

/// Values in a type, as bytes.
fn encoded(own: FloatFormat, values: &[f64]) -> Vec<u8> {
    let width = own.bits() as usize / 8;
    let encode = |value: &f64| own.encode(*value, Overflow::Special).to_le_bytes();
    values.iter().flat_map(|value| encode(value).into_iter().take(width)).collect()
}

fn decoded(own: FloatFormat, bytes: &[u8]) -> Vec<f64> {
    let width = own.bits() as usize / 8;
    let decode = |bytes: &[u8]| {
        let mut word = [0; 4];
        word[..width].copy_from_slice(bytes);
        own.decode(u32::from_le_bytes(word))
    };
    bytes.chunks_exact(width).map(decode).collect()
}

/// Half of the distance of neighbours of a type near a value.
pub(super) fn half_unit(own: FloatFormat, value: f64) -> f64 {
    let least = 2f64.powi(1 - own.bias() - i32::from(own.mantissa_bits));
    (value.abs() * own.epsilon()).max(least) / 2.0
}

/// Numbers of a type between -1 and 1 times a size.
fn numbers(own: FloatFormat, size: f64, seed: u64) -> impl FnMut() -> f64 {
    let mut random = random(seed);
    move || own.round((f64::from(random(1 << 24)) / f64::from(1 << 23) - 1.0) * size)
}

/// Runs the gate on drawn z, with NaN in rows that are not read.
///
/// # Errors
/// The first element that differs, or the simulator's fault.
pub(super) fn check_gate(
    name: &str,
    (gate, own): (Gate, FloatFormat),
    intermediate: usize,
    change: impl Fn(&mut Kernel),
) -> Result<(), String> {
    let pairs = Pairs::draw(6, 41, 8, 9).mapped();
    let order = pairs.order();
    let (blocks, slots) = (pairs.token_blocks(), pairs.slots as usize);
    let rows = blocks * slots;
    let pair_of = &order[1 + blocks..][..rows];
    let mut draw = numbers(F32, 9.0, 4);
    let z: Vec<f32> = (0..gate.shards() * rows * intermediate)
        .map(|at| match pair_of[at / intermediate % rows] {
            NONE => f32::NAN,
            _ => draw() as f32,
        })
        .collect();
    let problem = GateProblem {
        target: target(name).unwrap(),
        gate,
        own,
        intermediate: intermediate as u32,
        local: pairs.local,
        slots: pairs.slots,
    };
    let mut launched = Launched::new(pairs.ids.len(), 1).words("slots", &order).floats("z", &z);
    let mut kernel = activate(&problem);
    change(&mut kernel);
    launched.run(kernel)?;
    let found = decoded(own, launched.found_bytes("h"));
    for (at, found) in found.into_iter().enumerate() {
        let slot = at / intermediate;
        if pair_of[slot] == NONE {
            if found != 0.0 {
                return Err(format!("h of the empty slot {slot} is {found}"));
            }
            continue;
        }
        let up = at + (gate.shards() - 1) * rows * intermediate;
        let (g, u) = (z[at].into(), z[up].into());
        let h = experts::gate(gate, g, u);
        let bound = bound(is_near(name), gate, [g, u], h);
        let bound = bound + half_unit(own, h.abs() + bound);
        if off(found, h, bound) {
            return Err(format!("h of g = {g}, u = {u} is {found}, expected {h} +- {bound:e}"));
        }
    }
    Ok(())
}

#[test]
fn h_is_the_references() {
    for (turn, name) in TARGETS.into_iter().enumerate() {
        for (number, gate) in GATES.into_iter().enumerate() {
            let own = OWN[(turn + number) % 3];
            let intermediate = [64, 41, 1030, 6][(turn + number) % 4];
            check_gate(name, (gate, own), intermediate, |_| {})
                .unwrap_or_else(|wrong| panic!("{name}, {gate} to {own}: {wrong}"));
        }
    }
}

/// Runs `combine` on drawn parts, with NaN in those of experts elsewhere, and in their weights.
///
/// Each fused multiply-add and the sum with `shared` round once to f32, in units of the largest
/// intermediate sum, then y rounds once to its type: (k + 1) 2^-24 times the sum of magnitudes, plus half
/// a unit of y.
///
/// # Errors
/// The first element that differs, or the simulator's fault.
pub(super) fn check_combine(
    name: &str,
    [type_of_parts, own, output]: [FloatFormat; 3],
    (tokens, top_k, hidden): (usize, u32, usize),
    [weighted, shared, sorted]: [bool; 3],
    change: impl Fn(&mut Kernel),
) -> Result<(), String> {
    let k = top_k as usize;
    let mut pairs = Pairs::draw(9, tokens * k, 8, 11);
    if sorted {
        pairs = pairs.mapped();
    }
    let here: Vec<bool> = (0..tokens * k).map(|pair| pairs.expert(pair).is_some()).collect();
    for (weight, here) in pairs.weights.iter_mut().zip(&here) {
        *weight = if *here { *weight / 512.0 } else { f32::NAN };
    }
    let mut draw = numbers(type_of_parts, 3.0, 8);
    let part = |pair: usize| if here[pair] { draw() } else { f64::NAN };
    let parts: Vec<f64> = (0..tokens * k * hidden).map(|at| at / hidden).map(part).collect();
    let mut draw = numbers(own, 5.0, 2);
    let added: Vec<f64> = (0..tokens * hidden).map(|_| draw()).collect();
    let problem = CombineProblem {
        target: target(name).unwrap(),
        parts: type_of_parts,
        own,
        output,
        hidden: hidden as u32,
        top_k,
        local: pairs.local,
        slots: sorted.then_some(pairs.slots),
        weighted,
        shared,
    };
    let mut launched = Launched::new(tokens, top_k)
        .words("slots", &pairs.order())
        .words("ids", &pairs.ids.iter().map(|id| id.cast_unsigned()).collect::<Vec<_>>())
        .bytes("parts", encoded(type_of_parts, &parts))
        .floats("router_weights", &pairs.weights)
        .bytes("shared_y", encoded(own, &added));
    let mut kernel = combine(&problem);
    change(&mut kernel);
    launched.run(kernel)?;
    let found = decoded(output, launched.found_bytes("y"));
    for (at, found) in found.into_iter().enumerate() {
        let (token, column) = (at / hidden, at % hidden);
        let (mut sum, mut size) = (0.0, 0.0);
        for pair in (token * k..(token + 1) * k).filter(|pair| here[*pair]) {
            let weight = if weighted { f64::from(pairs.weights[pair]) } else { 1.0 };
            let part = weight * parts[pair * hidden + column];
            sum += part;
            size += part.abs();
        }
        if shared {
            sum += added[at];
            size += added[at].abs();
        }
        let bound = f64::from(top_k + 1) * UNIT * size;
        let bound = bound + half_unit(output, sum.abs() + bound);
        if off(found, sum, bound) {
            return Err(format!("y[{token}, {column}] = {found}, expected {sum} +- {bound:e}"));
        }
    }
    Ok(())
}

#[test]
fn y_is_the_sum_of_a_tokens_parts() {
    for (turn, name) in TARGETS.into_iter().enumerate() {
        for (number, shape) in
            [(1, 1, 64), (5, 2, 41), (3, 8, 1030), (2, 9, 6), (7, 4, 2880)].into_iter().enumerate()
        {
            let own = OWN[(turn + number) % 3];
            let flags = [number % 2 == 0, (turn + number) % 2 == 0, (turn + number) % 3 != 0];
            let output = if number % 2 == 0 { F32 } else { own };
            for parts in [F32, OWN[(turn + number / 2) % 2]] {
                check_combine(name, [parts, own, output], shape, flags, |_| {})
                    .unwrap_or_else(|wrong| panic!("{name}, {parts}, {own}, {shape:?}: {wrong}"));
            }
        }
    }
}

/// One product in f32, rounded to the type: two roundings.
#[test]
fn rows_are_weighted_one_by_one() {
    for (turn, name) in TARGETS.into_iter().enumerate() {
        for (number, hidden) in [64usize, 41, 1030].into_iter().enumerate() {
            let own = OWN[(turn + number) % 3];
            let tokens = 5;
            let (mut draw, mut of_tokens) = (numbers(own, 4.0, 3), numbers(F32, 1.0, 7));
            let x: Vec<f64> = (0..tokens * hidden).map(|_| draw()).collect();
            let weights: Vec<f32> = (0..tokens).map(|_| of_tokens() as f32).collect();
            let problem =
                WeighProblem { target: target(name).unwrap(), own, hidden: hidden as u32 };
            let mut launched = Launched::new(tokens, 1)
                .bytes("x", encoded(own, &x))
                .floats("router_weights", &weights);
            launched.run(weigh(&problem)).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            let found = decoded(own, launched.found_bytes("weighted"));
            for (at, found) in found.into_iter().enumerate() {
                let product = (x[at] * f64::from(weights[at / hidden])) as f32;
                assert_eq!(found, own.round(product.into()), "{name}, {own}: {at}");
            }
        }
    }
}
