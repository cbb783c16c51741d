//! Any machine: also such as no source may produce.

use nearfar_machine::*;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9_-]{0,12}",
        "\\PC{0,60}",
        Just("\u{1b}[31m<b>&\"'</b>\n\u{0}".to_owned()),
        "[a-z/ ]{0,200}"
    ]
}

fn cpus() -> impl Strategy<Value = CpuSet> {
    prop::collection::vec(prop_oneof![0u32..64, 0u32..9000], 0..12)
        .prop_map(|ids| ids.into_iter().map(CpuId).collect())
}

prop_compose! {
    fn node()(
        id in 0u32..90, online: bool, cpus in cpus(), total in prop::option::of(any::<u64>()),
        free in prop::option::of(any::<u64>()), tier in prop::option::of(0u32..2000), latency in prop::option::of(any::<u64>()),
        fake in prop::option::of(0u32..9),
    ) -> Node {
        let memory = |total_bytes| Memory { free_bytes: free, huge_pages: vec![HugePages { page_bytes: u64::MAX, total: 1, free: None }], ..Memory::of(total_bytes) };
        let access = Access {
            class: 1, initiators: NodeSet::new(), read_latency_ns: latency, write_latency_ns: None,
            read_bandwidth_mib_per_s: latency, write_bandwidth_mib_per_s: None,
        };
        let memory = total.map_or_else(|| Known::no("the test says so"), |total| Known::Yes(memory(total)));
        Node { online, memory, tier, access: vec![access], fake_of: fake.map(NodeId), ..Node::new(NodeId(id), cpus) }
    }
}

prop_compose! {
    fn device()(
        bus: u8, device in 0u8..32, class in prop_oneof![Just(0x010802u32), Just(0x020000), any::<u32>()], name in text(),
        driver in prop::option::of(text()), node in prop_oneof![Just(None), (0u32..90).prop_map(|n| Some(NodeId(n)))], known: bool,
    ) -> PciDevice {
        PciDevice {
            address: PciAddress { domain: 0, bus, device, function: 0 }, vendor: 1, device: 2, class,
            class_name: Some(name.clone()), name: Some(name), driver, parent: None, root: RootBus { domain: 0, bus },
            node: if known { Known::Yes(node) } else { Known::no("the test says so") },
        }
    }
}

fn distances() -> impl Strategy<Value = Known<Distances>> {
    let entry = prop_oneof![3 => (0u32..60).prop_map(|d| Some(Distance(d))), 1 => Just(None), 1 => any::<u32>().prop_map(|d| Some(Distance(d)))];
    let table = (0usize..40).prop_flat_map(move |nodes| {
        (
            Just(nodes),
            prop::collection::vec(entry.clone(), nodes * nodes),
        )
    });
    let table = table.prop_map(|(nodes, entries)| {
        let ids = (0..nodes as u32).map(NodeId).collect();
        let rows = entries.chunks(nodes.max(1)).map(<[_]>::to_vec).collect();
        Known::Yes(
            Distances::from_rows(DistanceOrigin::Slit, ids, rows)
                .expect("a square over ascending nodes"),
        )
    });
    prop_oneof![4 => table, 1 => text().prop_map(Known::no)]
}

fn nvme() -> impl Strategy<Value = Known<Vec<NvmeSubsystem>>> {
    let subsystem = (text(), text(), text(), prop::option::of(0u32..90)).prop_map(
        |(name, model, state, node)| NvmeSubsystem {
            name: name.clone(),
            nqn: None,
            model: Some(model),
            iopolicy: Known::Yes(IoPolicy::Other(state.clone())),
            controllers: vec![NvmeController {
                name: name.clone(),
                state: Known::Yes(state),
                transport: Known::no(name.clone()),
                device: None,
                node: Known::Yes(node.map(NodeId)),
                queues: Known::no("no"),
            }],
            namespaces: vec![NvmeNamespace {
                name: name.clone(),
                paths: vec![NvmePath {
                    name: name.clone(),
                    controller: name,
                    ana_state: Known::Yes(AnaState::Other("x".into())),
                    numa_nodes: None,
                    queue_depth: None,
                }],
                paths_unknown_reason: None,
            }],
        },
    );
    prop_oneof![
        prop::collection::vec(subsystem, 0..3).prop_map(Known::Yes),
        text().prop_map(Known::no)
    ]
}

/// Any machine whose lists are in ascending order and that is otherwise as contradictory as can be.
pub fn machine() -> impl Strategy<Value = Machine> {
    let parts = (
        prop::collection::vec(node(), 0..30),
        prop::collection::vec(
            (
                0u32..5000,
                any::<bool>(),
                prop::option::of(0u32..5000),
                any::<i64>(),
            ),
            0..60,
        ),
        prop::collection::vec(device(), 0..20),
        (distances(), distances(), nvme()),
        (
            text(),
            text(),
            prop::option::of(text()),
            prop::option::of(any::<u64>()),
        ),
        prop::collection::vec((1u32..5, cpus(), any::<u64>()), 0..8),
        prop::collection::vec((text(), text()), 0..4),
    );
    parts.prop_map(
        |(
            nodes,
            cpus,
            devices,
            (kernel, firmware, nvme),
            (host, kernel_release, emulated, at),
            caches,
            warnings,
        )| {
            let mut origin = Origin::new(SourceKind::Tree, host.clone());
            origin.host = Some(host);
            origin.kernel = Known::Yes(kernel_release);
            origin.emulation = emulated.map(Emulation::Label);
            origin.taken_at_s = at;
            let mut machine = Machine::empty(origin, "the test says so");
            machine.nodes = nodes;
            machine.nodes.sort_by_key(|node| node.id);
            machine.nodes.dedup_by_key(|node| node.id);
            let cpu = |(id, online, core, package): (u32, bool, Option<u32>, i64)| Cpu {
                online: online.into(),
                core: core.map(CpuId),
                package: Some(package),
                ..Cpu::new(CpuId(id), Some(NodeId(id % 90)))
            };
            machine.cpus = cpus.into_iter().map(cpu).collect();
            machine.cpus.sort_by_key(|cpu| cpu.id);
            machine.cpus.dedup_by_key(|cpu| cpu.id);
            machine.cpu_states.online = machine
                .cpus
                .iter()
                .filter(|cpu| cpu.is_online())
                .map(|cpu| cpu.id)
                .collect();
            let mut devices = devices;
            devices.sort_by_key(|device| device.address);
            devices.dedup_by_key(|device| device.address);
            machine.pci = Known::Yes(devices);
            (machine.distances, machine.firmware_distances, machine.nvme) =
                (kernel, firmware, nvme);
            let cache = |(level, cpus, size): (u32, CpuSet, u64)| Cache {
                level,
                kind: CacheKind::Unified,
                cpus,
                size_bytes: Known::Yes(size),
                line_bytes: None,
                ways: None,
            };
            machine.caches = caches.into_iter().map(cache).collect();
            machine.warnings = warnings
                .into_iter()
                .map(|(place, message)| Warning::new(place, message))
                .collect();
            machine
        },
    )
}
