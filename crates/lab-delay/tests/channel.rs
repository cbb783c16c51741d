// SPDX-License-Identifier: GPL-2.0-or-later
//! What waits for a memory or a link that is busy.

use nearfar_lab_delay::model::channel::{BANKS_PS, Channel};
use nearfar_lab_delay::model::{Model, Price};
use proptest::prelude::*;

/// 20 GB/s.
const LINE_PS: u64 = 3200;

/// vCPUs that each have so many lines on their way; the one that is furthest behind goes on, within a window. Lines a microsecond,
/// and the mean time that a line takes in nanoseconds.
fn carried(vcpus: usize, latency_ps: u64, overlap: u64, window_ps: u64) -> (f64, f64) {
    carried_by(
        &Channel::new(LINE_PS, BANKS_PS, window_ps),
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
    let end = 400_000_000.max(20 * window_ps);
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

/// 0.1 GB/s, of which a line occupies several slots; as many vCPUs as wait for a millisecond; and the widest window.
#[test]
fn a_slow_channel_carries_no_more_however_many_wait() {
    for (vcpus, overlap, window_ps) in [(4, 1, 200_000), (64, 18, 200_000), (8, 12, 1_000_000_000)]
    {
        let channel = Channel::new(640_000, BANKS_PS, window_ps);
        let (rate, _) = carried_by(&channel, vcpus, 80_000, overlap, window_ps);
        // What waits at the end is counted as well.
        let waiting = (vcpus as u64 * overlap) as f64 / 400.0;
        assert!(
            (1.54..1.6 + waiting).contains(&rate),
            "{vcpus}, {window_ps}: {rate}"
        );
    }
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
    /// Whatever the order in which they come, within the window.
    #[test]
    fn what_is_carried_takes_its_time(
        steps in prop::collection::vec((0u64..200_000, 0u64..1_000_000), 1..400),
        start in prop::sample::select(vec![0, 1 << 54, 1 << 62]),
    ) {
        let channel = Channel::new(LINE_PS, 0, 1_000_000);
        let (mut at, mut arrivals) = (start, Vec::new());
        for (step, back) in steps {
            at += step;
            let now = at.saturating_sub(back).max(start);
            arrivals.push(now + channel.carry(0, now));
        }
        // In no stretch of time more than fits, and a slot at each end.
        arrivals.sort_unstable();
        for (number, first) in arrivals.iter().enumerate() {
            let stretch = arrivals[arrivals.len() - 1] - first;
            let lines = (arrivals.len() - number) as u64;
            prop_assert!(lines * LINE_PS <= stretch + 3 * 128_000, "{} in {}", lines, stretch);
        }
    }
}

/// Two packages of two nodes each, a vCPU a node: what goes from one package to the other shares a link, and a line whose memory is in
/// the other package than the cache that has it takes 60 ns more.
fn two_packages() -> Model {
    let mut text = "nearfar-delay 3\ncpus 0 1 2 3\ntime 100 200000 200000 0 0 0\ncache 128 2 0\n\
                    transfer 10 50 100\ntransfer_home 60\nlink 6400\n"
        .to_owned();
    for node in 0..4 {
        text += &format!(
            "memory {} 65536 {node}\npackage {node} {}\n",
            node * 65536,
            node / 2
        );
        for other in 0..4 {
            text += &format!("delay {node} {other} 80\n");
        }
    }
    Model::new(&text.parse().unwrap()).unwrap()
}

/// What an access of a vCPU to an address takes at the start of time.
fn access(model: &Model, vcpu: usize, address: u64, write: bool) -> Price {
    let place = model.places()[vcpu];
    let spot = model.spot(address).unwrap();
    let touched = model.touch(place, spot.line, write);
    model.price(place, &touched, spot, false, Some(0))
}

#[test]
fn all_nodes_of_a_package_share_the_link_to_another() {
    let model = two_packages();
    // 256 ns of the link from package 0 to package 1.
    for line in 0..40 {
        access(&model, 2, line * 64, false);
    }
    let other_pair = access(&model, 3, 65536, false);
    assert!(other_pair.wait_ps >= 256_000, "{other_pair:?}");
    // Neither the way back nor the way within a package is the same link.
    for (vcpu, address) in [(0, 3 * 65536), (1, 0x8000), (2, 3 * 65536 + 64)] {
        let price = access(&model, vcpu, address, false);
        assert_eq!((price.ps, price.wait_ps), (80_000, 0), "{vcpu}");
    }
}

#[test]
fn a_line_of_memory_far_from_the_cache_that_has_it_takes_longer() {
    let model = two_packages();
    let ps = |vcpu, address, write| {
        let price = access(&model, vcpu, address, write);
        price.ps - price.wait_ps
    };
    let (near_0, near_2) = (0, 2 * 65536);
    for address in [near_0, near_2] {
        ps(0, address, true);
    }
    // From node 0's cache: its own memory, then the reader's.
    assert_eq!(ps(2, near_0, false), 100_000);
    assert_eq!(ps(2, near_2, false), 160_000);
    // Back, after it was written there.
    ps(2, near_0, true);
    ps(2, near_2, true);
    assert_eq!(ps(0, near_0, false), 160_000);
    assert_eq!(ps(1, near_2, false), 100_000);
    // Within a package it does not matter.
    ps(0, near_2, true);
    assert_eq!(ps(1, near_2, false), 100_000);
}
