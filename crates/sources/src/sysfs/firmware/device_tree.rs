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
//!
//! What powerpc firmware calls associativity is a device's place in a hierarchy of levels; distances are made of it.
//! Three forms: 0 knows near and far; 1 doubles the distance for each level two domains do not share; 2 gives a table.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{
    Distance, DistanceOrigin, Distances, FirmwareLocality, FirmwareSource, Known, MOST_NODES,
    NodeId, PciAddress, RootBus,
};

use super::{Firmware, bridges};
use crate::tree::{Reason, Tree};
use crate::value::{self, ValueError};

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
    pub(super) fn read(&self, roots: &[RootBus]) -> Firmware {
        let points = self.reference_points();
        let bridges = bridges(roots, |root| self.locate(root, points.as_ref()));
        let distances = match &points {
            Some(points) => self.distances(points),
            None => self.distance_map(),
        };
        Firmware { bridges, distances }
    }

    fn cells(&self, path: &str) -> Result<Vec<u32>, Reason> {
        let read = self.tree.with_bytes(path, value::cells);
        read.map_err(|error| error.reason)
    }

    /// Which entries of `ibm,associativity` count. On pSeries under RTAS, on PowerNV under `ibm,opal`.
    fn reference_points(&self) -> Option<ReferencePoints> {
        for holder in ["rtas", "ibm,opal"] {
            let path = format!("{}/{holder}/ibm,associativity-reference-points", self.base);
            if let Ok(cells) = self.cells(&path) {
                let vector = format!("{}/chosen/ibm,architecture-vec-5", self.base);
                let vector = self.tree.bytes(&vector).ok();
                let table = format!("{}/{holder}/ibm,numa-distance-table", self.base);
                let has_table = self.tree.exists(&table);
                let points = ReferencePoints::new(cells, vector.as_deref(), has_table, holder);
                if points.is_none() {
                    self.tree.note(&path, "holds no usable reference point");
                }
                return points;
            }
        }
        None
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
        let linked = |link: String| self.below_base(&self.tree.link(&link).ok()?);
        let of_bus = || linked(format!("{device}/pci_bus/{root}/of_node"));
        if let Some(path) = linked(format!("{device}/of_node")).or_else(of_bus) {
            return Some(path);
        }
        for name in self.tree.list(&device).unwrap_or_default() {
            if name.parse::<PciAddress>().is_ok()
                && let Some(path) = linked(format!("{device}/{name}/of_node"))
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

    fn distances(&self, points: &ReferencePoints) -> Known<Distances> {
        let holder = format!("{}/{}", self.base, points.holder());
        let built = match points.form() {
            Form::Two => {
                let index = self.cells(&format!("{holder}/ibm,numa-lookup-index-table"));
                let rows = format!("{holder}/ibm,numa-distance-table");
                let rows = self.tree.bytes(&rows).unwrap_or_default();
                table(&index.unwrap_or_default(), &rows)
            }
            Form::Zero | Form::One => points.by_levels(&self.associativities()),
        };
        self.tree.parsed(&holder, built)
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
        let names = self.tree.list(&cpus).unwrap_or_default().into_iter();
        paths.extend(names.map(|name| format!("{cpus}/{name}")));
        let paths = paths.into_iter().take(MOST_ENTRIES);
        let cells = |path| self.cells(&format!("{path}/ibm,associativity")).ok();
        paths.filter_map(cells).collect()
    }

    /// `distance-map` (Documentation/devicetree/bindings/numa.txt in the kernel): triples from, to, distance.
    fn distance_map(&self) -> Known<Distances> {
        let path = format!("{}/distance-map/distance-matrix", self.base);
        let cells = match self.cells(&path) {
            Ok(cells) => cells,
            Err(reason) => return Known::no(self.tree.unreadable(&path, reason).to_string()),
        };
        self.tree.parsed(&path, triples(&cells))
    }
}

/// How many levels the kernel takes at most (`MAX_DISTANCE_REF_POINTS`).
const MOST_LEVELS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Near and far only.
    Zero,
    /// By shared levels.
    One,
    /// By a table.
    Two,
}

/// Which entries of an associativity list count; the first one is the node.
#[derive(Debug, PartialEq, Eq)]
struct ReferencePoints {
    form: Form,
    points: Vec<usize>,
    holder: &'static str,
}

impl ReferencePoints {
    /// From the property, and from what firmware and kernel agreed on: byte 5 of `ibm,architecture-vec-5`, behind the
    /// vector's length, has 0x80 for form 1 and 0x20 for form 2. PowerNV has no such vector and uses form 1.
    pub(super) fn new(
        cells: Vec<u32>,
        vector: Option<&[u8]>,
        table: bool,
        holder: &'static str,
    ) -> Option<Self> {
        let agreed = vector.and_then(|vector| vector.get(5)).copied();
        let form = match agreed {
            Some(bits) if bits & 0x20 != 0 && table => Form::Two,
            Some(bits) if bits & 0x80 != 0 => Form::One,
            Some(_) if holder == "rtas" => Form::Zero,
            None if table => Form::Two,
            _ => Form::One,
        };
        let points: Vec<usize> = cells
            .into_iter()
            .take(MOST_LEVELS)
            .map(|cell| cell as usize)
            .collect();
        // Form 0 has the node at the second point.
        let points = match points[..] {
            [_, ref behind @ ..] if form == Form::Zero && !behind.is_empty() => behind.to_vec(),
            _ => points,
        };
        let usable = points.first().is_some_and(|&first| first > 0);
        usable.then_some(Self {
            form,
            points,
            holder,
        })
    }

    fn form(&self) -> Form {
        self.form
    }

    /// The entry of the device tree that holds the tables.
    pub(super) fn holder(&self) -> &'static str {
        self.holder
    }

    /// The domain of a device: its list starts with its own length.
    pub(super) fn domain(&self, list: &[u32]) -> Option<u32> {
        at(list, *self.points.first()?)
    }

    /// Distances from the lists of everything that has one.
    fn by_levels(&self, lists: &[Vec<u32>]) -> Result<Distances, ValueError> {
        let mut places: BTreeMap<u32, Vec<Option<u32>>> = BTreeMap::new();
        for list in lists {
            if let Some(domain) = self.domain(list).filter(|&domain| domain < MOST_NODES) {
                let levels = || self.points.iter().map(|&point| at(list, point)).collect();
                places.entry(domain).or_insert_with(levels);
            }
        }
        if places.is_empty() {
            let problem = "no CPU, memory or host bridge says where it is";
            return Err(ValueError::faulty(problem));
        }
        let pairs = places
            .iter()
            .flat_map(|from| places.iter().map(move |to| (from, to)));
        matrix(pairs.map(|((&a, from), (&b, to))| (a, b, self.distance(from, to).0)))
    }

    /// `__node_distance` in arch/powerpc/mm/numa.c.
    fn distance(&self, from: &[Option<u32>], to: &[Option<u32>]) -> Distance {
        let apart = from
            .iter()
            .zip(to)
            .take_while(|(from, to)| from != to)
            .count() as u32;
        match self.form {
            Form::Zero if apart > 0 => Distance::REMOTE,
            _ => Distance(Distance::LOCAL.0 << apart),
        }
    }
}

fn at(list: &[u32], point: usize) -> Option<u32> {
    let length = *list.first()? as usize;
    list.get(point).copied().filter(|_| point <= length)
}

fn truncated(property: &str, wanted: &str) -> ValueError {
    ValueError::faulty(format!("{property} does not hold {wanted}"))
}

/// Form 2: how many domains, the domains; how many distances (a 32-bit number), the distances (a byte each).
pub(super) fn table(index: &[u32], table: &[u8]) -> Result<Distances, ValueError> {
    let domains = index
        .split_first()
        .and_then(|(&count, domains)| domains.get(..count as usize));
    let domains =
        domains.filter(|domains| !domains.is_empty() && domains.len() <= MOST_NODES as usize);
    let domains = domains
        .ok_or_else(|| truncated("ibm,numa-lookup-index-table", "the domains it announces"))?;
    let (count, bytes) = table
        .split_first_chunk::<4>()
        .ok_or_else(|| truncated("ibm,numa-distance-table", "its size"))?;
    let expected = domains.len() * domains.len();
    if u32::from_be_bytes(*count) as usize != expected || bytes.len() < expected {
        let wanted = format!("{expected} distances for {} domains", domains.len());
        return Err(truncated("ibm,numa-distance-table", &wanted));
    }
    let rows = domains.iter().zip(bytes.chunks(domains.len()));
    matrix(rows.flat_map(|(&from, row)| {
        let row = domains.iter().zip(row);
        row.map(move |(&to, &distance)| (from, to, u32::from(distance)))
    }))
}

/// `distance-matrix`: from, to, distance, again and again. The kernel uses one direction for both unless both are given.
fn triples(cells: &[u32]) -> Result<Distances, ValueError> {
    let (entries, rest) = cells.as_chunks::<3>();
    if entries.is_empty() || !rest.is_empty() {
        let problem = format!("{} numbers are no triples: from, to, distance", cells.len());
        return Err(ValueError::faulty(problem));
    }
    let forwards = entries.iter();
    let forwards = forwards.map(|&[from, to, distance]| (from, to, distance));
    let backwards = forwards.clone();
    let backwards = backwards.map(|(from, to, distance)| (to, from, distance));
    matrix(backwards.chain(forwards))
}

fn matrix(entries: impl Iterator<Item = (u32, u32, u32)> + Clone) -> Result<Distances, ValueError> {
    let nodes = entries.clone();
    let nodes: BTreeSet<u32> = nodes.flat_map(|(from, to, _)| [from, to]).collect();
    if nodes.last().is_some_and(|&last| last >= MOST_NODES) {
        let problem = format!("it names domains beyond {MOST_NODES}");
        return Err(ValueError::faulty(problem));
    }
    let entry = |(from, to, distance)| (NodeId(from), NodeId(to), Some(Distance(distance)));
    let nodes = nodes.into_iter().map(NodeId);
    let entries = entries.map(entry);
    Ok(Distances::of(DistanceOrigin::DeviceTree, nodes, entries))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(distances: &Distances) -> Vec<Vec<u32>> {
        let row = |from| {
            distances
                .row(from)
                .map(|(_, distance)| distance.map_or(0, |distance| distance.0))
                .collect()
        };
        distances.nodes().iter().map(|&from| row(from)).collect()
    }

    #[test]
    fn form_1_doubles_the_distance_for_each_level_not_shared() {
        let points =
            ReferencePoints::new(vec![4, 2], Some(&[0, 0, 0, 0, 0, 0x80]), false, "rtas").unwrap();
        let list = |chip, node| vec![5, 0, chip, 0, node, 99];
        let distances = points
            .by_levels(&[list(0, 0), list(0, 1), list(1, 8)])
            .unwrap();
        assert_eq!(distances.nodes(), [NodeId(0), NodeId(1), NodeId(8)]);
        assert_eq!(rows(&distances), [[10, 20, 40], [20, 10, 40], [40, 40, 10]]);
    }

    #[test]
    fn form_0_takes_the_second_point_and_knows_near_and_far() {
        let points = ReferencePoints::new(vec![3, 2], Some(&[0; 8]), false, "rtas").unwrap();
        assert_eq!(points.domain(&[3, 7, 1, 9]), Some(1));
        let distances = points
            .by_levels(&[vec![3, 0, 0, 0], vec![3, 0, 1, 0]])
            .unwrap();
        assert_eq!(rows(&distances), [[10, 20], [20, 10]]);
    }

    #[test]
    fn form_2_reads_the_table_of_the_domains_it_lists() {
        let distances = table(&[2, 0, 2], &[0, 0, 0, 4, 10, 40, 41, 10]).unwrap();
        assert_eq!(distances.nodes(), [NodeId(0), NodeId(2)]);
        assert_eq!(rows(&distances), [[10, 40], [41, 10]]);
    }

    #[test]
    fn tables_that_do_not_hold_what_they_announce_are_refused() {
        assert!(table(&[], &[]).is_err());
        assert!(table(&[9, 0], &[0, 0, 0, 1, 10]).is_err());
        assert!(table(&[2, 0, 1], &[0, 0, 0, 4, 10]).is_err());
        assert!(table(&[2, 0, u32::MAX], &[0, 0, 0, 4, 10, 20, 20, 10]).is_err());
        assert!(triples(&[0, 0]).is_err());
    }

    #[test]
    fn a_distance_map_counts_for_both_directions_unless_told() {
        let distances = triples(&[0, 0, 10, 0, 1, 20, 1, 1, 10]).unwrap();
        assert_eq!(rows(&distances), [[10, 20], [20, 10]]);
    }

    proptest! {
        #[test]
        fn no_numbers_panic(cells: Vec<u32>, lists: Vec<Vec<u32>>, bytes: Vec<u8>, small in proptest::collection::vec(0u32..6, 0..8)) {
            let _ = triples(&cells);
            let _ = table(&cells, &bytes);
            let _ = table(&small, &bytes);
            for points in [cells, small] {
                for vector in [None, Some(bytes.as_slice())] {
                    if let Some(points) = ReferencePoints::new(points.clone(), vector, false, "rtas") {
                        let _ = points.by_levels(&lists);
                    }
                }
            }
        }
    }
}
