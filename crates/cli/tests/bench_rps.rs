//! `bench rps` through the whole command, over a veth pair: real redis, bad servers, and what is left after a kill.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::killing::{end, kill, kill_guards};
use crate::waiting::wait_until;
use serde_json::Value;

/// A home and a store of its own.
struct Place(tempfile::TempDir);

impl Place {
    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command
            .args(words.split_whitespace())
            .current_dir(self.0.path())
            .env("NEARFAR_STORE", self.0.path().join("runs.db"))
            .env("HOME", self.0.path())
            .env("XDG_STATE_HOME", self.0.path().join("state"))
            // The servers' directories are then below it.
            .env("TMPDIR", self.0.path())
            .stdin(Stdio::null());
        command
    }

    fn nearfar(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    /// Directories of servers.
    fn directories(&self) -> usize {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("nearfar-"))
            .count()
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether a network namespace, a veth pair and redis can be made here; says why not.
fn skipped() -> bool {
    let runs = |program: &str, words: &[&str]| {
        let status = Command::new(program)
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|it| it.success())
    };
    let veth = "ip link add nfa type veth peer name nfb";
    match () {
        () if !rustix::process::geteuid().is_root() => {
            println!("skipped: root: network namespaces need root");
        }
        () if !runs("redis-server", &["--version"]) => {
            println!("skipped: tools: there is no redis-server");
        }
        () if !runs("unshare", &["--net", "sh", "-c", veth]) => {
            println!("skipped: kernel: there are no veth pairs");
        }
        () => return false,
    }
    true
}

#[test]
fn requests_to_redis_are_counted_and_nothing_is_left() {
    if skipped() {
        return;
    }
    let place = Place(tempfile::tempdir().unwrap());
    let words = "bench rps --samples 1 --seconds 1 --warm-up 0.1 --connections 2 --factor server_node=card \
                 --factor receive=keep,server_cpu --format json";
    let output = place.nearfar(words);
    let run: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", errors(&output)));
    assert_eq!(run["state"], "complete", "{}", errors(&output));
    assert!(
        errors(&output).contains("no interrupts and no DMA"),
        "{}",
        errors(&output)
    );
    let cells = run["summary"].as_array().unwrap();
    let levels: Vec<_> = cells.iter().map(|it| &it["cell"]["receive"]).collect();
    assert_eq!(levels, ["keep", "server_cpu"]);
    for cell in cells {
        let metrics = cell["metrics"].as_array().unwrap();
        let of = |name: &str| {
            let metric = metrics.iter().find(|it| it["metric"] == name);
            metric.and_then(|it| it["median"].as_f64())
        };
        assert!(of("requests_per_s").unwrap() > 0.0, "{cell}");
        assert_eq!(of("requests_per_s"), of("requests_per_s_card"), "{cell}");
        assert!(of("latency_card_ns").unwrap() > 0.0, "{cell}");
        assert_eq!(of("latency_adjacent_ns"), None, "{cell}");
        assert_eq!(of("interrupts_near"), None, "{cell}");
    }
    assert_eq!(run["answer"]["changes"].as_array().unwrap().len(), 1);
    assert_eq!(place.directories(), 0);
}

/// A run with redis and this client.
fn with_client(place: &Place, client: &str, rate: &str, format: &str) -> Output {
    let words = "bench rps --samples 1 --seconds 0.2 --connections 2 --factor server_node=card --factor receive=server_cpu \
                 --no-store";
    let mut nearfar = place.command(words);
    nearfar.arg(format!("--format={format}"));
    nearfar.arg(format!("--client-command={client}"));
    nearfar.arg(format!("--client-rate={rate}"));
    nearfar.output().unwrap()
}

const REDIS_BENCHMARK: &str = "redis-benchmark -h {address} -p {port} -a {password} -c {connections} -n 2000 -t set -d {value_bytes} -q";

#[test]
fn another_program_makes_the_requests() {
    if skipped() {
        return;
    }
    let place = Place(tempfile::tempdir().unwrap());
    let rate = "SET: ([0-9.]+) requests per second";
    let output = with_client(&place, REDIS_BENCHMARK, rate, "json");
    let run: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", errors(&output)));
    assert_eq!(run["state"], "complete", "{}", errors(&output));
    let metrics = run["summary"][0]["metrics"].as_array().unwrap();
    let of = |name: &str| {
        let metric = metrics.iter().find(|it| it["metric"] == name);
        metric.and_then(|it| it["median"].as_f64())
    };
    assert!(of("requests_per_s").unwrap() > 0.0, "{run}");
    // It has the times of its requests, and nearfar has not.
    assert_eq!(of("latency_card_ns"), None, "{run}");
    assert_eq!(place.directories(), 0);
}

#[test]
fn clients_may_have_more_cpus_than_connections() {
    if skipped() {
        return;
    }
    let place = Place(tempfile::tempdir().unwrap());
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<String> = (0..1024)
        .filter(|&it| cpus.is_set(it))
        .map(|it| it.to_string())
        .collect();
    let mut nearfar = place.command(
        "bench rps --samples 1 --seconds 0.2 --connections 1 --factor server_node=card --factor receive=server_cpu --no-store",
    );
    let output = nearfar
        .args(["--client-cpus", &cpus.join(",")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn a_client_that_fails_or_prints_no_rate_is_named_with_what_it_says() {
    if skipped() {
        return;
    }
    let place = Place(tempfile::tempdir().unwrap());
    let said = |client: &str| {
        let output = with_client(&place, client, "([0-9.]+) per second", "table");
        assert_ne!(output.status.code(), Some(0));
        // In one line: the table's lines are folded.
        let all = String::from_utf8_lossy(&output.stdout).into_owned() + &errors(&output);
        all.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let failed = said("sh -c 'echo no route to {address}:{port} >&2; exit 3'");
    assert!(
        failed.contains("ended: exit status: 3: no route to 127.0.0.1"),
        "{failed}"
    );
    let silent = said("echo 12 a second {port}");
    assert!(
        silent.contains("no plain number in the output of the client of 127.0.0.1:"),
        "{silent}"
    );
    // In a sample: the trial succeeds.
    let sampled = "case {address} in 127.*) echo 1 per second; exit 0;; esac";
    let failed = said(&format!(
        "sh -c '{sampled}; echo no route to {{address}}:{{port}} >&2; exit 3'"
    ));
    assert!(
        failed.contains("ended: exit status: 3: no route to 198.18."),
        "{failed}"
    );
    let silent = said(&format!("sh -c '{sampled}; echo 12 a second {{port}}'"));
    assert!(
        silent.contains("no plain number in the output of the client of 198.18."),
        "{silent}"
    );
    // Not in the machine's own namespace.
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let elsewhere = said(&format!(
        "sh -c '{sampled}; readlink /proc/self/ns/net; exit 4' {{port}}"
    ));
    assert!(
        elsewhere.contains("net:[") && !elsewhere.contains(own.to_str().unwrap()),
        "{elsewhere}"
    );
    assert_eq!(place.directories(), 0);
}

/// A command that cannot work is refused before there is a run.
#[test]
fn no_run_is_stored_of_a_command_that_does_not_exist_or_ends_at_once() {
    if skipped() {
        return;
    }
    let place = Place(tempfile::tempdir().unwrap());
    let client = "--client-rate=([0-9.]+) per second";
    for (options, says) in [
        (
            vec!["--server-command=no-such-server {port}"],
            "no-such-server: not found",
        ),
        (
            vec!["--server-command=sh -c 'echo no license >&2; exit 7' {port}"],
            "exit status: 7: no license",
        ),
        (
            vec!["--server-command=true {port}"],
            "ended: exit status: 0",
        ),
        (
            vec!["--client-command=no-such-client {port}", client],
            "no-such-client: not found",
        ),
        (
            vec![
                "--client-command=sh -c 'echo no key >&2; exit 9' {port}",
                client,
            ],
            "exit status: 9: no key",
        ),
        (
            vec![client, "--client-command=true {port}"],
            "no plain number in the output",
        ),
    ] {
        let mut nearfar = place.command("bench rps --samples 1 --factor server_node=card");
        let output = nearfar.args(&options).output().unwrap();
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        let option = options[0].split('=').next().unwrap();
        assert!(
            said.contains(says) && said.contains(option),
            "{options:?}: {said}"
        );
        assert_eq!(place.directories(), 0);
    }
    let runs = place.nearfar("runs list --format json");
    let runs: Value = serde_json::from_slice(&runs.stdout).unwrap();
    assert_eq!(runs["runs"], serde_json::json!([]));
}

#[test]
fn a_server_that_ends_is_named_with_what_it_says() {
    if skipped() {
        return;
    }
    let place = Place(tempfile::tempdir().unwrap());
    let run = |command: &str| {
        let mut nearfar = place.command(
            "bench rps --samples 1 --factor server_node=card --factor receive=keep --no-store",
        );
        nearfar.arg(format!("--server-command={command}"));
        let output = nearfar.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &errors(&output)
    };
    let ended = run("redis-server --bind {address} --port {port} --no-such-option 1");
    assert!(
        ended.contains("ended: ") && ended.contains("FATAL CONFIG"),
        "{ended}"
    );
    let unknown = run("redis-server --port {prt}");
    assert!(
        unknown.contains("{prt} is none of {address} {port} {cpu} {node}"),
        "{unknown}"
    );
}

#[test]
fn nothing_is_left_of_a_run_that_was_killed_at_any_moment() {
    if skipped() {
        return;
    }
    let place = Place(tempfile::tempdir().unwrap());
    for attempt in 0..8u64 {
        let words = "bench rps --samples 1000 --seconds 0.1 --warm-up 0 --factor server_node=card --no-store";
        let mut command = place.command(words);
        if attempt % 4 == 3 {
            // A client whose child would keep the clients' namespace.
            command.arg("--client-command=sh -c 'sleep 600 & wait' {port}");
            command.arg("--client-rate=(.+)");
        }
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        // From before the namespace to well within the samples.
        sleep(Duration::from_millis(attempt * attempt * 12));
        let servers = servers_of(&place);
        if attempt % 2 == 0 {
            kill_guards(pid);
        }
        // The server first: its end is an error of the sample, and the run goes on to its end or ours.
        if let (0, Some(&server)) = (attempt % 3, servers.first()) {
            kill(server);
        }
        end(&mut child);
        let next = place.nearfar("runs list");
        assert!(next.status.success(), "{}", errors(&next));
        wait_until("servers", || servers_of(&place).is_empty());
        wait_until("the interface", || {
            !Path::new(&format!("/sys/class/net/nf{pid}")).exists()
        });
        wait_until("directories", || place.directories() == 0);
    }
}

/// The servers and clients of this place's runs: their directory is below it.
fn servers_of(place: &Place) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_server = |pid: &i32| {
        let directory = std::fs::read_link(format!("/proc/{pid}/cwd"));
        directory.is_ok_and(|it| it != place.0.path() && it.starts_with(place.0.path()))
    };
    pids.filter(is_server).collect()
}
