//! `/proc/PID/cgroup`: the control groups of a task (cgroups(7)).
//!
//! ```text
//! 3:cpu,cpuset:/batch            version 1: number, controllers, path
//! 0::/system.slice/ssh.service   version 2
//! ```

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use nearfar_machine::{MAX_NUMBER, NodeBytes, NodeId};

use crate::text;

/// The group of a task in one hierarchy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group<'a> {
    controllers: &'a [u8],
    /// Whether the hierarchy is of version 2.
    pub version_2: bool,
    /// From the root of the hierarchy, as this process's cgroup namespace shows it.
    pub path: &'a Path,
}

impl Group<'_> {
    /// Whether the hierarchy is of version 1 and has this controller.
    pub fn has_controller(&self, name: &str) -> bool {
        let mut controllers = self.controllers.split(|&byte| byte == b',');
        !self.version_2 && controllers.any(|controller| controller == name.as_bytes())
    }
}

/// The groups of a task, in the kernel's order. Lines that are none are left out.
pub fn groups(content: &[u8]) -> impl Iterator<Item = Group<'_>> {
    text::lines(content).filter_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Group {
            controllers,
            version_2: number == b"0" && controllers.is_empty(),
            path: Path::new(OsStr::from_bytes(path)),
        })
    })
}

/// The group of the hierarchy that has a controller: in version 1 where there is a line for it, otherwise version 2.
pub fn group_with<'a>(content: &'a [u8], controller: &str) -> Option<Group<'a>> {
    groups(content)
        .find(|group| group.has_controller(controller))
        .or_else(|| groups(content).find(|group| group.version_2))
}

/// The path in the hierarchy of a group that the kernel shows from the root of this process's cgroup namespace, one outside of it with a
/// `..` for each level up (cgroup_namespaces(7)). `None` where the hierarchy does not reach that far up.
pub fn outside(path: &Path, namespace: &Path) -> Option<PathBuf> {
    let mut found = namespace.to_owned();
    for part in path.components() {
        match part {
            Component::ParentDir if !found.pop() => return None,
            Component::Normal(name) => found.push(name),
            _ => {}
        }
    }
    Some(found)
}

/// The root of this process's cgroup namespace in a hierarchy of version 2 that is mounted here: the group that has the process without
/// `own`, its path as the namespace shows it. `None` where no group that can be read has it.
pub fn namespace_root(hierarchy: &Path, own: &Path, pid: u32) -> Option<PathBuf> {
    if own.components().any(|it| it == Component::ParentDir) {
        return None;
    }
    let mut folders = vec![hierarchy.to_owned()];
    while let Some(folder) = folders.pop() {
        // A group with threads of its own refuses to list processes (EOPNOTSUPP), and one may be gone.
        let processes = fs::read(folder.join("cgroup.procs")).unwrap_or_default();
        if text::lines(&processes).any(|line| text::number(line) == Some(pid)) {
            let path = Path::new("/").join(folder.strip_prefix(hierarchy).ok()?);
            let levels = own
                .components()
                .filter(|it| matches!(it, Component::Normal(_)));
            return path.ancestors().nth(levels.count()).map(Path::to_owned);
        }
        let below = fs::read_dir(&folder).into_iter().flatten().flatten();
        let below = below.filter(|it| it.file_type().is_ok_and(|it| it.is_dir()));
        folders.extend(below.map(|it| it.path()));
    }
    None
}

/// What the tasks of a group and of those below it have mapped, in bytes by node: private memory and mapped files of
/// `memory.numa_stat`, or all of `hugetlb.SIZE.numa_stat` (version 2). Page cache that nothing maps is not counted.
///
/// ```text
/// anon N0=1056768 N1=0
/// file_mapped N0=0 N1=4096
/// total=2097152 N0=2097152 N1=0
/// ```
pub fn mapped_by_node(numa_stat: &[u8]) -> Vec<NodeBytes> {
    let mut sums: BTreeMap<NodeId, u64> = BTreeMap::new();
    for line in text::lines(numa_stat) {
        let mut words = line.split(u8::is_ascii_whitespace);
        let is_counted =
            |word: &[u8]| matches!(word, b"anon" | b"file_mapped") || word.starts_with(b"total=");
        if !words.next().is_some_and(is_counted) {
            continue;
        }
        for (node, bytes) in words.filter_map(node_and_bytes) {
            let sum = sums.entry(node).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    let sums = sums.into_iter();
    sums.map(|(node, bytes)| NodeBytes { node, bytes })
        .collect()
}

/// `N0=4096`
fn node_and_bytes(word: &[u8]) -> Option<(NodeId, u64)> {
    let mut parts = word.strip_prefix(b"N")?.splitn(2, |&byte| byte == b'=');
    let node: u32 = text::number(parts.next()?)?;
    let bytes = text::number(parts.next()?)?;
    (node <= MAX_NUMBER).then_some((NodeId(node), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_of_the_hierarchy_that_has_the_controller() {
        let hybrid = b"5:freezer:/\n3:cpu,cpuset:/batch/a:b\n0::/user.slice\n";
        let found = |content| group_with(content, "cpuset").map(|it| (it.path, it.version_2));
        assert_eq!(found(hybrid), Some((Path::new("/batch/a:b"), false)));
        assert_eq!(
            found(b"0::/user.slice\n"),
            Some((Path::new("/user.slice"), true))
        );
        assert_eq!(found(b"1:name=systemd:/\n"), None);
        assert_eq!(found(b"\xff\n"), None);
        assert_eq!(groups(hybrid).count(), 3);
    }

    #[test]
    fn a_group_outside_of_the_namespace_has_its_path_in_the_hierarchy() {
        let hierarchy = tempfile::tempdir().unwrap();
        let container = hierarchy.path().join("kube.slice/pod1/c1");
        fs::create_dir_all(hierarchy.path().join("kube.slice/pod2")).unwrap();
        fs::create_dir_all(container.join("worker")).unwrap();
        fs::write(hierarchy.path().join("cgroup.procs"), "1\n").unwrap();
        fs::write(container.join("worker/cgroup.procs"), "0\n16\n7\n").unwrap();
        let root = |own: &str, pid| namespace_root(hierarchy.path(), Path::new(own), pid);
        let namespace = root("/worker", 7).unwrap();
        assert_eq!(namespace, Path::new("/kube.slice/pod1/c1"));
        assert_eq!([root("/", 1), root("/", 8)], [Some("/".into()), None]);
        let of = |path: &str| outside(Path::new(path), &namespace);
        assert_eq!(of("/../c2"), Some("/kube.slice/pod1/c2".into()));
        assert_eq!(of("/../../pod2"), Some("/kube.slice/pod2".into()));
        assert_eq!(of("/../../../init.scope"), Some("/init.scope".into()));
        assert_eq!(of("/../../../../x"), None);
        assert_eq!(outside(Path::new("/../x"), Path::new("/")), None);
    }

    #[test]
    fn what_tasks_have_mapped_is_by_node() {
        let text = b"anon N0=8192 N1=0\nfile N0=40960 N1=4096\nfile_mapped N0=4096 N1=4096\nanon_thp N0=1\nanon Nx=1 N2\n";
        let found = mapped_by_node(text);
        let found: Vec<_> = found.iter().map(|on| (on.node.0, on.bytes)).collect();
        assert_eq!(found, [(0, 12288), (1, 4096)]);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = (groups(&bytes).count(), group_with(&bytes, "cpuset"), mapped_by_node(&bytes));
        }
    }
}
