//! Distances between nodes: `nodeN/distance` holds row N, one number for each online node in ascending order, so the
//! columns have no names: a row of another length cannot be assigned and is left out.

use nearfar_machine::{Distance, DistanceOrigin, Distances, Known, NodeSet};

use super::nodes::{DIRECTORY, Nodes};
use super::notes::{Notes, read_noted};
use crate::tree::Tree;
use crate::value::{self, ValueError};

pub(super) fn read(tree: &Tree, nodes: &Nodes, notes: &Notes) -> Known<Distances> {
    let directory = match tree.directory(DIRECTORY) {
        Ok(directory) => directory,
        Err(error) => return Known::no(error.to_string()),
    };
    let mut table = Distances::empty(
        DistanceOrigin::Kernel,
        nodes.online.union(&nodes.listed).iter(),
    );
    let mut found = false;
    for node in nodes.listed.iter() {
        let name = format!("node{node}/distance");
        let Some(row) = read_noted(&directory, &name, notes, row) else {
            continue;
        };
        let of_its_length = |set: &&NodeSet| set.len() == row.len();
        let Some(columns) = [&nodes.online, &nodes.listed]
            .into_iter()
            .find(of_its_length)
        else {
            let message = format!(
                "has {} distances for {} online nodes; left out",
                row.len(),
                nodes.online.len()
            );
            notes.note(directory.display(&name), message);
            continue;
        };
        found = true;
        for (to, distance) in columns.iter().zip(row) {
            table.set(node, to, Some(distance));
        }
    }
    if !found {
        return Known::no(format!(
            "no row in {}",
            tree.display(&format!("{DIRECTORY}/nodeN/distance"))
        ));
    }
    Known::Yes(table)
}

fn row(bytes: &[u8]) -> Result<Vec<Distance>, ValueError> {
    value::text(bytes)?
        .split_ascii_whitespace()
        .map(|word| value::natural32(word.as_bytes()).map(Distance))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_numbers_and_nothing_else() {
        assert_eq!(
            row(b"10 20 255\n"),
            Ok(vec![Distance(10), Distance(20), Distance(255)])
        );
        assert_eq!(row(b""), Ok(vec![]));
        for text in ["10 x", "-10", "10 4294967296", "10,20"] {
            assert!(row(text.as_bytes()).is_err(), "{text}");
        }
    }
}
