//! `nearfar fleet` without a cluster: the engine `local`, the dataset read by others, targets and rules for Prometheus.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness;
use crate::harness::{Sandbox, nearfar};
use serde_json::Value;

fn python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python3")
}

/// A dataset of four hosts, all of them this machine, with a run of latencies each.
fn dataset(sandbox: &Sandbox) {
    let run = "fleet run --engine local --hosts n[1-4] --at-once 1 --results out --label night -- bench latency --buffer 4M --what latency \
               --samples 6 --budget 6 --format json";
    sandbox.nearfar(run.split(' ')).run().succeeded();
    let collect = "fleet collect out --dataset fleet --format json";
    let answer: Value = sandbox.nearfar(collect.split(' ')).json();
    assert_eq!(
        answer["collected"][0]["summary"]["answered"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    assert!(answer["collected"][0]["rows"]["samples"].as_u64().unwrap() >= 24);
}

/// The blocks of docs/fleet.md in a language.
fn blocks(language: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fleet.md");
    let page = std::fs::read_to_string(page).unwrap();
    let parts = page.split("```");
    let of_language = parts.filter_map(|part| part.strip_prefix(&format!("{language}\n")));
    of_language.map(str::to_owned).collect()
}

/// DuckDB and polars read it, by the queries of docs/fleet.md.
fn others_read(sandbox: &Sandbox) {
    if !python().exists() {
        return println!(
            "skipped: tools: target/python has no DuckDB and Polars (tools/install-python)"
        );
    }
    let queries = blocks("sql");
    assert_eq!(queries.len(), 3);
    let in_python = |script: &str| {
        let answer = Command::new(python())
            .args(["-c", script])
            .current_dir(sandbox.path(""))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&answer.stderr);
        assert!(answer.status.success(), "{script}\n{errors}");
        String::from_utf8(answer.stdout).unwrap()
    };
    let rows = |query: &str| {
        let text = in_python(&format!(
            "import duckdb\nprint(len(duckdb.sql(r\"\"\"{query}\"\"\").fetchall()))"
        ));
        text.trim().parse::<usize>().unwrap()
    };
    assert_eq!(rows(&queries[0]), 1);
    assert!(rows(&queries[1]) >= 1);
    // This machine has such interrupts or not; the query is what is checked.
    let _ = rows(&queries[2]);
    let date = "select distinct date, experiment from 'fleet/samples/**/*.parquet'";
    assert_eq!(rows(date), 1);
    let by_host = in_python(&blocks("python").concat());
    assert!(
        by_host.contains("median_ns") && by_host.contains("n4"),
        "{by_host}"
    );
}

/// Hosts that are one machine are alike in every fact.
fn hosts_are_alike(sandbox: &Sandbox) {
    let answer: Value = sandbox
        .nearfar("fleet show --dataset fleet --run night --format json".split(' '))
        .json();
    assert_eq!(answer["groups"].as_array().unwrap().len(), 1);
    let deviations = answer["groups"][0]["deviations"].as_array().unwrap();
    let facts: Vec<&Value> = deviations
        .iter()
        .filter(|it| it["kind"] == "fact")
        .collect();
    assert!(facts.is_empty(), "{facts:?}");
    assert_eq!(answer["groups"][0]["measured"][0]["metric"], "latency_ns");
    let page = "fleet show --dataset fleet --html page.html";
    sandbox.nearfar(page.split(' ')).run().succeeded();
    let page = std::fs::read_to_string(sandbox.path("page.html")).unwrap();
    assert!(
        page.contains("4 hosts") && !page.contains("<script"),
        "{page}"
    );
}

#[test]
fn others_read_a_dataset_and_its_hosts_are_alike_where_they_are_one_machine() {
    let sandbox = Sandbox::new();
    dataset(&sandbox);
    hosts_are_alike(&sandbox);
    others_read(&sandbox);
}

#[test]
fn a_host_that_fails_is_named_and_asked_again() {
    let sandbox = Sandbox::new();
    let nearfar_path = harness::NEARFAR;
    // Fails on n2 until the file `ready` is there.
    let wrapper = format!(
        "#!/bin/sh\ncase \"$*\" in *'--host n2 '*) [ -e '{ready}' ] || {{ echo 'n2 has no power' >&2; exit 9; }} ;; esac\nexec '{nearfar_path}' \"$@\"\n",
        ready = sandbox.file("ready"),
    );
    let wrapper = sandbox.write("wrapper", wrapper);
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = format!(
        "fleet run --engine local --hosts n[1-3] --results out --command {} --format json -- snapshot",
        wrapper.display()
    );
    let answer = sandbox.nearfar(run.split(' ')).run();
    let answer: Value = answer.exited(3).json();
    assert_eq!(answer["lost"][0]["host"], "n2");
    let reason = answer["lost"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("exit status: 9") && reason.contains("n2 has no power"),
        "{reason}"
    );
    sandbox.write("ready", "");
    let resume = "fleet run --resume --results out --format json";
    let answer: Value = sandbox.nearfar(resume.split(' ')).json();
    assert_eq!(answer["answered"].as_array().unwrap().len(), 3);
    let events = std::fs::read_to_string(sandbox.path("out/events.jsonl")).unwrap();
    let started = |host: &str| {
        let lines = events.lines().filter(|line| line.contains("\"started\""));
        lines
            .filter(|line| line.contains(&format!("\"host\":\"{host}\"")))
            .count()
    };
    assert_eq!([started("n1"), started("n2"), started("n3")], [1, 2, 1]);
}

/// Where every user has the same group, the umask is often 002.
#[test]
fn no_other_user_can_write_what_a_run_makes_whatever_the_umask_is() {
    let sandbox = Sandbox::new();
    let nearfar = harness::NEARFAR;
    let script = format!(
        "umask 000; '{nearfar}' fleet run --engine local --hosts n1 --results new/out -- snapshot"
    );
    let ran = Command::new("sh")
        .args(["-c", &script])
        .current_dir(sandbox.path(""))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    for part in [
        "new",
        "new/out",
        "new/out/fleet-run.json",
        "new/out/events.jsonl",
        "new/out/hosts",
        "new/out/hosts/n1.result.gz",
        "new/out/logs",
        "new/out/logs/n1.err",
    ] {
        let mode = std::fs::metadata(sandbox.path(part)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o022, 0, "{part}: {:o}", mode.mode());
    }
    let resume = "fleet run --resume --results new/out";
    sandbox.nearfar(resume.split(' ')).run().succeeded();
    let open = std::fs::Permissions::from_mode(0o775);
    std::fs::set_permissions(sandbox.path("new/out"), open).unwrap();
    let refused = sandbox.nearfar(resume.split(' ')).run();
    refused.refused(&["new/out", "others may write there", "chmod go-w"]);
}

/// A host that answers without end, to standard output or standard error.
#[test]
fn a_step_that_writes_without_end_is_ended() {
    for (redirection, says) in [("", "its answer is larger"), (">&2", "standard error")] {
        let sandbox = Sandbox::new();
        let script = sandbox.write("endless", format!("#!/bin/sh\nexec yes {redirection}\n"));
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let run = format!(
            "fleet run --engine local --hosts n1 --results out --command {} --format json -- snapshot",
            script.display()
        );
        let answer: Value = sandbox.nearfar(run.split(' ')).run().exited(3).json();
        let reason = answer["lost"][0]["reason"].as_str().unwrap();
        assert!(reason.contains(says), "{reason}");
        assert!(!sandbox.path("out/hosts/.n1.partial").exists());
    }
}

#[test]
fn what_would_fail_on_every_host_is_refused_here() {
    for (words, says) in [
        ("-- bench latency --nosuch", "--nosuch"),
        ("-- apply --yes", "nearfar fleet apply"),
        ("-- bench io --destroy nvme0n1", "another disk"),
        (
            "-- bench io --destroy=nvme0n1 --factor pattern=randwrite",
            "another disk",
        ),
        ("-- adit", "did you mean \"audit\"?"),
    ] {
        let sandbox = Sandbox::new();
        let all = format!("fleet run --engine local --hosts n1 --results out {words}");
        sandbox.nearfar(all.split(' ')).run().refused(&[says]);
        assert!(!sandbox.path("out").exists(), "{words}");
    }
    nearfar("fleet run --engine local --hosts n[3-1] --results out -- audit".split(' '))
        .run()
        .refused(&["3-1", "is not a range"]);
}

#[test]
fn targets_are_what_prometheus_reads() {
    let sandbox = Sandbox::new();
    let run = "fleet run --engine local --hosts root@n1,n2 --results out -- snapshot";
    sandbox.nearfar(run.split(' ')).run().succeeded();
    sandbox
        .nearfar("fleet collect out --dataset fleet".split(' '))
        .run()
        .succeeded();
    let list: Value = sandbox
        .nearfar("fleet targets --dataset fleet --port 1234".split(' '))
        .json();
    assert_eq!(
        list[0]["targets"],
        serde_json::json!(["n1:1234", "n2:1234"])
    );
}
