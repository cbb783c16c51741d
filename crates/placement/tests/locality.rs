//! Where devices are, and how firmly that is said.

use crate::common::{
    add_firmware, add_function, device_on_an_offline_node, function, pci, two_nodes,
};
use nearfar_machine::{Known, Machine, NodeId};
use nearfar_placement::locality::{How, Localities};

fn said(machine: &Machine, address: &str) -> String {
    Localities::new(machine).of(pci(address)).to_string()
}

#[test]
fn the_kernels_word_comes_first() {
    let machine = device_on_an_offline_node(2);
    assert_eq!(
        Localities::new(&machine).of(pci("0000:20:00.0")).how,
        How::Kernel
    );
    insta::assert_snapshot!(said(&machine, "0000:20:00.0"), @"node 0");
}

#[test]
fn the_firmwares_word_counts_where_the_kernel_has_none() {
    let mut machine = two_nodes();
    add_firmware(&mut machine, "0000:40", Some(1));
    add_function(
        &mut machine,
        function("0000:40:00.0", 0x02_0000, "ixgbe", None),
    );
    insta::assert_snapshot!(said(&machine, "0000:40:00.0"), @"node 1 (by the firmware; the kernel has none)");
}

#[test]
fn a_node_that_is_not_online_is_replaced_by_the_nearest_and_called_a_guess() {
    let machine = device_on_an_offline_node(2);
    assert_eq!(
        Localities::new(&machine).of(pci("0000:40:00.0")).node,
        Some(NodeId(1))
    );
    insta::assert_snapshot!(said(&machine, "0000:40:00.0"), @"node 1 (guessed: online node nearest to the firmware's node 2, 31)");
}

#[test]
fn siblings_on_the_root_bus_are_an_inference() {
    let mut machine = two_nodes();
    let root = "0000:40".parse().unwrap();
    for (address, node) in [
        ("0000:40:00.0", None),
        ("0000:41:00.0", Some(1)),
        ("0000:42:00.0", Some(1)),
    ] {
        let mut device = function(address, 0x02_0000, "ixgbe", node);
        device.root = root;
        add_function(&mut machine, device);
    }
    insta::assert_snapshot!(said(&machine, "0000:40:00.0"), @"node 1 (inferred from 2 other devices on root bus 0000:40)");
    let mut odd = function("0000:43:00.0", 0x02_0000, "ixgbe", Some(0));
    odd.root = root;
    add_function(&mut machine, odd);
    insta::assert_snapshot!(said(&machine, "0000:40:00.0"), @"node unknown: devices on root bus 0000:40 disagree: 0000:43:00.0 says node 0, 0000:41:00.0 says node 1");
}

#[test]
fn the_nvme_drivers_devices_are_no_witnesses() {
    let mut machine = two_nodes();
    add_function(
        &mut machine,
        function("0000:40:00.0", 0x02_0000, "ixgbe", None),
    );
    let mut disk = function("0000:41:00.0", 0x01_0802, "nvme", Some(0));
    disk.root = "0000:40".parse().unwrap();
    add_function(&mut machine, disk);
    assert_eq!(Localities::new(&machine).of(pci("0000:40:00.0")).node, None);
}

#[test]
fn unknown_names_what_was_looked_at() {
    let mut machine = two_nodes();
    add_function(
        &mut machine,
        function("0000:40:00.0", 0x02_0000, "ixgbe", None),
    );
    insta::assert_snapshot!(said(&machine, "0000:40:00.0"), @"node unknown: the kernel says none (-1); its host bridge is unknown; no other device on root bus 0000:40 has a node");
    insta::assert_snapshot!(said(&machine, "0000:99:00.0"), @"node unknown: there is no PCI device 0000:99:00.0");
    add_function(
        &mut machine,
        function("0000:50:00.0", 0x02_0000, "ixgbe", Some(7)),
    );
    machine.host_bridges = Known::no("/sys/firmware/acpi/tables/DSDT: permission denied");
    insta::assert_snapshot!(said(&machine, "0000:50:00.0"), @"node unknown: the kernel says node 7, which is not online; the firmware's node is unknown (/sys/firmware/acpi/tables/DSDT: permission denied); no other device on root bus 0000:50 has a node");
    machine.pci = Known::no("numactl -H shows no devices");
    insta::assert_snapshot!(said(&machine, "0000:50:00.0"), @"node unknown: PCI devices: numactl -H shows no devices");
}

#[test]
fn json_has_the_node_and_how_side_by_side() {
    let machine = device_on_an_offline_node(2);
    let json = serde_json::to_string(&Localities::new(&machine).of(pci("0000:40:00.0"))).unwrap();
    assert_eq!(
        json,
        r#"{"node":1,"how":"nearest-to-firmware","firmware":2,"distance":31,"evidence":"/sys/firmware/acpi/tables/DSDT"}"#
    );
}
