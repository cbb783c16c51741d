// SPDX-License-Identifier: GPL-2.0-or-later
//! The configuration's text: what is taken, what is refused and where.

use nearfar_lab_delay::config::Config;
use proptest::prelude::*;

const GOOD: &str = "nearfar-delay 1\ncpus 0 1\nmemory 0 4096 0\nmemory 8192 4096 1\ncache 65536 16\n\
                    delay 0 0 400\ndelay 0 1 800\ndelay 1 0 700\ndelay 1 1 400\ntransfer 500 2000\n";

fn refused(text: &str) -> (usize, String) {
    let error = text.parse::<Config>().expect_err(text);
    (error.line, error.to_string())
}

#[test]
fn a_good_text_is_taken_whole() {
    let config: Config = GOOD.parse().unwrap();
    assert_eq!(config.cpus, [0, 1]);
    assert_eq!(config.memory[1].start, 8192);
    assert_eq!((config.cache_bytes, config.cache_ways), (65536, 16));
    assert_eq!((config.delays[&(0, 1)], config.delays[&(1, 0)]), (800, 700));
    assert_eq!((config.transfer_same, config.transfer_other), (500, 2000));
}

#[test]
fn a_fault_is_named_with_its_line() {
    for (from, to, line, says) in [
        ("nearfar-delay 1", "nearfar-delay 2", 1, "nearfar-delay 1"),
        ("cpus 0 1", "cpus 0 x", 2, "\"x\""),
        ("cpus 0 1", "cpus 0  1", 2, "\"\""),
        ("memory 8192 4096 1", "memory 2048 4096 1", 4, "overlaps"),
        (
            "memory 8192 4096 1",
            "memory 8192 100 1",
            4,
            "multiples of 64",
        ),
        (
            "memory 8192 4096 1",
            "memory 18446744073709551552 4096 1",
            4,
            "64 bits",
        ),
        ("delay 0 1 800", "delay 0 0 800", 7, "second time"),
        ("delay 0 1 800", "delay 0 1 2000000", 7, "1000000"),
        ("delay 0 1 800", "delay 0 1 +800", 7, "sign"),
        ("delay 0 1 800", "delay 0 1", 7, "3 numbers"),
        ("delay 0 1 800\n", "", 0, "no delay from node 0 to node 1"),
        ("cache 65536 16", "cache 64 16", 0, "16 ways"),
        ("transfer 500 2000", "speed 9", 10, "\"speed\""),
        ("transfer 500 2000\n", "", 0, "transfer"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD);
        let (found, message) = refused(&text);
        assert_eq!(found, line, "{message}");
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn more_memory_than_the_table_has_lines_for_is_refused() {
    let text = GOOD.replacen("memory 8192 4096 1", "memory 8192 274877906944 1", 1);
    assert!(refused(&text).1.contains("256 GiB"));
}

proptest! {
    #[test]
    fn any_text_is_taken_or_refused(text in "(nearfar-delay 1\n)?([a-z]{0,8}( [0-9+x-]{0,20}){0,4}\n){0,8}") {
        let _ = text.parse::<Config>();
    }

    #[test]
    fn a_text_cut_anywhere_is_taken_or_refused(end in 0..GOOD.len()) {
        let _ = GOOD[..end].parse::<Config>();
    }
}
