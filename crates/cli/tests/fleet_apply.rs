//! `nearfar fleet apply` and `fleet rollback` on hosts whose answers a script makes: what the client does with them, and when it is
//! killed. The step of a host itself is in tests/fleet_slurm.rs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::fleets;
use crate::harness::{NEARFAR, Nearfar, Sandbox};
use rustix::process::Signal;
use serde_json::{Value, json};

const APPLY: &str = "fleet apply --engine local --results c --margin 0.9 --format json --measure";
const MEASURE: &str = "bench latency --buffer 4M --samples 6 --what latency";

/// Hosts of [`wrapper_script`].
struct Hosts {
    sandbox: Sandbox,
    wrapper: PathBuf,
}

impl Hosts {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let wrapper = sandbox.write("wrapper", wrapper_script());
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        Self { sandbox, wrapper }
    }

    fn fleet(&self, words: &str) -> Nearfar {
        let command = self.sandbox.nearfar(words.split(' '));
        command.env("HOSTS", self.sandbox.file("hosts"))
    }

    fn apply(&self, hosts: &str, canaries: u32) -> Nearfar {
        let apply = self
            .fleet(APPLY)
            .args([MEASURE, "--hosts", hosts, "--canary"]);
        let apply = apply
            .arg(canaries.to_string())
            .args(["--at-once", "1", "--command"]);
        apply
            .arg(&self.wrapper)
            .args(["--", "--rule", "interrupt-far"])
    }

    /// `nearfar fleet rollback`, which exits so: its answer.
    fn roll_back(&self, code: i32) -> Value {
        let rollback = self.fleet("fleet rollback --results c --format json");
        rollback.run().exited(code).json()
    }

    fn state(&self, host: &str) -> String {
        let file = self.sandbox.path(&format!("hosts/{host}"));
        fs::read_to_string(file).unwrap_or_else(|_| "as it was".to_owned())
    }

    fn set(&self, host: &str, file: &str) {
        self.sandbox.write(&format!("hosts/{host}.{file}"), "");
    }

    fn audit(&self) -> Vec<(String, String)> {
        let lines = fleets::lines(&self.sandbox.path("c/audit.jsonl"));
        let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
        let lines = lines.iter();
        lines
            .map(|line| (text(line, "host"), text(line, "action")))
            .collect()
    }
}

/// A host: a file that says "changed" while its change set is in force. `HOST.worse` makes it worse, `HOST.stuck` also fails the undo
/// within the step, `HOST.slow` makes the step take long after the change, and `HOST.same` has nothing to change.
fn wrapper_script() -> String {
    format!(
        r#"#!/bin/sh
host=$(echo "$*" | sed -n 's/.*--host \([a-z0-9]*\) .*/\1/p')
file=$HOSTS/$host
mkdir -p "$HOSTS"
answer() {{
    '{NEARFAR}' fleet on-host --host "$host" -- snapshot | zcat | python3 -c '
import gzip, hashlib, json, struct, sys, zlib
rollout, ended = json.loads(sys.argv[1]), json.loads(sys.argv[2])
result = json.load(sys.stdin)
result["ended"] = ended
if rollout:
    result["rollout"] = rollout
text = json.dumps(result).encode()
comment = b"sha256:" + hashlib.sha256(text).hexdigest().encode() + b"\0"
body = zlib.compressobj(6, zlib.DEFLATED, -15)
out = b"\x1f\x8b\x08\x10" + bytes(4) + b"\0\xff" + comment + body.compress(text) + body.flush()
out += struct.pack("<II", zlib.crc32(text), len(text))
sys.stdout.buffer.write(out)' "$1" "$2"
}}
failed='{{"state": "failed", "exit_code": null, "reason": "it got worse"}}'
answered='{{"state": "answered", "exit_code": 0}}'
case "$*" in
*' --change-label fleet-'*' -- rollback --label fleet-'*' --if-exists '*)
    [ ! -e "$file.running" ] || {{ echo 'another step of this rollout still runs on this host' >&2; exit 3; }}
    rm -f "$file"
    answer null "$answered" ;;
*' --change-label fleet-'*' -- apply '*)
    [ ! -e "$file.same" ] || {{ answer '{{"outcome": "nothing_to_change", "change_set": null, "changes": []}}' "$answered"; exit; }}
    touch "$file.running"
    trap 'rm "$file.running"' EXIT
    echo changed > "$file"
    [ ! -e "$file.slow" ] || sleep 3
    if [ -e "$file.stuck" ]; then
        answer '{{"outcome": "worse", "metric": "x", "by": 0.5, "is_undone": false, "change_set": 7, "changes": []}}' "$failed"
    elif [ -e "$file.worse" ]; then
        rm "$file"
        answer '{{"outcome": "worse", "metric": "x", "by": 0.5, "is_undone": true, "change_set": 7, "changes": []}}' "$failed"
    else
        answer '{{"outcome": "kept", "change_set": 7, "changes": ["/x: 0 -> 1"]}}' "$answered"
    fi ;;
*) exit 5 ;;
esac
"#
    )
}

fn has_python() -> bool {
    let is_there = std::process::Command::new("python3")
        .arg("-V")
        .output()
        .is_ok();
    if !is_there {
        println!("skipped: tools: no python3");
    }
    is_there
}

#[test]
fn the_first_host_that_gets_worse_stops_the_rollout_and_undoes_the_others() {
    if !has_python() {
        return;
    }
    let hosts = Hosts::new();
    hosts.set("n3", "worse");
    let answer = hosts.apply("n[1-5]", 1).run().exited(3).json();
    assert_eq!(answer["stopped_at"][0]["host"], "n3");
    assert_eq!(answer["rolled_back"], json!(["n1", "n2"]));
    assert_eq!(answer["untouched"], json!(["n4", "n5"]));
    for host in ["n1", "n2", "n3", "n4", "n5"] {
        assert_eq!(hosts.state(host), "as it was", "{host}");
    }
    let audit = hosts.audit();
    let expected = [
        ("n1", "starting"),
        ("n1", "applied"),
        ("n2", "starting"),
        ("n2", "applied"),
        ("n3", "starting"),
        ("n3", "applied_and_undone"),
        ("n1", "rolled_back"),
        ("n2", "rolled_back"),
    ];
    assert_eq!(
        audit,
        expected.map(|(host, action)| (host.to_owned(), action.to_owned()))
    );
    // Nothing is left to undo, and a resumed run would change all at once.
    let again = hosts.roll_back(0);
    assert_eq!(again["as_before"], json!(["n1", "n2", "n3"]));
    hosts
        .fleet("fleet run --resume --results c")
        .run()
        .refused(&["fleet rollback"]);
}

#[test]
fn a_host_with_nothing_to_change_is_no_canary() {
    if !has_python() {
        return;
    }
    let hosts = Hosts::new();
    hosts.set("n1", "same");
    hosts.set("n2", "worse");
    let answer = hosts.apply("n[1-3]", 1).run().exited(3).json();
    assert_eq!(answer["nothing_to_change"], json!(["n1"]));
    assert_eq!(answer["stopped_at"][0]["host"], "n2");
    assert_eq!(answer["untouched"], json!(["n3"]));
}

/// The step itself, on this machine: the rule never has a change. The lock of the rollout is made in a directory of its own.
#[test]
fn a_host_with_nothing_to_change_is_not_measured() {
    let script = format!(
        "mount -t tmpfs none /var/lib && exec '{NEARFAR}' fleet on-host --host n1 --change-label fleet-x --measure '{MEASURE}' \
         --margin 0.9 -- apply --yes --format json --rule flat-distances"
    );
    let step = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output();
    let step = match step {
        Ok(step) if step.stderr.starts_with(b"unshare: ") => None,
        step => step.ok(),
    };
    let Some(step) = step else {
        return println!("skipped: root: no mount namespace can be made");
    };
    assert!(step.status.success(), "{step:?}");
    let answer = nearfar_fleet::HostResult::read(&step.stdout, "n1").unwrap();
    assert_eq!(answer.runs, []);
    let outcome = answer.rollout.map(|rollout| rollout.outcome);
    assert_eq!(
        outcome,
        Some(nearfar_fleet::rollout::RolloutOutcome::NothingToChange)
    );
}

#[test]
fn canaries_leave_a_host_that_follows_them() {
    let hosts = Hosts::new();
    hosts
        .apply("n[1-3]", 3)
        .run()
        .refused(&["--canary 3", "3 hosts"]);
    assert!(!hosts.sandbox.path("c").exists());
}

/// The folder cannot take the answer of n2: what was changed is named and undone all the same.
#[test]
fn a_failure_in_the_middle_names_and_undoes_what_was_changed() {
    if !has_python() {
        return;
    }
    let hosts = Hosts::new();
    hosts.set("n2", "slow");
    let running = hosts.apply("n[1-3]", 1).start();
    wait_for(|| hosts.state("n2") == "changed\n");
    // No line can be written behind a directory.
    let events = hosts.sandbox.path("c/events.jsonl");
    fs::rename(&events, events.with_extension("old")).unwrap();
    fs::create_dir(&events).unwrap();
    let answer = running.wait().exited(3).says(&["events.jsonl"]).json();
    let failure = answer["failure"].as_str().unwrap();
    assert!(failure.contains("events.jsonl"), "{failure}");
    assert_eq!(answer["rolled_back"], json!(["n1", "n2"]));
    for host in ["n1", "n2", "n3"] {
        assert_eq!(hosts.state(host), "as it was", "{host}");
    }
}

#[test]
fn a_host_that_could_not_undo_itself_is_undone_by_the_rollout() {
    if !has_python() {
        return;
    }
    let hosts = Hosts::new();
    hosts.set("n1", "stuck");
    let answer = hosts.apply("n[1-2]", 1).run().exited(3).json();
    let reason = answer["stopped_at"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("could not be undone"), "{reason}");
    assert_eq!(answer["rolled_back"], json!(["n1"]));
    assert_eq!(hosts.state("n1"), "as it was");
}

#[test]
fn an_interrupted_rollout_waits_for_its_steps_and_says_what_is_changed() {
    if !has_python() {
        return;
    }
    let hosts = Hosts::new();
    hosts.set("n1", "slow");
    let running = hosts.apply("n[1-3]", 1).start();
    wait_for(|| hosts.state("n1") == "changed\n");
    running.signal(Signal::INT);
    let answer = running
        .wait()
        .exited(3)
        .says(&["interrupted", "fleet rollback"])
        .json();
    assert_eq!(answer["kept"], json!(["n1"]));
    assert_eq!(answer["untouched"], json!(["n2", "n3"]));
    let rolled_back = hosts.roll_back(0);
    assert_eq!(rolled_back["rolled_back"], json!(["n1"]));
    assert_eq!(hosts.state("n1"), "as it was");
}

#[test]
fn after_a_kill_the_rollback_finds_what_was_changed() {
    if !has_python() {
        return;
    }
    let hosts = Hosts::new();
    hosts.set("n2", "slow");
    let running = hosts.apply("n[1-3]", 1).start();
    wait_for(|| hosts.state("n2") == "changed\n");
    running.end_by(Signal::KILL);
    // Its step goes on, and the host says so.
    let early = hosts.roll_back(3);
    assert_eq!(early["rolled_back"], json!(["n1"]));
    assert_eq!(early["not_rolled_back"][0]["host"], "n2");
    let partial = hosts.sandbox.path("c/hosts/.n2.partial");
    wait_for(|| fs::metadata(&partial).is_ok_and(|there| there.len() > 0));
    std::thread::sleep(Duration::from_millis(500));
    let late = hosts.roll_back(0);
    assert_eq!(late["rolled_back"], json!(["n2"]));
    assert_eq!(late["untouched"], json!(["n3"]));
    for host in ["n1", "n2"] {
        assert_eq!(hosts.state(host), "as it was", "{host}");
    }
}

#[test]
fn options_of_one_host_are_refused() {
    let hosts = Hosts::new();
    for (option, says) in [
        ("--dry-run", "--dry-run"),
        ("--root=/x", "--root"),
        ("--state=/x", "--state"),
        ("plan.json", "a plan"),
    ] {
        let words = format!("{APPLY} checkup --hosts n1 --canary 1 -- {option}");
        hosts.fleet(&words).run().refused(&[says, "cannot be used"]);
    }
    assert!(!hosts.sandbox.path("c").exists());
}

fn wait_for(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}
