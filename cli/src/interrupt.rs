//! What ends the command from outside (Ctrl-C, TERM, HUP): files that are being written are removed
//! first.

use anyhow::{Context as _, Result};

/// Waits for such a signal on a thread of its own.
///
/// # Errors
/// The thread cannot be started.
#[cfg(unix)]
pub(crate) fn clean_up_when_ended() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    // Who starts a program with HUP ignored (`nohup`) wants it to go on.
    let ignored = ignored_signals();
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter();
    let wanted = wanted.filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals =
        signal_hook::iterator::Signals::new(wanted).context("cannot wait for signals")?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            quantloom::runtime::atomic_file::discard_pending();
            // The status that a program has which the signal ended.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    let waiting = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    waiting.map(|_| ()).context("cannot start a thread")
}

/// Signals that this process was started to ignore, one bit each; none where nothing tells.
#[cfg(unix)]
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Nothing: what is interrupted leaves what it was writing.
#[cfg(not(unix))]
pub(crate) fn clean_up_when_ended() -> Result<()> {
    Ok(())
}
