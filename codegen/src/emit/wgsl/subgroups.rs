//! The number of a thread in its block; in a kernel with shuffles, in the order of the subgroups.

use crate::ir::{Kernel, Op, each_op};

/// The entry's arguments for the thread's number, and the lines that compute `thread` from them.
pub(super) fn thread(kernel: &Kernel) -> (&'static [&'static str], &'static [&'static str]) {
    let mut shuffles = false;
    each_op(&kernel.body, &mut |op| shuffles |= matches!(op, Op::Shuffle { .. }));
    match shuffles {
        false => (&["@builtin(local_invocation_index) thread: u32"], &[]),
        true => (
            &[
                "@builtin(subgroup_id) subgroup: u32",
                "@builtin(subgroup_size) subgroup_size: u32",
                "@builtin(subgroup_invocation_id) of_subgroup: u32",
            ],
            &["let thread = subgroup * subgroup_size + of_subgroup;"],
        ),
    }
}
