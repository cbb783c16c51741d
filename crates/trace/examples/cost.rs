//! What tracing costs the traced: a thread that moves itself between two CPUs as fast as it can, in turn with and without a
//! trace, and the same thread when it only computes.
//!
//! `cargo run --release -p nearfar-trace --example cost`
//!
//! Prints the lower quartile of the time of a move without and with the trace, their difference (the cost of one event),
//! and the median CPU time of the computing in both. Runs alternate, so that what else the machine does falls on both.

use std::hint::black_box;
use std::time::Duration;

use nearfar_machine::CpuSet;
use nearfar_trace::migrations::{Decoder, Formats};
use nearfar_trace::{Plan, Session, TraceError, Tracefs};
use rustix::thread::{CpuSet as Affinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 41;
const MOVES: u32 = 1000;
const STEPS: u64 = 20_000_000;

fn main() -> Result<(), TraceError> {
    let formats = Tracefs::find().and_then(|tracefs| Formats::read(&tracefs))?;
    let decoder = Decoder::new(&formats).expect("a kernel with these fields");
    let online: CpuSet = std::fs::read_to_string("/sys/devices/system/cpu/online")
        .expect("Linux")
        .trim()
        .parse()
        .expect("a list of CPUs");
    let (mut moving, mut computing) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut events = 0u64;
    for round in 0..2 * ROUNDS {
        let traced = round % 2;
        let following = formats.following();
        let mut session = Session::open(&Plan {
            cpus: &online,
            tracepoints: &following,
            names: false,
            mappings: false,
            callers_of: None,
        })?;
        if traced == 1 {
            session.enable()?;
        }
        moving[traced].push(timed(ClockId::Monotonic, moves) / MOVES);
        computing[traced].push(timed(ClockId::ThreadCPUTime, compute));
        session
            .finish(&mut |_, sample| events += u64::from(decoder.decode(sample.event).is_some()))?;
    }
    let [without, with] = moving.map(|times| quantile(times, 4));
    let [alone, watched] = computing.map(|times| quantile(times, 2));
    println!(
        "a move: {without:?} without, {with:?} with: an event costs {:?}",
        with.saturating_sub(without)
    );
    println!(
        "computing: {alone:?} without, {watched:?} with: ratio {:.4}",
        watched.as_secs_f64() / alone.as_secs_f64()
    );
    println!("{events} events read in {ROUNDS} rounds");
    Ok(())
}

/// Each is one migration, and so one event.
fn moves() {
    for number in 0..MOVES {
        let mut set = Affinity::new();
        set.set((number % 2) as usize);
        sched_setaffinity(None, &set).expect("CPUs 0 and 1");
    }
}

fn compute() {
    let mut value = 1u64;
    for _ in 0..STEPS {
        value = black_box(
            value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        );
    }
    black_box(value);
}

fn timed(clock: ClockId, work: fn()) -> Duration {
    let now = || Duration::try_from(clock_gettime(clock)).expect("a clock that runs forward");
    let begin = now();
    work();
    now() - begin
}

/// The time that one in `part` is not above.
fn quantile(mut times: Vec<Duration>, part: usize) -> Duration {
    times.sort_unstable();
    times[times.len() / part]
}
