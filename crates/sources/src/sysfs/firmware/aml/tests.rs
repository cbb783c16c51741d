use proptest::prelude::*;

use super::*;

fn length(inside: usize) -> Vec<u8> {
    // The length counts its own bytes.
    match inside {
        0..=62 => vec![inside as u8 + 1],
        _ => {
            let whole = inside + 2;
            vec![0x40 | (whole & 0x0f) as u8, (whole >> 4) as u8]
        }
    }
}

fn block(opcode: &[u8], name: &[u8], content: &[u8]) -> Vec<u8> {
    [opcode, &length(name.len() + content.len()), name, content].concat()
}

fn device(name: &[u8; 4], content: &[&[u8]]) -> Vec<u8> {
    block(&[0x5b, 0x82], name, &content.concat())
}

const HID: &[u8] = b"\x08_HID\x0c\x41\xd0\x0a\x08";

fn bridges(code: &[u8]) -> Vec<(String, AmlObject)> {
    let mut namespace = Namespace::default();
    namespace.add(code, 3);
    namespace
        .host_bridges()
        .into_iter()
        .map(|(path, object)| (path.to_string(), object.clone()))
        .collect()
}

#[test]
fn a_host_bridge_is_found_with_its_bus_and_domain() {
    let bridge = device(
        b"PC40",
        &[
            HID,
            b"\x08_BBN\x0a\x40",
            b"\x08_SEG\x01",
            b"\x08_PXM\x0a\x02",
        ],
    );
    let found = bridges(&block(&[0x10], b"\\_SB_", &bridge));
    let [(path, object)] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(path, "\\_SB_.PC40");
    assert_eq!(object.bus, Some(Number::Constant(0x40)));
    assert_eq!(object.segment, Some(Number::Constant(1)));
    assert_eq!(object.proximity, Some((Number::Constant(2), 3)));
}

#[test]
fn a_compatible_bridge_in_a_package_or_a_string_counts_too() {
    let package = block(&[0x12], &[2], b"\x0c\x41\xd0\x0a\x03\x0c\x41\xd0\x0a\x08");
    for id in [
        package,
        b"\x0dPNP0A08\0".to_vec(),
        b"\x0c\x41\xd0\x0a\x03".to_vec(),
    ] {
        let found = bridges(&device(
            b"PC00",
            &[b"\x08_HID\x0dACPI0016\0", b"\x08_CID", &id, b"\x08_PXM\x01"],
        ));
        assert_eq!(found.len(), 1, "{id:?}");
        assert_eq!(
            found[0].1.proximity,
            Some((Number::Constant(1), 3)),
            "{id:?}"
        );
    }
}

#[test]
fn a_method_that_returns_a_constant_is_one_and_any_other_is_computed() {
    let constant = block(&[0x14], b"_PXM", b"\x00\xa4\x0a\x05");
    let computed = block(&[0x14], b"_PXM", b"\x00\xa4\x72NOD_\x01\x00");
    for (method, expected) in [
        (constant, Number::Constant(5)),
        (computed, Number::Computed),
    ] {
        assert_eq!(
            bridges(&device(b"PC00", &[HID, &method]))[0].1.proximity,
            Some((expected, 3))
        );
    }
}

#[test]
fn a_second_table_adds_to_a_device_of_the_first() {
    let mut namespace = Namespace::default();
    namespace.add(&block(&[0x10], b"\\_SB_", &device(b"PC40", &[HID])), 0);
    namespace.add(&block(&[0x10], b"\\\x2e_SB_PC40", b"\x08_PXM\x0a\x02"), 1);
    let found = namespace.host_bridges();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1.proximity, Some((Number::Constant(2), 1)));
    assert_eq!(
        namespace.get(&Path::parse("\\_SB_.PC40").unwrap()),
        Some(found[0].1)
    );
}

#[test]
fn calls_and_conditions_between_declarations_are_passed_over() {
    let bridge = device(
        b"PC40",
        &[b"\x70\x01\x60INIT\x08\x08", HID, b"\x08_BBN\x0a\x40"],
    );
    let within_if = block(&[0xa0], b"\x93\x60\x01", &bridge);
    let found = bridges(&[b"ADBG\x0dhello\0".to_vec(), within_if].concat());
    assert_eq!(found[0].1.bus, Some(Number::Constant(0x40)));
}

#[test]
fn declarations_nested_without_end_are_cut_off() {
    let mut code = Vec::new();
    for _ in 0..200 {
        code = device(b"DEEP", &[&code]);
    }
    assert!(bridges(&code).is_empty());
}

proptest! {
    #[test]
    fn no_bytes_panic(code: Vec<u8>) {
        bridges(&code);
    }

    #[test]
    fn no_damaged_table_panics(at in 0usize..60, byte: u8, cut in 0usize..60) {
        let mut code = block(&[0x10], b"\\_SB_", &device(b"PC40", &[HID, b"\x08_BBN\x0a\x40", b"\x08_PXM\x0a\x02"]));
        let place = at % code.len();
        code[place] = byte;
        code.truncate(code.len() - cut % code.len());
        bridges(&code);
    }
}
