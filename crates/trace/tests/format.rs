//! Descriptions of events, valid and malformed.

use nearfar_trace::format::{Format, FormatError};
use proptest::prelude::*;

/// `nvme_setup_cmd` of Linux 6.1 and 6.12, which differ in what is said of the disk's sign.
const NVME: &str = include_str!("formats/nvme_setup_cmd-6.12");
const NVME_61: &str = include_str!("formats/nvme_setup_cmd-6.1");
/// `sched_migrate_task` of Linux 6.1, where the name is in the event itself.
const MIGRATE_61: &str = include_str!("formats/sched_migrate_task-6.1");
/// The same of Linux 6.18, where it is elsewhere.
const MIGRATE_618: &str = include_str!("formats/sched_migrate_task-6.18");

/// An event of so many bytes with some of them set.
fn event(length: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut event = vec![0; length];
    for (at, bytes) in parts {
        event[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    event
}

#[test]
fn a_command_is_read_by_the_kernels_own_description() {
    for text in [NVME, NVME_61] {
        let format = Format::parse(text).unwrap();
        assert_eq!(format.name(), "nvme_setup_cmd");
        let bytes = event(
            96,
            &[
                (8, b"nvme0c1n1\0rest"),
                (40, &7i32.to_ne_bytes()),
                (44, &3i32.to_ne_bytes()),
                (48, &[2]),
            ],
        );
        assert_eq!(
            format.text("disk").unwrap().read(&bytes),
            Some(&b"nvme0c1n1"[..])
        );
        let number = |field| format.number(field).unwrap().read(&bytes);
        assert_eq!(
            [number("ctrl_id"), number("qid"), number("opcode")],
            [Some(7), Some(3), Some(2)]
        );
    }
}

#[test]
fn a_name_is_found_inside_the_event_and_elsewhere_in_it() {
    let old = Format::parse(MIGRATE_61).unwrap();
    let bytes = event(40, &[(8, b"probe"), (24, &(-1i32).to_ne_bytes())]);
    assert_eq!(old.text("comm").unwrap().read(&bytes), Some(&b"probe"[..]));
    assert_eq!(
        old.number("pid").unwrap().read(&bytes),
        Some(-1),
        "pid_t is signed"
    );
    let new = Format::parse(MIGRATE_618).unwrap();
    let place = (6u32 << 16 | 28).to_ne_bytes();
    let bytes = event(
        40,
        &[(8, &place), (28, b"probe\0"), (12, &4711i32.to_ne_bytes())],
    );
    assert_eq!(new.text("comm").unwrap().read(&bytes), Some(&b"probe"[..]));
    assert_eq!(new.number("pid").unwrap().read(&bytes), Some(4711));
}

#[test]
fn a_text_that_points_out_of_its_event_is_not_read() {
    let new = Format::parse(MIGRATE_618).unwrap();
    let comm = new.text("comm").unwrap();
    for (length, offset) in [
        (6u32, 36u32),
        (1, 40),
        (0xffff, 0),
        (0xffff, 0xffff),
        (41, 0),
    ] {
        let place = (length << 16 | offset).to_ne_bytes();
        assert_eq!(
            comm.read(&event(40, &[(8, &place)])),
            None,
            "{length} bytes at {offset}"
        );
    }
    assert_eq!(
        comm.read(&event(40, &[(8, &(40u32 << 16).to_ne_bytes())]))
            .unwrap()
            .len(),
        0,
        "up to the first NUL"
    );
    assert_eq!(comm.read(&[0; 11]), None, "shorter than the field itself");
}

#[test]
fn a_relative_place_is_counted_from_the_end_of_its_field() {
    let text = "name: e\nID: 9\nformat:\n\tfield:__rel_loc char[] s;\toffset:8;\tsize:4;\tsigned:0;\n\nprint fmt: \"\"\n";
    let format = Format::parse(text).unwrap();
    let bytes = event(24, &[(8, &(3u32 << 16 | 4).to_ne_bytes()), (16, b"abc")]);
    assert_eq!(format.text("s").unwrap().read(&bytes), Some(&b"abc"[..]));
}

#[test]
fn what_is_missing_or_of_another_kind_is_named_with_what_there_is() {
    let format = Format::parse(MIGRATE_61).unwrap();
    let error = format.number("cgroup").unwrap_err().to_string();
    assert!(
        error.contains("sched_migrate_task has no field cgroup") && error.contains("dest_cpu"),
        "{error}"
    );
    assert!(matches!(
        format.number("comm"),
        Err(FormatError::Kind { field: "comm", .. })
    ));
    assert!(matches!(
        format.text("pid"),
        Err(FormatError::Kind { field: "pid", .. })
    ));
}

#[test]
fn numbers_are_signed_or_not_as_described() {
    let of = |size: usize, signed: u8| {
        let field = format!("field:x n;\toffset:0;\tsize:{size};\tsigned:{signed};");
        let format = Format::parse(&format!(
            "name: e\nID: 9\nformat:\n\t{field}\nprint fmt: \"\"\n"
        ))
        .unwrap();
        format.number("n").map(|number| number.read(&[0xff; 8]))
    };
    for size in [1, 2, 4, 8] {
        assert_eq!(of(size, 1), Ok(Some(-1)), "{size} bytes");
    }
    assert_eq!(
        [of(1, 0), of(2, 0), of(4, 0)],
        [Ok(Some(255)), Ok(Some(65_535)), Ok(Some(u32::MAX.into()))]
    );
    assert_eq!(of(8, 0), Ok(None), "too large for a signed number");
    assert!(of(3, 0).is_err() && of(16, 0).is_err());
}

#[test]
fn hostile_descriptions_are_refused_by_line() {
    let with = |field: &str| {
        Format::parse(&format!(
            "name: e\nID: 9\nformat:\n\t{field}\n\nprint fmt: \"\"\n"
        ))
    };
    for field in [
        "field:int a;\toffset:99999999999;\tsize:4;\tsigned:0;",
        "field:int a;\toffset:-1;\tsize:4;\tsigned:0;",
        "field:int a;\toffset:0;\tsize:4;\tsigned:2;",
        "field:int a;\toffset:0;\tsize:4;",
        "field:int a;\toffset:0;\tsize:4;\tsigned:0;\tmore:1;",
        "field:int ;\toffset:0;\tsize:4;\tsigned:0;",
        "field:int (*f)(void);\toffset:0;\tsize:8;\tsigned:0;",
        "offset:0;\tsize:4;\tsigned:0;",
    ] {
        let error = with(field).unwrap_err();
        assert!(
            matches!(error, FormatError::Line { line: 4, .. }),
            "{field}: {error}"
        );
    }
    let error = with("field:char a[99];\toffset:16380;\tsize:99;\tsigned:0;").unwrap_err();
    assert!(matches!(error, FormatError::TooLarge { .. }), "{error}");
    let twice = "field:int a;\toffset:0;\tsize:4;\tsigned:0;\n\tfield:int a;\toffset:4;\tsize:4;\tsigned:0;";
    assert!(matches!(with(twice), Err(FormatError::Twice { .. })));
    for (text, says) in [
        ("", "name:"),
        ("name: e\n", "ID:"),
        ("name: e\nID: 70000\nformat:\n", "65535"),
        ("name: e;f\nID: 7\nformat:\n", "name"),
        ("name: e\nID: 7\nformat:\n", "print fmt"),
    ] {
        let error = Format::parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}: {error}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
        let _ = Format::parse(&text);
    }

    #[test]
    fn a_description_damaged_anywhere_is_refused_or_read_without_panic(at in 0usize..1000, byte: u8, bytes: Vec<u8>) {
        let mut text = NVME.as_bytes().to_vec();
        let at = at % text.len();
        text[at] = byte;
        if let Ok(format) = Format::parse(&String::from_utf8_lossy(&text)) {
            for field in ["ctrl_id", "qid", "opcode"] {
                let _ = format.number(field).map(|number| number.read(&bytes));
            }
            let _ = format.text("disk").map(|text| text.read(&bytes));
        }
    }

    #[test]
    fn every_described_field_is_found_where_it_is(offset in 0usize..2000, value: u32, length in 0usize..2100) {
        let field = format!("field:u32 n;\toffset:{offset};\tsize:4;\tsigned:0;");
        let format = Format::parse(&format!("name: e\nID: 9\nformat:\n\t{field}\nprint fmt: \"\"\n")).unwrap();
        let mut bytes = vec![0; length];
        if let Some(place) = bytes.get_mut(offset..offset + 4) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
        let expected = (offset + 4 <= length).then_some(i64::from(value));
        prop_assert_eq!(format.number("n").unwrap().read(&bytes), expected);
    }
}
