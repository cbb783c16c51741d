//! `nearfar checkup`: the main job. Topology and audit, then a short probe.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use nearfar_bench::latency::{self, LatencyOptions};
use nearfar_bench::unbound::{self, UnboundError, UnboundOptions};
use nearfar_machine::{Known, Machine, SourceKind};
use nearfar_placement::audit::{self, AuditOptions};
use nearfar_report::checkup::Made;
use nearfar_sources::Want;

use crate::args::{Colour, Format, FormatArgs, SourceArgs, TaskArgs, seconds_or_zero};
use crate::failure::{Failure, Outcome, refused};
use crate::output;
use crate::recorded::{RecordArgs, Recorder, presence};
use crate::shell;
use crate::signals;

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
/// Asks for nothing and changes nothing. Prints topology and findings, then what it measured, which is also kept as a run.
///
/// On the running system it measures for half a minute: memory latency for 5 s, then, where there are several nodes, whether
/// the scheduler hurts tasks that are not bound. For that a load of 5 % runs on each CPU meanwhile, because a scheduler without
/// anything to do moves nothing; on a server that must not be disturbed, leave it out with --probe 5, or everything with
/// --probe 0. Ctrl-C ends the measurement and the load; what is known by then is printed.
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
    /// Also write all of it as a page that needs no network; an existing file is replaced
    #[arg(long, value_name = "FILE", value_parser = output::named_file())]
    html: Option<PathBuf>,
    /// How long to measure: latency first, for at most 5 s, then unbound tasks under a load of 5 % on each CPU; 0
    /// for not at all
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds_or_zero)]
    probe: f64,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    format: FormatArgs,
}

impl Checkup {
    /// Reads, audits, prints, measures, prints, writes.
    pub fn run(self, colour: Colour) -> Outcome {
        let budget = Duration::from_secs_f64(self.probe);
        let (page, is_json) = (self.html.as_deref(), self.format.format == Format::Json);
        page.map_or(Ok(()), |file| output::has_room(file, PAGE_BYTES))?;
        // From here on Ctrl-C ends the measurement and not what is printed.
        let cancel = signals::cancel_flag();
        let machine = self.source.read(Want {
            tasks: self.tasks.scope(),
            names: true,
            ..Want::all()
        })?;
        const NOT_YET: &str = "not measured yet";
        let made = made(&self.source);
        let options = AuditOptions {
            source: made.source.clone(),
            ..Default::default()
        };
        let mut checkup = nearfar_report::checkup::Checkup {
            made,
            audit: audit::audit(&machine, &options),
            machine,
            probe: Known::no(NOT_YET),
            unbound: Known::no(NOT_YET),
        };
        let style = output::style(colour);
        let found = || nearfar_report::checkup::found(&checkup, style.width).to_text(&style);
        let printed = if is_json {
            Ok(())
        } else {
            output::print(&found())
        };
        let ended = self.measure(&mut checkup, budget, cancel);
        // Each is given also where the other cannot be: what was measured took half a minute.
        let measured = || nearfar_report::checkup::measured(&checkup, style.width).to_text(&style);
        let printed = printed.and_then(|()| {
            output::print(&match is_json {
                true => output::json("checkup/1", None, &checkup)?,
                false => format!("\n{}", measured()),
            })
        });
        let content = || nearfar_report::checkup::page(&checkup).to_html();
        page.map_or(Ok(()), |file| {
            output::write_file(file, content().as_bytes())
        })?;
        printed?;
        ended?;
        match page {
            _ if is_json => Ok(()),
            Some(page) => output::print(&format!("\nAll of it as a page: {}", page.display())),
            None => output::print("\n--html FILE writes all of it as a page."),
        }
    }

    /// Measures where that makes sense, and says why where it does not.
    fn measure(
        &self,
        checkup: &mut nearfar_report::checkup::Checkup,
        budget: Duration,
        cancel: Arc<AtomicBool>,
    ) -> Outcome {
        let machine = &checkup.machine;
        if budget.is_zero() {
            const BECAUSE: &str = "--probe 0 asked for no measurement";
            (checkup.probe, checkup.unbound) = (Known::no(BECAUSE), Known::no(BECAUSE));
            return Ok(());
        }
        // Nothing of another machine is measured: there is nothing to keep, others cannot disturb it, nor it them.
        let is_live = machine.origin.kind == SourceKind::Live;
        let mut recorder = match is_live {
            true => self.record.open()?,
            false => Recorder::default(),
        };
        let _presence = is_live.then(|| presence("nearfar checkup"));
        let started = Instant::now();
        let homes = unbound::homes(machine);
        announce(machine, budget, homes.is_ok());
        let options = LatencyOptions {
            budget: budget.min(LATENCY_BUDGET),
            cancel: Arc::clone(&cancel),
            ..LatencyOptions::default()
        };
        match latency::measure(machine, &options) {
            Ok(measured) => {
                recorder.keep(&measured, machine, Some(LABEL));
                checkup.probe = Known::Yes(measured.answer);
                if cancel.load(Ordering::Relaxed) {
                    checkup.unbound = Known::no("interrupted");
                    return Err(refused!("interrupted"));
                }
            }
            Err(error) => {
                checkup.probe = Known::no(error.to_string());
                if matches!(error, latency::ProbeError::Cancelled) {
                    checkup.unbound = Known::no(error.to_string());
                    return Err(Failure::refused(error));
                }
            }
        }
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
                checkup.unbound = Known::Yes(measured.answer);
                Ok(())
            }
            Err(error) => {
                checkup.unbound = Known::no(error.to_string());
                match error {
                    UnboundError::Cancelled => Err(Failure::refused(error)),
                    _ => Ok(()),
                }
            }
        }
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

/// Says what the user waits for, on a terminal.
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
