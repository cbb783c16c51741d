//! One watch over several processes of the machine that runs the tests, where its kernel permits that.

use std::process::{Child, Command, Stdio};

use nearfar_machine::{CpuId, Machine, NodeId};
use nearfar_sources::synthetic;
use nearfar_trace::watch::Watch;
use nearfar_trace::{TraceError, tasks};
use rustix::process::Pid;
use rustix::thread::{CpuSet as Affinity, sched_getaffinity, sched_setaffinity};

/// Two CPUs as nodes of their own, and a watch; or why not here.
fn open() -> Option<(Machine, Watch)> {
    let allowed = sched_getaffinity(None).ok()?;
    if !(allowed.is_set(0) && allowed.is_set(1)) {
        println!("skipped: CPUs 0 and 1 are not there to move between");
        return None;
    }
    let machine = synthetic::parse("node:2 memory:1G core:1 pu:1 distance:20").unwrap();
    match Watch::open(&machine) {
        Ok(watch) => Some((machine, watch)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// A process that waits for its input to end.
fn waiting() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

fn pid(child: &Child) -> i32 {
    child.id().cast_signed()
}

/// A sleeping task is moved when it is woken next: moving it by its affinity alone is no migration yet. So it is kept busy.
fn busy() -> Child {
    Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()
}

fn move_to(child: &Child, cpu: u32) {
    let mut set = Affinity::new();
    set.set(cpu as usize);
    sched_setaffinity(Pid::from_raw(pid(child)), &set).unwrap();
    // The kernel has moved it when the call returns.
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn each_process_gets_its_own_moves_from_follow_to_collect_and_no_others() {
    let Some((_, mut watch)) = open() else { return };
    let (first, second) = (busy(), busy());
    move_to(&first, 0);
    move_to(&second, 0);
    // Not followed yet: these do not count.
    move_to(&first, 1);
    move_to(&first, 0);
    watch.follow(pid(&first)).unwrap();
    watch.follow(pid(&second)).unwrap();
    for _ in 0..10 {
        move_to(&first, 1);
        move_to(&first, 0);
        move_to(&second, 1);
    }
    let found = watch.collect(pid(&first)).unwrap();
    move_to(&first, 1);
    assert!(found.losses.is_whole(), "{:?}", found.losses);
    assert_eq!((found.found.migrations.total(), found.found.migrations.cross_node, found.found.gaps), (20, 20, 0));
    let matrix: Vec<_> = found.found.matrix.iter().map(|cell| (cell.from, cell.to, cell.migrations)).collect();
    assert_eq!(matrix, [(Some(NodeId(0)), Some(NodeId(1)), 10), (Some(NodeId(1)), Some(NodeId(0)), 10)]);
    let spent: f64 = found.found.time.iter().map(|spent| spent.seconds).sum();
    assert!((spent - found.seconds).abs() < 1e-6 && found.seconds > 0.0, "{found:?}");
    let other = watch.collect(pid(&second)).unwrap();
    assert_eq!(other.found.migrations.total(), 1, "moving it where it is moves nothing");
    end(first);
    end(second);
}

#[test]
fn a_process_that_has_ended_is_still_told_of() {
    let Some((_, mut watch)) = open() else { return };
    for round in 0..3 {
        let child = busy();
        move_to(&child, 0);
        watch.follow(pid(&child)).unwrap();
        (0..round).for_each(|cpu| move_to(&child, (cpu + 1) % 2));
        let number = pid(&child);
        end(child);
        let found = watch.collect(number).unwrap();
        assert_eq!(found.found.migrations.total(), u64::from(round));
        assert_eq!(found.found.tasks.iter().map(|task| (task.tid, task.ended)).collect::<Vec<_>>(), [(number, true)]);
        assert!(found.numa_balancing_of_task.why_not().unwrap().contains("alive"), "{found:?}");
    }
}

#[test]
fn children_of_a_followed_process_are_followed() {
    let Some((_, mut watch)) = open() else { return };
    let mut shell =
        Command::new("sh").args(["-c", "read go; true; (true); true"]).stdin(Stdio::piped()).spawn().unwrap();
    watch.follow(pid(&shell)).unwrap();
    drop(shell.stdin.take());
    shell.wait().unwrap();
    let found = watch.collect(pid(&shell)).unwrap();
    assert!(found.found.tasks.len() >= 2, "{:?}", found.found.tasks);
    assert!(found.found.tasks.iter().all(|task| task.ended));
}

#[test]
fn what_cannot_be_followed_or_is_not_followed_is_said_and_the_watch_goes_on() {
    let Some((_, mut watch)) = open() else { return };
    assert!(matches!(watch.follow(999_999_999), Err(TraceError::NoProcess { pid: 999_999_999, .. })));
    assert!(matches!(watch.collect(999_999_999), Err(TraceError::NotFollowed { .. })));
    let child = waiting();
    watch.follow(pid(&child)).unwrap();
    watch.collect(pid(&child)).unwrap();
    assert!(matches!(watch.collect(pid(&child)), Err(TraceError::NotFollowed { .. })), "collected once");
    end(child);
}

#[test]
fn a_watched_process_becomes_json_and_back() {
    let Some((_, mut watch)) = open() else { return };
    let child = waiting();
    watch.follow(pid(&child)).unwrap();
    let found = watch.collect(pid(&child)).unwrap();
    end(child);
    let text = serde_json::to_string(&found).unwrap();
    assert_eq!(serde_json::from_str::<nearfar_trace::watch::Watched>(&text).unwrap(), found, "{text}");
}

#[test]
fn threads_of_a_process_and_of_a_control_group_are_found() {
    let child = waiting();
    let threads = tasks::of_process(pid(&child)).unwrap();
    assert_eq!(threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(), [pid(&child)]);
    assert!(threads[0].cpu.is_some_and(|cpu| cpu < CpuId(1 << 16)));
    end(child);
    for wrong in ["no-such-group", "/no/such/group", "../../etc", ""] {
        let found = tasks::of_cgroup(wrong);
        // The root has every task, where it is a group.
        assert!(wrong.is_empty() || matches!(found, Err(TraceError::NoCgroup { .. })), "{wrong}: {found:?}");
    }
}
