//! Devices of recorded machines: what the readers see in files that real kernels wrote.

use crate::machines::Laid;
use nearfar_machine::{Distance, FirmwareSource, Known, Machine, NodeId};
use nearfar_sources::{TaskScope, Want};

fn all() -> Want {
    Want::all()
}

fn distance(machine: &Machine, from: u32, to: u32) -> Option<u32> {
    machine
        .distance(NodeId(from), NodeId(to))
        .map(|Distance(distance)| distance)
}

/// What a golden file of a machine holds: everything but interrupts, whose list is long.
fn devices(laid: &Laid, machine: &Machine) -> String {
    let parts = [
        ("pci", laid.show(&machine.pci)),
        ("host_bridges", laid.show(&machine.host_bridges)),
        ("firmware_distances", laid.show(&machine.firmware_distances)),
        ("nvme", laid.show(&machine.nvme)),
        ("networks", laid.show(&machine.networks)),
        ("cpusets", laid.show(&machine.cpusets)),
        ("tasks", laid.show(&machine.tasks)),
        ("settings", laid.show(&machine.settings)),
        ("writers", laid.show(&machine.writers)),
        ("warnings", laid.show(&machine.warnings)),
    ];
    parts
        .map(|(name, text)| format!("== {name}\n{text}\n"))
        .join("")
}

#[test]
fn a_node_that_is_not_online_is_named_by_the_firmware() {
    let laid = Laid::out("x86-third-node-offline");
    let machine = laid.read(&all());
    let bridge = machine.host_bridge("0000:40".parse().unwrap()).unwrap();
    let locality = bridge.firmware.get().unwrap().as_ref().unwrap();
    assert_eq!(
        (locality.domain, locality.node, locality.told_by),
        (2, NodeId(2), FirmwareSource::AcpiPxm)
    );
    let third = machine.node(NodeId(2)).unwrap();
    assert!(!third.online && third.has_cpus() == Some(false));
    let device = machine.pci_device("0000:41:00.0".parse().unwrap()).unwrap();
    assert_eq!(device.node, Known::Yes(None), "the kernel gives it no node");
    assert_eq!(
        [distance(&machine, 0, 2), distance(&machine, 1, 2)],
        [Some(40), Some(17)]
    );
    insta::assert_snapshot!("x86-third-node-offline", devices(&laid, &machine));
}

#[test]
fn queues_and_their_interrupts_on_a_four_node_machine() {
    let laid = Laid::out("x86-queues-on-node-2");
    let machine = laid.read(&all());
    insta::assert_snapshot!("x86-queues-on-node-2", devices(&laid, &machine));
    insta::assert_snapshot!(
        "x86-queues-on-node-2-interrupts",
        laid.show(&machine.interrupts)
    );
}

#[test]
fn powerpc_firmware_names_the_node_before_and_after_the_kernel_switches_it_on() {
    for (name, online) in [("pseries-before-6.11", false), ("pseries-after-6.11", true)] {
        let laid = Laid::out(name);
        let machine = laid.read(&all());
        let bridge = machine.host_bridge("0001:00".parse().unwrap()).unwrap();
        let locality = bridge.firmware.get().unwrap().as_ref().unwrap();
        assert_eq!(
            (locality.node, locality.told_by),
            (NodeId(2), FirmwareSource::DeviceTree),
            "{name}"
        );
        assert_eq!(machine.node(NodeId(2)).unwrap().online, online, "{name}");
        assert_eq!(distance(&machine, 0, 2), Some(40), "{name}");
        let device = machine.pci_device("0001:00:00.0".parse().unwrap()).unwrap();
        assert_eq!(
            device.node,
            Known::Yes(online.then_some(NodeId(2))),
            "{name}"
        );
        insta::assert_snapshot!(name, devices(&laid, &machine));
    }
}

#[test]
fn what_is_not_asked_for_is_not_read() {
    let laid = Laid::out("x86-third-node-offline");
    let machine = laid.read(&Want::topology());
    for because in [
        machine.pci.unknown_reason(),
        machine.interrupts.unknown_reason(),
        machine.tasks.unknown_reason(),
        machine.nvme.unknown_reason(),
    ] {
        assert_eq!(because, Some("not asked for"));
    }
    let interrupts = Want {
        interrupts: true,
        ..Want::topology()
    };
    let machine = laid.read(&interrupts);
    let interrupts = machine.interrupts.get().unwrap();
    let queue = interrupts
        .iter()
        .find(|interrupt| interrupt.name == "nvme0q1")
        .unwrap();
    assert_eq!(queue.device, Some("0000:41:00.0".parse().unwrap()));
    assert_eq!(queue.count.unknown_reason(), Some("not asked for"));
    let one = Want {
        tasks: TaskScope::Of(vec![1, 999_999, -3]),
        ..Want::topology()
    };
    assert_eq!(
        laid.read(&one).tasks.get().unwrap().len(),
        1,
        "a process that is not there is left out"
    );
}
