//! A system in memory: the kernel's files of a small machine, which say what the kernel would after a write, fail where they are told,
//! and end the process that uses them at any step.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearfar_change::system::System;
use nearfar_machine::{CpuSet, NodeSet};

const FUNCTIONS: &str = "/sys/bus/pci/devices";
const DRIVERS: &str = "/sys/bus/pci/drivers";
const SUBSYSTEM: &str = "/sys/class/nvme-subsystem/nvme-subsys0";
/// PCI functions with an NVMe controller of one subsystem each.
pub const NVME: [&str; 3] = ["0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"];

/// What happens at a step of the system's user. Each write has a step before and after it, each line of a journal also one in its
/// middle, and there is one after each wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// SIGKILL: nothing that the user does afterwards has an effect.
    Kill,
    /// The call is answered with this errno.
    Fail(i32),
}

/// See the module. A clone of its state is taken by [`Simulated::seen`].
#[derive(Debug)]
pub struct Simulated(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    /// The number of the next NVMe controller.
    next_controller: u32,
    /// CPUs without a free interrupt vector.
    full: CpuSet,
    /// Whether somebody has the disk open exclusively.
    is_claimed: bool,
    /// A function whose driver does not take it.
    dead: Option<String>,
    /// How often a controller that was just bound is looked at before its path is there.
    looks_to_path: u32,
    /// The same for those whose path is not there yet.
    scanned: BTreeMap<String, u32>,
    step: u64,
    /// What happens at which step.
    events: BTreeMap<u64, Event>,
    is_killed: bool,
    /// The journal that the killed process was writing, as it was then: what goes on to run here cuts off lines that it could not finish
    /// and removes journals that it could not begin, which nothing does after a kill.
    left: Option<(PathBuf, Vec<u8>, Permissions)>,
}

impl Simulated {
    /// Four interrupts, one of which the kernel manages itself, a NIC with a queue pair, an NVMe subsystem with three paths, a control
    /// group with tasks and one without, settings of the scheduler. Of CPUs 0 to 7, CPU 7 has no interrupt vector left.
    pub fn machine() -> Self {
        let mut state = State {
            full: "7".parse().unwrap(),
            ..State::default()
        };
        let mut put = |path: &str, text: &str| {
            state.files.insert(path.to_owned(), format!("{text}\n"));
        };
        put("/proc/sys/kernel/random/boot_id", "a boot");
        put("/proc/sys/kernel/hostname", "box");
        put(
            "/proc/self/mountinfo",
            "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        );
        put("/sys/fs/cgroup/cgroup.controllers", "cpuset");
        put("/sys/fs/cgroup/cgroup.subtree_control", "cpuset");
        put("/sys/fs/cgroup/cpuset.mems.effective", "0-1");
        for irq in [10, 11, 12, 13] {
            put(&format!("/proc/irq/{irq}/smp_affinity_list"), "0-7");
            put(&format!("/proc/irq/{irq}/effective_affinity_list"), "0");
            let handler = format!("eth0-TxRx-{irq}");
            put(&format!("/sys/kernel/irq/{irq}/actions"), &handler);
        }
        put("/sys/class/net/eth0/queues/tx-0/xps_cpus", "ff");
        put("/sys/class/net/eth0/queues/rx-0/rps_cpus", "00");
        put("/sys/module/nvme_core/parameters/multipath", "Y");
        put(&format!("{SUBSYSTEM}/iopolicy"), "numa");
        put(&format!("{SUBSYSTEM}/subsysnqn"), "nqn.test");
        put(&format!("{SUBSYSTEM}/nvme0n1/dev"), "259:0");
        put("/sys/fs/cgroup/cpuset.cpus.effective", "0-7");
        for (group, cpus, mems) in [("busy", "", ""), ("idle", "0-3", "0")] {
            let file = |name: &str| format!("/sys/fs/cgroup/{group}/{name}");
            put(&file("cpuset.cpus"), cpus);
            put(&file("cpuset.mems"), mems);
            put(&file("memory.numa_stat"), "anon N0=0 N1=0");
            put(&file("cpuset.cpus.effective"), "0-7");
            put(&file("cpuset.mems.effective"), "0-1");
            put(
                &file("cgroup.procs"),
                if cpus.is_empty() { "1" } else { "" },
            );
        }
        for set in ["possible", "online", "has_memory"] {
            put(&format!("/sys/devices/system/node/{set}"), "0-1");
        }
        put("/proc/sys/kernel/numa_balancing", "1");
        put("/proc/sys/vm/zone_reclaim_mode", "0");
        put("/sys/kernel/debug/sched/migration_cost_ns", "500000");
        for function in NVME {
            let file = |name: &str| format!("{FUNCTIONS}/{function}/{name}");
            put(&file("numa_node"), "-1");
            put(&file("class"), "0x010802");
        }
        put(&format!("{DRIVERS}/nvme/bind"), "");
        put(&format!("{DRIVERS}/nvme/unbind"), "");
        for function in NVME {
            state.bind(function).unwrap();
        }
        let of_disk = format!("{SUBSYSTEM}/nvme0n1");
        let disk = "/sys/class/block/nvme0n1".to_owned();
        state.links.insert(disk, of_disk);
        Self(Mutex::new(state))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This happens at the step after so many, counted from now.
    pub fn at(&self, steps: u64, event: Event) {
        let mut state = self.state();
        let step = state.step + steps;
        state.events.insert(step, event);
    }

    /// Whether the process was killed.
    pub fn is_killed(&self) -> bool {
        self.state().is_killed
    }

    /// Somebody opens the disk of the NVMe subsystem exclusively.
    pub fn claim_disk(&self) {
        self.state().is_claimed = true;
    }

    /// From now on no driver takes this function.
    pub fn dies(&self, function: &str) {
        self.state().dead = Some(function.to_owned());
    }

    /// From now on the path of a controller that is bound is there after some looks at it.
    pub fn scans_late(&self) {
        self.state().looks_to_path = 3;
    }

    /// The control groups are unmounted.
    pub fn unmount_groups(&self) {
        let mut state = self.state();
        let mounts = "/proc/self/mountinfo".to_owned();
        state.files.insert(mounts, String::new());
        let of_groups = |path: &String| path.starts_with("/sys/fs/cgroup/");
        state.files.retain(|path, _| !of_groups(path));
    }

    /// The driver of each NVMe function.
    pub fn drivers(&self) -> Vec<Option<String>> {
        let driver = |function| self.link(&format!("{FUNCTIONS}/{function}/driver")).ok();
        NVME.into_iter().map(driver).collect()
    }

    /// Another process goes on, to which nothing happens.
    pub fn next_process(&self) {
        let mut state = self.state();
        state.events.clear();
        if let Some((path, bytes, permissions)) = state.left.take() {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(path, permissions).unwrap();
        }
        state.is_killed = false;
    }

    /// All that can be seen of it. NVMe controllers have numbers by the order in which they were found, which is what decides over
    /// paths, not those that the kernel counts on.
    pub fn seen(&self) -> BTreeMap<String, String> {
        let state = self.state();
        let mut numbers: Vec<u32> = state.controllers().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        let renamed = |path: &str| {
            let part = |part: &str| {
                let of = |prefix: &str, suffix: &str| {
                    let number = part.strip_prefix(prefix)?.strip_suffix(suffix)?;
                    let place = numbers.binary_search(&number.parse().ok()?).ok()?;
                    Some(format!("{prefix}{place}{suffix}"))
                };
                of("nvme", "")
                    .or_else(|| of("nvme0c", "n1"))
                    .unwrap_or(part.to_owned())
            };
            path.split('/').map(part).collect::<Vec<_>>().join("/")
        };
        let all = state.files.iter().chain(&state.links);
        // Where an interrupt is served follows with the next one.
        let all = all.filter(|(path, _)| !path.ends_with("/effective_affinity_list"));
        let all = all.map(|(path, text)| {
            // To its tasks a group without a set is one with all that the group above has.
            let text = match path.strip_prefix("/sys/fs/cgroup/busy/cpuset.") {
                Some("cpus") if text == "\n" => "0-7\n",
                Some("mems") if text == "\n" => "0-1\n",
                _ => text,
            };
            (renamed(path), renamed(text))
        });
        all.collect()
    }
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        self.is_running()?;
        self.step += 1;
        match self.events.remove(&self.step) {
            None => Ok(()),
            Some(Event::Fail(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Event::Kill) => {
                self.is_killed = true;
                self.is_running()
            }
        }
    }

    /// A step at which a journal is written.
    fn step_of(&mut self, journal: &File) -> io::Result<()> {
        self.is_running()?;
        let result = self.step();
        if self.is_killed {
            let path = fs::read_link(format!("/proc/self/fd/{}", journal.as_raw_fd()))?;
            let permissions = journal.metadata()?.permissions();
            self.left = Some((path.clone(), fs::read(path)?, permissions));
        }
        result
    }

    fn is_running(&self) -> io::Result<()> {
        match self.is_killed {
            true => Err(io::Error::other("the process was killed")),
            false => Ok(()),
        }
    }

    /// Number and PCI function of each controller.
    fn controllers(&self) -> impl Iterator<Item = (u32, &str)> {
        self.files.keys().filter_map(|path| {
            let rest = path.strip_prefix(FUNCTIONS)?.strip_suffix("/state")?;
            let (function, number) = rest.trim_start_matches('/').split_once("/nvme/nvme")?;
            Some((number.parse().ok()?, function))
        })
    }

    fn bind(&mut self, function: &str) -> io::Result<()> {
        let directory = format!("{FUNCTIONS}/{function}");
        let driver = format!("{directory}/driver");
        if self.links.contains_key(&driver) {
            return Err(errno(libc::EBUSY));
        }
        let node = self.files.get(&format!("{directory}/numa_node"));
        let node = node.ok_or_else(|| errno(libc::ENODEV))?.clone();
        if self.dead.as_deref() == Some(function) {
            return Err(errno(libc::ENODEV));
        }
        let number = self.next_controller;
        self.next_controller += 1;
        let controller = format!("{directory}/nvme/nvme{number}");
        self.scanned.insert(controller.clone(), self.looks_to_path);
        self.files.insert(format!("{controller}/numa_node"), node);
        let mut put = |name: String, text: &str| self.files.insert(name, text.to_owned());
        put(format!("{controller}/state"), "live\n");
        put(format!("{controller}/nvme0c{number}n1/size"), "1\n");
        let mut link = |name: String, target: String| self.links.insert(name, target);
        link(driver, "../../../bus/pci/drivers/nvme".to_owned());
        link(
            format!("{controller}/device"),
            format!("../../../{function}"),
        );
        link(format!("{SUBSYSTEM}/nvme{number}"), controller);
        Ok(())
    }

    fn unbind(&mut self, function: &str) -> io::Result<()> {
        let directory = format!("{FUNCTIONS}/{function}");
        let bound = self.links.remove(&format!("{directory}/driver"));
        bound.ok_or_else(|| errno(libc::ENODEV))?;
        let of_controller = format!("{directory}/nvme/");
        self.files
            .retain(|path, _| !path.starts_with(&of_controller));
        self.links.retain(|path, target| {
            !path.starts_with(&of_controller) && !target.starts_with(&of_controller)
        });
        Ok(())
    }

    /// The path without links but in its last part.
    fn resolved(&self, path: &str) -> String {
        let mut resolved = String::new();
        for part in path.split('/').skip(1) {
            if let Some(target) = self.links.get(&resolved).filter(|it| it.starts_with('/')) {
                resolved.clone_from(target);
            }
            resolved = format!("{resolved}/{part}");
        }
        resolved
    }

    fn read(&self, path: &str) -> io::Result<&String> {
        let file = self.files.get(&self.resolved(path));
        file.ok_or_else(|| errno(libc::ENOENT))
    }

    /// What the kernel makes of a write.
    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        let old = self.read(path)?.clone();
        let (directory, name) = path.rsplit_once('/').unwrap();
        let invalid = || errno(libc::EINVAL);
        let text = text.trim();
        let cpus = || CpuSet::parse_list(text).map_err(|_| invalid());
        let shown = match name {
            "bind" => return self.bind(text),
            "unbind" => return self.unbind(text),
            "smp_affinity_list" => {
                let cpus = cpus()?;
                if directory.ends_with("/13") {
                    return Err(errno(libc::EIO));
                }
                if cpus.is_subset(&self.full) {
                    return Err(errno(libc::ENOSPC));
                }
                let effective = format!("{directory}/effective_affinity_list");
                self.files.insert(effective, format!("{cpus}\n"));
                cpus.to_string()
            }
            "xps_cpus" | "rps_cpus" => {
                let width = old.trim().len() as u32 * 4;
                let cpus = CpuSet::parse_mask(text).map_err(|_| invalid())?;
                cpus.to_mask(width)
            }
            "cpuset.cpus" | "cpuset.mems" => {
                let has_tasks = !self
                    .read(&format!("{directory}/cgroup.procs"))?
                    .trim()
                    .is_empty();
                if text.is_empty() && has_tasks && !old.trim().is_empty() {
                    return Err(errno(libc::ENOSPC));
                }
                match name {
                    "cpuset.cpus" if !text.is_empty() => cpus()?.to_string(),
                    "cpuset.mems" if !text.is_empty() => NodeSet::parse_list(text)
                        .map_err(|_| invalid())?
                        .to_string(),
                    _ => String::new(),
                }
            }
            "iopolicy" if !["numa", "round-robin"].contains(&text) => return Err(invalid()),
            "iopolicy" => text.to_owned(),
            _ => text.parse::<i64>().map_err(|_| invalid())?.to_string(),
        };
        let path = self.resolved(path);
        self.files.insert(path, format!("{shown}\n"));
        Ok(())
    }

    /// The names in a directory.
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut resolved = self.resolved(path);
        if let Some(target) = self.links.get(&resolved) {
            resolved.clone_from(target);
        }
        let prefix = format!("{resolved}/");
        let names: BTreeSet<String> = self
            .files
            .keys()
            .chain(self.links.keys())
            .filter_map(|path| Some(path.strip_prefix(&prefix)?.split('/').next()?.to_owned()))
            .collect();
        match names.is_empty() {
            true => Err(errno(libc::ENOENT)),
            false => Ok(names.into_iter().collect()),
        }
    }
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl System for Simulated {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        state.is_running()?;
        Ok(state.read(path)?.clone().into_bytes())
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let text = std::str::from_utf8(content).unwrap();
        // A write of nothing does not reach the kernel's handler.
        if !text.is_empty() {
            state.write(path, text)?;
        }
        match state.step() {
            Err(_) if !state.is_killed => Ok(()),
            step => step,
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.is_running()?;
        let mut names = state.list(path)?;
        if let Some(looks) = state.scanned.get_mut(path).filter(|it| **it > 0) {
            *looks -= 1;
            names.retain(|name| !name.starts_with("nvme0c"));
        }
        Ok(names)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let state = self.state();
        state.is_running()?;
        let link = state.links.get(&state.resolved(path));
        link.cloned().ok_or_else(|| errno(libc::ENOENT))
    }

    fn is_claimed(&self, disk: &str) -> bool {
        disk == "nvme0n1" && self.state().is_claimed
    }

    fn append(&self, mut journal: &File, line: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let (begin, rest) = line.split_at(line.len() / 2);
        for part in [&[], begin, rest] {
            state.is_running()?;
            journal.write_all(part)?;
            state.step_of(journal)?;
        }
        Ok(())
    }

    fn sync(&self, journal: &File) -> io::Result<()> {
        self.state().step_of(journal)
    }
}
