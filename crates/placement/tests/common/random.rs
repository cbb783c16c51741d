//! Random machines, also implausible ones, for properties.

use nearfar_machine::{
    CpuId, CpuSet, IoPolicy, Irq, Known, Machine, Managed, NodeId, TransmitQueue,
};
use proptest::prelude::*;

use super::{AnaState, add_function, add_subsystem, function, interrupt, list, machine};

/// A machine of up to six nodes with sparse numbers, unequal and asymmetric distances, holes, nodes without CPUs, offline
/// and isolated CPUs.
pub fn any_machine() -> impl Strategy<Value = Machine> {
    let cpus = proptest::collection::vec((0..6usize, any::<bool>(), 0..5u8), 1..40);
    (1..=6usize, cpus, proptest::collection::vec(0..60u32, 36)).prop_map(|(count, cpus, raw)| {
        let mut members = vec![CpuSet::new(); count];
        for (number, (node, ..)) in cpus.iter().enumerate() {
            members[node % count].insert(CpuId(number as u32));
        }
        let texts: Vec<String> = members.iter().map(CpuSet::to_string).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        // Values below 10 are holes.
        let entry = |a: usize, b: usize| if a == b { 10 } else { raw[a * 6 + b] / 10 * 10 };
        let rows: Vec<Vec<u32>> = (0..count)
            .map(|a| (0..count).map(|b| entry(a, b)).collect())
            .collect();
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let mut machine = machine(&texts, &rows);
        for (cpu, (_, online, kept)) in machine.cpus.iter_mut().zip(&cpus) {
            cpu.online = (*online).into();
            cpu.core = Some(CpuId(cpu.id.0 / 2 * 2));
            if !online {
                machine.cpu_states.online.remove(cpu.id);
            } else if *kept == 0 {
                machine.cpu_states.isolated = Known::Yes(CpuSet::single(cpu.id));
            }
        }
        machine
    })
}

/// An interrupt: CPUs it may use, the one it uses, queue, whether managed, device.
type RawInterrupt = (Vec<u32>, Option<u32>, Option<u32>, u8, usize);

/// The same with devices, interrupts, steering and NVMe paths that may contradict it in every way.
pub fn any_inhabited_machine() -> impl Strategy<Value = Machine> {
    let devices = proptest::collection::vec(proptest::option::of(0..8u32), 1..5);
    let cpus = || proptest::collection::vec(0..45u32, 0..4);
    let interrupts = proptest::collection::vec(
        (
            cpus(),
            proptest::option::of(0..45u32),
            proptest::option::of(0..6u32),
            0..4u8,
            0..5usize,
        ),
        0..30,
    );
    let masks = proptest::collection::vec((cpus(), cpus()), 0..7);
    (any_machine(), devices, interrupts, masks, 0..4u8).prop_map(
        |(mut machine, devices, interrupts, masks, policy)| {
            let address = |device: usize| format!("0000:{:02x}:00.0", 0x20 + device);
            for (position, node) in devices.iter().enumerate() {
                add_function(
                    &mut machine,
                    function(&address(position), 0x02_0000, "ixgbe", *node),
                );
            }
            for (irq, raw) in (10..).zip(&interrupts) {
                add_interrupt(&mut machine, irq, raw, &address(raw.4 % devices.len()));
            }
            add_steering(&mut machine, &masks, &address(0));
            let policy = [
                IoPolicy::Numa,
                IoPolicy::RoundRobin,
                IoPolicy::QueueDepth,
                IoPolicy::Other("x".into()),
            ][usize::from(policy)]
            .clone();
            let paths: Vec<_> = devices
                .iter()
                .map(|node| (*node, AnaState::Optimized))
                .collect();
            let addresses: Vec<String> = (0..paths.len())
                .map(|position| format!("0000:{:02x}:00.0", 0x80 + position))
                .collect();
            let paths: Vec<_> = addresses
                .iter()
                .zip(paths)
                .map(|(at, (node, ana))| (at.as_str(), node, ana))
                .collect();
            add_subsystem(&mut machine, "nvme-subsys0", policy, &paths);
            machine
        },
    )
}

fn add_interrupt(machine: &mut Machine, irq: u32, raw: &RawInterrupt, device: &str) {
    let (cpus, effective, queue, managed, _) = raw;
    let name = queue.map_or_else(|| "eth0".to_owned(), |queue| format!("eth0-rx-{queue}"));
    let mut interrupt = interrupt(irq, &name, device, *queue, "");
    interrupt.irq = Irq(irq);
    interrupt.affinity = Known::Yes(cpus.iter().copied().map(CpuId).collect());
    interrupt.effective = match effective {
        Some(cpu) => Known::Yes(CpuSet::single(CpuId(*cpu))),
        None => Known::no("random"),
    };
    interrupt.managed = match managed {
        0 => Known::no("random"),
        1 => Known::Yes(Managed {
            managed: true,
            evidence: "random".to_owned(),
        }),
        _ => Known::Yes(Managed {
            managed: false,
            evidence: "random".to_owned(),
        }),
    };
    list(&mut machine.interrupts).push(interrupt);
}

fn add_steering(machine: &mut Machine, masks: &[(Vec<u32>, Vec<u32>)], device: &str) {
    let cpus = |mask: &[u32]| Known::Yes(mask.iter().copied().map(CpuId).collect());
    let transmit = (0..).zip(masks).map(|(queue, (xps, _))| TransmitQueue {
        queue,
        xps: cpus(xps),
    });
    let receive = (0..)
        .zip(masks)
        .map(|(queue, (_, rps))| nearfar_machine::ReceiveQueue {
            queue,
            rps: cpus(rps),
        });
    let network = nearfar_machine::NetworkDevice {
        name: "eth0".to_owned(),
        device: Some(super::pci(device)),
        mac: None,
        node: Known::Yes(Some(NodeId(0))),
        transmit: transmit.collect(),
        receive: receive.collect(),
    };
    list(&mut machine.networks).push(network);
}
