//! A file of any kind, recognised by its content: archives of support bundles, above all.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(machine) = nearfar_sources::read_bytes(bytes, "fuzz") {
        assert_eq!(machine.check(), Vec::<String>::new());
    }
});
