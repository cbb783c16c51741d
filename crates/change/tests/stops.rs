//! Changes for good and for a while, of every kind that is a file, stopped at any step: killed, or answered with an error. Whoever comes
//! next leaves the system as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::simulated::{Event, NVME, Simulated};
use crate::support::{iopolicy, plan, planned, rps, sysctl, xps};
use nearfar_change::lease::{LeaseError, Leases, Recovered};
use nearfar_change::system::System as _;
use nearfar_change::{
    ApplyOptions, RollbackOptions, RollbackOutcome, Setting, Target, UndoResult, apply_with,
    rollback_with,
};
use nearfar_change::{Change, Plan};
use nearfar_machine::{CpuSet, IoPolicy, Irq, NodeId};
use proptest::prelude::*;

fn cpus() -> impl Strategy<Value = CpuSet> {
    proptest::collection::btree_set(0u32..8, 1..4)
        .prop_map(|cpus| cpus.into_iter().map(nearfar_machine::CpuId).collect())
}

/// A change of every kind but the memory of a process, which is no file (`task_memory/mover/tests.rs`). Drivers are bound again for all
/// devices or for none, as the command plans it: that of a path which keeps its driver would see the new node when the order of paths
/// is put back.
fn change(rebind: bool) -> impl Strategy<Value = Change> {
    let group = || prop_oneof![Just("busy"), Just("idle")].prop_map(str::to_owned);
    let interrupt = (10u32..14, cpus()).prop_map(|(irq, cpus)| Change::InterruptAffinity {
        irq: Irq(irq),
        cpus,
        near: Some(NodeId(1)),
        name: Some(format!("eth0-TxRx-{irq}")),
    });
    let node = (0..NVME.len(), 0u32..2).prop_map(move |(function, node)| Change::DeviceNode {
        device: NVME[function].parse().unwrap(),
        node: NodeId(node),
        rebind: rebind.then(|| "nvme".to_owned()),
    });
    prop_oneof![
        interrupt,
        node,
        cpus().prop_map(|cpus| xps(&cpus.to_string())),
        cpus().prop_map(|cpus| rps(&cpus.to_string())),
        Just(iopolicy(IoPolicy::RoundRobin)),
        (0..3u32).prop_map(|it| sysctl("kernel.numa_balancing", &it.to_string())),
        (0..3u32).prop_map(|it| sysctl("vm.zone_reclaim_mode", &it.to_string())),
        (0..3u32).prop_map(|it| Change::SchedulerDebug {
            name: "migration_cost_ns".to_owned(),
            value: it.to_string(),
        }),
        (group(), cpus()).prop_map(|(group, cpus)| Change::Cpuset { group, cpus }),
        (group(), 0u32..2).prop_map(|(group, node)| Change::CpusetMemory {
            group,
            nodes: [NodeId(node)].into_iter().collect(),
        }),
    ]
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let of = |changes: Vec<Change>| plan(changes.into_iter().map(|it| planned(it, None)).collect());
    any::<bool>().prop_flat_map(move |rebind| {
        let one = proptest::collection::vec(change(rebind), 1..6).prop_map(of);
        proptest::collection::vec(one, 1..3)
    })
}

/// What happens to a process, at which of its steps.
fn event() -> impl Strategy<Value = Option<(u64, Event)>> {
    let error = prop_oneof![Just(libc::EIO), Just(libc::ENOSPC), Just(libc::EINVAL)];
    let what = prop_oneof![3 => Just(Event::Kill), 1 => error.prop_map(Event::Fail)];
    proptest::option::weighted(0.9, (1u64..90, what))
}

fn stopped_at(system: &Simulated, event: Option<(u64, Event)>) {
    if let Some((step, event)) = event {
        system.at(step, event);
    }
}

/// Undoes the leases of processes that were killed, as far as that is possible. A program that another test of this process starts has
/// the lock of the journal until it is executed.
fn recover(
    leases: &Leases,
    system: &Simulated,
    directory: &Path,
) -> Result<Vec<Recovered>, LeaseError> {
    let is_left = || {
        let mut left = fs::read_dir(directory.join("leases")).into_iter().flatten();
        left.any(|it| {
            it.unwrap()
                .path()
                .extension()
                .is_some_and(|it| it == "journal")
        })
    };
    let mut all = Vec::new();
    for _ in 0..10_000 {
        all.extend(leases.recover_with(system)?);
        if !is_left() {
            return Ok(all);
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("a journal is left");
}

/// Undoes all of them.
fn recover_all(leases: &Leases, system: &Simulated, directory: &Path) {
    let is_as_before =
        |it: &UndoResult| matches!(it, UndoResult::Restored { .. } | UndoResult::AlreadyBefore);
    for recovered in recover(leases, system, directory).unwrap() {
        let mut undone = recovered.undone.iter();
        assert!(undone.all(|it| is_as_before(&it.result)), "{recovered:#?}");
    }
}

/// Undoes all change sets that stand.
fn undo_all(system: &Simulated, target: &Target) -> Vec<RollbackOutcome> {
    let mut outcomes = Vec::new();
    loop {
        let outcome = rollback_with(target, &RollbackOptions::default(), system).unwrap();
        if outcome.change_set.is_none() {
            return outcomes;
        }
        outcomes.push(outcome);
        assert!(outcomes.len() < 9, "it does not end: {outcomes:#?}");
    }
}

/// The system is as before; of NVMe only where nothing was said to be otherwise: an error may keep the paths from getting their order back.
fn check(system: &Simulated, before: &BTreeMap<String, String>, but_nvme: bool) {
    let counts = |path: &&String| !but_nvme || !path.contains("/nvme");
    let now = system.seen();
    for path in before.keys().chain(now.keys()).filter(counts) {
        assert_eq!(now.get(path), before.get(path), "{path}");
    }
}

fn says_something(outcome: &RollbackOutcome) -> bool {
    let is_note = |it: &UndoResult| matches!(it, UndoResult::Restored { note: Some(_), .. });
    outcome.changes.iter().any(|it| is_note(&it.result))
}

proptest! {
    #[test]
    fn whatever_stops_apply_and_rollback_the_next_rollback_completes(
        plans in plans(),
        of_apply in proptest::collection::vec(event(), 2),
        of_rollback in event(),
        atomic in any::<bool>(),
    ) {
        let system = Simulated::machine();
        let before = system.seen();
        let state = tempfile::tempdir().unwrap();
        let target = Target::live(Some(state.path().join("state")));
        // A second one goes on top of one that was killed.
        let options = ApplyOptions { atomic, force: true, ..ApplyOptions::default() };
        for (plan, event) in plans.iter().zip(of_apply) {
            stopped_at(&system, event);
            let _ = apply_with(plan, &target, &options, &system);
            system.next_process();
        }
        stopped_at(&system, of_rollback);
        let stopped = rollback_with(&target, &RollbackOptions::default(), &system);
        let is_error = matches!(of_rollback, Some((_, Event::Fail(_))));
        let but_nvme = is_error && stopped.is_ok_and(|it| says_something(&it));
        system.next_process();
        for outcome in undo_all(&system, &target) {
            assert!(outcome.is_complete(), "{outcome:#?}");
        }
        check(&system, &before, but_nvme);
    }

    #[test]
    fn whatever_stops_a_lease_and_its_recovery_the_next_one_completes(
        changes in proptest::collection::vec(change(false), 1..6),
        of_lease in event(),
        of_recovery in event(),
    ) {
        let system = Arc::new(Simulated::machine());
        let before = system.seen();
        let directory = tempfile::tempdir().unwrap();
        let leases = Leases::at(directory.path().join("leases"));
        stopped_at(&system, of_lease);
        if let Ok(mut lease) = leases.take_with("a test", system.clone()) {
            for change in &changes {
                let path = Setting::of(change).path();
                let value = nearfar_change::wanted(change, "00\n");
                let _ = lease.set_file(Path::new(&path), value.as_bytes());
            }
            // Undoes all of it, unless it was killed.
            drop(lease);
        }
        system.next_process();
        stopped_at(&system, of_recovery);
        let _ = leases.recover_with(&*system);
        system.next_process();
        recover_all(&leases, &system, directory.path());
        check(&system, &before, false);
    }
}

/// Every step of making and undoing, so that journals end with every kind of record, and torn ones.
#[test]
fn a_lease_killed_at_any_step_is_undone() {
    let changes = [
        ("/sys/fs/cgroup/busy/cpuset.cpus", "1-2\n"),
        (&node_of_first(), "1\n"),
        (&node_of_first(), "-1\n"),
        (&node_of_first(), "1\n"),
        (&node_of_first(), "-1\n"),
        ("/proc/irq/10/smp_affinity_list", "4\n"),
        ("/proc/irq/10/smp_affinity_list", "5\n"),
        ("/proc/irq/10/smp_affinity_list", "4\n"),
    ];
    let mut ends: BTreeSet<&str> = BTreeSet::new();
    for step in 1.. {
        let (system, directory, leases) = leases();
        let before = system.seen();
        system.at(step, Event::Kill);
        if let Ok(mut lease) = leases.take_with("a test", system.clone()) {
            for (path, value) in changes {
                let _ = lease.set_file(Path::new(path), value.as_bytes());
            }
        }
        let is_killed = system.is_killed();
        system.next_process();
        for journal in fs::read_dir(directory.path().join("leases")).unwrap() {
            let text = fs::read_to_string(journal.unwrap().path()).unwrap();
            let last = text.lines().last().unwrap_or_default();
            let kinds = ["intent", "done", "undoing", "undone"];
            ends.extend(match text.ends_with('\n') {
                true => kinds
                    .into_iter()
                    .find(|it| last.contains(&format!("\"{it}\":"))),
                false => Some("torn"),
            });
        }
        recover_all(&leases, &system, directory.path());
        assert_eq!(system.seen(), before, "killed at step {step}");
        if !is_killed {
            break;
        }
    }
    assert_eq!(ends.len(), 5, "{ends:?}");
}

/// A plan that binds the first function again after its node was set.
fn other_node() -> Plan {
    let change = Change::DeviceNode {
        device: NVME[0].parse().unwrap(),
        node: NodeId(1),
        rebind: Some("nvme".to_owned()),
    };
    plan(vec![planned(change, None)])
}

#[test]
fn paths_that_another_unbound_stay_unbound() {
    let system = Simulated::machine();
    let state = tempfile::tempdir().unwrap();
    let target = Target::live(Some(state.path().join("state")));
    apply_with(&other_node(), &target, &ApplyOptions::default(), &system).unwrap();
    system.write(UNBIND, NVME[2].as_bytes()).unwrap();
    let undone = rollback_with(&target, &RollbackOptions::default(), &system).unwrap();
    assert!(undone.is_complete(), "{undone:#?}");
    let is_bound: Vec<bool> = system.drivers().iter().map(Option::is_some).collect();
    assert_eq!(is_bound, [true, true, false]);
}

#[test]
fn a_killed_rollback_leaves_no_path_unbound_although_the_disk_is_in_use_then() {
    for step in 1.. {
        let system = Simulated::machine();
        let state = tempfile::tempdir().unwrap();
        let target = Target::live(Some(state.path().join("state")));
        apply_with(&other_node(), &target, &ApplyOptions::default(), &system).unwrap();
        system.at(step, Event::Kill);
        let undone = rollback_with(&target, &RollbackOptions::default(), &system);
        let is_whole = undone.is_ok() && !system.is_killed();
        system.next_process();
        system.claim_disk();
        undo_all(&system, &target);
        assert!(!system.drivers().contains(&None), "killed at step {step}");
        if is_whole {
            assert!(step > 20, "rollback had only {step} steps");
            break;
        }
    }
}

fn node_of_first() -> String {
    format!("/sys/bus/pci/devices/{}/numa_node", NVME[0])
}

/// Leases of a simulated machine, and its directory.
fn leases() -> (Arc<Simulated>, tempfile::TempDir, Leases) {
    let directory = tempfile::tempdir().unwrap();
    let leases = Leases::at(directory.path().join("leases"));
    (Arc::new(Simulated::machine()), directory, leases)
}

const UNBIND: &str = "/sys/bus/pci/drivers/nvme/unbind";

#[test]
fn a_lease_that_ends_leaves_paths_unbound_that_another_unbound() {
    let (system, _directory, leases) = leases();
    let mut lease = leases.take_with("a test", system.clone()).unwrap();
    for node in ["1", "-1"] {
        let file = node_of_first();
        lease.set_file(Path::new(&file), node.as_bytes()).unwrap();
    }
    system.write(UNBIND, NVME[2].as_bytes()).unwrap();
    drop(lease);
    assert_eq!(system.drivers()[2], None);
}

/// A lease whose journal stays for another file does not look at nodes again that it has put back.
#[test]
fn a_node_that_was_put_back_is_left_alone_while_another_file_fails() {
    const AFFINITY: &str = "/proc/irq/10/smp_affinity_list";
    let mut left = 0;
    for step in 1..200 {
        let (system, _directory, leases) = leases();
        let before = system.seen();
        let mut lease = leases.take_with("a test", system.clone()).unwrap();
        lease.set_file(Path::new(AFFINITY), b"4").unwrap();
        for node in ["1", "-1", "1"] {
            lease
                .set_file(Path::new(&node_of_first()), node.as_bytes())
                .unwrap();
        }
        system.at(step, Event::Fail(libc::EIO));
        drop(lease);
        let now = system.seen();
        let differs = |path: &&String| before.get(*path) != now.get(*path);
        let changed: Vec<&String> = before.keys().filter(differs).collect();
        if changed != [AFFINITY] {
            continue;
        }
        left += 1;
        system.write(UNBIND, NVME[2].as_bytes()).unwrap();
        // Another test's program may have the lock of the journal for a moment.
        for _ in 0..10_000 {
            if !leases.recover_with(&*system).unwrap().is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(
            system.seen().get(AFFINITY),
            before.get(AFFINITY),
            "step {step}"
        );
        assert_eq!(system.drivers()[2], None, "step {step}");
    }
    assert!(left > 0);
}

#[test]
fn a_path_that_no_driver_takes_keeps_no_other_function_unbound() {
    for step in 1.. {
        let (system, directory, leases) = leases();
        let mut lease = leases.take_with("a test", system.clone()).unwrap();
        lease.set_file(Path::new(&node_of_first()), b"1").unwrap();
        system.write(UNBIND, NVME[2].as_bytes()).unwrap();
        system.dies(NVME[2]);
        system.at(step, Event::Kill);
        drop(lease);
        if !system.is_killed() {
            assert!(step > 5, "undoing had only {step} steps");
            break;
        }
        system.next_process();
        let _ = recover(&leases, &system, directory.path());
        assert!(system.drivers()[0].is_some(), "killed at step {step}");
    }
}

#[test]
fn the_order_of_paths_is_restored_although_they_appear_late() {
    for step in 1.. {
        let system = Simulated::machine();
        let before = system.seen();
        let state = tempfile::tempdir().unwrap();
        let target = Target::live(Some(state.path().join("state")));
        apply_with(&other_node(), &target, &ApplyOptions::default(), &system).unwrap();
        system.scans_late();
        system.at(step, Event::Kill);
        let _ = rollback_with(&target, &RollbackOptions::default(), &system);
        let is_killed = system.is_killed();
        system.next_process();
        undo_all(&system, &target);
        assert_eq!(system.seen(), before, "killed at step {step}");
        if !is_killed {
            assert!(step > 20, "rollback had only {step} steps");
            break;
        }
    }
}

#[test]
fn a_lease_on_a_group_that_is_gone_with_its_mount_is_settled() {
    let (system, _directory, leases) = leases();
    let mut lease = leases.take_with("a test", system.clone()).unwrap();
    let file = Path::new("/sys/fs/cgroup/idle/cpuset.cpus");
    lease.set_file(file, b"1").unwrap();
    system.at(1, Event::Kill);
    drop(lease);
    system.next_process();
    system.unmount_groups();
    let recovered = leases.recover_with(&*system).unwrap();
    let undone: Vec<&UndoResult> = recovered
        .iter()
        .flat_map(|it| &it.undone)
        .map(|it| &it.result)
        .collect();
    assert_eq!(undone, [&UndoResult::Gone]);
    assert!(leases.recover_with(&*system).unwrap().is_empty());
}
