//! What shells are offered, by asking the command as their scripts do.

use nearfar_placement::audit::RULES;
use std::path::Path;
use std::time::Instant;

use crate::harness;
use crate::harness::Answer;
use nearfar_machine::{Machine, Origin, SourceKind};
use nearfar_runs::{Cell, Ending, Host, Metric, NewRun, Store};

/// The answer to words typed so far, of which the last is completed, with the caches and stores of that directory.
fn asked(shell: &str, words: &[&str], home: &Path) -> Answer {
    harness::nearfar(["--", "nearfar"])
        .args(words)
        .env("COMPLETE", shell)
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
        .env("_CLAP_IFS", "\n")
        .env("XDG_CACHE_HOME", home)
        .env("XDG_DATA_HOME", home)
        .configure(|command| {
            command.current_dir(home);
        })
        .run()
}

/// The values that bash is offered.
fn offered(words: &[&str], home: &Path) -> Vec<String> {
    let output = asked("bash", words, home);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{words:?}: {output:?}"
    );
    // A positional argument is completed together with the verb's options.
    let text = output.text();
    let values = text
        .lines()
        .map(str::trim)
        .filter(|value| !value.is_empty() && !value.starts_with("--"));
    values.map(str::to_owned).collect()
}

/// The names in a directory of the running system.
fn names_in(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn rules_machines_and_series_are_offered() {
    let home = tempfile::tempdir().unwrap();
    for words in [
        &["audit", "--explain", ""][..],
        &["plan", "--rule", ""],
        &["apply", "--rule", ""],
        &["audit", "--rule", ""],
    ] {
        let rules = offered(words, home.path());
        assert!(
            rules.len() == RULES.len() && rules.contains(&"interrupt-far".to_owned()),
            "{words:?}: {rules:?}"
        );
    }
    assert_eq!(
        offered(&["plan", "--rule", "xps"], home.path()),
        ["xps-mismatch"]
    );
    for words in [
        &["topo", "--source", "two"][..],
        &["lab", "run", "--machine", "two"],
        &["ab", "--machine", "two"],
    ] {
        assert_eq!(offered(words, home.path()), ["two-node"], "{words:?}");
    }
    let series = offered(&["lab", "kernels", "get", ""], home.path());
    assert!(
        series.contains(&"6.12".to_owned()) && series.contains(&"6.1".to_owned()),
        "{series:?}"
    );
    assert_eq!(
        offered(&["lab", "run", "--kernel", "ho"], home.path()),
        ["host"]
    );
    assert!(offered(&["lab", ""], home.path()).contains(&"doctor".to_owned()));
}

#[test]
fn files_are_offered_where_no_name_begins_so() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("server.nearfar"), "").unwrap();
    assert_eq!(
        offered(&["audit", "--source", "serv"], home.path()),
        ["server.nearfar"]
    );
}

#[test]
fn what_this_machine_has_is_offered() {
    let home = tempfile::tempdir().unwrap();
    let nodes = names_in("/sys/devices/system/node")
        .into_iter()
        .filter_map(|it| it.strip_prefix("node")?.parse().ok());
    let mut nodes: Vec<u32> = nodes.collect();
    nodes.sort_unstable();
    let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    for words in [
        &["spread", "--node", ""][..],
        &["prefer", "--node", ""],
        &["bench", "latency", "--from", ""],
    ] {
        assert_eq!(offered(words, home.path()), nodes, "{words:?}");
    }
    let mut devices = names_in("/sys/bus/pci/devices");
    devices.sort();
    assert_eq!(offered(&["plan", "--device", ""], home.path()), devices);
    let near = offered(&["prefer", "--near", ""], home.path());
    let stands = |name: &String| {
        Path::new("/sys/class/net")
            .join(name)
            .join("device")
            .exists()
    };
    for interface in names_in("/sys/class/net")
        .iter()
        .filter(|name| stands(name))
    {
        assert!(near.contains(interface), "{interface}: {near:?}");
    }
    assert!(
        devices.iter().all(|device| near.contains(device)),
        "{near:?}"
    );
    let own = std::process::id().to_string();
    assert!(offered(&["audit", "--pid", &own], home.path()).contains(&own));
}

#[test]
fn stored_runs_are_offered() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(offered(&["runs", "show", ""], home.path()), [] as [&str; 0]);
    let mut store = Store::open(&home.path().join("nearfar/runs.db")).unwrap();
    let machine = Machine::empty(Origin::new(SourceKind::Synthetic, "none"), "not asked");
    let begun = store.begin(&NewRun {
        experiment: "fake",
        title: "nothing is measured",
        label: Some("first"),
        parameters: &serde_json::json!({}),
        factors: &[],
        cells: &[Cell::new()],
        samples_per_cell: 1,
        metrics: &[Metric::elapsed().primary()],
        seed: 7,
        warnings: &[],
        machine: &machine,
        fingerprint: "f",
        host: &Host::here(),
        targets: &[],
    });
    store.finish(begun.unwrap(), &Ending::Complete).unwrap();
    drop(store);
    for verb in ["show", "export", "rm"] {
        assert_eq!(
            offered(&["runs", verb, ""], home.path()),
            ["1", "last"],
            "{verb}"
        );
    }
}

#[test]
fn nothing_that_can_be_read_offers_nothing_and_says_nothing() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("nearfar")).unwrap();
    std::fs::write(home.path().join("nearfar/runs.db"), "no store").unwrap();
    std::fs::write(home.path().join("nearfar/kernels"), "no folder").unwrap();
    assert_eq!(offered(&["runs", "show", ""], home.path()), [] as [&str; 0]);
    assert_eq!(
        offered(&["lab", "run", "--kernel", "6."], home.path()),
        [] as [&str; 0]
    );
    assert_eq!(
        offered(&["path", "--subsystem", "no-such"], home.path()),
        [] as [&str; 0]
    );
}

#[test]
fn every_shell_gets_a_script_that_asks_and_an_answer() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = harness::nearfar(["completions", shell]).prints();
        assert!(
            script.contains("COMPLETE") && script.contains("nearfar"),
            "{script}"
        );
        let target = env!("CARGO_MANIFEST_DIR");
        assert!(
            !script.contains(target),
            "a script names no folder of the build: {script}"
        );
        let output = asked(shell, &["audit", "--explain", "interrupt-f"], home.path());
        let text = output.text();
        assert!(
            output.status.success() && text.contains("interrupt-far"),
            "{shell}: {text}"
        );
    }
}

/// In the slow tier: it compares times. An answer that looked at every device, process or file of the machine would take many
/// times what a start of the command takes.
#[test]
fn an_answer_takes_little_longer_than_a_start_of_the_command() {
    let home = tempfile::tempdir().unwrap();
    let best = |run: &dyn Fn()| {
        let timed = |_| {
            let begin = Instant::now();
            run();
            begin.elapsed()
        };
        (0..10).map(timed).min().unwrap()
    };
    for words in [
        &["plan", "--rule", ""][..],
        &["prefer", "--near", ""],
        &["lab", "run", "--kernel", ""],
    ] {
        let start = best(&|| drop(harness::nearfar(["--version"]).prints()));
        let answer = best(&|| drop(asked("bash", words, home.path())));
        println!("{words:?}: {answer:.3?}, a start {start:.3?}");
        assert!(answer < 10 * start, "{words:?}: {answer:?}, {start:?}");
    }
}
