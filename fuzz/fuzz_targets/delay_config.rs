//! The text that the delay plugin reads.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_lab_delay::config::{Config, LINE_BYTES, MAX_DELAY_NS};

fuzz_target!(|text: &str| {
    let Ok(config) = text.parse::<Config>() else { return };
    for pair in config.memory.windows(2) {
        assert!(pair[0].start + pair[0].bytes <= pair[1].start);
    }
    for range in &config.memory {
        assert!(range.start % LINE_BYTES == 0 && range.bytes % LINE_BYTES == 0);
        assert!(config.cpus.iter().all(|&from| config.delays.contains_key(&(from, range.node))));
    }
    assert!(config.delays.values().all(|&ns| ns <= MAX_DELAY_NS));
});
