//! Many threads are kept and given back, in the slow tier thousands of them in time that grows as their number.

use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Tasks, confining, home, own};

/// How long keeping a process of so many threads and giving it back takes.
fn kept_and_given_back(count: usize) -> [Duration; 2] {
    let tasks = Tasks::new();
    tasks.tell(0, &format!("threads {count}"));
    let pid = tasks.tasks[&0].pid;
    let threads = || nearfar_proc::tasks::threads(pid).unwrap();
    let own = tasks.tasks[&0].mask();
    let begun = Instant::now();
    let keeper = tasks.keeper(confining()).unwrap();
    let kept = begun.elapsed();
    let all = threads();
    assert_eq!(
        (all.len(), keeper.report().unwrap().threads_now as usize),
        (count + 1, count + 1)
    );
    assert!(all.iter().all(|&tid| support::mask(tid) == home()));
    let begun = Instant::now();
    keeper.stop().unwrap();
    let given_back = begun.elapsed();
    assert!(all.iter().all(|&tid| support::mask(tid) == own));
    println!("{count} threads: kept within {kept:.3?}, given back within {given_back:.3?}");
    [kept, given_back]
}

#[test]
fn hundreds_of_threads_are_kept_and_given_back() {
    if own().is_some() {
        kept_and_given_back(300);
    }
}

/// In the slow tier: it compares times of this machine.
#[test]
fn twice_as_many_threads_take_no_more_than_about_twice_as_long() {
    if own().is_none() {
        return;
    }
    let counts: Vec<usize> = match std::env::var("NEARFAR_THREADS") {
        Ok(counts) => counts
            .split(',')
            .map(|count| count.parse().unwrap())
            .collect(),
        Err(_) => vec![2000, 8000],
    };
    let mut times = Vec::new();
    for count in counts {
        times.push((count as f64, kept_and_given_back(count)));
    }
    // Four times as many took sixteen times as long when each was compared with each.
    let [(few, short), .., (many, long)] = &times[..] else {
        return;
    };
    for (short, long) in short.iter().zip(long) {
        let growth = long.as_secs_f64() / short.as_secs_f64();
        assert!(
            growth < 2.0 * many / few,
            "{growth:.1} times as long for {:.1} times as many threads",
            many / few
        );
    }
}
