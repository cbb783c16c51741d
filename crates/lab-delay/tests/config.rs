// SPDX-License-Identifier: GPL-2.0-or-later
//! The configuration's text: what is taken, what is refused and where.

use nearfar_lab_delay::config::{Config, ConfigError, LineFault, TimeConfig, Transfer};
use proptest::prelude::*;

const GOOD: &str = "nearfar-delay 3\ncpus 0 1\nmemory 0 4096 0\nmemory 8192 4096 1\ncache 65536 16 0\n\
                    delay 0 0 400\ndelay 0 1 800\ndelay 1 0 700\ndelay 1 1 400\ntransfer 500 500 2000\n";

fn refused(text: &str) -> ConfigError {
    text.parse::<Config>().expect_err(text)
}

#[test]
fn a_good_text_is_taken_whole() {
    let config: Config = GOOD.parse().unwrap();
    assert_eq!(config.cpus, [0, 1]);
    assert_eq!(config.memory[1].start, 8192);
    assert_eq!((config.cache_bytes, config.cache_ways), (65536, 16));
    assert_eq!((config.delays[&(0, 1)], config.delays[&(1, 0)]), (800, 700));
    let transfer = Transfer {
        same_core: 0,
        same_cache: 500,
        same_node: 500,
        other_node: 2000,
    };
    assert_eq!((config.transfer, config.caches), (transfer, vec![0, 1]));
}

#[test]
fn the_example_of_the_documentation_is_taken() {
    let page = include_str!("../../../docs/delay-plugin.md");
    let (_, text) = page.split_once("```\nnearfar-delay").unwrap();
    let (text, _) = text.split_once("```").unwrap();
    let config: Config = format!("nearfar-delay{text}").parse().unwrap();
    // Whatever it has, the table below it explains.
    for line in text.lines().skip(1) {
        let (key, _) = line.split_once(' ').unwrap();
        assert!(page.contains(&format!("\n| `{key}` |")), "{key}");
    }
    assert_eq!(config.link, Some(6400));
}

#[test]
fn a_fault_is_named_with_its_line() {
    let order = LineFault::Order {
        start: 2048,
        end: 6144,
    };
    let number = |word: &str| LineFault::Number(word.to_owned());
    for (from, to, line, fault) in [
        (
            "nearfar-delay 3",
            "nearfar-delay 1",
            1,
            LineFault::Format("nearfar-delay 1".to_owned()),
        ),
        ("cpus 0 1", "cpus 0 x", 2, number("x")),
        ("cpus 0 1", "cpus 0  1", 2, number("")),
        ("memory 8192 4096 1", "memory 2048 4096 1", 4, order),
        (
            "memory 8192 4096 1",
            "memory 8192 100 1",
            4,
            LineFault::Alignment,
        ),
        (
            "memory 8192 4096 1",
            "memory 18446744073709551552 4096 1",
            4,
            LineFault::Overflow,
        ),
        (
            "delay 0 1 800",
            "delay 0 0 800",
            7,
            LineFault::RepeatedDelay { from: 0, to: 0 },
        ),
        (
            "delay 0 1 800",
            "delay 0 1 2000000",
            7,
            LineFault::Delay(2_000_000),
        ),
        (
            "delay 0 1 800",
            "delay 0 1 +800",
            7,
            LineFault::Sign("+800".to_owned()),
        ),
        (
            "delay 0 1 800",
            "delay 0 1",
            7,
            LineFault::Count {
                wanted: 3,
                found: 2,
            },
        ),
        (
            "transfer 500 500 2000",
            "speed 9",
            10,
            LineFault::Key("speed".to_owned()),
        ),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD);
        assert_eq!(refused(&text), ConfigError::Line { line, fault });
    }
}

#[test]
fn what_the_whole_lacks_is_named() {
    let cache = ConfigError::Cache {
        bytes: 64,
        ways: 16,
    };
    for (from, to, error) in [
        (
            "delay 0 1 800\n",
            "",
            ConfigError::MissingDelay { from: 0, to: 1 },
        ),
        ("cache 65536 16 0", "cache 64 16 0", cache),
        (
            "transfer 500 500 2000\n",
            "",
            ConfigError::Missing("transfer"),
        ),
        (
            "memory 8192 4096 1",
            "memory 8192 274877906944 1",
            ConfigError::TooMuchMemory,
        ),
        ("cpus 0 1", "cpus 0 1\ncaches 0 2", ConfigError::Caches),
        ("cpus 0 1", "cpus 0 1\ncaches 0", ConfigError::Caches),
        (
            "cpus 0 1",
            "cpus 0 1\ncaches 0 50",
            ConfigError::TooManyVcpus,
        ),
        ("cpus 0 1", "cpus 0 1\nlink 3200", ConfigError::NoTime),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD);
        assert_eq!(refused(&text), error);
    }
}

proptest! {
    #[test]
    fn any_text_is_taken_or_refused(text in "(nearfar-delay 3\n)?([a-z]{0,8}( [0-9+x-]{0,20}){0,4}\n){0,8}") {
        let _ = text.parse::<Config>();
    }

    #[test]
    fn a_text_cut_anywhere_is_taken_or_refused(end in 0..GOOD.len()) {
        let _ = GOOD[..end].parse::<Config>();
    }
}

#[test]
fn simulated_time_needs_no_memory() {
    let config: Config = "nearfar-delay 3\ncpus 0 1\ntime 250 40000 200000 7 1 20000\n"
        .parse()
        .unwrap();
    let time = TimeConfig {
        ps_per_instruction: 250,
        window_ps: 40_000,
        wide_window_ps: 200_000,
        seed: 7,
        jumps_when_idle: true,
        disk_ps: 20_000_000,
    };
    assert_eq!((config.time, config.has_memory()), (Some(time), false));
    for wrong in [
        "time 0 1 1 1 0 0",
        "time 1 1 1 0",
        "time 2000000 1 1 1 0 0",
        "time 500 200 200 0 0 0\ntime 500 200 200 0 0 0",
        "time 500 200 200 0 0 0\nlink 0 1 3200",
        "time 500 200 200 0 0 0\nlink 3200\nlink 3200",
        "time 500 200 200 0 0 0\npackage 0 0\npackage 0 1",
    ] {
        let text = format!("nearfar-delay 3\ncpus 0 1\n{wrong}\n");
        assert!(text.parse::<Config>().is_err(), "{wrong}");
    }
    assert_eq!(
        "nearfar-delay 3\ncpus 0 1\n".parse::<Config>(),
        Err(ConfigError::Missing("cache"))
    );
}
