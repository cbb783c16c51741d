// SPDX-License-Identifier: GPL-2.0-or-later
//! Who pays for a line that others have: four vCPUs, two on each of two nodes.

use nearfar_lab_delay::config::Config;
use nearfar_lab_delay::model::Model;
use nearfar_lab_delay::model::lines::Cost::{self, Hit, Memory, TransferOther, TransferSame};
use proptest::prelude::*;

fn model() -> Model {
    // One set of two ways a node: two other lines in it evict.
    let config: Config = "nearfar-delay 3\ncpus 0 0 1 1\nmemory 0 65536 0\nmemory 65536 65536 1\ncache 128 2 0\n\
                          delay 0 0 400\ndelay 0 1 800\ndelay 1 0 700\ndelay 1 1 300\ntransfer 500 500 2000\n"
        .parse()
        .unwrap();
    Model::new(&config).unwrap()
}

fn play(model: &Model, steps: &[(usize, char)]) -> Vec<Cost> {
    steps
        .iter()
        .map(|&(vcpu, what)| model.touch(model.places()[vcpu], 0, what == 'w').cost)
        .collect()
}

#[test]
fn a_vcpu_alone_pays_for_memory_once() {
    assert_eq!(
        play(
            &model(),
            &[(0, 'r'), (0, 'r'), (0, 'w'), (0, 'r'), (0, 'w')]
        ),
        [Memory, Hit, Hit, Hit, Hit]
    );
}

#[test]
fn a_line_read_by_another_node_comes_from_its_writer_once_and_is_shared_then() {
    let costs = play(
        &model(),
        &[(0, 'w'), (2, 'r'), (2, 'r'), (3, 'r'), (0, 'r')],
    );
    assert_eq!(costs, [Memory, TransferOther, Hit, Hit, Hit]);
}

#[test]
fn a_neighbour_pays_for_a_line_of_its_node_less() {
    assert_eq!(
        play(&model(), &[(0, 'w'), (1, 'r'), (1, 'r'), (0, 'r')]),
        [Memory, TransferSame, Hit, Hit]
    );
}

#[test]
fn a_write_takes_the_line_from_all_readers() {
    let costs = play(
        &model(),
        &[
            (0, 'w'),
            (2, 'r'),
            (0, 'w'),
            (2, 'r'),
            (1, 'r'),
            (1, 'w'),
            (0, 'w'),
        ],
    );
    let expected = [
        Memory,
        TransferOther,
        TransferOther,
        TransferOther,
        Hit,
        TransferOther,
        TransferSame,
    ];
    assert_eq!(costs, expected);
}

#[test]
fn a_counter_that_two_nodes_write_costs_each_of_them_every_time() {
    let costs = play(&model(), &[(0, 'w'), (2, 'w'), (0, 'w'), (2, 'w')]);
    assert_eq!(costs, [Memory, TransferOther, TransferOther, TransferOther]);
}

#[test]
fn lines_that_are_only_read_cost_every_node_its_memory_and_no_transfer() {
    assert_eq!(
        play(&model(), &[(0, 'r'), (2, 'r'), (3, 'r'), (1, 'r')]),
        [Memory, Memory, Hit, Hit]
    );
}

#[test]
fn an_evicted_line_is_read_from_memory_again_and_its_writer_is_forgotten() {
    let model = model();
    play(&model, &[(0, 'w')]);
    for line in [1, 2] {
        model.touch(model.places()[0], line, false);
    }
    assert_eq!(play(&model, &[(2, 'r'), (0, 'r')]), [Memory, Memory]);
}

/// What an access takes in nanoseconds, in the host's time.
fn ns(model: &Model, vcpu: usize, address: u64, write: bool) -> u64 {
    let (place, spot) = (model.places()[vcpu], model.spot(address).unwrap());
    let touched = model.touch(place, spot.line, write);
    let price = model.price(place, &touched, spot, false, None);
    assert_eq!(price.wait_ps, 0);
    price.ps / 1000
}

#[test]
fn costs_become_nanoseconds_by_pair() {
    let model = model();
    let steps = [
        (0, 0),
        (0, 65536),
        (2, 128),
        (2, 65536 + 128),
        (1, 0),
        (2, 0),
        (2, 0),
    ];
    let all = steps.map(|(vcpu, address)| ns(&model, vcpu, address, true));
    assert_eq!(all, [400, 800, 700, 300, 500, 2000, 0]);
}

#[test]
fn a_line_that_several_nodes_have_is_waited_for_until_the_last_has_answered() {
    let config: Config = "nearfar-delay 3\ncpus 0 1 2\nmemory 0 65536 0\ncache 128 2 0\n\
                          delay 0 0 1\ndelay 1 0 1\ndelay 2 0 1\ntransfer 500 500 2000\n\
                          transfer_pair 0 2 4000\n"
        .parse()
        .unwrap();
    let model = Model::new(&config).unwrap();
    let steps = [(1, true), (0, true), (2, true), (1, false), (0, true)];
    let all = steps.map(|(vcpu, write)| ns(&model, vcpu, 0, write));
    assert_eq!(all, [1, 2000, 2000, 2000, 4000]);
}

#[test]
fn caches_of_one_node_are_told_apart() {
    // Two caches of node 0, of two vCPUs each, and one of node 1.
    let config: Config = "nearfar-delay 3\ncpus 0 0 0 0 1\ncaches 0 0 1 1 2\nmemory 0 65536 0\n\
                          cache 128 2 20\ndelay 0 0 90\ndelay 1 0 140\ntransfer 25 80 190\n"
        .parse()
        .unwrap();
    let model = Model::new(&config).unwrap();
    let steps = [
        (0, true),
        (1, true),
        (2, true),
        (4, true),
        (4, true),
        (3, false),
    ];
    let all = steps.map(|(vcpu, write)| ns(&model, vcpu, 0, write));
    assert_eq!(all, [90, 25, 80, 190, 20, 190]);
    // A line that caches share without a change comes from memory.
    let all = [0, 2, 4].map(|vcpu| ns(&model, vcpu, 1024, false));
    assert_eq!(all, [90, 90, 140]);
}

#[test]
fn addresses_find_their_node_and_holes_find_nothing() {
    let model = model();
    assert_eq!(model.spot(65535).unwrap().node, 0);
    assert_eq!(
        model.spot(65536).map(|spot| (spot.node, spot.line)),
        Some((1, 1024))
    );
    assert_eq!(model.spot(131_072), None);
}

proptest! {
    #[test]
    fn right_after_its_own_access_a_vcpu_reads_for_nothing_and_after_its_own_write_writes_for_nothing(
        steps in prop::collection::vec((0usize..4, prop::bool::ANY, 0u32..6), 1..200),
    ) {
        let model = model();
        for (vcpu, write, line) in steps {
            let place = model.places()[vcpu];
            model.touch(place, line, write);
            prop_assert_eq!(model.touch(place, line, write).cost, Hit);
        }
    }

    #[test]
    fn two_vcpus_never_write_a_line_in_turn_for_nothing(
        steps in prop::collection::vec((0usize..4, prop::bool::ANY), 1..200), last in 0usize..4,
    ) {
        let model = model();
        for (vcpu, write) in steps {
            model.touch(model.places()[vcpu], 0, write);
        }
        let other = model.places()[(last + 1) % 4];
        model.touch(other, 0, true);
        prop_assert_ne!(model.touch(model.places()[last], 0, true).cost, Hit);
    }
}

#[test]
fn threads_of_a_core_hand_a_line_over_sooner_than_cores_of_a_cache() {
    let config: Config = "nearfar-delay 3\ncpus 0 0 0 0\nmemory 0 65536 0\ncache 65536 2 0\n\
                          delay 0 0 90\ntransfer 25 80 190\ntransfer_core 8 0 0 1 1\n"
        .parse()
        .unwrap();
    let model = Model::new(&config).unwrap();
    let ns = |vcpu: usize, write| {
        let (place, spot) = (model.places()[vcpu], model.spot(0).unwrap());
        let touched = model.touch(place, spot.line, write);
        model.price(place, &touched, spot, false, None).ps / 1000
    };
    assert_eq!(ns(0, true), 90);
    // To the other thread and back, where it is found again.
    assert_eq!([ns(1, false), ns(1, false), ns(1, true)], [8, 0, 8]);
    assert_eq!([ns(0, false), ns(0, true)], [8; 2]);
    // One thread stores again and again, the other reads.
    assert_eq!([ns(1, false), ns(0, true)], [8, 0]);
    assert_eq!([ns(1, false), ns(0, true)], [8, 0]);
    // To the other core, whose threads find it in the cache afterwards.
    assert_eq!([ns(2, false), ns(3, false), ns(1, false)], [25, 0, 0]);
    // Both have it: the other core's copy goes.
    assert_eq!([ns(0, true), ns(1, false)], [25, 8]);
}
