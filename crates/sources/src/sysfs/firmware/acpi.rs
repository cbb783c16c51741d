//! Host bridges and distances from ACPI's tables, as the kernel shows them in `sys/firmware/acpi/tables`.
//!
//! SRAT and SLIT say which proximity domains there are, and how far apart (ACPI 6.5, 5.2.16 and 5.2.17). Both are read as hostile
//! input: every length is checked against the table.

use std::collections::BTreeMap;

use nearfar_machine::{
    Distance, DistanceOrigin, Distances, FirmwareLocality, FirmwareSource, Known, MOST_NODES,
    NodeId, RootBus,
};

use super::aml::{Namespace, Number, Path};
use super::{Firmware, bridges};
use crate::tree::{Reason, Tree};
use crate::value::{self, ValueError};

const TABLES: &str = "sys/firmware/acpi/tables";
/// The largest DSDT seen has some 600 KiB.
const LARGEST: usize = 8 << 20;
/// Servers have up to some 30 SSDTs.
const MOST_TABLES: usize = 256;

/// What was read of the tables that describe devices.
struct Described<'t> {
    tree: &'t Tree,
    namespace: Namespace,
    /// The tables' names, by the number the namespace knows them by.
    names: Vec<String>,
    domains: Known<Domains>,
}

/// Reads where ACPI puts each of these root buses, and its distances.
pub(super) fn read(tree: &Tree, roots: &[RootBus]) -> Firmware {
    let domains = domains(tree);
    let distances = domains
        .as_ref()
        .and_then(|domains| tree.known(&format!("{TABLES}/SLIT"), |table| slit(table, domains)));
    let described = describe(tree, domains);
    let bridges = bridges(roots, |root| match &described {
        Known::Yes(described) => described.locate(root),
        Known::No { unknown_reason } => Known::no(unknown_reason.clone()),
    });
    Firmware { bridges, distances }
}

/// The SRAT. Where there is none every domain keeps its number.
fn domains(tree: &Tree) -> Known<Domains> {
    let path = format!("{TABLES}/SRAT");
    match tree.with_bytes(&path, Domains::parse) {
        Ok(parsed) => tree.parsed(&path, parsed),
        Err(error) if error.reason == Reason::Absent => Known::Yes(Domains::default()),
        Err(error) => Known::no(error.to_string()),
    }
}

/// Reads the DSDT and all SSDTs, also those loaded at run time (`dynamic/`).
fn describe<'t>(tree: &'t Tree, domains: Known<Domains>) -> Known<Described<'t>> {
    let mut names = vec!["DSDT".to_owned()];
    for prefix in ["", "dynamic/"] {
        let listed = tree.list(&format!("{TABLES}/{prefix}")).unwrap_or_default();
        let tables = listed.iter().filter(|name| name.starts_with("SSDT"));
        names.extend(tables.map(|name| format!("{prefix}{name}")));
    }
    names.truncate(MOST_TABLES);
    let mut namespace = Namespace::default();
    for (index, name) in names.iter().enumerate() {
        let path = format!("{TABLES}/{name}");
        let signature = if index == 0 { b"DSDT" } else { b"SSDT" };
        let read = tree.with_bytes(&path, |table| {
            let body = body(table, signature)?;
            if body.len() > LARGEST {
                return Err(ValueError::faulty("larger than any such table"));
            }
            namespace.add(body, index);
            Ok(())
        });
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tree.note(&path, error.to_string()),
            Err(error) if error.reason == Reason::Denied || index == 0 => {
                return Known::no(error.to_string());
            }
            Err(error) => tree.unless_absent(error),
        }
    }
    Known::Yes(Described {
        tree,
        namespace,
        names,
        domains,
    })
}

impl Described<'_> {
    fn locate(&self, root: RootBus) -> Known<Option<FirmwareLocality>> {
        let path = match self.bridge(root) {
            Known::Yes(Some(path)) => path,
            Known::Yes(None) => {
                let table = self.tree.display(&format!("{TABLES}/DSDT"));
                return Known::no(format!(
                    "{table}: no host bridge is declared for bus {root}"
                ));
            }
            Known::No { unknown_reason } => return Known::no(unknown_reason),
        };
        let Some((holder, (number, table))) = self.proximity(path) else {
            return Known::Yes(None);
        };
        let file = self.names.get(table).map_or_else(String::new, |name| {
            self.tree.display(&format!("{TABLES}/{name}"))
        });
        let evidence = format!("{file}: {holder}._PXM");
        let domain = match number {
            Number::Constant(domain) => u32::try_from(domain).ok(),
            Number::Computed => {
                return Known::no(format!(
                    "{evidence} is computed by a method, which is not run"
                ));
            }
        };
        self.domains.as_ref().and_then(|domains| {
            match domain.and_then(|domain| Some((domain, domains.node_of(domain)?))) {
                Some((domain, node)) => Known::Yes(Some(FirmwareLocality {
                    domain,
                    node,
                    told_by: FirmwareSource::AcpiPxm,
                    evidence,
                })),
                None => Known::no(format!("{evidence} is beyond any number a node can have")),
            }
        })
    }

    /// The declaration of a root bus: the one the kernel linked to it, or else the one whose `_SEG` and `_BBN` match.
    fn bridge(&self, root: RootBus) -> Known<Option<Path>> {
        let linked = self.linked_path(root);
        if let Some(path) = linked.filter(|path| self.namespace.get(path).is_some()) {
            return Known::Yes(Some(path));
        }
        let bridges = self.namespace.host_bridges();
        let is = |number: Option<Number>, wanted: u64| {
            number.unwrap_or(Number::Constant(0)) == Number::Constant(wanted)
        };
        let mut matching = bridges.iter().filter(|(_, object)| {
            is(object.segment, u64::from(root.domain)) && is(object.bus, u64::from(root.bus))
        });
        if let Some(&(path, _)) = matching.next() {
            return match matching.next() {
                None => Known::Yes(Some(path.clone())),
                Some((other, _)) => Known::no(format!(
                    "both {path} and {other} are declared for bus {root}"
                )),
            };
        }
        match bridges
            .iter()
            .find(|(_, object)| [object.bus, object.segment].contains(&Some(Number::Computed)))
        {
            Some((path, _)) => Known::no(format!(
                "the bus of {path} is computed by a method, which is not run"
            )),
            None => Known::Yes(None),
        }
    }

    fn linked_path(&self, root: RootBus) -> Option<Path> {
        let text = self.tree.value(
            &format!("sys/devices/pci{root}/firmware_node/path"),
            value::word,
        )?;
        Path::parse(&text)
    }

    /// `_PXM` of an object or of the nearest one above it, as acpi_get_pxm in drivers/acpi/numa/srat.c looks it up.
    fn proximity(&self, path: Path) -> Option<(Path, (Number, usize))> {
        std::iter::successors(Some(path), Path::parent).find_map(|path| {
            let proximity = self.namespace.get(&path)?.proximity?;
            Some((path, proximity))
        })
    }
}

/// Signature, length, revision and so on stand before every table's own content.
const HEADER: usize = 36;

/// The content of a table behind its header, cut to the length the header gives.
pub(super) fn body<'a>(table: &'a [u8], signature: &[u8; 4]) -> Result<&'a [u8], ValueError> {
    if table.get(..4) != Some(signature) {
        let found = String::from_utf8_lossy(&table[..table.len().min(4)]);
        return Err(ValueError::malformed(found, "the signature of the table"));
    }
    let length = u32_at(table, 4).unwrap_or(0) as usize;
    if length < HEADER || table.len() < HEADER {
        return Err(truncated("the header"));
    }
    Ok(&table[HEADER..length.clamp(HEADER, table.len())])
}

fn truncated(part: &str) -> ValueError {
    ValueError::faulty(format!("too short for {part}"))
}

/// Which node the kernel gives each proximity domain.
///
/// drivers/acpi/numa/srat.c walks the SRAT twice, first the entries of CPUs and generic initiators, then those of
/// memory, and gives each domain it has not seen the lowest free node. So nodes are numbered by first appearance, not
/// by domain. Since Linux 5.10 a domain without an SRAT entry gets no node at all; here it keeps its own number where
/// no node has that, so that a description of the machine can name it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Domains {
    nodes: BTreeMap<u32, NodeId>,
}

impl Domains {
    pub(super) fn parse(table: &[u8]) -> Result<Self, ValueError> {
        let body = body(table, b"SRAT")?;
        let revision = table.get(8).copied().unwrap_or_default();
        // 12 reserved bytes stand between the header and the first entry.
        let entries = body.get(12..).ok_or_else(|| truncated("entries"))?;
        let mut domains = Self::default();
        for memory in [false, true] {
            let mut rest = entries;
            while let Some((entry, behind)) = next_entry(rest) {
                if (entry[0] == 1) == memory
                    && let Some(domain) = domain_of(entry, revision)
                {
                    domains.add(domain);
                }
                rest = behind;
            }
        }
        Ok(domains)
    }

    fn add(&mut self, domain: u32) {
        let next = NodeId(self.nodes.len() as u32);
        if next.0 < MOST_NODES {
            self.nodes.entry(domain).or_insert(next);
        }
    }

    /// The node of a domain; `None` where the domain's number is beyond what a node can have.
    pub(super) fn node_of(&self, domain: u32) -> Option<NodeId> {
        if let Some(&node) = self.nodes.get(&domain) {
            return Some(node);
        }
        let taken = |node: NodeId| self.nodes.values().any(|&other| other == node);
        let free = [NodeId(domain), NodeId(self.nodes.len() as u32)];
        let mut free = free
            .into_iter()
            .filter(|node| node.0 < MOST_NODES && !taken(*node));
        free.next().filter(|_| domain < MOST_NODES)
    }
}

/// The next entry and what is behind it.
fn next_entry(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(*rest.get(1)?);
    (length >= 2).then(|| rest.split_at_checked(length))?
}

/// The proximity domain of an enabled entry.
fn domain_of(entry: &[u8], revision: u8) -> Option<u32> {
    const ENABLED: u32 = 1;
    let (domain, flags) = match entry[0] {
        // A processor by its APIC number; revision 1 knows only the first byte of the domain.
        0 => {
            let low = u32::from(*entry.get(2)?);
            let high = u32_at(entry, 8)? & 0xffff_ff00;
            (
                if revision >= 2 { low | high } else { low },
                u32_at(entry, 4)?,
            )
        }
        1 => {
            let domain = u32_at(entry, 2)?;
            (
                if revision >= 2 { domain } else { domain & 0xff },
                u32_at(entry, 28)?,
            )
        }
        2 => (u32_at(entry, 4)?, u32_at(entry, 12)?),
        3 => (u32_at(entry, 2)?, u32_at(entry, 10)?),
        5 => (u32_at(entry, 4)?, u32_at(entry, 24)?),
        _ => return None,
    };
    (flags & ENABLED != 0).then_some(domain)
}

/// Reads a SLIT into distances between nodes.
fn slit(table: &[u8], domains: &Domains) -> Result<Distances, ValueError> {
    let body = body(table, b"SLIT")?;
    let count = body
        .first_chunk::<8>()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .ok_or_else(|| truncated("its size"))?;
    let matrix = &body[8..];
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= MOST_NODES as usize);
    let count = count.ok_or_else(|| {
        ValueError::faulty(format!("it claims more than {MOST_NODES} localities"))
    })?;
    if count == 0 || count * count > matrix.len() {
        let part = format!("{count} x {count} distances ({} bytes)", matrix.len());
        return Err(truncated(&part));
    }
    let mut order: BTreeMap<NodeId, usize> = BTreeMap::new();
    for domain in 0..count {
        let node = domains.node_of(domain as u32);
        let missing = || ValueError::faulty(format!("locality {domain} has no node"));
        // Two localities for which the SRAT leaves only one number: the first one has it.
        order.entry(node.ok_or_else(missing)?).or_insert(domain);
    }
    let row = |(&from, row): (&NodeId, &usize)| {
        let entries = order.iter();
        let entries = entries.map(|(&to, column)| (from, to, entry(matrix[row * count + column])));
        entries.collect::<Vec<_>>()
    };
    let entries = order.iter().flat_map(row);
    let nodes = order.keys().copied();
    Ok(Distances::of(DistanceOrigin::Slit, nodes, entries))
}

/// 0 to 9 are reserved (ACPI 6.5, table 5.73): they say nothing.
fn entry(byte: u8) -> Option<Distance> {
    (byte >= 10).then(|| Distance(byte.into()))
}

/// A little-endian number at a place.
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|chunk| u32::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut table = signature.to_vec();
        table.extend(((HEADER + body.len()) as u32).to_le_bytes());
        table.push(3);
        table.resize(HEADER, 0);
        table.extend(body);
        table
    }

    fn x2apic(domain: u32, enabled: bool) -> Vec<u8> {
        let mut entry = vec![2, 24, 0, 0];
        entry.extend(domain.to_le_bytes());
        entry.extend([0; 4]);
        entry.extend(u32::from(enabled).to_le_bytes());
        entry.resize(24, 0);
        entry
    }

    fn memory(domain: u32) -> Vec<u8> {
        let mut entry = vec![1, 40];
        entry.extend(domain.to_le_bytes());
        entry.resize(28, 0);
        entry.extend(1u32.to_le_bytes());
        entry.resize(40, 0);
        entry
    }

    fn srat(entries: &[Vec<u8>]) -> Vec<u8> {
        table(b"SRAT", &[&[0; 12][..], &entries.concat()].concat())
    }

    #[test]
    fn nodes_are_numbered_by_first_appearance_cpus_before_memory() {
        let entries = [
            memory(7),
            x2apic(9, false),
            x2apic(5, true),
            x2apic(2, true),
            memory(5),
        ];
        let domains = Domains::parse(&srat(&entries)).unwrap();
        let nodes = [5, 2, 7].map(|domain| domains.node_of(domain).unwrap().0);
        assert_eq!(nodes, [0, 1, 2]);
    }

    #[test]
    fn a_domain_without_an_entry_keeps_its_number_where_that_is_free() {
        let domains = Domains::parse(&srat(&[x2apic(0, true), x2apic(4, true)])).unwrap();
        assert_eq!(domains.node_of(3), Some(NodeId(3)));
        assert_eq!(
            domains.node_of(1),
            Some(NodeId(2)),
            "1 is the node of domain 4"
        );
        assert_eq!(domains.node_of(u32::MAX), None);
    }

    #[test]
    fn a_slit_is_keyed_by_node_and_reserved_values_are_holes() {
        let domains = Domains::parse(&srat(&[x2apic(1, true), x2apic(0, true)])).unwrap();
        let mut body = 2u64.to_le_bytes().to_vec();
        body.extend([10, 21, 3, 11]);
        let distances = slit(&table(b"SLIT", &body), &domains).unwrap();
        let get = |from, to| {
            distances
                .get(NodeId(from), NodeId(to))
                .map(|distance| distance.0)
        };
        assert_eq!(
            [get(0, 0), get(0, 1), get(1, 0), get(1, 1)],
            [Some(11), None, Some(21), Some(10)]
        );
    }

    #[test]
    fn a_slit_that_promises_more_than_it_holds_is_refused() {
        for (count, room) in [(u64::MAX, 100), (1024, 100), (3, 8), (0, 8)] {
            let body = [&count.to_le_bytes()[..], &vec![10; room]].concat();
            assert!(
                slit(&table(b"SLIT", &body), &Domains::default()).is_err(),
                "{count}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(body: Vec<u8>, cut in 0usize..80) {
            for signature in [b"SRAT", b"SLIT"] {
                let mut whole = table(signature, &body);
                whole.truncate(whole.len() - cut.min(whole.len()));
                let domains = Domains::parse(&whole).unwrap_or_default();
                let _ = slit(&whole, &domains);
            }
        }
    }
}
