//! Whose a planned interrupt is: drivers name their handlers in many ways, the owner comes from the model.

use crate::common::{add_nic, list, two_nodes};
use nearfar_change::{Change, Owner};
use nearfar_placement::audit::{AuditOptions, audit};
use nearfar_placement::plan::{PlanOptions, plan};

const NIC: &str = "0000:81:00.0";

/// The owner of the interrupt that the plan moves, where its handler is called so.
fn owner_of(handler: &str, interfaces: &[&str]) -> Owner {
    let mut machine = two_nodes();
    add_nic(&mut machine, interfaces[0], NIC, Some(1), &[0]);
    let port = list(&mut machine.networks)[0].clone();
    for name in &interfaces[1..] {
        list(&mut machine.networks).push(nearfar_machine::NetworkDevice {
            name: (*name).to_owned(),
            ..port.clone()
        });
    }
    list(&mut machine.interrupts)[0].name = handler.to_owned();
    let plan = plan(
        &machine,
        &audit(&machine, &AuditOptions::default()),
        &PlanOptions::default(),
    );
    let moved = plan
        .changes
        .iter()
        .find(|it| matches!(it.change, Change::InterruptAffinity { .. }))
        .unwrap();
    assert_eq!(
        plan.nodes.len(),
        2,
        "the plan says which CPUs are on which node"
    );
    moved.owner.clone().unwrap()
}

#[test]
fn the_interface_of_an_interrupt_does_not_hang_on_its_handlers_name() {
    for handler in [
        "eth0-TxRx-0",         // igb, ixgbe
        "i40e-eth0-TxRx-0",    // i40e
        "ice-eth0-TxRx-0",     // ice
        "bnxt_en-eth0-TxRx-0", // bnxt_en, newer
        "virtio0-input.0",     // virtio_net
        "mlx5_comp0@pci:0000:81:00.0",
    ] {
        let owner = owner_of(handler, &["eth0"]);
        assert_eq!(owner.interface.as_deref(), Some("eth0"), "{handler}");
        assert_eq!(owner.device, Some(NIC.parse().unwrap()), "{handler}");
        assert!(
            owner.pci_id.is_some() && owner.controller.is_none(),
            "{owner:?}"
        );
    }
}

#[test]
fn of_several_interfaces_of_a_function_the_handler_names_one() {
    let owner = owner_of("i40e-eth1-TxRx-0", &["eth0", "eth1"]);
    assert_eq!(owner.interface.as_deref(), Some("eth1"));
    assert_eq!(
        owner_of("virtio0-input.0", &["eth0", "eth1"])
            .interface
            .as_deref(),
        Some("eth0")
    );
}
