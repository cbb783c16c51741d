//! What a task's cpuset allows, and what the kernel makes of a requested mask within it.
//!
//! ```text
//! requested (sched_setaffinity) 0-3     cpuset 2-5     effective (sched_getaffinity) 2-3
//!                               0-3            4-5                                   4-5   nothing is left: the cpuset's
//! ```
//!
//! Linux 6.2 and later keep the requested mask (`user_cpus_ptr`, `__set_cpus_allowed_ptr()` in kernel/sched/core.c) and compute
//! the effective one at each change of the cpuset. Before, a change of the cpuset replaces the mask by the cpuset's CPUs
//! (`update_tasks_cpumask()` in kernel/cgroup/cpuset.c). The requested mask can be set and not read.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use nearfar_machine::CpuSet;

use crate::mountinfo::{self, Mount};
use crate::system::{KernelVersion, release};
use crate::{cgroup, tasks};

/// Where hierarchies with the cpuset controller are mounted, and what was read of them.
#[derive(Debug)]
pub struct Cpusets {
    mounts: Vec<Hierarchy>,
    keeps_requests: bool,
    online: CpuSet,
    possible: CpuSet,
    /// By the content of /proc/PID/cgroup; emptied by [`Cpusets::refresh`].
    allowed: HashMap<Vec<u8>, Option<CpuSet>>,
}

/// A mounted hierarchy of control groups that may have the cpuset controller.
#[derive(Debug)]
struct Hierarchy {
    place: PathBuf,
    /// The group that is the root of the mount.
    root: PathBuf,
    version_2: bool,
}

impl Cpusets {
    /// Finds the hierarchies of this process's mount namespace.
    pub fn of_this_system() -> Self {
        let mut cpusets = Self {
            mounts: hierarchies(mountinfo::of_this_process().unwrap_or_default()),
            keeps_requests: keeps_requests(&release()),
            online: CpuSet::new(),
            possible: CpuSet::new(),
            allowed: HashMap::new(),
        };
        cpusets.refresh();
        cpusets
    }

    /// Forgets what was read: cpusets and online CPUs may have changed.
    pub fn refresh(&mut self) {
        self.allowed.clear();
        self.online = cpus_in("online").unwrap_or_default();
        self.possible = cpus_in("possible").unwrap_or_else(|| self.online.clone());
    }

    /// The CPUs that are online.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// The CPUs that there can be: what a task has that requested nothing.
    pub fn possible(&self) -> &CpuSet {
        &self.possible
    }

    /// Whether a requested mask outlives a change of the cpuset (Linux 6.2).
    pub fn keeps_requests(&self) -> bool {
        self.keeps_requests
    }

    /// The CPUs that a thread's cpuset allows. None where there is no cpuset, or it cannot be seen from here.
    pub fn allowed(&mut self, tid: i32) -> Option<CpuSet> {
        let groups = tasks::groups(tid).ok()?;
        if let Some(known) = self.allowed.get(&groups) {
            return known.clone();
        }
        let allowed = self.read(&groups);
        self.allowed.insert(groups, allowed.clone());
        allowed
    }

    /// Whether a thread with this mask asked for no CPUs: it has all that are online, or all that its cpuset allows.
    pub fn asked_for_none(&mut self, tid: i32, mask: &CpuSet) -> bool {
        !self.online.is_empty() && self.online.is_subset(mask)
            || self
                .allowed(tid)
                .is_some_and(|allowed| allowed.intersection(&self.online) == *mask)
    }

    /// The mask that the kernel forms of a requested one for a thread that is in a cpuset with these CPUs.
    pub fn effective(&self, requested: &CpuSet, allowed: &CpuSet) -> CpuSet {
        let effective = requested.intersection(allowed).intersection(&self.online);
        if effective.is_empty() {
            allowed.intersection(&self.online)
        } else {
            effective
        }
    }

    fn read(&self, groups: &[u8]) -> Option<CpuSet> {
        let group = cgroup::group_with(groups, "cpuset")?;
        let files: &[&str] = match group.version_2 {
            true => &["cpuset.cpus.effective"],
            false => &["cpuset.effective_cpus", "effective_cpus"],
        };
        let mount = self.mounts.iter().rfind(|mount| {
            mount.version_2 == group.version_2 && group.path.starts_with(&mount.root)
        })?;
        let below = group.path.strip_prefix(&mount.root).ok()?;
        // A group without the controller has the CPUs of the nearest one above that has it.
        below.ancestors().find_map(|group| {
            let directory = mount.place.join(group);
            let text = files
                .iter()
                .find_map(|file| std::fs::read_to_string(directory.join(file)).ok())?;
            CpuSet::parse_list(text.trim())
                .ok()
                .filter(|cpus| !cpus.is_empty())
        })
    }
}

/// The hierarchies that may have the cpuset controller: of version 2, or of version 1 with that controller.
fn hierarchies(mounts: Vec<Mount>) -> Vec<Hierarchy> {
    let with_cpusets = mounts.into_iter().filter(|mount| match &*mount.kind {
        "cgroup2" | "cpuset" => true,
        "cgroup" => mount.has_option("cpuset"),
        _ => false,
    });
    with_cpusets
        .map(|mount| Hierarchy {
            version_2: mount.kind == "cgroup2",
            place: mount.place,
            root: mount.root,
        })
        .collect()
}

fn cpus_in(file: &str) -> Option<CpuSet> {
    list_in(&Path::new("/sys/devices/system/cpu").join(file)).ok()
}

/// Whether a kernel of this release (`6.12.117+deb12-amd64`) leaves what a task asked for as it was when its cpuset changes:
/// `user_cpus_ptr` is kept for every task since commit 8f9ea86fdf99, in 6.2. No for a release that cannot be read.
pub fn keeps_requests(release: &str) -> bool {
    let since = KernelVersion { major: 6, minor: 2 };
    KernelVersion::of_release(release).is_some_and(|version| version >= since)
}

/// The CPUs of a file that has a list of CPUs, such as /sys/devices/system/node/node0/cpulist.
///
/// # Errors
/// When it cannot be read or is no list.
pub fn list_in(file: &Path) -> io::Result<CpuSet> {
    let text = std::fs::read_to_string(file)?;
    CpuSet::parse_list(text.trim())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn hierarchies_that_may_have_cpusets_are_found() {
        let text = b"30 1 0:1 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n\
            31 1 0:2 /a\\040b /c rw - cgroup cgroup rw,cpuset\n32 1 0:3 / /d rw - cgroup cgroup rw,memory\nnonsense\n";
        let found = hierarchies(mountinfo::mounts(text));
        let found = found
            .iter()
            .map(|it| (it.place.to_str(), it.root.to_str(), it.version_2));
        let expected = [
            (Some("/sys/fs/cgroup/unified"), Some("/"), true),
            (Some("/c"), Some("/a b"), false),
        ];
        assert!(found.eq(expected));
    }

    #[test]
    fn a_cpuset_is_read_from_the_nearest_group_that_has_one() {
        let directory = tempfile::tempdir().unwrap();
        let above = directory.path().join("a");
        std::fs::create_dir_all(above.join("b")).unwrap();
        std::fs::write(above.join("cpuset.cpus.effective"), "2-5\n").unwrap();
        let place = directory.path().to_owned();
        let mount = Hierarchy {
            place,
            root: "/root".into(),
            version_2: true,
        };
        let mut cpusets = Cpusets::of_this_system();
        cpusets.mounts = vec![mount];
        cpusets.online = cpus("0-4");
        assert_eq!(cpusets.read(b"0::/root/a/b\n"), Some(cpus("2-5")));
        assert_eq!(
            cpusets.read(b"0::/elsewhere\n"),
            None,
            "outside of what is mounted"
        );
        assert_eq!(cpusets.effective(&cpus("0-3"), &cpus("2-5")), cpus("2-3"));
        assert_eq!(
            cpusets.effective(&cpus("0-1"), &cpus("2-5")),
            cpus("2-4"),
            "nothing is left: the cpuset's"
        );
    }

    #[test]
    fn releases_are_compared_by_number() {
        let kept = ["6.2", "6.12.117+deb12-amd64", "6.18-rc1", "10.0-rc1"].map(keeps_requests);
        let lost = ["6.1.0-18-amd64", "5.10", "linux", ""].map(keeps_requests);
        assert_eq!((kept, lost), ([true; 4], [false; 4]));
    }
}
