//! `nearfar bisect`: the commit of a kernel's repository with which a number of a command's answer changes.
//!
//! ```text
//!  good, bad ─► change, middle ─► commit that git proposes ─► kernel ─► guests in turns with the good one ─► good, bad, skip ─┐
//!                                   ▲                                                                                        │
//!                                   └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
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

use super::ab::{Turns, Until, runs_of_sides};
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

/// What is kept of a bisection besides git's log.
#[derive(Default, Serialize, Deserialize)]
struct Notes {
    /// The bad commit's first.
    steps: Vec<BisectStep>,
    middle: Option<Middle>,
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
        let mut notes = self.notes(&bisection)?;
        let work = Work {
            options: &self,
            cache: &cache,
            cancel: &cancel,
            arch,
            good: &good,
        };
        if notes.steps.is_empty() {
            let step = work.step(&bad, 0, None)?;
            notes.middle = step.judgement.as_ref().map(Judgement::middle);
            notes.steps.push(step);
            keep(&bisection, &notes)?;
        }
        let conclusion = match (notes.steps[0].mark, notes.middle) {
            (Mark::Bad, Some(middle)) => work.search(&bisection, &mut notes, middle)?,
            _ => Conclusion::NoChange,
        };
        let answer = BisectAnswer {
            command: self.command.clone(),
            value: self.value.clone(),
            good,
            conclusion,
            steps: notes.steps,
        };
        let document = || nearfar_report::bisect::document(&answer);
        self.format
            .print(colour, "bisect/1", None, &answer, document)
    }

    /// Of a bisection that goes on; none of a new one.
    fn notes(&self, bisection: &Bisection) -> Result<Notes, Failure> {
        if !self.resume {
            return Ok(Notes::default());
        }
        let path = bisection.notes();
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|error| input!("{}: {error}", path.display()))
            }
            // It was interrupted in its first step.
            Err(_) => Ok(Notes::default()),
        }
    }
}

fn keep(bisection: &Bisection, notes: &Notes) -> Outcome {
    let text = serde_json::to_vec(notes).map_err(Failure::refused)?;
    output::write_file(&bisection.notes(), &text)
}

/// What the steps of a bisection have in common.
struct Work<'a> {
    options: &'a Bisect,
    cache: &'a Cache,
    cancel: &'a AtomicBool,
    arch: Arch,
    good: &'a Commit,
}

impl Work<'_> {
    /// Tests commits until it is known which one brings the change.
    fn search(
        &self,
        bisection: &Bisection,
        notes: &mut Notes,
        middle: Middle,
    ) -> Result<Conclusion, Failure> {
        let of_git = |problem: String| input!("git bisect: {problem}");
        loop {
            match bisection.next().map_err(of_git)? {
                Next::First(commit) => return Ok(Conclusion::First(commit)),
                Next::AnyOf(commits) => return Ok(Conclusion::AnyOf(commits)),
                Next::Test { commit, left } => {
                    output::say!("{left} commits left; {} {}", commit.short(), commit.subject);
                    let number = u32::try_from(notes.steps.len()).unwrap_or(u32::MAX);
                    let step = self.step(&commit, number, Some(middle))?;
                    bisection.mark(&commit, step.mark).map_err(of_git)?;
                    notes.steps.push(step);
                    keep(bisection, notes)?;
                }
            }
        }
    }

    /// Tests a commit: the bad one without a middle, then others.
    fn step(
        &self,
        commit: &Commit,
        number: u32,
        middle: Option<Middle>,
    ) -> Result<BisectStep, Failure> {
        let step = |mark, run, judgement, reason| BisectStep {
            commit: commit.clone(),
            mark,
            run,
            judgement,
            reason,
        };
        match (self.judge(commit, number, middle), middle) {
            (Ok((run, judgement)), _) => {
                let (mark, reason) = match (judgement.is_changed, middle) {
                    (Some(true), _) => (Mark::Bad, None),
                    (Some(false), _) => (Mark::Good, None),
                    (None, _) => {
                        let runs = self.options.runs;
                        (
                            Mark::Skip,
                            Some(format!("not clear after {runs} runs of each kernel")),
                        )
                    }
                };
                Ok(step(mark, run, Some(judgement), reason))
            }
            (Err(NoJudgement::Failed(failure)), _) => Err(failure),
            (Err(NoJudgement::Skip(reason)), Some(_)) => {
                output::say!("not tested: {reason}");
                Ok(step(Mark::Skip, None, None, Some(reason)))
            }
            (Err(NoJudgement::Skip(reason)), None) => Err(input!("the bad commit: {reason}")),
        }
    }

    /// Runs the good commit and another in turns.
    fn judge(
        &self,
        commit: &Commit,
        number: u32,
        middle: Option<Middle>,
    ) -> Result<(Option<i64>, Judgement), NoJudgement> {
        let good = self.request(self.good)?;
        let other = match self.request(commit) {
            Err(Failure::Input(error)) if !self.cancel.load(Ordering::Relaxed) => {
                return Err(NoJudgement::Skip(format!("{error:#}")));
            }
            other => other?,
        };
        let prepared = GuestRequest::prepare_alike(&[good, other], self.cache);
        let prepared = prepared.map_err(|(_, error)| failure(error))?;
        let Ok([good, other]) = <[PreparedGuest; 2]>::try_from(prepared) else {
            unreachable!("a guest for each request");
        };
        let side = |commit: &Commit, guest: &PreparedGuest| CommandSide {
            settings: BTreeMap::from([("kernel".to_owned(), commit.short().to_owned())]),
            emulation: Some(guest.emulation()),
            runs: Vec::new(),
        };
        let (a, b) = (side(self.good, &good), side(commit, &other));
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

    fn request(&self, commit: &Commit) -> Result<GuestRequest, Failure> {
        let guest = self.options.guest.clone();
        let spec = format!("{PREFIX}{}", commit.hash);
        let (tree, config) = (
            Path::new(&self.options.tree),
            self.options.config.as_deref(),
        );
        let kernel = build_kernel(self.cache, &spec, tree, config, self.arch)?;
        let guest = guest.with("kernel", &kernel.release);
        guest
            .map_err(|problem| input!("{problem}"))?
            .request(TimeSpec::Auto)
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
