//! Host bridges: as many as the board has room for, each with no more devices than fit behind it.

use nearfar_machine::RootBus;

use super::board::Board;
use super::devices::{Devices, Place};
use super::hardware::{Bridge, Device};
use crate::error::LabError;

/// The bridges of a guest, in the order of their root buses.
pub(super) fn bridges(
    devices: &mut Devices,
    board: &dyn Board,
    notes: &mut Vec<String>,
) -> Result<Vec<Bridge>, LabError> {
    let mut places: Vec<(Place, Vec<Device>)> =
        std::mem::take(&mut devices.places).into_iter().collect();
    if !board.has_nodes_of_devices() {
        places = without_nodes(places, notes);
    }
    let mut split = split(&places, board.most_devices());
    if split.len() > board.most_bridges() {
        places = joined(places);
        split = self::split(&places, board.most_devices());
        notes.push(
            "host bridges on the same node are one in the guest: there are too many".to_owned(),
        );
    }
    if split.len() > board.most_bridges() {
        notes.push(format!(
            "{} host bridges are left out with their devices: there are too many",
            split.len() - board.most_bridges()
        ));
        split.truncate(board.most_bridges());
    }
    let mut bridges: Vec<Bridge> = split
        .into_iter()
        .enumerate()
        .map(|(number, (place, devices))| Bridge {
            id: format!("bridge{number}"),
            root: place.root,
            node: place.node,
            devices,
        })
        .collect();
    match board.place(&mut bridges) {
        true => Ok(bridges),
        false => Err(LabError::Design(
            "its devices need more than the 256 buses of a PCI domain".to_owned(),
        )),
    }
}

/// All devices behind one bridge that is on no node.
fn without_nodes(
    places: Vec<(Place, Vec<Device>)>,
    notes: &mut Vec<String>,
) -> Vec<(Place, Vec<Device>)> {
    let on_nodes = places
        .iter()
        .filter(|(place, _)| place.node.is_some())
        .map(|(_, devices)| devices.len())
        .sum::<usize>();
    if on_nodes > 0 {
        notes.push(format!(
            "{on_nodes} devices are on no node in the guest: that takes UEFI firmware of 2025.02 or later (Debian's qemu-efi-aarch64)"
        ));
    }
    let devices: Vec<Device> = places
        .into_iter()
        .flat_map(|(_, devices)| devices)
        .collect();
    vec![(
        Place {
            root: RootBus { domain: 0, bus: 0 },
            node: None,
        },
        devices,
    )]
}

/// Bridges with more devices than fit become several.
fn split(places: &[(Place, Vec<Device>)], most: usize) -> Vec<(Place, Vec<Device>)> {
    let parts = |(place, devices): &(Place, Vec<Device>)| {
        let whole = if devices.is_empty() {
            vec![Vec::new()]
        } else {
            devices.chunks(most).map(<[Device]>::to_vec).collect()
        };
        let place = *place;
        whole.into_iter().map(move |part| (place, part))
    };
    places.iter().flat_map(parts).collect()
}

/// One bridge a node, at the lowest of their root buses.
fn joined(places: Vec<(Place, Vec<Device>)>) -> Vec<(Place, Vec<Device>)> {
    let mut joined: Vec<(Place, Vec<Device>)> = Vec::new();
    for (place, devices) in places {
        match joined
            .iter_mut()
            .find(|(other, _)| other.node == place.node)
        {
            Some((_, all)) => all.extend(devices),
            None => joined.push((place, devices)),
        }
    }
    joined
}
