//! Snapshots: the file as it stands, and the JSON inside it.
#![no_main]
use std::io::Write as _;

use libfuzzer_sys::fuzz_target;
use nearfar_sources::snapshot;

fuzz_target!(|bytes: &[u8]| {
    let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    compressed.write_all(bytes).expect("writing to memory");
    for content in [bytes, &compressed.finish().expect("writing to memory")] {
        if let Ok(machine) = snapshot::read(content, "fuzz") {
            assert_eq!(machine.check(), Vec::<String>::new());
        }
    }
});
