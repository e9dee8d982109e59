//! Which queues use memory, so that a use on another queue can be put after them.
//!
//! The rule: reads may run side by side, a write runs alone. [`Uses::before`] says whom a use has to
//! wait for, [`Uses::mark`] that it is queued. What `Q` is and how it waits is the backend's.

use crate::source::Access;

/// The queues whose work on some memory may not be done.
#[derive(Debug)]
pub(crate) struct Uses<Q> {
    writer: Option<Q>,
    /// Those that have read since; each came after the writer.
    readers: Vec<Q>,
}

impl<Q> Default for Uses<Q> {
    fn default() -> Self {
        Self { writer: None, readers: Vec::new() }
    }
}

impl<Q: Clone + PartialEq> Uses<Q> {
    /// The queues, others than `queue`, that a use there comes after. Allocates nothing if there are none.
    pub(crate) fn before(&self, queue: &Q, access: Access) -> Vec<Q> {
        let other = |of: &&Q| *of != queue;
        match access {
            // A queue that has read came after the writer already.
            Access::Read if self.readers.contains(queue) => Vec::new(),
            Access::Read => self.writer.iter().filter(other).cloned().collect(),
            Access::Write | Access::ReadWrite if self.readers.is_empty() => {
                self.writer.iter().filter(other).cloned().collect()
            }
            Access::Write | Access::ReadWrite => {
                self.readers.iter().filter(other).cloned().collect()
            }
        }
    }

    /// Notes a use that is queued.
    pub(crate) fn mark(&mut self, queue: &Q, access: Access) {
        match access {
            Access::Read if self.readers.contains(queue) => {}
            Access::Read => self.readers.push(queue.clone()),
            Access::Write | Access::ReadWrite => {
                self.writer = Some(queue.clone());
                self.readers.clear();
            }
        }
    }

    /// Notes that the host has waited for a use on a queue, which came after all in [`Uses::before`].
    pub(crate) fn waited(&mut self, queue: &Q, access: Access) {
        self.writer = None;
        match access {
            Access::Read => self.readers.retain(|reader| reader != queue),
            Access::Write | Access::ReadWrite => self.readers.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Read, ReadWrite, Write};

    /// Uses by queue and access, each with the queues that it has to come after.
    fn follows(steps: &[(char, Access, &[char])]) {
        let mut uses = Uses::default();
        for (at, (queue, access, expected)) in steps.iter().enumerate() {
            assert_eq!(uses.before(queue, *access), *expected, "step {at}");
            uses.mark(queue, *access);
        }
    }

    #[test]
    fn one_queue_never_waits() {
        follows(&[('a', Write, &[]), ('a', Read, &[]), ('a', ReadWrite, &[]), ('a', Read, &[])]);
    }

    #[test]
    fn reads_wait_for_the_writer_and_not_for_one_another() {
        follows(&[
            ('a', Write, &[]),
            ('b', Read, &['a']),
            ('c', Read, &['a']),
            ('b', Read, &[]),
            ('a', Read, &[]),
        ]);
    }

    #[test]
    fn a_write_waits_for_all_that_read_since_the_last_one() {
        follows(&[
            ('a', Write, &[]),
            ('b', Read, &['a']),
            ('a', Read, &[]),
            ('c', Write, &['b', 'a']),
            ('a', Write, &['c']),
        ]);
    }

    #[test]
    fn what_the_host_has_waited_for_is_over() {
        let mut uses = Uses::default();
        uses.mark(&'a', Write);
        uses.mark(&'b', Read);
        uses.waited(&'c', Read);
        // b reads on, whoever else has waited.
        assert_eq!(uses.before(&'a', Write), ['b']);
        assert!(uses.before(&'a', Read).is_empty());
        uses.waited(&'a', Write);
        assert!(uses.before(&'c', Write).is_empty());
    }
}
