//! The bytes of a ring, as the kernel writes them and as it should not.

use nearfar_trace::Mapping;
use nearfar_trace::records::{Layout, Record, Sample, walk};
use proptest::prelude::*;

const LOST: u32 = 2;
const THROTTLE: u32 = 5;
const SAMPLE: u32 = 9;

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(8);
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(u16::try_from(8 + padded).unwrap().to_ne_bytes());
    bytes.extend(body);
    bytes.resize(8 + padded, 0);
    bytes
}

fn sample(tid: i32, time_ns: u64, event: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(1i32.to_ne_bytes());
    body.extend(tid.to_ne_bytes());
    body.extend(time_ns.to_ne_bytes());
    body.extend(u32::try_from(event.len()).unwrap().to_ne_bytes());
    body.extend(event);
    record(SAMPLE, &body)
}

fn lost(count: u64) -> Vec<u8> {
    record(LOST, &[17u64.to_ne_bytes(), count.to_ne_bytes()].concat())
}

/// What a walk visits, in words.
fn visited(parts: [&[u8]; 2]) -> Vec<String> {
    let mut visited = Vec::new();
    walk(parts, Layout::default(), &mut Vec::new(), &mut |record| {
        visited.push(match record {
            Record::Sample(Sample {
                tid,
                time_ns,
                event,
                ..
            }) => format!("{tid} at {time_ns}: {event:?}"),
            other => format!("{other:?}"),
        });
    });
    visited
}

#[test]
fn records_are_read_whole_wherever_the_ring_wraps_around() {
    let bytes = [
        sample(7, 100, &[1, 2, 3, 4]),
        lost(5),
        record(THROTTLE, &[0; 24]),
        record(77, &[]),
        sample(8, 200, &[9]),
    ];
    let bytes = bytes.concat();
    let expected = [
        "7 at 100: [1, 2, 3, 4]",
        "Lost(5)",
        "Throttled",
        "Other",
        "8 at 200: [9]",
    ];
    for cut in 0..=bytes.len() {
        let (first, second) = bytes.split_at(cut);
        assert_eq!(visited([first, second]), expected, "cut at {cut}");
    }
}

#[test]
fn a_name_is_read_with_its_time() {
    let body = [
        &[0; 4][..],
        &7i32.to_ne_bytes(),
        b"probe\0\0\0",
        &[1; 8],
        &55u64.to_ne_bytes(),
    ]
    .concat();
    walk(
        [&record(3, &body), &[]],
        Layout::default(),
        &mut Vec::new(),
        &mut |record| {
            assert_eq!(
                record,
                Record::Named {
                    pid: 0,
                    tid: 7,
                    time_ns: 55,
                    name: b"probe"
                }
            );
        },
    );
}

#[test]
fn a_mapping_is_read_with_its_file() {
    let mapped = |bytes: u64| {
        let numbers = [0x5000_u64, bytes, 0x1000].map(u64::to_ne_bytes).concat();
        let body = [&[0; 8][..], &numbers, b"/usr/bin/a b\0\0\0\0", &[0; 16]];
        visited([&record(1, &body.concat()), &[]])
    };
    let mapping = Mapping {
        start: 0x5000,
        end: 0x7000,
        file_offset: 0x1000,
        file: "/usr/bin/a b".to_owned(),
    };
    assert!(mapping.has(0x6010) && !mapping.has(0x7000));
    assert_eq!(mapping.offset(0x6010), 0x2010);
    assert_eq!(mapped(0x2000), [format!("Mapped({mapping:?})")]);
    assert_eq!(mapped(u64::MAX), ["Damaged"]);
    assert_eq!(visited([&record(1, &[0; 16]), &[]]), ["Damaged"]);
}

#[test]
fn a_record_whose_size_is_wrong_ends_the_walk_and_is_counted() {
    let good = sample(7, 100, &[1]);
    for size in [0u16, 1, 7, 9000, u16::MAX] {
        let mut bad = good.clone();
        bad[6..8].copy_from_slice(&size.to_ne_bytes());
        let bytes = [good.clone(), bad, good.clone()].concat();
        assert_eq!(
            visited([&bytes, &[]]),
            ["7 at 100: [1]", "Damaged"],
            "size {size}"
        );
    }
    assert_eq!(
        visited([&good[..good.len() - 1], &[]]),
        ["Damaged"],
        "cut short"
    );
    assert_eq!(visited([&[0; 5], &[]]), ["Damaged"], "not even a header");
}

#[test]
fn a_sample_that_claims_more_bytes_than_it_has_is_counted_and_the_next_one_read() {
    for claimed in [21u32, 65_536, u32::MAX] {
        let mut bad = sample(7, 100, &[1; 20]);
        bad[24..28].copy_from_slice(&claimed.to_ne_bytes());
        let bytes = [bad, sample(8, 200, &[2])].concat();
        let found = visited([&bytes, &[]]);
        assert_eq!(found, ["Damaged", "8 at 200: [2]"], "{claimed}");
    }
    assert_eq!(visited([&record(SAMPLE, &[0; 8]), &[]]), ["Damaged"]);
    assert_eq!(visited([&record(LOST, &[0; 8]), &[]]), ["Damaged"]);
}

proptest! {
    #[test]
    fn no_bytes_make_the_walk_panic_or_go_on_for_ever(first: Vec<u8>, second: Vec<u8>) {
        let found = visited([&first, &second]);
        prop_assert!(found.len() <= (first.len() + second.len()) / 8 + 1);
    }

    #[test]
    fn what_is_written_is_what_is_read(
        events in proptest::collection::vec((any::<i32>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..100)), 0..20),
        cut: prop::sample::Index,
    ) {
        let bytes: Vec<u8> = events.iter().flat_map(|(tid, time, event)| sample(*tid, *time, event)).collect();
        let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
        let expected: Vec<String> =
            events.iter().map(|(tid, time, event)| format!("{tid} at {time}: {event:?}")).collect();
        prop_assert_eq!(visited([first, second]), expected);
    }
}
