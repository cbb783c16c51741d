//! `/proc/PID/cgroup`: the control groups of a task (cgroups(7)).
//!
//! ```text
//! 3:cpu,cpuset:/batch            version 1: number, controllers, path
//! 0::/system.slice/ssh.service   version 2
//! ```

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nearfar_machine::{MAX_NUMBER, NodeBytes, NodeId};

use crate::text;

/// Digits of a container's id that its tools show.
const SHORT_ID: usize = 12;
/// Hexadecimal digits of a container's id: a SHA-256 sum.
const ID: usize = 64;

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

/// What the tasks of a group and of those below it have mapped, in bytes by node: private memory and mapped files of
/// `memory.numa_stat` (version 2). Page cache that nothing maps is not counted.
///
/// ```text
/// anon N0=1056768 N1=0
/// file_mapped N0=0 N1=4096
/// ```
pub fn mapped_by_node(numa_stat: &[u8]) -> Vec<NodeBytes> {
    let mut sums: BTreeMap<NodeId, u64> = BTreeMap::new();
    for line in text::lines(numa_stat) {
        let mut words = line.split(u8::is_ascii_whitespace);
        if !matches!(words.next(), Some(b"anon" | b"file_mapped")) {
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

/// The unit or container that a control group stands for: `redis.service`, `docker 0123456789ab`. `None` for slices and the root.
pub fn service_name(group: &str) -> Option<String> {
    let mut parts = group.rsplit('/').filter(|part| !part.is_empty());
    parts.find_map(|part| container(part).or_else(|| unit(part)))
}

/// The path of the control group that [`service_name`] is of: without the groups that the unit or container made below its own.
pub fn service_group(group: &str) -> Option<&str> {
    let ends = group.match_indices('/').map(|(end, _)| end);
    let mut paths: Vec<&str> = ends.map(|end| &group[..end]).collect();
    paths.push(group);
    let is_service = |path: &&str| {
        let part = path.rsplit('/').next().unwrap_or_default();
        container(part).or_else(|| unit(part)).is_some()
    };
    paths.into_iter().rev().find(is_service)
}

fn unit(part: &str) -> Option<String> {
    let is_unit = [".service", ".scope", ".socket", ".mount"]
        .iter()
        .any(|suffix| part.ends_with(suffix));
    is_unit.then(|| part.to_owned())
}

/// `docker-ID.scope`, `cri-containerd-ID.scope`, and a folder `ID` without systemd.
fn container(part: &str) -> Option<String> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let (runtime, id) = part.rsplit_once('-').unwrap_or(("container", part));
    let is_id = id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| format!("{runtime} {}", &id[..SHORT_ID]))
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

    #[test]
    fn the_group_of_a_service_is_the_one_that_has_its_name() {
        for (group, of) in [
            (
                "/system.slice/redis.service",
                Some("/system.slice/redis.service"),
            ),
            (
                "/system.slice/redis.service/worker",
                Some("/system.slice/redis.service"),
            ),
            (
                "/user.slice/user@0.service/app.slice/redis.service/x/y",
                Some("/user.slice/user@0.service/app.slice/redis.service"),
            ),
            ("/user.slice", None),
            ("/", None),
        ] {
            assert_eq!(service_group(group), of, "{group}");
        }
    }

    #[test]
    fn groups_have_the_names_of_units_and_containers() {
        let id = "0123456789abcdef".repeat(4);
        let of = |group: String| service_name(&group);
        let name = |text: &str| Some(text.to_owned());
        assert_eq!(
            of("/system.slice/redis.service".into()),
            name("redis.service")
        );
        assert_eq!(
            of("/system.slice/redis.service/worker".into()),
            name("redis.service")
        );
        assert_eq!(
            of(format!("/system.slice/docker-{id}.scope")),
            name("docker 0123456789ab")
        );
        assert_eq!(
            of(format!(
                "/kubepods.slice/pod.slice/cri-containerd-{id}.scope"
            )),
            name("cri-containerd 0123456789ab")
        );
        assert_eq!(of(format!("/docker/{id}")), name("container 0123456789ab"));
        assert_eq!(of("/user.slice".into()), None);
        assert_eq!(of("/".into()), None);
        assert_eq!(of("/é".repeat(40)), None);
    }
}
