//! A campaign: draws schemes, checks them, and collects findings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use quantloom_dsl::layout::{GroupSize, Shape};
use quantloom_dsl::{Scheme, parse};

use crate::checks::{Case, Check, FailureKind, Fault, Outcome, Subject, caught_fault, plain_words};
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::schemes;
use crate::shrink::shrink;

/// What to draw, and how long.
#[derive(Clone, Debug)]
pub struct CampaignOptions {
    /// The seed of all draws.
    pub seed: u64,
    /// The first draw.
    pub first: u64,
    /// The most draws.
    pub count: u64,
    /// No draw starts after this time.
    pub time: Duration,
    /// The campaign ends after this many findings.
    pub findings: usize,
    /// How long one failure is shrunk.
    pub shrinking: Duration,
    /// The longest time of one draw: the campaign reports a draw that takes longer.
    pub draw: Duration,
    /// The checks.
    pub checks: Vec<Check>,
}

/// A failure, shrunk.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The draw.
    pub draw: u64,
    /// What failed.
    pub check: Check,
    /// Other checks of the same draw that failed alike.
    pub also: Vec<Check>,
    /// The shrunk case.
    pub case: Case,
    /// The failure of the shrunk case.
    pub fault: Fault,
}

/// The result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Texts drawn.
    pub draws: u64,
    /// Texts that the language rejected, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Legal schemes for which no shape was found.
    pub unshaped: u64,
    /// Counts of clauses in legal schemes.
    pub coverage: Coverage,
    /// Counts of passed, unsupported and failed cases of each check.
    pub checks: BTreeMap<Check, [u64; 3]>,
    /// Unsupported cases by check and reason.
    pub refused: BTreeMap<(Check, String), u64>,
    /// Findings: the first failure of each draw and kind; if messages are equal, only the first
    /// draw's.
    pub findings: Vec<Finding>,
    /// Number of failures with the message of a finding.
    pub repeated: BTreeMap<(&'static str, String), u64>,
    /// Draws without a text to check.
    pub broken: Vec<String>,
}

/// The text of a draw, and the random stream for the rest.
pub fn drawn_text(seed: u64, draw: u64) -> (String, Dice) {
    let mut dice = Dice::new(seed, draw);
    let text = schemes::text(&mut dice);
    (text, dice)
}

/// A shape that the scheme's layouts allow, M and a seed of data.
pub fn drawn_case(dice: &mut Dice, scheme: Scheme) -> Option<Case> {
    let columns = |dice: &mut Dice| {
        let group = scheme.scales.first().and_then(|scale| match scale.group.cols {
            GroupSize::Each(cols) if cols <= 640 => Some(u64::from(cols)),
            _ => None,
        });
        match (dice.below(8), group) {
            (0, Some(cols)) => cols * u64::from(dice.within(1, 4)),
            (1, Some(cols)) => cols * 2 + u64::from(dice.within(1, 9)),
            (2, _) => dice.of(&[1024, 640, 2592, 768]),
            (3, _) => u64::from(dice.within(1, 40)),
            (4, _) => u64::from(dice.within(40, 700)),
            _ => dice.of(&[256, 160, 321, 128, 512, 96, 37, 64]),
        }
    };
    let rows = |dice: &mut Dice| match dice.below(4) {
        0 => u64::from(dice.within(1, 70)),
        _ => dice.of(&[48, 33, 17, 5, 130, 64, 16, 8, 1]),
    };
    let tokens = match dice.below(5) {
        0 => vec![dice.of(&[1, 2, 4, 5, 6, 8, 16])],
        1 => vec![3, dice.of(&[12, 17, 33, 64, 70])],
        _ => vec![1, dice.of(&[3, 7, 11])],
    };
    let most = if dice.one_in(6) { 40_000 } else { 12_000 };
    for _ in 0..4 {
        let (n, k) = (rows(dice), columns(dice));
        let n = if n * k > most { (most / k).max(1) } else { n };
        let case = Case {
            scheme: scheme.clone(),
            shape: (n, k),
            tokens: tokens.clone(),
            seed: dice.bits() % 60,
        };
        let shape = case.shape();
        if stored_bits(&scheme, shape)
            .is_some_and(|bits| bits <= 64 * shape.elements().unwrap_or(0) + (1 << 18))
        {
            return Some(case);
        }
    }
    None
}

/// Bits of all stored tensors; `None` if one does not fit.
fn stored_bits(scheme: &Scheme, shape: Shape) -> Option<u64> {
    let bits = |store| scheme.bind(store, shape).ok().map(|bound| bound.bits());
    scheme.stores.iter().map(bits).sum()
}

/// What a campaign reports while it runs.
#[derive(Debug)]
pub enum Event<'e> {
    /// A failure, shrunk.
    Finding(&'e Finding),
    /// A draw that takes longer than [`CampaignOptions::draw`]. Its thread cannot be stopped: whoever hears
    /// this ends the program.
    Endless {
        /// The draw.
        draw: u64,
        /// What the other draws gave.
        report: &'e Report,
    },
}

/// Draws and checks until the time is up.
pub fn run(
    subject: &Subject,
    options: &CampaignOptions,
    progress: &(dyn Fn(Event<'_>) + Sync),
) -> Report {
    let began = Instant::now();
    // The draws that are being checked, and since when.
    let running: Mutex<BTreeMap<u64, Instant>> = Mutex::default();
    let next = AtomicU64::new(options.first);
    let full = AtomicBool::new(false);
    let report = Mutex::new(Report::default());
    let said = Said::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        while began.elapsed() < options.time && !full.load(Ordering::Relaxed) {
            let draw = next.fetch_add(1, Ordering::Relaxed);
            if draw - options.first >= options.count {
                return;
            }
            lock(&running).insert(draw, Instant::now());
            let one = caught_fault(|| one(subject, options, draw, &said)).unwrap_or_else(|fault| {
                let broken = vec![format!("draw {draw}: {}", fault.message)];
                Report { draws: 1, broken, ..Report::default() }
            });
            lock(&running).remove(&draw);
            let mut report = lock(&report);
            one.findings.iter().map(Event::Finding).for_each(progress);
            report.add(one);
            full.store(report.findings.len() >= options.findings, Ordering::Relaxed);
        }
    };
    let watch = || {
        let late =
            |(draw, since): (&u64, &Instant)| (since.elapsed() > options.draw).then_some(*draw);
        let draw = lock(&running).iter().find_map(late);
        draw.inspect(|draw| progress(Event::Endless { draw: *draw, report: &lock(&report) }));
        draw.is_some()
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut heard = false;
        while !workers.iter().all(ScopedJoinHandle::is_finished) {
            heard = heard || watch();
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.findings.sort_by_key(|finding| finding.draw);
    report
}

/// The messages of earlier failures; wrong results have no message and are all kept.
pub type Said = Mutex<BTreeSet<(&'static str, String)>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One draw.
fn one(subject: &Subject, options: &CampaignOptions, draw: u64, said: &Said) -> Report {
    let mut report = Report { draws: 1, ..Report::default() };
    let (text, mut dice) = drawn_text(options.seed, draw);
    let scheme = match parse(&text) {
        Ok(scheme) => scheme,
        Err(faults) => {
            let first = faults.faults().first().map_or("", |fault| &fault.message);
            report.rejected.insert(plain_words(first), 1);
            return report;
        }
    };
    report.coverage.note(&scheme);
    let Some(case) = drawn_case(&mut dice, scheme) else {
        report.unshaped = 1;
        return report;
    };
    report.check(subject, options, (draw, &case), said);
    report
}

impl Report {
    /// Runs the checks of a case and shrinks what fails.
    pub fn check(
        &mut self,
        subject: &Subject,
        options: &CampaignOptions,
        (draw, case): (u64, &Case),
        said: &Said,
    ) {
        let mut failed: Vec<(Check, Fault, Vec<Check>)> = Vec::new();
        for (check, outcome) in subject.run(case, &options.checks) {
            let counts = self.checks.entry(check.clone()).or_default();
            match outcome {
                Outcome::Passed => counts[0] += 1,
                Outcome::Refused(why) => {
                    counts[1] += 1;
                    *self.refused.entry((check, plain_words(&why))).or_default() += 1;
                }
                Outcome::Failed(fault) => {
                    counts[2] += 1;
                    let like = |(first, other, _): &&mut (Check, Fault, Vec<Check>)| {
                        other.like(&fault) && first.place() == check.place()
                    };
                    match failed.iter_mut().find(like) {
                        Some((_, _, also)) => also.push(check),
                        None => failed.push((check, fault, Vec::new())),
                    }
                }
            }
        }
        for (check, fault, also) in failed {
            let says = (check.place(), plain_words(&fault.message));
            if fault.kind != FailureKind::Wrong && !lock(said).insert(says.clone()) {
                *self.repeated.entry(says).or_default() += 1;
                continue;
            }
            let end = Instant::now() + options.shrinking;
            let (case, fault) = shrink(subject, &check, case, &fault, end);
            self.findings.push(Finding { draw, check, also, case, fault });
        }
    }

    fn add(&mut self, other: Self) {
        self.draws += other.draws;
        self.unshaped += other.unshaped;
        self.coverage.add(&other.coverage);
        for (reason, count) in other.rejected {
            *self.rejected.entry(reason).or_default() += count;
        }
        for (says, count) in other.repeated {
            *self.repeated.entry(says).or_default() += count;
        }
        self.broken.extend(other.broken);
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
        for (check, counts) in other.checks {
            let sums = self.checks.entry(check).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        self.findings.extend(other.findings);
    }

    /// Number of legal schemes.
    pub fn legal(&self) -> u64 {
        self.draws - self.rejected.values().sum::<u64>()
    }

    /// Number of checks that passed, and that failed.
    pub fn totals(&self) -> (u64, u64) {
        let sum = |at: usize| self.checks.values().map(|counts| counts[at]).sum();
        (sum(0), sum(2) + self.broken.len() as u64)
    }

    /// Tables of everything but the findings.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let legal = self.legal();
        let share = 100.0 * legal as f64 / self.draws.max(1) as f64;
        let _ = writeln!(text, "{} schemes drawn, {legal} legal ({share:.0}%)", self.draws);
        if self.unshaped > 0 {
            let _ = writeln!(text, "{} fit none of the drawn shapes", self.unshaped);
        }
        for (reason, count) in largest(&self.rejected, 8) {
            let _ = writeln!(text, "  {count:6} rejected: {reason}");
        }
        text.push_str(&self.coverage.text());
        let _ = writeln!(text, "{:16} {:>8} {:>8} {:>8}", "check", "passed", "refused", "failed");
        for (check, [passed, refused, failed]) in &self.checks {
            let _ = writeln!(text, "{:16} {passed:8} {refused:8} {failed:8}", check.to_string());
            let reasons = self.refused.iter().filter(|((of, _), _)| of == check);
            let reasons = reasons.map(|((_, reason), count)| (reason.clone(), *count)).collect();
            for (reason, count) in largest(&reasons, 10) {
                let _ = writeln!(text, "  {count:6} refused: {reason}");
            }
        }
        for ((place, says), count) in &self.repeated {
            let _ = writeln!(text, "{count} more of {place}: {says}");
        }
        text
    }
}

/// The most frequent ones.
fn largest(counts: &BTreeMap<String, u64>, most: usize) -> Vec<(&str, u64)> {
    let mut all: Vec<(&str, u64)> = counts.iter().map(|(text, n)| (text.as_str(), *n)).collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all.truncate(most);
    all
}
