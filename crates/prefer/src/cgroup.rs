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
mod kept;
pub mod members;

use std::io;
use std::path::{Component, Path, PathBuf};

use nearfar_machine::CpuSet;
use nearfar_proc::affinity;
use nearfar_proc::cpuset::keeps_requests;
use nearfar_proc::mountinfo::{self, Mount};

pub use cpuset::{GroupCpuset, GroupReport};
pub use kept::{KeptGroup, KeptGroupReport, Through};

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
        let threads = |reason: String| Ok(Means::Threads { reason });
        if self.version == Version::One {
            return threads("it is in a version 1 hierarchy".to_owned());
        }
        if !self.directory.join("cpuset.cpus").exists() {
            return threads(self.how_to_enable());
        }
        if !keeps_requests(&release) {
            return threads(format!(
                "on Linux {release} a change of a cpuset overwrites the affinities of its tasks"
            ));
        }
        let partition = self.read("cpuset.cpus.partition").unwrap_or_default();
        if !matches!(partition.trim(), "" | "member") {
            return threads(format!("its cpuset is a partition ({})", partition.trim()));
        }
        if let Some(group) = members::below(&self.directory)?
            .iter()
            .skip(1)
            .find(|group| has_own_cpus(group))
        {
            return threads(format!("{} below it has CPUs of its own", group.display()));
        }
        let allowed = self.allowed()?;
        let confined = |tid: &i32| affinity::get(*tid).is_ok_and(|own| own != allowed);
        match members::threads(&self.directory)?
            .into_iter()
            .find(confined)
        {
            Some(tid) => threads(format!("its thread {tid} has chosen CPUs of its own")),
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
