//! Which path each I/O policy takes: the cases of drivers/nvme/host/multipath.c, one by one.

use crate::common;
use crate::common::{add_subsystem, device_on_an_offline_node, list, two_nodes};
use nearfar_machine::{AnaState, CpuId, IoPolicy, Known, Machine, NodeId};
use nearfar_placement::path::{NamespacePaths, PathError, paths};

use AnaState::{Inaccessible, NonOptimized, Optimized};

const NEAR: &str = "0000:20:00.0";
const FAR: &str = "0000:40:00.0";
const THIRD: &str = "0000:60:00.0";

fn disk(policy: IoPolicy, paths: &[common::Path<'_>]) -> Machine {
    let mut machine = two_nodes();
    add_subsystem(&mut machine, "nvme-subsys0", policy, paths);
    machine
}

fn from(machine: &Machine, cpu: u32) -> NamespacePaths {
    paths(machine, "nvme-subsys0", CpuId(cpu))
        .unwrap()
        .namespaces
        .remove(0)
}

/// What each policy does, a line each, the one in force marked.
fn choices(machine: &Machine, cpu: u32) -> String {
    let namespace = from(machine, cpu);
    let line = |choice: &nearfar_placement::path::PolicyChoice| {
        let mark = if choice.current { "*" } else { " " };
        let verb = if choice.certain { "takes" } else { "one of" };
        format!(
            "{mark} {} {verb} [{}]: {}\n",
            choice.policy,
            choice.paths.join(" "),
            choice.reason
        )
    };
    let lines: String = namespace.choices.iter().map(line).collect();
    lines + &format!("nearest: {}", namespace.nearest.join(" "))
}

#[test]
fn each_node_gets_its_own_controller() {
    let machine = disk(
        IoPolicy::Numa,
        &[(NEAR, Some(0), Optimized), (FAR, Some(1), Optimized)],
    );
    insta::assert_snapshot!(choices(&machine, 0), @r"
    * numa takes [nvme0c0n1]: nvme0 is nearest to node 0, at 10
      round-robin takes [nvme0c0n1 nvme0c1n1]: each optimized path in turn, near or far
      queue-depth one of [nvme0c0n1 nvme0c1n1]: the one with the fewest commands in flight, which the source does not have; since Linux 6.11
    nearest: nvme0c0n1
    ");
    insta::assert_snapshot!(choices(&machine, 7), @r"
    * numa takes [nvme0c1n1]: nvme1 is nearest to node 1, at 10
      round-robin takes [nvme0c0n1 nvme0c1n1]: each optimized path in turn, near or far
      queue-depth one of [nvme0c0n1 nvme0c1n1]: the one with the fewest commands in flight, which the source does not have; since Linux 6.11
    nearest: nvme0c1n1
    ");
}

#[test]
fn the_ana_state_decides_before_distance() {
    let machine = disk(
        IoPolicy::RoundRobin,
        &[(NEAR, Some(0), NonOptimized), (FAR, Some(1), Optimized)],
    );
    insta::assert_snapshot!(choices(&machine, 0), @r"
      numa takes [nvme0c1n1]: only nvme0c1n1 is optimized: the ANA state decides before distance
    * round-robin takes [nvme0c1n1]: only nvme0c1n1 is optimized: the ANA state decides before distance
      queue-depth takes [nvme0c1n1]: only nvme0c1n1 is optimized: the ANA state decides before distance
    nearest: nvme0c0n1
    ");
}

#[test]
fn without_an_optimized_path_the_others_share() {
    let paths = [
        (NEAR, Some(0), NonOptimized),
        (FAR, Some(1), NonOptimized),
        (THIRD, Some(0), Inaccessible),
    ];
    insta::assert_snapshot!(choices(&disk(IoPolicy::QueueDepth, &paths), 4), @r"
      numa takes [nvme0c1n1]: nvme1 is nearest to node 1, at 10
      round-robin takes [nvme0c0n1 nvme0c1n1]: none is optimized: each usable path in turn, near or far
    * queue-depth one of [nvme0c0n1 nvme0c1n1]: the one with the fewest commands in flight, which the source does not have; since Linux 6.11
    nearest: nvme0c1n1
    ");
}

/// Case 1 under a kernel, and its release as the source has it.
fn case_1(online: u32, release: Option<&str>) -> Machine {
    let mut machine = device_on_an_offline_node(online);
    if let Some(release) = release {
        machine.origin.kernel = Known::Yes(release.to_owned());
    }
    machine
}

/// The line of the policy numa.
fn numa(machine: &Machine, cpu: u32) -> String {
    choices(machine, cpu).lines().next().unwrap().to_owned()
}

#[test]
fn case_1_a_controller_without_a_node_is_ranked_as_its_kernel_does() {
    for online in [1, 2] {
        let namespace = from(&case_1(online, None), 0);
        assert!(!namespace.choices[0].certain);
        assert_eq!(
            namespace.nearest,
            ["nvme0c0n1"],
            "the firmware's distances tell which is near"
        );
        assert_eq!(namespace.paths[1].distance.unwrap().0, 40);
        assert_eq!(namespace.paths[1].kernel_distance, None);
        let fixed = from(&case_1(online, Some("6.12.1")), 0);
        assert_eq!(fixed.paths[1].kernel_distance.unwrap().0, 10);
    }
    insta::assert_snapshot!(choices(&case_1(1, None), 0), @r"
    * numa one of [nvme0c0n1 nvme0c1n1]: the kernel has no node for nvme1: kernels with the fix (Linux 6.9, 6.1.93 and other stable releases) count it as local (10), others read any value; the kernel's release is unknown: the source does not tell
      round-robin takes [nvme0c0n1 nvme0c1n1]: each optimized path in turn, near or far
      queue-depth one of [nvme0c0n1 nvme0c1n1]: the one with the fewest commands in flight, which the source does not have; since Linux 6.11
    nearest: nvme0c0n1
    ");
    // From node 1 the controller of node 0 is at 21, the one without a node counts as local.
    insta::assert_snapshot!(numa(&case_1(2, Some("6.12.1")), 4), @"* numa takes [nvme0c1n1]: nvme1 is the nearest; the kernel has no node for nvme1: Linux 6.12.1 counts it as local (10)");
    insta::assert_snapshot!(numa(&case_1(2, Some("6.12.1")), 0), @"* numa one of [nvme0c0n1 nvme0c1n1]: all at 10 from node 0: the kernel keeps to the one it found first; the kernel has no node for nvme1: Linux 6.12.1 counts it as local (10)");
    insta::assert_snapshot!(numa(&case_1(2, Some("6.1.90")), 4), @"* numa one of [nvme0c0n1 nvme0c1n1]: the kernel has no node for nvme1: Linux 6.1.90 reads any value as its distance (fixed in 6.1.93: local, 10)");
    insta::assert_snapshot!(numa(&case_1(2, Some("6.1.0-21-amd64")), 4), @"* numa one of [nvme0c0n1 nvme0c1n1]: the kernel has no node for nvme1: kernels with the fix (Linux 6.9, 6.1.93 and other stable releases) count it as local (10), others read any value; Linux 6.1.0-21-amd64 is a distribution's: it may have the fix");
    let mut debian = case_1(2, Some("6.1.0-22-amd64"));
    debian.origin.kernel_base = Some("6.1.94".to_owned());
    insta::assert_snapshot!(numa(&debian, 4), @"* numa takes [nvme0c1n1]: nvme1 is the nearest; the kernel has no node for nvme1: Linux 6.1.0-22-amd64 (from 6.1.94) counts it as local (10)");
}

#[test]
fn a_controller_takes_io_in_two_of_its_seven_states() {
    for state in [
        "new",
        "live",
        "resetting",
        "connecting",
        "deleting",
        "deleting (no IO)",
        "dead",
    ] {
        let mut machine = disk(
            IoPolicy::Numa,
            &[(NEAR, Some(0), Optimized), (FAR, Some(1), Optimized)],
        );
        list(&mut machine.nvme)[0].controllers[0].state = Known::Yes(state.to_owned());
        let usable = from(&machine, 0).choices[0].paths == ["nvme0c0n1"];
        assert_eq!(usable, matches!(state, "live" | "deleting"), "{state}");
        // Until Linux 5.9 "deleting" was as good as dead.
        machine.origin.kernel = Known::Yes("5.8.18".to_owned());
        let usable = from(&machine, 0).choices[0].paths == ["nvme0c0n1"];
        assert_eq!(usable, state == "live", "{state}");
    }
}

#[test]
fn a_tie_is_not_decided_by_guessing() {
    let machine = disk(
        IoPolicy::Numa,
        &[(NEAR, Some(0), Optimized), (FAR, Some(0), Optimized)],
    );
    insta::assert_snapshot!(choices(&machine, 5), @r"
    * numa one of [nvme0c0n1 nvme0c1n1]: all at 21 from node 1: the kernel keeps to the one it found first
      round-robin takes [nvme0c0n1 nvme0c1n1]: each optimized path in turn, near or far
      queue-depth one of [nvme0c0n1 nvme0c1n1]: the one with the fewest commands in flight, which the source does not have; since Linux 6.11
    nearest: nvme0c0n1 nvme0c1n1
    ");
}

#[test]
fn queue_depth_follows_the_load() {
    let mut machine = disk(
        IoPolicy::QueueDepth,
        &[(NEAR, Some(0), Optimized), (FAR, Some(1), Optimized)],
    );
    let paths = &mut list(&mut machine.nvme)[0].namespaces[0].paths;
    paths[0].queue_depth = Some(31);
    paths[1].queue_depth = Some(7);
    insta::assert_snapshot!(choices(&machine, 0), @r"
      numa takes [nvme0c0n1]: nvme0 is nearest to node 0, at 10
      round-robin takes [nvme0c0n1 nvme0c1n1]: each optimized path in turn, near or far
    * queue-depth one of [nvme0c1n1]: fewest commands in flight when the source looked (7); follows the load, not distance; since Linux 6.11
    nearest: nvme0c0n1
    ");
}

#[test]
fn controllers_that_are_not_live_and_paths_without_ana() {
    let mut machine = disk(
        IoPolicy::Other("latency".into()),
        &[(NEAR, Some(0), Optimized), (FAR, Some(1), Optimized)],
    );
    let subsystem = &mut list(&mut machine.nvme)[0];
    subsystem.namespaces[0].paths[0].ana_state = Known::no("no ana_state file");
    insta::assert_snapshot!(choices(&machine, 0), @r#"
      numa takes [nvme0c0n1]: nvme0 is nearest to node 0, at 10
      round-robin takes [nvme0c0n1 nvme0c1n1]: each optimized path in turn, near or far
      queue-depth one of [nvme0c0n1 nvme0c1n1]: the one with the fewest commands in flight, which the source does not have; since Linux 6.11
    * latency one of [nvme0c0n1 nvme0c1n1]: this version does not know the policy "latency"
    nearest: nvme0c0n1
    "#);
    let subsystem = &mut list(&mut machine.nvme)[0];
    subsystem.controllers[1].state = Known::Yes("connecting".into());
    insta::assert_snapshot!(choices(&machine, 4), @r"
      numa takes [nvme0c0n1]: no other path is usable
      round-robin takes [nvme0c0n1]: no other path is usable
      queue-depth takes [nvme0c0n1]: no other path is usable
    * latency takes [nvme0c0n1]: no other path is usable
    nearest: nvme0c0n1
    ");
    list(&mut machine.nvme)[0].controllers[0].state = Known::Yes("dead".into());
    insta::assert_snapshot!(choices(&machine, 4), @r"
      numa takes []: no path is usable: I/O waits or fails
      round-robin takes []: no path is usable: I/O waits or fails
      queue-depth takes []: no path is usable: I/O waits or fails
    * latency takes []: no path is usable: I/O waits or fails
    nearest:
    ");
}

#[test]
fn a_cpu_without_a_node_leaves_numa_open() {
    let mut machine = disk(
        IoPolicy::Numa,
        &[(NEAR, Some(0), Optimized), (FAR, Some(1), Optimized)],
    );
    let without = machine.nodes[0]
        .known_cpus()
        .difference(&[CpuId(0)].into_iter().collect());
    machine.nodes[0].cpus = without.into();
    machine.cpus[0].node = None;
    insta::assert_snapshot!(choices(&machine, 0), @r"
    * numa one of [nvme0c0n1 nvme0c1n1]: the CPU's node is unknown
      round-robin takes [nvme0c0n1 nvme0c1n1]: each optimized path in turn, near or far
      queue-depth one of [nvme0c0n1 nvme0c1n1]: the one with the fewest commands in flight, which the source does not have; since Linux 6.11
    nearest:
    ");
}

#[test]
fn questions_without_an_answer_say_what_there_is() {
    let mut machine = disk(IoPolicy::Numa, &[(NEAR, Some(0), Optimized)]);
    let failure = |machine: &Machine, name: &str, cpu| {
        paths(machine, name, CpuId(cpu)).unwrap_err().to_string()
    };
    insta::assert_snapshot!(failure(&machine, "nvme-subsy0", 0), @r#"there is no NVMe subsystem "nvme-subsy0"; did you mean "nvme-subsys0"? there are: nvme-subsys0"#);
    insta::assert_snapshot!(failure(&machine, "nvme-subsys0", 99), @"CPU 99 is not in this machine; CPUs that are online: 0-7");
    machine.cpus[3].online = false.into();
    let error = paths(&machine, "nvme-subsys0", CpuId(3)).unwrap_err();
    assert!(
        matches!(
            error,
            PathError::NoCpu {
                cpu: CpuId(3),
                offline: true,
                ..
            }
        ),
        "{error}"
    );
    machine.nvme = Known::no("numactl -H shows no devices");
    insta::assert_snapshot!(failure(&machine, "nvme-subsys0", 0), @"NVMe subsystems are unknown: numactl -H shows no devices");
}

/// Since Linux 6.15 the kernel says itself which path a node uses, which decides also between equal distances.
#[test]
fn what_the_kernel_lists_as_a_nodes_path_is_its_path() {
    let both = [(NEAR, Some(0), Optimized), (FAR, Some(0), Optimized)];
    let mut machine = disk(IoPolicy::Numa, &both);
    let numa = |machine: &Machine| from(machine, 0).choices[0].clone();
    assert!(!numa(&machine).certain, "equally far");
    let namespace = &mut list(&mut machine.nvme)[0].namespaces[0];
    namespace.paths[1].numa_nodes = Some([NodeId(0)].into_iter().collect());
    let choice = numa(&machine);
    assert_eq!(choice.paths, ["nvme0c1n1"]);
    assert!(choice.certain, "{choice:?}");
}

#[test]
fn paths_that_are_unknown_are_not_unusable() {
    let mut machine = disk(IoPolicy::Numa, &[(NEAR, Some(0), Optimized)]);
    let namespace = &mut list(&mut machine.nvme)[0].namespaces[0];
    namespace.paths.clear();
    namespace.paths_unknown_reason = Some("not gathered".to_owned());
    let choice = from(&machine, 0).choices[0].clone();
    assert!(!choice.certain, "{choice:?}");
    assert_eq!(choice.reason, "the paths are unknown: not gathered");
    let found = nearfar_placement::audit::audit(&machine, &Default::default());
    let reason = "nvme-subsys0: its paths are unknown: not gathered";
    let said = |it: &nearfar_placement::audit::NotChecked| it.reason == reason;
    assert!(
        found.not_checked.iter().any(said),
        "{:#?}",
        found.not_checked
    );
}

#[test]
fn a_subsystem_is_found_by_its_controllers_and_namespaces_too() {
    let machine = disk(
        IoPolicy::Numa,
        &[(NEAR, Some(0), Optimized), (FAR, Some(1), Optimized)],
    );
    let answer = |name: &str| paths(&machine, name, CpuId(0)).unwrap();
    let whole = answer("nvme-subsys0");
    for name in ["nvme0", "nvme1", "nvme0n1", "/dev/nvme0n1"] {
        assert_eq!(answer(name), whole, "{name}");
    }
    let mut machine = machine.clone();
    let namespaces = &mut list(&mut machine.nvme)[0].namespaces;
    let mut second = namespaces[0].clone();
    second.name = "nvme0n2".to_owned();
    namespaces.push(second);
    let answer = paths(&machine, "nvme0n2", CpuId(0)).unwrap();
    let names = answer.namespaces.iter().map(|it| it.namespace.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["nvme0n2"]);
    let whole = paths(&machine, "nvme1", CpuId(0)).unwrap();
    assert_eq!(whole.namespaces.len(), 2);
}
