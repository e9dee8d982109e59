//! How experts read x or h: static scales and zero points, the prescale of columns, the order of columns; and
//! which matrices of a product read alike.

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::OperandOf;
use quantloom_dsl::reference::StaticInput;

use crate::experts::{InputScales, take_largest};
use crate::source::BufferRole;

/// The static parameters of the inputs of a product's matrices, `[expert][shard]`.
pub(super) struct Inputs {
    given: Vec<StaticInput>,
    shards: usize,
}

impl Inputs {
    /// Of those of all matrices, `[expert][shard]`.
    pub(super) fn new(
        scheme: &Scheme,
        rule: InputScales,
        mut given: Vec<StaticInput>,
        shards: usize,
    ) -> Self {
        if let (InputScales::Largest, Some(quantiser)) = (rule, scheme.quantiser()) {
            take_largest(quantiser, &mut given.iter_mut().collect::<Vec<_>>());
        }
        Self { given, shards }
    }

    /// Which matrices have the same ones.
    pub(super) fn shared_by(&self) -> OperandOf {
        shared_by(&self.given, self.shards)
    }

    /// The buffers that kernels read, f32, for operands of this kind.
    pub(super) fn buffers(&self, of: OperandOf) -> Vec<(BufferRole, Vec<u8>)> {
        let sets = one_each(&self.given, self.shards, of);
        let Some(first) = sets.first() else { return Vec::new() };
        let floats = |values: &dyn Fn(&StaticInput) -> Vec<f64>| -> Vec<u8> {
            let all = sets.iter().flat_map(|set| values(set));
            all.flat_map(|value| (value as f32).to_le_bytes()).collect()
        };
        let levels = (0u8..).zip(0..first.scales.len());
        let scales = levels.map(|(level, at)| {
            let values = floats(&|set| set.scales.get(at).cloned().unwrap_or_default());
            (BufferRole::InputScale(level), values)
        });
        let zeros = (BufferRole::InputZero, floats(&|set| set.zeros.clone()));
        let prescale = (BufferRole::Prescale, floats(&|set| set.prescale.clone()));
        let all = scales.chain([zeros, prescale]);
        all.filter(|(_, bytes)| !bytes.is_empty()).collect()
    }
}

/// Which of the matrices `[expert][shard]` have the same parameters; one value stands for all.
pub(super) fn shared_by<T: PartialEq>(of_matrices: &[T], shards: usize) -> OperandOf {
    let same = |all: &[T]| all.iter().all(|one| Some(one) == all.first());
    if same(of_matrices) {
        OperandOf::Row
    } else if of_matrices.chunks(shards.max(1)).all(same) {
        OperandOf::Expert
    } else {
        OperandOf::Matrix
    }
}

/// The parameters of each operand of a row: of all matrices one, one an expert, or one a matrix.
pub(super) fn one_each<T>(of_matrices: &[T], shards: usize, of: OperandOf) -> Vec<&T> {
    let step = match of {
        OperandOf::Row => of_matrices.len(),
        OperandOf::Expert => shards,
        OperandOf::Matrix => 1,
    };
    of_matrices.iter().step_by(step.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_that_read_alike_are_found() {
        for (matrices, of, each) in [
            (&[3, 3, 3, 3][..], OperandOf::Row, &[3][..]),
            (&[3], OperandOf::Row, &[3]),
            (&[3, 3, 4, 4], OperandOf::Expert, &[3, 4]),
            (&[3, 3, 3, 4], OperandOf::Matrix, &[3, 3, 3, 4]),
            (&[3, 4, 3, 4], OperandOf::Matrix, &[3, 4, 3, 4]),
        ] {
            assert_eq!(shared_by(matrices, 2), of, "{matrices:?}");
            let found: Vec<i32> = one_each(matrices, 2, of).into_iter().copied().collect();
            assert_eq!(found, each, "{matrices:?}");
        }
        // With one shard an expert is a matrix.
        assert_eq!(shared_by(&[1, 2], 1), OperandOf::Expert);
    }
}
