//! The frame of experiments through the whole command, with an experiment that measures nothing: `bench mock`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A store, temporary files and leases of its own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.temporary()).unwrap();
        place
    }

    fn temporary(&self) -> PathBuf {
        self.0.path().join("tmp")
    }

    fn command(&self, words: &str) -> Command {
        self.of_program(env!("CARGO_BIN_EXE_nearfar"), words)
    }

    /// Another program in the same environment.
    fn of_program(&self, program: &str, words: &str) -> Command {
        let mut command = Command::new(program);
        command
            .args(words.split_whitespace())
            .env("NEARFAR_STORE", self.0.path().join("runs.db"))
            .env("TMPDIR", self.temporary())
            .env("HOME", self.0.path())
            .env("XDG_STATE_HOME", self.0.path().join("state"))
            .stdin(Stdio::null());
        command
    }

    fn nearfar(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    #[track_caller]
    fn json(&self, words: &str) -> Value {
        let output = self.nearfar(&format!("{words} --format json"));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!(
                "{words}: {error}: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// Temporary files and servers that are left.
    fn left(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.temporary()).unwrap();
        let files = files.map(|entry| entry.unwrap().path().display().to_string());
        let store = format!("NEARFAR_STORE={}", self.0.path().join("runs.db").display());
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.ok()?.path();
            let environment = std::fs::read(path.join("environ")).ok()?;
            let has = |start: &[u8]| {
                environment
                    .split(|&b| b == 0)
                    .any(|one| one.starts_with(start))
            };
            (has(store.as_bytes()) && has(b"NEARFAR_RESOURCE=")).then(|| path.display().to_string())
        });
        files.chain(processes).collect()
    }
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_cell_gets_its_samples_with_both_metrics() {
    let place = Place::new();
    let run = place.json("bench mock --samples 3 --slow-ms 2 --seed 7");
    assert_eq!(
        (&run["state"], &run["samples"]),
        (&json!("complete"), &json!(6))
    );
    assert_eq!(run["parameters"], json!({"slow_ms": 2}));
    let metrics = run["metrics"].as_array().unwrap();
    assert_eq!(metrics[0]["name"], "latency_us");
    assert_eq!(
        (&metrics[1]["better"], &metrics[1]["kind"]),
        (&json!("higher"), &json!("integer"))
    );
    let median = |cell: usize| &run["summary"][cell]["metrics"][0]["median"];
    assert_eq!((median(0), median(1)), (&json!(1.5), &json!(2000.0)));
    assert_eq!(place.left(), Vec::<String>::new());
    let text = String::from_utf8(place.nearfar("runs show last").stdout).unwrap();
    assert!(
        text.contains("latency_us") && text.contains("nodes"),
        "{text}"
    );
    assert!(!message(&place.nearfar("runs list --experiment mock")).contains("no experiment"));
}

#[test]
fn a_factor_that_is_repeated_has_all_its_levels_in_the_order_given() {
    let place = Place::new();
    let run = place.json(
        "bench mock --samples 1 --slow-ms 1 --factor speed=slow --factor speed=fast --factor speed=slow",
    );
    let speed = |cell: usize| &run["summary"][cell]["cell"]["speed"];
    assert_eq!(
        (&run["samples"], speed(0), speed(1)),
        (&json!(2), &json!("slow"), &json!("fast"))
    );
}

#[test]
fn the_order_is_that_of_the_seed_and_each_round_has_each_cell_once() {
    let place = Place::new();
    let order = |seed: u32| {
        place.json(&format!("bench mock --samples 6 --slow-ms 1 --seed {seed}"));
        let exported: Value =
            serde_json::from_slice(&place.nearfar("runs export last").stdout).unwrap();
        let taken = exported["runs"][0]["taken"].as_array().unwrap().clone();
        let of = |sample: &Value| {
            (
                sample["round"].as_u64().unwrap(),
                sample["cell"].to_string(),
            )
        };
        taken.iter().map(of).collect::<Vec<_>>()
    };
    let (first, again, other) = (order(1), order(1), order(2));
    assert_eq!(first, again);
    assert_ne!(first, other);
    for round in first.chunks(2) {
        assert!(
            round[0].0 == round[1].0 && round[0].1 != round[1].1,
            "{first:?}"
        );
    }
}

#[test]
fn a_cell_that_fails_is_stored_and_the_others_go_on() {
    let place = Place::new();
    let said = |words: &str| {
        let output = place.nearfar(words);
        assert_eq!(output.status.code(), Some(3), "{}", message(&output));
        message(&output)
    };
    let first = said("bench mock --samples 2 --slow-ms 1 --factor speed=fast,failing");
    let hint = "samples failed: 2 of 4 samples are kept in run 1; `nearfar bench mock --resume=1` continues it";
    assert!(first.contains(hint), "{first}");
    let run = place.json("runs show 1");
    assert_eq!((&run["samples"], &run["failed"]), (&json!(4), &json!(2)));
    assert_eq!(
        (&run["state"], &run["failure"]),
        (&json!("failed"), &json!("2 of 4 samples failed"))
    );
    assert_eq!(run["summary"][1]["samples"], 0);
    let failures = json!([{"what": "this cell always fails", "samples": 2, "differ": false}]);
    assert_eq!(run["summary"][1]["failures"], failures);
    said("bench mock --resume");
    let run = place.json("runs show 1");
    assert_eq!((&run["samples"], &run["failed"]), (&json!(6), &json!(4)));
    let elsewhere = place.nearfar("bench mock --resume --guest machine=two-node");
    assert_eq!(elsewhere.status.code(), Some(2));
    assert!(
        message(&elsewhere).contains("taken on this machine: leave --guest out"),
        "{}",
        message(&elsewhere)
    );
    let stopped = place.nearfar("bench mock --samples 5 --factor speed=failing");
    assert_eq!(stopped.status.code(), Some(3));
    assert!(
        message(&stopped).contains("this cell always fails"),
        "{}",
        message(&stopped)
    );
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn csv_has_a_column_a_metric() {
    let place = Place::new();
    place.json("bench mock --samples 1 --slow-ms 1");
    let csv = String::from_utf8(place.nearfar("runs export last --format csv").stdout).unwrap();
    let header = csv.lines().next().unwrap();
    assert!(
        header.contains(",speed,zone_reclaim,latency_us,nodes,"),
        "{header}"
    );
}

/// DuckDB reads the exported Parquet, one column a metric, with its type.
#[test]
fn duckdb_reads_the_metrics_of_an_exported_run() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python3");
    if !python.exists() {
        println!("skipped: tools: target/python has no DuckDB (tools/install-python)");
        return;
    }
    let place = Place::new();
    place.json("bench mock --samples 3 --slow-ms 1");
    let file = place.0.path().join("run.parquet");
    let words = format!("runs export last --format parquet -o {}", file.display());
    assert!(place.nearfar(&words).status.success());
    let query = "select speed, typeof(any_value(latency_us)), typeof(any_value(nodes)), \
                 median(latency_us), sum(nodes) from '{}' group by speed order by speed";
    let query = query.replace("{}", file.to_str().unwrap());
    let program = format!("import duckdb; print(duckdb.sql(\"{query}\").fetchall())");
    let answer = Command::new(python)
        .args(["-c", &program])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&answer.stdout);
    let nodes = std::fs::read_dir("/sys/devices/system/node").map_or(1, |entries| {
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let number = |name: &String| {
            name.strip_prefix("node")
                .is_some_and(|it| it.parse::<u32>().is_ok())
        };
        names.filter(number).count().max(1)
    });
    let sum = 3 * nodes;
    let expected = format!(
        "[('fast', 'DOUBLE', 'BIGINT', 1.5, {sum}), ('slow', 'DOUBLE', 'BIGINT', 1000.0, {sum})]"
    );
    let errors = String::from_utf8_lossy(&answer.stderr);
    assert_eq!(
        text.trim()
            .replace(&format!("Decimal('{sum}')"), &sum.to_string()),
        expected,
        "{errors}"
    );
}

#[test]
fn an_interrupted_run_is_continued_with_its_own_parameters() {
    let place = Place::new();
    let mut child = place
        .command("bench mock --samples 300 --slow-ms 20 --seed 3 --label quiet")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(|| {
        let runs = place.json("runs list");
        runs["runs"][0]["samples"]
            .as_u64()
            .is_some_and(|samples| samples >= 4)
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(
        said.contains("`nearfar bench mock --resume=1` continues it"),
        "{said}"
    );
    assert_eq!(place.left(), Vec::<String>::new());
    let before = place.json("runs show 1")["samples"].as_u64().unwrap();
    for other in ["--slow-ms 21", "--factor speed=fast"] {
        let refused = place.nearfar(&format!("bench mock --resume --samples 4 {other}"));
        assert_eq!(refused.status.code(), Some(2), "{}", message(&refused));
    }
    assert!(before < 600, "{before} samples: it was not interrupted");
    let refused = place.nearfar("bench mock --resume=2");
    assert!(
        message(&refused).contains("with the number 2"),
        "{}",
        message(&refused)
    );
    let run = place.json("bench mock --resume");
    assert_eq!(
        (&run["run"], &run["state"]),
        (&json!(1), &json!("complete"))
    );
    assert_eq!(run["samples"], json!(600));
}

/// A run whose first sample takes so long, within that sample.
fn within_a_sample(place: &Place, slow_ms: u32) -> std::process::Child {
    let child = place
        .command(&format!(
            "bench mock --samples 9 --slow-ms {slow_ms} --factor speed=slow"
        ))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Before, a signal ends the run without the sample.
    wait_for(|| {
        place
            .left()
            .iter()
            .any(|it| it.starts_with('/') && Path::new(it).join("sample").exists())
    });
    child
}

fn ended(mut child: std::process::Child) -> (Option<i32>, String) {
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    (child.wait().unwrap().code(), said)
}

/// timeout(1) sends SIGTERM to its command and to the command's process group: one request to end. Here a stopped process gets two
/// signals, which come one after the other when it goes on.
#[test]
fn two_signals_at_once_are_one_request() {
    use rustix::process::{Pid, Signal, kill_process};
    let place = Place::new();
    let child = within_a_sample(&place, 2000);
    for signal in [Signal::STOP, Signal::TERM, Signal::INT, Signal::CONT] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let (code, said) = ended(child);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("continues it"), "{said}");
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn a_later_signal_ends_at_once() {
    use rustix::process::{Pid, Signal, kill_process};
    let place = Place::new();
    // The test would hang if it waited for the sample.
    let child = within_a_sample(&place, 600_000);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM).unwrap();
    let status = format!("/proc/{}/status", child.id());
    wait_for(|| {
        let status = std::fs::read_to_string(&status).unwrap();
        status.contains("\nShdPnd:\t0000000000000000\n")
    });
    // Longer than signals count as the same request.
    sleep(Duration::from_millis(1000));
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(ended(child).0, Some(128 + 15));
    wait_for(|| place.left().is_empty());
}

/// Both get a warning: the one that began first as well.
#[test]
fn two_that_measure_at_once_warn_of_each_other() {
    let place = Place::new();
    let mut first = place
        .command("bench mock --samples 400 --slow-ms 20 --label first")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(|| {
        let runs = place.json("runs list");
        runs["runs"][0]["samples"]
            .as_u64()
            .is_some_and(|samples| samples > 4)
    });
    let second = place
        .command("bench mock --samples 3 --slow-ms 100 --label second")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let second_pid = second.id();
    let output = second.wait_with_output().unwrap();
    let expected = format!(
        "warning: process {} (nearfar bench mock) measures at the same time",
        first.id()
    );
    assert!(message(&output).contains(&expected), "{}", message(&output));
    place.nearfar("bench latency --what latency --buffer 4M --samples 2 --budget 0.5");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&first),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let first_pid = first.id();
    let exported = place.nearfar("runs export 3").stdout;
    let exported: Value = serde_json::from_slice(&exported).unwrap();
    let warnings = exported["runs"][0]["warnings"].to_string();
    let warning = format!("process {first_pid} (nearfar bench mock) measured at the same time");
    assert!(warnings.contains(&warning), "{exported}");
    first.wait().unwrap();
    for (run, other) in [("1", second_pid), ("2", first_pid)] {
        let exported: Value =
            serde_json::from_slice(&place.nearfar(&format!("runs export {run}")).stdout).unwrap();
        let taken = exported["runs"][0]["taken"].as_array().unwrap();
        let warning = format!("process {other} (nearfar bench mock) measured at the same time");
        let warned = taken
            .iter()
            .filter(|it| it["warnings"].to_string().contains(&warning));
        let (warned, taken) = (warned.count(), taken.len());
        // The first one measured alone before and after.
        let is_right = if run == "1" {
            (1..taken).contains(&warned)
        } else {
            warned == taken
        };
        assert!(is_right, "run {run}: {warned} of {taken}");
    }
}

#[test]
fn a_run_under_timeout_ends_in_order() {
    let place = Place::new();
    let output = place
        .of_program("timeout", "--preserve-status 1")
        .arg(env!("CARGO_BIN_EXE_nearfar"))
        .args(["bench", "mock", "--samples", "5000", "--slow-ms", "20"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", message(&output));
    assert!(
        message(&output).contains("continues it"),
        "{}",
        message(&output)
    );
    assert_eq!(place.left(), Vec::<String>::new());
}

fn wait_for(mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "not within a minute");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_factor_or_level_that_there_is_not_is_refused_by_name() {
    let place = Place::new();
    for (words, says) in [
        ("--factor spede=fast", "speed"),
        ("--cell speed=fast", "zone_reclaim is missing"),
        ("--factor speed=quick", "fast, slow, failing"),
        ("--slow-ms soon", "'soon' for '--slow-ms"),
        ("--resume=soon", "expected the number of a run"),
    ] {
        let output = place.nearfar(&format!("bench mock {words}"));
        assert_eq!(
            output.status.code(),
            Some(2),
            "{words}: {}",
            message(&output)
        );
        assert!(
            message(&output).contains(says),
            "{words}: {}",
            message(&output)
        );
    }
}

/// Killed at many moments, with its guard in every second case: the next nearfar leaves nothing of it.
#[test]
fn nothing_is_left_of_a_run_that_was_killed_at_any_moment() {
    let place = Place::new();
    let reclaim = || std::fs::read_to_string("/proc/sys/vm/zone_reclaim_mode").unwrap();
    let before = reclaim();
    let other = if before.trim() == "0" { "1" } else { "0" };
    // Only root may set it, and not in every container.
    let may = std::fs::write("/proc/sys/vm/zone_reclaim_mode", &before).is_ok();
    let reclaim_factor = if may {
        format!("--factor zone_reclaim=keep,{other}")
    } else {
        String::new()
    };
    for attempt in 0..24u64 {
        let mut child = place
            .command(&format!(
                "bench mock --samples 100000 --slow-ms 1 {reclaim_factor}"
            ))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From before the first lease to well within the samples.
        sleep(Duration::from_millis(attempt * attempt * 2));
        let guards = guards_of(child.id());
        child.kill().unwrap();
        if attempt % 2 == 0 {
            for guard in guards {
                let _ = rustix::process::kill_process(guard, rustix::process::Signal::KILL);
            }
        }
        child.wait().unwrap();
        let next = place.nearfar("runs list");
        assert!(next.status.success(), "{}", message(&next));
        // A guard that lives may be at it: it holds the lock meanwhile.
        wait_for(|| place.left().is_empty());
        wait_for(|| reclaim() == before);
    }
}

/// The guards that a process has, all children of it.
fn guards_of(pid: u32) -> Vec<rustix::process::Pid> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let is_guard = |child: &&str| {
        std::fs::read_to_string(format!("/proc/{child}/cmdline"))
            .is_ok_and(|command| command.contains("lease-guard"))
    };
    let guards = children.split_whitespace().filter(is_guard);
    guards
        .filter_map(|child| rustix::process::Pid::from_raw(child.parse().ok()?))
        .collect()
}
