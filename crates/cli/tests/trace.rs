//! `nearfar trace` as a command: what it says when it cannot trace, and, where this kernel and user permit it, what it
//! traces.

use std::process::Command;
use std::sync::LazyLock;

use crate::harness;
use crate::harness::Answer;
use crate::keys;
use crate::tasks::{Waiting, control_group};
use nearfar_machine::CpuSet;
use nearfar_trace::migrations::{Formats, in_first_pid_namespace};
use nearfar_trace::{Plan, Session, TraceError, Tracefs};
use serde_json::Value;

fn nearfar(arguments: &[&str]) -> Answer {
    harness::nearfar(arguments).run()
}

fn errors(answer: &Answer) -> String {
    answer.errors()
}

/// Whether the system lets this process trace, which the test tries itself; says so where it does not. That the command says why is all
/// that can be asked of it then. Any other refusal of the command is a fault.
fn is_permitted() -> bool {
    static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
        let first: CpuSet = "0".parse().unwrap();
        let session = Tracefs::find()
            .and_then(|tracefs| Formats::read(&tracefs))
            .and_then(|formats| {
                let tracepoints = formats.following();
                Session::open(&Plan {
                    cpus: &first,
                    tracepoints: &tracepoints[..1],
                    names: false,
                    mappings: false,
                    callers_of: None,
                })
                .map(drop)
            });
        let session = if in_first_pid_namespace() {
            session
        } else {
            Err(TraceError::Container)
        };
        session
            .err()
            .filter(TraceError::is_refusal)
            .map(|error| error.to_string())
    });
    if let Some(why) = &*REFUSED {
        println!("skipped: perf: {}", why.replace('\n', " "));
    }
    REFUSED.is_none()
}

/// The answer of a trace, or `None` where the system does not let this process trace.
fn traced(arguments: &[&str]) -> Option<(Answer, Value)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let split = arguments
        .iter()
        .position(|word| *word == "--")
        .unwrap_or(arguments.len());
    let (ours, theirs) = arguments.split_at(split);
    let output = nearfar(
        &[
            &["trace"],
            ours,
            &["--format", "json", "--output", path],
            theirs,
        ]
        .concat(),
    );
    if output.status.code() == Some(3) && !is_permitted() {
        assert!(errors(&output).starts_with("nearfar: "));
        return None;
    }
    let text = std::fs::read_to_string(path).unwrap();
    let answer = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text:?} {}", errors(&output)));
    Some((output, answer))
}

#[test]
fn a_commands_output_and_exit_code_are_its_own_and_the_answer_tells_of_it() {
    let Some((output, answer)) = traced(&["migrations", "--", "sh", "-c", "echo mine; exit 7"])
    else {
        return;
    };
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(7), &b"mine\n"[..])
    );
    assert_eq!(answer["schema"], "trace-migrations/1");
    assert_eq!(answer["command"]["exit_code"], 7);
    assert_eq!(
        answer["tasks"].as_array().unwrap().len(),
        1,
        "{}",
        answer["tasks"]
    );
    assert_eq!(answer["tasks"][0]["ended"], true);
    assert_eq!(answer["gaps"], 0);
}

#[test]
fn a_command_that_a_signal_ends_counts_as_in_a_shell() {
    let Some((output, answer)) = traced(&["migrations", "--", "sh", "-c", "kill -KILL $$"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(128 + 9));
    assert_eq!(
        (
            &answer["command"]["signal"],
            &answer["command"]["exit_code"]
        ),
        (&Value::from(9), &Value::Null)
    );
}

#[test]
fn children_of_a_command_are_followed() {
    let Some((_, answer)) = traced(&["migrations", "--", "sh", "-c", "(true); (true); true"])
    else {
        return;
    };
    let tasks = answer["tasks"].as_array().unwrap();
    assert!(tasks.len() >= 3, "{tasks:?}");
    let of = |key: &str| {
        tasks
            .iter()
            .map(|task| task["migrations"][key].as_u64().unwrap())
            .sum::<u64>()
    };
    for class in [
        "same_core",
        "same_cache",
        "same_node",
        "cross_node",
        "unknown",
    ] {
        assert_eq!(answer["migrations"][class], of(class), "{class}");
    }
}

#[test]
fn a_process_that_runs_already_is_traced_for_the_time_asked_for() {
    // It waits for input until this test ends it.
    let waiting = Waiting::start("cat");
    let pid = waiting.id().to_string();
    let answers = [&[][..], &["--no-follow"]]
        .map(|more| traced(&[&["migrations", "--seconds", "0.2", "--pid", &pid], more].concat()));
    drop(waiting);
    for (output, answer) in answers.into_iter().flatten() {
        assert!(output.status.success(), "{}", errors(&output));
        assert_eq!(answer["tasks"][0]["tid"].to_string(), pid);
        assert_eq!(
            (&answer["tasks"][0]["name"], &answer["tasks"][0]["ended"]),
            (&"cat".into(), &false.into())
        );
        assert!(
            answer["time"][0]["seconds"].as_f64().unwrap() >= 0.2,
            "{}",
            answer["time"]
        );
    }
}

#[test]
fn no_task_was_there_for_longer_than_the_trace() {
    // The kernel takes a while to close the events; its time is not counted.
    let Some((_, answer)) = traced(&["migrations", "--seconds", "0.1", "--pid", "1"]) else {
        return;
    };
    let traced_s = answer["seconds"].as_f64().unwrap();
    for task in answer["tasks"].as_array().unwrap() {
        let spent: f64 = task["time"]
            .as_array()
            .unwrap()
            .iter()
            .map(|time| time["seconds"].as_f64().unwrap())
            .sum();
        assert!(
            spent <= traced_s + 1e-6,
            "{spent} s in a trace of {traced_s} s: {task}"
        );
    }
}

#[test]
fn who_has_ended_is_not_waited_for() {
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id().to_string();
    while !std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap()
        .contains(") Z ")
    {
        std::thread::yield_now();
    }
    let output = nearfar(&["trace", "migrations", "--pid", &pid]);
    ended.wait().unwrap();
    match output.status.code() {
        Some(3) if !is_permitted() => {}
        code => assert_eq!(
            (code, errors(&output).contains("it has ended")),
            (Some(2), true),
            "{}",
            errors(&output)
        ),
    }
}

#[test]
fn a_command_whose_answer_could_not_be_written_is_not_started() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("no/such/directory/answer");
    let output = nearfar(&[
        "trace",
        "migrations",
        "--output",
        file.to_str().unwrap(),
        "--",
        "echo",
        "mine",
    ]);
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(3), &b""[..])
    );
    let errors = errors(&output);
    assert!(
        errors.ends_with("directory/answer: No such file or directory\n"),
        "{errors}"
    );
}

#[test]
fn tasks_of_a_control_group_and_of_those_below_it_are_traced() {
    let name = format!("nearfar-test-{}", std::process::id());
    let Some(group) = control_group(&name) else {
        return;
    };
    let below = group.join("below");
    std::fs::create_dir(&below).unwrap();
    let waiting = Waiting::start("cat");
    let pid = waiting.id().to_string();
    let joined = std::fs::write(below.join("cgroup.procs"), &pid);
    let by_name = joined
        .as_ref()
        .ok()
        .and_then(|()| traced(&["migrations", "--seconds", "0.1", "--group", &name]));
    let path = below.to_str().unwrap();
    let by_path = joined.ok().and_then(|()| {
        traced(&[
            "migrations",
            "--no-follow",
            "--seconds",
            "0.1",
            "--group",
            path,
        ])
    });
    drop(waiting);
    let empty = nearfar(&["trace", "migrations", "--seconds", "0.1", "--group", &name]);
    std::fs::remove_dir(&below)
        .and_then(|()| std::fs::remove_dir(&group))
        .unwrap();
    for (_, answer) in [by_name, by_path].into_iter().flatten() {
        let tids: Vec<String> = answer["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|task| task["tid"].to_string())
            .collect();
        assert_eq!(tids, [pid.as_str()], "{answer}");
    }
    if empty.status.code() != Some(3) || is_permitted() {
        assert_eq!(empty.status.code(), Some(2));
        assert!(
            errors(&empty).contains("no task is in it"),
            "{}",
            errors(&empty)
        );
    }
}

#[test]
fn what_is_wrong_is_said_with_what_to_do_and_an_exit_code_of_its_own() {
    let cases: [(&[&str], i32, &str); 6] = [
        (
            &["trace", "migrations", "--pid", "999999999"],
            2,
            "process 999999999",
        ),
        (&["trace", "migrations"], 2, "--pid"),
        (
            &["trace", "migrations", "--group", "no-such-group"],
            2,
            "/sys/fs/cgroup",
        ),
        (
            &["trace", "migrations", "--", "/no/such/program"],
            127,
            "cannot start /no/such/program",
        ),
        (
            &["trace", "nvme", "--seconds", "1", "--", "true"],
            2,
            "cannot be used with",
        ),
        (
            &["trace", "nvme", "--subsystem", "nvme-subsys99"],
            2,
            "nvme-subsys99",
        ),
    ];
    for (arguments, code, says) in cases {
        let output = nearfar(arguments);
        let errors = errors(&output);
        if output.status.code() == Some(3) && code != 3 && !is_permitted() {
            continue;
        }
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
}

#[test]
fn without_the_driver_the_missing_tracepoint_is_named() {
    if std::path::Path::new("/sys/module/nvme_core").exists() {
        return println!("skipped: kernel: the driver is here");
    }
    let output = nearfar(&["trace", "nvme", "--seconds", "0.1"]);
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(
        errors.contains("nvme:nvme_setup_cmd") && errors.contains("modprobe nvme")
            || errors.contains("tracefs"),
        "{errors}"
    );
}

#[test]
fn every_key_of_a_trace_of_migrations_is_documented() {
    let Some((_, answer)) = traced(&["migrations", "--", "sh", "-c", "true & true; wait"]) else {
        return;
    };
    assert!(keys::documented([&answer]).len() > 15, "{answer}");
}

#[test]
fn what_the_kernel_did_is_listed_by_kind_and_what_hardware_does_not_count_is_unknown() {
    let load = "i=0; while [ $i -lt 200 ]; do i=$((i + 1)); true & done; wait";
    let Some((_, answer)) = traced(&["kernel", "--", "sh", "-c", load]) else {
        return;
    };
    keys::documented([&answer]);
    let did = answer["activities"].as_array().unwrap();
    let amount = |kind: &str, name: &str, key: &str| {
        let mut found = did.iter().filter(|it| it["kind"] == kind);
        let found = found.find(|it| it["name"].as_str().unwrap().starts_with(name));
        found.and_then(|it| it[key].as_f64()).unwrap_or(0.0)
    };
    // A child that is forked gets pages.
    assert!(amount("counters", "pgfault", "count") >= 200.0, "{did:?}");
    assert!(amount("cpu_time", "", "time_s") > 0.0, "{did:?}");
    let kinds = did.iter().map(|it| it["kind"].to_string());
    let kinds = Vec::from_iter(kinds);
    for (kind, reason) in answer["unknown_reasons"].as_object().unwrap() {
        assert!(!reason.as_str().unwrap().is_empty());
        assert!(!kinds.contains(&format!("\"{kind}\"")), "{kind}");
    }
    assert!(answer["unknown_reasons"]["line_transfers"].is_string());
}

#[test]
fn a_time_that_is_none_is_refused_by_every_verb_that_traces_or_keeps() {
    for verb in [
        "trace kernel",
        "trace locks",
        "trace lines",
        "trace nvme",
        "trace migrations --pid 1",
        "prefer --node 0 --pid 1",
        "tasks",
    ] {
        for seconds in ["0", "-1", "nan", "inf", "1e300", "86401", "soon", ""] {
            let option = format!("--seconds={seconds}");
            let words: Vec<&str> = verb.split(' ').chain([option.as_str()]).collect();
            let output = nearfar(&words);
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
            assert!(
                errors.contains("a time from 0.1 to 86400 seconds"),
                "{words:?}: {errors}"
            );
        }
    }
}

#[test]
fn lines_are_not_traced_on_hardware_and_nothing_is_started() {
    let output = nearfar(&["trace", "lines", "--", "sh", "-c", "echo started"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(output.stdout.is_empty());
    assert!(errors.contains("hardware does not count"), "{errors}");
    assert!(errors.contains("nearfar lab run --delay auto"), "{errors}");
}
