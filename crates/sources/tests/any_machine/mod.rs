//! Small machines of every odd shape, for properties that must hold of all of them.

use nearfar_machine::*;
use proptest::prelude::*;

/// What a small machine is made of; each field is drawn by itself.
#[derive(Clone, Debug)]
struct Plan {
    /// Per node: gap before its number, online, CPUs, memory in MiB (none: not known).
    nodes: Vec<(u32, bool, u32, Option<u64>)>,
    smt: u32,
    offline: Vec<u8>,
    distances: Option<Vec<Option<u32>>>,
    caches: bool,
    packages: u32,
    devices: Vec<(u8, u8, Option<Option<u8>>)>,
    words: String,
}

fn plan() -> impl Strategy<Value = Plan> {
    let node = (
        0u32..3,
        prop::bool::weighted(0.8),
        0u32..5,
        prop::option::of(0u64..100_000),
    );
    let device = (0u8..4, 0u8..8, prop::option::of(prop::option::of(0u8..5)));
    (
        prop::collection::vec(node, 1..6),
        1u32..4,
        prop::collection::vec(0u8..20, 0..3),
        prop::option::of(prop::collection::vec(
            prop::option::weighted(0.97, 1u32..300),
            36,
        )),
        any::<bool>(),
        1u32..3,
        prop::collection::vec(device, 0..6),
        "[ -~äß\u{1}\"<>&]{0,12}",
    )
        .prop_map(
            |(nodes, smt, offline, distances, caches, packages, devices, words)| Plan {
                nodes,
                smt,
                offline,
                distances,
                caches,
                packages,
                devices,
                words,
            },
        )
}

/// Any small machine that passes its own check.
pub fn any_machine() -> impl Strategy<Value = Machine> {
    plan().prop_map(|plan| {
        let machine = build(&plan);
        assert_eq!(machine.check(), Vec::<String>::new(), "{plan:?}");
        machine
    })
}

fn build(plan: &Plan) -> Machine {
    let mut machine = Machine::empty(
        Origin::new(SourceKind::Tree, "a machine that was drawn"),
        "it was not drawn",
    );
    let (mut number, mut first) = (0, 0);
    for &(gap, online, cpus, memory) in &plan.nodes {
        number += gap;
        let set: CpuSet = (first..first + cpus).map(CpuId).collect();
        let mut node = Node::new(NodeId(number), set.clone());
        node.online = online;
        if let Some(mib) = memory {
            node.memory = Known::Yes(Memory {
                free_bytes: Some(mib << 19),
                ..Memory::of(mib << 20)
            });
        }
        for cpu in set.iter() {
            machine
                .cpus
                .push(cpu_of(plan, cpu, first, online, NodeId(number)));
        }
        machine.nodes.push(node);
        (number, first) = (number + 1, first + cpus);
    }
    let online: CpuSet = machine
        .cpus
        .iter()
        .filter(|cpu| cpu.is_online())
        .map(|cpu| cpu.id)
        .collect();
    machine.cpu_states = CpuStates::online_only(online.clone(), "it was not drawn");
    if plan.caches {
        let near: Vec<CpuSet> = machine
            .nodes
            .iter()
            .map(|node| node.known_cpus().intersection(&online))
            .collect();
        let cache = |(at, cpus): (usize, CpuSet)| Cache {
            level: 3,
            kind: CacheKind::Unified,
            cpus,
            size_bytes: if at == 0 {
                Known::Yes(1 << 20)
            } else {
                Known::no("it was not drawn")
            },
            line_bytes: Some(64),
            ways: Some(at as u32),
        };
        machine.caches = near
            .into_iter()
            .filter(|set| !set.is_empty())
            .enumerate()
            .map(cache)
            .collect();
    }
    distances(plan, &mut machine);
    devices(plan, &mut machine);
    machine
}

fn cpu_of(plan: &Plan, cpu: CpuId, first: u32, node_online: bool, node: NodeId) -> Cpu {
    let mut built = Cpu::new(cpu, Some(node));
    built.online = (node_online && !plan.offline.contains(&(cpu.0 as u8))).into();
    if built.is_online() {
        let in_core = (first..=cpu.0)
            .filter(|other| (other - first) / plan.smt == (cpu.0 - first) / plan.smt);
        let mut online = in_core.filter(|other| !plan.offline.contains(&(*other as u8)));
        built.core = online.next().map(CpuId);
        built.package = Some((node.0 % plan.packages).into());
    }
    built
}

fn distances(plan: &Plan, machine: &mut Machine) {
    let Some(values) = &plan.distances else {
        return;
    };
    let mut table = Distances::empty(
        DistanceOrigin::Kernel,
        machine.online_nodes().map(|node| node.id),
    );
    let entries: Vec<_> = table.entries().map(|(from, to, _)| (from, to)).collect();
    for ((from, to), value) in entries.into_iter().zip(values) {
        table.set(from, to, value.map(Distance));
    }
    machine.distances = Known::Yes(table);
}

fn devices(plan: &Plan, machine: &mut Machine) {
    let mut devices = std::collections::BTreeMap::new();
    for &(bus, device, node) in &plan.devices {
        let address = PciAddress {
            domain: 0,
            bus: bus * 32 + 1,
            device,
            function: 0,
        };
        let node = match node {
            None => Known::no("it was not drawn"),
            Some(at) => Known::Yes(
                at.and_then(|at| machine.nodes.get(usize::from(at)))
                    .filter(|node| node.online)
                    .map(|node| node.id),
            ),
        };
        let name = (!plan.words.is_empty()).then(|| plan.words.clone());
        let device = PciDevice {
            address,
            vendor: 0x8086,
            device: 0x10c9,
            class: 0x02_00_00,
            class_name: None,
            name,
            driver: Some("igb".into()),
            parent: None,
            root: RootBus {
                domain: 0,
                bus: bus * 32,
            },
            node,
        };
        devices.insert(address, device);
    }
    let roots: std::collections::BTreeSet<_> = devices.values().map(|device| device.root).collect();
    let bridge = |root| HostBridge {
        root,
        firmware: Known::no("it was not drawn"),
    };
    machine.host_bridges = Known::Yes(roots.into_iter().map(bridge).collect());
    machine.pci = Known::Yes(devices.into_values().collect());
}
