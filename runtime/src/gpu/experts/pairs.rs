//! When pairs are not sorted by expert: what a call's pairs are expected to share.

use quantloom_dsl::experts::experts_met;

/// The most tokens of whose pairs each has blocks of its own.
const MOST_APART: f64 = 8.0;
/// Pairs over the experts that a call is expected to meet, up to which each pair has blocks of its own: each reads its expert's
/// weights, which sorted ones of one expert share. Of 128 experts and 8 a token 8 tokens have 1.24 (0.96 of the time of
/// sorted pairs on an H200), of 8 and 2 two tokens 1.14 (0.81), three 1.30 (0.90) and four 1.46 (0.99 to 1.10):
/// docs/performance/experts.md. Other GPUs were not measured.
const MOST_PAIRS_APART: f64 = 1.4;
/// The most pairs of which those of an expert find one another, and how many of them an expert that is met has at most, on average: of
/// 128 experts 128 pairs took 0.94 to 0.98 of the time of sorted ones on an H200 and 256 pairs 1.02 to 1.10, of 8 experts 16 pairs, 2.2
/// an expert, 0.97 (docs/performance/experts.md).
const MOST_GROUPED: f64 = 128.0;
const MOST_GROUPED_OF_EXPERT: f64 = 2.25;
/// The most bytes of weights that a second product which adds a token's experts may read again, since each token reads its own: on an H200
/// with 14 to 43 MB it took less time than a kernel for the sum, with 54 to 78 MB as much, with 119 MB and more 1.02 to 1.2 times as much
/// (docs/performance/experts.md).
const MOST_REPEATED_BYTES: f64 = 75e6;

/// The pairs of a call of M tokens of k experts each, which may meet any expert alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs {
    tokens: f64,
    all: f64,
    /// The experts that they are expected to meet.
    met: f64,
}

impl Pairs {
    pub(super) fn new(experts: u64, (top_k, tokens): (u64, u64)) -> Self {
        let (experts, top_k, tokens) = (experts.max(1) as f64, top_k as f64, tokens as f64);
        Self { tokens, all: top_k * tokens, met: experts_met(experts, top_k, tokens) }
    }

    /// Whether they hardly meet an expert twice, so that each may have blocks of its own.
    pub(super) fn rarely_share_experts(self) -> bool {
        self.tokens <= MOST_APART && self.all <= MOST_PAIRS_APART * self.met
    }

    /// Whether blocks that find the pairs of an expert by themselves take less time than an order.
    pub(super) fn may_be_grouped(self) -> bool {
        self.all <= MOST_GROUPED && self.all <= MOST_GROUPED_OF_EXPERT * self.met
    }

    /// Whether a second product with matrices of so many bytes takes less time if it adds the experts of each token, and reads
    /// again what tokens share, than with a kernel for the sum.
    pub(super) fn may_be_added_by_token(self, bytes_of_matrix: u64) -> bool {
        (self.all - self.met) * bytes_of_matrix as f64 <= MOST_REPEATED_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::Pairs;

    /// By uniform routing 8 tokens of top 8 meet 51.6 of 128 experts, 6 of top 8 35.3 of 64.
    #[test]
    fn few_tokens_rarely_share_experts() {
        let few = [(128, (8, 1)), (128, (8, 8)), (8, (2, 3)), (64, (8, 6)), (1, (1, 1))];
        let many = [(128, (8, 9)), (384, (8, 9)), (8, (2, 4)), (64, (8, 7)), (1, (1, 2))];
        let rarely = |(experts, of)| Pairs::new(experts, of).rarely_share_experts();
        assert!(few.into_iter().all(rarely));
        assert!(!many.into_iter().any(rarely));
    }

    /// 16 tokens of top 8 have 128 pairs, 1.6 for each of 128 experts that is met; 8 of top 2 have 2.2 of 8 experts, 9 tokens 2.4.
    #[test]
    fn pairs_are_grouped_where_there_are_few() {
        let few = [(128, (8, 2)), (128, (8, 16)), (128, (4, 32)), (8, (2, 8))];
        let many = [(128, (8, 17)), (384, (8, 17)), (128, (4, 33)), (8, (2, 9)), (8, (8, 3))];
        let grouped = |(experts, of)| Pairs::new(experts, of).may_be_grouped();
        assert!(few.into_iter().all(grouped));
        assert!(!many.into_iter().any(grouped));
    }

    /// 16 tokens of top 8 meet 82.4 of 128 experts, so that 45.6 pairs read a matrix again; 8 of top 2 7.2 of 8, so 8.8 pairs do.
    #[test]
    fn large_matrices_are_not_read_again() {
        let added = |experts, of, bytes| Pairs::new(experts, of).may_be_added_by_token(bytes);
        assert!(added(128, (8, 16), 1_572_864) && !added(128, (8, 16), 1_700_000));
        assert!(added(8, (2, 3), 31_200_000) && !added(8, (2, 8), 31_200_000));
        assert!(added(8, (2, 1), u64::MAX / 2));
    }
}
