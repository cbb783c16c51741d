//! The keeper on this very system, as if each of its first two CPUs were a node: who is narrowed, who is skipped, and
//! that every mask is as before when it ends or is killed at any moment.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::examples::example;
use crate::support::{confining, home, machine, mask, own, wait_until};
use nearfar_change::lease::Leases;
use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_prefer::{Keeper, KeeperError, KeeperOptions, Targets};
use nearfar_proc::{affinity, tasks};

/// A shell in a session of its own, so that orphans of other tests are not its descendants. What it prints is read line by line.
struct Family {
    shell: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    places: tempfile::TempDir,
}

impl Family {
    fn new(script: &str) -> Self {
        let mut command = Command::new("setsid");
        command
            .args(["sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut shell = command.spawn().unwrap();
        let lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        Self {
            shell,
            lines,
            places: tempfile::tempdir().unwrap(),
        }
    }

    fn pid(&self) -> i32 {
        self.shell.id().cast_signed()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.shell.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn number(&mut self) -> i32 {
        self.lines.next().unwrap().unwrap().trim().parse().unwrap()
    }

    fn leases(&self) -> Leases {
        Leases::at(self.state())
    }

    fn state(&self) -> PathBuf {
        self.places.path().join("leases")
    }

    fn keeper(&self) -> Keeper {
        let options = KeeperOptions {
            leases: Some(self.leases()),
            ..confining()
        };
        Keeper::start(
            Targets::Pids(vec![self.pid()]),
            NodeId(0),
            &machine(),
            options,
        )
        .unwrap()
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // All tasks of the session, which is its process group as well.
        let group = rustix::process::Pid::from_child(&self.shell);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn a_process_and_what_it_makes_are_on_the_node_until_the_keeper_ends() {
    let Some(own) = own() else { return };
    let mut family = Family::new("sleep 60 & echo $!; read go; sleep 60 & echo $!; read end");
    let before = family.number();
    let keeper = family.keeper();
    assert_eq!(mask(family.pid()), home());
    family.say("go");
    let made = family.number();
    assert_eq!(
        (mask(made), mask(before)),
        (home(), own.clone()),
        "made meanwhile, and before"
    );
    wait_until("the child is seen", || {
        keeper.report().unwrap().processes == 2
    });
    let report = keeper.stop().unwrap();
    assert_eq!(
        (report.narrowed, report.widened, report.skipped_count),
        (1, 0, 0)
    );
    assert_eq!([mask(family.pid()), mask(made)], [own.clone(), own]);
}

#[test]
fn a_thread_that_sets_its_own_affinity_is_skipped() {
    let Some(own) = own() else { return };
    let family = Family::new("read end");
    let keeper = family.keeper();
    let elsewhere = CpuSet::single(CpuId(1));
    affinity::set(family.pid(), &elsewhere).unwrap();
    wait_until("it is noticed", || {
        keeper.report().unwrap().skipped_count == 1
    });
    let report = keeper.stop().unwrap();
    assert_eq!(
        (report.skipped[0].tid, &report.skipped[0].cpus),
        (family.pid(), &elsewhere)
    );
    assert_eq!((mask(family.pid()), own.len() > 1), (elsewhere, true));
}

#[test]
fn who_may_not_run_on_the_node_is_refused_and_untouched() {
    let Some(_) = own() else { return };
    let family = Family::new("read end");
    let elsewhere = CpuSet::single(CpuId(1));
    affinity::set(family.pid(), &elsewhere).unwrap();
    let options = KeeperOptions {
        leases: Some(family.leases()),
        ..KeeperOptions::default()
    };
    let refused = Keeper::start(
        Targets::Pids(vec![family.pid()]),
        NodeId(0),
        &machine(),
        options,
    );
    match refused {
        Err(error @ KeeperError::Elsewhere { .. }) => {
            assert!(
                error
                    .to_string()
                    .contains("may run on CPUs 1, and none of them is one of node 0 (CPUs 0)"),
                "{error}"
            );
        }
        other => panic!("{:?}", other.err()),
    }
    assert_eq!(mask(family.pid()), elsewhere);
}

#[test]
fn the_surplus_of_a_full_node_is_released() {
    let Some(own) = own() else { return };
    let script = "for task in 1 2; do while :; do :; done & echo $!; done; exec sleep 600";
    let mut family = Family::new(script);
    let busy = [family.number(), family.number()];
    let options = KeeperOptions {
        leases: Some(family.leases()),
        ..KeeperOptions::default()
    };
    let targets = Targets::Pids(busy.to_vec());
    let keeper = Keeper::start(targets, NodeId(0), &machine(), options).unwrap();
    // Each of them waits for the node's one CPU while the other one runs, whatever else there is to do.
    wait_until("a task is released", || {
        busy.iter().any(|&tid| mask(tid) == own)
    });
    let report = keeper.stop().unwrap();
    assert!(report.widened >= 1, "{report}");
    assert_eq!(busy.map(mask), [own.clone(), own]);
}

/// In the slow tier: other work on the node's CPU is all that drives the task out, and its end is all that brings it back. Only
/// an idle host does nothing else there. tests/rule.rs has the same in numbers.
#[test]
fn other_work_drives_a_task_out_and_its_end_brings_it_back() {
    let Some(own) = own() else { return };
    let mut family = Family::new("while :; do :; done & echo $!; exec sleep 600");
    let busy = family.number();
    let options = KeeperOptions {
        leases: Some(family.leases()),
        ..KeeperOptions::default()
    };
    let keeper = Keeper::start(Targets::Pids(vec![busy]), NodeId(0), &machine(), options).unwrap();
    let mut hog = Command::new("taskset")
        .args(["-c", "0", "sh", "-c", "while :; do :; done"])
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while keeper.report().unwrap().widened == 0 && begun.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(20));
    }
    // Before anything is judged: a hog must not outlive a test that fails.
    hog.kill().unwrap();
    hog.wait().unwrap();
    wait_until("it is on the node again", || mask(busy) == home());
    let report = keeper.stop().unwrap();
    assert!(report.widened >= 1, "{report}");
    assert_eq!(mask(busy), own);
}

/// All processes of a session, with their threads.
fn session(leader: i32) -> Vec<i32> {
    let of_it =
        |pid: &i32| tasks::stat(*pid).is_ok_and(|stat| stat.session == leader && stat.state != 'Z');
    let processes = tasks::processes().unwrap().into_iter().filter(of_it);
    processes
        .flat_map(|pid| tasks::threads(pid).unwrap_or_default())
        .collect()
}

/// Makes children, grandchildren and orphans all the time.
const BUSY: &str = "while :; do sleep 0.05 & (sleep 0.1 &) ; sh -c 'sleep 0.02; sleep 0.02'; done";

/// Keeps this family in a process of its own, which is killed so many milliseconds after it says that all are kept; 0: at its
/// start.
fn keep_and_kill(family: &Family, is_guarded: bool, moment_ms: u64) {
    let mut command = Command::new(example("keep"));
    command
        .arg(family.state())
        .arg(family.pid().to_string())
        .env("CONFINE", "1");
    if is_guarded {
        command.env("GUARDED", "1");
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut keeper = command.spawn().unwrap();
    if moment_ms > 0 {
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!((line.as_str(), mask(family.pid())), ("kept\n", home()));
    }
    sleep(Duration::from_millis(moment_ms));
    keeper.kill().unwrap();
    keeper.wait().unwrap();
}

/// Whether no task of the session is confined.
fn all_are_wide(family: &Family) -> bool {
    session(family.pid())
        .into_iter()
        .all(|tid| mask(tid) != home())
}

#[test]
fn killed_at_any_moment_the_guard_puts_every_mask_back() {
    let Some(own) = own() else { return };
    for moment_ms in [0, 10, 90, 170] {
        let family = Family::new(BUSY);
        keep_and_kill(&family, true, moment_ms);
        wait_until(&format!("killed after {moment_ms} ms"), || {
            all_are_wide(&family)
        });
        assert_eq!(mask(family.pid()), own);
    }
}

/// In the slow tier: the guard learns of its keeper's end from the kernel. One that looked for it now and then would need many
/// times what the work itself takes.
#[test]
fn the_guard_puts_masks_back_about_as_fast_as_a_recovery_at_once() {
    if own().is_none() {
        return;
    }
    let time = |is_guarded: bool| {
        let family = Family::new(BUSY);
        keep_and_kill(&family, is_guarded, 90);
        let begun = Instant::now();
        wait_until("put back", || {
            if !is_guarded {
                family.leases().recover().unwrap();
            }
            all_are_wide(&family)
        });
        begun.elapsed()
    };
    let (mut guarded, mut at_once) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..5 {
        guarded += time(true);
        at_once += time(false);
    }
    println!("5 times: {guarded:.3?} by the guard, {at_once:.3?} at once");
    assert!(guarded < 2 * at_once, "{guarded:?} and {at_once:?}");
}

#[test]
fn without_a_guard_the_next_one_puts_every_mask_back() {
    let Some(own) = own() else { return };
    for moment in [5, 50, 150] {
        let mut command = Command::new("setsid");
        let state = tempfile::tempdir().unwrap();
        // The keeper of a command: killed, the command and its orphans live on.
        command
            .arg(example("keep"))
            .arg(state.path().join("leases"))
            .args(["--", "sh", "-c", BUSY])
            .env("CONFINE", "1");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut family = Family::of(command);
        let leader = family.pid();
        wait_until("the command runs", || {
            session(leader)
                .iter()
                .any(|&tid| tid != leader && mask(tid) == home())
        });
        sleep(Duration::from_millis(moment));
        family.shell.kill().unwrap();
        family.shell.wait().unwrap();
        // A child between fork and exec holds its maker's lock for so long.
        let leases = Leases::at(state.path().join("leases"));
        wait_until("put back", || !leases.recover().unwrap().is_empty());
        let left = session(leader);
        assert!(!left.is_empty());
        for tid in left {
            assert!(
                [own.clone(), CpuSet::default()].contains(&mask(tid)),
                "{tid} has {}",
                mask(tid)
            );
        }
    }
}

#[test]
fn orphans_of_a_command_are_kept_and_reaped() {
    let Some(own) = own() else { return };
    let state = tempfile::tempdir().unwrap();
    let options = KeeperOptions {
        leases: Some(Leases::at(state.path().join("leases"))),
        ..confining()
    };
    let mut command = Command::new("setsid");
    command
        .args(["sh", "-c", "(sleep 600 & echo $!); read end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let (keeper, mut child) = Keeper::spawn(command, None, NodeId(0), &machine(), options).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let orphan: i32 = line.trim().parse().unwrap();
    wait_until("it is ours", || {
        tasks::stat(orphan).unwrap().parent == std::process::id().cast_signed()
    });
    wait_until("the orphan is seen", || {
        keeper.report().unwrap().processes >= 2
    });
    let process = rustix::process::Pid::from_raw(orphan).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    wait_until("and waited for", || tasks::stat(orphan).is_err());
    drop(child.stdin.take());
    child.wait().unwrap();
    keeper.stop().unwrap();
    assert_eq!(affinity::get(0).unwrap(), own);
}

#[test]
fn thousands_of_short_lived_threads_are_on_the_node() {
    const MADE: &str = "2000";
    if own().is_none() {
        return;
    }
    let mut command = Command::new(example("short_threads"));
    command
        .args(["1000", MADE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut maker = Family::of(command);
    assert_eq!(maker.lines.next().unwrap().unwrap(), "ready");
    let keeper = maker.keeper();
    maker.say("go");
    let line = maker.lines.next().unwrap().unwrap();
    let report = keeper.stop().unwrap();
    println!("{report}, {} looks", report.looks);
    assert_eq!(line, "0 0", "none has other CPUs than CPU 0");
    assert!(
        report.threads > 1 && report.skipped_count == 0,
        "{report:?}"
    );
}
