// SPDX-License-Identifier: GPL-2.0-or-later
//! The turns of simulated time, driven as QEMU's threads drive them, without threads and clocks.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nearfar_lab_delay::model::channel::Stores;
use nearfar_lab_delay::time::turns::{Polled, PolledLine, ThreadState, Turn, Turns};
use proptest::prelude::*;

const WINDOW: u64 = 200;

fn ready(vcpus: usize) -> Turns {
    let mut turns = Turns::new(vcpus, [WINDOW; 2], 0, 1000);
    (0..vcpus).for_each(|vcpu| turns.ask(vcpu));
    turns.main_loop_waits(None, None);
    turns
}

/// Lets the one with the turn execute so much, and ask again. Returns who it was.
fn execute(turns: &mut Turns, most_ps: u64) -> usize {
    let Turn::Of(vcpu) = turns.decide() else {
        panic!("no vCPU has the turn");
    };
    turns.spend(vcpu, most_ps.min(turns.room_ps(vcpu)));
    turns.ask(vcpu);
    vcpu
}

#[test]
fn one_at_a_time_and_the_one_furthest_behind_first() {
    let mut turns = ready(3);
    assert_eq!(turns.decide(), Turn::Of(0));
    assert_eq!((turns.room_ps(0), turns.decide()), (WINDOW, Turn::Later));
    turns.spend(0, 150);
    turns.ask(0);
    assert_eq!((turns.local_ps(0), turns.now_ps()), (1150, 1000));
    assert_eq!(turns.decide(), Turn::Of(1));
    turns.spend(1, WINDOW);
    turns.ask(1);
    assert_eq!(turns.decide(), Turn::Of(2));
    // The window begins at the one that is furthest behind, which is vCPU 0.
    assert_eq!(turns.room_ps(2), 150 + WINDOW);
    turns.spend(2, 350);
    turns.ask(2);
    assert_eq!((turns.now_ps(), turns.decide()), (1150, Turn::Of(0)));
}

#[test]
fn the_window_is_narrow_for_a_while_after_a_line_has_passed() {
    let mut turns = Turns::new(2, [WINDOW, 5 * WINDOW], 0, 0);
    (0..2).for_each(|vcpu| turns.ask(vcpu));
    turns.main_loop_waits(None, None);
    assert_eq!(turns.decide(), Turn::Of(0));
    assert_eq!(turns.room_ps(0), 5 * WINDOW);
    turns.spend(0, 100);
    turns.line_passes(turns.local_ps(0));
    // One that is behind says so later.
    turns.line_passes(0);
    turns.ask(0);
    assert_eq!(turns.decide(), Turn::Of(1));
    assert_eq!(turns.room_ps(1), 100 + WINDOW);
    turns.spend(1, 100);
    turns.ask(1);
    let (mut narrow, mut vcpu) = (0u64, 0);
    while turns.now_ps() < 100_000_100 {
        vcpu = execute(&mut turns, u64::MAX);
        assert!(turns.local_ps(vcpu) <= turns.now_ps() + WINDOW);
        narrow += 1;
    }
    assert!(narrow > 100_000_000 / (2 * WINDOW));
    assert_eq!(turns.decide(), Turn::Of(1 - vcpu));
    assert!(turns.room_ps(1 - vcpu) > 2 * WINDOW);
}

/// The word of a line that is stored to at 3030, and a vCPU's poll of it.
fn line() -> (&'static AtomicU64, Polled) {
    let stores: &'static Stores = Box::leak(Box::new(Stores::new(WINDOW)));
    let word: &'static AtomicU64 = Box::leak(Box::default());
    stores.note(7, 3030);
    let line = PolledLine {
        word,
        before: 0,
        number: 7,
    };
    let lines = vec![line];
    (word, Polled { lines, stores })
}

/// vCPU 0 polls a line, vCPU 1 executes.
fn polling() -> (Turns, &'static AtomicU64, Polled) {
    let ((word, polled), mut turns) = (line(), ready(2));
    assert_eq!(turns.decide(), Turn::Of(0));
    turns.poll(0, polled.clone());
    for _ in 0..10 {
        assert_eq!(execute(&mut turns, u64::MAX), 1);
    }
    assert!(turns.polls(0));
    assert_eq!(turns.now_ps(), 1000 + 10 * WINDOW);
    (turns, word, polled)
}

#[test]
fn who_polls_gets_no_turn_before_another_stores_to_the_line() {
    let (mut turns, word, _) = polling();
    assert_eq!((turns.decide(), turns.room_ps(1)), (Turn::Of(1), WINDOW));
    word.store(1, Relaxed);
    turns.spend(1, 50);
    turns.ask(1);
    assert_eq!(turns.decide(), Turn::Of(0));
    assert_eq!((turns.local_ps(0), turns.local_ps(1)), (3030, 3050));
}

#[test]
fn who_polls_goes_on_for_an_interrupt_a_device_another_thread_or_after_a_while() {
    let (mut turns, ..) = polling();
    turns.wake(0, 3040);
    assert_eq!((turns.local_ps(0), turns.polls(0)), (3040, false));

    let (mut turns, ..) = polling();
    turns.main_loop_goes_on();
    assert!(turns.polls(0));
    turns.main_loop_waits(None, None);
    assert_eq!((turns.local_ps(0), turns.polls(0)), (3000, false));

    // Between its last look for interrupts and the poll.
    let (mut turns, _, polled) = polling();
    turns.wake(0, 3000);
    turns.kick(0);
    assert_eq!(turns.decide(), Turn::Of(0));
    turns.poll(0, polled.clone());
    assert!(!turns.polls(0));
    assert_eq!(turns.decide(), Turn::Of(0));
    turns.poll(0, polled);
    assert!(turns.polls(0));

    let (mut turns, ..) = polling();
    assert_eq!(turns.decide(), Turn::Of(1));
    turns.block(Some(1));
    assert_eq!((turns.decide(), turns.room_ps(0)), (Turn::Of(0), 0));
    assert_eq!((turns.local_ps(0), turns.polls(0)), (3000, false));

    let (mut turns, ..) = polling();
    while turns.polls(0) {
        assert!(turns.now_ps() < 30_000_000);
        execute(&mut turns, u64::MAX);
    }
}

#[test]
fn where_all_poll_time_goes_on_and_timers_are_due() {
    let (mut turns, _, polled) = polling();
    turns.main_loop_waits(Some(9000), None);
    let mut turn = turns.decide();
    while let Turn::Of(vcpu) = turn {
        turns.spend(vcpu, 47.min(turns.room_ps(vcpu)));
        turns.poll(vcpu, polled.clone());
        turn = turns.decide();
    }
    assert_eq!((turn, turns.now_ps()), (Turn::MainLoop, 9000));
}

#[test]
fn the_seed_chooses_who_is_first_among_equals() {
    let mut turns = Turns::new(3, [WINDOW; 2], 5, 0);
    (0..3).for_each(|vcpu| turns.ask(vcpu));
    turns.main_loop_waits(None, None);
    let order: Vec<usize> = (0..3).map(|_| execute(&mut turns, 10)).collect();
    assert_eq!(order, [2, 0, 1]);
}

#[test]
fn no_vcpu_passes_a_timer_before_its_handler_has_run() {
    let mut turns = ready(2);
    turns.main_loop_waits(Some(1120), None);
    assert_eq!(execute(&mut turns, WINDOW), 0);
    assert_eq!(turns.local_ps(0), 1120);
    assert_eq!((execute(&mut turns, WINDOW), turns.now_ps()), (1, 1120));
    assert_eq!(turns.decide(), Turn::MainLoop);
    turns.main_loop_goes_on();
    assert_eq!(turns.decide(), Turn::Later);
    turns.main_loop_waits(Some(1_000_000), None);
    assert_eq!((turns.decide(), turns.room_ps(0)), (Turn::Of(0), WINDOW));
}

#[test]
fn a_disk_answers_its_time_after_the_main_loop_has_handed_it_a_request() {
    let mut turns = ready(1);
    assert_eq!(turns.decide(), Turn::Of(0));
    turns.spend(0, 50);
    turns.notify_main_loop();
    turns.ask(0);
    assert_eq!(turns.decide(), Turn::MainLoop);
    turns.main_loop_goes_on();
    // QEMU would sleep for a millisecond.
    turns.main_loop_waits(Some(1_000_000_000), Some(1050 + 400));
    turns.main_loop_goes_on();
    // It was awake for something else: no further answer.
    turns.main_loop_waits(Some(1_000_000_000), Some(1050 + 500));
    assert_eq!(turns.due_ps(), Some(1450));
    while turns.decide() == Turn::Of(0) {
        turns.spend(0, turns.room_ps(0));
        turns.ask(0);
    }
    assert_eq!((turns.now_ps(), turns.decide()), (1450, Turn::MainLoop));
    turns.main_loop_goes_on();
    turns.main_loop_waits(None, Some(1450 + 400));
    assert_eq!(turns.due_ps(), None);
}

#[test]
fn whoever_is_woken_begins_when_its_waker_was() {
    let mut turns = ready(2);
    assert_eq!(execute(&mut turns, 50), 0);
    assert_eq!(turns.decide(), Turn::Of(1));
    turns.idle(1);
    assert_eq!((turns.decide(), turns.now_ps()), (Turn::Of(0), 1050));
    turns.spend(0, 30);
    turns.wake(1, turns.local_ps(0));
    turns.ask(0);
    // Its thread is not there yet: nobody goes on, since who is first must not depend on the host.
    assert_eq!(
        (turns.state(1), turns.decide()),
        (ThreadState::Coming, Turn::Later)
    );
    turns.ask(1);
    assert_eq!(turns.local_ps(1), 1080);
    assert_eq!(turns.decide(), Turn::Of(0));
}

#[test]
fn a_vcpu_that_is_woken_for_nothing_holds_nobody_up() {
    let mut turns = ready(2);
    assert_eq!(turns.decide(), Turn::Of(0));
    turns.idle(0);
    turns.wake(0, 1000);
    assert_eq!(turns.decide(), Turn::Later);
    turns.idle(0);
    assert_eq!(turns.decide(), Turn::Of(1));
    turns.idle(1);
    assert_eq!(turns.decide(), Turn::AllIdle);
}

#[test]
fn a_notified_main_loop_goes_before_the_vcpus() {
    let mut turns = ready(1);
    assert_eq!(turns.decide(), Turn::Of(0));
    turns.notify_main_loop();
    turns.ask(0);
    assert_eq!(turns.decide(), Turn::MainLoop);
    turns.main_loop_has_nothing(None);
    assert_eq!(turns.decide(), Turn::Of(0));
}

#[test]
fn all_leave_guest_code_for_a_thread_that_waits_for_them() {
    let mut turns = ready(3);
    assert_eq!(turns.decide(), Turn::Of(0));
    turns.block(Some(0));
    // One block each, in order, though they are not behind.
    assert_eq!((turns.decide(), turns.room_ps(1)), (Turn::Of(1), 0));
    turns.spend(1, 5);
    turns.block(Some(1));
    assert_eq!((turns.decide(), turns.room_ps(2)), (Turn::Of(2), 0));
    turns.spend(2, 5);
    turns.block(Some(2));
    assert_eq!(turns.decide(), Turn::Later);
    for vcpu in 0..3 {
        turns.wake(vcpu, 0);
        assert_eq!(turns.decide(), Turn::Later, "{vcpu} is on its way");
    }
    (0..3).for_each(|vcpu| turns.ask(vcpu));
    assert_eq!(turns.decide(), Turn::Of(0));
}

#[test]
fn idle_time_passes_up_to_a_timer() {
    let mut turns = Turns::new(2, [WINDOW; 2], 0, 0);
    turns.main_loop_waits(Some(500), None);
    turns.pass(300);
    assert_eq!((turns.now_ps(), turns.decide()), (300, Turn::AllIdle));
    turns.pass(300);
    assert_eq!((turns.now_ps(), turns.decide()), (500, Turn::MainLoop));
    turns.main_loop_goes_on();
    turns.wake(1, turns.now_ps());
    turns.main_loop_waits(None, None);
    turns.ask(1);
    assert_eq!((turns.decide(), turns.local_ps(1)), (Turn::Of(1), 500));
    turns.pass(1000);
    assert_eq!(turns.now_ps(), 500, "a busy vCPU is time's only source");
}

/// What a vCPU does in its turn.
#[derive(Clone, Copy, Debug)]
enum Step {
    Executes(u64),
    Idles,
    Wakes(usize),
    Notifies,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1u64..400).prop_map(Step::Executes),
        1 => Just(Step::Idles),
        2 => (0usize..5).prop_map(Step::Wakes),
        1 => Just(Step::Notifies),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #[test]
    fn nobody_is_a_window_ahead_and_time_never_goes_back(steps in steps(), seed in 0u64..9) {
        let mut turns = Turns::new(5, [WINDOW; 2], seed, 0);
        (0..5).for_each(|vcpu| turns.ask(vcpu));
        turns.main_loop_waits(None, None);
        let mut last_ps = 0;
        for step in steps {
            let vcpu = match turns.decide() {
                Turn::Of(vcpu) => vcpu,
                Turn::MainLoop => {
                    turns.main_loop_goes_on();
                    turns.main_loop_waits(None, None);
                    continue;
                }
                Turn::AllIdle => {
                    turns.pass(100);
                    turns.wake(0, 0);
                    turns.ask(0);
                    continue;
                }
                Turn::Later => panic!("nobody has the turn, and all threads are there"),
            };
            let running = (0..5).filter(|&at| turns.state(at) == ThreadState::Running).count();
            prop_assert_eq!(running, 1);
            match step {
                Step::Executes(ps) => turns.spend(vcpu, ps.min(turns.room_ps(vcpu))),
                Step::Idles => turns.idle(vcpu),
                Step::Wakes(other) => {
                    turns.wake(other, turns.local_ps(vcpu));
                    if turns.state(other) == ThreadState::Coming {
                        prop_assert!(turns.local_ps(other) >= turns.local_ps(vcpu));
                        turns.ask(other);
                    }
                }
                Step::Notifies => turns.notify_main_loop(),
            }
            if turns.state(vcpu) == ThreadState::Running {
                turns.ask(vcpu);
            }
            prop_assert!(turns.now_ps() >= last_ps);
            last_ps = turns.now_ps();
            let busy = (0..5).filter(|&at| turns.state(at) != ThreadState::Idle);
            for at in busy {
                let local_ps = turns.local_ps(at);
                prop_assert!(local_ps >= turns.now_ps());
                // One that was woken by another begins at that one's time, which is at most a window ahead, and goes on from there.
                prop_assert!(local_ps <= turns.now_ps() + 2 * WINDOW);
            }
        }
    }
}
