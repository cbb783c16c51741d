//! Settings and resources of an experiment on a real kernel: they take effect in a cell, and nothing is left of them, also
//! after SIGKILL.
//!
//! Needs what crates/cli/tests/guest/leftovers.rs needs; without it says so and passes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::Duration;

use crate::guests;
use crate::waiting::wait_until;
use nearfar_experiment::{
    BoxError, Cell, Change, Column, Ended, Experiment, Factor, Metric, Options, Process, Resources,
    RunPlan, carry_out,
};
use nearfar_machine::{IoPolicy, Irq};
use nearfar_runs::Store;
use nearfar_sources::{Request, Want};
use serde_json::json;

const GROUPS: &str = "/sys/fs/cgroup";
const NULL_DEVICES: &str = "/sys/kernel/config/nullb";
const NIC: &str = "/sys/class/net/eth0/queues";
const SUBSYSTEM: &str = "/sys/class/nvme-subsystem/nvme-subsys0/iopolicy";
const RECLAIM: &str = "/proc/sys/vm/zone_reclaim_mode";
/// Exists while the sample of a killed run is taken.
const IN_SAMPLE: &str = "/run/in-sample";

/// Files by name, with what they hold.
type State = BTreeMap<String, String>;

fn content(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    let text = fs::read_to_string(path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim().to_owned()
}

/// The interrupt of the NIC's first queue.
fn interrupt() -> u32 {
    let table = content("/proc/interrupts");
    let line = table.lines().find(|line| line.ends_with("eth0-rx-0"));
    let line = line.unwrap_or_else(|| panic!("no interrupt of a queue: {table}"));
    line.split(':').next().unwrap().trim().parse().unwrap()
}

/// What the cells set, but for the control group's CPUs.
fn settings() -> State {
    let interrupt = format!("/proc/irq/{}/smp_affinity_list", interrupt());
    let (xps, rps) = (
        format!("{NIC}/tx-0/xps_cpus"),
        format!("{NIC}/rx-0/rps_cpus"),
    );
    let files = [RECLAIM, SUBSYSTEM, &interrupt, &xps, &rps];
    files.map(|file| (file.to_owned(), content(file))).into()
}

/// Where `nearfar` is in the guest.
const COMMAND: &str = "/run/nearfar-under-test";

/// Names of resources of any nearfar that are there.
fn resources() -> Vec<String> {
    let names = |directory: &str| {
        let entries = fs::read_dir(directory).into_iter().flatten();
        entries
            .map(|entry| entry.unwrap().path())
            .collect::<Vec<_>>()
    };
    let ours = |path: &PathBuf| path.to_string_lossy().contains("/nearfar-");
    let made = [GROUPS, NULL_DEVICES, "/tmp", "/dev"].map(|it| names(it).into_iter().filter(ours));
    let loops = names("/sys/block")
        .into_iter()
        .map(|it| it.join("loop/backing_file"));
    let loops = loops.filter(|file| file.exists());
    let processes = names("/proc").into_iter().filter(|path| {
        fs::read(path.join("environ")).is_ok_and(|it| {
            it.split(|byte| *byte == 0)
                .any(|it| it.starts_with(b"NEARFAR_RESOURCE="))
        })
    });
    let all = made.into_iter().flatten().chain(loops).chain(processes);
    all.map(|path| path.display().to_string()).collect()
}

/// Sets everything in one of two cells; its setup makes one resource of each kind.
#[derive(Default)]
struct Everything {
    has_null_block: bool,
    /// Whether a sample of the cell that sets something never ends.
    hangs: bool,
    group: PathBuf,
    devices: Vec<PathBuf>,
    server: Option<Process>,
}

impl Experiment for Everything {
    type Sample = State;

    fn name(&self) -> &str {
        "everything"
    }

    fn plan(&self) -> RunPlan {
        RunPlan::of_factors(json!({}), vec![Factor::new("cell", ["set", "kept"])])
    }

    fn settings(&self, cell: &Cell) -> Vec<Change> {
        if cell.text("cell") == "kept" {
            return Vec::new();
        }
        let cpus = || "1".parse().unwrap();
        vec![
            Change::sysctl("vm.zone_reclaim_mode", "1"),
            Change::NvmeIoPolicy {
                subsystem: "nvme-subsys0".to_owned(),
                policy: IoPolicy::RoundRobin,
            },
            Change::InterruptAffinity {
                irq: Irq(interrupt()),
                cpus: cpus(),
                near: None,
                name: None,
            },
            Change::Xps {
                interface: "eth0".to_owned(),
                queue: 0,
                cpus: cpus(),
            },
            Change::Rps {
                interface: "eth0".to_owned(),
                queue: 0,
                cpus: cpus(),
            },
            Change::Cpuset {
                group: self.group.file_name().unwrap().to_str().unwrap().to_owned(),
                cpus: cpus(),
            },
        ]
    }

    fn setup(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        self.group = resources.control_group(Path::new(GROUPS))?;
        let file = resources.temporary_file(8 << 20)?;
        self.devices = vec![resources.loop_device(&file)?];
        if self.has_null_block {
            self.devices
                .push(resources.null_block(&[("size", "16"), ("memory_backed", "1")])?);
        }
        let mut server = Command::new("sh");
        server.args(["-c", "while read words; do echo $words; done"]);
        let server = resources.start_with_pipes(server)?;
        fs::write(self.group.join("cgroup.procs"), server.pid().to_string())?;
        self.server = Some(server);
        Ok(())
    }

    fn setup_cell(&mut self, _: &Cell, resources: &mut Resources) -> Result<(), BoxError> {
        resources.temporary_directory()?;
        Ok(())
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<State, BoxError> {
        let mut state = settings();
        state.insert(
            "cpuset".to_owned(),
            content(self.group.join("cpuset.cpus.effective")),
        );
        let server = self.server.as_mut().ok_or("no server")?;
        state.insert("server".to_owned(), server.ask("hello", cancel)?);
        state.insert("allowed".to_owned(), allowed_cpus(server.pid()));
        for device in &self.devices {
            fs::write(device, "a block")?;
        }
        state.insert("devices".to_owned(), self.devices.len().to_string());
        if self.hangs && cell.text("cell") == "set" {
            fs::write(IN_SAMPLE, "")?;
            sleep(Duration::from_secs(600));
        }
        Ok(state)
    }

    fn columns() -> Vec<Column<State>> {
        vec![Column::new(Metric::elapsed().primary(), |_| Some(1.0))]
    }
}

fn allowed_cpus(pid: i32) -> String {
    let status = content(format!("/proc/{pid}/status"));
    let line = status
        .lines()
        .find_map(|it| it.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

fn has_null_block() -> bool {
    Path::new(NULL_DEVICES).is_dir()
}

/// Carries it out in a store of its own.
fn carried_out(hangs: bool) -> nearfar_experiment::Outcome<State> {
    let place = tempfile::Builder::new().tempdir_in("/run").unwrap();
    let mut store = Store::open(&place.path().join("runs.db")).unwrap();
    let machine = nearfar_sources::read(&Request::live(Want::topology())).unwrap();
    let mut experiment = Everything {
        has_null_block: has_null_block(),
        hangs,
        ..Everything::default()
    };
    let options = Options::new(2);
    let cancel = AtomicBool::new(false);
    carry_out(&mut experiment, options, &mut store, &machine, &cancel).unwrap()
}

#[test]
fn settings_and_resources_take_effect_and_nothing_is_left_of_them() {
    if guests::skipped() {
        return;
    }
    let options = ["--scale", "cpus=1,memory=256M"];
    guests::part("queues-on-node-2", &options, "settings::in_the_guest");
}

#[test]
#[ignore = "runs in a guest, started by the test above"]
fn in_the_guest() {
    assert!(guests::is_inside());
    prepare();
    let before = settings();
    assert_eq!(resources(), Vec::<String>::new());
    take_effect(&before);
    assert_eq!(settings(), before);
    assert_eq!(resources(), Vec::<String>::new());
    for (has_guard, kills_guard) in [(false, false), (true, false), (true, true)] {
        killed(&before, has_guard, kills_guard);
    }
}

fn prepare() {
    let shell = |script: &str| {
        Command::new("sh")
            .args(["-c", script])
            .status()
            .unwrap()
            .success()
    };
    // The host's temporary files are not this test's. A checkout in /tmp is out of reach then, so the command is mounted elsewhere.
    fs::write(COMMAND, "").unwrap();
    let bound = Command::new("mount")
        .args(["--bind", guests::NEARFAR, COMMAND])
        .status()
        .unwrap();
    assert!(bound.success());
    assert!(shell("modprobe loop && mount -t tmpfs none /tmp"));
    if !shell("modprobe null_blk nr_devices=0 && modprobe configfs")
        || !(has_null_block() || shell("mount -t configfs none /sys/kernel/config"))
        || !has_null_block()
    {
        println!("skipped: kernel: this kernel has no null_blk in configfs");
    }
    fs::write(Path::new(GROUPS).join("cgroup.subtree_control"), "+cpuset").unwrap();
}

fn take_effect(before: &State) {
    let outcome = carried_out(false);
    assert_eq!((outcome.ended, outcome.samples.len()), (Ended::Complete, 4));
    for sampled in &outcome.samples {
        assert_eq!(sampled.warnings, Vec::<String>::new());
        let (state, cell) = (&sampled.sample, sampled.cell.text("cell"));
        assert_eq!(state["server"], "hello");
        assert_eq!(state["devices"], if has_null_block() { "2" } else { "1" });
        for (file, old) in before {
            let wanted = match file.as_str() {
                _ if cell == "kept" => old.as_str(),
                SUBSYSTEM => "round-robin",
                file if file.ends_with("ps_cpus") => "2",
                _ => "1",
            };
            let (now, wanted) = (
                state[file].trim_start_matches('0'),
                wanted.trim_start_matches('0'),
            );
            assert_eq!(now, wanted, "{file} in cell {cell}");
            assert!(
                cell == "kept" || now != old.trim_start_matches('0'),
                "{file} was so before"
            );
        }
        let cpus = if cell == "set" { "1" } else { "0-3" };
        assert_eq!(
            (state["cpuset"].as_str(), state["allowed"].as_str()),
            (cpus, cpus),
            "{cell}"
        );
    }
}

fn killed(before: &State, has_guard: bool, kills_guard: bool) {
    let _ = fs::remove_file(IN_SAMPLE);
    let mut child = Command::new("/proc/self/exe");
    child.args([
        "--exact",
        "settings::a_run_that_hangs",
        "--ignored",
        "--nocapture",
    ]);
    if has_guard {
        child.env("WITH_GUARD", "yes");
    }
    let mut child = child.spawn().unwrap();
    wait_until("no sample", || Path::new(IN_SAMPLE).exists());
    assert!(
        settings().iter().all(|(file, now)| before[file] != *now),
        "{:?}",
        settings()
    );
    let kinds = if has_null_block() { 7 } else { 5 };
    assert!(resources().len() >= kinds, "{:?}", resources());
    let guards = if kills_guard {
        guards_of(&child)
    } else {
        Vec::new()
    };
    assert_eq!(guards.is_empty(), !kills_guard);
    child.kill().unwrap();
    for guard in guards {
        // SAFETY: kill(2) of a process that ends only with this call or the guard's work.
        unsafe { libc::kill(guard, libc::SIGKILL) };
    }
    child.wait().unwrap();
    if has_guard && !kills_guard {
        wait_until("the guard leaves something", || {
            settings() == *before && resources().is_empty()
        });
        return;
    }
    assert_ne!(settings(), *before, "it was not undone");
    let next = Command::new(COMMAND)
        .args(["runs", "list"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&next.stderr);
    assert_eq!(settings(), *before, "{said}");
    assert_eq!(resources(), Vec::<String>::new(), "{said}");
    assert!(
        said.contains("was killed: ") && !said.contains("not put back"),
        "{said}"
    );
}

#[test]
#[ignore = "runs in a guest and is killed there"]
fn a_run_that_hangs() {
    assert!(guests::is_inside());
    if std::env::var_os("WITH_GUARD").is_some() {
        nearfar_change::lease::guard_with(COMMAND.into());
    }
    carried_out(true);
}

fn guards_of(owner: &Child) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", owner.id())).unwrap();
    let children = tasks.map(|task| content(task.unwrap().path().join("children")));
    let children: Vec<String> = children.collect();
    let children = children.iter().flat_map(|it| it.split_whitespace());
    let is_guard = |child: &&str| content(format!("/proc/{child}/cmdline")).contains("lease-guard");
    children
        .filter(is_guard)
        .map(|it| it.parse().unwrap())
        .collect()
}
