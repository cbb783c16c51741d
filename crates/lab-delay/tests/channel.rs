// SPDX-License-Identifier: GPL-2.0-or-later
//! What waits for a memory or a link that is busy.

use nearfar_lab_delay::model::channel::Channel;
use proptest::prelude::*;

/// 20 GB/s.
const LINE_PS: u64 = 3200;

/// vCPUs that each have so many lines on their way; the one that is furthest behind goes on, within a window. Lines a microsecond,
/// and the mean time that a line takes in nanoseconds.
fn carried(vcpus: usize, latency_ps: u64, overlap: u64, window_ps: u64) -> (f64, f64) {
    carried_by(
        &Channel::new(LINE_PS),
        vcpus,
        latency_ps,
        overlap,
        window_ps,
    )
}

fn carried_by(
    channel: &Channel,
    vcpus: usize,
    latency_ps: u64,
    overlap: u64,
    window_ps: u64,
) -> (f64, f64) {
    let mut local = vec![0_u64; vcpus];
    let (mut lines, mut took) = (0_u64, 0_u64);
    let end = 400_000_000;
    loop {
        let at = (0..vcpus).min_by_key(|&at| local[at]).unwrap();
        let until = local[at] + window_ps;
        if local[at] >= end {
            break;
        }
        while local[at] <= until {
            let whole = latency_ps + channel.carry(at as u16, local[at]);
            local[at] += whole / overlap;
            (lines, took) = (lines + 1, took + whole);
        }
    }
    let us = end as f64 / 1e6;
    (lines as f64 / us, took as f64 / lines as f64 / 1000.0)
}

#[test]
fn one_that_is_alone_does_not_wait() {
    let (rate, took) = carried(1, 80_000, 1, 200_000);
    assert!((12.4..12.51).contains(&rate), "{rate}");
    assert!(took == 80.0, "{took}");
}

#[test]
fn all_together_get_what_the_channel_carries_whatever_the_window() {
    for window_ps in [1, 40_000, 200_000, 1_000_000] {
        for (vcpus, overlap) in [(8, 10), (16, 10), (64, 12)] {
            let (rate, took) = carried(vcpus, 80_000, overlap, window_ps);
            let full = 1e6 / LINE_PS as f64;
            let share = rate / full;
            assert!(
                (0.95..1.03).contains(&share),
                "{vcpus} vCPUs, {window_ps}: {share}"
            );
            // Little's law.
            let expected = (vcpus as u64 * overlap) as f64 / rate * 1000.0;
            assert!(
                (took / expected - 1.0).abs() < 0.05,
                "{vcpus}: {took}, {expected}"
            );
        }
    }
}

#[test]
fn a_line_may_occupy_a_channel_for_several_slots() {
    // 0.1 GB/s.
    let channel = Channel::new(640_000);
    let (rate, _) = carried_by(&channel, 4, 80_000, 1, 200_000);
    assert!((1.54..1.6).contains(&rate), "{rate}");
}

#[test]
fn a_line_takes_longer_the_busier_the_channel_is() {
    let all: Vec<(f64, f64)> = [1, 5, 10, 15, 20, 25]
        .map(|vcpus| carried(vcpus, 80_000, 1, 200_000))
        .into();
    assert!(
        all.is_sorted_by(|one, other| one.0 < other.0 && one.1 <= other.1),
        "{all:?}"
    );
}

proptest! {
    #[test]
    fn no_line_is_carried_before_its_time_nor_after_all_others(steps in prop::collection::vec(0u64..3_000_000, 1..400)) {
        let channel = Channel::new(LINE_PS);
        for now in steps.iter().copied() {
            let wait = channel.carry(0, now);
            prop_assert!(wait < 20_000_000);
        }
    }
}
