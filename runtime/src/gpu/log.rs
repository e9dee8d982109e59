//! What a driver's compiler printed, in an error.

/// The lines that say something, each on its own and indented.
pub(crate) fn log_lines(log: &str) -> String {
    let lines = log.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| format!("\n  {}", line.trim_end())).collect()
}
