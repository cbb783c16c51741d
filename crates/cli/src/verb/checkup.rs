//! `nearfar checkup`: the main job. Topology, audit, a short probe; one screen and one page.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use nearfar_bench::latency::{self, LatencyMatrix, LatencyOptions};
use nearfar_bench::unbound::{self, UnboundError, UnboundOptions, UnboundTasks};
use nearfar_machine::{Known, Machine, SourceKind};
use nearfar_placement::audit::{self, AuditOptions};
use nearfar_report::checkup::Made;
use nearfar_sources::Want;

use crate::args::{Colour, Format, FormatArgs, SourceArgs, TaskArgs};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::recorded::{RecordArgs, Recorder, presence};
use crate::shell;
use crate::signals;

/// The page's name where none is given, without its end.
const PAGE: &str = "nearfar-checkup";
/// Room that has to be free for the page, in bytes: that of 1024 nodes takes less.
const PAGE_BYTES: u64 = 4 << 20;

/// What stored runs of a checkup are called.
const LABEL: &str = "checkup";

/// The most that latencies get of the time.
const LATENCY_BUDGET: Duration = Duration::from_secs(5);
/// The load on each CPU while unbound tasks are probed: little enough for a server at work, enough to make its scheduler
/// move things.
const LOAD_PERCENT: f64 = 5.0;

/// Check the machine: topology, what is far, how much slower far memory is
///
/// Asks for nothing and changes nothing. Prints one screen and writes one HTML page that needs no network. Whether the page
/// can be written is tried before anything is measured; the screen is printed in any case.
///
/// On the running system it measures for half a minute: memory latency for 5 s, then, where there are several nodes, whether
/// the scheduler hurts tasks that are not bound. For that a load of 5 % runs on each CPU meanwhile, because a scheduler without
/// anything to do moves nothing; on a server that must not be disturbed, leave it out with --probe 5, or everything with
/// --probe 0. Ctrl-C ends it at once, and load and all with it.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar checkup\n  nearfar checkup --html /var/www/this-server.html\n  nearfar \
                             checkup --source customer.nearfar"
)]
pub struct Checkup {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    tasks: TaskArgs,
    /// Where the page is written; an existing file is replaced [default: nearfar-checkup.html, or
    /// nearfar-checkup-2.html and so on: no existing file is replaced]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write no page
    #[arg(long, conflicts_with = "html")]
    no_html: bool,
    /// How long to measure, in seconds: latency first, for at most 5, then unbound tasks under a load of 5 % on each CPU; 0
    /// for not at all
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    probe: f64,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    format: FormatArgs,
}

impl Checkup {
    /// Reads, audits, measures, prints, writes.
    pub fn run(self, colour: Colour) -> Outcome {
        let budget = Duration::try_from_secs_f64(self.probe)
            .ok()
            .filter(|budget| budget.as_secs() <= 3600);
        let budget = budget
            .ok_or_else(|| Failure::Input(anyhow::anyhow!("--probe takes 0 to 3600 seconds")))?;
        let machine = self.source.read(Want {
            tasks: self.tasks.scope(),
            names: true,
            ..Want::all()
        })?;
        let page = self.page()?;
        let (probe, unbound) = self.measured(&machine, budget)?;
        let audit = audit::audit(&machine, &AuditOptions::default());
        let checkup = nearfar_report::checkup::Checkup {
            made: made(&self.source),
            machine,
            audit,
            probe,
            unbound,
        };
        // Each is given also where the other cannot be: what was measured took half a minute.
        let printed = output::print(&match self.format.format {
            Format::Json => output::json("checkup/1", None, &checkup)?,
            Format::Table => {
                let style = output::style(colour);
                nearfar_report::checkup::screen(&checkup, style.width).to_text(&style)
            }
        });
        let written = page.write(&checkup)?;
        printed?;
        match (written, self.format.format) {
            (Some(page), Format::Table) => {
                output::print(&format!("\nThe whole of it as a page: {}", page.display()))
            }
            (Some(page), Format::Json) => {
                output::say!("the whole of it as a page: {}", page.display());
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    /// Measures where that makes sense, and says why where it does not.
    fn measured(
        &self,
        machine: &Machine,
        budget: Duration,
    ) -> Result<(Known<LatencyMatrix>, Known<UnboundTasks>), Failure> {
        if budget.is_zero() {
            const BECAUSE: &str = "--probe 0 asked for no measurement";
            return Ok((Known::no(BECAUSE), Known::no(BECAUSE)));
        }
        let mut recorder = self.record.open()?;
        let _presence = presence("nearfar checkup");
        let started = Instant::now();
        let cancel = signals::cancel_flag();
        let homes = unbound::homes(machine);
        announce(machine, budget, homes.is_ok());
        let probe = latencies(
            machine,
            budget.min(LATENCY_BUDGET),
            Arc::clone(&cancel),
            &mut recorder,
        )?;
        let left = budget.saturating_sub(started.elapsed());
        let unbound = homes.and_then(|homes| {
            let program = PathBuf::from("/proc/self/exe");
            unbound::measure(
                machine,
                &homes,
                &UnboundOptions {
                    program,
                    budget: left,
                    load_percent: LOAD_PERCENT,
                    cancel,
                },
            )
        });
        match unbound {
            Ok(measured) => {
                recorder.keep(&measured, machine, Some(LABEL));
                Ok((probe, Known::Yes(measured.answer)))
            }
            Err(error @ UnboundError::Cancelled) => Err(Failure::refused(error)),
            Err(error) => Ok((probe, Known::no(error.to_string()))),
        }
    }

    /// Where the page goes, tried.
    fn page(&self) -> Result<Page, Failure> {
        match &self.html {
            _ if self.no_html => Ok(Page::None),
            Some(file) => output::has_room(file, PAGE_BYTES).map(|()| Page::Named(file.clone())),
            None => match output::room_next_to(Path::new(&format!("{PAGE}.html")), PAGE_BYTES) {
                Ok(()) => Ok(Page::Unnamed),
                Err(failure) => no_page(failure).map(|()| Page::None),
            },
        }
    }
}

/// Where the page goes.
enum Page {
    None,
    /// No path was given.
    Unnamed,
    Named(PathBuf),
}

impl Page {
    /// Writes it, and says under which name.
    fn write(self, checkup: &nearfar_report::checkup::Checkup) -> Result<Option<PathBuf>, Failure> {
        let content = || nearfar_report::checkup::page(checkup).to_html();
        match self {
            Self::None => Ok(None),
            Self::Unnamed => match output::write_unused(PAGE, "html", content().as_bytes()) {
                Ok(file) => Ok(Some(file)),
                Err(failure) => no_page(failure).map(|()| None),
            },
            Self::Named(file) => {
                output::write_file(&file, content().as_bytes()).map(|()| Some(file))
            }
        }
    }
}

/// A page that was not asked for and cannot be written is not a failure.
fn no_page(failure: Failure) -> Outcome {
    match failure {
        Failure::Refused(error) => {
            output::say!("no page: {error:#}; --html FILE names another place, --no-html none");
            Ok(())
        }
        other => Err(other),
    }
}

/// How this checkup was made: as it was typed, so that it can be repeated.
fn made(source: &SourceArgs) -> Made {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Made {
        command: format!("nearfar {}", shell::words(std::env::args_os().skip(1))),
        source: shell::words(source.words()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        at_s: now.ok().map(|since| since.as_secs()),
    }
}

/// Tells who waits what for, on a terminal.
fn announce(machine: &Machine, budget: Duration, is_unbound_probed: bool) {
    if machine.origin.kind != SourceKind::Live || !std::io::stderr().is_terminal() {
        return;
    }
    let (load, budget) = match is_unbound_probed && budget > LATENCY_BUDGET {
        true => (
            format!(", the most of it with a load of {LOAD_PERCENT} % on each CPU"),
            budget,
        ),
        false => (String::new(), budget.min(LATENCY_BUDGET)),
    };
    output::say!(
        "measuring for {} s{load} (--probe SECONDS; Ctrl-C ends it)",
        budget.as_secs_f64().ceil()
    );
}

fn latencies(
    machine: &Machine,
    budget: Duration,
    cancel: Arc<AtomicBool>,
    recorder: &mut Recorder,
) -> Result<Known<LatencyMatrix>, Failure> {
    match latency::measure(
        machine,
        &LatencyOptions {
            budget,
            cancel,
            ..LatencyOptions::default()
        },
    ) {
        Ok(measured) => {
            recorder.keep(&measured, machine, Some(LABEL));
            Ok(Known::Yes(measured.answer))
        }
        Err(error @ latency::ProbeError::Cancelled) => Err(Failure::refused(error)),
        Err(error) => Ok(Known::no(error.to_string())),
    }
}
