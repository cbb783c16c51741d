//! Numbers and names that are another device's now: an interrupt given out again, `eth0` another card, `nvme-subsys0`
//! another disk. A plan for the old one is refused before the first write, and rollback does not write the new one.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::kernel::Kernel;
use crate::support::*;
use nearfar_change::{
    ApplyError, PlanError, RollbackOptions, Target, UndoResult, apply, apply_with, rollback,
    rollback_with,
};
use nearfar_change::{NodeCpus, Owner, Plan, Planned};
use nearfar_machine::{IoPolicy, NodeId};

const CARD: &str = "0000:3b:00.0";
const OTHER: &str = "0000:5e:00.0";
const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:1";

/// The small machine, and whose its numbers and names are: interrupts 10 to 12 and eth0 are the card's.
fn machine() -> Tree {
    let tree = Tree::machine();
    for (address, id) in [(CARD, "0x1592\n"), (OTHER, "0x16d7\n")] {
        tree.put(
            &format!("/sys/bus/pci/devices/{address}/vendor"),
            "0x8086\n",
        );
        tree.put(&format!("/sys/bus/pci/devices/{address}/device"), id);
    }
    for irq in [10, 11, 12] {
        hand_out(&tree, irq, &format!("eth0-TxRx-{irq}"), CARD);
    }
    eth0_of(&tree, CARD);
    tree.put(
        "/sys/class/nvme-subsystem/nvme-subsys0/subsysnqn",
        &format!("{NQN}\n"),
    );
    tree
}

/// Gives an interrupt to a function, as its driver does.
fn hand_out(tree: &Tree, irq: u32, handler: &str, address: &str) {
    for device in [CARD, OTHER] {
        let _ = fs::remove_file(tree.at(&format!("/sys/bus/pci/devices/{device}/msi_irqs/{irq}")));
        fs::create_dir_all(tree.at(&format!("/sys/bus/pci/devices/{device}/msi_irqs"))).unwrap();
    }
    tree.put(
        &format!("/sys/bus/pci/devices/{address}/msi_irqs/{irq}"),
        "msix\n",
    );
    tree.put(
        &format!("/sys/kernel/irq/{irq}/actions"),
        &format!("{handler}\n"),
    );
}

fn eth0_of(tree: &Tree, address: &str) {
    let _ = fs::remove_file(tree.at("/sys/class/net/eth0/device"));
    symlink(
        format!("../../../devices/pci0000:00/{address}"),
        tree.at("/sys/class/net/eth0/device"),
    )
    .unwrap();
}

fn of_card() -> Option<Owner> {
    let device = Some(CARD.parse().unwrap());
    Some(Owner {
        device,
        pci_id: Some("8086:1592".into()),
        ..Owner::default()
    })
}

fn subsystem() -> Option<Owner> {
    Some(Owner {
        nqn: Some(NQN.into()),
        ..Owner::default()
    })
}

/// A plan as `nearfar plan` makes it on that machine.
fn plan_with_owners() -> Plan {
    let mut plan = plan_of_all_kinds();
    for planned in &mut plan.changes {
        let kind = serde_json::to_value(&planned.change).unwrap()["kind"].clone();
        planned.owner = match kind.as_str().unwrap() {
            "nvme-io-policy" => subsystem(),
            "sysctl" => None,
            _ => of_card(),
        };
    }
    plan
}

#[track_caller]
fn refused(plan: &Plan, tree: &Tree) -> String {
    let before = tree.files();
    let error = apply(plan, &tree.target(), &Default::default()).unwrap_err();
    assert!(matches!(error, ApplyError::Plan(_)), "{error:?}");
    assert_eq!(tree.files(), before, "nothing may be half changed");
    assert!(!tree.at("/var").exists(), "and no journal begun");
    error.to_string()
}

#[test]
fn a_plan_whose_owners_are_the_same_is_carried_out_and_undone() {
    let tree = machine();
    let before = tree.files();
    let outcome = apply(&plan_with_owners(), &tree.target(), &Default::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_ne!(tree.files(), before);
    assert!(
        rollback(&tree.target(), &Default::default())
            .unwrap()
            .is_complete()
    );
    assert_eq!(tree.files(), before);
}

#[test]
fn an_interrupt_with_another_handler_is_refused_with_both_names() {
    let tree = machine();
    hand_out(&tree, 12, "nvme0q3", OTHER);
    let said = refused(&plan_with_owners(), &tree);
    for names in [
        "eth0-TxRx-12 of 0000:3b:00.0",
        "nvme0q3 of 0000:5e:00.0",
        "change 3",
        "/proc/irq/12/",
    ] {
        assert!(said.contains(names), "{names}: {said}");
    }
    // A plan of an earlier version names the handler and no device.
    let said = refused(
        &plan(vec![
            planned(interrupt(11, "1"), None),
            planned(interrupt(12, "4"), None),
        ]),
        &tree,
    );
    assert!(
        said.contains("eth0-TxRx-12") && said.contains("nvme0q3"),
        "{said}"
    );
}

#[test]
fn the_same_handlers_name_on_another_card_is_another_owner() {
    let tree = machine();
    hand_out(&tree, 11, "eth0-TxRx-11", OTHER);
    let said = refused(&plan_with_owners(), &tree);
    assert!(said.contains(CARD) && said.contains(OTHER), "{said}");
    hand_out(&tree, 11, "", CARD);
    assert!(refused(&plan_with_owners(), &tree).contains("no handler"));
}

#[test]
fn handlers_are_read_from_proc_where_sysfs_has_none() {
    let tree = machine();
    fs::remove_dir_all(tree.at("/sys/kernel/irq")).unwrap();
    fs::create_dir_all(tree.at("/proc/irq/10/eth0-TxRx-10")).unwrap();
    fs::create_dir_all(tree.at("/proc/irq/12/nvme0q3")).unwrap();
    assert!(refused(&plan_with_owners(), &tree).contains("nvme0q3"));
}

#[test]
fn shared_lines_may_list_their_handlers_in_any_order() {
    let tree = machine();
    tree.put(
        "/sys/kernel/irq/10/actions",
        "uhci_hcd:usb1,ehci_hcd:usb2\n",
    );
    let mut change = interrupt(10, "4");
    if let nearfar_change::Change::InterruptAffinity { name, .. } = &mut change {
        *name = Some("ehci_hcd:usb2, uhci_hcd:usb1".into());
    }
    assert!(
        apply(
            &plan(vec![planned(change, None)]),
            &tree.target(),
            &Default::default()
        )
        .unwrap()
        .is_complete()
    );
}

#[test]
fn an_interface_of_another_card_is_refused() {
    for change in [xps("4-5"), rps("4")] {
        let tree = machine();
        eth0_of(&tree, OTHER);
        let plan = plan(vec![
            planned(interrupt(10, "4"), None),
            Planned {
                owner: of_card(),
                ..planned(change, None)
            },
        ]);
        let said = refused(&plan, &tree);
        assert!(said.contains(CARD) && said.contains(OTHER), "{said}");
    }
}

#[test]
fn an_interface_without_a_function_of_its_own_is_known_by_its_hardware_address() {
    let tree = machine();
    tree.put("/sys/class/net/eth0/address", "52:54:00:00:00:02\n");
    let mac = |last| {
        Some(Owner {
            mac: Some(format!("52:54:00:00:00:0{last}")),
            ..Owner::default()
        })
    };
    let plan_for = |last| {
        plan(vec![Planned {
            owner: mac(last),
            ..planned(xps("4-5"), None)
        }])
    };
    assert!(refused(&plan_for(1), &tree).contains("52:54:00:00:00:01"));
    assert!(
        apply(&plan_for(2), &tree.target(), &Default::default())
            .unwrap()
            .is_complete()
    );
}

#[test]
fn another_disk_or_another_card_in_the_slot_is_refused() {
    let tree = machine();
    tree.put(
        "/sys/class/nvme-subsystem/nvme-subsys0/subsysnqn",
        "nqn.other\n",
    );
    let said = refused(&plan_with_owners(), &tree);
    assert!(said.contains(NQN) && said.contains("nqn.other"), "{said}");
    let tree = machine();
    tree.put(&format!("/sys/bus/pci/devices/{CARD}/device"), "0x9999\n");
    let said = refused(&plan_with_owners(), &tree);
    assert!(
        said.contains("8086:1592") && said.contains("8086:9999"),
        "{said}"
    );
}

#[test]
fn a_plan_for_other_nodes_is_refused() {
    let tree = machine();
    tree.put("/sys/devices/system/node/node0/cpulist", "0-1\n");
    tree.put("/sys/devices/system/node/node1/cpulist", "2-5\n");
    let mut plan = plan_with_owners();
    let nodes = |first: &str, second: &str| {
        vec![
            NodeCpus {
                node: NodeId(0),
                cpus: cpus(first),
            },
            NodeCpus {
                node: NodeId(1),
                cpus: cpus(second),
            },
        ]
    };
    plan.nodes = nodes("0-3", "4-7");
    let error = apply(&plan, &tree.target(), &Default::default()).unwrap_err();
    let ApplyError::Plan(PlanError::OtherNodes {
        cpu,
        plan: was,
        here,
    }) = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((cpu.0, was, here), (2, NodeId(0), NodeId(1)));
    // CPUs 6 and 7 went offline since.
    plan.nodes = nodes("0-1", "2-7");
    assert!(
        apply(&plan, &tree.target(), &Default::default())
            .unwrap()
            .is_complete()
    );
}

#[test]
fn rollback_does_not_write_to_another_devices_interrupt() {
    let tree = machine();
    apply(&plan_with_owners(), &tree.target(), &Default::default()).unwrap();
    // By chance the new owner has the very value that was written.
    hand_out(&tree, 10, "nvme0q3", OTHER);
    let outcome = rollback(
        &tree.target(),
        &RollbackOptions {
            force: true,
            ..Default::default()
        },
    )
    .unwrap();
    assert_eq!(
        tree.get("/proc/irq/10/smp_affinity_list"),
        "4\n",
        "it is another device's"
    );
    assert_eq!(
        tree.get("/proc/irq/11/smp_affinity_list"),
        "0-7\n",
        "the others are put back"
    );
    let refused: Vec<_> = outcome
        .changes
        .iter()
        .filter(|it| matches!(it.result, UndoResult::OtherOwner { .. }))
        .collect();
    let [refused] = refused[..] else {
        panic!("{outcome:?}")
    };
    assert_eq!(refused.file, "/proc/irq/10/smp_affinity_list");
    let UndoResult::OtherOwner { was, now, gone } = &refused.result else {
        unreachable!()
    };
    assert!(
        was.contains("eth0-TxRx-10") && now.contains("nvme0q3") && *gone,
        "{was}, {now}"
    );
    assert!(!outcome.is_complete());
    assert_eq!(
        rollback(&tree.target(), &Default::default())
            .unwrap()
            .change_set,
        None,
        "nothing is left to undo"
    );
}

#[test]
fn rollback_waits_for_a_renamed_interface_or_force() {
    let tree = machine();
    let before = tree.files();
    apply(
        &plan(vec![Planned {
            owner: of_card(),
            ..planned(interrupt(10, "4"), None)
        }]),
        &tree.target(),
        &Default::default(),
    )
    .unwrap();
    // Down: its driver has let go of the handler and keeps the interrupt.
    tree.put("/sys/kernel/irq/10/actions", "ens1-TxRx-10\n");
    let undo = |force| {
        rollback(
            &tree.target(),
            &RollbackOptions {
                force,
                ..Default::default()
            },
        )
        .unwrap()
    };
    assert!(!undo(false).is_complete());
    assert_eq!(tree.get("/proc/irq/10/smp_affinity_list"), "4\n");
    assert!(undo(true).is_complete());
    tree.put("/sys/kernel/irq/10/actions", "eth0-TxRx-10\n");
    assert_eq!(tree.files(), before);
}

#[test]
fn rollback_gives_back_the_interrupts_of_an_interface_that_is_down() {
    let tree = machine();
    apply(&plan_with_owners(), &tree.target(), &Default::default()).unwrap();
    hand_out(&tree, 10, "", CARD);
    assert!(
        rollback(&tree.target(), &Default::default())
            .unwrap()
            .is_complete()
    );
    assert_eq!(tree.get("/proc/irq/10/smp_affinity_list"), "0-7\n");
}

/// The live system's rules over the tree's files: here names are compared after a reboot, and a name that nothing
/// compares is no longer enough.
#[test]
fn a_plan_of_another_boot_needs_owners_that_can_be_compared() {
    let tree = machine();
    tree.put("/proc/sys/kernel/random/boot_id", "second-boot\n");
    tree.put(
        "/proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
    );
    let state = tempfile::tempdir().unwrap();
    let target = Target::live(Some(state.path().to_owned()));
    let kernel = Kernel::over(&tree.root());
    let with_boot = |plan: Plan, boot: &str| Plan {
        boot: Some(boot.into()),
        ..plan
    };
    let before = tree.files();
    for change in [
        xps("4-5"),
        rps("4"),
        iopolicy(IoPolicy::RoundRobin),
        device_node(1, None),
    ] {
        let plan = with_boot(
            plan(vec![
                planned(interrupt(10, "4"), None),
                planned(change, None),
            ]),
            "first-boot",
        );
        let error = apply_with(&plan, &target, &Default::default(), &kernel)
            .unwrap_err()
            .to_string();
        assert!(
            ["change 2", "first-boot", "second-boot"]
                .iter()
                .all(|it| error.contains(it)),
            "{error}"
        );
    }
    assert_eq!(tree.files(), before);
    let known = with_boot(plan_with_owners(), "first-boot");
    assert!(
        apply_with(&known, &target, &Default::default(), &kernel)
            .unwrap()
            .is_complete()
    );
    assert!(
        rollback_with(&target, &Default::default(), &kernel)
            .unwrap()
            .is_complete()
    );
    let same_boot = with_boot(plan(vec![planned(xps("4-5"), None)]), "second-boot");
    assert!(
        apply_with(&same_boot, &target, &Default::default(), &kernel)
            .unwrap()
            .is_complete()
    );
}
