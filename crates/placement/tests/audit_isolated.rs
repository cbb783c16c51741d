//! What the audit says of interrupts on isolated CPUs, and where the plan lets them go.

use crate::common::{add_nic, findings, interrupt, list, set, two_nodes};
use nearfar_change::Change;
use nearfar_machine::{CpuSet, Known, Managed};
use nearfar_placement::audit::{AuditOptions, audit};

const NIC: &str = "0000:81:00.0";

#[test]
fn isolated_cpus_lose_their_interrupts() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 7]);
    list(&mut machine.networks).clear();
    // One that carries no queue, and one that no device is known for.
    list(&mut machine.interrupts).push(interrupt(200, "eth0", NIC, None, "7"));
    let mut timer = interrupt(201, "rtc0", NIC, None, "6-7");
    (timer.device, timer.affinity) = (None, Known::Yes(set("0-7")));
    list(&mut machine.interrupts).push(timer);
    machine.cpu_states.isolated = Known::Yes(set("6-7"));
    insta::assert_snapshot!(findings(&machine), @r#"
    warning interrupt-on-isolated-cpu | interrupt 101 (eth0-TxRx-1): It is served by CPU 7, which is isolated. CPU 5 can serve it.
      /proc/irq/101/effective_affinity_list = 7
      /proc/irq/101/smp_affinity_list = 7
      /sys/devices/system/cpu/isolated = 6-7
      fix {"kind":"interrupt-affinity","irq":101,"cpus":"5","near":1,"name":"eth0-TxRx-1"}
    warning interrupt-on-isolated-cpu | interrupt 200 (eth0): It is served by CPU 7, which is isolated.
      /proc/irq/200/effective_affinity_list = 7
      /proc/irq/200/smp_affinity_list = 7
      /sys/devices/system/cpu/isolated = 6-7
      fix {"kind":"interrupt-affinity","irq":200,"cpus":"4-5","near":1,"name":"eth0"}
    warning interrupt-on-isolated-cpu | interrupt 201 (rtc0): It is served by CPUs 6-7, which are isolated.
      /proc/irq/201/effective_affinity_list = 6-7
      /proc/irq/201/smp_affinity_list = 0-7
      /sys/devices/system/cpu/isolated = 6-7
      fix {"kind":"interrupt-affinity","irq":201,"cpus":"0-5","near":null,"name":"rtc0"}
    "#);
    let isolated_too = AuditOptions {
        isolated_too: true,
        ..AuditOptions::default()
    };
    assert_eq!(audit(&machine, &isolated_too).findings, []);
}

#[test]
fn leaving_an_isolated_cpu_may_cost_distance_and_says_so() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[5]);
    list(&mut machine.networks).clear();
    machine.cpu_states.isolated = Known::Yes(set("4-7"));
    insta::assert_snapshot!(findings(&machine), @r#"
    warning interrupt-on-isolated-cpu | interrupt 100 (eth0-TxRx-0): It is served by CPU 5, which is isolated. CPU 0 can serve it, at 21 instead of 10.
      /proc/irq/100/effective_affinity_list = 5
      /proc/irq/100/smp_affinity_list = 5
      /sys/devices/system/cpu/isolated = 4-7
      cost 10 -> 21
      fix {"kind":"interrupt-affinity","irq":100,"cpus":"0","near":1,"name":"eth0-TxRx-0"}
    "#);
}

/// A queue of its own on the other node is worse than a CPU that serves several.
#[test]
fn queues_leave_isolated_cpus_for_near_ones_that_they_share() {
    let mut machine = two_nodes();
    add_nic(&mut machine, "eth0", NIC, Some(1), &[4, 5, 6, 7]);
    list(&mut machine.networks).clear();
    machine.cpu_states.isolated = Known::Yes(set("6-7"));
    let mut wide = interrupt(200, "eth0", NIC, None, "7");
    wide.affinity = Known::Yes(set("0-7"));
    list(&mut machine.interrupts).push(wide);
    let found = audit(&machine, &AuditOptions::default()).findings;
    let moved = found.iter().map(|finding| match &finding.fix {
        Some(Change::InterruptAffinity { irq, cpus, .. }) => (irq.0, cpus.to_string()),
        other => panic!("{other:?}"),
    });
    let expected = [(102, "4"), (103, "5"), (200, "4-5")].map(|(irq, to)| (irq, to.to_owned()));
    assert_eq!(moved.collect::<Vec<_>>(), expected);
    assert!(found.iter().all(|finding| finding.cost.is_none()));
    let message = &found[0].message;
    assert!(
        message.ends_with("CPU 4 can serve it, with other queues of this device."),
        "{message}"
    );

    machine.cpu_states.isolated = Known::Yes(set("4-7"));
    let found = audit(&machine, &AuditOptions::default()).findings;
    for finding in &found {
        assert!(
            finding.message.contains(", at 21 instead of 10"),
            "{}",
            finding.message
        );
        assert_eq!(finding.cost.unwrap().after.unwrap().0, 21);
    }
    assert_eq!(found.len(), 5);
}

/// A boot parameter that is in force, or would change nothing, is not advice.
#[test]
fn the_advice_for_a_managed_interrupt_on_an_isolated_cpu_fits_the_command_line() {
    let mut machine = two_nodes();
    machine.cpu_states.isolated = Known::Yes(set("6-7"));
    let mut managed = interrupt(50, "nvme0q1", NIC, Some(1), "7");
    managed.managed = Known::Yes(Managed {
        managed: true,
        evidence: "the driver asks for it".to_owned(),
    });
    machine.interrupts = Known::Yes(vec![managed]);
    let mut advice = |mask: &str, managed_irq: Known<CpuSet>| {
        list(&mut machine.interrupts)[0].affinity = Known::Yes(set(mask));
        machine.cpu_states.managed_irq = managed_irq;
        let found = audit(&machine, &AuditOptions::default()).findings;
        let found = found
            .iter()
            .find(|it| it.rule == "interrupt-on-isolated-cpu");
        let found = found.unwrap();
        assert_eq!(found.fix, None);
        let named = found.evidence.iter().any(|it| it.file == "/proc/cmdline");
        (found.advice.clone().unwrap(), named)
    };
    let covers = |set: &str| Known::Yes(CpuSet::parse_list(set).unwrap());
    let (set_already, named) = advice("4-7", covers("6-7"));
    assert!(
        named && set_already.contains("isolcpus=managed_irq is in force"),
        "{set_already}"
    );
    for other in ["", "6"] {
        let (not_set, named) = advice("4-7", covers(other));
        assert!(
            !named
                && not_set
                    .ends_with("isolcpus=managed_irq keeps it on the other CPUs of its mask."),
            "{not_set}"
        );
    }
    let (unknown, _) = advice("4-7", Known::no("permission denied"));
    assert!(
        unknown.contains("is unknown (permission denied)"),
        "{unknown}"
    );
    for set in [covers(""), covers("6-7")] {
        let (alone, named) = advice("7", set);
        assert!(
            !named && alone.ends_with("isolcpus=managed_irq does not change that."),
            "{alone}"
        );
    }
}

/// Lines without a handler exist on every x86 machine (3, 4, 5 ...), and the kernel refuses to move the timer.
#[test]
fn what_cannot_or_need_not_move_stays_on_isolated_cpus_without_a_word() {
    let mut machine = two_nodes();
    machine.cpu_states.nohz_full = Known::Yes(set("0-1"));
    machine.interrupts = Known::Yes(Vec::new());
    for (irq, name, reason) in [
        (0, "timer", Some("the kernel refuses to move it")),
        (3, "", Some("no handler serves it")),
        (8, "rtc0", None),
    ] {
        let mut line = interrupt(irq, name, NIC, None, "0");
        line.device = None;
        line.immovable_reason = reason.map(str::to_owned);
        list(&mut machine.interrupts).push(line);
    }
    let found = audit(&machine, &AuditOptions::default());
    let subjects: Vec<&str> = found
        .findings
        .iter()
        .map(|finding| finding.subject.as_str())
        .collect();
    assert_eq!(subjects, ["interrupt 8 (rtc0)"]);
}
