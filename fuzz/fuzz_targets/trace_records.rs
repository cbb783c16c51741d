//! The bytes of a perf ring, cut anywhere.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_trace::records::{Layout, Record, walk};

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, bytes) = input;
    let (first, second) = bytes.split_at(usize::from(cut) % (bytes.len() + 1));
    let mut visited = 0;
    let mut scratch = Vec::new();
    walk([first, second], Layout::default(), &mut scratch, &mut |record| {
        visited += 1;
        if let Record::Sample(sample) = record {
            assert!(sample.event.len() < bytes.len());
        }
    });
    assert!(visited <= bytes.len() / 8 + 1);
});
