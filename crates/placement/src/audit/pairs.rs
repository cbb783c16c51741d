//! GPUs without a network card on their node.

use nearfar_machine::{NodeId, PciDevice};

use super::evidence::Fact;
use super::ledger::Ledger;
use super::site::{Site, spoken};
use super::{Finding, devices};
use crate::pairs::{is_card, is_gpu};

const NO_CARD: &str = "no-card-on-node";

pub(super) fn check(site: &Site<'_>, ledger: &mut Ledger) {
    let Some(all) = ledger.known(&site.machine.pci, &[NO_CARD]) else {
        return;
    };
    let gpus: Vec<&PciDevice> = all.iter().filter(|it| is_gpu(it)).collect();
    let mut cards: Vec<(NodeId, &PciDevice)> = Vec::new();
    for card in all.iter().filter(|card| is_card(card)) {
        match site.locality(card.address).node {
            // With a card anywhere the others need none.
            None => {
                let subject = || devices::named(card);
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
            ledger.skip_thing(NO_CARD, || devices::named(device), "its node is unknown");
            continue;
        };
        if cards.iter().all(|(on, _)| *on != node) {
            let nearest = cards.iter().min_by_key(|(on, card)| {
                let distance = site.machine.distance(node, *on);
                (distance.is_none(), distance, card.address)
            });
            let nearest = nearest.copied();
            ledger.add(finding(site, device, node, nearest));
        }
    }
}

fn finding(
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
                devices::named(card),
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
    Finding::new(NO_CARD, devices::named(device), message)
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
