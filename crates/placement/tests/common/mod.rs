//! Machines for the scenarios, built field by field.
#![allow(dead_code, reason = "each test binary uses some of it")]

pub mod model;
pub mod random;

use nearfar_machine::{
    AnaState, Cpu, CpuId, CpuSet, Distance, DistanceOrigin, Distances, FirmwareLocality,
    FirmwareSource, HostBridge, Interrupt, IoPolicy, Irq, Known, Machine, Managed, Memory,
    NetworkDevice, Node, NodeId, NvmeController, NvmeNamespace, NvmePath, NvmeSubsystem, Origin,
    PciAddress, PciDevice, ReceiveQueue, RootBus, SourceKind, TransmitQueue,
};
use nearfar_placement::audit::{Audit, AuditOptions, NotChecked, RULES, State, audit};

/// A list such as "0-3,8".
pub fn set(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

/// An address such as "0000:81:00.0".
pub fn pci(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// A table over nodes 0, 1, 2 ...; 0 stands for a hole.
pub fn table(origin: DistanceOrigin, nodes: &[u32], rows: &[&[u32]]) -> Distances {
    let entry = |&value: &u32| (value > 0).then_some(Distance(value));
    let rows = rows
        .iter()
        .map(|row| row.iter().map(entry).collect())
        .collect();
    Distances::from_rows(origin, nodes.iter().copied().map(NodeId).collect(), rows).unwrap()
}

/// A machine whose node N has the CPUs `cpus[N]` ("" for none), distances as the kernel gives them, 64 GiB of
/// memory a node, half of it free, and everything else known to be empty.
pub fn machine(cpus: &[&str], distances: &[&[u32]]) -> Machine {
    let mut machine = Machine::empty(
        Origin::new(SourceKind::Live, "this system"),
        "left out by the test",
    );
    let ids: Vec<u32> = (0..cpus.len() as u32).collect();
    machine.nodes = ids
        .iter()
        .zip(cpus)
        .map(|(&id, cpus)| Node::new(NodeId(id), set(cpus)))
        .collect();
    for node in &mut machine.nodes {
        node.memory = Known::Yes(Memory {
            free_bytes: Some(32 << 30),
            ..Memory::of(64 << 30)
        });
    }
    machine.distances = Known::Yes(table(DistanceOrigin::Kernel, &ids, distances));
    let all = machine
        .nodes
        .iter()
        .fold(CpuSet::new(), |all, node| all.union(node.known_cpus()));
    machine.cpus = all
        .iter()
        .map(|cpu| Cpu::new(cpu, lowest_node(&machine, cpu)))
        .collect();
    machine.cpu_states.online = all;
    machine.cpu_states.isolated = Known::Yes(CpuSet::new());
    machine.cpu_states.nohz_full = Known::Yes(CpuSet::new());
    machine.pci = Known::Yes(Vec::new());
    machine.host_bridges = Known::Yes(Vec::new());
    machine.interrupts = Known::Yes(Vec::new());
    machine.networks = Known::Yes(Vec::new());
    machine.nvme = Known::Yes(Vec::new());
    machine.tasks = Known::Yes(Vec::new());
    machine.cpusets = Known::Yes(Vec::new());
    machine.writers = Known::Yes(Vec::new());
    machine.settings.numa_balancing = Known::Yes(1);
    machine
}

fn lowest_node(machine: &Machine, cpu: CpuId) -> Option<NodeId> {
    machine
        .nodes
        .iter()
        .find(|node| node.known_cpus().contains(cpu))
        .map(|node| node.id)
}

/// Case 4: four nodes of 24 CPUs, as in the mail that started the nearest-first spread.
pub fn kunpeng() -> Machine {
    machine(
        &["0-23", "24-47", "48-71", "72-95"],
        &[
            &[10, 16, 32, 33],
            &[16, 10, 25, 32],
            &[32, 25, 10, 16],
            &[33, 32, 16, 10],
        ],
    )
}

/// Two sockets of four CPUs.
pub fn two_nodes() -> Machine {
    machine(&["0-3", "4-7"], &[&[10, 21], &[21, 10]])
}

/// A PCI function on the root bus that is its own bus, with a node of the kernel's.
pub fn function(address: &str, class: u32, driver: &str, node: Option<u32>) -> PciDevice {
    let address = pci(address);
    PciDevice {
        address,
        vendor: 0x8086,
        device: 0x1572,
        class,
        class_name: None,
        name: None,
        driver: Some(driver.to_owned()),
        parent: None,
        root: RootBus {
            domain: address.domain,
            bus: address.bus,
        },
        node: Known::Yes(node.map(NodeId)),
    }
}

/// The list behind a field that the builder made known.
pub fn list<T>(known: &mut Known<Vec<T>>) -> &mut Vec<T> {
    match known {
        Known::Yes(list) => list,
        Known::No { .. } => panic!("the builder makes every list known"),
    }
}

/// Adds a function, keeping the order.
pub fn add_function(machine: &mut Machine, device: PciDevice) {
    let devices = list(&mut machine.pci);
    devices.push(device);
    devices.sort_by_key(|device| device.address);
}

/// Adds what the firmware says of a root bus.
pub fn add_firmware(machine: &mut Machine, root: &str, node: Option<u32>) {
    let firmware = node.map(|node| FirmwareLocality {
        domain: node,
        node: NodeId(node),
        told_by: FirmwareSource::AcpiPxm,
        evidence: "/sys/firmware/acpi/tables/DSDT".to_owned(),
    });
    list(&mut machine.host_bridges).push(HostBridge {
        root: root.parse().unwrap(),
        firmware: Known::Yes(firmware),
    });
}

/// An interrupt of a queue, on one CPU, not managed.
pub fn interrupt(irq: u32, name: &str, device: &str, queue: Option<u32>, cpus: &str) -> Interrupt {
    Interrupt {
        irq: Irq(irq),
        name: name.to_owned(),
        device: Some(pci(device)),
        device_unknown_reason: None,
        immovable_reason: None,
        queue,
        affinity: Known::Yes(set(cpus)),
        effective: Known::Yes(set(cpus)),
        managed: Known::Yes(Managed {
            managed: false,
            evidence: "smp_affinity is writable".to_owned(),
        }),
        node: Known::Yes(None),
        count: Known::no("not asked for"),
    }
}

/// A network device with one interrupt a queue on the given CPUs and XPS on the same ones.
pub fn add_nic(machine: &mut Machine, name: &str, address: &str, node: Option<u32>, cpus: &[u32]) {
    add_function(machine, function(address, 0x02_0000, "ixgbe", node));
    let first = 100 + list(&mut machine.interrupts).len() as u32;
    for (queue, cpu) in (0..).zip(cpus) {
        let text = cpu.to_string();
        let name = format!("{name}-TxRx-{queue}");
        list(&mut machine.interrupts).push(interrupt(
            first + queue,
            &name,
            address,
            Some(queue),
            &text,
        ));
    }
    let transmit = (0..).zip(cpus).map(|(queue, &cpu)| TransmitQueue {
        queue,
        xps: Known::Yes(CpuSet::single(CpuId(cpu))),
    });
    let receive = (0..cpus.len() as u32).map(|queue| ReceiveQueue {
        queue,
        rps: Known::Yes(CpuSet::new()),
    });
    list(&mut machine.networks).push(NetworkDevice {
        name: name.to_owned(),
        device: Some(pci(address)),
        mac: None,
        node: Known::Yes(node.map(NodeId)),
        transmit: transmit.collect(),
        receive: receive.collect(),
    });
}

/// One controller of a subsystem: its PCI function, the kernel's node, the state of its path.
pub type Path<'a> = (&'a str, Option<u32>, AnaState);

/// A subsystem with one namespace and a path through each controller; the PCI functions are added, too.
pub fn add_subsystem(machine: &mut Machine, name: &str, policy: IoPolicy, paths: &[Path<'_>]) {
    let mut subsystem = NvmeSubsystem {
        name: name.to_owned(),
        nqn: None,
        model: None,
        iopolicy: Known::Yes(policy),
        controllers: Vec::new(),
        namespaces: vec![NvmeNamespace {
            name: "nvme0n1".to_owned(),
            paths: Vec::new(),
            paths_unknown_reason: None,
        }],
    };
    for (number, (address, node, ana)) in paths.iter().enumerate() {
        add_function(machine, function(address, 0x01_0802, "nvme", *node));
        subsystem.controllers.push(NvmeController {
            name: format!("nvme{number}"),
            state: Known::Yes("live".to_owned()),
            transport: Known::Yes("pcie".to_owned()),
            device: Some(pci(address)),
            node: Known::Yes(node.map(NodeId)),
            queues: Known::Yes(9),
        });
        subsystem.namespaces[0].paths.push(NvmePath {
            name: format!("nvme0c{number}n1"),
            controller: format!("nvme{number}"),
            ana_state: Known::Yes(ana.clone()),
            numa_nodes: None,
            queue_depth: None,
        });
    }
    list(&mut machine.nvme).push(subsystem);
}

/// Case 1: one disk behind two controllers, the second on a host bridge whose node 2 is not online. One node with CPUs,
/// as in the published case, or two.
pub fn device_on_an_offline_node(online: u32) -> Machine {
    let mut machine = match online {
        1 => machine(&["0-3"], &[&[10]]),
        _ => machine(&["0-3", "4-7"], &[&[10, 21], &[21, 10]]),
    };
    for id in online..3 {
        let mut node = Node::new(NodeId(id), CpuSet::new());
        node.online = false;
        machine.nodes.push(node);
    }
    let slit = table(
        DistanceOrigin::Slit,
        &[0, 1, 2],
        &[&[10, 21, 40], &[21, 10, 31], &[40, 31, 10]],
    );
    machine.firmware_distances = Known::Yes(slit);
    add_firmware(&mut machine, "0000:20", Some(0));
    add_firmware(&mut machine, "0000:40", Some(2));
    let paths = [
        ("0000:20:00.0", Some(0), AnaState::Optimized),
        ("0000:40:00.0", None, AnaState::Optimized),
    ];
    add_subsystem(&mut machine, "nvme-subsys0", IoPolicy::Numa, &paths);
    machine
}

/// Rules whose state contradicts the rest of the audit; each has to be in one state, and the states to add up to all.
pub fn rules_that_do_not_add_up(audit: &Audit) -> Vec<String> {
    let mut wrong = Vec::new();
    let all: Vec<&str> = audit.rules.iter().map(|rule| rule.rule).collect();
    if all != RULES.iter().map(|rule| rule.id).collect::<Vec<_>>() {
        wrong.push(format!("the rules are {all:?}"));
    }
    let states = [
        State::Found,
        State::NothingFound,
        State::NotChecked,
        State::NotApplicable,
    ];
    if states
        .iter()
        .map(|&state| audit.number(state))
        .sum::<usize>()
        != RULES.len()
    {
        wrong.push("the states do not add up".to_owned());
    }
    for rule in &audit.rules {
        let findings = audit
            .findings
            .iter()
            .filter(|finding| finding.rule == rule.rule)
            .count();
        let lacks = audit.not_checked.iter().any(|not| not.rule == rule.rule);
        let checked = matches!(rule.state, State::Found | State::NothingFound);
        let agrees = rule.findings == findings
            && (rule.state == State::Found) == (findings > 0)
            && audit.checked.contains(&rule.rule) == checked
            && lacks == (rule.in_part || rule.state == State::NotChecked);
        if !agrees {
            wrong.push(format!("{rule:?}"));
        }
    }
    wrong
}

/// An audit as text: what was found, then what was not checked. That no latencies were measured goes without saying.
pub fn findings(machine: &Machine) -> String {
    use std::fmt::Write as _;
    let audit = audit(machine, &AuditOptions::default());
    let mut text = String::new();
    for finding in &audit.findings {
        let _ = writeln!(
            text,
            "{} {} | {}: {}",
            finding.severity, finding.rule, finding.subject, finding.message
        );
        for evidence in &finding.evidence {
            let _ = writeln!(text, "  {} = {}", evidence.file, evidence.value);
        }
        if let Some(cost) = finding.cost {
            let text_of = |distance: Option<Distance>| {
                distance.map_or("?".to_owned(), |distance| distance.to_string())
            };
            let _ = writeln!(
                text,
                "  cost {} -> {}",
                text_of(cost.now),
                text_of(cost.after)
            );
        }
        if let Some(fix) = &finding.fix {
            let _ = writeln!(text, "  fix {}", serde_json::to_string(fix).unwrap());
        }
        if let Some(advice) = &finding.advice {
            let _ = writeln!(text, "  advice {advice}");
        }
    }
    let is_said = |not: &&NotChecked| not.rule != "distances-lie" || machine.timing.is_some();
    for not in audit.not_checked.iter().filter(is_said) {
        let _ = writeln!(text, "not checked {}: {}", not.rule, not.reason);
    }
    text
}
