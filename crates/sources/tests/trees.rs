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
    assert_eq!(machine.node(NodeId(1)).unwrap().cpus.to_string(), "2-3,6-7");
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
