// SPDX-License-Identifier: GPL-2.0-or-later
//! A line that two vCPUs hand to each other in simulated time, with turns as they are taken.

use std::sync::atomic::AtomicU64;

use nearfar_lab_delay::config::Config;
use nearfar_lab_delay::model::Model;
use nearfar_lab_delay::region::transfers::Transfers;
use nearfar_lab_delay::region::{Counters, Doorbells};
use nearfar_lab_delay::vcpu::{Access, Charged, Clock as _, Target, Vcpu};

const LINE: u64 = 0x4000;
const TRIPS: u64 = 400;

/// A vCPU, its local time and where it is in its program: store, then poll until the number has changed.
struct Player {
    vcpu: Vcpu<'static>,
    local_ps: u64,
    /// The number that it waits for; it stores the next one.
    wanted: u64,
    polls: bool,
}

impl Player {
    fn new(model: &'static Model, number: usize, wanted: u64, polls: bool) -> Self {
        let words = (0..17).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
        let doorbells = Doorbells::over(Box::leak(Box::new([AtomicU64::new(0)])));
        let transfers = Transfers::over(Box::leak(Box::new([const { AtomicU64::new(0) }; 8])));
        let counters = Counters::over(Box::leak(words));
        Self {
            vcpu: Vcpu::new(
                model,
                model.places()[number],
                counters,
                doorbells,
                transfers,
            ),
            local_ps: 0,
            wanted,
            polls,
        }
    }

    /// A turn of the loop: some instructions, and an access.
    fn step(&mut self, value: &mut u64, instruction_ps: u64) {
        let access = Access {
            address: LINE,
            instruction: usize::from(self.polls),
            write: !self.polls,
        };
        self.local_ps += 3 * instruction_ps;
        if !self.vcpu.passes(access.address, access.write) {
            let clock = Charged::from(self.local_ps);
            self.vcpu.look(access, &clock, || Target::Memory(LINE));
            self.local_ps = clock.now();
        }
        if !self.polls {
            *value += 1;
            self.wanted = *value + 1;
        } else if *value != self.wanted {
            return;
        }
        self.polls = !self.polls;
    }
}

/// Nanoseconds of a transfer one way.
fn one_way(transfer_ns: u64, window_ps: u64, instruction_ps: u64) -> f64 {
    let config: Config = format!(
        "nearfar-delay 3\ncpus 0 1\nmemory 0 1048576 0\nmemory 1048576 1048576 1\ncache 131072 16 0\n\
         delay 0 0 80\ndelay 0 1 140\ndelay 1 0 140\ndelay 1 1 80\n\
         transfer {transfer_ns} {transfer_ns} {transfer_ns}\ntime {instruction_ps} {window_ps} {window_ps} 0 0 0\n"
    )
    .parse()
    .unwrap();
    let model: &'static Model = Box::leak(Box::new(Model::new(&config).unwrap()));
    let [mut one, mut other] = [(0, 2, false), (1, 1, true)]
        .map(|(number, wanted, polls)| Player::new(model, number, wanted, polls));
    let (mut value, mut began_ps) = (0, 0);
    while value < 2 * TRIPS {
        if value == 20 && began_ps == 0 {
            began_ps = one.local_ps;
        }
        // The one that is behind goes on until it is a window ahead.
        let (turn, waits) = match one.local_ps <= other.local_ps {
            true => (&mut one, &other),
            false => (&mut other, &one),
        };
        let until = waits.local_ps + window_ps;
        while turn.local_ps < until {
            turn.step(&mut value, instruction_ps);
        }
    }
    (one.local_ps - began_ps) as f64 / 1000.0 / (2 * TRIPS - 20) as f64
}

#[test]
fn a_transfer_takes_what_is_said_whatever_the_window_and_the_loop() {
    for transfer_ns in [25, 48, 114, 267] {
        for share in [2, 3, 8] {
            for instruction_ps in [100, 294, 500] {
                let window_ps = transfer_ns * 1000 / share;
                let ns = one_way(transfer_ns, window_ps, instruction_ps);
                let relative = ns / transfer_ns as f64;
                assert!(
                    (0.97..1.05).contains(&relative),
                    "{transfer_ns} ns, window {window_ps} ps, {instruction_ps} ps: {ns}"
                );
            }
        }
    }
}

/// What is stored long before it is looked for is no store that was seen late.
#[test]
fn a_transfer_that_no_vcpu_polls_for_takes_its_time_from_the_load_on() {
    let stores = nearfar_lab_delay::model::channel::Stores::new(20_000);
    stores.note(7, 1_000_000);
    assert_eq!(stores.seen_late(7, 1_030_000), 1_000_000);
    assert_eq!(stores.seen_late(7, 1_050_000), 1_050_000);
    assert_eq!(stores.seen_late(8, 1_010_000), 1_010_000);
    // The reader may be behind the writer as well.
    assert_eq!(stores.seen_late(7, 990_000), 990_000);
    stores.note(7 + 1024, 1_005_000);
    assert_eq!(stores.seen_late(7, 1_010_000), 1_010_000);
}
