//! A kernel that begins with a guess, and what may go wrong with one.

use super::Case;
use super::kernels::{buffer, chip, launch, numbers};
use crate::ir::{
    Access, Address, Builder, Cache, Op, Special, Type, Unary, Uniformity, Width, Word,
};
use crate::sim::{Arguments, Contents};

/// y[block][t] = w[id of the block][t], whose load begins before ids are known.
pub(super) fn guessing() -> Case {
    const THREADS: u32 = 32;
    const ROWS: u32 = 16;
    let blocks = 24;
    let mut launch = launch(blocks, THREADS);
    launch.programmatic = true;
    let mut b = Builder::new("guessing", "Rows by number.", chip("sm_90a"), launch);
    let ids = buffer(&mut b, "ids", Word::U32, Access::ReadOnly, blocks);
    let w = buffer(&mut b, "w", Word::U32, Access::Constant, ROWS * THREADS);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, blocks * THREADS);
    let (block, lane) = (b.special(Special::Block(0)), b.special(Special::Lane));
    let row = b.array("row", Type::U32, 1, Uniformity::Varying);
    let guess = b.guess(Address::new(ids, block));
    let near = b.and(guess, ROWS - 1);
    let from = b.mad(near, THREADS, lane);
    b.load_into(&row, Address::new(w, from), Width::B32, None, Cache::Stream);
    b.push(Op::GridWait);
    let id = b.load(Address::new(ids, block), Width::B32)[0];
    let right = b.equal(id, guess);
    let wrong = b.unary(Unary::NotPred, right);
    b.when(wrong, |b| {
        let from = b.mad(id, THREADS, lane);
        b.load_into(&row, Address::new(w, from), Width::B32, None, Cache::Stream);
    });
    let to = b.mad(block, THREADS, lane);
    b.store(Address::new(y, to), &[row[0].into()], Width::B32, None);
    let (weights, mut chosen) = (numbers(10, ROWS * THREADS), numbers(11, blocks));
    chosen.iter_mut().for_each(|id| *id %= ROWS);
    let rows = chosen.iter().flat_map(|&id| {
        let first = (id * THREADS) as usize;
        weights[first..first + THREADS as usize].iter().copied()
    });
    Case {
        kernel: b.finish(),
        expected: vec![(2, rows.collect())],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![
                Contents::from_words(&chosen),
                Contents::from_words(&weights),
                Contents::poison((4 * blocks * THREADS) as usize),
            ],
        },
    }
}
