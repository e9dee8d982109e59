//! Lines that say why a kernel was chosen and others were not.

use std::fmt;

/// A line for each reason, after the names of all that it applies to.
pub(crate) fn together<N: fmt::Display>(reasons: impl Iterator<Item = (N, String)>) -> Vec<String> {
    let mut lines: Vec<(String, String)> = Vec::new();
    for (name, why) in reasons {
        match lines.iter_mut().find(|(_, known)| *known == why) {
            Some((names, _)) => *names = format!("{names}, {name}"),
            None => lines.push((name.to_string(), why)),
        }
    }
    lines.into_iter().map(|(names, why)| format!("{names}: {why}")).collect()
}
