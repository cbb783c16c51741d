//! Which network card is nearest to which GPU or disk.

use nearfar_machine::{Machine, PciAddress};
use nearfar_placement::locality::Localities;
use nearfar_placement::pairs::{Common, Nearest};

use crate::amount::or;
use crate::document::{Document, Table, Text, cells};
use crate::style::Role::{Dim, Far, Local, Middling, Subject};
use crate::topo::marks::names;

/// A line for each GPU and disk, with its nearest network cards and what it shares with them.
pub fn document(machine: &Machine, pairs: &[Nearest]) -> Document {
    let mut out = Document::titled(
        "Nearest network cards",
        "of GPUs and disks: by a common PCI bridge, the host bridge, the node, the distance",
    );
    if let Some(reason) = machine.pci.unknown_reason() {
        out.paragraph(format!("unknown: {reason}"));
        return out;
    }
    if pairs.is_empty() {
        out.paragraph("no GPU and no disk");
        return out;
    }
    let (names, localities) = (names(machine), Localities::new(machine));
    let named = |address: PciAddress| match names.get(&address) {
        Some(name) => format!("{name} ({address})"),
        None => {
            let device = machine.pci_device(address);
            let driver = device.and_then(|device| device.driver.as_deref());
            format!("{address}{}", or(driver.map(|it| format!(" ({it})")), ""))
        }
    };
    let mut table = Table::of([
        ">node",
        "device",
        "nearest network card",
        "in common",
        ">distance",
    ]);
    for pair in pairs {
        let cards: Vec<String> = pair.cards.iter().copied().map(named).collect();
        table.row(cells![
            or(localities.of(pair.device).node, "?"),
            Subject.text(named(pair.device)),
            match cards.is_empty() {
                true => Dim.text("there is none"),
                false => cards.join(", ").into(),
            },
            common(pair),
            or(pair.distance, "?"),
        ]);
    }
    out.table(table);
    out
}

fn common(pair: &Nearest) -> Text {
    match (pair.common, pair.bridge) {
        _ if pair.cards.is_empty() => Text::default(),
        (Common::Bridge, Some(bridge)) => Local.text(format!("PCI bridge {bridge}")),
        (Common::Bridge, None) => Local.text("PCI bridge"),
        (Common::RootBus, _) => Local.text("host bridge"),
        (Common::Node, _) => Middling.text("node"),
        (Common::Nothing, _) => Far.text("nothing: other node"),
        (Common::Unknown, _) => Dim.text("unknown: no node"),
    }
}
