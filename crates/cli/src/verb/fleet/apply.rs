//! `nearfar fleet apply` and `nearfar fleet rollback`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use nearfar_fleet::rollout::{RolledOut, RolloutRequest, roll_back};
use nearfar_fleet::{Folder, HostEvent, HostName, HostReason, Step};

use super::run::{MEASURING, OnHosts, by, check_arguments, command_words, parsed};
use super::{by_who_has_to_act, of_folder};
use crate::args::{Colour, Format, FormatArgs};
use crate::command::Verb;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::signals;

/// Make the same changes on many hosts: canaries first, and stop at the first host that gets worse
///
/// Each host measures, applies and measures again in one step. A host that is significantly worse afterwards is undone; then no further
/// host is changed, and those that were are undone as well.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
                       nearfar fleet apply --engine slurm --partition db --results /shared/irq --canary 2 \
                       --measure 'bench latency --samples 12' -- --rule interrupt-far\n  \
                       nearfar fleet rollback --results /shared/irq")]
pub struct Apply {
    #[command(flatten)]
    on: OnHosts,
    /// Change this many hosts first, and the others only if none of these gets worse
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    canary: u32,
    /// What each host measures before and after: a verb that stores a run, with its arguments
    #[arg(long, value_name = "VERB")]
    measure: String,
    /// A host may be worse by this share
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = margin)]
    margin: f64,
    /// When a host gets worse, leave those that were changed before as they are
    #[arg(long)]
    keep_changed: bool,
    #[command(flatten)]
    format: FormatArgs,
    /// Which changes: the options of `nearfar apply`
    #[arg(last = true, value_name = "OPTIONS")]
    arguments: Vec<String>,
}

impl Apply {
    /// Changes the hosts and prints what became of them.
    pub fn run(self, colour: Colour) -> Outcome {
        let arguments = self.words()?;
        let step = Step::Change {
            measure: self.measure.clone(),
            margin: self.margin,
        };
        let manifest = self.on.manifest(step, arguments, None)?;
        let hosts = manifest.hosts.len();
        if hosts > 1 && self.canary as usize >= hosts {
            return Err(Failure::Input(anyhow!(
                "--canary {}: there are {hosts} hosts, and at least one has to follow the canaries",
                self.canary
            )));
        }
        let folder = Folder::create(&self.on.results, manifest).map_err(of_folder)?;
        let _lock = folder.lock().map_err(of_folder)?;
        let cancel = signals::cancel_flag();
        let request = RolloutRequest {
            folder: &folder,
            canaries: self.canary as usize,
            keeps_changed: self.keep_changed,
            by: &by(),
            cancel: &cancel,
        };
        let mut on_event = |host: &HostName, event: &HostEvent| match event {
            HostEvent::Starting | HostEvent::Started { .. } => {}
            HostEvent::Answered => output::say!("{host}: done"),
            HostEvent::Failed { reason } | HostEvent::Lost { reason, .. } => {
                output::say!("{host}: {reason}");
            }
        };
        let ended = Arc::new(AtomicBool::new(false));
        say_when_interrupted(&cancel, &ended);
        let rolled_out = request.carry_out(&mut on_event);
        ended.store(true, Ordering::SeqCst);
        let undo = undo_command(&self.on.results);
        print(
            &rolled_out,
            "fleet-apply/1",
            self.format.format,
            &undo,
            colour,
        )?;
        let problem = match (rolled_out.stopped_at.first(), &rolled_out.failure) {
            (Some(HostReason { host, reason }), _) => format!("stopped at {host}: {reason}"),
            (None, Some(failure)) => failure.clone(),
            (None, None) if rolled_out.is_interrupted => {
                format!("interrupted; what was changed stays: `{undo}` undoes it")
            }
            (None, None) => return Ok(()),
        };
        let rest = match rolled_out.not_rolled_back.is_empty() {
            true => String::new(),
            false => format!("; some hosts may still be changed: `{undo}` tries again"),
        };
        Err(Failure::Refused(anyhow!("{problem}{rest}")))
    }

    /// The words of `apply` on each host; checked here, where one person sees what is wrong.
    fn words(&self) -> Result<Vec<String>, Failure> {
        let mut words = ["apply", "--yes", "--format", "json"]
            .map(str::to_owned)
            .to_vec();
        words.extend(self.arguments.iter().cloned());
        let measure: Vec<String> = self.measure.split_whitespace().map(str::to_owned).collect();
        let verb = measure.first().map_or("", String::as_str);
        if !MEASURING.contains(&verb) {
            return Err(Failure::Input(anyhow!(
                "--measure: {verb:?} does not measure; {}",
                nearfar_machine::alternatives(verb, &MEASURING.map(str::to_owned))
            )));
        }
        if let Verb::Apply(apply) = parsed(&words)?
            && let Some(option) = apply.of_one_host()
        {
            return Err(Failure::Input(anyhow!(
                "{option} cannot be used with fleet apply; `nearfar fleet run ... -- plan` shows what each host would change"
            )));
        }
        check_arguments(&measure)?;
        Ok(words)
    }
}

/// Undo what `fleet apply` made, on every host that is still changed
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar fleet rollback --results /shared/irq")]
pub struct Rollback {
    /// The folder that `fleet apply` made
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// How nearfar is called on the hosts [default: as in fleet apply]
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

impl Rollback {
    /// Undoes and prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let mut folder = Folder::open(&self.results).map_err(of_folder)?;
        if let Some(command) = &self.command {
            folder.manifest.command = command_words(command)?;
        }
        if !folder.manifest.is_rollout() {
            return Err(Failure::Input(anyhow!(
                "{} is not the folder of a fleet apply",
                self.results.display()
            )));
        }
        let _lock = folder.lock().map_err(of_folder)?;
        let cancel = signals::cancel_flag();
        let request = RolloutRequest {
            folder: &folder,
            canaries: 1,
            keeps_changed: false,
            by: &by(),
            cancel: &cancel,
        };
        let rolled_out = roll_back(&request).map_err(by_who_has_to_act)?;
        let again = undo_command(&self.results);
        print(
            &rolled_out,
            "fleet-rollback/1",
            self.format.format,
            "",
            colour,
        )?;
        match rolled_out.not_rolled_back.len() {
            0 => Ok(()),
            number => Err(Failure::Refused(anyhow!(
                "{} not rolled back; `{again}` tries again",
                nearfar_report::count(number, "host")
            ))),
        }
    }
}

fn undo_command(results: &Path) -> String {
    let results = nearfar_lab::shell::word(results.as_os_str());
    format!("nearfar fleet rollback --results {results}")
}

/// Says at once what a Ctrl-C does: a step can take minutes.
fn say_when_interrupted(cancel: &Arc<AtomicBool>, ended: &Arc<AtomicBool>) {
    let (cancel, ended) = (Arc::clone(cancel), Arc::clone(ended));
    std::thread::spawn(move || {
        while !ended.load(Ordering::SeqCst) {
            if cancel.load(Ordering::SeqCst) {
                output::say!(
                    "interrupted: no further step begins; waiting for those that run (Ctrl-C again leaves them to themselves)"
                );
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

fn print(
    rolled_out: &RolledOut,
    schema: &str,
    format: Format,
    undo: &str,
    colour: Colour,
) -> Outcome {
    output::print(&match format {
        Format::Table => {
            nearfar_report::fleet::rolled_out(rolled_out, undo).to_text(&output::style(colour))
        }
        Format::Json => output::json(schema, None, rolled_out)?,
    })
}

fn margin(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|share| *share > 0.0 && *share < 1.0)
        .ok_or_else(|| "a share above 0 and below 1".to_owned())
}
