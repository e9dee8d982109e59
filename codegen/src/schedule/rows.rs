//! The tokens of a block: their rows of x and of y.
//!
//! A block multiplies `tokens` tokens, numbered over all blocks. With a single matrix a token is a row of x
//! and the same row of y, and the tokens below M exist. In an expert layer a token is a slot, which exists if
//! the order gives it a pair; the block's matrix is that of its token block's expert, and its rows are:
//!
//! | product | row of x | row of y |
//! |---|---|---|
//! | gate_up | pair / k | shard T B + slot |
//! | gate_up, experts read x in different ways | slot | shard T B + slot |
//! | gate_up, matrices do | shard T B + slot | shard T B + slot |
//! | down | slot | pair |
//! | down, experts of a token added | slot | token |
//!
//! A slot without a pair has no row: nothing of it is read or written. One exception: blocks that add the experts of a token and guess
//! these (`skinny::early_weights`) read the row of a pair before they know whether its expert is here, and do not use it then. With a gate y has a row per slot, which
//! is 0 for a slot without a pair, so that all rows of y are defined for the kernel that quantises them. (Where blocks write what the second
//! product reads of such rows, slots of token blocks in use have one.)
//!
//! Without an order each pair is a token block with one slot, and both have one number. A block may multiply several of these pairs
//! ([`PairGroup`]): its tokens are numbered in the block, and the number of such a token is that of its pair.

use quantloom_dsl::experts::{ExpertProduct, OperandOf};

use super::order::{NONE, OrderWords};
use super::pair_group::PairGroup;
use super::stack::Stack;
use crate::ir::{Binary, Builder, Cache, Mask, Operand, Reg, Type, Width};

/// Where the rows of a block's tokens are.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenRows {
    /// The block's number along the tokens.
    block: Operand,
    /// Tokens of a block.
    tokens: u32,
    /// The distance of the numbers of consecutive blocks' first tokens: tokens, or slots. Without an order
    /// a block may have more tokens than its one slot.
    apart: u32,
    of: Rows,
}

#[derive(Clone, Copy, Debug)]
enum Rows {
    /// Token t has row t; there are M.
    Single { m: Operand },
    /// Tokens are slots; the shard's rows of y begin at `shard_rows`, if y has a row per slot.
    Routed { words: OrderWords, stack: Stack, shard_rows: Operand },
    /// Tokens are pairs of one expert that are not sorted; rows of y as before.
    Grouped { group: PairGroup, words: OrderWords, stack: Stack, shard_rows: Operand },
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
    /// The number of the block's first token, its last slot, and the pair of the first one.
    Routed { rows: TokenRows, first: Operand, last: Option<Operand>, pair: Operand },
}

impl Token {
    /// The token of a slot whose pair is known.
    pub(super) const fn of_pair(number: Operand, pair: Operand) -> Self {
        Self { number, pair: Some(pair) }
    }

    /// Its pair, or [`NONE`]; outside expert layers its number.
    pub(super) fn pair(self) -> Operand {
        self.pair.unwrap_or(self.number)
    }
}

impl TokenRows {
    /// The tokens of a product with a single matrix and M rows of x.
    pub(super) const fn single(block: Operand, tokens: u32, m: Operand) -> Self {
        Self { block, tokens, apart: tokens, of: Rows::Single { m } }
    }

    /// The one token `token` of a product with a row of x a token, for a block with so many tokens; `end` is the next one.
    pub(super) const fn only(token: Operand, tokens: u32, end: Operand) -> Self {
        Self { block: token, tokens, apart: 1, of: Rows::Single { m: end } }
    }

    /// The slots of a token block of an expert layer, for a block with so many tokens; the shard's rows of y
    /// begin at `shard_rows`.
    pub(super) const fn routed(
        (block, tokens): (Operand, u32),
        words: OrderWords,
        (stack, shard_rows): (Stack, Operand),
    ) -> Self {
        let apart = words.array.slots;
        Self { block, tokens, apart, of: Rows::Routed { words, stack, shard_rows } }
    }

    /// The pairs of a group of an expert layer without an order; the shard's rows of y begin at `shard_rows`.
    pub(super) const fn grouped(
        group: PairGroup,
        words: OrderWords,
        (stack, shard_rows): (Stack, Operand),
    ) -> Self {
        let of = Rows::Grouped { group, words, stack, shard_rows };
        Self { block: Operand::U32(0), tokens: group.slots, apart: group.slots, of }
    }

    /// Tokens of a block.
    pub(super) const fn count(&self) -> u32 {
        self.tokens
    }

    /// Whether the token's row of y is written where rows of y are those of slots: a slot without a pair has a row of zeros, and what is
    /// no slot of the block has none, nor has a token of a group that does not exist.
    pub(super) fn is_slot(&self, b: &mut Builder, token: Operand, exists: Operand) -> Operand {
        match self.of {
            Rows::Grouped { .. } => exists,
            _ if self.tokens == self.apart => true.into(),
            _ => b.less(token, self.apart),
        }
    }

    /// The number of the block's token.
    pub(super) fn number(&self, b: &mut Builder, token: Operand) -> Operand {
        b.mad(self.block, self.apart, token)
    }

    /// The token of a number. In an expert layer numbers are checked against the order only where
    /// `within` is true; elsewhere there is no token.
    pub(super) fn token(&self, b: &mut Builder, number: Operand, within: Operand) -> Token {
        let (words, stack) = match self.of {
            Rows::Single { .. } => return Token { number, pair: None },
            Rows::Grouped { group, .. } => {
                let pair = group.pair(b, number, within);
                return Token { number: pair, pair: Some(pair) };
            }
            Rows::Routed { words, stack, .. } => (words, stack),
        };
        if stack.direct {
            return Token { number, pair: Some(number) };
        }
        let from = words.pair(b, number);
        let mask = (within != Operand::Pred(true))
            .then_some(Mask { condition: within, fill: NONE.into() });
        let pair = b.load_as(Type::U32, from, Width::B32, mask, Cache::Default)[0];
        Token { number, pair: Some(pair.into()) }
    }

    /// Loads the pair of a slot, whose number is counted over all blocks, to a register: [`NONE`] where `within` is false. In an
    /// expert layer with an order.
    pub(super) fn load_pair(&self, b: &mut Builder, slot: Operand, (to, within): (Reg, Operand)) {
        let Rows::Routed { words, .. } = self.of else { return };
        let from = words.pair(b, slot);
        let mask = Some(Mask { condition: within, fill: NONE.into() });
        b.load_into(&[to], from, Width::B32, mask, Cache::Default);
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
            Rows::Routed { .. } | Rows::Grouped { .. } if !certain => b.less(in_block, self.tokens),
            _ => true.into(),
        };
        self.token(b, number, within)
    }

    /// Whether the token exists.
    pub(super) fn exists(&self, b: &mut Builder, token: Token) -> Operand {
        match (self.of, token.pair) {
            (Rows::Single { m }, _) => b.less(token.number, m),
            (Rows::Routed { stack, .. }, _) if stack.direct => b.equal(token.number, self.block),
            (Rows::Routed { .. } | Rows::Grouped { .. }, Some(pair)) => b.less(pair, NONE),
            (Rows::Routed { .. } | Rows::Grouped { .. }, None) => false.into(),
        }
    }

    /// The row of x of a token; row 0 if an expert layer's token does not exist and rows are those of
    /// tokens.
    pub(super) fn x_row(&self, b: &mut Builder, token: Token, exists: Operand) -> Operand {
        match (self.of, token.pair) {
            (Rows::Routed { stack, .. } | Rows::Grouped { stack, .. }, Some(pair))
                if !stack.reads_slots() =>
            {
                let row = b.div(pair, stack.top_k);
                b.select(exists, row, 0u32)
            }
            (
                Rows::Routed { stack, shard_rows, .. } | Rows::Grouped { stack, shard_rows, .. },
                _,
            ) if stack.operand == OperandOf::Matrix => b.add(shard_rows, token.number),
            _ => token.number,
        }
    }

    /// Multiplies results of a token by its router weight, if rows of y are weighted.
    pub(super) fn weighted(
        &self,
        b: &mut Builder,
        (token, exists): (Token, Operand),
        values: Vec<Operand>,
    ) -> Vec<Operand> {
        match self.weight(b, token.number, exists) {
            Some(weight) => values.into_iter().map(|value| b.mul_f32(value, weight)).collect(),
            None => values,
        }
    }

    /// The router weight of the slot of a number, 0 where it does not exist, if rows of y are weighted.
    pub(super) fn weight(
        &self,
        b: &mut Builder,
        number: Operand,
        exists: Operand,
    ) -> Option<Operand> {
        let words = match self.of {
            Rows::Routed { words, stack, .. } | Rows::Grouped { words, stack, .. }
                if stack.weighted =>
            {
                words
            }
            _ => return None,
        };
        let from = words.weight(b, number);
        let mask = (exists != Operand::Pred(true))
            .then_some(Mask { condition: exists, fill: 0.0f32.into() });
        Some(b.load_as(Type::F32, from, Width::B32, mask, Cache::Default)[0].into())
    }

    /// The row of y of a token that exists.
    pub(super) fn y_row(&self, b: &mut Builder, token: Token) -> Operand {
        match (self.of, token.pair) {
            (Rows::Routed { stack, .. } | Rows::Grouped { stack, .. }, Some(pair))
                if stack.product == ExpertProduct::Down =>
            {
                pair
            }
            (Rows::Routed { shard_rows, .. } | Rows::Grouped { shard_rows, .. }, _) => {
                b.add(shard_rows, token.number)
            }
            (Rows::Single { .. }, _) => token.number,
        }
    }

    /// Rows of x for lanes that ask for `tokens` tokens of the block, which may be more than it has.
    pub(super) fn readable(&self, b: &mut Builder, tokens: u32) -> ReadableRows {
        let m = match self.of {
            Rows::Single { m } => return ReadableRows::Single { last: b.sub(m, 1u32) },
            Rows::Routed { .. } | Rows::Grouped { .. } => b.mul(self.block, self.apart),
        };
        let Token { number, pair } = self.token(b, m, true.into());
        let last = (tokens > self.apart).then(|| b.add(m, self.apart - 1));
        let pair = pair.unwrap_or(m);
        ReadableRows::Routed { rows: *self, first: number, last, pair }
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
                let number = b.select(exists, token.number, first);
                let pair = token.pair.map(|own| b.select(exists, own, pair));
                rows.x_row(b, Token { number, pair }, true.into())
            }
        }
    }
}
