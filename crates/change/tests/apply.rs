//! What apply makes of a plan, change by change.

use crate::support;
use crate::support::kernel::Kernel;
use crate::support::*;
use nearfar_change::Plan;
use nearfar_change::{
    Applied, ApplyError, ApplyOptions, Effective, Outcome, PlanError, apply, apply_with, history,
};
use nearfar_machine::IoPolicy;

const IRQ_10: &str = "/proc/irq/10/smp_affinity_list";
const IRQ_11: &str = "/proc/irq/11/smp_affinity_list";
const IRQ_12: &str = "/proc/irq/12/smp_affinity_list";

fn run(tree: &Tree, plan: &Plan, kernel: &Kernel) -> Outcome {
    apply_with(plan, &tree.target(), &ApplyOptions::default(), kernel).unwrap()
}

#[test]
fn every_kind_of_change_is_written_as_the_kernel_writes_it() {
    let tree = Tree::machine();
    let outcome = apply(
        &plan_of_all_kinds(),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(tree.get(IRQ_10), "4\n");
    assert_eq!(tree.get(IRQ_11), "0-3,5,7\n");
    assert_eq!(
        tree.get("/sys/class/net/eth0/queues/tx-0/xps_cpus"),
        "00000000,00000030\n"
    );
    assert_eq!(
        tree.get("/sys/class/net/eth0/queues/rx-0/rps_cpus"),
        "00000000,00000010\n"
    );
    assert_eq!(
        tree.get("/sys/class/nvme-subsystem/nvme-subsys0/iopolicy"),
        "round-robin\n"
    );
    assert_eq!(
        tree.get("/sys/bus/pci/devices/0000:3b:00.0/numa_node"),
        "1\n"
    );
    assert_eq!(tree.get("/proc/sys/kernel/numa_balancing"), "0\n");
}

#[test]
fn a_second_apply_finds_everything_in_place_and_leaves_no_run() {
    let tree = Tree::machine();
    apply(
        &plan_of_all_kinds(),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    let again = apply(
        &plan_of_all_kinds(),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    assert_eq!(again.change_set, None);
    assert!(
        again
            .changes
            .iter()
            .all(|tried| matches!(tried.result, Applied::AlreadySo { .. }))
    );
    assert_eq!(history(&tree.target()).unwrap().len(), 1);
}

#[test]
fn what_changed_since_the_plan_is_left_alone_unless_forced() {
    let tree = Tree::machine();
    tree.put(IRQ_10, "2\n");
    let plan = plan(vec![planned(interrupt(10, "4"), Some("0-7"))]);
    let outcome = apply(&plan, &tree.target(), &ApplyOptions::default()).unwrap();
    let Applied::LeftAlone { reason } = &outcome.changes[0].result else {
        panic!("{outcome:?}")
    };
    assert!(
        reason.contains("\"0-7\"") && reason.contains("\"2\""),
        "{reason}"
    );
    assert_eq!(tree.get(IRQ_10), "2\n");
    let forced = ApplyOptions {
        force: true,
        ..ApplyOptions::default()
    };
    assert!(apply(&plan, &tree.target(), &forced).unwrap().is_complete());
    assert_eq!(tree.get(IRQ_10), "4\n");
}

#[test]
fn the_value_before_counts_by_what_it_means() {
    let tree = Tree::machine();
    let plan = plan(vec![
        planned(interrupt(10, "4"), Some("0,1,2,3,4,5,6,7")),
        planned(xps("4"), Some("ff")),
    ]);
    assert!(
        apply(&plan, &tree.target(), &ApplyOptions::default())
            .unwrap()
            .is_complete()
    );
}

#[test]
fn without_vectors_the_next_nearest_cpu_that_no_other_interrupt_uses_is_taken() {
    let tree = Tree::machine();
    let mut kernel = Kernel::over(&tree.root());
    kernel.full = cpus("4-5");
    let plan = plan(vec![
        planned(interrupt(10, "4"), None),
        planned(interrupt(11, "6"), None),
    ]);
    let outcome = run(&tree, &plan, &kernel);
    let Applied::Made {
        after,
        note: Some(note),
        ..
    } = &outcome.changes[0].result
    else {
        panic!("{outcome:?}")
    };
    // 5 is full too, 6 is where the plan sends interrupt 11.
    assert_eq!(after, "7");
    assert!(note.contains("CPU 7 is the next nearest"), "{note}");
    assert_eq!(
        (tree.get(IRQ_10), tree.get(IRQ_11)),
        ("7\n".into(), "6\n".into())
    );
    let run = &history(&tree.target()).unwrap()[0];
    assert_eq!(
        run.changes
            .iter()
            .filter(|change| change.new == "7")
            .count(),
        1
    );
}

#[test]
fn when_no_cpu_has_a_vector_it_says_so_and_each_cpu_was_tried_once() {
    let tree = Tree::machine();
    let mut kernel = Kernel::over(&tree.root());
    kernel.full = cpus("0-7");
    let plan = plan(vec![
        planned(interrupt(10, "4"), None),
        planned(interrupt(11, "5"), None),
    ]);
    let outcome = run(&tree, &plan, &kernel);
    for tried in &outcome.changes {
        let Applied::Failed { error } = &tried.result else {
            panic!("{outcome:?}")
        };
        assert!(error.contains("no interrupt vector left"), "{error}");
    }
    assert_eq!(kernel.log().len(), 8 + 1, "{:?}", kernel.log());
    assert_eq!(tree.get(IRQ_10), "0-7\n");
}

#[test]
fn managed_interrupts_are_left_alone_and_the_others_made() {
    let tree = Tree::machine();
    let mut kernel = Kernel::over(&tree.root());
    kernel.refuses.insert(IRQ_10.into(), libc::EIO);
    kernel.refuses.insert(IRQ_11.into(), libc::EPERM);
    let changes = [10, 11, 12].map(|irq| planned(interrupt(irq, "4"), None));
    let outcome = run(&tree, &plan(changes.into()), &kernel);
    for tried in &outcome.changes[..2] {
        let Applied::LeftAlone { reason } = &tried.result else {
            panic!("{outcome:?}")
        };
        assert!(
            reason.contains("the kernel manages this interrupt"),
            "{reason}"
        );
    }
    assert!(matches!(outcome.changes[2].result, Applied::Made { .. }));
    assert_eq!(tree.get(IRQ_12), "4\n");
}

#[test]
fn the_effective_affinity_is_told_apart_from_the_wanted_one() {
    let tree = Tree::machine();
    let late = run(
        &tree,
        &plan(vec![planned(interrupt(10, "4"), None)]),
        &Kernel::over(&tree.root()),
    );
    let effective = |outcome: &Outcome| match &outcome.changes[0].result {
        Applied::Made { effective, .. } => effective.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        effective(&late),
        Some(Effective::WithTheNextInterrupt { cpus: "0".into() })
    );
    let mut kernel = Kernel::over(&tree.root());
    kernel.remaps = true;
    let at_once = run(
        &tree,
        &plan(vec![planned(interrupt(11, "4-5"), None)]),
        &kernel,
    );
    assert_eq!(
        effective(&at_once),
        Some(Effective::Now { cpus: "4-5".into() })
    );
}

#[test]
fn a_write_that_the_file_does_not_show_is_taken_back() {
    let tree = Tree::machine();
    let mut kernel = Kernel::over(&tree.root());
    let policy = "/sys/class/nvme-subsystem/nvme-subsys0/iopolicy";
    kernel.shows.insert(policy.into(), "numa\n".into());
    let outcome = run(
        &tree,
        &plan(vec![planned(iopolicy(IoPolicy::QueueDepth), None)]),
        &kernel,
    );
    let Applied::Failed { error } = &outcome.changes[0].result else {
        panic!("{outcome:?}")
    };
    assert!(
        error.contains("the file shows \"numa\"") && error.contains("old value is back"),
        "{error}"
    );
}

#[test]
fn atomic_undoes_what_was_made_before_the_change_that_failed() {
    let tree = Tree::machine();
    let before = tree.files();
    let mut kernel = Kernel::over(&tree.root());
    kernel.refuses.insert(IRQ_12.into(), libc::EINVAL);
    let atomic = ApplyOptions {
        atomic: true,
        ..ApplyOptions::default()
    };
    let outcome = apply_with(&plan_of_all_kinds(), &tree.target(), &atomic, &kernel).unwrap();
    assert!(
        outcome.undone_reason.as_ref().unwrap().contains("change 3"),
        "{outcome:?}"
    );
    assert!(matches!(outcome.changes[0].result, Applied::Undone { .. }));
    assert!(matches!(outcome.changes[2].result, Applied::Failed { .. }));
    assert!(matches!(
        outcome.changes[3].result,
        Applied::LeftAlone { .. }
    ));
    assert_eq!(tree.files(), before);
}

#[test]
fn an_interruption_undoes_the_run() {
    let tree = Tree::machine();
    let before = tree.files();
    let cancel = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let options = ApplyOptions {
        cancel: Some(cancel),
        ..ApplyOptions::default()
    };
    let outcome = apply(&plan_of_all_kinds(), &tree.target(), &options).unwrap();
    assert_eq!(outcome.undone_reason.as_deref(), Some("interrupted"));
    assert_eq!(tree.files(), before);
}

#[test]
fn an_interruption_in_the_middle_undoes_what_was_made() {
    let tree = Tree::machine();
    let before = tree.files();
    let cancel = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut kernel = Kernel::over(&tree.root());
    kernel.interrupted_after = Some((3, cancel.clone()));
    let options = ApplyOptions {
        cancel: Some(cancel),
        ..ApplyOptions::default()
    };
    let outcome = apply_with(&plan_of_all_kinds(), &tree.target(), &options, &kernel).unwrap();
    let count = |undone: bool| {
        let is =
            |it: &&nearfar_change::Tried| matches!(it.result, Applied::Undone { .. }) == undone;
        outcome.changes.iter().filter(is).count()
    };
    assert_eq!((count(true), count(false)), (3, 5), "{outcome:#?}");
    assert_eq!(tree.files(), before);
    assert_eq!(
        history(&tree.target()).unwrap()[0].state,
        nearfar_change::ChangeSetState::Undone
    );
}

#[test]
fn plans_of_another_format_or_host_or_with_two_words_on_one_file_are_refused() {
    let tree = Tree::machine();
    let refuse = |plan: &Plan| match apply(plan, &tree.target(), &ApplyOptions::default()) {
        Err(ApplyError::Plan(error)) => error,
        other => panic!("{other:?}"),
    };
    let mut other = plan(vec![planned(interrupt(10, "4"), None)]);
    other.host = Some("elsewhere".into());
    assert!(matches!(refuse(&other), PlanError::OtherHost { .. }));
    other.plan_format = 2;
    assert_eq!(refuse(&other), PlanError::Format { found: 2 });
    let twice = plan(vec![
        planned(interrupt(10, "4"), None),
        planned(interrupt(10, "5"), None),
    ]);
    assert!(matches!(
        refuse(&twice),
        PlanError::Twice {
            first: 1,
            second: 2,
            ..
        }
    ));
    let no_cpus = plan(vec![planned(interrupt(10, ""), None)]);
    assert!(refuse(&no_cpus).to_string().contains("no CPU to serve it"));
    assert!(
        !tree.at("/var").exists(),
        "a refused plan leaves nothing behind"
    );
}

#[test]
fn names_in_a_hostile_plan_lead_nowhere() {
    let tree = Tree::machine();
    let before = tree.files();
    let hostile = [
        sysctl("kernel.core_pattern", "x"),
        sysctl("kernel/../../etc.passwd", "x"),
        sysctl("kernel.numa_balancing", "1\n2"),
        support::iopolicy(IoPolicy::Other("a b".into())),
        device_node(0, Some("../../../etc")),
        nearfar_change::Change::Xps {
            interface: "..".into(),
            queue: 0,
            cpus: cpus("0"),
        },
        nearfar_change::Change::NvmeIoPolicy {
            subsystem: "../x".into(),
            policy: IoPolicy::Numa,
        },
    ];
    for change in hostile {
        let refused = apply(
            &plan(vec![planned(change, None)]),
            &tree.target(),
            &ApplyOptions::default(),
        );
        assert!(
            matches!(
                refused,
                Err(ApplyError::Plan(PlanError::Change { number: 1, .. }))
            ),
            "{refused:?}"
        );
    }
    assert_eq!(tree.files(), before);
}

#[test]
fn what_does_not_exist_is_named_and_the_rest_goes_on() {
    let tree = Tree::machine();
    let plan = plan(vec![
        planned(interrupt(99, "4"), None),
        planned(interrupt(10, "4"), None),
    ]);
    let outcome = apply(&plan, &tree.target(), &ApplyOptions::default()).unwrap();
    let Applied::Failed { error } = &outcome.changes[0].result else {
        panic!("{outcome:?}")
    };
    assert!(error.contains("no such interrupt"), "{error}");
    assert_eq!(tree.get(IRQ_10), "4\n");
}
