//! `nearfar prefer service`: rules from a file, tasks as they come.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use nearfar_prefer::service::{self, Checked, Control, ServiceError, Surroundings};
use nearfar_sources::{Request, Want};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::{output, signals};

/// Keep the tasks that a configuration file names on their preferred nodes, until it is ended
///
/// SIGHUP makes it read the file again; a file with a fault changes nothing. SIGTERM and Ctrl-C end it and give every task
/// back the CPUs it had. What happens is said on standard error.
#[derive(Args)]
#[command(
    after_long_help = "The file holds rules, of which the first that matches a task has it:

  scan_seconds = 0.5             # how often to look for new tasks

  [[prefer]]
  name = \"cache\"
  node = 1                       # or near = \"eth0\": the node of a device
  command = \"redis-server*\"      # the task's name or its executable's
  unit = \"redis@*.service\"       # and, or instead: cgroup = \"/system.slice/...\"
  memory = \"untouched\"           # or \"follow\": its pages are moved to the node

Examples:
  nearfar prefer service --check
  nearfar prefer service --config ./prefer.toml"
)]
pub struct Service {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/nearfar/prefer.toml")]
    config: PathBuf,
    /// Check the configuration and show which tasks it would have now; change nothing
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct Answer {
    rules: Vec<Checked>,
}

impl Service {
    /// Serves until it is ended, or checks.
    pub fn run(self, colour: Colour) -> Outcome {
        if self.check {
            return self.show(colour);
        }
        let control = control().map_err(Failure::refused)?;
        let machine = || Ok(nearfar_sources::read(&Request::live(want()))?);
        service::run(&self.config, &control, &Surroundings { machine: &machine }).map_err(failure)
    }

    fn show(&self, colour: Colour) -> Outcome {
        let config = service::load(&self.config).map_err(failure)?;
        let machine = nearfar_sources::read(&Request::live(want())).map_err(Failure::input)?;
        let rules = service::check(&config, &machine).map_err(failure)?;
        match self.format.format {
            Format::Table => output::print(
                &nearfar_report::prefer::check(&rules).to_text(&output::style(colour)),
            )?,
            Format::Json => {
                output::print(&output::json(
                    "prefer-service-check/1",
                    Some(&machine.origin),
                    &Answer {
                        rules: rules.clone(),
                    },
                )?)?;
            }
        }
        // The service would wait for them; who checks wants to know.
        match rules.iter().find(|rule| rule.node.is_none()) {
            Some(rule) => Err(Failure::input(anyhow::anyhow!(
                "{}:{}: {}: {}",
                self.config.display(),
                rule.line,
                rule.rule,
                rule.located
            ))),
            None => Ok(()),
        }
    }
}

fn want() -> Want {
    Want {
        devices: true,
        ..Want::placement()
    }
}

/// Flags that signals set, and a pipe they are heard by while the service waits. A second Ctrl-C or SIGTERM, 200 ms later
/// or more, ends at once: what is to be put back is on record.
fn control() -> std::io::Result<Control> {
    let (stop, reload) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (wake, waker) = rustix::pipe::pipe_with(
        rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK,
    )?;
    signals::cancel_on(&[SIGINT, SIGTERM], &stop)?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
    }
    signal_hook::flag::register(SIGHUP, Arc::clone(&reload))?;
    signal_hook::low_level::pipe::register(SIGHUP, waker)?;
    Ok(Control { stop, reload, wake })
}

fn failure(error: ServiceError) -> Failure {
    match error {
        ServiceError::Config(_) | ServiceError::Unreadable { .. } => Failure::input(error),
        _ => Failure::refused(error),
    }
}
