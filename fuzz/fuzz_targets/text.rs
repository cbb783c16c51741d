//! Text that programs print, of all kinds.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(machine) = nearfar_sources::text::parse(text, "fuzz") {
        assert_eq!(machine.check(), Vec::<String>::new());
    }
});
