//! The sum of a token's experts in the epilogue: see `schedule::combined`.

use super::Epilogue;
use crate::ir::{Builder, Operand, SharedId};
use crate::schedule::combined::ExpertsOfToken;

impl Epilogue<'_> {
    /// The results of some rows of a token: the sum over its experts, and what shared experts give. The block's partial
    /// sums are those of one expert after those of another, as many of each.
    pub(super) fn combined(
        &self,
        b: &mut Builder,
        experts: &ExpertsOfToken,
        shared: SharedId,
        [token, row]: [Operand; 2],
    ) -> Vec<Operand> {
        let parts = self.parts / experts.choices();
        let mut sums = vec![Operand::F32(0.0); self.at_once as usize];
        for choice in 0..experts.choices() {
            let of_expert = parts * choice..parts * (choice + 1);
            let values = self.total(b, shared, [token, row], of_expert);
            let place = [b.add(token, choice * self.tokens), b.add(row, choice * self.rows)];
            let values = self.constants.finish(b, place, self.width(), &values);
            experts.add(b, choice, &mut sums, &values);
        }
        let row = b.mad(self.row_block.0, self.rows, row);
        experts.add_shared(b, (row, self.main.problem.n), &mut sums);
        sums
    }
}
