//! Host bridges and distances from ACPI's tables, as the kernel shows them in `sys/firmware/acpi/tables`.

use nearfar_machine::{Distances, FirmwareLocality, FirmwareSource, Known, RootBus};

use super::aml::{Namespace, Number, Object, Path};
use super::tables::{self, Domains};
use super::{Firmware, bridges};
use crate::sysfs::attribute;
use crate::sysfs::notes::Notes;
use crate::tree::{Reason, Tree};
use crate::value::ValueError;

const TABLES: &str = "sys/firmware/acpi/tables";
/// The largest DSDT seen has some 600 KiB.
const LARGEST: usize = 8 << 20;
/// Servers have up to some 30 SSDTs.
const MOST_TABLES: usize = 256;

/// What was read of the tables that describe devices.
struct Described<'t> {
    tree: &'t Tree,
    namespace: Namespace,
    /// The tables' names, by the number the namespace knows them by.
    names: Vec<String>,
    domains: Known<Domains>,
}

/// Reads where ACPI puts each of these root buses, and its distances.
pub(super) fn read(tree: &Tree, notes: &Notes, roots: &[RootBus]) -> Firmware {
    let domains = domains(tree, notes);
    let distances = distances(tree, notes, &domains);
    let described = describe(tree, notes, domains);
    let bridges = bridges(roots, |root| match &described {
        Known::Yes(described) => described.locate(root),
        Known::No { unknown_reason } => Known::no(unknown_reason.clone()),
    });
    Firmware { bridges, distances }
}

/// The SRAT. Where there is none every domain keeps its number.
fn domains(tree: &Tree, notes: &Notes) -> Known<Domains> {
    let path = format!("{TABLES}/SRAT");
    match tree.with_bytes(&path, Domains::parse) {
        Ok(parsed) => notes.known(|| tree.display(&path), parsed),
        Err(error) if attribute::is_absent(&error.reason) => Known::Yes(Domains::default()),
        Err(error) => Known::no(error.to_string()),
    }
}

fn distances(tree: &Tree, notes: &Notes, domains: &Known<Domains>) -> Known<Distances> {
    let path = format!("{TABLES}/SLIT");
    domains.as_ref().and_then(|domains| {
        match tree.with_bytes(&path, |table| tables::slit(table, domains)) {
            Ok(parsed) => notes.known(|| tree.display(&path), parsed),
            Err(error) => Known::no(error.to_string()),
        }
    })
}

/// Reads the DSDT and all SSDTs, also those loaded at run time (`dynamic/`).
fn describe<'t>(tree: &'t Tree, notes: &Notes, domains: Known<Domains>) -> Known<Described<'t>> {
    let mut names = vec!["DSDT".to_owned()];
    for prefix in ["", "dynamic/"] {
        let listed = tree.list(&format!("{TABLES}/{prefix}")).unwrap_or_default();
        names.extend(
            listed
                .iter()
                .filter(|name| name.starts_with("SSDT"))
                .map(|name| format!("{prefix}{name}")),
        );
    }
    names.truncate(MOST_TABLES);
    let mut namespace = Namespace::default();
    for (index, name) in names.iter().enumerate() {
        let path = format!("{TABLES}/{name}");
        let signature = if index == 0 { b"DSDT" } else { b"SSDT" };
        let read = tree.with_bytes(&path, |table| {
            let body = tables::body(table, signature)?;
            if body.len() > LARGEST {
                return Err(ValueError::TooLarge(
                    "larger than any such table".to_owned(),
                ));
            }
            namespace.add(body, index);
            Ok(())
        });
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => notes.note(tree.display(&path), error.to_string()),
            Err(error) if error.reason == Reason::Denied || index == 0 => {
                return Known::no(error.to_string());
            }
            Err(error) => notes.unless_absent(error),
        }
    }
    Known::Yes(Described {
        tree,
        namespace,
        names,
        domains,
    })
}

impl Described<'_> {
    fn locate(&self, root: RootBus) -> Known<Option<FirmwareLocality>> {
        let (path, object) = match self.bridge(root) {
            Known::Yes(Some(found)) => found,
            Known::Yes(None) => {
                let table = self.tree.display(&format!("{TABLES}/DSDT"));
                return Known::no(format!(
                    "{table}: no host bridge is declared for bus {root}"
                ));
            }
            Known::No { unknown_reason } => return Known::no(unknown_reason),
        };
        let Some((holder, (number, table))) = self.proximity(path, object) else {
            return Known::Yes(None);
        };
        let file = self.names.get(table).map_or_else(String::new, |name| {
            self.tree.display(&format!("{TABLES}/{name}"))
        });
        let evidence = format!("{file}: {holder}._PXM");
        let domain = match number {
            Number::Constant(domain) => u32::try_from(domain).ok(),
            Number::Computed => {
                return Known::no(format!(
                    "{evidence} is computed by a method, which is not run"
                ));
            }
        };
        self.domains.as_ref().and_then(|domains| {
            match domain.and_then(|domain| Some((domain, domains.node_of(domain)?))) {
                Some((domain, node)) => Known::Yes(Some(FirmwareLocality {
                    domain,
                    node,
                    told_by: FirmwareSource::AcpiPxm,
                    evidence,
                })),
                None => Known::no(format!("{evidence} is beyond any number a node can have")),
            }
        })
    }

    /// The declaration of a root bus: the one the kernel linked to it, or else the one whose `_SEG` and `_BBN` match.
    fn bridge(&self, root: RootBus) -> Known<Option<(Path, &Object)>> {
        let linked = self.linked_path(root);
        if let Some(path) = linked
            && let Some(object) = self.namespace.get(&path)
        {
            return Known::Yes(Some((path, object)));
        }
        let bridges = self.namespace.host_bridges();
        let is = |number: Option<Number>, wanted: u64| {
            number.unwrap_or(Number::Constant(0)) == Number::Constant(wanted)
        };
        let mut matching = bridges.iter().filter(|(_, object)| {
            is(object.segment, u64::from(root.domain)) && is(object.bus, u64::from(root.bus))
        });
        if let Some(&(path, object)) = matching.next() {
            return match matching.next() {
                None => Known::Yes(Some((path.clone(), object))),
                Some((other, _)) => Known::no(format!(
                    "both {path} and {other} are declared for bus {root}"
                )),
            };
        }
        match bridges
            .iter()
            .find(|(_, object)| [object.bus, object.segment].contains(&Some(Number::Computed)))
        {
            Some((path, _)) => Known::no(format!(
                "the bus of {path} is computed by a method, which is not run"
            )),
            None => Known::Yes(None),
        }
    }

    fn linked_path(&self, root: RootBus) -> Option<Path> {
        let text = attribute::text_of(
            self.tree,
            &format!("sys/devices/pci{root}/firmware_node/path"),
        )?;
        Path::parse(&text)
    }

    /// `_PXM` of an object or of the nearest one above it, as acpi_get_pxm in drivers/acpi/numa/srat.c looks it up.
    fn proximity(&self, path: Path, object: &Object) -> Option<(Path, (Number, usize))> {
        if let Some(proximity) = object.proximity {
            return Some((path, proximity));
        }
        let mut above = path.parent();
        while let Some(path) = above {
            if let Some(proximity) = self
                .namespace
                .get(&path)
                .and_then(|object| object.proximity)
            {
                return Some((path, proximity));
            }
            above = path.parent();
        }
        None
    }
}
