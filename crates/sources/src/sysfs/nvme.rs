//! NVMe subsystems: their controllers, namespaces, and the paths between them.
//!
//! ```text
//! sys/class/nvme-subsystem/nvme-subsys0/     iopolicy, subsysnqn, model
//!   nvme0 -> ../../../pci0000:20/.../nvme/nvme0    a controller: state, transport, address, numa_node
//!     nvme0c0n1/ana_state                          a path, below its controller
//!   nvme0n1/                                       a namespace
//!     multipath/nvme0c0n1 -> ...                   its paths, since Linux 6.15
//! ```
//!
//! With native multipath off (`nvme_core.multipath=N`) `nvme0n1` lies below the controller, which is its one path;
//! kernels before 4.15 have no subsystems at all, and each controller stands for one. Serial numbers, keys and
//! secrets of fabrics are never read.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{
    IoPolicy, Known, NodeId, NvmeController, NvmeNamespace, NvmePath, NvmeSubsystem, PciAddress,
    PciDevice,
};

use super::{devices, pci};
use crate::tree::{Directory, Reason, Tree};
use crate::{parallel, value};

const SUBSYSTEMS: &str = "sys/class/nvme-subsystem";
const CONTROLLERS: &str = "sys/class/nvme";
/// More subsystems or controllers than the kernel has instance numbers for in practice.
const MOST: usize = 4096;

struct NvmeReader<'a> {
    tree: &'a Tree,
    pci: &'a [PciDevice],
}

/// Reads all subsystems, by name.
pub(crate) fn read(tree: &Tree, pci: &[PciDevice]) -> Known<Vec<NvmeSubsystem>> {
    let reader = NvmeReader { tree, pci };
    match tree.list(SUBSYSTEMS) {
        Ok(mut names) => {
            names.retain(|name| is_numbered(name, "nvme-subsys"));
            names.truncate(MOST);
            let read = parallel::map(&names, |name| reader.subsystem(name));
            let mut subsystems: Vec<_> = read.into_iter().flatten().collect();
            subsystems.sort_by(|a, b| by_instance(&a.name, &b.name));
            Known::Yes(subsystems)
        }
        Err(error) if error.reason == Reason::Absent => reader.without_subsystems(),
        Err(error) => Known::no(error.to_string()),
    }
}

impl NvmeReader<'_> {
    fn subsystem(&self, name: &str) -> Option<NvmeSubsystem> {
        let directory = match self.tree.directory(&format!("{SUBSYSTEMS}/{name}")) {
            Ok(directory) => directory,
            Err(error) => {
                self.tree.unless_absent(error);
                return None;
            }
        };
        let names = directory.names().unwrap_or_default();
        let controllers = names.iter().filter(|name| is_controller(name));
        let controllers: Vec<&String> = controllers.take(MOST).collect();
        let mut paths = Paths::default();
        for controller in &controllers {
            if let Ok(below) = directory.directory(controller) {
                self.paths_below(&below, controller, &mut paths);
            }
        }
        for namespace in names.iter().filter(|name| is_namespace(name)) {
            paths.namespaces.entry(namespace.clone()).or_default();
            if let Ok(links) = directory.directory(&format!("{namespace}/multipath")) {
                self.paths_of(&links, namespace, &mut paths);
            }
        }
        let read = |name: &&String| {
            let below = directory.directory(name).ok()?;
            Some(self.controller(&below, name))
        };
        let mut controllers: Vec<NvmeController> = controllers.iter().filter_map(read).collect();
        controllers.sort_by(|a, b| by_instance(&a.name, &b.name));
        let mut namespaces = paths.into_namespaces();
        if !self.tree.is_live() {
            // The kernel keeps a namespace without a path for a moment only; gatherers leave the paths out.
            for namespace in namespaces.iter_mut().filter(|it| it.paths.is_empty()) {
                let place = directory.display("nvmeN/nvmeNcNnN");
                namespace.paths_unknown_reason = Some(format!("{place} was not gathered"));
            }
        }
        Some(NvmeSubsystem {
            name: name.to_owned(),
            nqn: self.line(&directory, "subsysnqn"),
            model: self.line(&directory, "model"),
            iopolicy: self.policy(&directory),
            controllers,
            namespaces,
        })
    }

    /// Every controller for itself, on kernels that know no subsystems.
    fn without_subsystems(&self) -> Known<Vec<NvmeSubsystem>> {
        let mut names = match self.tree.list(CONTROLLERS) {
            Ok(names) => names,
            // The driver is not loaded: then there are none. Of a tree it may not have been gathered.
            Err(error) if error.reason == Reason::Absent && self.tree.is_live() => {
                return Known::Yes(Vec::new());
            }
            Err(error) => return Known::no(error.to_string()),
        };
        names.retain(|name| is_controller(name));
        names.truncate(MOST);
        names.sort_by(|a, b| by_instance(a, b));
        let missing = self.tree.display(SUBSYSTEMS);
        let read = |name: &String| {
            let directory = self.tree.directory(&format!("{CONTROLLERS}/{name}")).ok()?;
            let mut paths = Paths::default();
            self.paths_below(&directory, name, &mut paths);
            Some(NvmeSubsystem {
                name: name.clone(),
                nqn: self.line(&directory, "subsysnqn"),
                model: self.line(&directory, "model"),
                iopolicy: Known::no(format!("{missing}: this kernel has no subsystems")),
                controllers: vec![self.controller(&directory, name)],
                namespaces: paths.into_namespaces(),
            })
        };
        Known::Yes(names.iter().filter_map(read).collect())
    }

    fn line(&self, directory: &Directory<'_>, name: &str) -> Option<String> {
        let line = directory.noted(name, value::word);
        line.filter(|line| !line.is_empty())
    }

    fn policy(&self, directory: &Directory<'_>) -> Known<IoPolicy> {
        let word = directory.known_or("iopolicy", value::word, || {
            let file = directory.display("iopolicy");
            Known::no(format!("{file}: native multipath is off"))
        });
        word.map(|word| word.as_str().into())
    }

    fn controller(&self, directory: &Directory<'_>, name: &str) -> NvmeController {
        let word = |file| directory.known(file, value::word);
        let transport = match word("transport") {
            // Old kernels have no such file, and knew no other transport.
            Known::No { .. } if self.address_of(directory, name).is_some() => {
                Known::Yes("pcie".to_owned())
            }
            transport => transport,
        };
        let is_pci = transport.get().is_some_and(|transport| transport == "pcie");
        let device = is_pci.then(|| self.address_of(directory, name)).flatten();
        NvmeController {
            name: name.to_owned(),
            state: word("state"),
            transport,
            device,
            node: self.node(directory, device),
            queues: directory.known("queue_count", value::natural32),
        }
    }

    /// `address` is a PCI address only for `pcie`: elsewhere it is that of a network, and not read.
    fn address_of(&self, directory: &Directory<'_>, name: &str) -> Option<PciAddress> {
        let links = [directory.below("device"), format!("{CONTROLLERS}/{name}")];
        let listed = self.tree.function_behind(&links);
        listed.or_else(|| {
            let text = directory.with_bytes("address", value::word).ok()?.ok()?;
            text.parse().ok()
        })
    }

    /// The controller's own `numa_node`, or, on kernels without that file, its PCI function's.
    fn node(&self, directory: &Directory<'_>, device: Option<PciAddress>) -> Known<Option<NodeId>> {
        directory.known_or("numa_node", value::node, || {
            let below = directory.below("device");
            let read = match device {
                Some(device) => format!("{}/{device}/numa_node", pci::DEVICES),
                None => format!("{below}/numa_node"),
            };
            self.tree.read_instead(directory.below("numa_node"), read);
            devices::node(self.tree, self.pci, device, &below)
        })
    }

    /// Paths (`nvme0c1n1`) or, with multipath off, namespaces (`nvme0n1`) below a controller.
    fn paths_below(&self, controller: &Directory<'_>, name: &str, paths: &mut Paths) {
        for below in controller.names().unwrap_or_default() {
            let namespace = match path_namespace(&below) {
                Some(namespace) => namespace,
                None if is_namespace(&below) => below.clone(),
                None => continue,
            };
            if let Ok(directory) = controller.directory(&below) {
                paths.add(namespace, self.path(&directory, below, name.to_owned()));
            }
        }
    }

    /// Paths as the namespace's `multipath` directory links them, which name no controller but lead to it.
    fn paths_of(&self, links: &Directory<'_>, namespace: &str, paths: &mut Paths) {
        for name in links.names().unwrap_or_default() {
            let target = links.link(&name).unwrap_or_default();
            let controller = target.rsplit('/').find(|part| is_controller(part));
            if path_namespace(&name).is_some()
                && let Some(controller) = controller
                && let Ok(directory) = links.directory(&name)
            {
                let path = self.path(&directory, name, controller.to_owned());
                paths.add(namespace.to_owned(), path);
            }
        }
    }

    fn path(&self, directory: &Directory<'_>, name: String, controller: String) -> NvmePath {
        let ana_state = directory.known_or("ana_state", value::word, || {
            let file = directory.display("ana_state");
            Known::no(format!("{file}: this path has no asymmetric access"))
        });
        // Empty unless the policy is queue-depth (queue_depth_show() in drivers/nvme/host/multipath.c).
        let depth = |bytes: &[u8]| match bytes.trim_ascii() {
            b"" => Ok(None),
            digits => value::natural32(digits).map(Some),
        };
        NvmePath {
            name,
            controller,
            ana_state: ana_state.map(|word| word.as_str().into()),
            numa_nodes: directory.noted("numa_nodes", value::list),
            queue_depth: directory.noted("queue_depth", depth).flatten(),
        }
    }
}

/// Namespaces with their paths, each path once.
#[derive(Default)]
struct Paths {
    namespaces: BTreeMap<String, Vec<NvmePath>>,
    seen: BTreeSet<String>,
}

impl Paths {
    fn add(&mut self, namespace: String, path: NvmePath) {
        if self.seen.insert(path.name.clone()) {
            self.namespaces.entry(namespace).or_default().push(path);
        }
    }

    fn into_namespaces(self) -> Vec<NvmeNamespace> {
        let sorted = |(name, mut paths): (String, Vec<NvmePath>)| {
            paths.sort_by(|a, b| by_instance(&a.name, &b.name));
            NvmeNamespace {
                name,
                paths,
                paths_unknown_reason: None,
            }
        };
        let mut namespaces: Vec<_> = self.namespaces.into_iter().map(sorted).collect();
        namespaces.sort_by(|a, b| by_instance(&a.name, &b.name));
        namespaces
    }
}

/// `nvme0`.
fn is_controller(name: &str) -> bool {
    is_numbered(name, "nvme")
}

/// Whether a number stands behind a prefix.
fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).and_then(digits).is_some()
}

/// A number of digits and nothing else.
fn digits(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

/// The numbers in a name of the kind `nvme0c1n1`, and whether it is of that kind.
fn split(name: &str) -> Option<(u32, Option<u32>, u32)> {
    let (before, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
    let namespace = digits(namespace)?;
    match before.split_once('c') {
        Some((head, controller)) => Some((digits(head)?, Some(digits(controller)?), namespace)),
        None => Some((digits(before)?, None, namespace)),
    }
}

/// `nvme0n1`, but neither a path (`nvme0c1n1`) nor a partition (`nvme0n1p1`).
fn is_namespace(name: &str) -> bool {
    matches!(split(name), Some((_, None, _)))
}

/// `nvme0c1n1` is a path to `nvme0n1`.
fn path_namespace(name: &str) -> Option<String> {
    match split(name)? {
        (head, Some(_), namespace) => Some(format!("nvme{head}n{namespace}")),
        _ => None,
    }
}

/// By the numbers in a name, so that `nvme10` follows `nvme9`.
fn by_instance(a: &str, b: &str) -> std::cmp::Ordering {
    let numbers = |name: &str| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect()
    };
    numbers(a).cmp(&numbers(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_paths_namespaces_and_partitions_are_told_apart() {
        assert_eq!(path_namespace("nvme0c12n3").as_deref(), Some("nvme0n3"));
        assert!(is_namespace("nvme0n1") && is_namespace("nvme10n2"));
        for other in [
            "nvme0c1n1",
            "nvme0n1p1",
            "nvme0",
            "nvme-subsys0",
            "ng0n1",
            "nvmen1",
            "nvme0nx",
        ] {
            assert!(!is_namespace(other), "{other}");
        }
        assert_eq!(by_instance("nvme9", "nvme10"), std::cmp::Ordering::Less);
    }
}
