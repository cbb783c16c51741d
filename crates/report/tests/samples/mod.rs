//! Machines and measurements to draw, made up but of real shapes.
#![allow(dead_code)] // Each test binary uses another part.

pub mod findings;
pub mod surveys;
pub mod unbound;

use nearfar_bench::latency::{LatencyMatrix, LatencyPair, PageKind, SkippedPair, Warning};
use nearfar_machine::*;
use nearfar_report::checkup::{Checkup, Made};

const GIB: u64 = 1 << 30;

/// Nodes with CPUs, one thread a core, a last-level cache for `share` CPUs, and a kernel distance table.
pub fn machine(
    name: &str,
    nodes: u32,
    cpus_each: u32,
    share: u32,
    distance: impl Fn(u32, u32) -> u32,
) -> Machine {
    let mut origin = Origin::new(SourceKind::Tree, "/srv/trees/sample");
    origin.host = Some(name.to_owned());
    origin.kernel = Known::Yes("6.12.0-sample".to_owned());
    origin.architecture = Known::Yes("x86_64".to_owned());
    origin.taken_at_s = Some(1_795_225_560);
    let mut machine = Machine::empty(origin, "the sample has none");
    let total = nodes * cpus_each;
    for cpu in (0..total).map(CpuId) {
        let core = Some(cpu);
        machine.cpus.push(Cpu {
            core,
            package: Some((cpu.0 / cpus_each / 2).into()),
            ..Cpu::new(cpu, Some(NodeId(cpu.0 / cpus_each)))
        });
    }
    machine.cpu_states =
        CpuStates::online_only((0..total).map(CpuId).collect(), "the sample has none");
    for node in 0..nodes {
        let cpus = CpuSet::range(
            CpuId(node * cpus_each),
            CpuId(node * cpus_each + cpus_each - 1),
        );
        let total_bytes = 64 * GIB - u64::from(node % 3) * 300 * (1 << 20);
        let memory = Memory {
            free_bytes: Some(total_bytes / 5 * (4 - u64::from(node % 4))),
            ..Memory::of(total_bytes)
        };
        machine.nodes.push(Node {
            memory: Known::Yes(memory),
            ..Node::new(NodeId(node), cpus)
        });
    }
    for first in (0..total).step_by(share as usize) {
        machine.caches.push(Cache {
            level: 3,
            kind: CacheKind::Unified,
            cpus: CpuSet::range(CpuId(first), CpuId(first + share - 1)),
            size_bytes: Known::Yes(32 << 20),
            line_bytes: Some(64),
            ways: Some(16),
        });
    }
    let ids: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    let row = |from: u32| {
        (0..nodes)
            .map(|to| Some(Distance(distance(from, to))))
            .collect()
    };
    let rows = (0..nodes).map(row).collect();
    machine.distances =
        Known::Yes(Distances::from_rows(DistanceOrigin::Kernel, ids, rows).unwrap());
    assert_eq!(machine.check(), Vec::<String>::new());
    machine
}

pub fn pci(
    address: &str,
    class: u32,
    class_name: &str,
    driver: &str,
    name: &str,
    node: Option<u32>,
) -> PciDevice {
    let address: PciAddress = address.parse().unwrap();
    PciDevice {
        address,
        vendor: 0x144d,
        device: 0xa824,
        class,
        class_name: Some(class_name.to_owned()),
        name: Some(name.to_owned()),
        driver: Some(driver.to_owned()),
        parent: None,
        root: RootBus {
            domain: address.domain,
            bus: address.bus,
        },
        node: Known::Yes(node.map(NodeId)),
    }
}

fn interrupt(irq: u32, name: &str, device: &str, queue: u32, cpu: u32, managed: bool) -> Interrupt {
    Interrupt {
        irq: Irq(irq),
        name: name.to_owned(),
        device: Some(device.parse().unwrap()),
        device_unknown_reason: None,
        immovable_reason: None,
        queue: Some(queue),
        affinity: Known::Yes(CpuSet::single(CpuId(cpu))),
        effective: Known::Yes(CpuSet::single(CpuId(cpu))),
        managed: Known::Yes(Managed {
            managed,
            evidence: "sample".to_owned(),
        }),
        node: Known::Yes(Some(NodeId(0))),
        count: Known::Yes(1000),
    }
}

/// One node, 8 CPUs.
pub fn laptop() -> Machine {
    machine("laptop", 1, 8, 8, |_, _| 10)
}

/// Two sockets with SMT, a network card and a disk with two paths of which one controller has no node.
pub fn two_sockets() -> Machine {
    let mut machine = machine(
        "db1.example.org",
        2,
        16,
        8,
        |a, b| if a == b { 10 } else { 21 },
    );
    for cpu in &mut machine.cpus {
        cpu.core = Some(CpuId(cpu.id.0 & !1));
        cpu.package = Some((cpu.id.0 / 16).into());
    }
    machine.cpu_states.isolated = Known::Yes(CpuSet::parse_list("12-15").unwrap());
    machine.pci = Known::Yes(vec![
        pci(
            "0000:00:00.0",
            0x060000,
            "Host bridge",
            "",
            "Sample host bridge",
            Some(0),
        ),
        pci(
            "0000:3b:00.0",
            0x010802,
            "NVMe",
            "nvme",
            "Samsung PM1733 NVMe SSD",
            Some(0),
        ),
        pci(
            "0000:5e:00.0",
            0x020000,
            "Ethernet",
            "mlx5_core",
            "Mellanox MT2892 [ConnectX-6 Dx]",
            Some(0),
        ),
        pci(
            "0000:d8:00.0",
            0x010802,
            "NVMe",
            "nvme",
            "Samsung PM1733 NVMe SSD",
            None,
        ),
    ]);
    let bridge = |root: &str, node: u32| HostBridge {
        root: root.parse().unwrap(),
        firmware: Known::Yes(Some(FirmwareLocality {
            domain: node,
            node: NodeId(node),
            told_by: FirmwareSource::AcpiPxm,
            evidence: "/sys/firmware/acpi/tables/DSDT".to_owned(),
        })),
    };
    machine.host_bridges = Known::Yes(vec![
        bridge("0000:3b", 0),
        bridge("0000:5e", 0),
        bridge("0000:d8", 1),
    ]);
    let queue = |queue: u32| TransmitQueue {
        queue,
        xps: Known::Yes(CpuSet::single(CpuId(queue))),
    };
    machine.networks = Known::Yes(vec![NetworkDevice {
        name: "ens5f0".to_owned(),
        device: Some("0000:5e:00.0".parse().unwrap()),
        mac: None,
        node: Known::Yes(Some(NodeId(0))),
        transmit: (0..8).map(queue).collect(),
        receive: (0..8)
            .map(|queue| ReceiveQueue {
                queue,
                rps: Known::Yes(CpuSet::new()),
            })
            .collect(),
    }]);
    let mut interrupts: Vec<Interrupt> = (0..8)
        .map(|q| {
            interrupt(
                40 + q,
                &format!("ens5f0-{q}"),
                "0000:5e:00.0",
                q,
                16 + q,
                false,
            )
        })
        .collect();
    interrupts.extend(
        (0..4).map(|q| interrupt(60 + q, &format!("nvme0q{q}"), "0000:3b:00.0", q, q, true)),
    );
    machine.interrupts = Known::Yes(interrupts);
    machine.nvme = Known::Yes(vec![subsystem()]);
    machine.warnings.push(nearfar_machine::Warning::new(
        "/sys/bus/pci/devices/0000:d8:00.0/numa_node",
        "says -1, while the firmware puts the host bridge on node 1; both are kept",
    ));
    machine
}

fn subsystem() -> NvmeSubsystem {
    let controller = |name: &str, device: &str, node: Option<u32>| NvmeController {
        name: name.to_owned(),
        state: Known::Yes("live".to_owned()),
        transport: Known::Yes("pcie".to_owned()),
        device: Some(device.parse().unwrap()),
        node: Known::Yes(node.map(NodeId)),
        queues: Known::Yes(33),
    };
    let path = |name: &str, controller: &str| NvmePath {
        name: name.to_owned(),
        controller: controller.to_owned(),
        ana_state: Known::Yes(AnaState::Optimized),
        numa_nodes: None,
        queue_depth: None,
    };
    NvmeSubsystem {
        name: "nvme-subsys0".to_owned(),
        nqn: Some("nqn.2019-08.example:sample".to_owned()),
        model: Some("Samsung PM1733".to_owned()),
        iopolicy: Known::Yes(IoPolicy::Numa),
        controllers: vec![
            controller("nvme0", "0000:3b:00.0", Some(0)),
            controller("nvme1", "0000:d8:00.0", None),
        ],
        namespaces: vec![NvmeNamespace {
            name: "nvme0n1".to_owned(),
            paths: vec![path("nvme0c0n1", "nvme0"), path("nvme0c1n1", "nvme1")],
            paths_unknown_reason: None,
        }],
    }
}

/// The four-node machine of case 4: 24 CPUs a node, a network card on node 2.
pub fn kunpeng() -> Machine {
    const ROWS: [[u32; 4]; 4] = [
        [10, 16, 32, 33],
        [16, 10, 25, 32],
        [32, 25, 10, 16],
        [33, 32, 16, 10],
    ];
    let mut machine = machine("kunpeng", 4, 24, 24, |a, b| ROWS[a as usize][b as usize]);
    machine.origin.architecture = Known::Yes("aarch64".to_owned());
    let device = pci(
        "0000:7d:00.0",
        0x020000,
        "Ethernet",
        "hns3",
        "HNS GE/10GE/25GE RDMA Network Controller",
        Some(2),
    );
    machine.pci = Known::Yes(vec![device]);
    machine
}

/// Eight nodes; the way back is longer for some, one entry is missing, one says "unreachable".
pub fn eight() -> Machine {
    let mut machine = machine("eight", 8, 16, 8, |a, b| {
        if a == b {
            10
        } else {
            12 + 4 * (a ^ b) + u32::from(a > b)
        }
    });
    let mut table = machine.distances.known().unwrap();
    table.set(NodeId(2), NodeId(5), None);
    table.set(NodeId(7), NodeId(0), Some(Distance::UNREACHABLE));
    machine.distances = Known::Yes(table);
    machine
}

/// Two sockets with a CXL memory tier, a node without memory and one that is possible only.
pub fn tiers() -> Machine {
    let mut machine = machine("tiers", 5, 8, 8, |a, b| {
        if a == b { 10 } else { 14 + 3 * a.abs_diff(b) }
    });
    for cpu in &mut machine.cpus {
        if cpu.id.0 >= 24 {
            cpu.node = None;
            cpu.online = false.into();
        }
    }
    machine.cpu_states.online = CpuSet::range(CpuId(0), CpuId(23));
    machine.nodes[2].memory = Known::Yes(Memory::of(0));
    for node in [3, 4] {
        machine.nodes[node].cpus = CpuSet::new().into();
    }
    machine.nodes[3].tier = Some(961);
    machine.nodes[3].access = vec![Access {
        class: 1,
        initiators: NodeSet::parse_list("0-1").unwrap(),
        read_latency_ns: Some(255),
        write_latency_ns: Some(260),
        read_bandwidth_mib_per_s: Some(28_000),
        write_bandwidth_mib_per_s: Some(24_000),
    }];
    machine.nodes[4].online = false;
    machine.nodes[4].memory = Known::no("the node is not online");
    assert_eq!(machine.check(), Vec::<String>::new());
    machine
}

/// 64 nodes, 4096 CPUs, 512 devices, 4096 interrupts.
pub fn large() -> Machine {
    let mut machine = machine("large", 64, 64, 32, |a, b| {
        match (a == b, a / 4 == b / 4, a / 16 == b / 16) {
            (true, ..) => 10,
            (_, true, _) => 16,
            (.., true) => 24,
            _ => 32 + (a / 16).abs_diff(b / 16) * 4,
        }
    });
    let device = |n: u32| {
        let address = format!("{:04x}:{:02x}:00.0", n / 128, n % 128);
        let kind = if n.is_multiple_of(2) {
            (0x010802, "NVMe", "nvme")
        } else {
            (0x020000, "Ethernet", "ice")
        };
        pci(
            &address,
            kind.0,
            kind.1,
            kind.2,
            "Sample device with a rather long name",
            Some(n / 8),
        )
    };
    machine.pci = Known::Yes((0..512).map(device).collect());
    let interrupts = (0..4096).map(|n| {
        interrupt(
            n,
            &format!("dev-{n}"),
            "0000:01:00.0",
            n % 64,
            n,
            n % 3 == 0,
        )
    });
    machine.interrupts = Known::Yes(interrupts.collect());
    machine
}

/// 1024 nodes, the most a kernel can have, with a card on the last one whose 64 queues are served from nodes 0 to 63.
pub fn huge(distance: impl Fn(u32, u32) -> u32) -> Machine {
    let mut machine = machine("huge", 1024, 2, 2, distance);
    let card = pci(
        "0000:01:00.0",
        0x020000,
        "Ethernet",
        "ice",
        "Sample device with a rather long name",
        Some(1023),
    );
    machine.pci = Known::Yes(vec![card]);
    let interrupts = (0..64).map(|n| {
        interrupt(
            40 + n,
            &format!("eth0-{n}"),
            "0000:01:00.0",
            n,
            2 * n,
            false,
        )
    });
    machine.interrupts = Known::Yes(interrupts.collect());
    machine
}

/// Every text a source could be made to hold is an attempt on the reader.
pub fn hostile() -> Machine {
    let evil = "<script>alert('x')</script>\"&\u{1b}[2J\u{202e}\n\u{0}";
    let mut machine = two_sockets();
    machine.origin.host = Some(evil.to_owned());
    machine.origin.kernel = Known::Yes(evil.to_owned());
    machine.origin.product = Known::Yes(evil.to_owned());
    machine.origin.place = evil.to_owned();
    machine.origin.overlays.push(evil.to_owned());
    machine.origin.emulation = Some(Emulation::Label(evil.to_owned()));
    for device in machine.pci.clone().known().iter_mut().flatten() {
        device.name = Some(evil.to_owned());
        device.driver = Some(evil.to_owned());
        device.class_name = Some(evil.to_owned());
        let Known::Yes(all) = &mut machine.pci else {
            continue;
        };
        if let Some(place) = all.iter_mut().find(|other| other.address == device.address) {
            *place = device.clone();
        }
    }
    if let Known::Yes(networks) = &mut machine.networks {
        networks[0].name = evil.to_owned();
    }
    if let Known::Yes(nvme) = &mut machine.nvme {
        nvme[0].name = evil.to_owned();
        nvme[0].model = Some(evil.to_owned());
        nvme[0].controllers[0].name = evil.to_owned();
        nvme[0].controllers[0].state = Known::Yes(evil.to_owned());
    }
    machine
        .warnings
        .push(nearfar_machine::Warning::new(evil, evil));
    machine.tasks = Known::no(evil);
    machine.distances = Known::no(evil);
    machine
}

/// A measurement of every pair of a machine's nodes, slower with distance.
pub fn latencies(machine: &Machine) -> LatencyMatrix {
    let mut pairs = Vec::new();
    for from in machine
        .online_nodes()
        .filter(|node| !node.known_cpus().is_empty())
    {
        for to in machine
            .online_nodes()
            .filter(|node| node.has_memory() == Some(true))
        {
            let distance = machine.distance(from.id, to.id);
            let median = 8.7 * f64::from(distance.map_or(20, |distance| distance.0.min(60)))
                + f64::from(from.id.0 % 3);
            pairs.push(LatencyPair {
                cpu_node: from.id,
                memory_node: to.id,
                cpu: from.known_cpus().first().unwrap(),
                samples_ns: [-2.0, -1.0, -0.5, 0.0, 1.0, 2.5, 5.0]
                    .map(|it| median + it)
                    .to_vec(),
                median_ns: median,
                low_ns: median - 1.0,
                high_ns: median + 2.5,
                confidence_ns: None,
                outliers: 0,
                distance,
            });
        }
    }
    LatencyMatrix {
        pairs,
        skipped: vec![SkippedPair {
            cpu_node: Some(NodeId(9)),
            memory_node: None,
            reason: "a sample reason".to_owned(),
        }],
        buffer_bytes: 128 << 20,
        line_bytes: 64,
        last_level_cache_bytes: Some(32 << 20),
        page_kind: PageKind::Huge,
        steps: 50_000,
        elapsed_s: 4.2,
        warnings: vec![Warning::StolenTime {
            cpu: CpuId(1),
            percent: 2.5,
        }],
        emulation: machine.origin.emulation.clone(),
    }
}

/// How a checkup was made, with the arguments that choose the machine.
pub fn made(command: &str, source: &str) -> Made {
    Made {
        command: command.to_owned(),
        source: source.to_owned(),
        ..Made::default()
    }
}

/// A checkup of a machine, with this many interrupts served far.
pub fn checkup(machine: Machine, far: u32) -> Checkup {
    let made = Made {
        version: "0.1.0".to_owned(),
        at_s: Some(1_795_225_560),
        ..made("nearfar checkup", "")
    };
    let audit = match (
        machine.online_nodes().count(),
        machine.origin.host.as_deref(),
    ) {
        (1, _) => Default::default(),
        (_, Some(host)) if host.contains('<') => findings::hostile(),
        _ => findings::audit(far),
    };
    Checkup {
        made,
        probe: Known::Yes(latencies(&machine)),
        unbound: unbound::of(&machine),
        audit,
        machine,
    }
}

/// All of them, by name.
pub fn all() -> Vec<(&'static str, Machine)> {
    vec![
        ("laptop", laptop()),
        ("two-sockets", two_sockets()),
        ("kunpeng", kunpeng()),
        ("tiers", tiers()),
        ("eight", eight()),
        ("large", large()),
        ("hostile", hostile()),
    ]
}
