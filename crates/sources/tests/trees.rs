//! Machines of every odd shape, read from small trees and compared with what is known to be in them.

use crate::dump;
use crate::small_trees;
use nearfar_machine::{CpuId, Distance, Known, Machine, NodeId};
use nearfar_sources::tree::Tree;
use nearfar_sources::{Want, sysfs};

fn read(text: &str) -> (Machine, String) {
    let (root, _) = small_trees::unpack(text);
    let tree = Tree::at(root.path()).expect("the root can be opened");
    let machine = sysfs::read(&tree, &Want::topology()).expect("there are CPUs");
    assert_eq!(machine.check(), Vec::<String>::new());
    let place = format!("{}/", root.path().display());
    (machine, place)
}

#[test]
fn every_machine_reads_as_its_golden_file_says() {
    for (name, text) in small_trees::all() {
        let (machine, place) = read(&text);
        insta::assert_snapshot!(name, dump::dump(&machine, &place));
    }
}

#[test]
fn a_row_of_the_wrong_length_leaves_a_hole_and_a_diagnostic() {
    let (machine, _) = read(&small_trees::named("asymmetric-distances"));
    assert_eq!(machine.distance(NodeId(0), NodeId(1)), Some(Distance(20)));
    assert_eq!(machine.distance(NodeId(1), NodeId(0)), Some(Distance(16)));
    assert_eq!(machine.distance(NodeId(2), NodeId(0)), None);
    assert!(
        machine
            .warnings
            .iter()
            .any(|found| found.place.ends_with("node2/distance"))
    );
}

#[test]
fn nodes_that_share_cpus_both_have_them_and_the_cpus_count_as_the_lower_nodes() {
    let (machine, _) = read(&small_trees::named("nodes-that-share-cpus"));
    assert_eq!(machine.nodes[1].cpus, machine.nodes[0].cpus);
    assert!(machine.cpus.iter().all(|cpu| cpu.node == Some(NodeId(0))));
    assert_eq!(machine.warnings.len(), 1);
}

#[test]
fn a_list_that_contradicts_the_mask_is_named() {
    let text = small_trees::named("two-nodes") + "sys/devices/system/node/node1/cpulist: 0-3\n";
    let (machine, _) = read(&text);
    assert_eq!(machine.node_of(CpuId(2)), Some(NodeId(1)));
    assert_eq!(
        machine.node(NodeId(1)).unwrap().known_cpus().to_string(),
        "2-3,6-7"
    );
    assert!(
        machine
            .warnings
            .iter()
            .any(|found| found.place.ends_with("node1/cpulist"))
    );
}

#[test]
fn what_is_no_tree_says_which_directory_is_wanted() {
    let empty = tempfile::tempdir().unwrap();
    let tree = Tree::at(empty.path()).unwrap();
    let error = sysfs::read(&tree, &Want::topology())
        .unwrap_err()
        .to_string();
    assert!(error.contains("holds `sys` and `proc`"), "{error}");
}

#[test]
fn links_out_of_the_tree_stay_in_it() {
    let (root, _) = small_trees::unpack(&small_trees::named("only-cpuinfo"));
    std::fs::create_dir_all(root.path().join("sys/devices/system")).unwrap();
    std::os::unix::fs::symlink(
        "/sys/devices/system/cpu",
        root.path().join("sys/devices/system/cpu"),
    )
    .unwrap();
    std::os::unix::fs::symlink(
        "../../../../../../../proc/version",
        root.path().join("proc/version"),
    )
    .unwrap();
    let tree = Tree::at(root.path()).unwrap();
    let machine = sysfs::read(&tree, &Want::topology()).unwrap();
    assert_eq!(
        machine.cpus.len(),
        3,
        "the CPUs of the machine this runs on are not the tree's"
    );
    assert!(
        matches!(machine.origin.kernel, Known::No { .. }),
        "{:?}",
        machine.origin.kernel
    );
}

#[test]
fn this_system_reads_without_a_broken_invariant() {
    let tree = Tree::live().unwrap();
    match sysfs::read(&tree, &Want::topology()) {
        Ok(machine) => {
            assert_eq!(machine.check(), Vec::<String>::new());
            assert!(
                machine
                    .cpu_states
                    .allowed
                    .get()
                    .is_none_or(|allowed| !allowed.is_empty())
            );
        }
        Err(error) => {
            eprintln!("skipped: kernel: this system shows neither sysfs nor procfs: {error}")
        }
    }
}

/// A gatherer took the sizes of the nodes and left their CPUs out.
#[test]
fn a_node_without_a_list_of_cpus_may_have_any() {
    let (machine, _) = read(
        "proc/cpuinfo: processor : 0\\n\\nprocessor : 1\n\
         sys/devices/system/node/node0/meminfo: Node 0 MemTotal: 8 kB\n\
         sys/devices/system/node/node1/meminfo: Node 1 MemTotal: 8 kB\n\
         sys/devices/system/node/node1/cpulist: 1\n",
    );
    assert_eq!(
        machine.nodes[0].cpus.unknown_reason(),
        Some("no cpulist or cpumap was gathered")
    );
    assert_eq!(machine.nodes[1].has_cpus(), Some(true));
    assert_eq!(machine.node_of(CpuId(1)), Some(NodeId(1)));
    assert!(machine.warnings.is_empty(), "{:?}", machine.warnings);
}

/// sos copies the directory of nodes only where numactl is installed.
#[test]
fn a_tree_of_which_no_nodes_were_gathered_is_not_one_of_a_kernel_without_nodes() {
    let gathered = "proc/cpuinfo: processor : 0\\n\\nprocessor : 1\n\
                    sys/devices/system/cpu/cpu{0-1}/crash_notes: 0\n";
    let (machine, _) = read(gathered);
    let because = machine.nodes_unknown_reason().unwrap();
    assert!(
        because.ends_with("sys/devices/system/node was not gathered"),
        "{because}"
    );
    assert!(
        machine
            .cpus
            .iter()
            .all(|cpu| cpu.is_online() && cpu.node.is_none())
    );
    assert!(machine.warnings.is_empty(), "{:?}", machine.warnings);
    let counted = |line: &str| {
        read(&format!(
            "{gathered}proc/vmstat: nr_free_pages 1\\n{line}\n"
        ))
        .0
    };
    assert!(counted("numa_hit 1").nodes.is_empty());
    assert_eq!(
        counted("nr_zone_active_anon 1").nodes.len(),
        1,
        "no node counts anything"
    );
}

#[test]
fn a_cpu_of_which_no_state_was_gathered_is_neither_online_nor_offline() {
    let (machine, _) = read(
        "sys/devices/system/cpu/cpu{0-3}/crash_notes: 0\n\
         sys/devices/system/cpu/cpu0/topology/core_id: 0\n\
         sys/devices/system/cpu/cpu1/online: 1\n\
         sys/devices/system/cpu/cpu2/online: 0\n",
    );
    let states: Vec<Option<bool>> = machine
        .cpus
        .iter()
        .map(|cpu| cpu.online.get().copied())
        .collect();
    assert_eq!(states, [Some(true), Some(true), Some(false), None]);
    assert_eq!(machine.cpu_states.online.to_string(), "0-1");
    let (machine, _) = read("sys/devices/system/cpu/present: 0-1\n");
    assert!(machine.cpus.iter().all(|cpu| cpu.online.get().is_none()));
}

#[test]
fn what_a_node_could_free_and_how_it_reclaims_is_read() {
    let text = small_trees::named("two-nodes");
    let (machine, _) = read(&text);
    let reclaimable = |machine: &Machine| {
        let memory = machine.nodes[0].memory.get();
        memory.and_then(|memory| memory.reclaimable_bytes)
    };
    assert_eq!(reclaimable(&machine), None, "no lists of file pages");
    assert_eq!(machine.settings.zone_reclaim_mode.get(), None);
    let text = text
        + "sys/devices/system/node/node0/meminfo: Node 0 MemTotal: 1000000 kB\\nNode 0 MemFree: 1000 kB\\n\
           Node 0 Active(file): 300 kB\\nNode 0 Inactive(file): 40 kB\\nNode 0 Shmem: 9000 kB\\n\
           Node 0 SReclaimable: 2 kB\n\
           proc/sys/vm/zone_reclaim_mode: 1\n";
    let (machine, _) = read(&text);
    assert_eq!(reclaimable(&machine), Some(342 << 10));
    assert_eq!(machine.settings.zone_reclaim_mode, Known::Yes(1));
}
