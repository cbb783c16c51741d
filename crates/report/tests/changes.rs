//! Plans, outcomes and histories as tables.

use nearfar_change::{
    Applied, ChangeSet, ChangeSetId, ChangeSetState, ChangeSetWrite, Effective, Outcome, Reverted,
    RollbackOutcome, Setting, Tried, UndoResult, WriteState,
};
use nearfar_change::{Change, DistanceChange, LeftAlone, PLAN_FORMAT, Plan, Planned};
use nearfar_machine::{CpuId, CpuSet, Distance, IoPolicy, Irq, NodeId};
use nearfar_report::{Style, outcome, plan};

const PLAIN: Style = Style {
    colour: false,
    width: 100,
};

fn interrupt(irq: u32, cpu: u32) -> Change {
    let cpus = CpuSet::single(CpuId(cpu));
    Change::InterruptAffinity {
        irq: Irq(irq),
        cpus,
        near: Some(NodeId(0)),
        name: Some(format!("ens5f0-{cpu}")),
    }
}

fn device() -> Change {
    Change::DeviceNode {
        device: "0000:d8:00.0".parse().unwrap(),
        node: NodeId(1),
        rebind: None,
    }
}

fn planned(change: Change, before: &str, rule: &str, reason: &str) -> Planned {
    let distance = Some(DistanceChange {
        now: Some(Distance(21)),
        after: Some(Distance(10)),
    });
    Planned {
        change,
        before: Some(before.to_owned()),
        rule: rule.to_owned(),
        owner: None,
        reason: reason.to_owned(),
        distance,
        estimate: None,
    }
}

fn sample_plan() -> Plan {
    let far = "the interrupts of ens5f0 are served on node 1, its device is on node 0";
    let policy = Change::NvmeIoPolicy {
        subsystem: "nvme-subsys0".to_owned(),
        policy: IoPolicy::QueueDepth,
    };
    let alone = |irq: u32| LeftAlone {
        subject: format!("interrupt {irq} (nvme0q{irq})"),
        rule: "interrupt-managed".to_owned(),
        reason: "the kernel manages its affinity".to_owned(),
    };
    Plan {
        plan_format: PLAN_FORMAT,
        host: Some("db1.example.org".to_owned()),
        boot: None,
        nodes: Vec::new(),
        changes: vec![
            planned(interrupt(40, 0), "16", "interrupt-far", far),
            planned(interrupt(41, 1), "17", "interrupt-far", far),
            planned(
                device(),
                "-1",
                "device-without-node",
                "the firmware puts its host bridge on node 1",
            ),
            planned(
                policy,
                "numa",
                "nvme-far-path",
                "one of two paths is never used",
            ),
        ],
        not_checked: Vec::new(),
        left_alone: (60..70).map(alone).collect(),
        nearest: Vec::new(),
    }
}

fn affinity(irq: u32) -> Setting {
    Setting::of(&interrupt(irq, 0))
}

#[test]
fn a_plan_shows_value_distance_and_file_of_each_change() {
    insta::assert_snapshot!(plan::document(&sample_plan()).to_text(&PLAIN));
    let nothing = Plan {
        changes: Vec::new(),
        left_alone: Vec::new(),
        host: None,
        ..sample_plan()
    };
    assert_eq!(
        plan::document(&nothing).to_text(&PLAIN).trim(),
        "Nothing to change"
    );
    let unknown = Plan {
        not_checked: vec!["task-memory-far".to_owned()],
        ..nothing
    };
    assert_eq!(
        plan::document(&unknown).to_text(&PLAIN).trim(),
        "Nothing to change\n  Not checked for want of input: task-memory-far"
    );
}

#[test]
fn an_outcome_says_what_was_made_and_how_to_undo_it() {
    let tried = |change: Change, result| Tried {
        file: Setting::of(&change).path(),
        change,
        result,
    };
    let made = Applied::Made {
        before: "16".to_owned(),
        after: "2".to_owned(),
        effective: Some(Effective::WithTheNextInterrupt {
            cpus: "16".to_owned(),
        }),
        note: Some("CPU 0 had no vector left".to_owned()),
    };
    let results = vec![
        tried(interrupt(40, 0), made),
        tried(
            interrupt(41, 1),
            Applied::AlreadySo {
                now: "1".to_owned(),
            },
        ),
        tried(
            interrupt(60, 1),
            Applied::LeftAlone {
                reason: "managed by the kernel (EIO)".to_owned(),
            },
        ),
        tried(
            device(),
            Applied::Failed {
                error: "writing 1: Permission denied; run as root".to_owned(),
            },
        ),
    ];
    let outcome = Outcome {
        change_set: Some(ChangeSetId(7)),
        changes: results,
        undone_reason: None,
        stopped_reason: None,
        notes: vec!["irqbalance is running and will move interrupts again".to_owned()],
    };
    let text = outcome::document(&outcome, &[], "").to_text(&PLAIN);
    assert!(text.contains("nearfar rollback --change 7"), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_rollback_says_what_it_did_not_touch() {
    let reverted = |irq: u32, result| {
        let setting = affinity(irq);
        Reverted {
            file: setting.path(),
            setting,
            result,
        }
    };
    let outcome = RollbackOutcome {
        change_set: Some(ChangeSetId(7)),
        changes: vec![
            reverted(
                41,
                UndoResult::ChangedSince {
                    now: "5".to_owned(),
                    by_change_set: None,
                },
            ),
            reverted(
                40,
                UndoResult::Restored {
                    from: "2".to_owned(),
                    to: "16".to_owned(),
                    note: None,
                },
            ),
        ],
        notes: Vec::new(),
    };
    insta::assert_snapshot!(outcome::rollback(&outcome).to_text(&PLAIN));
}

#[test]
fn a_history_begins_with_the_latest_run() {
    let change = |irq: u32| ChangeSetWrite {
        setting: affinity(irq),
        file: format!("/proc/irq/{irq}/smp_affinity_list"),
        old: "16".to_owned(),
        new: "0".to_owned(),
        state: WriteState::Made,
    };
    let run = |number: u64, state, writes: u32| ChangeSet {
        change_set: ChangeSetId(number),
        label: None,
        at_s: 1_795_225_560,
        host: Some("db1".to_owned()),
        plan: None,
        pid: Some(1),
        state,
        in_force: writes as usize,
        changes: (0..writes).map(change).collect(),
    };
    let unreadable = ChangeSetState::Unreadable {
        reason: "/var/lib/nearfar/3: line 2 is cut off".to_owned(),
    };
    let runs = [
        run(1, ChangeSetState::Undone, 1),
        run(2, ChangeSetState::Made, 14),
        run(3, unreadable, 0),
    ];
    insta::assert_snapshot!(outcome::history(&runs, "").to_text(&PLAIN));
    assert!(
        outcome::history(&[], "")
            .to_text(&PLAIN)
            .contains("nearfar has changed nothing here")
    );
}

/// A change set of these writes.
fn change_set(number: u64, state: ChangeSetState, changes: Vec<ChangeSetWrite>) -> ChangeSet {
    let is_made = |it: &&ChangeSetWrite| it.state == WriteState::Made;
    ChangeSet {
        change_set: ChangeSetId(number),
        label: None,
        at_s: 0,
        host: None,
        plan: None,
        pid: None,
        state,
        in_force: changes.iter().filter(is_made).count(),
        changes,
    }
}

fn write(setting: Setting, state: WriteState) -> ChangeSetWrite {
    ChangeSetWrite {
        file: setting.path(),
        setting,
        old: "00".to_owned(),
        new: "21".to_owned(),
        state,
    }
}

#[test]
fn the_command_that_undoes_an_interrupted_run_names_its_target() {
    let run = change_set(3, ChangeSetState::Interrupted, Vec::new());
    let text = outcome::history(&[run], " --root tree").to_text(&PLAIN);
    assert!(
        text.contains("`nearfar rollback --root tree --change 3` undoes it"),
        "{text}"
    );
}

#[test]
fn a_run_whose_devices_and_processes_are_gone_is_not_called_undone() {
    let memory = Setting::of(&Change::TaskMemory {
        pid: 4711,
        from: [NodeId(0)].into_iter().collect(),
        to: NodeId(1),
        shared: false,
    });
    let gone = || {
        let settings = [affinity(40), memory.clone()];
        settings.map(|setting| write(setting, WriteState::Gone))
    };
    let all = change_set(8, ChangeSetState::Gone, gone().into());
    let text = outcome::history(&[all], "").to_text(&PLAIN);
    assert!(
        text.contains("Change set 8  gone: there was nothing left to undo"),
        "{text}"
    );
    assert!(
        text.contains("the process has ended or runs another program"),
        "{text}"
    );
    assert!(text.contains("the file is no longer there"), "{text}");
    let [first, _] = gone();
    let part = vec![first, write(affinity(41), WriteState::Undone)];
    let part = change_set(8, ChangeSetState::Undone, part);
    let text = outcome::history(&[part], "").to_text(&PLAIN);
    assert!(
        text.contains("Change set 8  undone, 1 gone, 2 writes"),
        "{text}"
    );
}

#[test]
fn a_run_in_force_in_part_is_counted_and_masks_are_lists() {
    let setting = |queue: u32| {
        Setting::at(&format!("/sys/class/net/eth0/queues/tx-{queue}/xps_cpus")).unwrap()
    };
    let states = [
        WriteState::Made,
        WriteState::Undone,
        WriteState::ChangedSince {
            now: "ff".to_owned(),
            by_change_set: Some(ChangeSetId(9)),
        },
        WriteState::Failed {
            error: "no such CPU".to_owned(),
        },
        WriteState::Made,
        WriteState::Gone,
    ];
    let queues = (0..).map(setting).zip(states);
    let writes = queues.map(|(setting, state)| write(setting, state));
    let run = change_set(8, ChangeSetState::Made, writes.collect());
    let text = outcome::history(&[run], "").to_text(&PLAIN);
    assert!(
        text.contains("2 of 5 changes in force, 1 undone, 1 changed since, 1 gone"),
        "{text}"
    );
    assert!(
        text.contains("none    0,5") && text.contains("changed by change set 9 since: 0-7"),
        "{text}"
    );
}

#[test]
fn masks_are_lists_in_every_table() {
    let change = Change::Xps {
        interface: "eth0".to_owned(),
        queue: 3,
        cpus: "0,5".parse().unwrap(),
    };
    let setting = Setting::of(&change);
    let plan = Plan {
        changes: vec![Planned {
            distance: None,
            ..planned(change.clone(), "00000000,000000ff", "xps-mismatch", "why")
        }],
        left_alone: Vec::new(),
        ..sample_plan()
    };
    let made = Applied::Made {
        before: "00000000,000000ff".to_owned(),
        after: "21".to_owned(),
        effective: None,
        note: None,
    };
    let tried = |result| Tried {
        file: setting.path(),
        change: change.clone(),
        result,
    };
    let outcome = Outcome {
        change_set: None,
        changes: vec![
            tried(made),
            tried(Applied::AlreadySo {
                now: "21".to_owned(),
            }),
            tried(Applied::Undone {
                now: "00000000,000000ff".to_owned(),
            }),
        ],
        undone_reason: None,
        stopped_reason: None,
        notes: Vec::new(),
    };
    let reverted = |result| Reverted {
        file: setting.path(),
        setting: setting.clone(),
        result,
    };
    let rollback = RollbackOutcome {
        change_set: None,
        changes: vec![
            reverted(UndoResult::Restored {
                from: "21".to_owned(),
                to: "000000ff".to_owned(),
                note: None,
            }),
            reverted(UndoResult::ChangedSince {
                now: "000000ff".to_owned(),
                by_change_set: None,
            }),
        ],
        notes: Vec::new(),
    };
    for text in [
        plan::document(&plan).to_text(&PLAIN),
        outcome::document(&outcome, &[], "").to_text(&PLAIN),
        outcome::rollback(&rollback).to_text(&PLAIN),
    ] {
        assert!(
            text.contains("0-7")
                && text.contains("0,5")
                && !text.contains("ff")
                && !text.contains("21 "),
            "{text}"
        );
    }
}
