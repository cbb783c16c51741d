//! Which CPUs serve the queues of a device on node 1, nearest first and as the kernel before 6.3 chose them.
//!
//! `cargo run -p nearfar-placement --example queues`

use nearfar_machine::{Cpu, CpuId, CpuSet, Distance, DistanceOrigin, Distances, Known, Machine};
use nearfar_machine::{Node, NodeId, Origin, SourceKind};
use nearfar_placement::spread::{Policy, SpreadRequest, spread};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = three_nodes()?;
    for policy in [Policy::NearestFirst, Policy::KernelPre63] {
        let request = SpreadRequest {
            node: Some(NodeId(1)),
            count: 4,
            policy,
            ..SpreadRequest::default()
        };
        println!("{policy:?}");
        for slot in spread(&machine, &request)? {
            let distance = slot.distance.map_or("?".to_owned(), |it| it.to_string());
            println!(
                "  queue {}: CPU {}, distance {distance}",
                slot.queue, slot.cpu
            );
        }
    }
    Ok(())
}

/// Two CPUs a node; node 0 is more distant from node 1 than node 2 is.
fn three_nodes() -> Result<Machine, Box<dyn std::error::Error>> {
    let origin = Origin::new(SourceKind::Synthetic, "example");
    let mut machine = Machine::empty(origin, "the example does not say");
    let ids = [0, 1, 2].map(NodeId);
    let cpus = |node: NodeId| CpuSet::range(CpuId(node.0 * 2), CpuId(node.0 * 2 + 1));
    machine.nodes = ids.map(|node| Node::new(node, cpus(node))).to_vec();
    machine.cpus = (0..6)
        .map(|cpu| Cpu::new(CpuId(cpu), Some(NodeId(cpu / 2))))
        .collect();
    machine.cpu_states.online = CpuSet::range(CpuId(0), CpuId(5));
    let rows = [[10, 32, 32], [32, 10, 16], [32, 16, 10]];
    let rows = rows.map(|row| row.map(|distance| Some(Distance(distance))).to_vec());
    let table = Distances::from_rows(DistanceOrigin::Described, ids.to_vec(), rows.to_vec())?;
    machine.distances = Known::Yes(table);
    Ok(machine)
}
