//! `nearfar bisect`: the commit of a kernel's repository with which a number of a command's answer changes.
//!
//! ```text
//!  good, bad ─► change, middle ─► commit that git proposes ─► kernel ─► guests in turns with the good one ─► good, bad, skip ─┐
//!                                   ▲                                                                                        │
//!                                   └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use nearfar_compare::answers::{CommandRun, CommandSide, MOST_ROUNDS, ValueSelection};
use nearfar_compare::bisection::{Judgement, Middle};
use nearfar_experiment::Cell;
use nearfar_lab::cache::Cache;
use nearfar_lab::delay::TimeSpec;
use nearfar_lab::guest::PreparedGuest;
use nearfar_lab::kernels::bisection::{Bisection, Commit, Mark, Next};
use nearfar_lab::kernels::build::{GitSource, PREFIX};
use nearfar_lab::request::GuestRequest;
use nearfar_lab::{Arch, LabError};
use nearfar_report::bisect::{BisectAnswer, BisectStep, Conclusion};
use nearfar_runs::{Detail, Sample};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ab::{Turns, Until, prepared, runs_of_sides};
use crate::args::{Colour, FormatArgs};
use crate::failure::{Failure, Outcome, input};
use crate::recorded::RecordArgs;
use crate::verb::lab::build_kernel;
use crate::verb::lab::guest::{GuestArgs, failure};
use crate::{output, signals};

/// Find the kernel commit with which a command's number changes
#[derive(Args)]
#[command(
    after_long_help = "Each commit's kernel is built (nearfar lab kernels get git:REV) and runs in guests, in turns with the good one's, until the \
                       interval of the change is on one side of the middle of the whole change. All answers together are wrong with \
                       at most 5 %. A commit that does not build or boot, or is not clear in the end, is skipped.\n\nExamples:\n  \
                       nearfar bisect --good v6.11 --bad v6.12 --tree linux --value ops_per_s -- ./job\n  \
                       nearfar bisect --resume --good v6.11 --bad v6.12 --tree linux --value ops_per_s -- ./job"
)]
pub struct Bisect {
    /// A revision without the change
    #[arg(long, value_name = "REV")]
    good: String,
    /// A revision with it
    #[arg(long, value_name = "REV")]
    bad: String,
    /// The repository
    #[arg(long, value_name = "DIR", default_value = ".")]
    tree: PathBuf,
    /// A file with further options of the kernels' configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The number of the command's JSON answer that changes [default: the run time]
    #[arg(long, value_name = "PATH")]
    value: Option<String>,
    /// Runs of each kernel at a step, at the most
    #[arg(long, value_name = "N", default_value_t = MOST_ROUNDS, value_parser = clap::value_parser!(u32).range(10..=1000))]
    runs: u32,
    #[command(flatten)]
    guest: GuestArgs,
    /// Go on with an interrupted bisection of the same revisions and command
    #[arg(long, conflicts_with = "no_store")]
    resume: bool,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Why a step has no judgement.
enum NoJudgement {
    /// For a commit that is tested, to be skipped.
    Skip(String),
    Failed(Failure),
}

impl From<Failure> for NoJudgement {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Bisect {
    /// Builds and measures until the commit is found.
    pub fn run(self, colour: Colour) -> Outcome {
        if self.guest.has_kernel() {
            return Err(input!(
                "--kernel: the kernels are those of --good, --bad and between"
            ));
        }
        // Before a kernel is built.
        let guest = self.guest.request(TimeSpec::Auto)?;
        guest.check_results().map_err(failure)?;
        GuestArgs::check_command(&self.command)?;
        let arch = guest.architecture().map_err(failure)?;
        if let Some(config) = &self.config {
            let opened = fs::File::open(config);
            opened.map_err(|error| input!("{}: {error}", config.display()))?;
        }
        let cancel = signals::cancel_flag();
        let cache = Cache::of_user().map_err(failure)?;
        let source = |option: &str, revision: &str| {
            let source = GitSource::of(&format!("{PREFIX}{revision}"), &self.tree);
            source.map_err(|problem| input!("{option} {revision}: {problem}"))
        };
        let (good, bad) = (source("--good", &self.good)?, source("--bad", &self.bad)?);
        let key = json!([self.command, self.value, format!("{:?}", self.guest)]).to_string();
        let bisection = Bisection::begin(&cache, (&good, &bad), &key, self.resume)
            .map_err(|problem| input!("{problem}"))?;
        let described = |source: &GitSource| source.described().map_err(|it| input!("{it}"));
        let (good, bad) = (described(&good)?, described(&bad)?);
        let mut steps = self.earlier_steps(&bisection)?;
        let mut work = Work {
            options: &self,
            cache: &cache,
            cancel: &cancel,
            arch,
            good: (&good, guest.clone()),
            guest,
        };
        work.good.1 = work.request(&good)?;
        if steps.is_empty() {
            steps.push(work.step(&bad, &steps)?);
            keep(&bisection, &steps)?;
        }
        let conclusion = match steps[0].mark {
            Mark::Bad => work.search(&bisection, &mut steps)?,
            Mark::Good | Mark::Skip => Conclusion::NoChange,
        };
        let answer = BisectAnswer {
            command: self.command.clone(),
            value: self.value.clone(),
            good,
            conclusion,
            steps,
        };
        let document = || nearfar_report::bisect::document(&answer);
        self.format
            .print(colour, "bisect/1", None, &answer, document)
    }

    /// Of a bisection that goes on; none of a new one.
    fn earlier_steps(&self, bisection: &Bisection) -> Result<Vec<BisectStep>, Failure> {
        let path = bisection.notes();
        match fs::read(&path) {
            Ok(text) if self.resume => {
                serde_json::from_slice(&text).map_err(|error| input!("{}: {error}", path.display()))
            }
            // Or it was interrupted in its first step.
            _ => Ok(Vec::new()),
        }
    }
}

fn keep(bisection: &Bisection, steps: &[BisectStep]) -> Outcome {
    let text = serde_json::to_vec(steps).map_err(Failure::refused)?;
    output::write_file(&bisection.notes(), &text)
}

/// What the steps of a bisection have in common.
struct Work<'a> {
    options: &'a Bisect,
    cache: &'a Cache,
    cancel: &'a AtomicBool,
    arch: Arch,
    /// Without a kernel.
    guest: GuestRequest,
    /// With the guest of its kernel.
    good: (&'a Commit, GuestRequest),
}

impl Work<'_> {
    /// Tests commits until it is known which one brings the change.
    fn search(
        &self,
        bisection: &Bisection,
        steps: &mut Vec<BisectStep>,
    ) -> Result<Conclusion, Failure> {
        let of_git = |problem: String| input!("git bisect: {problem}");
        loop {
            match bisection.next().map_err(of_git)? {
                Next::First(commit) => return Ok(Conclusion::First(commit)),
                Next::AnyOf(commits) => return Ok(Conclusion::AnyOf(commits)),
                Next::Test { commit, left } => {
                    output::say!("{left} commits left; {} {}", commit.short(), commit.subject);
                    let step = self.step(&commit, steps)?;
                    bisection.mark(&commit, step.mark).map_err(of_git)?;
                    steps.push(step);
                    keep(bisection, steps)?;
                }
            }
        }
    }

    /// Tests a commit after these steps: the bad one first.
    fn step(&self, commit: &Commit, before: &[BisectStep]) -> Result<BisectStep, Failure> {
        let number = u32::try_from(before.len()).unwrap_or(u32::MAX);
        let first = before.first().and_then(|it| it.judgement.as_ref());
        let middle = first.map(Judgement::middle);
        let (run, judgement, reason) = match self.judge(commit, number, middle) {
            Ok((run, judgement)) => (run, Some(judgement), None),
            Err(NoJudgement::Skip(reason)) if number > 0 => (None, None, Some(reason)),
            Err(NoJudgement::Skip(reason)) => return Err(input!("the bad commit: {reason}")),
            Err(NoJudgement::Failed(failure)) => return Err(failure),
        };
        let mark = match judgement.as_ref().and_then(|it| it.is_changed) {
            Some(true) => Mark::Bad,
            Some(false) => Mark::Good,
            None => Mark::Skip,
        };
        let runs = self.options.runs;
        let unclear = || format!("not clear after {runs} runs of each kernel");
        let reason = (mark == Mark::Skip).then(|| reason.unwrap_or_else(unclear));
        if let Some(reason) = &reason {
            output::say!("not known of {}: {reason}", commit.short());
        }
        Ok(BisectStep {
            commit: commit.clone(),
            mark,
            run,
            judgement,
            reason,
        })
    }

    /// Runs the good commit and another in turns.
    fn judge(
        &self,
        commit: &Commit,
        number: u32,
        middle: Option<Middle>,
    ) -> Result<(Option<i64>, Judgement), NoJudgement> {
        let other = match self.request(commit) {
            Err(Failure::Input(error)) if !self.cancel.load(Ordering::Relaxed) => {
                return Err(NoJudgement::Skip(format!("{error:#}")));
            }
            other => other?,
        };
        let (commit_of_good, good) = &self.good;
        let [good, other] = prepared(&[good.clone(), other], self.cache)?;
        let side = |commit: &Commit, guest: &PreparedGuest| CommandSide {
            settings: BTreeMap::from([("kernel".to_owned(), commit.short().to_owned())]),
            emulation: Some(guest.emulation()),
            runs: Vec::new(),
        };
        let (a, b) = (side(commit_of_good, &good), side(commit, &other));
        let value = self.options.value.as_deref();
        // A number that no answer has is a mistake; one that a commit's answers lack is no reason to end.
        let asked = value.filter(|_| middle.is_none()).map(str::to_owned);
        let selection = ValueSelection::new(asked.into_iter().collect());
        let parameter = StepParameter {
            number,
            middle,
            value: value.map(str::to_owned),
        };
        let turns = Turns {
            command: &self.options.command,
            selection: &selection,
            until: Some(Until {
                settled,
                parameter: (STEP, json!(parameter)),
            }),
            runs: self.options.runs,
            is_traced: false,
            resumes: self.options.resume,
            label: Some(format!("bisect {}", commit.short())),
            record: &self.options.record,
        };
        let taken = turns.take([(&a, good), (&b, other)], self.cancel);
        let taken = taken.map_err(|(side, failure)| match failure {
            Failure::Refused(error) if side == Some(1) && is_of_guest(&error) => {
                NoJudgement::Skip(format!("{error:#}"))
            }
            failure => NoJudgement::Failed(failure),
        })?;
        let judgement = parameter.judge(&taken.runs).ok_or_else(|| {
            NoJudgement::Skip("the command did not give the number in each run".to_owned())
        })?;
        let run = (!self.options.record.no_store).then_some(taken.run.0);
        Ok((run, judgement))
    }

    /// The guest with the kernel of a commit, which is built.
    fn request(&self, commit: &Commit) -> Result<GuestRequest, Failure> {
        let spec = format!("{PREFIX}{}", commit.hash);
        let (tree, config) = (&self.options.tree, self.options.config.as_deref());
        let kernel = build_kernel(self.cache, &spec, tree, config, self.arch)?;
        Ok(GuestRequest {
            kernel: Some(kernel.release),
            ..self.guest.clone()
        })
    }
}

/// The parameter of a step's run.
const STEP: &str = "step";

/// What a step is judged with.
#[derive(Serialize, Deserialize)]
struct StepParameter {
    number: u32,
    middle: Option<Middle>,
    value: Option<String>,
}

impl StepParameter {
    /// `None` where a run does not have the number.
    fn judge(&self, runs: &[Vec<CommandRun>; 2]) -> Option<Judgement> {
        let numbers = |side: usize| -> Option<Vec<f64>> {
            let runs = runs[side].iter();
            runs.map(|run| run.number(self.value.as_deref())).collect()
        };
        Judgement::of(&numbers(0)?, &numbers(1)?, self.number, self.middle)
    }
}

/// Both sides, once it is known on which side of the middle the commit is, or that it never will be.
fn settled(detail: &Detail, samples: &[Sample]) -> Vec<Cell> {
    let parameter = StepParameter::deserialize(&detail.parameters[STEP]).ok();
    let judgement = parameter.and_then(|it| it.judge(&runs_of_sides(samples)));
    match judgement.is_none_or(|it| it.is_changed.is_some()) {
        true => detail.plan.clone(),
        false => Vec::new(),
    }
}

/// Whether it was the guest that failed, by its kernel perhaps.
fn is_of_guest(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<LabError>(),
        Some(
            LabError::Boot { .. }
                | LabError::Died { .. }
                | LabError::Hung { .. }
                | LabError::OutOfTime { .. }
        )
    )
}
