//! The tokens of a block: their rows of x and of y, and the matrix that they multiply.
//!
//! A block multiplies `tokens` tokens, numbered over all blocks. With a single matrix a token is a row of x
//! and the same row of y, and the tokens below M exist. In an expert layer a token is a slot, which exists if
//! the order gives it a pair; the block's matrix is that of its token block's expert, and its rows are:
//!
//! | product | row of x | row of y |
//! |---|---|---|
//! | gate_up | pair / k | shard T B + slot |
//! | down | slot | pair |
//!
//! A slot without a pair has no row: nothing of it is read or written.

use quantloom_dsl::experts::ExpertProduct;

use super::order::{NONE, OrderArray, OrderWords};
use super::stack::{Matrix, Stack};
use crate::ir::{Binary, Builder, Cache, Extent, Mask, Op, Operand, Special, Type, Width};

/// Where the rows of a block's tokens are.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenRows {
    /// The block's number along the tokens.
    block: Operand,
    /// Tokens of a block.
    tokens: u32,
    of: Rows,
}

#[derive(Clone, Copy, Debug)]
enum Rows {
    /// Token t has row t; there are M.
    Single { m: Operand },
    /// Tokens are slots; the shard's rows of y begin at `shard_rows`, if y has a row per slot.
    Routed { words: OrderWords, stack: Stack, shard_rows: Operand },
}

/// A token: its number over all blocks, and its pair in an expert layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    number: Operand,
    pair: Option<Operand>,
}

/// The tokens of a block as rows of x that may be read: a token that does not exist reads the row of
/// another one, whose result is not stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadableRows {
    /// The last row.
    Single { last: Operand },
    /// The block's first and last slot, and the pair of the first one.
    Routed { rows: TokenRows, first: Operand, last: Option<Operand>, pair: Operand },
}

impl TokenRows {
    /// The tokens of a product with a single matrix and M rows of x.
    pub(super) const fn single(block: Operand, tokens: u32, m: Operand) -> Self {
        Self { block, tokens, of: Rows::Single { m } }
    }

    /// Tokens of a block.
    pub(super) const fn count(&self) -> u32 {
        self.tokens
    }

    /// The number of the block's token.
    pub(super) fn number(&self, b: &mut Builder, token: Operand) -> Operand {
        b.mad(self.block, self.tokens, token)
    }

    /// The token of a number. In an expert layer numbers are checked against the order only where
    /// `within` is true; elsewhere there is no token.
    pub(super) fn token(&self, b: &mut Builder, number: Operand, within: Operand) -> Token {
        let Rows::Routed { words, .. } = self.of else { return Token { number, pair: None } };
        let from = words.pair(b, number);
        let mask = (within != Operand::Pred(true))
            .then_some(Mask { condition: within, fill: NONE.into() });
        let pair = b.load_as(Type::U32, from, Width::B32, mask, Cache::Default)[0];
        Token { number, pair: Some(pair.into()) }
    }

    /// The token of a number among `tokens` numbers that threads may exceed. With a single matrix
    /// numbers beyond the block's are compared with M alone.
    pub(super) fn token_of(
        &self,
        b: &mut Builder,
        (number, in_block): (Operand, Operand),
        certain: bool,
    ) -> Token {
        let within = match self.of {
            Rows::Routed { .. } if !certain => b.less(in_block, self.tokens),
            _ => true.into(),
        };
        self.token(b, number, within)
    }

    /// Whether the token exists.
    pub(super) fn exists(&self, b: &mut Builder, token: Token) -> Operand {
        match (self.of, token.pair) {
            (Rows::Single { m }, _) => b.less(token.number, m),
            (Rows::Routed { .. }, Some(pair)) => b.less(pair, NONE),
            (Rows::Routed { .. }, None) => false.into(),
        }
    }

    /// The row of x of a token; row 0 if an expert layer's token does not exist.
    pub(super) fn x_row(&self, b: &mut Builder, token: Token, exists: Operand) -> Operand {
        match (self.of, token.pair) {
            (Rows::Routed { stack, .. }, Some(pair)) if stack.product == ExpertProduct::GateUp => {
                let row = b.div(pair, stack.top_k);
                b.select(exists, row, 0u32)
            }
            _ => token.number,
        }
    }

    /// The row of y of a token that exists.
    pub(super) fn y_row(&self, b: &mut Builder, token: Token) -> Operand {
        match (self.of, token.pair) {
            (Rows::Routed { stack, .. }, Some(pair)) if stack.product == ExpertProduct::Down => {
                pair
            }
            (Rows::Routed { shard_rows, .. }, _) => b.add(shard_rows, token.number),
            (Rows::Single { .. }, _) => token.number,
        }
    }

    /// Rows of x for lanes that ask for `tokens` tokens of the block, which may be more than it has.
    pub(super) fn readable(&self, b: &mut Builder, tokens: u32) -> ReadableRows {
        let m = match self.of {
            Rows::Single { m } => return ReadableRows::Single { last: b.sub(m, 1u32) },
            Rows::Routed { .. } => b.mul(self.block, self.tokens),
        };
        let Token { pair, .. } = self.token(b, m, true.into());
        let last = (tokens > self.tokens).then(|| b.add(m, self.tokens - 1));
        let pair = pair.unwrap_or(m);
        ReadableRows::Routed { rows: *self, first: m, last, pair }
    }
}

impl ReadableRows {
    /// The row of x of the token of a number.
    pub(super) fn row(&self, b: &mut Builder, number: Operand) -> Operand {
        match *self {
            Self::Single { last } => b.binary(Binary::Min, number, last),
            Self::Routed { rows, first, last, pair } => {
                let number = last.map_or(number, |last| b.binary(Binary::Min, number, last));
                let token = rows.token(b, number, true.into());
                let exists = rows.exists(b, token);
                let number = b.select(exists, number, first);
                let pair = token.pair.map(|own| b.select(exists, own, pair));
                rows.x_row(b, Token { number, pair }, true.into())
            }
        }
    }
}

/// A block of an expert layer's product.
pub(super) struct RoutedBlock {
    /// Whether its token block is in use; all else holds only there.
    in_use: Operand,
    words: OrderWords,
    stack: Stack,
    token_block: Operand,
    shard: Operand,
    /// The block's number along the rows of w.
    pub(super) row_block: Operand,
    /// The block's number among those that split K.
    pub(super) split: Operand,
}

impl RoutedBlock {
    /// Sets the grid, of T token blocks, blocks of rows, and shards times splits, and finds the block's
    /// place. With programmatic launch the kernel waits here for those before it, since the order decides
    /// everything that a block reads.
    pub(super) fn begin(
        b: &mut Builder,
        (stack, order): (Stack, OrderArray),
        (row_blocks, splits): (u32, u32),
        programmatic: bool,
    ) -> Self {
        let fixed = Extent::Constant;
        let grid = [Extent::Parameter(order.token_blocks), fixed(row_blocks)];
        b.grid([grid[0], grid[1], fixed(splits * stack.shards)]);
        let [token_block, row_block] = [0, 1].map(|axis| b.special(Special::Block(axis)));
        let place = match splits * stack.shards {
            1 => 0u32.into(),
            _ => b.special(Special::Block(2)),
        };
        let (shard, split) = match (stack.shards, splits) {
            (_, 1) => (place, 0u32.into()),
            (1, _) => (0u32.into(), place),
            _ => (b.div(place, splits), b.rem(place, splits)),
        };
        if programmatic {
            b.push(Op::GridWait);
            b.push(Op::GridLaunch);
        }
        b.comment("token blocks beyond those in use have nothing to do");
        let words = order.words(b);
        let count = b.load(words.count(), Width::B32)[0];
        let in_use = b.less(token_block, count);
        Self { in_use, words, stack, token_block, shard, row_block, split }
    }

    /// Writes what a block in use does.
    pub(super) fn when_in_use(&self, b: &mut Builder, write: impl FnOnce(&mut Builder, Matrix)) {
        b.when(self.in_use, |b| {
            let expert = b.load(self.words.expert(self.token_block), Width::B32)[0];
            let matrix = b.mad(expert, self.stack.shards, self.shard);
            write(b, Matrix(Some(matrix)));
        });
    }

    /// The tokens of the block: its slots.
    pub(super) fn rows(&self, b: &mut Builder) -> TokenRows {
        let Self { words, stack, shard, token_block: block, .. } = *self;
        let tokens = words.array.slots;
        let slots = b.mul(words.token_blocks, tokens);
        let shard_rows = b.mul(slots, shard);
        TokenRows { block, tokens, of: Rows::Routed { words, stack, shard_rows } }
    }

    /// The number of the block's tile of y along the tokens, and the number of such tiles, as a value and
    /// as an extent: token blocks of one shard after those of another.
    pub(super) fn y_block(&self, b: &mut Builder) -> (Operand, Operand, Extent) {
        let (blocks, order) = (self.words.token_blocks, self.words.array);
        let number = b.mad(blocks, self.shard, self.token_block);
        let count = b.mul(blocks, self.stack.shards);
        (number, count, Extent::times(order.token_blocks, self.stack.shards))
    }
}
