//! The keeper on this very system, as if each of its first two CPUs were a node: who is narrowed, who is skipped, and
//! that every mask is as before when it ends or is killed at any moment.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{examples, home, machine, mask, own, within};
use nearfar_lease::Leases;
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
            ..KeeperOptions::default()
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
    within(20, "the child is seen", || {
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
    within(20, "it is noticed", || {
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
fn the_surplus_of_a_full_node_is_let_out_and_comes_back() {
    let Some(own) = own() else { return };
    let mut family = Family::new("while :; do :; done & echo $!; exec sleep 60");
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
    // With other work than the hog's, the node's CPU is not what the keeper waits for.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    if keeper.report().unwrap().widened == 0 && load > own.len() as f64 + 2.0 {
        return println!(
            "skipped: load: this host is busy with other work (load {load}), and no thread was released in a minute"
        );
    }
    let report = keeper.stop().unwrap();
    assert!(report.widened >= 1, "{report}");
    assert_eq!(mask(busy), own);
}

fn example() -> PathBuf {
    examples().join("keep")
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

#[test]
fn killed_at_any_moment_the_guard_puts_every_mask_back_within_a_second() {
    let Some(own) = own() else { return };
    for moment in [0, 10, 90, 170] {
        let family = Family::new(BUSY);
        let mut command = Command::new(example());
        command
            .arg(family.state())
            .arg(family.pid().to_string())
            .env("GUARDED", "1");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut keeper = command.spawn().unwrap();
        if moment > 0 {
            let mut line = String::new();
            BufReader::new(keeper.stdout.take().unwrap())
                .read_line(&mut line)
                .unwrap();
            assert_eq!((line.as_str(), mask(family.pid())), ("kept\n", home()));
        }
        sleep(Duration::from_millis(moment));
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        let narrow = || {
            session(family.pid())
                .into_iter()
                .filter(|&tid| mask(tid) == home())
                .collect::<Vec<_>>()
        };
        within(1, &format!("killed after {moment} ms"), || {
            narrow().is_empty()
        });
        assert_eq!(mask(family.pid()), own);
    }
}

#[test]
fn without_a_guard_the_next_one_puts_every_mask_back() {
    let Some(own) = own() else { return };
    for moment in [5, 50, 150] {
        let mut command = Command::new("setsid");
        let state = tempfile::tempdir().unwrap();
        // The keeper of a command: killed, the command and its orphans live on.
        command
            .arg(example())
            .arg(state.path().join("leases"))
            .args(["--", "sh", "-c", BUSY]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut family = Family::of(command);
        let leader = family.pid();
        within(5, "the command runs", || {
            session(leader)
                .iter()
                .any(|&tid| tid != leader && mask(tid) == home())
        });
        sleep(Duration::from_millis(moment));
        family.shell.kill().unwrap();
        family.shell.wait().unwrap();
        // A child between fork and exec holds its maker's lock for so long, and it is on the preferred node, where other tests have their
        // hogs.
        let leases = Leases::at(state.path().join("leases"));
        // Where the hogs had driven all of them out of the node, there is nothing to put back.
        let is_wide = || session(leader).iter().all(|&tid| mask(tid) != home());
        within(60, "put back", || {
            !leases.recover().unwrap().is_empty() || is_wide()
        });
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
        ..KeeperOptions::default()
    };
    let mut command = Command::new("setsid");
    command
        .args(["sh", "-c", "(sleep 3 & echo $!); read end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let (keeper, mut child) = Keeper::spawn(command, None, NodeId(0), &machine(), options).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let orphan: i32 = line.trim().parse().unwrap();
    within(5, "it is ours", || {
        tasks::stat(orphan).unwrap().parent == std::process::id().cast_signed()
    });
    within(20, "the orphan is seen", || {
        keeper.report().unwrap().processes >= 2
    });
    within(20, "and waited for", || tasks::stat(orphan).is_err());
    drop(child.stdin.take());
    child.wait().unwrap();
    keeper.stop().unwrap();
    assert_eq!(affinity::get(0).unwrap(), own);
}

#[test]
fn a_thousand_short_lived_threads_a_second_are_at_home() {
    let Some(own) = own() else { return };
    let mut command = Command::new(examples().join("short_threads"));
    command
        .args(["1000", "3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut maker = Family::of(command);
    assert_eq!(maker.lines.next().unwrap().unwrap(), "ready");
    let keeper = maker.keeper();
    maker.say("go");
    let line = maker.lines.next().unwrap().unwrap();
    let report = keeper.stop().unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let [made, elsewhere] = [0, 1].map(|word: usize| words[word].parse::<u64>().unwrap());
    println!(
        "{made} threads, {elsewhere} with other CPUs than {}; {report}, {} looks",
        words[2], report.looks
    );
    assert_eq!((words[2], own.len() > 1), ("0", true));
    assert!(made > 1000, "{line}");
    // Where others have CPU 0, a thread may be released, and what it makes with it.
    assert!(elsewhere == 0 || report.widened > 0, "{line}; {report}");
    assert!(
        report.threads > 1 && report.skipped_count == 0,
        "{report:?}"
    );
}
