//! Synthetic strings.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(machine) = nearfar_sources::synthetic::parse(text) {
        assert_eq!(machine.check(), Vec::<String>::new());
    }
});
