//! Of the units, containers, jobs and machines that tasks belong to: names that a path does not have, and memory of all their tasks.
//!
//! ```text
//! var/log/containers/POD_NAMESPACE_CONTAINER-ID.log            the kubelet's links to logs
//! var/lib/docker/containers/ID/config.v2.json                  "Name"
//! var/lib/containers/storage/overlay-containers/containers.json  podman, CRI-O: "id", "names"
//! sys/fs/cgroup/GROUP/memory.numa_stat, hugetlb.*.numa_stat    version 2
//! ```
//!
//! Names that the kubelet gave to containers are `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT` for docker and CRI-O.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use nearfar_machine::{
    ContainerName, Known, NOT_ASKED_FOR, NodeBytes, ResidentBytes, ServiceGroup, Task,
};
use nearfar_proc::cgroup;
use nearfar_proc::service::Service;
use serde::Deserialize;
use serde_json::Value;

use crate::tree::Tree;

const KUBELET_LOGS: &str = "var/log/containers";
/// The kernel counts in batches, tasks change meanwhile, and libraries are counted where they were touched first.
const SLACK: u64 = 8;
const SLACK_BYTES: u64 = 32 << 20;
/// Bytes of a name, as of a file.
const LONGEST_NAME: usize = 255;
const STORAGE: &str = "var/lib/containers/storage/overlay-containers/containers.json";

/// The services of these tasks, by path; with their memory if these are all tasks (`is_of_all`). Names
/// that are in `known` are not looked for again.
pub(crate) fn read(
    tree: &Tree,
    tasks: &[Task],
    is_of_all: bool,
    known: &[ServiceGroup],
) -> Vec<ServiceGroup> {
    let mut of_services: BTreeMap<&str, (Service<'_>, Vec<&Task>)> = BTreeMap::new();
    for task in tasks {
        if let Some(service) = task.group.get().and_then(|group| Service::of(group)) {
            let entry = of_services.entry(service.group);
            entry.or_insert_with(|| (service, Vec::new())).1.push(task);
        }
    }
    let names = ContainerNames::new(tree);
    let read = of_services.into_iter().map(|(group, (service, tasks))| {
        let before = known.binary_search_by(|it| (*it.group).cmp(group));
        let before = before.ok().and_then(|at| known[at].container.clone());
        ServiceGroup {
            group: group.to_owned(),
            container: before.or_else(|| {
                // A user may give a group of his own any id, and has containers of his own.
                let is_of_root = !group.contains("/user.slice/");
                names.of(service.id.filter(|_| is_of_root)?)
            }),
            memory: match is_of_all {
                true => memory(tree, group, &tasks),
                false => Known::no(NOT_ASKED_FOR),
            },
        }
    });
    read.filter(|it| it.container.is_some() || it.memory.get().is_some())
        .collect()
}

/// A page that several tasks map is in the sums of each of them; the kernel counts it once. It counts what was touched first by another
/// group there, as the pages of a file before a service was started again, and leaves the memory of a task that moves where it is.
fn memory(tree: &Tree, group: &str, tasks: &[&Task]) -> Known<Vec<NodeBytes>> {
    if group.split('/').any(|part| part == "..") {
        return Known::no("its control group is not in the hierarchy that is mounted");
    }
    let counted = counted(tree, group, tasks);
    let resident = tasks.iter().filter_map(|task| task.resident.get());
    let resident = resident.map(ResidentBytes::total);
    let (most, sum) = resident.fold((0_u64, 0_u64), |(most, sum), bytes| {
        (most.max(bytes), sum.saturating_add(bytes))
    });
    counted.and_then(|counted| {
        let bytes = counted.iter().fold(0_u64, |sum, on| sum.saturating_add(on.bytes));
        let range = (most - most / SLACK).saturating_sub(SLACK_BYTES)
            ..=sum.saturating_add(sum / SLACK).saturating_add(SLACK_BYTES);
        match range.contains(&bytes) {
            true => Known::Yes(counted),
            false => Known::no(format!(
                "the kernel counts {bytes} bytes for its control group, its tasks have {most} (one) to {sum} (all)"
            )),
        }
    })
}

fn counted(tree: &Tree, group: &str, tasks: &[&Task]) -> Known<Vec<NodeBytes>> {
    let with_memory = |task: &&&Task| task.resident.get().is_none_or(|it| it.total() > 0);
    if tasks.iter().filter(with_memory).count() < 2 {
        return Known::no("it has one task with memory");
    }
    let folder = format!("sys/fs/cgroup{}", group.trim_end_matches('/'));
    let read = |file: &str| {
        let read = tree.with_bytes(&format!("{folder}/{file}"), cgroup::mapped_by_node);
        Known::from_result(read)
    };
    let has_huge = |task: &&Task| task.resident.get().is_some_and(|it| it.huge > 0);
    let mapped = read("memory.numa_stat");
    if !tasks.iter().any(has_huge) {
        return mapped;
    }
    // The kernel counts them with their own controller only.
    let names = tree.list(&folder).unwrap_or_default();
    let is_huge = |name: &&String| {
        let name = name.strip_prefix("hugetlb.");
        name.is_some_and(|name| name.ends_with(".numa_stat"))
    };
    let huge: Vec<Known<Vec<NodeBytes>>> =
        names.iter().filter(is_huge).map(|it| read(it)).collect();
    if huge.is_empty() {
        return Known::no(format!(
            "its tasks have huge pages, and {} has no hugetlb.*.numa_stat",
            tree.display(&folder)
        ));
    }
    huge.into_iter().fold(mapped, |sum, more| {
        sum.and_then(|sum| more.map(|more| added(sum, &more)))
    })
}

fn added(sum: Vec<NodeBytes>, more: &[NodeBytes]) -> Vec<NodeBytes> {
    let all = sum.iter().chain(more);
    let mut by_node = BTreeMap::new();
    for on in all {
        let bytes: &mut u64 = by_node.entry(on.node).or_default();
        *bytes = bytes.saturating_add(on.bytes);
    }
    let by_node = by_node.into_iter();
    by_node
        .map(|(node, bytes)| NodeBytes { node, bytes })
        .collect()
}

/// Of one look: what is common to all containers is read once, and only where there is one.
struct ContainerNames<'a> {
    tree: &'a Tree,
    /// By id.
    kubelet: OnceCell<BTreeMap<String, ContainerName>>,
    storage: OnceCell<BTreeMap<String, ContainerName>>,
}

impl<'a> ContainerNames<'a> {
    fn new(tree: &'a Tree) -> Self {
        Self {
            tree,
            kubelet: OnceCell::new(),
            storage: OnceCell::new(),
        }
    }

    fn of(&self, id: &str) -> Option<ContainerName> {
        let kubelet = self.kubelet.get_or_init(|| {
            let names = self.tree.list(KUBELET_LOGS).unwrap_or_default();
            names.iter().filter_map(|name| of_log(name)).collect()
        });
        let of_docker = || {
            let file = format!("var/lib/docker/containers/{id}/config.v2.json");
            let name = |bytes: &[u8]| serde_json::from_slice::<DockerContainer>(bytes).ok();
            let found = self.tree.with_bytes(&file, name).ok()??;
            named(found.name.trim_start_matches('/'))
        };
        let of_storage = || {
            let storage = self.storage.get_or_init(|| {
                let all = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap_or_default();
                let all: Vec<Value> = self.tree.with_bytes(STORAGE, all).unwrap_or_default();
                let all = all
                    .into_iter()
                    .filter_map(|it| serde_json::from_value(it).ok());
                let named = |it: StoredContainer| Some((it.id, named(it.names.first()?)?));
                all.filter_map(named).collect()
            });
            storage.get(id).cloned()
        };
        let kubelet = kubelet.get(id).cloned();
        kubelet.or_else(of_docker).or_else(of_storage)
    }
}

/// Of a container of docker.
#[derive(Deserialize)]
struct DockerContainer {
    #[serde(rename = "Name")]
    name: String,
}

/// Of a container of podman or CRI-O.
#[derive(Deserialize)]
struct StoredContainer {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

/// `web-0_default_nginx-ID.log`: no name of Kubernetes has an underscore.
fn of_log(name: &str) -> Option<(String, ContainerName)> {
    let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let mut names = names.split('_');
    let (pod, namespace, name) = (names.next()?, names.next()?, names.next()?);
    names.next().is_none().then(|| {
        let container = ContainerName {
            name: name.to_owned(),
            pod: Some((namespace.to_owned(), pod.to_owned())),
        };
        (id.to_owned(), container)
    })
}

/// `None` for what no runtime takes as a name.
fn named(name: &str) -> Option<ContainerName> {
    if !(1..=LONGEST_NAME).contains(&name.len()) || name.contains(char::is_control) {
        return None;
    }
    let of_kubelet = || {
        let mut parts = name.strip_prefix("k8s_")?.split('_');
        let (name, pod, namespace) = (parts.next()?, parts.next()?, parts.next()?);
        Some(ContainerName {
            name: name.to_owned(),
            pod: Some((namespace.to_owned(), pod.to_owned())),
        })
    };
    Some(of_kubelet().unwrap_or_else(|| ContainerName {
        name: name.to_owned(),
        pod: None,
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const C: &str = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";
    const D: &str = "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd";

    fn write(root: &Path, path: &str, content: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    fn task(pid: i32, group: &str, huge: u64) -> Task {
        let mut task = Task::new(pid, "task");
        task.group = Known::Yes(group.to_owned());
        task.resident = Known::Yes(ResidentBytes {
            anonymous: 4096,
            huge,
            ..ResidentBytes::default()
        });
        task
    }

    fn found(root: &Path, tasks: &[Task]) -> Vec<ServiceGroup> {
        read(&Tree::at(root).unwrap(), tasks, true, &[])
    }

    #[test]
    fn containers_have_the_names_that_the_kubelet_and_runtimes_gave_them() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        write(
            at,
            &format!("{KUBELET_LOGS}/web-0_default_nginx-main-{A}.log"),
            "",
        );
        write(at, &format!("{KUBELET_LOGS}/no container.log"), "");
        let docker = |id: &str| format!("var/lib/docker/containers/{id}/config.v2.json");
        write(at, &docker(B), "{\"ID\": \"b\", \"Name\": \"/redis\"}");
        write(at, &docker(D), "{\"Name\": 7");
        let name = "k8s_db_db-1_prod_01234567-89ab-cdef-0123-456789abcdef_0";
        write(
            at,
            STORAGE,
            &format!("[{{\"id\": \"{C}\", \"names\": [\"{name}\"]}}, {{\"id\": \"{A}\"}}]"),
        );
        let of = |id: &str| {
            let found = found(at, &[task(1, &format!("/system.slice/crio-{id}.scope"), 0)]);
            let container = found.into_iter().next()?.container?;
            Some((container.name, container.pod))
        };
        let pod = |namespace: &str, name: &str| Some((namespace.to_owned(), name.to_owned()));
        assert_eq!(
            of(A),
            Some(("nginx-main".to_owned(), pod("default", "web-0")))
        );
        assert_eq!(of(B), Some(("redis".to_owned(), None)));
        assert_eq!(of(C), Some(("db".to_owned(), pod("prod", "db-1"))));
        assert_eq!(of(D), None, "a truncated file");
    }

    #[test]
    fn memory_of_several_tasks_is_the_kernels_own_count() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        let group = "/system.slice/db.service";
        let file = |name: &str| format!("sys/fs/cgroup{group}/{name}");
        write(
            at,
            &file("memory.numa_stat"),
            "anon N0=4096 N1=0\nfile_mapped N0=0 N1=8192\n",
        );
        let memory = |tasks: &[Task]| {
            let found = found(at, tasks).into_iter().next()?.memory.known()?;
            Some(found.iter().map(|on| on.bytes).collect::<Vec<_>>())
        };
        let small = [task(1, group, 0), task(2, &format!("{group}/worker"), 0)];
        assert_eq!(memory(&small), Some(vec![4096, 8192]));
        assert_eq!(memory(&small[..1]), None, "one task has no page twice");
        let huge = [task(1, group, 1 << 21), task(2, group, 1 << 21)];
        assert_eq!(memory(&huge), None, "huge pages are in no count");
        write(
            at,
            &file("hugetlb.2MB.numa_stat"),
            "total=2097152 N0=2097152 N1=0\n",
        );
        write(at, &file("hugetlb.2MB.current"), "2097152\n");
        assert_eq!(memory(&huge), Some(vec![2101248, 8192]));
        // More than they have, and much less than one has: pages that others touched, or memory that did not move with its task.
        let large = [task(1, group, 1 << 30), task(2, group, 1 << 30)];
        assert_eq!(memory(&large), None);
        write(at, &file("memory.numa_stat"), "anon N0=1073741824\n");
        assert_eq!(memory(&small), None);
    }

    #[test]
    fn a_group_of_a_user_has_no_name_of_the_systems_containers() {
        let root = tempfile::tempdir().unwrap();
        let docker = format!("var/lib/docker/containers/{B}/config.v2.json");
        write(root.path(), &docker, "{\"Name\": \"/redis\"}");
        let of = |group: String| found(root.path(), &[task(1, &group, 0)]).len();
        assert_eq!(of(format!("/system.slice/docker-{B}.scope")), 1);
        let user = "/user.slice/user-1000.slice/user@1000.service/app.slice";
        assert_eq!(of(format!("{user}/docker-{B}.scope")), 0);
    }

    #[test]
    fn a_name_that_is_none_leaves_the_others() {
        let root = tempfile::tempdir().unwrap();
        let long = "x".repeat(LONGEST_NAME + 1);
        let storage = format!(
            "[{{\"id\": 5}}, {{\"id\": \"{A}\", \"names\": [\"{long}\"]}}, {{\"id\": \"{B}\", \"names\": [\"\"]}}, \
             {{\"id\": \"{C}\", \"names\": [\"db\"]}}]"
        );
        write(root.path(), STORAGE, &storage);
        let names = [A, B, C].map(|id| {
            let found = found(
                root.path(),
                &[task(1, &format!("/system.slice/crio-{id}.scope"), 0)],
            );
            Some(found.into_iter().next()?.container?.name)
        });
        assert_eq!(names, [None, None, Some("db".to_owned())]);
    }

    proptest::proptest! {
        #[test]
        fn no_names_panic(name: String) {
            let _ = (of_log(&name), named(&name), of_log(&format!("{name}_{name}_{name}-{A}.log")));
        }
    }
}
