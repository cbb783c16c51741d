//! What powerpc firmware calls associativity: a device's place in a hierarchy of levels, and distances made of it.
//!
//! Three forms: 0 knows near and far; 1 doubles the distance for each level two domains do not share; 2 gives a table.

use std::collections::BTreeMap;

use nearfar_machine::{Distance, DistanceOrigin, Distances, MOST_NODES, NodeId};

use crate::value::ValueError;

/// How many levels the kernel takes at most (`MAX_DISTANCE_REF_POINTS`).
const MOST_LEVELS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Near and far only.
    Zero,
    /// By shared levels.
    One,
    /// By a table.
    Two,
}

/// Which entries of an associativity list count; the first one is the node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReferencePoints {
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
        let points = if form == Form::Zero && points.len() > 1 {
            points[1..].to_vec()
        } else {
            points
        };
        let usable = points.first().is_some_and(|&first| first > 0);
        usable.then_some(Self {
            form,
            points,
            holder,
        })
    }

    pub(super) fn form(&self) -> Form {
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
    pub(super) fn by_levels(&self, lists: &[Vec<u32>]) -> Result<Distances, ValueError> {
        let mut places: BTreeMap<u32, Vec<Option<u32>>> = BTreeMap::new();
        for list in lists {
            if let Some(domain) = self.domain(list).filter(|&domain| domain < MOST_NODES) {
                let levels = || self.points.iter().map(|&point| at(list, point)).collect();
                places.entry(domain).or_insert_with(levels);
            }
        }
        if places.is_empty() {
            return Err(ValueError::Truncated(
                "no CPU, memory or host bridge says where it is".to_owned(),
            ));
        }
        let row = |from: &Vec<Option<u32>>| {
            places
                .values()
                .map(|to| Some(self.distance(from, to)))
                .collect()
        };
        let rows = places.values().map(row).collect();
        let nodes = places.keys().map(|&domain| NodeId(domain)).collect();
        Ok(Distances::from_rows(
            DistanceOrigin::DeviceTree,
            nodes,
            rows,
        )?)
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
    ValueError::Truncated(format!("{property} does not hold {wanted}"))
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
    let triples = domains
        .iter()
        .zip(bytes.chunks(domains.len()))
        .flat_map(|(&from, row)| {
            domains
                .iter()
                .zip(row)
                .map(move |(&to, &distance)| (from, to, u32::from(distance)))
        });
    matrix(triples)
}

/// `distance-matrix`: from, to, distance, again and again. The kernel uses one direction for both unless both are given.
pub(super) fn triples(cells: &[u32]) -> Result<Distances, ValueError> {
    let (entries, rest) = cells.as_chunks::<3>();
    if entries.is_empty() || !rest.is_empty() {
        let problem = format!("{} numbers are no triples: from, to, distance", cells.len());
        return Err(ValueError::Truncated(problem));
    }
    let backwards = entries
        .iter()
        .map(|&[from, to, distance]| (to, from, distance));
    matrix(
        backwards.chain(
            entries
                .iter()
                .map(|&[from, to, distance]| (from, to, distance)),
        ),
    )
}

fn matrix(entries: impl Iterator<Item = (u32, u32, u32)> + Clone) -> Result<Distances, ValueError> {
    let mut nodes: Vec<NodeId> = entries
        .clone()
        .flat_map(|(from, to, _)| [NodeId(from), NodeId(to)])
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.len() > MOST_NODES as usize || nodes.last().is_some_and(|last| last.0 >= MOST_NODES) {
        let problem = format!("it names domains beyond {MOST_NODES}");
        return Err(ValueError::TooLarge(problem));
    }
    let rows = vec![vec![None; nodes.len()]; nodes.len()];
    let mut distances = Distances::from_rows(DistanceOrigin::DeviceTree, nodes, rows)?;
    for (from, to, distance) in entries {
        distances.set(NodeId(from), NodeId(to), Some(Distance(distance)));
    }
    Ok(distances)
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
