//! Fake specs, and the machines they make.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_sources::{fake, synthetic};

fuzz_target!(|text: &str| {
    let Ok(spec) = text.parse() else { return };
    let machine = synthetic::parse("node:2 memory:1G core:3 pu:2 distance:20").expect("a good string");
    if let Ok(machine) = fake::lay(machine, &spec) {
        assert_eq!(machine.check(), Vec::<String>::new());
    }
});
