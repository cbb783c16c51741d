//! What the audit says of devices, interrupts and their steering: small machines, one fault each.

use crate::common::{
    add_firmware, add_function, add_nic, device_on_an_offline_node, findings, function, interrupt,
    kunpeng, list, machine, pci, set, two_nodes,
};
use nearfar_change::Change;
use nearfar_machine::{
    CpuId, CpuSet, CpuTime, Known, Machine, Managed, OpenDevice, ResidentBytes, Task,
};
use nearfar_placement::audit::{AuditOptions, audit};

const NIC: &str = "0000:81:00.0";

fn quiet(machine: &Machine) {
    assert_eq!(findings(machine), "", "nothing to find");
}

/// The NIC of case 4 as a kernel before 6.3 spreads its queues: 49 of them from node 2.
fn before_6_3() -> Machine {
    let mut machine = kunpeng();
    let cpus: Vec<u32> = (48..72).chain(0..24).chain([24]).collect();
    add_nic(&mut machine, "eth0", NIC, Some(2), &cpus);
    machine
}

#[test]
fn case_4_queues_on_the_furthest_node_move_to_the_nearer_one() {
    let machine = before_6_3();
    let found = audit(&machine, &AuditOptions::default());
    let far: Vec<_> = found
        .findings
        .iter()
        .filter(|finding| finding.rule == "interrupt-far")
        .collect();
    assert_eq!(far.len(), 24, "queues 24 to 47; queue 48 stays on CPU 24");
    let Some(Change::InterruptAffinity { cpus, .. }) = &far[0].fix else {
        panic!("{far:?}")
    };
    assert_eq!(*cpus, set("72"), "queue 24");
    assert_eq!(
        far[0]
            .cost
            .map(|cost| (cost.now.unwrap().0, cost.after.unwrap().0)),
        Some((32, 16))
    );
    let masks = found
        .findings
        .iter()
        .filter_map(|finding| match &finding.fix {
            Some(Change::Xps {
                queue: 24, cpus, ..
            }) => Some(cpus.to_mask(machine.mask_width())),
            _ => None,
        });
    assert_eq!(
        masks.collect::<Vec<_>>(),
        ["00000100,00000000,00000000"],
        "XPS follows the interrupts"
    );
}

#[test]
fn an_interrupt_on_the_other_node() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 5, 0]);
    insta::assert_snapshot!(findings(&machine), @r#"
    warning interrupt-far | interrupt 102 (eth0-TxRx-2): It is served by CPU 0, at 21 from its device on node 1. CPU 6, at 10, serves none of the device's queues.
      /proc/irq/102/effective_affinity_list = 0
      /proc/irq/102/smp_affinity_list = 0
      /sys/bus/pci/devices/0000:81:00.0/numa_node = 1
      cost 21 -> 10
      fix {"kind":"interrupt-affinity","irq":102,"cpus":"6","near":1,"name":"eth0-TxRx-2"}
    warning xps-mismatch | eth0 transmit queue 2: CPU 0 on node 0 may send through it, CPU 6 serves its interrupt.
      /sys/class/net/eth0/queues/tx-2/xps_cpus = 01
      cost 21 -> 10
      fix {"kind":"xps","interface":"eth0","queue":2,"cpus":"6"}
    "#);
}

#[test]
fn what_is_near_in_another_order_is_left_as_it_is() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[7, 4, 6, 5]);
    quiet(&machine);
    let mut machine = two_nodes();
    add_nic(
        &mut machine,
        "eth0",
        NIC,
        Some(1),
        &[0, 1, 2, 3, 4, 5, 6, 7],
    );
    quiet(&machine);
}

#[test]
fn an_interrupt_allowed_everywhere_is_fine_while_a_near_cpu_serves_it() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[5]);
    let interrupt = &mut list(&mut machine.interrupts)[0];
    interrupt.affinity = Known::Yes(set("0-7"));
    quiet(&machine);
    let interrupt = &mut list(&mut machine.interrupts)[0];
    interrupt.effective = Known::no("no effective_affinity_list before Linux 4.13");
    quiet(&machine);
    list(&mut machine.interrupts)[0].effective = Known::Yes(set("2"));
    insta::assert_snapshot!(findings(&machine), @r#"
    warning interrupt-far | interrupt 100 (eth0-TxRx-0): It is served by CPU 2, at 21 from its device on node 1. CPU 4, at 10, serves none of the device's queues.
      /proc/irq/100/effective_affinity_list = 2
      /proc/irq/100/smp_affinity_list = 0-7
      /sys/bus/pci/devices/0000:81:00.0/numa_node = 1
      cost 21 -> 10
      fix {"kind":"interrupt-affinity","irq":100,"cpus":"4","near":1,"name":"eth0-TxRx-0"}
    "#);
}

#[test]
fn an_effective_affinity_left_over_from_before_a_change_does_not_count() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[5]);
    list(&mut machine.interrupts)[0].effective = Known::Yes(set("0"));
    quiet(&machine);
}

#[test]
fn the_node_of_the_descriptor_is_not_the_devices() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[5]);
    list(&mut machine.interrupts)[0].node = Known::Yes(Some(nearfar_machine::NodeId(0)));
    quiet(&machine);
}

#[test]
fn queues_that_share_a_cpu_spread_only_over_cpus_as_near() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 4, 5]);
    list(&mut machine.networks).clear();
    insta::assert_snapshot!(findings(&machine), @r#"
    notice queues-share-cpu | interrupt 101 (eth0-TxRx-1): It is served by CPU 4, like another queue of this device. CPU 6 is as near and serves none of them.
      /proc/irq/101/effective_affinity_list = 4
      /proc/irq/101/smp_affinity_list = 4
      /sys/bus/pci/devices/0000:81:00.0/numa_node = 1
      fix {"kind":"interrupt-affinity","irq":101,"cpus":"6","near":1,"name":"eth0-TxRx-1"}
    "#);
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 5, 6, 7, 4]);
    quiet(&machine);
}

#[test]
fn no_cpu_is_called_as_near_where_its_distance_is_unknown() {
    let unknown = |mut machine: Machine| {
        let audit = audit(&machine, &AuditOptions::default());
        assert!(
            !audit.findings.iter().any(|it| it.fix.is_some()),
            "{:?}",
            audit.findings
        );
        let skipped = audit
            .not_checked
            .iter()
            .find(|it| it.rule == "queues-share-cpu");
        let reason = "interrupt 101 (eth0-TxRx-1): which CPUs are as near to its device is unknown";
        assert_eq!(skipped.map(|it| it.reason.as_str()), Some(reason));
        // With one node all CPUs are as near.
        machine.nodes.truncate(1);
        machine.nodes[0].cpus = Known::Yes(set("0-7"));
        for cpu in &mut machine.cpus {
            cpu.node = Some(nearfar_machine::NodeId(0));
        }
        assert!(findings(&machine).contains("is as near"));
    };
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, None, &[4, 4]);
    list(&mut machine.networks).clear();
    unknown(machine);
    // On a node without CPUs to which no distance leads.
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(2), &[4, 4]);
    list(&mut machine.networks).clear();
    machine.nodes.push(nearfar_machine::Node::new(
        nearfar_machine::NodeId(2),
        set(""),
    ));
    unknown(machine);
}

#[test]
fn a_cpu_may_serve_one_queue_each_way() {
    let mut machine = two_nodes();
    add_function(
        &mut machine,
        function(NIC, 0x02_0000, "virtio-pci", Some(1)),
    );
    for (irq, name, queue) in [(40, "virtio0-input.0", 0), (41, "virtio0-output.0", 0)] {
        list(&mut machine.interrupts).push(interrupt(irq, name, NIC, Some(queue), "4"));
    }
    quiet(&machine);
}

#[test]
fn managed_interrupts_are_named_once_and_never_written() {
    let mut machine = two_nodes();
    add_function(&mut machine, function(NIC, 0x01_0802, "nvme", Some(1)));
    for queue in 0..9 {
        let cpu = queue.max(1) - 1;
        let mut interrupt = interrupt(
            50 + queue,
            &format!("nvme0q{queue}"),
            NIC,
            Some(queue),
            &cpu.to_string(),
        );
        let evidence = "drivers/nvme/host/pci.c asks for managed interrupts".to_owned();
        interrupt.managed = Known::Yes(Managed {
            managed: queue > 0,
            evidence,
        });
        list(&mut machine.interrupts).push(interrupt);
    }
    insta::assert_snapshot!(findings(&machine), @r"
    fact managed-interrupt | 0000:81:00.0 (nvme): 8 of its interrupts, nvme0q1 to nvme0q8, are managed by the kernel and cannot be changed.
      interrupt 51 (nvme0q1) = drivers/nvme/host/pci.c asks for managed interrupts
      advice The kernel gives each queue the CPUs that submit to it; only the number of queues can be changed.
    ");
}

#[test]
fn an_unknown_affinity_is_said_and_not_judged() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[0, 0, 0]);
    list(&mut machine.networks).clear();
    for interrupt in list(&mut machine.interrupts) {
        interrupt.affinity = Known::no("permission denied");
        interrupt.effective = Known::no("permission denied");
        interrupt.managed = Known::no("permission denied");
    }
    insta::assert_snapshot!(findings(&machine), @r"
    not checked interrupt-far: interrupt 100 (eth0-TxRx-0) and 2 more: permission denied
    not checked queues-share-cpu: interrupt 100 (eth0-TxRx-0) and 2 more: permission denied
    not checked managed-interrupt: interrupt 100 (eth0-TxRx-0) and 2 more: permission denied
    ");
}

#[test]
fn a_device_without_a_node() {
    let mut machine = two_nodes();
    add_firmware(&mut machine, "0000:81", Some(1));
    add_nic(&mut machine, "eth0", NIC, None, &[0]);
    add_function(
        &mut machine,
        function("0000:a0:00.0", 0x03_0000, "nouveau", None),
    );
    add_function(
        &mut machine,
        function("0000:a0:01.0", 0x06_0400, "pcieport", None),
    );
    insta::assert_snapshot!(findings(&machine), @r#"
    warning device-without-node | 0000:81:00.0 (ixgbe): The kernel has no node for this device. It is most likely near node 1 (by the firmware; the kernel has none).
      /sys/bus/pci/devices/0000:81:00.0/numa_node = -1
      /sys/firmware/acpi/tables/DSDT = node 1
      fix {"kind":"device-node","device":"0000:81:00.0","node":1,"rebind":"ixgbe"}
      advice A firmware or kernel that knows the node is the real fix. Writing numa_node is the last resort: it taints the kernel, and the driver has to be bound again, which stops the device for a moment.
    warning interrupt-far | interrupt 100 (eth0-TxRx-0): It is served by CPU 0, at 21 from its device on node 1 (by the firmware; the kernel has none). CPU 4, at 10, serves none of the device's queues.
      /proc/irq/100/effective_affinity_list = 0
      /proc/irq/100/smp_affinity_list = 0
      /sys/bus/pci/devices/0000:81:00.0/numa_node = -1
      cost 21 -> 10
      fix {"kind":"interrupt-affinity","irq":100,"cpus":"4","near":1,"name":"eth0-TxRx-0"}
    notice device-without-node | 0000:a0:00.0 (nouveau): The kernel has no node for this device, and its node is unknown.
      /sys/bus/pci/devices/0000:a0:00.0/numa_node = -1
      advice Not placed: the kernel says none (-1); its host bridge is unknown; no other device on root bus 0000:a0 has a node.
    not checked no-card-on-node: 0000:a0:00.0 (nouveau): its node is unknown
    "#);
}

#[test]
fn without_several_nodes_a_device_needs_none() {
    let mut machine = machine(&["0-3"], &[&[10]]);
    add_nic(&mut machine, "eth0", NIC, None, &[0, 1]);
    quiet(&machine);
}

#[test]
fn case_1_a_device_whose_node_is_not_online() {
    insta::assert_snapshot!(findings(&device_on_an_offline_node(1)), @r"
    warning firmware-node-offline | 0000:40:00.0 (nvme): The firmware puts this device on node 2, which is not online; the kernel has no node for it. The online node nearest to it is 0, at 40 by the firmware's distances.
      /sys/bus/pci/devices/0000:40:00.0/numa_node = -1
      /sys/firmware/acpi/tables/DSDT = domain 2, node 2
      /sys/devices/system/node/online = 0
      cost ? -> 40
      advice A kernel that brings such nodes online (Linux 6.11 and later on powerpc) fixes it; there is no other online node to give the device to.
    warning nvme-far-path | nvme-subsys0 (nvme0n1): The policy is numa and the kernel has no node for nvme1: kernels with the fix (Linux 6.9, 6.1.93 and other stable releases) count it as local (10), others read any value; the kernel's release is unknown: the source does not tell. I/O from node 0 may go through nvme0c1n1. From node 0 nvme1 is at 40, another path at 10.
      /sys/class/nvme-subsystem/nvme-subsys0/nvme0/numa_node = 0
      /sys/class/nvme-subsystem/nvme-subsys0/nvme1/numa_node = -1
      /sys/class/nvme-subsystem/nvme-subsys0/iopolicy = numa
      cost 40 -> 10
      advice Compare policies under the real load before changing one: numa keeps I/O near, round-robin and queue-depth (since Linux 6.11) use every path; which wins depends on whether a path or the distance is the limit.
    ");
    insta::assert_snapshot!(findings(&device_on_an_offline_node(2)), @r#"
    warning firmware-node-offline | 0000:40:00.0 (nvme): The firmware puts this device on node 2, which is not online; the kernel has no node for it. The online node nearest to it is 1, at 31 by the firmware's distances.
      /sys/bus/pci/devices/0000:40:00.0/numa_node = -1
      /sys/firmware/acpi/tables/DSDT = domain 2, node 2
      /sys/devices/system/node/online = 0-1
      cost ? -> 31
      fix {"kind":"device-node","device":"0000:40:00.0","node":1,"rebind":"nvme"}
      advice A firmware or kernel that knows the node is the real fix. Writing numa_node is the last resort: it taints the kernel, and the driver has to be bound again, which stops the device for a moment. The node is a guess: measure first.
    warning nvme-far-path | nvme-subsys0 (nvme0n1): The policy is numa and the kernel has no node for nvme1: kernels with the fix (Linux 6.9, 6.1.93 and other stable releases) count it as local (10), others read any value; the kernel's release is unknown: the source does not tell. I/O from nodes 0-1 may go through nvme0c1n1. From node 0 nvme1 is at 40, another path at 10.
      /sys/class/nvme-subsystem/nvme-subsys0/nvme0/numa_node = 0
      /sys/class/nvme-subsystem/nvme-subsys0/nvme1/numa_node = -1
      /sys/class/nvme-subsystem/nvme-subsys0/iopolicy = numa
      cost 40 -> 10
      advice Compare policies under the real load before changing one: numa keeps I/O near, round-robin and queue-depth (since Linux 6.11) use every path; which wins depends on whether a path or the distance is the limit.
    "#);
}

#[test]
fn kernel_and_firmware_disagree() {
    let mut machine = two_nodes();
    add_firmware(&mut machine, "0000:81", Some(1));
    add_function(&mut machine, function(NIC, 0x01_0802, "nvme", Some(0)));
    insta::assert_snapshot!(findings(&machine), @r"
    notice device-node-differs | 0000:81:00.0 (nvme): The kernel says node 0, the firmware says node 1 for its host bridge. One of them is wrong.
      /sys/bus/pci/devices/0000:81:00.0/numa_node = 0
      /sys/firmware/acpi/tables/DSDT = domain 1, node 1
      advice The NVMe driver wrote the first node with memory into devices without one until Linux 6.6. Find out which is right before anything is placed by it: measure latency to the device from both nodes, or ask the board's manual.
    ");
}

#[test]
fn transmit_queues_follow_their_interrupts() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 5, 6]);
    let transmit = &mut list(&mut machine.networks)[0].transmit;
    transmit[0].xps = Known::Yes(set("5"));
    transmit[1].xps = Known::Yes(set("1"));
    insta::assert_snapshot!(findings(&machine), @r#"
    warning xps-mismatch | eth0 transmit queue 1: CPU 1 on node 0 may send through it, CPU 5 serves its interrupt.
      /sys/class/net/eth0/queues/tx-1/xps_cpus = 02
      cost 21 -> 10
      fix {"kind":"xps","interface":"eth0","queue":1,"cpus":"5"}
    notice xps-mismatch | eth0 transmit queue 0: CPU 5 may send through it, CPU 4 serves its interrupt.
      /sys/class/net/eth0/queues/tx-0/xps_cpus = 20
      fix {"kind":"xps","interface":"eth0","queue":0,"cpus":"4"}
    "#);
}

#[test]
fn without_xps_every_cpu_gets_the_queue_nearest_to_it() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 5]);
    list(&mut machine.networks)[0]
        .transmit
        .iter_mut()
        .for_each(|queue| queue.xps = Known::Yes(CpuSet::new()));
    insta::assert_snapshot!(findings(&machine), @r#"
    notice xps-mismatch | eth0 transmit queue 0: No CPU is set to send through it (XPS is off); CPU 4 serves its interrupt.
      /sys/class/net/eth0/queues/tx-0/xps_cpus = 00
      fix {"kind":"xps","interface":"eth0","queue":0,"cpus":"0-2,4"}
    notice xps-mismatch | eth0 transmit queue 1: No CPU is set to send through it (XPS is off); CPU 5 serves its interrupt.
      /sys/class/net/eth0/queues/tx-1/xps_cpus = 00
      fix {"kind":"xps","interface":"eth0","queue":1,"cpus":"3,5-7"}
    "#);
}

#[test]
fn siblings_send_through_the_queue_of_their_core() {
    let mut machine = two_nodes();
    for cpu in &mut machine.cpus {
        cpu.core = Some(CpuId(cpu.id.0 & !1));
    }
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 6]);
    let transmit = &mut list(&mut machine.networks)[0].transmit;
    transmit[0].xps = Known::Yes(set("4-5"));
    transmit[1].xps = Known::Yes(set("0"));
    let found = findings(&machine);
    assert!(
        found.contains(r#""queue":1,"cpus":"2-3,6-7""#)
            && found.contains(r#""queue":0,"cpus":"0-1,4-5""#),
        "{found}"
    );
    let reason = "CPUs 4-5 may send through it. Once the other queues are fixed, CPUs 0-1 have no nearer one.";
    assert!(found.contains(reason), "{found}");
}

#[test]
fn one_transmit_queue_has_no_xps_and_needs_none() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4]);
    list(&mut machine.networks)[0].transmit[0].xps = Known::no("xps_cpus: ENOENT");
    quiet(&machine);
}

#[test]
fn received_packets_stay_near() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 5, 6]);
    machine.cpu_states.nohz_full = Known::Yes(CpuSet::single(CpuId(7)));
    let receive = &mut list(&mut machine.networks)[0].receive;
    receive[0].rps = Known::Yes(set("0-3"));
    receive[1].rps = Known::Yes(set("0-6"));
    receive[2].rps = Known::Yes(set("6-7"));
    insta::assert_snapshot!(findings(&machine), @r#"
    warning rps-mismatch | eth0 receive queue 0: RPS hands its packets to CPUs 0-3 only, at 21 or more from the device; at 10 there would be CPUs 4-6.
      /sys/class/net/eth0/queues/rx-0/rps_cpus = 0f
      cost 21 -> 10
      fix {"kind":"rps","interface":"eth0","queue":0,"cpus":"4-6"}
    warning rps-mismatch | eth0 receive queue 2: RPS hands part of its packets to CPU 7, which is tickless (nohz_full=).
      /sys/class/net/eth0/queues/rx-2/rps_cpus = c0
      fix {"kind":"rps","interface":"eth0","queue":2,"cpus":"6"}
    notice rps-mismatch | eth0 receive queue 1: RPS hands part of its packets to CPUs 0-3, up to 21 from the device; the rest, at 10, to CPUs 4-6.
      /sys/class/net/eth0/queues/rx-1/rps_cpus = 7f
      cost 21 -> 10
      fix {"kind":"rps","interface":"eth0","queue":1,"cpus":"4-6"}
    "#);
    let receive = &mut list(&mut machine.networks)[0].receive;
    receive
        .iter_mut()
        .for_each(|queue| queue.rps = Known::Yes(set("4-5")));
    insta::assert_snapshot!(findings(&machine), @r"
    notice rps-mismatch | eth0 receive queue 0: RPS hands its packets to CPUs 4-5, although each CPU near the device has a receive queue of its own.
      /sys/class/net/eth0/queues/rx-0/rps_cpus = 30
      advice Such a hand-over between CPUs rarely pays where the device spreads flows over as many queues. Compare with an empty rps_cpus.
    notice rps-mismatch | eth0 receive queue 1: RPS hands its packets to CPUs 4-5, although each CPU near the device has a receive queue of its own.
      /sys/class/net/eth0/queues/rx-1/rps_cpus = 30
      advice Such a hand-over between CPUs rarely pays where the device spreads flows over as many queues. Compare with an empty rps_cpus.
    notice rps-mismatch | eth0 receive queue 2: RPS hands its packets to CPUs 4-5, although each CPU near the device has a receive queue of its own.
      /sys/class/net/eth0/queues/rx-2/rps_cpus = 30
      advice Such a hand-over between CPUs rarely pays where the device spreads flows over as many queues. Compare with an empty rps_cpus.
    ");
}

#[test]
fn interfaces_on_one_function_are_told_apart_by_name() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 5]);
    let mut other = list(&mut machine.networks)[0].clone();
    other.name = "eth1".to_owned();
    list(&mut machine.networks).push(other);
    let found = audit(&machine, &AuditOptions::default());
    assert!(
        found.findings.is_empty(),
        "eth1 has no interrupts by its name, so those of the function count"
    );
    for (irq, queue) in [(300, 0), (301, 1)] {
        let name = format!("eth1-TxRx-{queue}");
        list(&mut machine.interrupts).push(interrupt(
            irq,
            &name,
            NIC,
            Some(queue),
            &(6 + queue).to_string(),
        ));
    }
    let found = audit(&machine, &AuditOptions::default());
    let subjects: Vec<_> = found
        .findings
        .iter()
        .map(|finding| finding.subject.as_str())
        .collect();
    assert_eq!(subjects, ["eth1 transmit queue 0", "eth1 transmit queue 1"]);
}

#[test]
fn devices_the_source_does_not_list_are_not_invented() {
    let mut machine = two_nodes();
    list(&mut machine.interrupts).push(interrupt(7, "ghost-0", "0000:99:00.0", Some(0), "0"));
    insta::assert_snapshot!(findings(&machine), @"not checked interrupt-far: 0000:99:00.0: the device's node is unknown");
    assert_eq!(
        nearfar_placement::locality::Localities::new(&machine)
            .of(pci("0000:99:00.0"))
            .node,
        None
    );
}

#[test]
fn interrupts_that_name_no_queue_are_judged_for_distance_only() {
    let mut machine = two_nodes();
    add_function(
        &mut machine,
        function(NIC, 0x01_0700, "megaraid_sas", Some(1)),
    );
    for (irq, cpu) in [(40, "4"), (41, "4"), (42, "0")] {
        list(&mut machine.interrupts).push(interrupt(irq, "megasas", NIC, None, cpu));
    }
    insta::assert_snapshot!(findings(&machine), @r#"
    warning interrupt-far | interrupt 42 (megasas): It is served by CPU 0, at 21 from its device on node 1. CPUs 4-7, at 10, can serve it.
      /proc/irq/42/effective_affinity_list = 0
      /proc/irq/42/smp_affinity_list = 0
      /sys/bus/pci/devices/0000:81:00.0/numa_node = 1
      cost 21 -> 10
      fix {"kind":"interrupt-affinity","irq":42,"cpus":"4-7","near":1,"name":"megasas"}
    "#);
}

#[test]
fn interrupts_of_unknown_devices_are_counted_where_rules_would_need_the_device() {
    let mut machine = two_nodes();
    machine.interrupts = Known::Yes(Vec::new());
    for irq in [40, 41] {
        let mut message = interrupt(irq, "eth0-TxRx-1", NIC, Some(1), "0");
        message.device = None;
        message.device_unknown_reason = Some("PCI-MSI does not name it".to_owned());
        list(&mut machine.interrupts).push(message);
    }
    let found = audit(&machine, &AuditOptions::default());
    for rule in ["interrupt-far", "queues-share-cpu", "managed-interrupt"] {
        let said = found.not_checked.iter().find(|it| it.rule == rule).unwrap();
        assert_eq!(
            said.reason,
            "the device of 2 interrupts is unknown: PCI-MSI does not name it"
        );
        assert!(!found.checked.contains(&rule), "{rule}");
    }
}

#[test]
fn a_function_of_unknown_class_may_move_data() {
    let mut machine = two_nodes();
    let mut device = function(NIC, 0, "", None);
    (device.vendor, device.device, device.driver) = (0, 0, None);
    add_function(&mut machine, device);
    let found = audit(&machine, &AuditOptions::default());
    assert_eq!(found.findings, Vec::new());
    let said = found
        .not_checked
        .iter()
        .find(|it| it.rule == "device-without-node");
    assert!(said.unwrap().reason.contains("its class is unknown"));
}

#[test]
fn a_device_without_node_is_a_finding_if_it_moves_data() {
    let found = |class: u32, driver: &str, change: &dyn Fn(&mut Machine)| {
        let mut machine = two_nodes();
        add_function(&mut machine, function("0000:7f:00.0", class, driver, None));
        change(&mut machine);
        let found = audit(&machine, &AuditOptions::default()).findings;
        found.iter().any(|it| it.rule == "device-without-node")
    };
    let as_it_is = |_: &mut Machine| {};
    for (class, driver) in [
        (0x01_0802, "nvme"),
        (0x01_0700, "mpt3sas"),
        (0x02_0000, "ixgbe"),
        (0x02_8000, "iwlwifi"),
        (0x03_0200, "nvidia"),
        (0x0b_4000, "qat_4xxx"),
        (0x0c_0400, "qla2xxx"),
        (0x0c_0600, "mlx4_core"),
        (0x08_8000, "idxd"),
        (0x00_ff00, "vfio-pci"),
        (0x12_0000, "habanalabs"),
    ] {
        assert!(found(class, driver, &as_it_is), "{class:06x} {driver}");
    }
    for (class, driver) in [
        (0x11_0100, "hswep_uncore"),
        (0x08_8000, "skx_uncore"),
        (0x06_0000, "skx_edac"),
        (0x08_8000, "sbridge_edac"),
        (0x0c_0320, "ehci-pci"),
        (0x0c_0330, "xhci_hcd"),
        (0x0c_0500, "i801_smbus"),
        (0x07_8000, "virtio-pci"),
        (0x00_ff00, "virtio-pci"),
        (0x03_0000, "ast"),
    ] {
        assert!(!found(class, driver, &as_it_is), "{class:06x} {driver}");
    }
    // A controller without a disk, where the disks are known.
    let with_disk_of = |address: &'static str| {
        move |machine: &mut Machine| {
            machine.disks = vec![nearfar_machine::Disk {
                name: "sda".to_owned(),
                device: pci(address),
            }];
        }
    };
    assert!(found(0x01_0601, "ahci", &as_it_is), "disks are unknown");
    assert!(found(0x01_0601, "ahci", &with_disk_of("0000:7f:00.0")));
    assert!(!found(0x01_0601, "ahci", &with_disk_of("0000:10:00.0")));
}

/// Two GPUs on node 1 and a task of 1 GiB with the second one open, which ran for so many milliseconds on CPUs.
fn with_gpus(open: &[&str], times: &[(u32, u64)]) -> Machine {
    let mut machine = two_nodes();
    for address in ["0000:81:00.0", "0000:82:00.0"] {
        add_function(
            &mut machine,
            function(address, 0x03_02_00, "nvidia", Some(1)),
        );
    }
    add_function(
        &mut machine,
        function("0000:01:00.0", 0x02_00_00, "mlx5_core", Some(0)),
    );
    let time = |&(cpu, ms)| CpuTime {
        cpu: CpuId(cpu),
        ms,
    };
    let device = |address: &&str| OpenDevice {
        device: pci(address),
        files: vec!["nvidia1".to_owned()],
    };
    machine.tasks = Known::Yes(vec![Task {
        allowed_cpus: Known::Yes(set("0-7")),
        cpu_ms: Known::Yes(times.iter().map(|it| it.1).sum()),
        cpu_times: Known::Yes(times.iter().map(time).collect()),
        resident: Known::Yes(ResidentBytes {
            anonymous: 1 << 30,
            ..ResidentBytes::default()
        }),
        devices: Known::Yes(open.iter().map(device).collect()),
        ..Task::new(7, "trainer")
    }]);
    machine
}

fn far_from_devices(machine: &Machine) -> String {
    let lines = findings(machine);
    let mut lines = lines.lines().map(str::to_owned);
    let first = lines.find(|line| line.contains("task-far-from-device"));
    let rest = lines.take_while(|line| line.starts_with("  "));
    first.into_iter().chain(rest).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_task_that_runs_far_from_its_gpu_is_found() {
    let mut machine = with_gpus(&["0000:82:00.0"], &[(0, 900), (4, 100)]);
    insta::assert_snapshot!(far_from_devices(&machine), @r"
    notice task-far-from-device | task 7 (trainer): 90 % of its CPU time was on node 0, far from 0000:82:00.0 (nvidia) on node 1, which it has open.
      /proc/7/fd = nvidia1
      /sys/bus/pci/devices/0000:82:00.0/numa_node = 1
      cost 21 -> 10
      advice `nearfar prefer --pid 7 --node 1` runs it near the device; the memory that it has stays where it is.
    ");
    let task = &mut list(&mut machine.tasks)[0];
    task.allowed_cpus = Known::Yes(set("0-3"));
    assert!(far_from_devices(&machine).starts_with("warning"));
    let task = &mut list(&mut machine.tasks)[0];
    task.resident = Known::Yes(ResidentBytes::default());
    assert_eq!(far_from_devices(&machine), "");
    assert_eq!(
        far_from_devices(&with_gpus(&["0000:82:00.0"], &[(0, 400), (4, 600)])),
        ""
    );
    // Near one of its devices, which is all that a placement can do.
    let two = ["0000:82:00.0", "0000:01:00.0"];
    assert_eq!(far_from_devices(&with_gpus(&two, &[(0, 900)])), "");
    assert_eq!(far_from_devices(&with_gpus(&[], &[(0, 900)])), "");
}

#[test]
fn without_open_files_or_a_node_it_is_unknown_which_tasks_are_far_from_their_device() {
    let unknown = |machine: &Machine| {
        let all = audit(machine, &AuditOptions::default()).not_checked;
        let found = all.into_iter().find(|it| it.rule == "task-far-from-device");
        found.unwrap().reason
    };
    let mut machine = with_gpus(&["0000:82:00.0"], &[(0, 900)]);
    list(&mut machine.pci).retain(|it| it.address != pci("0000:82:00.0"));
    assert_eq!(
        unknown(&machine),
        "task 7 (trainer): the node of 0000:82:00.0 is unknown"
    );
    list(&mut machine.tasks)[0].devices = Known::no("not here");
    assert_eq!(unknown(&machine), "not here");
}
