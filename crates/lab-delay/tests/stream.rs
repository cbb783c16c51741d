// SPDX-License-Identifier: GPL-2.0-or-later
//! A sequential stream of one vCPU in simulated time: as fast as its description says, whatever its instructions are.

use std::sync::atomic::AtomicU64;

use nearfar_lab_delay::config::Config;
use nearfar_lab_delay::model::Model;
use nearfar_lab_delay::region::transfers::Transfers;
use nearfar_lab_delay::region::{Counters, Doorbells};
use nearfar_lab_delay::vcpu::{Access, Charged, Clock as _, Target, Vcpu};

const LINES: u64 = 100_000;
/// The order in which an unrolled loop loads the lines of a turn.
const ORDER: [u64; 8] = [1, 0, 2, 3, 5, 4, 6, 7];

/// Nanoseconds of a line of 16-byte loads, where a block of code with eight lines takes so many picoseconds of instructions.
fn ns_a_line(block_ps: u64, bytes_a_load: u64) -> f64 {
    let config: Config = "nearfar-delay 3\ncpus 0\nmemory 0 16777216 0\ncache 65536 16 0\ndelay 0 0 80\n\
                          transfer 25 25 25\nbandwidth 0 1000\nstream 16000\ntime 100 200000 200000 0 0 0\n"
        .parse()
        .unwrap();
    let model = Model::new(&config).unwrap();
    let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let counters = Counters::over(words.leak());
    let doorbells = Doorbells::over(Box::leak(Box::new([AtomicU64::new(0)])));
    let transfers = Transfers::over(Box::leak(Box::new([const { AtomicU64::new(0) }; 8])));
    let mut vcpu = Vcpu::new(&model, model.places()[0], counters, doorbells, transfers);
    let mut local_ps = 0;
    for turn in 0..LINES / 8 {
        local_ps += block_ps;
        for line in ORDER.map(|line| turn * 8 + line) {
            for offset in (0..64).step_by(bytes_a_load as usize) {
                let address = line * 64 + offset;
                if !vcpu.passes(address, false) {
                    let clock = Charged::from(local_ps);
                    let access = Access {
                        address,
                        instruction: offset as usize,
                        write: false,
                    };
                    vcpu.look(access, &clock, || Target::Memory(address));
                    local_ps = clock.now();
                }
            }
        }
    }
    local_ps as f64 / LINES as f64 / 1000.0
}

#[test]
fn instructions_of_a_stream_pass_while_its_lines_are_on_their_way() {
    for block_ps in [100, 2_000, 7_600, 20_000] {
        for bytes in [8, 16, 32] {
            let ns = ns_a_line(block_ps, bytes);
            println!("{block_ps} ps a block, {bytes} bytes: {ns}");
            assert!(
                (ns / 5.0 - 1.0).abs() < 0.01,
                "{block_ps} ps a block, {bytes} bytes: {ns}"
            );
        }
    }
}
