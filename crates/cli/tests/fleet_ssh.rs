//! `nearfar fleet` through a program `ssh` that starts a shell on this machine.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use crate::fleets;
use crate::harness::{NEARFAR, Nearfar, Sandbox};
use crate::waiting::wait_until;
use rustix::process::Signal;
use serde_json::json;

const HOSTS: [&str; 4] = ["h1", "h2", "h3", "h4"];

/// h2 cannot be reached until there is a file `repaired`.
const SSH: &str = "#!/bin/sh
[ \"$*\" = \"-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 -p 2222 -- ${12} ${13}\" ] ||
    exit 2
[ ${12} != h2 ] || [ -e repaired ] || {
    echo 'ssh: connect to host h2 port 2222: Connection refused' >&2
    exit 255
}
exec sh -c \"${13}\"
";

/// As ssh, which ends alone: what it started on the other host goes on.
const SSH_THAT_LEAVES_ITS_STEP: &str = "#!/bin/sh
mkfifo input
setsid sh -c \"exec ${11}\" < input > answer & echo $! > step
exec cat > input
";

/// A sandbox with the programs `ssh` and `nearfar`, and the PATH that begins with it.
fn with_ssh(script: &str) -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    let ssh = sandbox.write("bin/ssh", script);
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    // --command is split at spaces, which may be in the path of a checkout.
    symlink(NEARFAR, sandbox.path("bin/nearfar")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", sandbox.file("bin"));
    (sandbox, path)
}

#[test]
fn a_step_ends_with_the_command_that_asked_for_it() {
    let (sandbox, path) = with_ssh(SSH_THAT_LEAVES_ITS_STEP);
    let run = "fleet run --engine ssh --hosts h1 --results r --command nearfar -- \
               bench latency --what latency --buffer 4M --samples 100000 --budget 100";
    let run = sandbox
        .nearfar(run.split_whitespace())
        .env("PATH", &path)
        .start();
    let step = || fs::read_to_string(sandbox.path("step")).unwrap_or_default();
    wait_until("the step runs", || !step().is_empty());
    let process = format!("/proc/{}", step().trim());
    let children = format!("{process}/task/{}/children", step().trim());
    wait_until("it measures", || {
        fs::read_to_string(&children).is_ok_and(|text| !text.is_empty())
    });
    run.end_by(Signal::KILL);
    wait_until("the step is gone", || {
        fs::read_to_string(format!("{process}/stat")).map_or(true, |text| text.contains(") Z "))
    });
}

#[test]
fn a_host_that_ssh_cannot_reach_is_asked_again_and_what_answered_stays() {
    let (sandbox, path) = with_ssh(SSH);
    let fleet = |words: &str| -> Nearfar {
        let command = sandbox.nearfar(["fleet"]).env("PATH", &path);
        command.args(words.split_whitespace())
    };
    let run = "run --engine ssh --engine-option=-p --engine-option=2222 --hosts h[1-4] --results r --command nearfar \
               --format json -- snapshot";
    let reason = "its step ended with exit status: 255: ssh: connect to host h2 port 2222: Connection refused";
    let answer = fleet(run).run().exited(3);
    let answer = answer.says(&[&format!("h2: lost: {reason}")]).json();
    assert_eq!(answer["answered"], json!(["h1", "h3", "h4"]));
    let lost = fleets::reasons(&answer["lost"]);
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost["h2"], reason);

    let answer_of_h1 = || fs::read(sandbox.path("r/hosts/h1.result.gz")).unwrap();
    let before = answer_of_h1();
    sandbox.write("repaired", "");
    fleet("run --resume --results r").run().exited(0);
    let events = fleets::events(&sandbox.path("r"));
    for host in HOSTS {
        let wanted: &[&str] = match host {
            "h2" => &["started", "lost", "started", "answered"],
            _ => &["started", "answered"],
        };
        assert_eq!(events[host], wanted, "{host}");
        let result = fleets::result(&sandbox.path("r"), host);
        assert_eq!(result["host"], host);
    }
    assert_eq!(before, answer_of_h1());

    let collected = fleet("collect r --dataset d --format json").json();
    assert_eq!(
        collected["collected"][0]["summary"]["answered"],
        json!(HOSTS)
    );
    let survey = fleet("show --dataset d --fail-on outlier --format json").json();
    assert_eq!(survey["hosts"], 4);
    assert_eq!(fleets::deviations(&survey), []);
}
