//! Tables of traces: what they say of a worked case, and that they fit a line whatever was traced.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::samples;
use nearfar_machine::{CpuId, CpuSet, Distance, Emulation, IoPolicy, Known, NodeId};
use nearfar_placement::locality::{EffectiveNode, How};
use nearfar_placement::path::Standing;
use nearfar_report::{Style, trace};
use nearfar_trace::migrations::{Class, Event, Migrations, Moves, Sharing};
use nearfar_trace::nvme::{
    ControllerView, Kinds, Namespace, NodeTraffic, NvmeAnswer, Submitter, Through, Unplaced,
};
use nearfar_trace::{Ended, Finished, Losses, Traced};
use unicode_width::UnicodeWidthStr as _;

const PLAIN: Style = Style {
    colour: false,
    width: 100,
};

fn traced<T>(answer: T) -> Traced<T> {
    let finished = Finished {
        elapsed: Duration::from_millis(2040),
        losses: Losses {
            occurred: 850,
            read: 850,
            ..Losses::default()
        },
        cpus_not_traced: CpuSet::new(),
    };
    let mut machine = samples::two_sockets();
    machine.origin.emulation = Some(Emulation::Label(
        "x86-case1, software emulation, no delays".to_owned(),
    ));
    let command = Ended {
        command: vec!["fio".into(), "job.fio".into()],
        exit_code: Some(0),
        signal: None,
    };
    Traced::new(finished, &machine, Some(command), answer)
}

fn reads(reads: u64) -> Kinds {
    Kinds {
        reads,
        ..Kinds::default()
    }
}

fn node(id: u32, cpus: &str, nearest: &str, through: [(u32, u64); 2], share: f64) -> NodeTraffic {
    let one = |number: usize| Through {
        path: format!("nvme0c{number}n1"),
        controller: format!("nvme{number}"),
        distance: Some(Distance(through[number].0)),
        commands: reads(through[number].1),
    };
    NodeTraffic {
        node: Some(NodeId(id)),
        cpus: cpus.parse().unwrap(),
        nearest: Known::Yes(vec![nearest.to_owned()]),
        commands: reads(through[0].1 + through[1].1),
        through: vec![one(0), one(1)],
        nearest_share: Known::Yes(share),
    }
}

/// Case 1 on x86 under kernel 6.1, as a guest showed it.
fn case1() -> NvmeAnswer {
    let evidence = "/sys/firmware/acpi/tables/DSDT".to_owned();
    let controller = |number: u32, kernel_node, locality| ControllerView {
        controller: format!("nvme{number}"),
        path: format!("nvme0c{number}n1"),
        standing: Standing::Optimized,
        kernel_node: Known::Yes(kernel_node),
        locality: Some(locality),
    };
    let guessed = How::NearestToFirmware {
        firmware: NodeId(2),
        distance: Distance(17),
        evidence,
    };
    NvmeAnswer {
        namespaces: vec![Namespace {
            namespace: "nvme0n1".to_owned(),
            subsystem: "nvme-subsys0".to_owned(),
            policy: Known::Yes(IoPolicy::Numa),
            controllers: vec![
                controller(
                    0,
                    None,
                    EffectiveNode {
                        node: Some(NodeId(1)),
                        how: guessed,
                    },
                ),
                controller(
                    1,
                    Some(NodeId(0)),
                    EffectiveNode {
                        node: Some(NodeId(0)),
                        how: How::Kernel,
                    },
                ),
            ],
            nodes: vec![
                node(0, "0-1", "nvme0c1n1", [(40, 400), (10, 0)], 0.0),
                node(1, "2-3", "nvme0c0n1", [(17, 450), (20, 0)], 1.0),
            ],
            commands: reads(850),
            nearest_share: Known::Yes(450.0 / 850.0),
        }],
        unplaced: vec![Unplaced {
            disk: String::new(),
            controller: "nvme7".to_owned(),
            commands: reads(1),
        }],
        submitters: vec![Submitter {
            pid: 151,
            name: Some("fio".to_owned()),
            cpus: "0-3".parse().unwrap(),
            commands: reads(850),
        }],
        admin_commands: 0,
        unreadable: 0,
    }
}

#[test]
fn case_1_says_who_submitted_where_and_which_controller_served_it() {
    insta::assert_snapshot!(trace::nvme(&traced(case1())).to_text(&PLAIN));
}

#[test]
fn what_is_missing_stands_at_the_top() {
    let mut lossy = traced(case1());
    lossy.losses = Losses {
        occurred: 900,
        read: 850,
        lost: 50,
        ..Losses::default()
    };
    lossy.cpus_not_traced = CpuSet::single(CpuId(3));
    lossy.command = Some(Ended {
        command: vec!["fio".into()],
        exit_code: None,
        signal: Some(9),
    });
    let text = trace::nvme(&lossy).to_text(&PLAIN);
    for says in [
        "50 of 900 events are missing",
        "offline: CPUs 3",
        "ended by signal 9",
    ] {
        assert!(text.contains(says), "{says:?} is not in\n{text}");
    }
    assert!(
        !text.contains("none lost") && !text.contains("the buffer was full"),
        "no reason given:\n{text}"
    );
    lossy.losses.unwritten = Some(0);
    assert!(
        !trace::nvme(&lossy)
            .to_text(&PLAIN)
            .contains("the buffer was full"),
        "all because the buffer was full"
    );
    lossy.losses.unwritten = Some(3);
    let text = trace::nvme(&lossy)
        .to_text(&PLAIN)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        text.contains("50 of 900 events are missing, 3 of them not recorded by the kernel"),
        "{text}"
    );
}

#[test]
fn a_share_that_is_not_known_says_why() {
    let mut answer = case1();
    answer.namespaces[0].nodes[0].nearest_share = Known::no("nothing tells where nvme1 is");
    answer.namespaces[0].nodes[0].nearest = Known::no("nothing tells where nvme1 is");
    let text = trace::nvme(&traced(answer)).to_text(&PLAIN);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("unknown: nothing tells where nvme1 is"),
        "{text}"
    );
}

#[test]
fn nearly_all_is_not_all() {
    let mut answer = case1();
    answer.namespaces[0].nodes[1].nearest_share = Known::Yes(0.99996);
    let text = trace::nvme(&traced(answer)).to_text(&PLAIN);
    assert!(text.contains("99.99 % of 450 commands"), "{text}");
}

/// A task that walks over the CPUs of a machine, one step a millisecond.
fn walk(machine: &nearfar_machine::Machine, steps: usize) -> Migrations {
    let sharing = Sharing::new(machine);
    let cpus: Vec<CpuId> = machine.cpu_states.online.iter().collect();
    let mut moves = Moves::new(sharing, true, Known::Yes(()));
    moves.adopt(4711, "a rather long n", None, 0);
    for step in 0..steps {
        let (from, to) = (
            cpus[step * 7 % cpus.len()],
            cpus[(step + 1) * 7 % cpus.len()],
        );
        moves.take(
            step as u64 * 1_000_000,
            Event::Moved {
                tid: 4711,
                name: "probe".to_owned(),
                from,
                to,
            },
        );
    }
    moves.finish(steps as u64 * 1_000_000, Known::no("not read"))
}

#[test]
fn migrations_by_class_by_node_and_by_task() {
    insta::assert_snapshot!(
        trace::migrations(&traced(walk(&samples::two_sockets(), 100))).to_text(&PLAIN)
    );
}

#[test]
fn tables_fit_their_lines_on_machines_of_every_shape() {
    for (name, machine) in samples::all() {
        let mut texts = vec![trace::migrations(&traced(walk(&machine, 300))).to_text(&PLAIN)];
        texts.push(trace::nvme(&traced(case1())).to_text(&PLAIN));
        for text in texts {
            let longest = text.lines().map(|line| line.width()).max().unwrap();
            assert!(longest <= 100, "{name}: {longest} columns\n{text}");
        }
    }
}

#[test]
fn counts_of_classes_and_of_the_matrix_agree_with_what_was_walked() {
    let machine = samples::two_sockets();
    let (sharing, found) = (Sharing::new(&machine), walk(&machine, 100));
    let cpus: Vec<CpuId> = machine.cpu_states.online.iter().collect();
    let mut counted: BTreeMap<Class, u64> = BTreeMap::new();
    for step in 0..100 {
        *counted
            .entry(sharing.class(
                cpus[step * 7 % cpus.len()],
                cpus[(step + 1) * 7 % cpus.len()],
            ))
            .or_default() += 1;
    }
    assert_eq!(
        found.migrations.cross_node,
        counted.get(&Class::CrossNode).copied().unwrap_or(0)
    );
    assert_eq!(found.migrations.total(), 100);
}
