//! Which guest: the options that `lab run`, `lab shell` and `ab` share.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches as _, ValueEnum};
use nearfar_lab::delay::{DelaySpec, TimeSpec};
use nearfar_lab::guest::{Guest, PreparedGuest, Root};
use nearfar_lab::request::GuestRequest;
use nearfar_lab::{Arch, LabError};
use nearfar_machine::{Acceleration, NodeLimits};
use nearfar_sources::{Request, Want};

use crate::args::seconds;
use crate::failure::Failure;
use crate::output;

/// The guest to boot.
#[derive(Args, Clone, Debug)]
pub struct GuestArgs {
    /// The machine: a name from `nearfar lab machines` or anything --source takes (a snapshot, hwloc XML, `numactl -H`
    /// text, a description file, a synthetic string; several describe one machine together)
    #[arg(long, value_name = "MACHINE", default_value = "two-node")]
    machine: Vec<String>,
    /// Cut each node down, such as cpus=2,memory=512M; nodes without CPUs or memory stay so
    #[arg(long, value_name = "SCALE")]
    scale: Option<NodeLimits>,
    /// x86_64, arm64 or powerpc64le [default: the machine's own, or this host's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// A series from `nearfar lab kernels list` (6.12), an image, a build tree, or "host" [default: of the series
    /// that the machine names, or else the newest cached one]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// Parameters for the guest kernel's command line (may be repeated)
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    append: Vec<String>,
    /// Make far memory slow: auto, off, or delays such as near=400,far=800 (docs/delays.md)
    #[arg(long, value_name = "DELAYS")]
    delay: Option<DelaySpec>,
    /// The time that the guest's clocks follow while a command runs: host, simulated, simulated with
    /// instruction=NS,window=NS,seed=NUMBER,idle=jump,disk=NS, or auto: simulated in software emulation of this
    /// host's architecture (docs/time.md) [default: auto where a verb measures, host in lab run and lab shell]
    #[arg(long, value_name = "TIME")]
    time: Option<TimeSpec>,
    /// How the guest's CPUs run; delays and simulated time need software emulation
    #[arg(long, value_enum, default_value_t = Accel::Auto, value_name = "HOW")]
    accel: Accel,
    /// The host's files are read-only in the guest, instead of below an overlay that is thrown away
    #[arg(long)]
    read_only: bool,
    /// A folder of the host that the guest may write to, as /results
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Show the guest kernel's console on standard error; the guest boots
    #[arg(long)]
    console: bool,
    /// Boot, instead of starting from a guest of the same design that was saved after its boot
    #[arg(long)]
    cold: bool,
    /// Fail when the guest is not up after this long
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    boot_timeout: f64,
    /// End the guest when the command runs longer than this [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    command_timeout: Option<f64>,
}

/// How the guest's CPUs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Accel {
    /// KVM where a guest was seen to live under it, software emulation otherwise
    Auto,
    /// On this host's CPUs
    Kvm,
    /// In software
    Tcg,
}

impl Default for GuestArgs {
    fn default() -> Self {
        let command = Self::augment_args(Command::new("guest").no_binary_name(true));
        let matches = command.try_get_matches_from([""; 0]);
        let defaults = matches.and_then(|matches| Self::from_arg_matches(&matches));
        defaults.expect("every option of a guest has a default")
    }
}

impl GuestArgs {
    /// The same guest with one thing changed, as `ab` writes it: `kernel=6.1`.
    pub fn with(mut self, key: &str, value: &str) -> Result<Self, String> {
        fn text(error: impl std::fmt::Display) -> String {
            error.to_string()
        }
        match key {
            "machine" => self.machine = vec![value.to_owned()],
            "kernel" => self.kernel = Some(value.to_owned()),
            // A guest without kernel parameters, next to one that has some.
            "append" if value == "none" => {}
            "append" => self.append.push(value.to_owned()),
            "accel" => self.accel = Accel::from_str(value, true)?,
            "arch" => self.arch = Some(value.parse()?),
            "scale" => self.scale = Some(value.parse().map_err(text)?),
            "delay" => self.delay = Some(value.parse().map_err(text)?),
            "time" => self.time = Some(value.parse().map_err(text)?),
            _ => {
                return Err(format!(
                    "{key}: not one of machine, kernel, append, arch, scale, delay, time, accel"
                ));
            }
        }
        Ok(self)
    }

    /// The request for the lab; `time` is that of a guest for which none is asked.
    pub fn request(&self, time: TimeSpec) -> Result<GuestRequest, Failure> {
        let sources = Request {
            sources: self.machine.clone(),
            ..Request::live(Want::all())
        };
        let machine = nearfar_sources::read(&sources).map_err(Failure::input)?;
        let name = self.machine.first().and_then(|it| it.rsplit('/').next());
        Ok(GuestRequest {
            limits: self.scale.unwrap_or_default(),
            arch: self.arch,
            kernel: self.kernel.clone(),
            append: self.append.clone(),
            delay: self.delay.clone().unwrap_or(DelaySpec::Off),
            time: self.time.unwrap_or(time),
            acceleration: match self.accel {
                Accel::Auto => None,
                Accel::Kvm => Some(Acceleration::Kvm),
                Accel::Tcg => Some(Acceleration::Tcg),
            },
            root: if self.read_only {
                Root::ReadOnly
            } else {
                Root::Overlay
            },
            results: self.results.clone(),
            console: self.console,
            cold: self.cold,
            boot_timeout: Duration::from_secs_f64(self.boot_timeout),
            command_timeout: self.command_timeout.map(Duration::from_secs_f64),
            ..GuestRequest::new(machine, name.unwrap_or_default())
        })
    }
}

/// Starts a guest; says on standard error which boots failed by chance before, and why it is one that cannot be saved.
pub fn booted(prepared: &PreparedGuest, cancel: &AtomicBool) -> Result<Guest, LabError> {
    let guest = Guest::boot(prepared, cancel)?;
    for why in guest.failed_boots() {
        output::say!("note: the guest was booted again: {why}");
    }
    if let Some(why) = guest.unsaved_reason() {
        output::say!("note: this guest cannot be saved, so each start boots it: {why}");
    }
    Ok(guest)
}

/// What the caller has to fix is wrong input; the rest the system refused.
pub fn failure(error: LabError) -> Failure {
    match error {
        LabError::Design(_)
        | LabError::Delay(_)
        | LabError::PluginUnderKvm
        | LabError::Kernel { .. }
        | LabError::Content { .. } => Failure::input(error),
        _ => Failure::refused(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMACTL: &str = "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 1024 MB\nnode 1 cpus: 2 3\n\
                           node 1 size: 1024 MB\nnode distances:\nnode   0   1\n  0:  10  21\n  1:  21  10\n";
    const MLC: &str = "Measuring idle latencies (in ns)...\n                Numa node\nNuma node            0       1\n\
                       \x20      0          81.5   139.6\n       1         139.4    81.9\n";

    #[test]
    fn several_machines_describe_one_together() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let files = [file("numactl.txt", NUMACTL), file("mlc.txt", MLC)];
        let guest = GuestArgs {
            machine: files.into(),
            ..GuestArgs::default()
        };
        let request = guest.request(TimeSpec::Host).unwrap();
        assert_eq!(request.name, "numactl.txt");
        assert_eq!(request.machine.cpus.len(), 4);
        let latencies = request.machine.timing.unwrap().latencies;
        assert!(latencies.iter().map(|it| it.ns).eq([82, 140, 139, 82]));

        let changed = guest.with("machine", "two-node").unwrap();
        let machine = changed.request(TimeSpec::Host).unwrap().machine;
        assert!(machine.timing.is_none());
    }
}
