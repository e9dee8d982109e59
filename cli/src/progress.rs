//! A progress bar that appears once work has taken a second, and ticks by itself from then on.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) struct Progress {
    bar: ProgressBar,
    /// Dropped to end the ticking thread.
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

impl Progress {
    /// Work of `length` units; 0 if it cannot be told beforehand.
    pub(crate) fn new(what: &'static str, length: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden());
        let template = if length == 0 {
            "{msg} {spinner} {elapsed}"
        } else {
            "{msg} [{bar:40}] {percent:>3}% {elapsed} elapsed, {eta} left"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        let (stop, stopped) = channel::<()>();
        let shown = bar.clone();
        // Without a thread to spare there is no bar.
        let ticker = std::thread::Builder::new().spawn(move || {
            let mut wait = Duration::from_secs(1);
            while stopped.recv_timeout(wait) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                if shown.is_hidden() {
                    shown.set_draw_target(ProgressDrawTarget::stderr());
                }
                shown.tick();
                wait = Duration::from_millis(200);
            }
        });
        Self { bar, stop: Some(stop), ticker: ticker.ok() }
    }

    pub(crate) fn advance(&self, amount: u64) {
        self.bar.inc(amount);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(ticker) = self.ticker.take() {
            let _ = ticker.join();
        }
        self.bar.finish_and_clear();
    }
}
