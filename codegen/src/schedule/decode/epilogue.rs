//! The sums of the warps become y: through shared memory, and through the workspace where blocks
//! split K.

use super::{Decode, TOKEN_TILE, ring::Ring};
use crate::ir::{
    Access, Address, Binary, BufferId, Builder, Cache, Extent, Fetch, Op, Operand, Order, Reg,
    Scope, Special, Type, Uniformity, Width, Word,
};

/// Words from one token's sums to the next's: four more than the rows, so that the tokens of
/// neighbouring lanes fall into different banks.
pub(super) const fn pitch(row_tiles: u32) -> u32 {
    16 * row_tiles + 4
}

pub(super) fn write(b: &mut Builder, decode: &Decode<'_>, sums: &[Vec<Vec<Reg>>], ring: &Ring) {
    let tile = decode.tile;
    let (rows, pitch) = (16 * tile.row_tiles, pitch(tile.row_tiles));
    let words = tile.warps * tile.tokens * pitch;
    let layout = "f32 [row, token, warp], over the rings";
    let shared = b.shared_block("sums", Word::U32, words, layout, 16, Some(ring.block));

    b.comment("every warp is done with its ring");
    b.push(Op::CopyWait { pending: 0 });
    b.barrier();
    let row = b.shr(decode.lane, 2u32);
    let token = b.and(decode.lane, 3u32);
    let token = b.mul(token, 2u32);
    let at = b.mad(token, pitch, row);
    let at = b.mad(decode.warp, tile.tokens * pitch, at);
    for (of_rows, sums) in sums.iter().enumerate() {
        for (of_tokens, sums) in sums.iter().enumerate() {
            for &register in decode.columns() {
                // D: column 2t + register % 2, row g + 8 (register / 2).
                let plus = of_tokens as u32 * TOKEN_TILE + register as u32 % 2;
                let number = b.add(token, plus);
                let held = b.less(number, tile.tokens);
                let mask = (!tile.tokens.is_multiple_of(TOKEN_TILE)).then_some(held);
                let offset = plus * pitch + 16 * of_rows as u32 + 8 * (register as u32 / 2);
                let to = Address::new(shared, at).plus(offset);
                b.store(to, &[sums[register].into()], Width::B32, mask);
            }
        }
    }
    b.barrier();

    let workspace = (tile.splits > 1).then(|| Workspace::declare(b, decode));
    let thread = b.special(Special::Thread);
    let threads = tile.warps * b.warp_size();
    let each = |b: &mut Builder, work: &mut dyn FnMut(&mut Builder, Operand, [Operand; 2])| {
        b.for_each(thread, tile.tokens * rows, threads, "result", |b, result| {
            let (token, row) = (b.div(result, rows), b.rem(result, rows));
            work(b, result, [token, row]);
        });
    };
    let total = |b: &mut Builder, [token, row]: [Operand; 2]| {
        let at = b.mad(token, pitch, row);
        let read = |b: &mut Builder, warp: u32| {
            let from = Address::new(shared, at).plus(warp * tile.tokens * pitch);
            b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0]
        };
        let mut total: Operand = read(b, 0).into();
        for warp in 1..tile.warps {
            let next = read(b, warp);
            total = b.add_f32(total, next);
        }
        total
    };
    match workspace {
        None => each(b, &mut |b, _, place| {
            let value = total(b, place);
            store(b, decode, place, value);
        }),
        Some(workspace) => {
            b.comment("this block's sums, into its own slot");
            each(b, &mut |b, result, place| {
                let value = total(b, place);
                let slot = workspace.slot(b, decode, result);
                let split = b.special(Special::Block(1));
                let slot = b.mad(split, workspace.stride(decode), slot);
                let to = Address::new(workspace.sums, slot);
                b.store(to, &[value], Width::B32, None);
            });
            let last = workspace.arrive(b, decode);
            b.when(last, |b| {
                each(b, &mut |b, result, place| {
                    let slot = workspace.slot(b, decode, result);
                    let mut value: Operand = 0.0f32.into();
                    for split in 0..tile.splits {
                        let from = Address::new(workspace.sums, slot);
                        let from = from.plus(split * workspace.stride(decode));
                        let next = b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0];
                        value = if split == 0 { next.into() } else { b.add_f32(value, next) };
                    }
                    store(b, decode, place, value);
                });
            });
        }
    }
}

/// Writes one result, rounded, where there is one.
fn store(b: &mut Builder, decode: &Decode<'_>, [token, row]: [Operand; 2], value: Operand) {
    let problem = decode.problem;
    let first = b.mul(decode.block, 16 * decode.tile.row_tiles);
    let n = b.add(first, row);
    let token_is = b.less(token, decode.m);
    let mask = if problem.n.is_multiple_of(16 * decode.tile.row_tiles) {
        token_is
    } else {
        let row_is = b.less(n, problem.n);
        b.both(token_is, row_is)
    };
    let word = b.binary(Binary::Pack(problem.activation), value, value);
    let at = b.mad(token, problem.n, n);
    b.store(Address::new(decode.io.y, at), &[word], Width::B16, Some(mask));
}

/// Where blocks that split K leave their sums and count their arrivals.
struct Workspace {
    sums: BufferId,
    /// One per range of rows; 0 before the first launch, and after each.
    arrivals: BufferId,
}

impl Workspace {
    fn declare(b: &mut Builder, decode: &Decode<'_>) -> Self {
        let tile = decode.tile;
        let blocks = Extent::Constant(decode.problem.row_tiles().div_ceil(tile.row_tiles));
        let results = Extent::Constant(tile.tokens * 16 * tile.row_tiles);
        let shape = [Extent::Constant(tile.splits), blocks, results];
        let layout = "f32 [result, block, split]";
        let sums = b.buffer("partial", Word::U32, Access::Workspace, &shape, layout);
        let layout = "blocks that have arrived; 0 before the first launch, and after each";
        let arrivals = b.buffer("arrivals", Word::U32, Access::Workspace, &[blocks], layout);
        Self { sums, arrivals }
    }

    fn stride(&self, decode: &Decode<'_>) -> u32 {
        let tile = decode.tile;
        let blocks = decode.problem.row_tiles().div_ceil(tile.row_tiles);
        blocks * tile.tokens * 16 * tile.row_tiles
    }

    fn slot(&self, b: &mut Builder, decode: &Decode<'_>, result: Operand) -> Operand {
        b.mad(decode.block, decode.tile.tokens * 16 * decode.tile.row_tiles, result)
    }

    /// Counts this block; true in all its threads if it is the last.
    fn arrive(&self, b: &mut Builder, decode: &Decode<'_>) -> Operand {
        let flag = b.shared("order", Word::U32, 4, "how many blocks came before this one");
        b.comment("the last block to arrive adds the slots up");
        b.barrier();
        let thread = b.special(Special::Thread);
        let leads = b.equal(thread, 0u32);
        let counter = Address::new(self.arrivals, decode.block);
        b.when(leads, |b| {
            let before = b.atomic(Fetch::Add, counter, 1u32, Order::AcquireRelease, Scope::Device);
            b.store(Address::new(flag, 0u32), &[before], Width::B32, None);
            let last = b.equal(before, decode.tile.splits - 1);
            b.when(last, |b| {
                let (value, order) = (0u32.into(), Order::Relaxed);
                let scope = Scope::Device;
                b.push(Op::Atomic {
                    dst: None,
                    op: Fetch::Exchange,
                    at: counter,
                    value,
                    order,
                    scope,
                });
            });
        });
        b.barrier();
        let before = b.variable("before", Type::U32, Uniformity::Block);
        let from = Address::new(flag, 0u32);
        b.load_into(&[before], from, Width::B32, None, Cache::Default);
        b.equal(before, decode.tile.splits - 1)
    }
}
