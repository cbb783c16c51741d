//! Findings to draw.

use nearfar_change::{Change, DistanceChange};
use nearfar_machine::*;
use nearfar_placement::audit::{
    Audit, Evidence, Finding, NotChecked, RULES, RuleState, Severity, State,
};

fn finding(rule: &'static str, severity: Severity, subject: &str, message: &str) -> Finding {
    Finding {
        rule,
        severity,
        subject: subject.to_owned(),
        message: message.to_owned(),
        evidence: Vec::new(),
        cost: None,
        fix: None,
        advice: None,
        remedy: None,
        docs: format!("docs/audit.md#{rule}"),
        device: None,
    }
}

fn evidence(file: &str, value: &str) -> Evidence {
    Evidence {
        file: file.to_owned(),
        value: value.to_owned(),
    }
}

/// Findings such as a machine with a far network card and a disk without a node has; `far` of them about interrupts.
pub fn audit(far: u32) -> Audit {
    let mut findings = vec![Finding {
        evidence: vec![
            evidence("/sys/bus/pci/devices/0000:d8:00.0/numa_node", "-1"),
            evidence(
                "/sys/firmware/acpi/tables/DSDT",
                "_PXM 1 on host bridge 0000:d8",
            ),
        ],
        fix: Some(Change::DeviceNode {
            device: "0000:d8:00.0".parse().unwrap(),
            node: NodeId(1),
            rebind: None,
        }),
        advice: Some(
            "update the firmware first: the kernel takes the node from it at boot".to_owned(),
        ),
        ..finding(
            "device-without-node",
            Severity::Critical,
            "0000:d8:00.0 nvme (Samsung PM1733)",
            "the kernel knows no node for this device, so drivers allocate its queues anywhere; the firmware puts its host bridge on node 1",
        )
    }];
    for queue in 0..far {
        let (irq, cpu) = (Irq(40 + queue), CpuId(16 + queue % 16));
        findings.push(Finding {
            evidence: vec![evidence(&format!("/proc/irq/{irq}/effective_affinity_list"), &cpu.to_string())],
            cost: Some(DistanceChange { now: Some(Distance(21)), after: Some(Distance(10)) }),
            fix: Some(Change::InterruptAffinity {
                irq,
                cpus: CpuSet::single(CpuId(queue % 16)),
                near: Some(NodeId(0)),
                name: Some(format!("ens5f0-{queue}")),
            }),
            ..finding(
                "interrupt-far",
                Severity::Warning,
                &format!("interrupt {irq} (ens5f0-{queue})"),
                &format!(
                    "is served by CPU {cpu} of node 1, while its device is on node 0 and CPU {queue} there is free"
                ),
            )
        });
    }
    findings.push(Finding {
        evidence: vec![evidence(
            "/sys/class/nvme-subsystem/nvme-subsys0/iopolicy",
            "numa",
        )],
        advice: Some(
            "numa is best when one path is enough; round-robin and queue-depth use both: measure"
                .to_owned(),
        ),
        ..finding(
            "nvme-far-path",
            Severity::Notice,
            "nvme-subsys0",
            "CPUs of node 1 reach the disk through nvme0 on node 0",
        )
    });
    findings.push(finding(
        "node-without-memory",
        Severity::Fact,
        "node 2",
        "has CPUs and no memory",
    ));
    let rules = RULES.iter().map(|rule| state(rule.id, &findings)).collect();
    Audit {
        findings,
        rules,
        not_checked: vec![
            NotChecked {
                rule: "task-memory-far",
                reason: "tasks were not read: ask with --tasks".into(),
            },
            NotChecked {
                rule: "competing-writer",
                reason: "the sample has none".into(),
            },
        ],
        checked: vec![
            "device-without-node",
            "interrupt-far",
            "nvme-far-path",
            "node-without-memory",
        ],
    }
}

/// What became of a rule in the sample.
fn state(rule: &'static str, findings: &[Finding]) -> RuleState {
    let number = findings
        .iter()
        .filter(|finding| finding.rule == rule)
        .count();
    let state = match rule {
        _ if number > 0 => State::Found,
        "task-memory-far" | "competing-writer" => State::NotChecked,
        _ => State::NothingFound,
    };
    RuleState {
        rule,
        state,
        findings: number,
        in_part: false,
    }
}

/// Findings whose every text is an attempt on the reader.
pub fn hostile() -> Audit {
    let evil = "<script>alert('x')</script>\"&\u{1b}[2J\n";
    let mut audit = audit(2);
    for finding in &mut audit.findings {
        finding.subject = evil.to_owned();
        finding.message = evil.to_owned();
        finding.evidence.push(evidence(evil, evil));
        finding.advice = Some(evil.to_owned());
        finding.fix = Some(Change::Sysctl {
            name: evil.to_owned(),
            value: evil.to_owned(),
        });
    }
    audit.not_checked.push(NotChecked {
        rule: "interrupt-far",
        reason: evil.into(),
    });
    audit
}
