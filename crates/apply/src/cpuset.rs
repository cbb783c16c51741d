//! What a task's cpuset allows, and what the kernel makes of a requested mask within it.
//!
//! ```text
//! requested (sched_setaffinity) 0-3     cpuset 2-5     effective (sched_getaffinity) 2-3
//!                               0-3            4-5                                   4-5   nothing is left: the cpuset's
//! ```
//!
//! Linux 6.2 and later keep the requested mask (`user_cpus_ptr`, `__set_cpus_allowed_ptr()` in kernel/sched/core.c) and form
//! the effective one anew at each change of the cpuset. Before, a change of the cpuset replaces the mask by the cpuset's CPUs
//! (`update_tasks_cpumask()` in kernel/cgroup/cpuset.c). The requested mask can be set and not read.

use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use nearfar_machine::CpuSet;

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

/// A mounted hierarchy of control groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub place: PathBuf,
    /// The group that is the root of the mount (field 4 of proc_pid_mountinfo(5)).
    pub root: PathBuf,
    /// Whether it is of version 2.
    pub version_2: bool,
    /// Whether it may have the cpuset controller: of version 2, or of version 1 with that controller.
    pub may_have_cpusets: bool,
}

impl Default for Cpusets {
    fn default() -> Self {
        Self::of_this_system()
    }
}

impl Cpusets {
    /// Finds the hierarchies of this process's mount namespace.
    pub fn of_this_system() -> Self {
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let mut cpusets = Self {
            mounts: hierarchies(&mounts)
                .into_iter()
                .filter(|mount| mount.may_have_cpusets)
                .collect(),
            keeps_requests: keeps_requests(&release),
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
        let groups = std::fs::read(format!("/proc/{tid}/cgroup")).ok()?;
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
        let (group, version_2) = cpuset_of(groups)?;
        let files: &[&str] = match version_2 {
            true => &["cpuset.cpus.effective"],
            false => &["cpuset.effective_cpus", "effective_cpus"],
        };
        let mount = self
            .mounts
            .iter()
            .rfind(|mount| mount.version_2 == version_2 && group.starts_with(&mount.root))?;
        let below = group.strip_prefix(&mount.root).ok()?;
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

/// The group whose cpuset a task has, and whether it is of version 2. The controller is in one hierarchy only: in version 1
/// where there is a line for it.
fn cpuset_of(groups: &[u8]) -> Option<(PathBuf, bool)> {
    let lines = || {
        groups
            .split(|&byte| byte == b'\n')
            .map(|line| line.splitn(3, |&byte| byte == b':'))
    };
    let path = |path: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(path));
    let first = lines().find_map(|mut line| {
        let (_, controllers, group) = (line.next()?, line.next()?, line.next()?);
        controllers
            .split(|&byte| byte == b',')
            .any(|name| name == b"cpuset")
            .then(|| (path(group), false))
    });
    first.or_else(|| {
        lines().find_map(|mut line| {
            let (number, controllers, group) = (line.next()?, line.next()?, line.next()?);
            (number == b"0" && controllers.is_empty()).then(|| (path(group), true))
        })
    })
}

/// The hierarchies that a list of mounts has (proc_pid_mountinfo(5)).
pub fn hierarchies(mountinfo: &[u8]) -> Vec<Hierarchy> {
    let mount = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let (kind, options) = (*fields.get(dash + 1)?, *fields.get(dash + 3)?);
        let has_cpuset = || {
            kind == b"cpuset"
                || options
                    .split(|&byte| byte == b',')
                    .any(|option| option == b"cpuset")
        };
        let version_2 = kind == b"cgroup2";
        (version_2 || matches!(kind, b"cgroup" | b"cpuset")).then_some(())?;
        let (place, root) = (unescaped(fields.get(4)?), unescaped(fields.get(3)?));
        Some(Hierarchy {
            place,
            root,
            version_2,
            may_have_cpusets: version_2 || has_cpuset(),
        })
    };
    mountinfo
        .split(|&byte| byte == b'\n')
        .filter_map(mount)
        .collect()
}

/// `\040` stands for a space (mangle() in fs/seq_file.c).
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let octal = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

fn cpus_in(file: &str) -> Option<CpuSet> {
    list_in(&Path::new("/sys/devices/system/cpu").join(file)).ok()
}

/// Whether a kernel of this release (`6.12.117+deb12-amd64`) leaves what a task asked for as it was when its cpuset changes:
/// `user_cpus_ptr` is kept for every task since commit 8f9ea86fdf99, in 6.2. No for a release that cannot be read.
pub fn keeps_requests(release: &str) -> bool {
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return false;
    };
    (major, minor) >= (6, 2)
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
    fn the_group_is_of_the_hierarchy_that_has_the_controller() {
        let hybrid = b"5:freezer:/\n3:cpu,cpuset:/batch/a:b\n0::/user.slice\n";
        assert_eq!(
            cpuset_of(hybrid),
            Some((PathBuf::from("/batch/a:b"), false))
        );
        assert_eq!(
            cpuset_of(b"0::/user.slice\n"),
            Some((PathBuf::from("/user.slice"), true))
        );
        assert_eq!(cpuset_of(b"1:name=systemd:/\n"), None);
        assert_eq!(cpuset_of(b"\xff\n"), None);
    }

    #[test]
    fn mounts_are_found_with_their_roots() {
        let text = b"30 1 0:1 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n\
            31 1 0:2 /a\\040b /c rw - cgroup cgroup rw,cpuset\n32 1 0:3 / /d rw - cgroup cgroup rw,memory\nnonsense\n";
        let expected = [("/sys/fs/cgroup/unified", "/", true), ("/c", "/a b", false)];
        let expected = expected.map(|(place, root, version_2)| Hierarchy {
            place: place.into(),
            root: root.into(),
            version_2,
            may_have_cpusets: true,
        });
        let mut found = hierarchies(text);
        found.retain(|mount| mount.may_have_cpusets);
        assert_eq!(found, expected);
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
            may_have_cpusets: true,
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
