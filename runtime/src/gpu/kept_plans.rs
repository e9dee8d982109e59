//! Plans that were made before, so that a repeated call plans nothing.
//!
//! In: what decides a plan. Out: the plan, made once. No lock is held while a plan is made, which may compile and load kernels.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use crate::float_mode::standard;

/// Plans that are kept, at most: more than engines have numbers of tokens that they capture or repeat, and few enough that
/// no prompt length stays for ever.
const MOST: usize = 512;

/// Plans by what decides them.
pub(super) struct KeptPlans<K, P>(Mutex<HashMap<K, Arc<P>>>);

impl<K, P> Default for KeptPlans<K, P> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, P> KeptPlans<K, P> {
    /// The plan of a key, which `plan` makes if it is not there. Of two threads that make it at once both get the first one.
    pub(super) fn get_or_plan<E>(
        &self,
        key: K,
        plan: impl FnOnce() -> Result<P, E>,
    ) -> Result<Arc<P>, E> {
        let plans = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans().get(&key) {
            return Ok(plan.clone());
        }
        // A kernel's source is written with this thread's arithmetic.
        let plan = Arc::new(standard(plan)?);
        let mut plans = plans();
        if plans.len() >= MOST {
            plans.clear();
        }
        Ok(plans.entry(key).or_insert(plan).clone())
    }

    /// Forgets all plans, such as those of kernels that are no longer chosen.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
