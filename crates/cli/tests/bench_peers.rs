//! How `make bench` goes on when a program that it measures fails (examples/measured).

use std::cell::Cell;
use std::io;

use crate::measured::{Contender, race};

#[test]
fn one_that_fails_once_is_repeated_and_one_that_fails_always_is_left_out_with_its_message() {
    let [stable, once, late] = [const { Cell::new(0) }; 3];
    let count = |runs: &Cell<u32>| {
        runs.set(runs.get() + 1);
        runs.get()
    };
    let fails = |message: &'static str| Err(io::Error::other(message));
    let mut contenders = [
        Contender::new("stable", || Ok(count(&stable))),
        Contender::new("  once", || {
            if count(&once) == 3 {
                fails("the guest hung")
            } else {
                Ok(once.get())
            }
        }),
        Contender::new("never", || fails("not found")),
        // It fails in the third round and when it is repeated.
        Contender::new("late", || {
            if count(&late) > 3 {
                fails("no space left")
            } else {
                Ok(late.get())
            }
        }),
    ];
    let mut said = Vec::new();
    race(&mut contenders, 4, &mut |text| said.push(text));
    let costs: Vec<Vec<u32>> = contenders
        .iter()
        .map(|contender| contender.costs.clone())
        .collect();
    assert_eq!(
        costs,
        [vec![2, 3, 4, 5], vec![2, 4, 5, 6], vec![], vec![]],
        "the first round is not counted"
    );
    assert_eq!(
        said,
        [
            "repeated: never: not found",
            "left out: never: not found",
            "repeated: once: the guest hung",
            "repeated: late: no space left",
            "left out: late: no space left",
        ]
    );
}

#[test]
fn a_program_that_is_not_there_is_left_out() {
    let run = || {
        std::process::Command::new("/no/such/program")
            .status()
            .map(drop)
    };
    let mut contenders = [
        Contender::new("peer", run),
        Contender::new("ours", || Ok(())),
    ];
    let mut said = Vec::new();
    race(&mut contenders, 2, &mut |text| said.push(text));
    assert_eq!(
        (contenders[0].costs.len(), contenders[1].costs.len()),
        (0, 2)
    );
    assert!(
        said.last()
            .unwrap()
            .starts_with("left out: peer: No such file"),
        "{said:?}"
    );
}
