//! The tasks of control groups, what they did, and waiting for them.

use std::os::fd::AsFd as _;
use std::time::Duration;

use nearfar_machine::CpuSet;
use nearfar_prefer::cgroup::{Span, TaskTimes, processes, threads};
use nearfar_prefer::psi::{Woken, wait};

#[test]
fn groups_below_count_and_each_task_once() {
    let dir = tempfile::tempdir().unwrap();
    let nested = dir.path().join("a/b");
    std::fs::create_dir_all(&nested).unwrap();
    std::fs::write(dir.path().join("cgroup.threads"), "5\n7\n").unwrap();
    std::fs::write(dir.path().join("cgroup.procs"), "5\n").unwrap();
    std::fs::write(nested.join("cgroup.threads"), "7\n9\n").unwrap();
    std::fs::write(nested.join("cgroup.procs"), "9\n").unwrap();
    assert_eq!(threads(dir.path()).unwrap(), [5, 7, 9]);
    assert_eq!(processes(dir.path()).unwrap(), [5, 9]);
    assert!(threads(&dir.path().join("gone")).is_err());
}

#[test]
fn shares_are_of_the_time_that_was_wanted() {
    assert_eq!(Span::default().share_waiting(), 0.0);
    assert_eq!(
        Span {
            run_ns: 60,
            wait_ns: 20,
            away_ns: 0
        }
        .share_waiting(),
        0.25
    );
}

#[test]
fn what_a_busy_thread_did_is_counted_from_the_second_look_on() {
    let dir = tempfile::tempdir().unwrap();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    std::fs::write(dir.path().join("tasks"), format!("{tid}\n")).unwrap();
    let mut times = TaskTimes::default();
    assert_eq!(
        times.since_last(dir.path(), Some(&CpuSet::new())).unwrap(),
        Span::default()
    );
    let until = std::time::Instant::now() + std::time::Duration::from_millis(20);
    while std::time::Instant::now() < until {}
    let span = times.since_last(dir.path(), Some(&CpuSet::new())).unwrap();
    assert!(span.run_ns > 0 && span.away_ns == span.run_ns, "{span:?}");
}

#[test]
fn the_other_descriptor_and_time_end_a_wait() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(
        wait(None, reader.as_fd(), Some(Duration::from_millis(1))).unwrap(),
        Woken::ByTime
    );
    drop(writer);
    assert_eq!(wait(None, reader.as_fd(), None).unwrap(), Woken::ByOther);
}
