//! The words of --scale and --delay, and what becomes of them: a smaller machine, and text that the delay plugin takes.
#![no_main]
use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nearfar_lab::Arch;
use nearfar_lab::delay::{self, DelaySpec};
use nearfar_lab::design::Design;
use nearfar_lab::scale::scaled;
use nearfar_lab_delay::config::Config;
use nearfar_machine::{Machine, NodeLimits};

static MACHINE: LazyLock<Machine> =
    LazyLock::new(|| nearfar_sources::synthetic::parse("node:3 core:4 distance:20").expect("a machine"));
static DESIGN: LazyLock<Design> = LazyLock::new(|| Design::new(&MACHINE, Arch::X86_64).expect("a design"));

fuzz_target!(|input: (&str, &str)| {
    let (scale, delays) = input;
    if let Ok(scale) = scale.parse::<NodeLimits>() {
        let written = scale.to_string();
        assert_eq!(written.parse::<NodeLimits>().map(|again| again.to_string()), Ok(written));
        let machine = scaled(&MACHINE, scale).expect("no fake nodes that could fail to fit");
        assert_eq!(machine.check(), Vec::<String>::new());
        let _ = Design::new(&machine, Arch::X86_64);
    }
    let Ok(asked @ DelaySpec::On(_)) = delays.parse::<DelaySpec>() else { return };
    if let Ok(setup) = delay::setup(&DESIGN, &asked, None, Path::new("plugin")) {
        let config: Config = setup.config.parse().expect("the plugin takes what the lab writes");
        assert_eq!(config.cpus.len(), DESIGN.cpu_nodes.len());
    }
});
