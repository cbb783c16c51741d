//! The step of a rollout that is ended on its host, in a guest with two nodes: it leaves the host as it was, and says so.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes. The
//! part named `inside_...` is this very program once more, started in the guest.

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::guests;
use crate::waiting::wait_until;
use nearfar_fleet::rollout::{Rollout, RolloutOutcome};
use nearfar_fleet::{Ended, HostResult};
use rustix::process::{Pid, Signal, kill_process};

const MOUNT: &str = "/sys/fs/cgroup";
const NODES: &str = "/sys/fs/cgroup/job.slice/cpuset.mems";
const LABEL: &str = "fleet-0123456789abcdef";
/// Takes some seconds before and after the change.
const MEASURE: &str = "bench latency --what latency --buffer 32M --samples 12 --budget 30";
const CHANGE: &str = "apply --yes --format json --cpuset-mems job.slice=1";
const UNDO: &str = "rollback --label fleet-0123456789abcdef --if-exists --format json";

/// A step of the rollout on this host, its answer in the file.
fn step(options: &[&str], verb: &str, answer: &str) -> Child {
    let on_host = ["fleet", "on-host", "--host", "n1", "--change-label", LABEL];
    Command::new(guests::NEARFAR)
        .args(on_host)
        .args(options)
        .arg("--")
        .args(verb.split(' '))
        .stdin(Stdio::null())
        .stdout(File::create(answer).unwrap())
        .spawn()
        .unwrap()
}

fn change(answer: &str) -> Child {
    step(&["--measure", MEASURE, "--margin", "0.9"], CHANGE, answer)
}

fn undo(answer: &str) -> ExitStatus {
    step(&[], UNDO, answer).wait().unwrap()
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Whether it measures now: `apply` and `bench` are processes of their own.
fn measures(child: &Child) -> bool {
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let children = fs::read_to_string(children).unwrap();
    let runs_bench = |pid: &str| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == b"bench")
    };
    children.split_whitespace().any(runs_bench)
}

fn nodes() -> String {
    fs::read_to_string(NODES).unwrap()
}

fn answer(file: &str) -> HostResult {
    HostResult::read(&fs::read(file).unwrap(), file).unwrap()
}

#[test]
#[ignore = "runs in the guest"]
fn inside_a_step_is_ended() {
    assert!(
        guests::is_inside(),
        "this part changes a control group: it runs in a guest"
    );
    fs::write(format!("{MOUNT}/cgroup.subtree_control"), "+cpuset +memory").unwrap();
    fs::create_dir(format!("{MOUNT}/job.slice")).unwrap();

    // In the first measurement.
    let mut child = change("before");
    wait_until("it measures", || measures(&child));
    send(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
    let ended = answer("before").ended;
    assert!(
        matches!(&ended, Ended::Failed { reason, .. } if reason == "it was ended before the changes"),
        "{ended:?}"
    );

    // In the second one, while a rollback of the same rollout comes.
    let mut child = change("after");
    let measures_again = |child: &Child| nodes() == "1\n" && measures(child);
    wait_until("the group is changed", || measures_again(&child));
    let refused = undo("refused");
    assert_eq!(refused.code(), Some(3));
    assert_eq!(nodes(), "1\n", "the step that runs has to undo it");
    send(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
    assert_eq!(nodes(), "\n");
    let Some(Rollout {
        outcome: RolloutOutcome::NotMade { reason, is_undone },
        change_set,
        ..
    }) = answer("after").rollout
    else {
        panic!("{:?}", answer("after").rollout);
    };
    assert_eq!(
        (reason.as_str(), is_undone, change_set),
        (
            "it was ended before the second measurement was complete",
            true,
            Some(1)
        )
    );

    // Killed in the second one: the rollback finds its change set without an answer, and nothing when it comes again. A step that comes
    // after it changes nothing.
    let mut child = change("killed");
    wait_until("the group is changed again", || measures_again(&child));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read("killed").unwrap(), b"");
    for file in ["undone", "nothing"] {
        assert!(undo(file).success());
        assert_eq!(nodes(), "\n");
        assert_eq!(answer(file).ended, Ended::Answered { exit_code: 0 });
    }
    let late = change("late").wait().unwrap();
    assert_eq!((late.code(), nodes().as_str()), (Some(3), "\n"));
    let undone = |file| answer(file).answer["rollbacks"][0]["change_set"].clone();
    assert_eq!((undone("undone"), undone("nothing")), (2.into(), ().into()));
}

#[test]
fn a_step_that_is_ended_leaves_its_host_as_it_was() {
    if guests::skipped() {
        return;
    }
    guests::part(
        "two-node",
        &["--scale", "cpus=2,memory=512M"],
        "fleet_here::inside_a_step_is_ended",
    );
}
