//! ACPI's SRAT and SLIT: which proximity domains there are, and how far apart.
//!
//! Formats: ACPI 6.5, 5.2.16 and 5.2.17. Both are read as hostile input: every length is checked against the table.

use std::collections::BTreeMap;

use nearfar_machine::{Distance, DistanceOrigin, Distances, MOST_NODES, NodeId};

use crate::value::ValueError;

/// Signature, length, revision and so on stand before every table's own content.
pub(super) const HEADER: usize = 36;

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
    ValueError::Truncated(format!("too short for {part}"))
}

/// Which node the kernel gives each proximity domain.
///
/// drivers/acpi/numa/srat.c walks the SRAT twice, first the entries of CPUs and generic initiators, then those of
/// memory, and gives each domain it has not seen the lowest free node. So nodes are numbered by first appearance, not
/// by domain. Since Linux 5.10 a domain without an SRAT entry gets no node at all; here it keeps its own number where
/// no node has that, so that a description of the machine can name it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Domains {
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
        let own = Some(NodeId(domain)).filter(|&node| domain < MOST_NODES && !taken(node));
        own.or_else(|| {
            Some(NodeId(self.nodes.len() as u32))
                .filter(|node| domain < MOST_NODES && node.0 < MOST_NODES)
        })
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
pub(super) fn slit(table: &[u8], domains: &Domains) -> Result<Distances, ValueError> {
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
        ValueError::TooLarge(format!("it claims more than {MOST_NODES} localities"))
    })?;
    if count == 0 || count * count > matrix.len() {
        let part = format!("{count} x {count} distances ({} bytes)", matrix.len());
        return Err(truncated(&part));
    }
    let mut order: Vec<(NodeId, usize)> = Vec::new();
    for domain in 0..count {
        let node = domains
            .node_of(domain as u32)
            .ok_or_else(|| ValueError::Contradiction(format!("locality {domain} has no node")))?;
        order.push((node, domain));
    }
    order.sort_unstable();
    // Two localities for which the SRAT leaves only one number: the first one has it.
    order.dedup_by_key(|&mut (node, _)| node);
    let row = |from: usize| {
        order
            .iter()
            .map(|&(_, to)| entry(matrix[from * count + to]))
            .collect()
    };
    let rows = order.iter().map(|&(_, from)| row(from)).collect();
    let nodes = order.iter().map(|&(node, _)| node).collect();
    Ok(Distances::from_rows(DistanceOrigin::Slit, nodes, rows)?)
}

/// 0 to 9 are reserved (ACPI 6.5, table 5.73): they say nothing.
fn entry(byte: u8) -> Option<Distance> {
    (byte >= 10).then(|| Distance(byte.into()))
}

/// A little-endian number at a place.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
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
