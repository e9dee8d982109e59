//! Work on the threads of the pool: units that are claimed one after the other, so that a slow thread
//! does not delay the others.
//!
//! A caller whose pool works for another caller does one unit after another by itself, and shares out the rest once the
//! threads are free. Never does a caller run other tasks of the pool while it waits, which could need what the
//! caller holds, such as a lock or the workspace of its thread.
//!
//! In: a number of units, scratch memory, a function. Out: the function has run once for each unit,
//! each time with scratch memory that no other thread has.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::team;
use crate::float_mode::standard;

/// A line of scratch memory.
pub(super) type Line = [u8; 64];

/// Calls `work` for each of `units` units. Each thread has `lines` lines of `scratch`; as many threads
/// work as scratch memory, units and the pool allow. A unit that is alone runs on the caller's thread.
pub(super) fn share(
    units: usize,
    scratch: &mut [Line],
    lines: usize,
    work: impl Fn(usize, &mut [Line]) + Sync,
) {
    let next = AtomicUsize::new(0);
    let task = |scratch: &mut [Line]| {
        while let Some(unit) = claim(&next, 1, units) {
            work(unit, scratch);
        }
    };
    let lines = lines.max(1);
    // Scratch memory that is larger than necessary does not create more tasks.
    let threads = rayon::current_num_threads().min(units).min(scratch.len() / lines);
    if threads <= 1 {
        standard(|| task(scratch));
        return;
    }
    let all = lines * threads;
    let (scratch, _) = scratch.split_at_mut(all);
    let parts = Parts::new(scratch);
    let member = |number: usize| {
        // SAFETY: each thread of a region has a number of its own, below `threads`.
        let scratch = unsafe { parts.part(number * lines, (number + 1) * lines) };
        standard(|| task(scratch));
    };
    while next.load(Ordering::Relaxed) < units && !team::region(threads, &member) {
        let Some(unit) = claim(&next, 1, units) else { return };
        // SAFETY: no region of this call is open, so that no other thread has a part.
        let scratch = unsafe { parts.part(0, lines) };
        standard(|| work(unit, scratch));
    }
}

/// Calls `work` for each item on up to `threads` threads, which take items one after the other.
pub(super) fn each<T>(
    threads: usize,
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) + Sync,
) {
    let items = Mutex::new(items);
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let task = |_: usize| {
        standard(|| {
            while let Some(item) = next() {
                work(item);
            }
        });
    };
    while !team::region(threads, &task) {
        let Some(item) = next() else { return };
        standard(|| work(item));
    }
}

/// [`share`] in which each unit owns a part of a memory: unit u has `bounds[u]..bounds[u + 1]`.
///
/// # Panics
/// If the bounds fall, or go beyond the memory.
pub(super) fn share_parts<T: Send>(
    memory: &mut [T],
    bounds: &[u32],
    scratch: &mut [Line],
    lines: usize,
    work: impl Fn(usize, &mut [T], &mut [Line]) + Sync,
) {
    let Some((last, firsts)) = bounds.split_last() else { return };
    assert!(bounds.is_sorted() && *last as usize <= memory.len(), "parts of a memory are apart");
    let parts = Parts::new(memory);
    share(firsts.len(), scratch, lines, |unit, scratch| {
        // SAFETY: `share` gives each unit once, and bounds rise and end within the memory, so that
        // the range is inside of it and no other unit's range meets it.
        let part = unsafe { parts.part(bounds[unit] as usize, bounds[unit + 1] as usize) };
        work(unit, part, scratch);
    });
}

/// A memory of which each thread takes other parts.
struct Parts<'a, T> {
    memory: *mut T,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer is that of an exclusive borrow, which this value holds; `part` is called with
// ranges that do not meet, so that threads have elements of their own, which are `Send`.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    fn new(memory: &'a mut [T]) -> Self {
        Self { memory: memory.as_mut_ptr(), borrow: PhantomData }
    }

    /// # Safety
    /// The range is within the memory, and meets no other range that is taken.
    #[expect(clippy::mut_from_ref, reason = "ranges that are taken do not meet")]
    unsafe fn part(&self, start: usize, end: usize) -> &mut [T] {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.memory.add(start), end - start) }
    }
}

/// The unit that a thread is likely to claim after this one, if all threads of the pool take turns. It says what to prefetch, no
/// more.
pub(super) fn likely_next(unit: usize, units: usize) -> Option<usize> {
    let next = unit + rayon::current_num_threads();
    (next < units).then_some(next)
}

/// The first of the next `batch` units.
pub(super) fn claim(next: &AtomicUsize, batch: usize, units: usize) -> Option<usize> {
    let first = next.fetch_add(batch, Ordering::Relaxed);
    (first < units).then_some(first)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn every_unit_runs_once_with_its_own_part() {
        let mut scratch = vec![[0u8; 64]; 8];
        for units in [0, 1, 2, 7, 100] {
            let bounds: Vec<u32> = (0..=units).map(|unit| unit * (unit + 1) / 2).collect();
            let mut memory = vec![u32::MAX; (units * (units + 1) / 2) as usize + 3];
            share_parts(&mut memory, &bounds, &mut scratch, 2, |unit, part, scratch| {
                assert!(part.len() == unit + 1 && scratch.len() >= 2, "{unit}");
                part.fill(unit as u32);
            });
            let expected = (0..units).flat_map(|unit| vec![unit; unit as usize + 1]);
            assert!(memory.iter().copied().eq(expected.chain([u32::MAX; 3])), "{units} units");
        }
    }

    /// Tasks of a pool that call at once, each of which holds what is its thread's: no other task runs on a thread
    /// before the call of its task has returned.
    #[test]
    fn callers_run_no_other_tasks() {
        thread_local! {
            static HELD: Cell<bool> = const { Cell::new(false) };
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        let done = AtomicUsize::new(0);
        let unit = || {
            (0..3000).map(std::hint::black_box).for_each(|_| ());
            done.fetch_add(1, Ordering::Relaxed);
        };
        let task = |at: usize| {
            assert!(!HELD.replace(true), "another task of the pool runs inside of a call");
            if at.is_multiple_of(2) {
                share(16, &mut [[0; 64]; 4], 1, |_, _| unit());
            } else {
                each(4, 0..16, |_| unit());
            }
            HELD.set(false);
        };
        pool.scope(|scope| (0..2000).for_each(|at| scope.spawn(move |_| task(at))));
        assert_eq!(done.into_inner(), 2000 * 16);
    }

    #[test]
    #[should_panic(expected = "apart")]
    fn parts_that_meet_are_refused() {
        let (mut memory, mut scratch) = ([0u8; 4], [[0u8; 64]; 1]);
        share_parts(&mut memory, &[0, 3, 2], &mut scratch, 1, |_, _, _| {});
    }
}
