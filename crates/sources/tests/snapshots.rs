//! Snapshots: what goes in comes out, and what is no snapshot says so.

use std::io::Write;

use crate::any_machine::any_machine;
use flate2::Compression;
use flate2::write::GzEncoder;
use nearfar_machine::Machine;
use nearfar_sources::{snapshot, text};
use proptest::prelude::*;

fn written(machine: &Machine) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot::write(machine, &mut bytes).unwrap();
    bytes
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn kunpeng() -> Machine {
    text::parse(include_str!("fixtures/kunpeng-numactl.txt"), "kunpeng").unwrap()
}

fn error(bytes: &[u8]) -> String {
    snapshot::read(bytes, "machine.nearfar")
        .unwrap_err()
        .to_string()
}

proptest! {
    #[test]
    fn every_machine_comes_back_as_it_was(machine in any_machine()) {
        prop_assert_eq!(snapshot::read(&written(&machine), "file").unwrap(), machine);
    }

    #[test]
    fn the_json_of_topo_is_a_snapshot(machine in any_machine()) {
        let mut json = serde_json::to_value(&machine).unwrap();
        json["schema"] = snapshot::TOPO_SCHEMA.into();
        let text = serde_json::to_vec_pretty(&json).unwrap();
        prop_assert_eq!(&snapshot::read(&text, "file").unwrap(), &machine);
        prop_assert_eq!(snapshot::read(&gzip(&text), "file").unwrap(), machine);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = snapshot::read(&bytes, "file");
        let _ = snapshot::read(&gzip(&bytes), "file");
    }

    #[test]
    fn no_damage_panics(at in 0usize..400, byte: u8) {
        let mut bytes = written(&kunpeng());
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = snapshot::read(&bytes, "file");
    }
}

#[test]
fn a_truncated_snapshot_is_told_from_a_foreign_one() {
    let bytes = written(&kunpeng());
    for length in [20, bytes.len() / 2, bytes.len() - 9] {
        let error = error(&bytes[..length]);
        assert!(
            error.contains("damaged or truncated") && error.contains("machine.nearfar"),
            "{length}: {error}"
        );
    }
    assert!(error(&gzip(b"{\"a\": 1}")).contains("does not hold a nearfar snapshot"));
    assert!(error(&gzip(b"hello")).contains("does not hold a nearfar snapshot"));
}

#[test]
fn a_newer_format_is_named_with_both_versions() {
    let error = error(&gzip(
        b"{\"nearfar_snapshot\": 2, \"machine\": {\"made\": \"differently\"}}",
    ));
    assert!(
        error.contains("format 2") && error.contains("up to 1"),
        "{error}"
    );
}

#[test]
fn fields_of_a_newer_nearfar_are_passed_over() {
    let machine = serde_json::to_string(&kunpeng()).unwrap();
    let machine = machine.replacen('{', "{\"new\": [{}], ", 1);
    let text =
        format!("{{\"nearfar_snapshot\": 1, \"taken_with\": \"love\", \"machine\": {machine}}}");
    assert_eq!(
        snapshot::read(&gzip(text.as_bytes()), "file").unwrap(),
        kunpeng()
    );
    assert_eq!(snapshot::read(text.as_bytes(), "file").unwrap(), kunpeng());
}

#[test]
fn a_machine_that_contradicts_itself_is_refused() {
    let mut machine = kunpeng();
    machine.nodes.reverse();
    assert!(error(&written(&machine)).contains("contradicts itself"));
}

#[test]
fn a_snapshot_that_inflates_without_end_is_refused() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder
        .write_all(b"{\"nearfar_snapshot\": 1, \"machine\": ")
        .unwrap();
    for _ in 0..64 {
        encoder.write_all(&[b' '; 1 << 20]).unwrap();
    }
    assert!(error(&encoder.finish().unwrap()).contains("inflates to more than"));
    for before in [
        "{\"nearfar_snapshot\": 1, \"machine\": ",
        "{\"x\": ",
        "{\"nearfar_snapshot\": 1, \"machine\": {\"pci\": ",
    ] {
        let deep = format!("{before}{}", "[".repeat(100_000));
        assert!(
            error(&gzip(deep.as_bytes())).contains("does not hold a nearfar snapshot"),
            "{before}"
        );
    }
}
