//! Plans as JSON, and what is written down from them.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_change::Plan;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(plan) = serde_json::from_slice::<Plan>(bytes) {
        let _ = nearfar_change::export::script(&plan);
        let _ = nearfar_change::export::systemd(&plan);
        let _ = nearfar_change::export::udev(&plan);
    }
});
