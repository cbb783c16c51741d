//! What happens on the machine while fio runs: NVMe commands by path, and I/O of others.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nearfar_experiment::BoxError;
use nearfar_machine::{CpuId, Known, Machine, PciAddress};
use nearfar_trace::nvme::{self, Commands, Decoder};
use nearfar_trace::records::Sample;
use nearfar_trace::{Plan, Session, TraceError, Tracefs};

/// Others' I/O below this share of all is what any system shows, and what fio does between warm-up and measured time.
const MIN_OTHER_SHARE: f64 = 0.05;
/// The same in bytes: a journal that is written meanwhile.
const MIN_OTHER_BYTES: f64 = 1e6;

/// NVMe commands of a disk with several paths.
pub(super) struct Paths {
    session: Session,
    decoder: Decoder,
    commands: Commands,
    namespace: String,
}

impl Paths {
    /// Opens the trace for a namespace. It stays open for the whole run, and takes nothing before [`Self::begin`].
    ///
    /// # Errors
    /// When the kernel does not let this user trace.
    pub(super) fn open(machine: &Machine, namespace: &str) -> Result<Self, BoxError> {
        let format = Tracefs::find()?.tracepoint(nvme::SYSTEM, nvme::EVENT)?;
        let decoder = Decoder::new(&format)?;
        let plan = Plan {
            cpus: &machine.cpu_states.online,
            tracepoints: &[(&format, None)],
            names: false,
            callers_of: None,
        };
        let mut session = Session::open(&plan)?;
        session.enable()?;
        Ok(Self {
            session,
            commands: Commands::new(decoder),
            decoder,
            namespace: namespace.to_owned(),
        })
    }

    /// Forgets what came so far.
    pub(super) fn begin(&mut self) -> Result<(), TraceError> {
        self.session.settle(&mut |_, _: &Sample<'_>| ())?;
        self.commands = Commands::new(self.decoder);
        Ok(())
    }

    /// Counts what came, and waits for more.
    pub(super) fn wait(&mut self, time: Duration) -> Result<(), TraceError> {
        let Self {
            session, commands, ..
        } = self;
        session.drain(&mut |cpu: CpuId, sample: &Sample<'_>| commands.take(cpu, sample));
        session.wait(time, &[])
    }

    /// The share of commands since [`Self::begin`] that took a path nearest to their CPU.
    ///
    /// # Errors
    /// Why it is unknown.
    pub(super) fn nearest_share(&mut self, machine: &Machine) -> Result<f64, String> {
        let Self {
            session, commands, ..
        } = self;
        session
            .settle(&mut |cpu, sample| commands.take(cpu, sample))
            .map_err(|error| error.to_string())?;
        let machine = with_names(machine, current_controller);
        let answer = nvme::answer(commands, &machine, None).map_err(|error| error.to_string())?;
        let of_disk = answer
            .namespaces
            .into_iter()
            .find(|it| it.namespace == self.namespace);
        let share = of_disk.map(|it| it.nearest_share);
        match share.as_ref().map(|it| (it.get(), it.unknown_reason())) {
            Some((Some(&share), _)) => Ok(share),
            Some((None, Some(reason))) => Err(reason.to_string()),
            _ => Err("the disk is not among the machine's namespaces".to_owned()),
        }
    }
}

/// The machine with the names that its NVMe controllers have now: a controller whose driver is bound again, as `plan` does and undoes,
/// may get another number, and its paths with it.
fn with_names(machine: &Machine, current: impl Fn(PciAddress) -> Option<String>) -> Machine {
    let mut machine = machine.clone();
    let Known::Yes(subsystems) = &mut machine.nvme else {
        return machine;
    };
    for subsystem in subsystems {
        let mut new_names: HashMap<String, String> = HashMap::new();
        for controller in &mut subsystem.controllers {
            if let Some(name) = controller.device.and_then(&current) {
                let old = std::mem::replace(&mut controller.name, name.clone());
                new_names.insert(old, name);
            }
        }
        let namespaces = subsystem.namespaces.iter_mut();
        for path in namespaces.flat_map(|namespace| &mut namespace.paths) {
            if let Some(name) = new_names.get(&path.controller) {
                path.name = path_name(&path.name, name).unwrap_or_else(|| path.name.clone());
                path.controller = name.clone();
            }
        }
    }
    machine
}

/// nvme0c1n1 as a path through nvme2: nvme0c2n1 (`nvme_mpath_set_disk_name` in drivers/nvme/host/multipath.c).
fn path_name(path: &str, controller: &str) -> Option<String> {
    let (subsystem, rest) = path.strip_prefix("nvme")?.split_once('c')?;
    let (_, namespace) = rest.split_once('n')?;
    let number = controller.strip_prefix("nvme")?;
    Some(format!("nvme{subsystem}c{number}n{namespace}"))
}

/// The name of a PCI function's NVMe controller.
fn current_controller(function: PciAddress) -> Option<String> {
    let directory = format!("/sys/bus/pci/devices/{function}/nvme");
    let entry = fs::read_dir(directory).ok()?.next()?.ok()?;
    entry.file_name().into_string().ok()
}

/// Bytes that disks have read and written since boot, for all programs.
pub(super) struct DiskCounts(Vec<Option<u64>>);

impl DiskCounts {
    /// Of disks in sysfs.
    pub(super) fn now(disks: &[PathBuf]) -> Self {
        let moved = |disk: &PathBuf| moved(&fs::read_to_string(disk.join("stat")).ok()?);
        Self(disks.iter().map(moved).collect())
    }

    /// A warning when more than a twentieth since then was not fio's. `bytes` are fio's, those of its warm-up among them.
    pub(super) fn others_since(&self, before: &Self, bytes: f64) -> Option<String> {
        let pairs = self.0.iter().zip(&before.0);
        let all = pairs.map(|(now, then)| now.as_ref()?.checked_sub((*then)?));
        let all = all.sum::<Option<u64>>()? as f64;
        let others = all - bytes;
        let is_much = others > MIN_OTHER_BYTES && others > MIN_OTHER_SHARE * all;
        is_much.then(|| {
            format!(
                "{:.0} % of the disk's I/O in the sample was not fio's: other programs use the disk",
                100.0 * others / all
            )
        })
    }
}

/// Bytes read and written (Documentation/block/stat.rst, fields 3 and 7).
fn moved(stat: &str) -> Option<u64> {
    const SECTOR_BYTES: u64 = 512;
    let fields: Vec<&str> = stat.split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    field(2)?.checked_add(field(6)?)?.checked_mul(SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_was_bound_again_takes_its_paths_along() {
        let request = nearfar_sources::Request {
            sources: vec!["x86-case1".to_owned()],
            ..nearfar_sources::Request::live(nearfar_sources::Want::audit())
        };
        let machine = nearfar_sources::read(&request).unwrap();
        let before = machine.nvme.get().unwrap()[0].clone();
        let moved = before.controllers[0].device;
        let renamed = with_names(&machine, |it| {
            (Some(it) == moved).then(|| "nvme7".to_owned())
        });
        let after = &renamed.nvme.get().unwrap()[0];
        assert_eq!(after.controllers[0].name, "nvme7");
        assert_eq!(after.controllers[1..], before.controllers[1..]);
        let names = |paths: &[nearfar_machine::NvmePath]| -> Vec<(String, String)> {
            let names = paths.iter();
            names
                .map(|it| (it.name.clone(), it.controller.clone()))
                .collect()
        };
        let old = names(&before.namespaces[0].paths);
        let expected: Vec<_> = old
            .into_iter()
            .map(
                |(path, controller)| match controller == before.controllers[0].name {
                    true => (path_name(&path, "nvme7").unwrap(), "nvme7".to_owned()),
                    false => (path, controller),
                },
            )
            .collect();
        assert_eq!(names(&after.namespaces[0].paths), expected);
        assert_eq!(path_name("nvme0c1n1", "nvme12").unwrap(), "nvme0c12n1");
    }

    #[test]
    fn others_are_what_fio_did_not_do() {
        let (before, after) = (
            DiskCounts(vec![Some(100)]),
            DiskCounts(vec![Some(20_000_100)]),
        );
        assert_eq!(after.others_since(&before, 2e7), None);
        let warning = after.others_since(&before, 1e7).unwrap();
        assert!(warning.starts_with("50 % of"), "{warning}");
        let unknown = DiskCounts(vec![None]);
        assert_eq!(unknown.others_since(&before, 0.0), None);
        assert_eq!(moved("5 0 40 1 7 0 8 2 0 1 1"), Some(48 * 512));
        assert_eq!(moved(""), None);
    }
}
