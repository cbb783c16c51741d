//! Snapshots, compressed as they stand in files and as the JSON inside.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_sources::snapshot;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(machine) = snapshot::read(bytes, "fuzz") {
        assert_eq!(machine.check(), Vec::<String>::new());
    }
});
