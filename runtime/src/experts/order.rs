//! The pairs of a call in the order of experts.
//!
//! In: ids [M, k]. Out: slots, which are pairs sorted by the place of their expert, those of one expert
//! in the order of pairs (a stable counting sort). Pairs without an expert that is here have no slot.

use super::error::ExpertError;
use super::options::ExpertMap;

/// Sorts the pairs of `ids` [M, k] by expert and returns the number of slots R'. Slot `s` is pair
/// `pairs[s]`; the slots of the expert at place `e` are `starts[e]..starts[e + 1]`. `pairs` has room
/// for M k numbers, `starts` for L + 1. An id below 0 has no slot, nor has an expert that the map has
/// elsewhere; an id that is twice in a token has two slots.
///
/// # Errors
/// [`ExpertError::Expert`] for an id of E or more.
pub fn order(
    ids: &[i32],
    top_k: usize,
    experts: u32,
    map: Option<&ExpertMap>,
    starts: &mut [u32],
    pairs: &mut [u32],
) -> Result<usize, ExpertError> {
    let wrong = |id: &i32| usize::try_from(*id).is_ok_and(|id| id >= experts as usize);
    if let Some(at) = ids.iter().position(wrong) {
        let (token, choice) = (at / top_k, at % top_k);
        return Err(ExpertError::Expert { token, choice, id: ids[at], experts });
    }
    starts.fill(0);
    let places = || ids.iter().map(|id| place(*id, map));
    for place in places().flatten() {
        starts[place + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    // Each start goes to the end of its expert, which is the start of the next one.
    for (pair, place) in places().enumerate() {
        if let Some(place) = place {
            pairs[starts[place] as usize] = pair as u32;
            starts[place] += 1;
        }
    }
    starts.rotate_right(1);
    if let Some(first) = starts.first_mut() {
        *first = 0;
    }
    Ok(starts.last().map_or(0, |slots| *slots as usize))
}

/// The place of an expert; `None` if there is no expert, or the expert is elsewhere.
pub fn place(id: i32, map: Option<&ExpertMap>) -> Option<usize> {
    let id = usize::try_from(id).ok()?;
    match map {
        None => Some(id),
        Some(map) => map.places().get(id).and_then(|place| usize::try_from(*place).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(
        ids: &[i32],
        top_k: usize,
        experts: u32,
        map: Option<&ExpertMap>,
    ) -> Result<(Vec<u32>, Vec<u32>), ExpertError> {
        let local = map.map_or(experts as usize, ExpertMap::local);
        // What was there before does not matter.
        let (mut starts, mut pairs) = (vec![77; local + 1], vec![u32::MAX; ids.len()]);
        let slots = order(ids, top_k, experts, map, &mut starts, &mut pairs)?;
        pairs.truncate(slots);
        Ok((starts, pairs))
    }

    /// Sorted by a stable sort of the standard library.
    #[test]
    fn slots_are_stable_and_every_pair_that_is_here_has_one() {
        let mut state = 5u64;
        let mut below = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            (state >> 33) % end
        };
        for round in 0..2000 {
            let experts = 1 + below(40) as usize;
            let top_k = 1 + below(8) as usize;
            let tokens = below(40) as usize;
            let map = (round % 3 == 0).then(|| {
                let local = 1 + below(experts as u64) as usize;
                let place = |_| below(local as u64 + 3) as i32 - 3;
                ExpertMap::new((0..experts).map(place).collect(), local).unwrap()
            });
            // A few experts take most pairs in some rounds; some choices are none.
            let most = if round % 5 == 0 { 2.min(experts) } else { experts };
            let ids: Vec<i32> =
                (0..tokens * top_k).map(|_| below(most as u64 + 1) as i32 - 1).collect();
            let mut expected: Vec<(usize, u32)> = (0u32..)
                .zip(&ids)
                .filter_map(|(pair, id)| Some((place(*id, map.as_ref())?, pair)))
                .collect();
            expected.sort_by_key(|(place, _)| *place);
            let (starts, pairs) = sorted(&ids, top_k, experts as u32, map.as_ref()).unwrap();
            assert_eq!(pairs, expected.iter().map(|(_, pair)| *pair).collect::<Vec<_>>());
            assert_eq!(starts[0], 0);
            for at in 0..starts.len() - 1 {
                for slot in starts[at]..starts[at + 1] {
                    assert_eq!(expected[slot as usize].0, at, "slot {slot}");
                }
            }
            assert_eq!(starts.last().map(|end| *end as usize), Some(expected.len()));
        }
    }

    #[test]
    fn ids_beyond_the_experts_are_refused_with_their_place() {
        let error = sorted(&[0, 3, -1, 4], 2, 4, None).unwrap_err();
        assert_eq!(error.to_string(), "token 1, choice 1: there is no expert 4 among 4");
        // Below 0 is not an expert, and never one from the end.
        let (starts, pairs) = sorted(&[-1, i32::MIN, 3, 3], 2, 4, None).unwrap();
        assert_eq!((starts, pairs), (vec![0, 0, 0, 0, 2], vec![2, 3]));
    }
}
