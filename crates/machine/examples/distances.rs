//! Two nodes of a machine: CPU lists and masks as the kernel writes them, distances, and what is unknown.
//!
//! `cargo run -p nearfar-machine --example distances`

use nearfar_machine::{CpuSet, Distance, DistanceOrigin, Distances, Known, Node, NodeId};
use nearfar_machine::{Machine, Origin, SourceKind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let origin = Origin::new(SourceKind::Synthetic, "example");
    let mut machine = Machine::empty(origin, "the example does not say");
    machine.nodes = vec![
        Node::new(NodeId(0), CpuSet::parse_list("0-3,8-11")?),
        Node::new(NodeId(1), CpuSet::parse_mask("f0f0")?),
    ];
    let rows = [[10, 21], [21, 10]].map(|row| row.map(|far| Some(Distance(far))).to_vec());
    machine.distances = Known::Yes(Distances::from_rows(
        DistanceOrigin::Described,
        vec![NodeId(0), NodeId(1)],
        rows.to_vec(),
    )?);

    for node in &machine.nodes {
        let mask = node.known_cpus().to_mask(16);
        println!("node {}: CPUs {}, mask {mask}", node.id, node.known_cpus());
    }
    if let Some(distance) = machine.distance(NodeId(0), NodeId(1)) {
        println!("node 0 to 1: {distance}");
    }
    if let Some(reason) = machine.interrupts.unknown_reason() {
        println!("interrupts unknown: {reason}");
    }
    Ok(())
}
