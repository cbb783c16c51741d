//! The limit of the lab's cache, and records of saved guests.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_lab::cache::parse_limit;
use nearfar_lab::guest::SavedRecord;

fuzz_target!(|bytes: &[u8]| {
    let _ = parse_limit(bytes);
    if let Ok(record) = SavedRecord::parse(bytes) {
        assert!(record.to_string().contains(&record.machine));
    }
});
