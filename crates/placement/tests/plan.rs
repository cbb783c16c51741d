//! Plans: what is in them, in which order, what is left alone; and that carrying one out leaves nothing to do.

use crate::common::{
    add_firmware, add_nic, add_subsystem, device_on_an_offline_node, kunpeng, list, model, pci,
    set, two_nodes,
};
use nearfar_change::{Change, PLAN_FORMAT, Plan};
use nearfar_machine::{
    AnaState, CpuSet, IoPolicy, Known, Machine, Managed, NOT_ASKED_FOR, Writer, WriterKind,
};
use nearfar_placement::audit::{AuditOptions, audit};
use nearfar_placement::plan::{PlanOptions, PlanOptionsError, UnknownRule, plan};

const NIC: &str = "0000:81:00.0";

fn planned(machine: &Machine, options: &PlanOptions) -> Plan {
    plan(machine, &audit(machine, &AuditOptions::default()), options)
}

/// A NIC and a disk on node 1 with nearly everything wrong.
fn messy() -> Machine {
    let mut machine = two_nodes();
    machine.origin.host = Some("db7".to_owned());
    add_nic(&mut machine, "eth0", NIC, Some(1), &[0, 4]);
    list(&mut machine.networks)[0].transmit[1].xps = Known::Yes(set("2"));
    list(&mut machine.networks)[0].receive[0].rps = Known::Yes(set("0-3"));
    add_firmware(&mut machine, "0000:40", Some(1));
    let paths = [
        ("0000:20:00.0", Some(0), AnaState::Optimized),
        ("0000:40:00.0", None, AnaState::Optimized),
    ];
    add_subsystem(&mut machine, "nvme-subsys0", IoPolicy::Numa, &paths);
    machine
}

fn shown(plan: &Plan) -> String {
    let change = |change: &Change| serde_json::to_string(change).unwrap();
    let changes = plan.changes.iter().map(|planned| {
        format!(
            "{} <{}> was {}\n",
            change(&planned.change),
            planned.rule,
            planned.before.as_deref().unwrap_or("?")
        )
    });
    let alone = plan.left_alone.iter().map(|alone| {
        format!(
            "alone {} <{}>: {}\n",
            alone.subject, alone.rule, alone.reason
        )
    });
    changes.chain(alone).collect()
}

#[test]
fn changes_come_in_the_order_in_which_they_are_made() {
    let all = PlanOptions {
        device_node_override: true,
        iopolicy: Some(IoPolicy::RoundRobin),
        ..PlanOptions::default()
    };
    let plan = planned(&messy(), &all);
    assert_eq!(
        (plan.plan_format, plan.host.as_deref()),
        (PLAN_FORMAT, Some("db7"))
    );
    insta::assert_snapshot!(shown(&plan), @r#"
    {"kind":"device-node","device":"0000:40:00.0","node":1,"rebind":"nvme"} <device-without-node> was -1
    {"kind":"interrupt-affinity","irq":100,"cpus":"5","near":1,"name":"eth0-TxRx-0"} <interrupt-far> was 0
    {"kind":"xps","interface":"eth0","queue":0,"cpus":"5"} <xps-mismatch> was 01
    {"kind":"xps","interface":"eth0","queue":1,"cpus":"4"} <xps-mismatch> was 04
    {"kind":"rps","interface":"eth0","queue":0,"cpus":"4-7"} <rps-mismatch> was 0f
    {"kind":"nvme-io-policy","subsystem":"nvme-subsys0","policy":"round-robin"} <nvme-far-path> was numa
    "#);
    assert_eq!(
        plan.nearest.len(),
        1,
        "node 1 is the only one an interrupt is brought near to"
    );
    assert_eq!(
        plan.nearest[0]
            .cpus
            .iter()
            .map(|cpu| cpu.0)
            .collect::<Vec<_>>(),
        [4, 5, 6, 7, 0, 1, 2, 3]
    );
}

#[test]
fn what_is_not_asked_for_is_left_alone_with_the_reason() {
    insta::assert_snapshot!(shown(&planned(&messy(), &PlanOptions::default())), @r#"
    {"kind":"interrupt-affinity","irq":100,"cpus":"5","near":1,"name":"eth0-TxRx-0"} <interrupt-far> was 0
    {"kind":"xps","interface":"eth0","queue":0,"cpus":"5"} <xps-mismatch> was 01
    {"kind":"xps","interface":"eth0","queue":1,"cpus":"4"} <xps-mismatch> was 04
    {"kind":"rps","interface":"eth0","queue":0,"cpus":"4-7"} <rps-mismatch> was 0f
    alone 0000:40:00.0 (nvme) <device-without-node>: overriding a device's node taints the kernel and stops the device for a moment: only with --override-device-node
    alone nvme-subsys0 (nvme0n1) <nvme-far-path>: which policy is faster depends on the load: only with --iopolicy
    "#);
}

#[test]
fn a_rule_that_lacked_wanted_input_is_named() {
    let not_checked = |reason: &str, rule: Option<&str>| {
        let mut machine = messy();
        machine.tasks = Known::no(reason.to_owned());
        let options = PlanOptions {
            rules: rule.map(|rule| vec![rule.to_owned()]),
            ..PlanOptions::default()
        };
        planned(&machine, &options).not_checked
    };
    let rule = "task-memory-far";
    assert!(not_checked("permission denied", None).contains(&rule.to_owned()));
    assert_eq!(not_checked("permission denied", Some(rule)), [rule]);
    assert!(!not_checked(NOT_ASKED_FOR, None).contains(&rule.to_owned()));
    assert!(not_checked("permission denied", Some("interrupt-far")).is_empty());
}

#[test]
fn rules_and_devices_can_be_chosen() {
    let machine = messy();
    let count = |options: PlanOptions| planned(&machine, &options).changes.len();
    let only = |rule: &str| PlanOptions {
        rules: Some(vec![rule.to_owned()]),
        ..PlanOptions::default()
    };
    assert_eq!(count(only("interrupt-far")), 1);
    assert_eq!(count(only("rps-mismatch")), 1);
    assert_eq!(
        count(only("xps-mismatch")),
        0,
        "queue 0 would follow an interrupt that does not move"
    );
    assert_eq!(count(only("no-such-rule")), 0);
    assert_eq!(
        only("no-such-rule").check(&machine),
        Err(UnknownRule("no-such-rule".to_owned()).into())
    );
    assert_eq!(only("interrupt-far").check(&machine), Ok(()));
    let disk = PlanOptions {
        devices: Some(vec![pci("0000:40:00.0")]),
        iopolicy: Some(IoPolicy::QueueDepth),
        ..PlanOptions::default()
    };
    insta::assert_snapshot!(shown(&planned(&machine, &disk)), @r#"
    {"kind":"nvme-io-policy","subsystem":"nvme-subsys0","policy":"queue-depth"} <nvme-far-path> was numa
    alone 0000:40:00.0 (nvme) <device-without-node>: overriding a device's node taints the kernel and stops the device for a moment: only with --override-device-node
    "#);
    assert_eq!(
        count(PlanOptions {
            not_devices: vec![pci(NIC)],
            ..PlanOptions::default()
        }),
        0
    );
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    let machine = messy();
    let named = |address: &str| vec![pci(address)];
    for options in [
        PlanOptions {
            devices: Some(named("0000:99:00.0")),
            ..PlanOptions::default()
        },
        PlanOptions {
            not_devices: named("0000:99:00.0"),
            ..PlanOptions::default()
        },
    ] {
        let error = options.check(&machine).unwrap_err();
        let PlanOptionsError::Device { known, .. } = &error else {
            panic!("{error}")
        };
        assert!(known.contains(&NIC.to_owned()), "{known:?}");
        let message = error.to_string();
        assert!(
            message.contains("0000:99:00.0") && message.contains(NIC),
            "{message}"
        );
    }
    assert_eq!(
        PlanOptions {
            devices: Some(named(NIC)),
            ..PlanOptions::default()
        }
        .check(&machine),
        Ok(())
    );
}

#[test]
fn managed_interrupts_and_other_writers_are_named() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[0, 1]);
    list(&mut machine.networks).clear();
    let interrupt = &mut list(&mut machine.interrupts)[0];
    interrupt.managed = Known::Yes(Managed {
        managed: true,
        evidence: "not writable".to_owned(),
    });
    list(&mut machine.writers).push(Writer {
        kind: WriterKind::Irqbalance,
        active: Known::Yes(true),
        evidence: "/proc/812/comm".to_owned(),
        says: "irqbalance".to_owned(),
    });
    insta::assert_snapshot!(shown(&planned(&machine, &PlanOptions::default())), @r#"
    {"kind":"interrupt-affinity","irq":101,"cpus":"4","near":1,"name":"eth0-TxRx-1"} <interrupt-far> was 1
    alone irqbalance <competing-writer>: Ban the interrupts that it must not move (IRQBALANCE_BANNED_CPULIST, --banirq), or stop it, before applying.
    alone 0000:81:00.0 (ixgbe) <managed-interrupt>: the kernel alone places managed interrupts
    "#);
}

#[test]
fn a_sysctl_is_changed_only_when_its_rule_is_named() {
    let mut machine = two_nodes();
    machine.settings.numa_balancing = Known::Yes(0);
    list(&mut machine.tasks).push(nearfar_machine::Task {
        pid: 9,
        name: "postgres".to_owned(),
        allowed_cpus: Known::Yes(set("0-7")),
        allowed_nodes: Known::no("left out"),
        last_cpu: Known::Yes(nearfar_machine::CpuId(1)),
        memory: Known::Yes(vec![nearfar_machine::NodeBytes {
            node: nearfar_machine::NodeId(0),
            bytes: 1 << 33,
        }]),
        policies: Known::no("left out"),
        preferred_node: Known::no("left out"),
        pinned_bytes: Known::Yes(0),
        cpu_ms: Known::no("left out"),
        ..nearfar_machine::Task::new(9, "postgres")
    });
    insta::assert_snapshot!(shown(&planned(&machine, &PlanOptions::default())), @"alone kernel.numa_balancing <numa-balancing>: kernel.numa_balancing holds for the whole system: only with --rule numa-balancing");
    let named = PlanOptions {
        rules: Some(vec!["numa-balancing".to_owned()]),
        ..PlanOptions::default()
    };
    insta::assert_snapshot!(shown(&planned(&machine, &named)), @r#"{"kind":"sysctl","name":"kernel.numa_balancing","value":"1"} <numa-balancing> was 0"#);
    assert_eq!(
        planned(&model::after(&machine, &planned(&machine, &named)), &named).changes,
        []
    );
}

#[test]
fn a_policy_that_is_set_already_is_not_set_again() {
    let options = PlanOptions {
        iopolicy: Some(IoPolicy::Numa),
        ..PlanOptions::default()
    };
    assert_eq!(planned(&device_on_an_offline_node(1), &options).changes, []);
}

#[test]
fn case_4_planned_carried_out_and_planned_again() {
    let mut machine = kunpeng();
    let cpus: Vec<u32> = (48..72).chain(0..24).chain([24]).collect();
    add_nic(&mut machine, "eth0", NIC, Some(2), &cpus);
    let plan = planned(&machine, &PlanOptions::default());
    assert_eq!(
        plan.changes.len(),
        48,
        "24 interrupts and the XPS of their queues"
    );
    let fixed = model::after(&machine, &plan);
    let serves: Vec<CpuSet> = list(&mut fixed.interrupts.clone())
        .iter()
        .map(|irq| irq.affinity.get().unwrap().clone())
        .collect();
    assert_eq!(
        [&serves[0], &serves[24], &serves[47], &serves[48]],
        [&set("48"), &set("72"), &set("95"), &set("24")]
    );
    assert_eq!(planned(&fixed, &PlanOptions::default()).changes, []);
}

#[test]
fn plans_survive_json() {
    let plan = planned(
        &messy(),
        &PlanOptions {
            device_node_override: true,
            ..PlanOptions::default()
        },
    );
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
}
