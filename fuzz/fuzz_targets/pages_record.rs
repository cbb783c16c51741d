//! Records of where the pages of a process were, as a crash or an attacker may leave them.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    nearfar_change::read_record(bytes);
});
