//! `bench command` through the whole command, with programs that take no time.

use nearfar_machine::CpuSet;
use serde_json::{Value, json};

use crate::harness::{Answer, Sandbox};

const RUN: &str = "bench command --samples 2 --warmup 0 --factor cpus=all";

fn words(options: &str, command: &[&str]) -> Vec<String> {
    let options = options.split_whitespace().map(str::to_owned);
    let command = command.iter().map(|it| (*it).to_owned());
    options.chain(["--".to_owned()]).chain(command).collect()
}

/// The value of a metric in the first cell.
fn median(answer: &Answer, metric: &str) -> Option<f64> {
    let json = answer.json();
    let metrics = json["summary"][0]["metrics"].as_array()?.clone();
    metrics.iter().find(|it| it["metric"] == metric)?["median"].as_f64()
}

#[test]
fn a_command_has_a_time_and_a_number_that_it_prints() {
    let sandbox = Sandbox::new();
    let options = format!("{RUN} --format json --no-store --better higher --regex rate=([0-9.]+)");
    let script = "echo rate=1; i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); done; echo rate=42";
    let answer = sandbox
        .nearfar(words(&options, &["sh", "-c", script]))
        .run()
        .succeeded();
    assert_eq!(median(&answer, "figure"), Some(42.0));
    assert!(median(&answer, "elapsed_s").unwrap() > 0.0);
    let json = answer.json();
    assert_eq!(json["answer"]["metric"], "figure");
    // One placement is compared with nothing.
    assert_eq!(json["answer"]["steps"], serde_json::json!([]));

    let options = format!("{RUN} --format json --no-store --better lower --pointer /a/0/b");
    let answer = sandbox
        .nearfar(words(&options, &["echo", r#"{"a": [{"b": 7.5}]}"#]))
        .run();
    assert_eq!(median(&answer.succeeded(), "figure"), Some(7.5));
}

#[test]
fn events_are_counted_in_the_command_and_what_it_starts() {
    let sandbox = Sandbox::new();
    let counted = |options: &str, script: &str| {
        let options = format!("{RUN} --no-store {options}");
        sandbox
            .nearfar(words(&options, &["sh", "-c", script]))
            .run()
    };
    let twice = counted("--count page-faults,faults", "exit 0");
    let errors = twice.exited(2).errors();
    assert!(errors.contains("faults: named twice"), "{errors}");

    let faults = |script: &str| {
        let answer = counted("--format json --count page-faults", script);
        let why = answer.errors();
        let reasons = ["perf_event_paranoid", "seccomp", "no perf events"];
        if reasons.iter().any(|it| why.contains(it)) {
            println!("skipped: perf: {}", why.trim());
            return None;
        }
        median(&answer.succeeded(), "page_faults")
    };
    let Some(alone) = faults("exit 0") else {
        return;
    };
    let started = faults("i=0; while [ $i -lt 20 ]; do i=$((i + 1)); (exit 0); done").unwrap();
    assert!(alone > 5.0 && started > alone + 40.0, "{alone} {started}");
    // Of a server during the load, also where it does nothing.
    let idle = counted(
        "--format json --count context-switches --load true",
        "sleep 60",
    );
    let idle = median(&idle.succeeded(), "context_switches").unwrap();
    assert!(idle < 100.0, "{idle}");
}

#[test]
fn a_failed_command_is_a_failed_sample_with_what_it_said() {
    let sandbox = Sandbox::new();
    let script = "echo no such table >&2; exit 9";
    let command = words(&format!("{RUN} --no-store"), &["sh", "-c", script]);
    let text = sandbox.nearfar(command).run().exited(3).text();
    assert!(text.contains("exit status: 9: no such table"), "{text}");
    let ignored = words(
        &format!("{RUN} --no-store --ignore-failure"),
        &["sh", "-c", script],
    );
    sandbox.nearfar(ignored).run().succeeded();
    let silent = words(
        &format!("{RUN} --no-store --better lower --regex (x)"),
        &["true"],
    );
    let text = sandbox.nearfar(silent).run().exited(3).text();
    assert!(text.contains("matches --regex"), "{text}");
}

#[test]
fn a_run_is_continued_with_the_command_that_it_has() {
    let sandbox = Sandbox::new();
    let (file, store) = (sandbox.file("ready"), sandbox.file("runs.db"));
    let script = format!("test -e {file} && echo 'it is'");
    let begin = words(&format!("{RUN} --store {store}"), &["sh", "-c", &script]);
    sandbox.nearfar(begin).run().exited(3);
    sandbox.write("ready", "");
    let continued = [
        "bench", "command", "--resume", "--format", "json", "--store", &store,
    ];
    let answer = sandbox.nearfar(continued).run().succeeded();
    assert_eq!(answer.json()["state"], "complete", "{}", answer.text());
    // What repeats the run has the command as one of a shell.
    let shown = sandbox
        .nearfar([
            "runs", "show", "last", "--store", &store, "--format", "mail",
        ])
        .prints();
    assert!(shown.contains("'test -e"), "{shown}");
}

#[test]
fn a_server_is_loaded_once_it_is_ready_and_ended_after_that() {
    let sandbox = Sandbox::new();
    let (began, ended) = (sandbox.file("began"), sandbox.file("ended"));
    let server = format!(
        "trap 'echo >>{ended}; exit 0' TERM; echo >>{began}; echo now ready; while :; do sleep 0.02; done"
    );
    let load =
        format!("test $(wc -l <{began}) -gt $(cat {ended} 2>/dev/null | wc -l) && echo rate=5");
    let mut command = words(
        &format!(
            "{RUN} --format json --no-store --ready now.ready --better higher --regex rate=([0-9]+)"
        ),
        &["sh", "-c", &server],
    );
    command.splice(2..2, ["--load".to_owned(), load]);
    let answer = sandbox.nearfar(command).run().succeeded();
    assert_eq!(median(&answer, "figure"), Some(5.0));
    let lines = |file: &str| std::fs::read_to_string(file).unwrap().lines().count();
    assert_eq!((lines(&began), lines(&ended)), (2, 2));
}

#[test]
fn each_run_is_prepared_and_cleaned_up() {
    let sandbox = Sandbox::new();
    let log = sandbox.file("log");
    let mut command = words(
        &format!("{RUN} --no-store"),
        &["sh", "-c", &format!("echo run >>{log}")],
    );
    let around = [
        "--prepare".to_owned(),
        format!("echo before >>{log}"),
        "--cleanup".to_owned(),
        format!("echo after >>{log}"),
    ];
    command.splice(2..2, around);
    sandbox.nearfar(command).run().succeeded();
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text, "before\nrun\nafter\n".repeat(2));
    let mut command = words(&format!("{RUN} --no-store"), &["true"]);
    command.splice(
        2..2,
        ["--prepare".to_owned(), "echo broken >&2; false".to_owned()],
    );
    let text = sandbox.nearfar(command).run().exited(3).text();
    assert!(
        text.contains("--prepare") && text.contains("broken"),
        "{text}"
    );
}

#[test]
fn a_command_runs_on_the_cpus_of_its_cell() {
    let sandbox = Sandbox::new();
    let script = "grep Cpus_allowed_list /proc/self/status | tr -dc 0-9,-; echo";
    let topology: Value = sandbox.nearfar(["topo", "--format", "json"]).json();
    let cpus = topology["nodes"][0]["cpus"].as_str().unwrap().to_owned();
    let allowed = nearfar_proc::affinity::get(0).unwrap();
    let node: CpuSet = cpus.parse().unwrap();
    let out = sandbox.file("cpus");
    let options = "bench command --format json --samples 1 --warmup 0 --no-store --factor cpus=0 --factor memory=bind";
    sandbox
        .nearfar(words(
            options,
            &["sh", "-c", &format!("{{ {script}; }} >{out}")],
        ))
        .run()
        .succeeded();
    let found: CpuSet = std::fs::read_to_string(out)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert_eq!(found, node.intersection(&allowed));
}

#[test]
fn what_is_clear_gets_no_more_samples_and_hyperfine_s_readers_get_the_times() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    if !status.contains("THP_enabled:\t1") {
        return println!("skipped: kernel: it does not say whether a program has huge pages");
    }
    let sandbox = Sandbox::new();
    let store = sandbox.file("runs.db");
    let options = format!(
        "{RUN} --until-clear --factor huge_pages=keep,never --factor memory=default --better lower \
         --regex figure=([0-9]) --store {store}"
    )
    .replace("--samples 2 ", "");
    let script = "grep -q 'THP_enabled:.*0' /proc/self/status && echo figure=3 || echo figure=2";
    let text = sandbox
        .nearfar(words(&options, &["sh", "-c", script]))
        .run()
        .succeeded()
        .text();
    for expected in [
        "Looked at after 10, 20, 40",
        "do not bind",
        "+50 % (+50 to +50) *",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let shown = sandbox.nearfar(format!("runs show last --format json --store {store}").split(' '));
    let shown = shown.run().succeeded().json();
    assert_eq!(
        [
            &shown["state"],
            &shown["samples"],
            &shown["samples_per_cell"]
        ],
        [&json!("complete"), &json!(20), &json!(80)]
    );

    let export = format!("runs export last --format hyperfine --store {store}");
    let exported = sandbox.nearfar(export.split(' ')).run().succeeded();
    let results = exported.json()["results"].as_array().unwrap().clone();
    assert_eq!(results.len(), 2);
    for (result, level) in results.iter().zip(["keep", "never"]) {
        let times = result["times"].as_array().unwrap();
        let of = |name: &str| result[name].as_f64().unwrap();
        let sum: f64 = times.iter().filter_map(Value::as_f64).sum();
        assert_eq!((times.len(), &result["exit_codes"][9]), (10, &0.into()));
        assert!((of("mean") - sum / 10.0).abs() < 1e-12, "{result}");
        assert!(
            of("min") <= of("median") && of("median") <= of("max"),
            "{result}"
        );
        assert!(
            of("user") >= 0.0 && of("system") >= 0.0 && of("stddev") > 0.0,
            "{result}"
        );
        assert_eq!(result["parameters"]["huge_pages"], level);
    }
    sandbox.write("hyperfine.json", exported.text());
    let import = format!("runs import hyperfine.json --store {store}");
    sandbox.nearfar(import.split(' ')).run().succeeded();
    let mock = format!("bench mock --samples 1 --store {store}");
    sandbox.nearfar(mock.split(' ')).run().succeeded();
    let refused = sandbox.nearfar(export.split(' ')).run().exited(2).errors();
    assert!(refused.contains("has no elapsed_s"), "{refused}");
}
