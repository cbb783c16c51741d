// SPDX-License-Identifier: GPL-2.0-or-later
//! A vCPU as QEMU drives it: loads and stores by virtual address, with a page table and a clock of the test's own.

use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicU64;

use nearfar_lab_delay::config::Config;
use nearfar_lab_delay::model::Model;
use nearfar_lab_delay::region::transfers::Transfers;
use nearfar_lab_delay::region::{Count, Counters, Doorbells};
use nearfar_lab_delay::vcpu::{Access, Clock, FILTER_SETS, FILTER_WAYS, Target, Vcpu};

const CONFIG: &str = "nearfar-delay 3\ncpus 0 0 1\nmemory 0 1048576 0\nmemory 1048576 1048576 1\ncache 131072 16 0\n\
                      delay 0 0 400\ndelay 0 1 800\ndelay 1 0 700\ndelay 1 1 300\ntransfer 500 500 2000\n\
                      device 0 0 10\ndevice 0 1 30000\ndevice 1 0 20000\ndevice 1 1 0\n";
const IO: u64 = 1 << 40;

/// What QEMU would do around the model. A tick is a nanosecond, and time passes where the test says so.
#[derive(Default)]
struct Emulator {
    time: Cell<u64>,
    /// What emulation takes for an access.
    own_cost: Cell<u64>,
    /// What the model takes to look an access up.
    look_cost: Cell<u64>,
    waits: RefCell<Vec<u64>>,
    lookups: Cell<u32>,
    /// Added to a virtual address for the physical one.
    shift: Cell<u64>,
}

impl Clock for Emulator {
    fn now(&self) -> u64 {
        self.time.get()
    }

    fn ticks(&self, ps: u64) -> u64 {
        ps / 1000
    }

    fn simulated_ps(&self) -> Option<u64> {
        None
    }

    fn wait(&self, until: u64) {
        self.waits
            .borrow_mut()
            .push(until.saturating_sub(self.time.replace(until.max(self.time.get()))));
    }
}

impl Emulator {
    fn run(&self, vcpu: &mut Vcpu<'_>, instruction: usize, address: u64, write: bool) {
        self.time.set(self.time.get() + self.own_cost.get());
        if !vcpu.passes(address, write) {
            vcpu.look(
                Access {
                    address,
                    instruction,
                    write,
                },
                self,
                || {
                    self.lookups.set(self.lookups.get() + 1);
                    self.time.set(self.time.get() + self.look_cost.get());
                    match address < IO {
                        true => Target::Memory(address + self.shift.get()),
                        false => Target::Register(address),
                    }
                },
            );
        }
    }

    fn waited(&self) -> Vec<u64> {
        self.waits.take()
    }
}

fn machine() -> (&'static Model, Vec<Vcpu<'static>>, Vec<Counters>) {
    machine_of(CONFIG)
}

fn machine_of(config: &str) -> (&'static Model, Vec<Vcpu<'static>>, Vec<Counters>) {
    let config: Config = config.parse().unwrap();
    let model: &'static Model = Box::leak(Box::new(Model::new(&config).unwrap()));
    let words = || {
        Counters::over(Box::leak(
            (0..17).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>(),
        ))
    };
    // One controller of node 1, with doorbells from the second register on, and room for another.
    let doorbells = [1, IO + 8, 0xff8, 8, 1, 0, 0, 0, 0].map(AtomicU64::new);
    let doorbells = Doorbells::over(Box::leak(Box::new(doorbells)));
    let transfers = Transfers::over(Box::leak(Box::new([const { AtomicU64::new(0) }; 8])));
    let counters: Vec<Counters> = (0..3).map(|_| words()).collect();
    let vcpus = model
        .places()
        .iter()
        .zip(&counters)
        .map(|(&place, &counts)| Vcpu::new(model, place, counts, doorbells, transfers))
        .collect();
    (model, vcpus, counters)
}

#[test]
fn memory_costs_its_delay_once_and_is_passed_without_a_look_afterwards() {
    let (_, mut vcpus, counters) = machine();
    let qemu = Emulator::default();
    for _ in 0..3 {
        qemu.run(&mut vcpus[0], 1, 0x1000, false);
        qemu.run(&mut vcpus[0], 2, 0x10_1040, false);
    }
    assert_eq!(qemu.waited(), [400, 800]);
    assert_eq!(qemu.lookups.get(), 2);
    let counts = [Count::Accesses, Count::Near, Count::Far, Count::DelayNs]
        .map(|count| counters[0].get(count));
    assert_eq!(counts, [6, 1, 1, 1200]);
}

#[test]
fn a_loop_that_pauses_polls_its_lines_if_a_turn_of_it_changes_nothing() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator::default();
    let [it, other, _] = &mut vcpus[..] else {
        panic!("three vCPUs");
    };
    let turn = |it: &mut Vcpu<'static>, loads: u64, registers: u64| {
        (0..loads).for_each(|line| qemu.run(it, 1, 0x1000 + 64 * line, false));
        let polled = it.polls(7, || Some([registers; 16]));
        if let Some(polled) = &polled {
            let mut lines = Vec::from_iter(polled.lines.iter().map(|it| u64::from(it.number)));
            lines.sort();
            assert_eq!(lines, Vec::from_iter(0x40..0x40 + loads));
        }
        polled.is_some()
    };
    // Lines that it had not used, registers that it had not seen, the same again.
    assert_eq!([0; 4].map(|_| turn(it, 3, 5)), [false, false, true, true]);
    // It counts its turns, or what it stores.
    assert_eq!(
        [6, 7, 8, 8].map(|at| turn(it, 3, at)),
        [false, false, false, true]
    );
    qemu.run(it, 2, 0x1000, true);
    let store = |it: &mut Vcpu<'static>| {
        qemu.run(it, 2, 0x1000, true);
        turn(it, 3, 8)
    };
    assert_eq!([0; 3].map(|_| store(it)), [false; 3]);
    assert_eq!([0; 3].map(|_| turn(it, 3, 8)), [false, true, true]);
    qemu.run(other, 3, 0x1040, true);
    assert_eq!([0; 3].map(|_| turn(it, 3, 8)), [false, false, true]);
    // Another loop, no loads, and more than are looked at.
    assert!(it.polls(8, || Some([8; 16])).is_none());
    assert_eq!([0; 4].map(|_| turn(it, 0, 8)), [false; 4]);
    assert_eq!([0; 4].map(|_| turn(it, 9, 8)), [false; 4]);
    assert_eq!([0; 4].map(|_| turn(it, 8, 8)), [false, true, true, true]);
}

#[test]
fn lines_of_a_stream_are_on_their_way_at_once_whatever_their_order_in_a_turn() {
    let (_, mut vcpus, counters) = machine_of(&format!("{CONFIG}stream 8000\n"));
    let qemu = Emulator::default();
    // Two streams in turns, the second backwards, and a line of neither.
    for line in [100, 300, 101, 299, 103, 297, 102, 298, 104, 296, 900] {
        qemu.run(&mut vcpus[2], 1, line * 64, false);
        // Something else than a chain of loads.
        (0..9).for_each(|_| qemu.run(&mut vcpus[2], 2, 0x1f_0000, false));
    }
    let mut waited = qemu.waited();
    assert_eq!(waited.remove(1), 300, "the line in between");
    // The third line of each is the first that is known to be of a stream.
    assert_eq!(waited, [[700; 4].as_slice(), &[87; 6], &[700]].concat());
    // 6 of 87.5 ns each.
    assert_eq!(counters[2].get(Count::DelayNs), 5 * 700 + 300 + 525);
}

#[test]
fn doorbell_writes_cost_by_the_nodes_of_vcpu_and_device_each_time() {
    let (_, mut vcpus, counters) = machine();
    let qemu = Emulator::default();
    for _ in 0..2 {
        qemu.run(&mut vcpus[0], 1, IO + 8, true);
        qemu.run(&mut vcpus[2], 1, IO + 16, true);
    }
    assert_eq!(qemu.waited(), [30_000, 30_000]);
    let counts = |vcpu: usize| {
        [Count::DoorbellsNear, Count::DoorbellsFar, Count::DelayNs]
            .map(|count| counters[vcpu].get(count))
    };
    assert_eq!(counts(0), [0, 2, 60_000]);
    assert_eq!(counts(2), [2, 0, 0]);
}

#[test]
fn only_writes_to_submission_doorbells_cost() {
    let (_, mut vcpus, counters) = machine();
    let qemu = Emulator::default();
    // A read, the administrator's queue, a completion queue, and what is behind the doorbells.
    qemu.run(&mut vcpus[0], 1, IO + 8, false);
    for register in [0, 12, 0x1000] {
        qemu.run(&mut vcpus[0], 1, IO + register, true);
    }
    assert_eq!(qemu.waited(), [0; 0]);
    assert_eq!(counters[0].get(Count::DoorbellsFar), 0);
}

#[test]
fn io_costs_nothing_and_is_never_remembered() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator::default();
    qemu.run(&mut vcpus[0], 1, IO, true);
    qemu.run(&mut vcpus[0], 1, IO, true);
    assert_eq!(qemu.waited(), [0_u64; 0]);
    assert_eq!(qemu.lookups.get(), 2);
}

#[test]
fn what_left_the_filter_but_not_the_cache_costs_nothing() {
    let (_, mut vcpus, counters) = machine();
    let qemu = Emulator::default();
    qemu.run(&mut vcpus[0], 1, 0, false);
    for others in 1..=FILTER_WAYS {
        let line = (others * FILTER_SETS) as u64;
        qemu.run(&mut vcpus[0], 1, line * 64, false);
    }
    qemu.waited();
    qemu.run(&mut vcpus[0], 1, 0, false);
    assert_eq!(qemu.waited(), [0_u64; 0]);
    assert_eq!(counters[0].get(Count::CacheHits), 1);
}

#[test]
fn a_page_that_is_copied_word_by_word_is_looked_up_line_by_line() {
    let (_, mut vcpus, counters) = machine();
    let qemu = Emulator::default();
    let to = (FILTER_WAYS * FILTER_SETS * 64) as u64;
    for word in (0..4096).step_by(8) {
        qemu.run(&mut vcpus[0], 1, word, false);
        qemu.run(&mut vcpus[0], 1, to + word, true);
    }
    assert_eq!(qemu.lookups.get(), 2 * 64);
    assert_eq!(counters[0].get(Count::CacheHits), 0);
}

#[test]
fn a_filtered_line_is_looked_up_again_when_another_vcpu_wrote_it() {
    let (_, mut vcpus, counters) = machine();
    let qemu = Emulator::default();
    qemu.run(&mut vcpus[0], 1, 0, false);
    qemu.waited();
    qemu.run(&mut vcpus[2], 2, 0, true);
    qemu.run(&mut vcpus[0], 1, 0, false);
    qemu.run(&mut vcpus[1], 1, 0, false);
    // The write takes the line from node 0, and the first reader there brings it back; its last delay ended 2000 ns ago
    // with no access since, so 300 ns of that count.
    assert_eq!(qemu.waited(), [2000, 1700]);
    assert_eq!(counters[0].get(Count::TransfersOther), 1);
}

#[test]
fn a_store_to_a_line_that_was_only_read_is_not_passed() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator::default();
    qemu.run(&mut vcpus[0], 1, 0, false);
    qemu.run(&mut vcpus[0], 2, 0, true);
    qemu.waited();
    qemu.run(&mut vcpus[1], 3, 0, false);
    assert_eq!(qemu.waited(), [500], "the store made vCPU 0 the writer");
}

#[test]
fn an_atomic_instruction_gets_its_line_once() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator::default();
    for vcpu in [0, 2, 0] {
        qemu.run(&mut vcpus[vcpu], 7, 0, false);
        qemu.run(&mut vcpus[vcpu], 7, 0, true);
    }
    assert_eq!(
        qemu.waited(),
        [400, 2000, 1700],
        "with 300 of the 2000 ns that vCPU 0 did nothing"
    );
}

#[test]
fn a_load_and_a_store_by_two_instructions_pay_for_each() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator::default();
    qemu.run(&mut vcpus[0], 7, 0, true);
    qemu.waited();
    qemu.run(&mut vcpus[2], 8, 0, false);
    qemu.run(&mut vcpus[2], 9, 0, true);
    assert_eq!(qemu.waited(), [2000, 2000]);
}

#[test]
fn after_a_process_switch_an_address_is_looked_up_anew() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator::default();
    qemu.run(&mut vcpus[0], 1, 0x2000, false);
    qemu.shift.set(0x10_0000);
    vcpus[0].forget();
    qemu.run(&mut vcpus[0], 1, 0x2000, false);
    assert_eq!(qemu.waited(), [400, 800]);
}

#[test]
fn a_chain_of_misses_takes_what_was_asked_for_whatever_emulation_adds() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator {
        own_cost: Cell::new(90),
        ..Emulator::default()
    };
    for line in 0..3 {
        qemu.run(&mut vcpus[0], 1, line * 64, false);
    }
    assert_eq!(qemu.waited(), [400, 310, 310]);
}

#[test]
fn of_slow_emulation_only_the_limit_is_made_up_for_so_that_differences_stay() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator {
        own_cost: Cell::new(540),
        ..Emulator::default()
    };
    for address in [0, 0x40, 0x10_0000] {
        qemu.run(&mut vcpus[0], 1, address, false);
    }
    assert_eq!(qemu.waited(), [400, 100, 500]);
}

#[test]
fn what_the_model_took_too_long_is_taken_off_the_next_delay_of_a_chain() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator {
        look_cost: Cell::new(450),
        ..Emulator::default()
    };
    qemu.run(&mut vcpus[0], 1, 0, false);
    qemu.look_cost.set(10);
    qemu.run(&mut vcpus[0], 1, 64, false);
    qemu.run(&mut vcpus[0], 1, 128, false);
    assert_eq!(qemu.waited(), [0, 340, 390]);
    assert_eq!(qemu.time.get(), 3 * 400);
}

#[test]
fn a_host_that_ran_somebody_else_makes_the_next_delay_shorter_by_the_limit_only() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator {
        look_cost: Cell::new(3_000_000),
        ..Emulator::default()
    };
    qemu.run(&mut vcpus[0], 1, 0, false);
    qemu.look_cost.set(0);
    for line in 1..4 {
        qemu.run(&mut vcpus[0], 1, line * 64 + 0x10_0000, false);
    }
    assert_eq!(qemu.waited(), [0, 0, 600, 800]);
}

#[test]
fn code_that_uses_its_caches_between_misses_pays_the_whole_delay() {
    let (_, mut vcpus, _) = machine();
    let qemu = Emulator {
        own_cost: Cell::new(20),
        ..Emulator::default()
    };
    qemu.run(&mut vcpus[0], 1, 0, false);
    for _ in 0..5 {
        qemu.run(&mut vcpus[0], 1, 0, false);
    }
    qemu.run(&mut vcpus[0], 1, 64, false);
    assert_eq!(qemu.waited(), [400, 400]);
}
