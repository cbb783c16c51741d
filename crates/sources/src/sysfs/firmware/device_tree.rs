//! Host bridges and distances from a device tree.
//!
//! ```text
//! rtas/ibm,associativity-reference-points  1            which entry is the node (and further levels)
//! pci@800000020000001/ibm,associativity    1 | 2        length, then one number a level: node 2
//! rtas/ibm,numa-lookup-index-table         3 | 0 1 2    form 2: the domains ...
//! rtas/ibm,numa-distance-table             9 | 10 20 40 20 10 40 40 40 10   ... and their distances, row by row
//! pcie@40000000/numa-node-id               1            arm64, RISC-V
//! ```
//!
//! As arch/powerpc/mm/numa.c and drivers/of/of_numa.c in the kernel read it: numbers are big-endian, a device without
//! the property has what the nearest node above it has, and the domain is the node's number.

mod associativity;

use nearfar_machine::{Distances, FirmwareLocality, FirmwareSource, Known, NodeId, RootBus};

use super::{Firmware, bridges};
use crate::sysfs::notes::Notes;
use crate::tree::{Reason, Tree};
use associativity::{Form, ReferencePoints};
use nearfar_machine::MOST_NODES;

/// Where the kernel shows the device tree; `/proc/device-tree` is a link to the first, or all that older ones have.
const PLACES: [&str; 2] = ["sys/firmware/devicetree/base", "proc/device-tree"];
/// How far a device's node is searched for upwards.
const DEEPEST: usize = 16;
/// Nodes of the device tree that are looked at in search of host bridges, CPUs and memory.
const MOST_ENTRIES: usize = 16_384;

pub(super) struct DeviceTree<'t> {
    tree: &'t Tree,
    base: &'static str,
}

impl<'t> DeviceTree<'t> {
    /// The device tree, where there is one that could say something of nodes. ACPI machines of arm64 also have one,
    /// with nothing in it but `chosen`.
    pub(super) fn find(tree: &'t Tree) -> Option<Self> {
        let base = PLACES
            .into_iter()
            .find(|base| tree.exists(&format!("{base}/#address-cells")))?;
        let described = tree.exists(&format!("{base}/cpus"));
        described.then_some(Self { tree, base })
    }

    /// Reads where it puts each of these root buses, and its distances.
    pub(super) fn read(&self, notes: &Notes, roots: &[RootBus]) -> Firmware {
        let points = self.reference_points(notes);
        let bridges = bridges(roots, |root| self.locate(root, points.as_ref()));
        let distances = match &points {
            Some(points) => self.distances(notes, points),
            None => self.distance_map(notes),
        };
        Firmware { bridges, distances }
    }

    fn cells(&self, path: &str) -> Result<Vec<u32>, Reason> {
        let read = self.tree.with_bytes(path, |bytes| {
            let cells = bytes.as_chunks::<4>().0;
            cells.iter().map(|cell| u32::from_be_bytes(*cell)).collect()
        });
        read.map_err(|error| error.reason)
    }

    /// Which entries of `ibm,associativity` count. On pSeries under RTAS, on PowerNV under `ibm,opal`.
    fn reference_points(&self, notes: &Notes) -> Option<ReferencePoints> {
        for holder in ["rtas", "ibm,opal"] {
            let path = format!("{}/{holder}/ibm,associativity-reference-points", self.base);
            if let Ok(cells) = self.cells(&path) {
                let vector = self
                    .tree
                    .bytes(&format!("{}/chosen/ibm,architecture-vec-5", self.base))
                    .ok();
                let points = ReferencePoints::new(
                    cells,
                    vector.as_deref(),
                    self.has_distance_table(holder),
                    holder,
                );
                if points.is_none() {
                    notes.note(self.tree.display(&path), "holds no usable reference point");
                }
                return points;
            }
        }
        None
    }

    fn has_distance_table(&self, holder: &str) -> bool {
        self.tree
            .exists(&format!("{}/{holder}/ibm,numa-distance-table", self.base))
    }

    fn locate(
        &self,
        root: RootBus,
        points: Option<&ReferencePoints>,
    ) -> Known<Option<FirmwareLocality>> {
        let Some(start) = self.bridge_path(root) else {
            let place = self.tree.display(self.base);
            return Known::no(format!("{place}: the entry of root bus {root} is unknown"));
        };
        let mut path = start.as_str();
        for _ in 0..DEEPEST {
            if let Some(found) = self.locality_at(path, points) {
                return found;
            }
            match path.rsplit_once('/') {
                Some((above, _)) if above.len() >= self.base.len() => path = above,
                _ => break,
            }
        }
        Known::Yes(None)
    }

    /// What one entry states; `None` where it states nothing.
    fn locality_at(
        &self,
        path: &str,
        points: Option<&ReferencePoints>,
    ) -> Option<Known<Option<FirmwareLocality>>> {
        let (property, told_by) = match points {
            Some(_) => ("ibm,associativity", FirmwareSource::DeviceTree),
            None => ("numa-node-id", FirmwareSource::NumaNodeId),
        };
        let path = format!("{path}/{property}");
        let cells = match self.cells(&path) {
            Ok(cells) => cells,
            Err(Reason::Absent) => return None,
            Err(reason) => return Some(Known::no(self.tree.unreadable(&path, reason).to_string())),
        };
        let domain = match points {
            Some(points) => points.domain(&cells),
            None => cells.first().copied(),
        };
        let evidence = self.tree.display(&path);
        let Some(domain) = domain else {
            return Some(Known::no(format!(
                "{evidence}: too short for the reference points"
            )));
        };
        // 0xffff means "no domain" (associativity_to_nid in arch/powerpc/mm/numa.c).
        if domain == 0xffff || domain >= MOST_NODES {
            return Some(Known::Yes(None));
        }
        let node = NodeId(domain);
        Some(Known::Yes(Some(FirmwareLocality {
            domain,
            node,
            told_by,
            evidence,
        })))
    }

    /// The entry of a root bus: what the kernel linked to the bus or to a device on it, or else the host bridge whose
    /// number gives the domain (get_phb_number in arch/powerpc/kernel/pci-common.c).
    fn bridge_path(&self, root: RootBus) -> Option<String> {
        let device = format!("sys/devices/pci{root}");
        for link in [
            format!("{device}/of_node"),
            format!("{device}/pci_bus/{root}/of_node"),
        ] {
            if let Some(path) = self
                .tree
                .link(&link)
                .ok()
                .and_then(|target| self.below_base(&target))
            {
                return Some(path);
            }
        }
        for name in self.tree.list(&device).unwrap_or_default() {
            if name.parse::<nearfar_machine::PciAddress>().is_ok()
                && let Ok(target) = self.tree.link(&format!("{device}/{name}/of_node"))
                && let Some(path) = self.below_base(&target)
            {
                return path.rsplit_once('/').map(|(bridge, _)| bridge.to_owned());
            }
        }
        let names = self.tree.list(self.base).ok()?;
        let mut bridges = names
            .iter()
            .filter(|name| name.starts_with("pci"))
            .map(|name| format!("{}/{name}", self.base));
        bridges.find(|path| self.bridge_domain(path) == Some(root.domain))
    }

    /// `../../../firmware/devicetree/base/pci@8...` as a path of the tree.
    fn below_base(&self, target: &str) -> Option<String> {
        let (_, below) = target
            .split_once("devicetree/base")
            .or_else(|| target.split_once("proc/device-tree"))?;
        let plain = below.is_empty()
            || (below.starts_with('/') && !below.split('/').any(|part| part == ".."));
        plain.then(|| format!("{}{below}", self.base))
    }

    fn bridge_domain(&self, path: &str) -> Option<u32> {
        if let Ok(cells) = self.cells(&format!("{path}/linux,pci-domain")) {
            return cells.first().copied();
        }
        let own = self
            .cells(&format!("{path}/ibm,opal-phbid"))
            .or_else(|_| self.cells(&format!("{path}/reg")))
            .ok()?;
        // Both are 64 bits wide, of which the kernel takes the lowest 16.
        own.get(1).or_else(|| own.first()).map(|cell| cell & 0xffff)
    }

    fn distances(&self, notes: &Notes, points: &ReferencePoints) -> Known<Distances> {
        let holder = format!("{}/{}", self.base, points.holder());
        let built = match points.form() {
            Form::Two => {
                let index = self
                    .cells(&format!("{holder}/ibm,numa-lookup-index-table"))
                    .unwrap_or_default();
                let table = self
                    .tree
                    .bytes(&format!("{holder}/ibm,numa-distance-table"))
                    .unwrap_or_default();
                associativity::table(&index, &table)
            }
            Form::Zero | Form::One => points.by_levels(&self.associativities()),
        };
        notes.known(|| self.tree.display(&holder), built)
    }

    /// `ibm,associativity` of all CPUs, memory and host bridges.
    fn associativities(&self) -> Vec<Vec<u32>> {
        let mut paths = Vec::new();
        for name in self.tree.list(self.base).unwrap_or_default() {
            if name.starts_with("memory@") || name.starts_with("pci") {
                paths.push(format!("{}/{name}", self.base));
            }
        }
        let cpus = format!("{}/cpus", self.base);
        paths.extend(
            self.tree
                .list(&cpus)
                .unwrap_or_default()
                .iter()
                .map(|name| format!("{cpus}/{name}")),
        );
        paths.truncate(MOST_ENTRIES);
        paths
            .iter()
            .filter_map(|path| self.cells(&format!("{path}/ibm,associativity")).ok())
            .collect()
    }

    /// `distance-map` (Documentation/devicetree/bindings/numa.txt in the kernel): triples from, to, distance.
    fn distance_map(&self, notes: &Notes) -> Known<Distances> {
        let path = format!("{}/distance-map/distance-matrix", self.base);
        let cells = match self.cells(&path) {
            Ok(cells) => cells,
            Err(reason) => return Known::no(self.tree.unreadable(&path, reason).to_string()),
        };
        notes.known(|| self.tree.display(&path), associativity::triples(&cells))
    }
}
