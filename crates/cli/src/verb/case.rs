//! `nearfar case`: a published investigation, repeated.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use clap::{Args, FromArgMatches as _};
use nearfar_bench::cases::{self, KernelQuestion, cases};
use nearfar_compare::{Comparison, Options, Side, compare};
use nearfar_proc::child::{end_with_parent, wait_or_end};
use nearfar_proc::program;
use nearfar_report::case as pages;
use nearfar_report::document::Document;
use nearfar_report::runs::{self, PublishedFile};
use nearfar_runs::{Filter, RunId, Store};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::ab::Ab;
use super::runs::{Form, Shape, Stored, export_json, own};
use crate::args::{Colour, StoreArgs, of_store, option_words};
use crate::failure::{Failure, Outcome, input, refused};
use crate::{output, shell, signals};

/// A change within this share is equivalent.
const MARGIN: f64 = 0.03;
/// With this in the environment there is a case 0, for tests.
const MOCK_CASE: &str = "NEARFAR_MOCK_CASE";
/// Options of an experiment that are the case's own, and what to use instead.
const RESERVED: [(&str, &str); 5] = [
    ("--store", "give it before --"),
    ("--format", "give it before --"),
    ("--label", "the label of a case is its own"),
    ("--no-store", "the run of a case is stored"),
    (
        "--resume",
        "a case begins a run of its own; nearfar bench continues one",
    ),
];
/// Where a guest finds the folder of `lab run --results`.
const RESULTS: &str = "/results";

/// Repeat a published investigation: machine, workload, table, mail
///
/// Without a number, lists the cases. The run is stored and shown with the published figures; `nearfar runs` has it afterwards.
#[derive(Args)]
#[command(
    after_long_help = "Options after -- are given to the case's experiment (nearfar bench NAME --help).\n\nExamples:\n  nearfar case\n  \
                       nearfar case 5 --quick\n  nearfar case 3 --samples 5 --html case-3.html\n  nearfar case 2 --show-command\n  \
                       nearfar case 2 --here -- --seconds 2\n  \
                       nearfar case 4 --kernel-a git:v6.2 --kernel-b git:v6.3 --format mail"
)]
pub struct Case {
    /// Its number
    #[arg(value_name = "NUMBER")]
    number: Option<u8>,
    /// Measure on this machine
    #[arg(long, requires = "number", conflicts_with = "lab")]
    here: bool,
    /// Measure in guests of the lab (the default)
    #[arg(long, requires = "number")]
    lab: bool,
    /// Measure the effect and its direction only, in at most three minutes on a host with two CPUs
    #[arg(long, requires = "number", conflicts_with = "here")]
    quick: bool,
    /// Samples of each cell [default: as many as the list of cases says]
    #[arg(long, value_name = "N", requires = "number", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: Option<u32>,
    /// Compare two kernels by the case's load instead, in guests that start in turns: a series, git:REVISION or whatever lab
    /// run --kernel takes. What the case changes is left to the kernel
    #[arg(long, value_name = "KERNEL", requires_all = ["number", "kernel_b"], conflicts_with_all = ["here", "html"])]
    kernel_a: Option<String>,
    /// The kernel that is compared with that of --kernel-a
    #[arg(long, value_name = "KERNEL", requires = "kernel_a")]
    kernel_b: Option<String>,
    /// Also compare what the two kernels do meanwhile, as nearfar ab --trace
    #[arg(long, requires = "kernel_a")]
    trace: bool,
    /// Print the command that measures instead of running it
    #[arg(long, requires = "number")]
    show_command: bool,
    /// Write the run also as a page
    #[arg(long, value_name = "FILE", requires = "number", value_parser = output::named_file())]
    html: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t = Form::Table, value_name = "FORMAT")]
    format: Form,
    /// Options of the experiment, in place of the case's own
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<OsString>,
}

#[derive(Serialize)]
struct CaseAnswer<'a> {
    case: pages::Described,
    run: RunId,
    store: &'a Path,
    comparison: Option<Comparison>,
    /// As in runs-show/2.
    answer: Option<serde_json::Value>,
    published: Option<serde_json::Value>,
}

impl Case {
    /// Measures, stores and shows.
    pub fn run(self, colour: Colour) -> Outcome {
        let Some(number) = self.number else {
            return self.list(colour);
        };
        let is_mock = number == 0 && std::env::var_os(MOCK_CASE).is_some();
        let case = match is_mock {
            true => cases::Case::mock(),
            false => cases::Case::by_number(number).ok_or_else(|| unknown(number))?,
        };
        self.check(case)?;
        let program = std::env::current_exe().map_err(Failure::refused)?;
        if let Some(kernels) = self.kernel_a.as_deref().zip(self.kernel_b.as_deref()) {
            return self.compare_kernels(case, kernels, &program, colour);
        }
        let results = tempfile::tempdir().map_err(Failure::refused)?;
        if self.show_command {
            let words = self.command(case, Path::new("nearfar"), Path::new("results"));
            // lab run takes a folder that is there.
            let folder = if self.is_stored_in_guest(case) {
                "mkdir -p results\n"
            } else {
                ""
            };
            return output::print(&format!("{folder}{}", shell::lines(words)));
        }
        if let Some(file) = &self.html {
            output::can_write(file)?;
        }
        // Fails before anything is measured.
        let mut store = self.store.open()?;
        let words = self.command(case, &program, results.path());
        let measured = measured(&words);
        let run = match self.is_stored_in_guest(case) {
            true => import(&mut store, results.path(), measured)?,
            false => measured?.run,
        };
        self.show(case, &store, run, colour)
    }

    fn list(&self, colour: Colour) -> Outcome {
        output::print(&match self.format {
            Form::Json => {
                let cases = cases().iter().map(pages::Described::from);
                output::json(
                    "cases/1",
                    None,
                    &output::under("cases", cases.collect::<Vec<_>>()),
                )?
            }
            Form::Markdown => pages::list(cases()).to_markdown(),
            Form::Table | Form::Mail => pages::list(cases()).to_text(&output::style(colour)),
        })
    }

    /// Refuses what cannot be measured, before anything starts.
    fn check(&self, case: &cases::Case) -> Outcome {
        let number = case.number;
        let options = names(&self.options);
        let given = |option: &str| options.iter().any(|name| name == option);
        if let Some((option, instead)) = RESERVED.iter().find(|(option, _)| given(option)) {
            return Err(input!("{option} after --: {instead}"));
        }
        if self.here && !case.required_here.iter().all(|option| given(option)) {
            let (options, example) = required(case, &self.options);
            return Err(input!(
                "case {number} --here takes {options}: nearfar case {number} --here -- {example}"
            ));
        }
        if self.here && case.compares_guests() {
            output::say!(
                "case {number} compares guests; with --here this machine is measured as it is, and nothing is compared"
            );
        }
        let missing = |name: &&str| program::find(name).err();
        match case.programs.iter().find_map(missing) {
            Some(problem) => Err(refused!("case {number}: {problem}")),
            None => Ok(()),
        }
    }

    /// Whether the whole run is made in one guest, with a store of its own.
    fn is_stored_in_guest(&self, case: &cases::Case) -> bool {
        !self.here && case.is_in_one_guest()
    }

    /// The command that measures.
    fn command(&self, case: &cases::Case, program: &Path, results: &Path) -> Vec<OsString> {
        let is_in_one_guest = self.is_stored_in_guest(case);
        let mut words: Vec<OsString> = vec![program.into()];
        if is_in_one_guest {
            words.extend(["lab", "run"].map(OsString::from));
            let options = case.guests(self.quick).into_iter();
            words.extend(options.map(|(key, value)| format!("--{key}={value}").into()));
            words.extend(["--results".into(), results.into(), "--".into()]);
            words.extend(prepared(case, program));
        }
        words.extend(["bench", case.experiment].map(OsString::from));
        if !self.here && !is_in_one_guest {
            let guests = case.guests(self.quick).into_iter();
            words.extend(guests.map(|(key, value)| format!("--guest={key}={value}").into()));
        }
        words.extend(self.layered(case, &[]));
        let samples = self.samples.or((!self.here).then(|| self.samples_of(case)));
        words.extend(samples.map(|samples| format!("--samples={samples}").into()));
        words.push(format!("--label=case-{}", case.number).into());
        let store = match is_in_one_guest {
            true => Some(format!("{RESULTS}/runs.db").into()),
            false => self.store.store.clone().map(PathBuf::into_os_string),
        };
        words.extend(option_words(store.map(|store| ("--store", store))));
        words.push("--format=json".into());
        words.extend(self.options.iter().cloned());
        words
    }

    /// Samples of each cell in the lab, unless others are asked for.
    fn samples_of(&self, case: &cases::Case) -> u32 {
        match self.quick {
            true => case.quick.samples,
            false => case.samples,
        }
    }

    /// The case's options of its experiment: `question` goes before those of a quick form, these before the others, and what was given
    /// before all.
    fn layered(&self, case: &cases::Case, question: &[&str]) -> Vec<OsString> {
        let whole = if self.here {
            case.options_here
        } else {
            case.options
        };
        let quick = if self.quick { case.quick.options } else { &[] };
        let mut words = Vec::new();
        for layer in [question, quick, whole] {
            let given = words.iter().chain(&self.options);
            let mut layer = replaced(layer.iter().map(OsString::from), given);
            layer.append(&mut words);
            words = layer;
        }
        words
    }

    /// Runs the case's load under two kernels in turns (`nearfar ab`) and shows the comparison.
    fn compare_kernels(
        &self,
        case: &cases::Case,
        kernels: (&str, &str),
        program: &Path,
        colour: Colour,
    ) -> Outcome {
        if self.show_command {
            let words = self.kernels_command(case, kernels, Path::new("nearfar"));
            return output::print(&shell::lines(words));
        }
        let words = self.kernels_command(case, kernels, program);
        // The words of clap's own making: what it refuses is a value of --kernel-a or --kernel-b.
        let parsed = Ab::augment_args(clap::Command::new("ab")).try_get_matches_from(&words[1..]);
        let ab = parsed.and_then(|matches| Ab::from_arg_matches(&matches));
        let (run, comparison) = ab.map_err(Failure::input)?.measure()?;
        let document = || nearfar_report::ab::document(&comparison);
        output::print(&match self.format {
            Form::Mail => {
                let store = self.store.open()?;
                return super::runs::show(&store, run, &Shape::of_form(self.format, colour));
            }
            Form::Json => output::json("ab/1", None, &comparison)?,
            Form::Markdown => document().to_markdown(),
            Form::Table => document().to_text(&output::style(colour)),
        })
    }

    /// The command that compares two kernels.
    fn kernels_command(
        &self,
        case: &cases::Case,
        (a, b): (&str, &str),
        program: &Path,
    ) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![program.into(), "ab".into()];
        words.extend([format!("--a=kernel={a}"), format!("--b=kernel={b}")].map(OsString::from));
        let mut guests = case.guests(self.quick);
        // Of those that the case itself compares, the first.
        let mut keys = BTreeSet::from(["kernel"]);
        guests.retain(|(key, _)| keys.insert(key));
        let guests = guests.into_iter();
        words.extend(guests.map(|(key, value)| format!("--{key}={value}").into()));
        let KernelQuestion { options, metric } = &case.kernels;
        let runs = self.samples.unwrap_or_else(|| self.samples_of(case));
        let value = format!("summary[*].metrics[{metric}].median");
        words.push(format!("--runs={runs}").into());
        words.push(format!("--value={value}").into());
        words.extend(self.trace.then(|| "--trace".into()));
        words.push(format!("--label=case-{}", case.number).into());
        let store = self.store.store.clone().map(PathBuf::into_os_string);
        words.extend(option_words(store.map(|store| ("--store", store))));
        words.push("--".into());
        words.extend(prepared(case, program));
        words.extend(["bench", case.experiment].map(OsString::from));
        words.extend(self.layered(case, options));
        words.extend(["--samples=1", "--no-store", "--format=json"].map(OsString::from));
        words.extend(self.options.iter().cloned());
        words
    }

    /// What to type to have it again.
    fn repetition(&self, case: &cases::Case) -> String {
        let mut words: Vec<OsString> = ["nearfar", "case"].map(OsString::from).to_vec();
        words.push(case.number.to_string().into());
        words.extend(self.here.then(|| "--here".into()));
        words.extend(self.quick.then(|| "--quick".into()));
        words.extend(
            self.samples
                .map(|samples| format!("--samples={samples}").into()),
        );
        if !self.options.is_empty() {
            words.push("--".into());
            words.extend(self.options.iter().cloned());
        }
        shell::words(words)
    }

    /// What was asked, and what to type to have it again.
    fn question(&self, case: &cases::Case) -> Document {
        pages::question(case, Some(&self.repetition(case)))
    }

    fn show(&self, case: &cases::Case, store: &Store, id: RunId, colour: Colour) -> Outcome {
        let stored = Stored::read(store, id)?;
        let shown = stored.shown(true);
        let mut figures = case.published.map(|(_, text)| text.as_bytes());
        let published = case.published.zip(figures.as_mut());
        let published = published.map(|((name, _), input)| PublishedFile { name, input });
        let own = own(&shown, published)?;
        let has_levels = !(self.here && case.compares_guests());
        let comparison = match has_levels {
            true => compared(case, store, id)?,
            false => None,
        };
        let effect = match (&case.effect, &comparison) {
            (Some(effect), Some(comparison)) => pages::effect(effect, comparison),
            _ => Document::new(),
        };
        if let Some(file) = &self.html {
            let mut page = self.question(case);
            page.append(effect.clone());
            page.append(own.as_ref().map(|own| own.page.clone()).unwrap_or_default());
            page.append(pages::limits(case, self.here));
            output::write_file(file, runs::page(&shown, page).to_html().as_bytes())?;
            output::say!("page: {}", file.display());
        }
        if self.format == Form::Json {
            let (answer, published) =
                own.map_or((None, None), |own| (Some(own.json), own.published));
            let answer = CaseAnswer {
                case: case.into(),
                run: id,
                store: store.path(),
                comparison,
                answer,
                published,
            };
            return output::print(&output::json("case/1", None, &answer)?);
        }
        if self.format == Form::Mail {
            let mut body = effect;
            body.append(own.map_or_else(|| runs::tables(&shown), |own| own.mail));
            body.append(pages::limits(case, self.here));
            let question = pages::question(case, None);
            let command = self.repetition(case);
            return output::print(&runs::mail(question, &shown, Some(body), Some(command)));
        }
        let mut document = self.question(case);
        document.append(runs::header(&shown));
        document.append(own.map_or_else(|| runs::tables(&shown), |own| own.text));
        document.append(effect);
        document.append(pages::limits(case, self.here));
        output::print(&match self.format {
            Form::Markdown => document.to_markdown(),
            _ => document.to_text(&output::style(colour)),
        })
    }
}

/// What options of an experiment set, so that one of the user replaces one of the case: `--seconds`, `--factor plan`. A value that is a
/// word of its own has no name, except a factor's.
fn names<'a>(words: impl IntoIterator<Item = &'a OsString>) -> Vec<String> {
    const FACTOR: &str = "--factor";
    let mut words = words.into_iter().map(|word| word.to_string_lossy());
    let mut names = Vec::new();
    while let Some(word) = words.next() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
            None => (word.clone().into_owned(), None),
        };
        if option == FACTOR {
            let value = value.or_else(|| words.next().map(Into::into));
            let value = value.unwrap_or_default();
            let factor = value.split('=').next().unwrap_or_default();
            names.push(format!("{FACTOR} {factor}"));
        } else if option.starts_with("--") {
            names.push(option);
        }
    }
    names
}

/// The words before `bench` in a guest.
fn prepared(case: &cases::Case, program: &Path) -> Vec<OsString> {
    let script = case.preparation.map(|it| ["sh", "-c", it, "prepare"]);
    let words = script.into_iter().flatten().map(OsString::from);
    words.chain([program.into()]).collect()
}

/// Those of a case's options that others do not set.
fn replaced<'a>(
    own: impl Iterator<Item = OsString>,
    by: impl IntoIterator<Item = &'a OsString>,
) -> Vec<OsString> {
    let by = names(by);
    own.filter(|it| !names([it]).iter().any(|name| by.contains(name)))
        .collect()
}

/// What a case needs here, in words, and as options: those that were given, and the others with a placeholder.
fn required(case: &cases::Case, given: &[OsString]) -> (String, String) {
    let named = names(given);
    let missing = case
        .required_here
        .iter()
        .filter(|it| !named.iter().any(|name| name == *it));
    let missing = missing.map(|option| format!("{option} NAME"));
    let given =
        (!given.is_empty()).then(|| shell::words(given.iter().cloned()).trim_end().to_owned());
    let example: Vec<String> = given.into_iter().chain(missing).collect();
    (case.required_here.join(" and "), example.join(" "))
}

fn unknown(number: u8) -> Failure {
    let numbers: Vec<String> = cases().iter().map(|case| case.number.to_string()).collect();
    input!(
        "there is no case {number}: {} can be repeated; `nearfar case` lists them",
        numbers.join(", ")
    )
}

/// The levels of the case's factor, compared; `None` for a case without one, and where the run has not two of its levels.
fn compared(case: &cases::Case, store: &Store, run: RunId) -> Result<Option<Comparison>, Failure> {
    let Some(effect) = &case.effect else {
        return Ok(None);
    };
    let whole = store.whole(run).map_err(of_store)?;
    let side = Side::of_run(format!("run {run}"), &whole);
    let sides = match side.by(effect.factor, Some(effect.baseline)) {
        Ok(sides) => sides,
        Err(error) => {
            output::say!("nearfar: nothing is compared: {error}");
            return Ok(None);
        }
    };
    let options = Options {
        margin: MARGIN,
        metrics: metrics(effect),
        across: [nearfar_compare::Kind::Kernel].into(),
        judges_single_runs: false,
    };
    compare(&sides, &options).map(Some).map_err(Failure::input)
}

/// The metrics of the published table, each once.
fn metrics(effect: &cases::Effect) -> Vec<String> {
    let mut metrics: Vec<String> = Vec::new();
    for figure in effect.figures {
        if !metrics.iter().any(|it| it == figure.metric) {
            metrics.push(figure.metric.to_owned());
        }
    }
    metrics
}

/// What this program needs of the answer of another one of it.
#[derive(Deserialize)]
struct Measured {
    run: RunId,
}

/// Runs the command with this process's standard error, and reads the run's number from its answer.
fn measured(words: &[OsString]) -> Result<Measured, Failure> {
    let cancel = signals::cancel_flag();
    let (program, arguments) = words
        .split_first()
        .context("no command")
        .map_err(Failure::refused)?;
    let mut command = Command::new(program);
    // A group of its own: it gets a signal once, from this process, and decides what that means.
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0);
    // SIGTERM: it undoes what it has to.
    end_with_parent(&mut command, Signal::TERM);
    let mut child = command
        .spawn()
        .map_err(|error| Failure::not_started(program, error))?;
    let output = answer(&mut child, &cancel).map_err(Failure::refused)?;
    let status = child.wait().map_err(Failure::refused)?;
    if !status.success() {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return Err(Failure::CommandEnded(code.unwrap_or(u8::MAX)));
    }
    serde_json::from_slice(&output)
        .context("cannot read the answer of the command that measures")
        .map_err(Failure::refused)
}

/// What the command prints, once it has ended. A signal to this process is handed on, once.
fn answer(child: &mut Child, cancel: &AtomicBool) -> std::io::Result<Vec<u8>> {
    let mut stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        let read = stdout
            .as_mut()
            .map_or(Ok(0), |it| it.read_to_end(&mut output));
        read.map(|_| output)
    });
    wait_or_end(child, cancel)?;
    let read = reader.join();
    read.unwrap_or_else(|_| Err(std::io::Error::other("reading its answer failed")))
}

/// Adds the run that a guest stored in this folder, also one that is not complete.
fn import(
    store: &mut Store,
    results: &Path,
    measured: Result<Measured, Failure>,
) -> Result<RunId, Failure> {
    let file = results.join("runs.db");
    let newest = match file.is_file() {
        true => {
            let guests = Store::open_existing(&file).map_err(of_store)?;
            let runs = guests.list(&Filter::default()).map_err(of_store)?;
            let whole = runs.first().map(|run| guests.whole(run.run));
            whole.transpose().map_err(of_store)?
        }
        false => None,
    };
    let Some(whole) = newest else {
        measured?;
        return Err(refused!("the guest stored no run"));
    };
    let json = export_json(vec![whole])?;
    let imported = store.import(json.as_bytes()).map_err(Failure::refused)?;
    let run = imported.runs.into_iter().chain(imported.already).next();
    let run = run
        .context("the guest's run was not added")
        .map_err(Failure::refused)?;
    if measured.is_err() {
        output::say!("nearfar: what was measured is kept in run {run}");
    }
    measured.map(|_| run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_known_by_its_name_and_a_factor_by_the_factors() {
        let words = [
            "--seconds=1",
            "--factor=plan=before,after",
            "--factor",
            "depth=1",
            "--jobs",
            "4",
            "--locks",
        ];
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        let expected = [
            "--seconds",
            "--factor plan",
            "--factor depth",
            "--jobs",
            "--locks",
        ];
        assert_eq!(names(&words), expected);
        assert!(names(&[OsString::from("--factor")]) == ["--factor "]);
    }
}
