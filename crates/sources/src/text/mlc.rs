//! Intel's Memory Latency Checker: which nodes there are. Its latencies and bandwidths are measurements, for which a
//! description of a machine has no place: nearfar's own are in runs.
//!
//! ```text
//! Measuring idle latencies for random access (in ns)...
//!                 Numa node
//! Numa node            0       1
//!        0          81.5   139.6
//!        1         139.4    81.9
//! ```

use nearfar_machine::{MAX_NUMBER, NodeId, NodeSet};

use super::printed::Line;
use super::{Kind, Reading, Start};

pub(super) const KIND: Kind = Kind {
    name: "mlc",
    has: "the numbers of nodes",
    starts: &[
        Start::new(&["Latency Checker"], r"(Intel\(R\) Memory Latency Checker)"),
        Start::new(&["Numa node"], r"(?:^|\W)(Numa node(?:\s+\d+)+)\s*$"),
    ],
    goes_on: r"^\s*\d+(?:\s+[\d.]+)+\s*$",
    read,
};

fn read(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let heads = lines
        .iter()
        .filter_map(|line| Some((line.number, line.text.trim().strip_prefix("Numa node")?)));
    let mut heads = heads.filter(|(_, columns)| !columns.trim().is_empty());
    let Some((number, columns)) = heads.next() else {
        return Err("mlc's matrix of latencies is missing".to_owned());
    };
    let ids = columns.split_whitespace().filter_map(|id| id.parse().ok());
    let nodes: NodeSet = ids.filter(|&id| id <= MAX_NUMBER).map(NodeId).collect();
    reading.machine.nodes = nodes
        .iter()
        .map(|id| reading.node_of_unknown_cpus(id))
        .collect();
    let message = "the latencies and bandwidths that mlc measured are not read: a machine's description has none; \
                   nearfar bench latency measures them";
    reading.warnings.note_line(number, message);
    Ok(())
}
