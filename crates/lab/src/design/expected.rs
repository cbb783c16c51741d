//! What the guest should see of its hardware: the machine that `nearfar topo` inside is compared with.

mod devices;

use nearfar_machine::{
    Cpu, CpuId, CpuSet, CpuStates, Distance, DistanceOrigin, Distances, Known, Machine, Memory,
    Node, NodeId, Origin, SourceKind,
};

use super::board::Board;
use super::hardware::{Hardware, Topology};
use super::numbers::Numbers;
use crate::arch::Arch;
use crate::kernels::Series;

const BECAUSE: &str = "the design of a guest does not say";

/// The machine inside, before fake nodes are laid over it.
pub(super) fn machine(
    described: &Machine,
    arch: Arch,
    kernel: Option<Series>,
    board: &dyn Board,
    hardware: &Hardware,
    numbers: &Numbers,
    notes: &mut Vec<String>,
) -> Machine {
    let mut machine = Machine::empty(
        Origin::new(SourceKind::Description, "the design of the guest"),
        BECAUSE,
    );
    machine.origin.architecture = Known::Yes(arch.uname().to_owned());
    machine.nodes = nodes(described, kernel, board, hardware, numbers, notes);
    machine.cpus = cpus(hardware);
    let all = machine.cpus.iter().map(|cpu| cpu.id).collect::<CpuSet>();
    machine.cpu_states = CpuStates {
        possible: Known::Yes(all.clone()),
        ..CpuStates::online_only(all, BECAUSE)
    };
    let everywhere = table(hardware, machine.nodes.iter().map(|node| node.id));
    let online = table(hardware, machine.online_nodes().map(|node| node.id));
    machine.distances = Known::Yes(online);
    if machine.nodes.iter().any(|node| !node.online) && !hardware.distances.is_empty() {
        machine.firmware_distances = Known::Yes(everywhere);
    }
    devices::add(&mut machine, described, board, hardware);
    machine
}

/// Without CPUs and memory a node comes online only on some boards, there for the sake of a bridge, and under some kernels
/// only. Where the kernel is not known, the description says.
fn nodes(
    described: &Machine,
    kernel: Option<Series>,
    board: &dyn Board,
    hardware: &Hardware,
    numbers: &Numbers,
    notes: &mut Vec<String>,
) -> Vec<Node> {
    let build = |(described_id, id): (NodeId, NodeId)| {
        let built = hardware.nodes.get(id.0 as usize)?;
        let mut node = Node::new(id, built.cpus.clone());
        node.memory = Known::Yes(Memory::of(built.bytes));
        let said = described.node(described_id).is_some_and(|node| node.online);
        let bridge = hardware
            .bridges
            .iter()
            .any(|bridge| bridge.node == Some(id));
        let full = built.bytes > 0 || !built.cpus.is_empty();
        let since = board.empty_nodes_online_since().filter(|_| bridge);
        node.online =
            full || since.is_some_and(|since| kernel.map_or(said, |kernel| kernel >= since));
        if node.online != said {
            notes.push(empty(described_id, node.online, since));
        }
        Some(node)
    };
    let mut nodes: Vec<Node> = numbers.pairs().filter_map(build).collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

/// That a node without CPUs and memory is online or not, against its description.
fn empty(node: NodeId, online: bool, since: Option<Series>) -> String {
    let since =
        since.map(|since| format!("; for its host bridge Linux brings it online since {since}"));
    let state = if online { "online" } else { "not online" };
    format!(
        "node {node} is {state} in the guest: it has neither CPUs nor memory{}",
        since.unwrap_or_default()
    )
}

fn cpus(hardware: &Hardware) -> Vec<Cpu> {
    let Topology {
        cpus,
        dies,
        cores,
        threads,
        ..
    } = hardware.topology;
    let package = (dies * cores * threads).max(1) as u32;
    let core = threads.max(1) as u32;
    let node_of = |cpu| {
        (0..)
            .zip(&hardware.nodes)
            .find(|(_, node)| node.cpus.contains(cpu))
            .map(|(node, _)| NodeId(node))
    };
    let build = |number: u32| {
        let id = CpuId(number);
        let mut cpu = Cpu::new(id, node_of(id));
        cpu.core = Some(CpuId(number - number % core));
        cpu.package = Some((number / package).into());
        cpu
    };
    (0..cpus as u32).map(build).collect()
}

/// The firmware's distances, or what the kernel assumes where it gives none.
fn table(hardware: &Hardware, nodes: impl Iterator<Item = NodeId>) -> Distances {
    let mut table = Distances::empty(DistanceOrigin::Described, nodes);
    for (from, to, _) in table.clone().entries() {
        let told = hardware
            .distances
            .get(from.0 as usize)
            .and_then(|row| row.get(to.0 as usize));
        let assumed = if from == to {
            Distance::LOCAL
        } else {
            Distance::REMOTE
        };
        table.set(
            from,
            to,
            Some(told.map_or(assumed, |&told| Distance(told.into()))),
        );
    }
    table
}
