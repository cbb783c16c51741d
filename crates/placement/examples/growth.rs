//! How the time of spread, audit and plan grows with the machine: 1024, 2048, 4096 CPUs in 64 nodes, 512 network
//! devices with as many queues as there are CPUs; once with every queue where it belongs, once with none.
//!
//! `cargo run --release -p nearfar-placement --example growth`

use std::time::Instant;

use nearfar_machine::{
    Cpu, CpuId, CpuSet, Distance, DistanceOrigin, Distances, Interrupt, Irq, Known, Machine,
    Managed, NetworkDevice, Node, NodeId, Origin, PciAddress, PciDevice, ReceiveQueue, RootBus,
    SourceKind, TransmitQueue,
};
use nearfar_placement::audit::{AuditOptions, audit};
use nearfar_placement::plan::{PlanOptions, plan};
use nearfar_placement::spread::{SpreadRequest, spread};

const NODES: u32 = 64;
const DEVICES: u32 = 512;

fn main() {
    println!(
        "{:>6} {:>6} {:>10} {:>10} {:>10} {:>9} {:>9}",
        "queues", "CPUs", "spread", "audit", "plan", "findings", "changes"
    );
    for (kind, cpus) in ["near", "far"]
        .into_iter()
        .flat_map(|kind| [1024, 2048, 4096, 8192].map(|cpus| (kind, cpus)))
    {
        let machine = machine(cpus, kind == "near");
        let request = SpreadRequest {
            node: Some(NodeId(40)),
            count: cpus as usize,
            ..SpreadRequest::default()
        };
        let (_, spread_ms) = timed(|| spread(&machine, &request));
        let (found, audit_ms) = timed(|| audit(&machine, &AuditOptions::default()));
        let (plan, plan_ms) = timed(|| plan(&machine, &found, &PlanOptions::default()));
        let (findings, changes) = (found.findings.len(), plan.changes.len());
        println!(
            "{kind:>6} {cpus:>6} {spread_ms:>7.2} ms {audit_ms:>7.2} ms {plan_ms:>7.2} ms {findings:>9} {changes:>9}"
        );
    }
}

/// The best of several runs, in milliseconds.
fn timed<T>(mut f: impl FnMut() -> T) -> (T, f64) {
    let mut run = || {
        let start = Instant::now();
        let answer = f();
        (answer, start.elapsed().as_secs_f64() * 1e3)
    };
    let mut best = run();
    for _ in 0..4 {
        let again = run();
        if again.1 < best.1 {
            best = again;
        }
    }
    best
}

fn machine(cpus: u32, near: bool) -> Machine {
    let mut machine = Machine::empty(Origin::new(SourceKind::Synthetic, "growth"), "left out");
    let each = cpus / NODES;
    let members = |node: u32| CpuSet::range(CpuId(node * each), CpuId(node * each + each - 1));
    machine.nodes = (0..NODES)
        .map(|node| Node::new(NodeId(node), members(node)))
        .collect();
    let entry = |a: u32, b: u32| Some(Distance(if a == b { 10 } else { 20 + a.abs_diff(b) / 8 }));
    let rows = (0..NODES)
        .map(|a| (0..NODES).map(|b| entry(a, b)).collect())
        .collect();
    let table = Distances::from_rows(
        DistanceOrigin::Described,
        (0..NODES).map(NodeId).collect(),
        rows,
    );
    machine.distances = table.map_or_else(|error| Known::no(error.to_string()), Known::Yes);
    machine.cpus = (0..cpus)
        .map(|cpu| Cpu::new(CpuId(cpu), Some(NodeId(cpu / each))))
        .collect();
    machine.cpu_states.online = CpuSet::range(CpuId(0), CpuId(cpus - 1));
    let queues = cpus / DEVICES;
    machine.pci = Known::Yes((0..DEVICES).map(device).collect());
    machine.interrupts = Known::Yes(
        (0..DEVICES * queues)
            .map(|irq| interrupt(irq, queues, serves(irq, queues, cpus, near)))
            .collect(),
    );
    machine.networks = Known::Yes(
        (0..DEVICES)
            .map(|device| {
                network(device, queues, |queue| {
                    serves(device * queues + queue, queues, cpus, near)
                })
            })
            .collect(),
    );
    machine
}

fn address(device: u32) -> PciAddress {
    PciAddress {
        domain: device / 32,
        bus: 0,
        device: (device % 32) as u8,
        function: 0,
    }
}

fn device(number: u32) -> PciDevice {
    let address = address(number);
    PciDevice {
        address,
        vendor: 0x8086,
        device: 0x1572,
        class: 0x02_0000,
        class_name: None,
        name: None,
        driver: Some("ixgbe".to_owned()),
        parent: None,
        root: RootBus {
            domain: address.domain,
            bus: 0,
        },
        node: Known::Yes(Some(NodeId(number % NODES))),
    }
}

/// The CPU that serves an interrupt: on its device's node, or somewhere.
fn serves(irq: u32, queues: u32, cpus: u32, near: bool) -> CpuSet {
    let each = cpus / NODES;
    let own = irq / queues % NODES * each + irq % queues % each;
    CpuSet::single(CpuId(if near {
        own
    } else {
        (irq * 7 + cpus / 2) % cpus
    }))
}

fn interrupt(irq: u32, queues: u32, cpus: CpuSet) -> Interrupt {
    Interrupt {
        irq: Irq(irq),
        name: format!("net{:03}-TxRx-{}", irq / queues, irq % queues),
        device: Some(address(irq / queues)),
        device_unknown_reason: None,
        immovable_reason: None,
        queue: Some(irq % queues),
        affinity: Known::Yes(cpus.clone()),
        effective: Known::Yes(cpus),
        managed: Known::Yes(Managed {
            managed: false,
            evidence: "writable".to_owned(),
        }),
        node: Known::Yes(None),
        count: Known::no("left out"),
    }
}

fn network(number: u32, queues: u32, xps: impl Fn(u32) -> CpuSet) -> NetworkDevice {
    NetworkDevice {
        name: format!("net{number:03}"),
        device: Some(address(number)),
        mac: None,
        node: Known::Yes(Some(NodeId(number % NODES))),
        transmit: (0..queues)
            .map(|queue| TransmitQueue {
                queue,
                xps: Known::Yes(xps(queue)),
            })
            .collect(),
        receive: (0..queues)
            .map(|queue| ReceiveQueue {
                queue,
                rps: Known::Yes(CpuSet::new()),
            })
            .collect(),
    }
}
