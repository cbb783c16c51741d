//! Control groups: finding one, what its cpuset allows, and whether it can be kept through that.
//!
//! ```text
//! "/system.slice/redis.service" ──► /sys/fs/cgroup/system.slice/redis.service/
//!                                       cpuset.cpus             narrowed to the node, widened again   ([`GroupCpuset`])
//!                                       cpuset.cpus.effective   what its tasks may use
//!                                       cpu.pressure            when they wait                        ([`crate::psi`])
//!                                       **/cgroup.threads       its tasks, also those of groups below
//! ```
//!
//! Through its cpuset a group's tasks keep their own affinities, and threads that it starts are on the node from
//! their first instruction. It needs the cpuset controller, and moves the group as one. Where that does not fit its threads
//! are kept one by one instead.

mod cpuset;

use std::collections::HashMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use nearfar_machine::CpuSet;
use nearfar_proc::cpuset::keeps_requests;
use nearfar_proc::mountinfo::{self, Mount};
use nearfar_proc::{RunTime, affinity, tasks};

pub use cpuset::{GroupCpuset, GroupReport, KeptGroup, KeptGroupReport, Through};

/// A group of the unified hierarchy (version 2), or a directory of a version 1 hierarchy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    directory: PathBuf,
    mount: PathBuf,
    name: String,
    version: Version,
}

/// Which kind of hierarchy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

/// Why a group cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    #[error("no control groups are mounted here; mount -t cgroup2 none /sys/fs/cgroup does it")]
    NoHierarchy,
    #[error("there is no control group {name} ({directory}); systemd-cgls lists them")]
    NoSuchGroup { name: String, directory: String },
    #[error("\"{name}\" is the root, every task of the system is below it; name a group")]
    Root { name: String },
    /// No CPU that the group may use is on the node.
    #[error(
        "the tasks of {name} may use CPUs {allowed} only, none of which is among the node's {home}"
    )]
    Elsewhere {
        name: String,
        allowed: CpuSet,
        home: CpuSet,
    },
    /// A file of the group cannot be read or written.
    #[error("{file}: {reason}")]
    File { file: String, reason: String },
}

/// Through what a group can be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Means {
    /// Its cpuset.
    Cpuset,
    /// Its cpuset, which is empty now and cannot be so again while the group has tasks (`validate_change()` in
    /// kernel/cgroup/cpuset.c says ENOSPC): it would be left with all CPUs, which to its tasks is the same.
    EmptyCpuset,
    /// Its threads one by one, since the cpuset does not serve.
    Threads {
        /// Why not, and what would help.
        reason: String,
    },
}

impl Group {
    /// The group of this name: a path below the root of the hierarchy as in /proc/PID/cgroup, or the directory itself.
    ///
    /// # Errors
    /// When there is no hierarchy, no such group, or it is the root.
    pub fn find(name: &str) -> Result<Self, CgroupError> {
        let mounts = mountinfo::of_this_process()
            .map_err(|error| file_error("/proc/self/mountinfo", &error))?;
        Self::find_in(&mounts_in(mounts), name)
    }

    fn find_in(mounts: &[(PathBuf, Version)], name: &str) -> Result<Self, CgroupError> {
        if mounts.is_empty() {
            return Err(CgroupError::NoHierarchy);
        }
        let path = Path::new(name);
        let parts = path
            .components()
            .filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
        let parts: PathBuf = parts.collect();
        // A directory is identified by its mount; the deepest, since version 1 may be mounted inside version 2.
        let inside = mounts.iter().filter(|(mount, _)| path.starts_with(mount));
        let (mount, version, directory) =
            match inside.max_by_key(|(mount, _)| mount.as_os_str().len()) {
                Some((mount, version)) => (mount, *version, path.to_owned()),
                None => {
                    let unified = mounts.iter().find(|(_, version)| *version == Version::Two);
                    let (mount, version) = unified.ok_or(CgroupError::NoHierarchy)?;
                    (mount, *version, mount.join(&parts))
                }
            };
        let leads_out = parts.components().any(|part| part == Component::ParentDir);
        if leads_out || !directory.is_dir() {
            return Err(CgroupError::NoSuchGroup {
                name: name.to_owned(),
                directory: directory.display().to_string(),
            });
        }
        let below = directory
            .strip_prefix(mount)
            .unwrap_or(&directory)
            .to_owned();
        if below.as_os_str().is_empty() {
            return Err(CgroupError::Root {
                name: name.to_owned(),
            });
        }
        Ok(Self {
            directory,
            mount: mount.clone(),
            name: format!("/{}", below.display()),
            version,
        })
    }

    /// Its path below the root of its hierarchy.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether its cpuset serves to keep it.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn means(&self) -> Result<Means, CgroupError> {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let by_threads = |reason: String| Ok(Means::Threads { reason });
        if self.version == Version::One {
            return by_threads("it is in a version 1 hierarchy".to_owned());
        }
        if !self.directory.join("cpuset.cpus").exists() {
            return by_threads(self.how_to_enable());
        }
        if !keeps_requests(&release) {
            return by_threads(format!(
                "on Linux {release} a change of a cpuset overwrites the affinities of its tasks"
            ));
        }
        let partition = self.read("cpuset.cpus.partition").unwrap_or_default();
        if !matches!(partition.trim(), "" | "member") {
            return by_threads(format!("its cpuset is a partition ({})", partition.trim()));
        }
        if let Some(group) = below(&self.directory)?
            .iter()
            .skip(1)
            .find(|group| has_own_cpus(group))
        {
            return by_threads(format!("{} below it has CPUs of its own", group.display()));
        }
        let allowed = self.allowed()?;
        let confined = |tid: &i32| affinity::get(*tid).is_ok_and(|own| own != allowed);
        match threads(&self.directory)?.into_iter().find(confined) {
            Some(tid) => by_threads(format!("its thread {tid} has chosen CPUs of its own")),
            None if has_own_cpus(&self.directory) => Ok(Means::Cpuset),
            None => Ok(Means::EmptyCpuset),
        }
    }

    /// The CPUs its tasks may use now.
    ///
    /// # Errors
    /// When `cpuset.cpus.effective` cannot be read.
    pub fn allowed(&self) -> Result<CpuSet, CgroupError> {
        const FILE: &str = "cpuset.cpus.effective";
        let text = self.read(FILE).map_err(|error| self.error(FILE, &error))?;
        text.trim()
            .parse()
            .map_err(|error| self.error(FILE, &error))
    }

    fn read(&self, file: &str) -> io::Result<String> {
        std::fs::read_to_string(self.directory.join(file))
    }

    fn error(&self, file: &str, error: &dyn std::fmt::Display) -> CgroupError {
        CgroupError::File {
            file: self.directory.join(file).display().to_string(),
            reason: error.to_string(),
        }
    }

    /// The highest group above it that does not hand the cpuset controller down, in words.
    fn how_to_enable(&self) -> String {
        let above: Vec<&Path> = self
            .directory
            .ancestors()
            .skip(1)
            .take_while(|it| it.starts_with(&self.mount))
            .collect();
        let hands_down = |group: &&Path| {
            let file =
                std::fs::read_to_string(group.join("cgroup.subtree_control")).unwrap_or_default();
            file.split_ascii_whitespace()
                .any(|controller| controller == "cpuset")
        };
        let lacking = above
            .into_iter()
            .rev()
            .find(|group| !hands_down(group))
            .unwrap_or(&self.mount);
        let controllers =
            std::fs::read_to_string(self.mount.join("cgroup.controllers")).unwrap_or_default();
        if !controllers
            .split_ascii_whitespace()
            .any(|controller| controller == "cpuset")
        {
            return "the unified hierarchy has no cpuset controller here (version 1 has it, or the kernel none)"
                .to_owned();
        }
        let file = lacking.join("cgroup.subtree_control");
        format!(
            "the cpuset controller is not handed down to it (echo +cpuset > {} does that)",
            file.display()
        )
    }
}

fn has_own_cpus(group: &Path) -> bool {
    std::fs::read_to_string(group.join("cpuset.cpus")).is_ok_and(|cpus| !cpus.trim().is_empty())
}

fn file_error(file: impl Into<PathBuf>, error: &io::Error) -> CgroupError {
    CgroupError::File {
        file: file.into().display().to_string(),
        reason: error.to_string(),
    }
}

/// Where hierarchies are mounted.
fn mounts_in(mounts: Vec<Mount>) -> Vec<(PathBuf, Version)> {
    let with_version = |mount: Mount| match &*mount.kind {
        "cgroup2" => Some((mount.place, Version::Two)),
        "cgroup" | "cpuset" => Some((mount.place, Version::One)),
        _ => None,
    };
    mounts.into_iter().filter_map(with_version).collect()
}

/// A group and all below it, itself first.
///
/// # Errors
/// When a directory cannot be read; one that has just gone is left out.
pub fn below(group: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut found = vec![group.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next).cloned() {
        next += 1;
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound && next > 1 => continue,
            Err(error) => return Err(file_error(directory, &error)),
        };
        let directories = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        found.extend(directories.map(|entry| entry.path()));
    }
    Ok(found)
}

/// The threads of a group and of all below it, of either version of control groups.
///
/// # Errors
/// When the group itself cannot be read.
pub fn threads(group: &Path) -> Result<Vec<i32>, CgroupError> {
    listed(group, &["cgroup.threads", "tasks"])
}

/// The processes of a group and of all below it.
///
/// # Errors
/// When the group itself cannot be read.
pub fn processes(group: &Path) -> Result<Vec<i32>, CgroupError> {
    listed(group, &["cgroup.procs"])
}

fn listed(group: &Path, files: &[&str]) -> Result<Vec<i32>, CgroupError> {
    let mut numbers = Vec::new();
    for directory in below(group)? {
        match first_there(&directory, files) {
            Ok(text) => numbers.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
            // A group below may be gone by now, and those of a threaded subtree list processes only at its root.
            Err(error) if directory == group && error.raw_os_error() != Some(libc::EOPNOTSUPP) => {
                return Err(file_error(directory, &error));
            }
            Err(_) => {}
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// The content of the first of these files that there is.
fn first_there(directory: &Path, files: &[&str]) -> io::Result<String> {
    let mut answer = Err(io::ErrorKind::NotFound.into());
    for file in files {
        answer = std::fs::read_to_string(directory.join(file));
        if !matches!(&answer, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            break;
        }
    }
    answer
}

/// What the threads of a group did between two looks, in nanoseconds over all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// On a CPU.
    pub run_ns: u64,
    /// Ready to run, without a CPU.
    pub wait_ns: u64,
    /// On a CPU, by threads that were last seen on a CPU that is not on the preferred node.
    pub away_ns: u64,
}

impl Span {
    /// The share of the time they wanted a CPU in which they had none; 0 where they wanted none.
    pub fn share_waiting(&self) -> f64 {
        match self.run_ns + self.wait_ns {
            0 => 0.0,
            wanted => self.wait_ns as f64 / wanted as f64,
        }
    }
}

/// What the threads of a group did until the last look.
#[derive(Debug, Default)]
pub struct TaskTimes {
    before: HashMap<i32, RunTime>,
}

impl TaskTimes {
    /// What the threads did since the last look, and with a `home` also how much of it away from there. A thread that is
    /// new since then does not count yet.
    ///
    /// # Errors
    /// When the group cannot be read.
    pub fn since_last(&mut self, group: &Path, home: Option<&CpuSet>) -> Result<Span, CgroupError> {
        let mut span = Span::default();
        let mut now = HashMap::with_capacity(self.before.len());
        for tid in threads(group)? {
            let Ok(time) = tasks::run_time(tid) else {
                continue;
            };
            if let Some(before) = self.before.get(&tid) {
                let ran = time.run_ns.saturating_sub(before.run_ns);
                span.run_ns += ran;
                span.wait_ns += time.wait_ns.saturating_sub(before.wait_ns);
                let last_cpu = || tasks::stat(tid).ok()?.cpu;
                let is_away = |home: &CpuSet| last_cpu().is_some_and(|cpu| !home.contains(cpu));
                if ran > 0 && home.is_some_and(is_away) {
                    span.away_ns += ran;
                }
            }
            now.insert(tid, time);
        }
        self.before = now;
        Ok(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
35 24 0:30 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
36 35 0:31 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
37 35 0:32 / /sys/fs/cgroup/cpuset rw,nosuid - cgroup cgroup rw,cpuset
";

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let expected = [
            (PathBuf::from("/sys/fs/cgroup/unified"), Version::Two),
            (PathBuf::from("/sys/fs/cgroup/cpuset"), Version::One),
        ];
        assert_eq!(mounts_in(mountinfo::mounts(HYBRID.as_bytes())), expected);
    }

    #[test]
    fn a_group_is_named_by_its_path_or_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = [
            (dir.path().join("two"), Version::Two),
            (dir.path().join("two/one"), Version::One),
        ];
        for group in ["two/a.slice/b", "two/one/c"] {
            std::fs::create_dir_all(dir.path().join(group)).unwrap();
        }
        let find = |name: &str| Group::find_in(&mounts, name);
        assert_eq!(find("/a.slice/b").unwrap().name(), "/a.slice/b");
        assert_eq!(find("a.slice/b/").unwrap().name(), "/a.slice/b");
        let directory = dir.path().join("two/a.slice");
        assert_eq!(
            find(directory.to_str().unwrap()).unwrap().name(),
            "/a.slice"
        );
        let old = find(dir.path().join("two/one/c").to_str().unwrap()).unwrap();
        assert_eq!((old.name(), old.version), ("/c", Version::One));
        assert!(matches!(find("/"), Err(CgroupError::Root { .. })));
        assert!(matches!(
            find("/a.slice/../.."),
            Err(CgroupError::NoSuchGroup { .. })
        ));
        assert!(matches!(
            find("/nowhere"),
            Err(CgroupError::NoSuchGroup { .. })
        ));
        assert!(matches!(
            Group::find_in(&[], "/a"),
            Err(CgroupError::NoHierarchy)
        ));
    }

    #[test]
    fn a_group_without_the_controller_is_told_where_it_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("a.slice/b.service");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu\n").unwrap();
        std::fs::write(dir.path().join("cgroup.subtree_control"), "cpu cpuset\n").unwrap();
        std::fs::write(dir.path().join("a.slice/cgroup.subtree_control"), "cpu\n").unwrap();
        let found = Group::find_in(
            &[(dir.path().to_owned(), Version::Two)],
            "/a.slice/b.service",
        )
        .unwrap();
        let Means::Threads { reason } = found.means().unwrap() else {
            panic!()
        };
        assert!(
            reason.contains("+cpuset > ") && reason.contains("/a.slice/cgroup.subtree_control"),
            "{reason}"
        );
    }
}
