//! Devices the kernel cannot place, or places elsewhere than the firmware does, and GPUs without a network card on their node.

use nearfar_change::Change;
use nearfar_machine::{DeviceKind, FirmwareLocality, Known, NodeId, PciDevice};

use crate::audit::site::{Fact, Site, spoken};
use crate::audit::{Finding, Ledger, Severity};
use crate::locality::{EffectiveNode, How};

const WITHOUT: &str = "device-without-node";
const OFFLINE: &str = "firmware-node-offline";
const DIFFERS: &str = "device-node-differs";

pub(crate) fn check(site: &Site<'_>, ledger: &mut Ledger) {
    let Some(devices) = ledger.need(&site.machine.pci, &[WITHOUT, OFFLINE, DIFFERS]) else {
        return;
    };
    if let Some(reason) = site.machine.host_bridges.unknown_reason() {
        ledger.skip(&[OFFLINE, DIFFERS], reason);
    }
    for device in devices.iter().filter(|device| matters(device)) {
        if !device.is_identified() && device.driver.is_none() {
            let reason = "its class is unknown, so whether it moves data";
            ledger.skip_thing(WITHOUT, || device.address.to_string(), reason);
            continue;
        }
        match &device.node {
            Known::Yes(node) => judge(site, device, *node, ledger),
            Known::No { unknown_reason } => {
                ledger.skip_thing(WITHOUT, || device.address.to_string(), unknown_reason);
            }
        }
    }
}

/// Whether a device is in use or made to move data in bulk. Bridges move none of their own, and the many functions of
/// a processor's uncore without a driver are of no interest.
fn matters(device: &PciDevice) -> bool {
    !device.is_bridge()
        && (is_made_for_data(device) || device.driver.is_some() || !device.is_identified())
}

/// Whether it is of a kind that moves data in bulk, or a guest or a program has it.
fn is_made_for_data(device: &PciDevice) -> bool {
    match device.kind() {
        Some(kind) => kind.moves_bulk_data,
        None => device.driver.as_deref() == Some("vfio-pci"),
    }
}

/// Whether it is a storage controller without a disk, on a machine whose disks are known: a chipset's or QEMU's AHCI, or the
/// virtio-fs of a guest.
fn has_no_disk(site: &Site<'_>, device: &PciDevice) -> bool {
    const NVM: u32 = 0x0108;
    let machine = site.machine;
    let disks_known = !machine.disks.is_empty() || machine.origin.emulation.is_some();
    device.is(&DeviceKind::STORAGE)
        && device.class_code() != NVM
        && disks_known
        && machine.names_on(device.address).is_empty()
}

fn judge(site: &Site<'_>, device: &PciDevice, node: Option<NodeId>, ledger: &mut Ledger) {
    let told = site.localities.firmware(device.root);
    let online = |node: NodeId| site.machine.node(node).is_some_and(|node| node.online);
    if let (None, Some(reason)) = (node, site.machine.nodes_unknown_reason()) {
        let reason = format!("which nodes there are is unknown: {reason}");
        return ledger.skip_thing(WITHOUT, || device.address.to_string(), &reason);
    }
    match (node, told) {
        (None, Some(told)) if !online(told.node) => ledger.add(offline(site, device, told)),
        (None, _)
            if site.has_several_nodes()
                && is_made_for_data(device)
                && !has_no_disk(site, device) =>
        {
            ledger.add(without(site, device));
        }
        (Some(node), Some(told)) if node != told.node && online(told.node) => {
            ledger.add(differs(site, device, node, told))
        }
        _ => {}
    }
}

/// "0000:81:00.0 (ixgbe)", or what pci.ids calls it.
pub(crate) fn named(device: &PciDevice) -> String {
    match device.driver.as_ref().or(device.name.as_ref()) {
        Some(name) => format!("{} ({name})", device.address),
        None => device.address.to_string(),
    }
}

fn without(site: &Site<'_>, device: &PciDevice) -> Finding {
    let locality = site.locality(device.address);
    let message = match &locality.how {
        How::Unknown { .. } => {
            "The kernel has no node for this device, and its node is unknown.".to_owned()
        }
        _ => format!("The kernel has no node for this device. It is most likely near {locality}."),
    };
    let finding = Finding::new(WITHOUT, named(device), message)
        .evidence(site.place(Fact::DeviceNode(device.address)), "-1");
    let finding = match &locality.how {
        How::Firmware { evidence, .. } => {
            finding.evidence(site.said(evidence), node_text(locality.node))
        }
        How::Siblings { example, .. } => {
            let example = site.place(Fact::DeviceNode(*example));
            finding.evidence(example, node_text(locality.node))
        }
        _ => finding,
    };
    override_node(site, finding, device, &locality)
}

fn offline(site: &Site<'_>, device: &PciDevice, told: &FirmwareLocality) -> Finding {
    let locality = site.locality(device.address);
    let nearest = match (&locality.how, locality.node) {
        (How::NearestToFirmware { distance, .. }, Some(node)) => {
            format!(
                " The online node nearest to it is {node}, at {distance} by the firmware's distances."
            )
        }
        _ => String::new(),
    };
    let message = format!(
        "The firmware puts this device on node {}, which is not online; the kernel has no node for it.{nearest}",
        told.node
    );
    let after = match &locality.how {
        How::NearestToFirmware { distance, .. } => Some(*distance),
        _ => None,
    };
    let finding = Finding::new(OFFLINE, named(device), message)
        .evidence(site.place(Fact::DeviceNode(device.address)), "-1")
        .evidence(
            site.said(&told.evidence),
            format!("domain {}, node {}", told.domain, told.node),
        )
        .evidence(
            site.place(Fact::OnlineNodes),
            site.machine.online_node_set().to_string(),
        )
        .cost(None, after);
    if !site.has_several_nodes() {
        // Calling the device local to the only node would make its path look as near as a really near one.
        return finding.device(device.address).advice(
            "A kernel that brings such nodes online (Linux 6.11 and later on powerpc) fixes it; there is no other online \
             node to give the device to.",
        );
    }
    override_node(site, finding, device, &locality)
}

fn differs(site: &Site<'_>, device: &PciDevice, node: NodeId, told: &FirmwareLocality) -> Finding {
    let driver = match device.driver.as_deref() {
        Some("nvme") => {
            "The NVMe driver wrote the first node with memory into devices without one until Linux 6.6. "
        }
        _ => "",
    };
    let message = format!(
        "The kernel says node {node}, the firmware says node {} for its host bridge. One of them is wrong.",
        told.node
    );
    Finding::new(DIFFERS, named(device), message)
        .evidence(site.place(Fact::DeviceNode(device.address)), node.to_string())
        .evidence(site.said(&told.evidence), format!("domain {}, node {}", told.domain, told.node))
        .device(device.address)
        .advice(format!(
            "{driver}Find out which is right before anything is placed by it: measure latency to the device from both \
             nodes, or ask the board's manual."
        ))
}

/// The last resort, where a node is known to work with.
fn override_node(
    site: &Site<'_>,
    finding: Finding,
    device: &PciDevice,
    locality: &EffectiveNode,
) -> Finding {
    let finding = finding.device(device.address);
    let Some(node) = locality.node else {
        let reason = match &locality.how {
            How::Unknown { reason } => reason.as_str(),
            _ => "its node is unknown",
        };
        return finding
            .severity(Severity::Notice)
            .advice(format!("Not placed: {reason}."));
    };
    let guess = if matches!(locality.how, How::Firmware { .. }) {
        ""
    } else {
        " The node is a guess: measure first."
    };
    let kernel = match site.machine.origin.kernel.get() {
        Some(kernel) => format!(" (here {kernel})"),
        None => String::new(),
    };
    finding
        .fix(Change::DeviceNode { device: device.address, node, rebind: device.driver.clone() })
        .advice(format!(
            "A firmware or kernel{kernel} that knows the node is the real fix. Writing numa_node is the last resort: it taints \
             the kernel, and the driver has to be bound again, which stops the device for a moment.{guess}"
        ))
}

fn node_text(node: Option<NodeId>) -> String {
    node.map_or_else(|| "none".to_owned(), |node| format!("node {node}"))
}

const NO_CARD: &str = "no-card-on-node";

pub(crate) fn check_pairs(site: &Site<'_>, ledger: &mut Ledger) {
    let Some(all) = ledger.known(&site.machine.pci, &[NO_CARD]) else {
        return;
    };
    let gpus: Vec<&PciDevice> = all.iter().filter(|it| it.is(&DeviceKind::GPU)).collect();
    let mut cards: Vec<(NodeId, &PciDevice)> = Vec::new();
    for card in all.iter().filter(|it| it.is(&DeviceKind::NETWORK_CARD)) {
        match site.locality(card.address).node {
            // With a card anywhere the others need none.
            None => {
                let subject = || named(card);
                return ledger.skip_thing(NO_CARD, subject, "its node is unknown");
            }
            Some(node) => cards.push((node, card)),
        }
    }
    if gpus.is_empty() || cards.is_empty() {
        return ledger.not_applicable(&[NO_CARD]);
    }
    ledger.checked(&[NO_CARD]);
    // One card of each node is enough.
    cards.sort_by_key(|(node, card)| (*node, card.address));
    cards.dedup_by_key(|(node, _)| *node);
    for device in gpus {
        let Some(node) = site.locality(device.address).node else {
            ledger.skip_thing(NO_CARD, || named(device), "its node is unknown");
            continue;
        };
        if cards.iter().all(|(on, _)| *on != node) {
            let nearest = cards.iter().min_by_key(|(on, card)| {
                let distance = site.machine.distance(node, *on);
                (distance.is_none(), distance, card.address)
            });
            let nearest = nearest.copied();
            ledger.add(without_card(site, device, node, nearest));
        }
    }
}

fn without_card(
    site: &Site<'_>,
    device: &PciDevice,
    node: NodeId,
    nearest: Option<(NodeId, &PciDevice)>,
) -> Finding {
    let (at, distance) = match nearest {
        Some((on, card)) => {
            let distance = site.machine.distance(node, on);
            let at = format!(
                "the nearest, {}, is on node {on} at {}",
                named(card),
                spoken(distance)
            );
            (at, distance)
        }
        None => ("there is none".to_owned(), None),
    };
    let message = format!("No network card is on its node {node}: {at}.");
    let shown = site.command("nearfar topo --pairs");
    let shown = shown.map_or_else(String::new, |command| {
        format!("{command} shows the nearest card of each. ")
    });
    Finding::new(NO_CARD, named(device), message)
        .evidence(
            site.place(Fact::DeviceNode(device.address)),
            node.to_string(),
        )
        .cost(distance, None)
        .device(device.address)
        .advice(format!(
            "{shown}Where data goes from the GPU to the network, use the GPU next to the card, or put a card next to \
             the GPU."
        ))
}
