//! The command as a whole: what it prints, how it fails, what it leaves behind.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness;
use crate::harness::Answer;
use crate::keys;
use crate::machines::Laid;
use serde_json::Value;

const KUNPENG: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../sources/tests/fixtures/kunpeng-numactl.txt"
);

/// The recorded guest whose four-node machine has its network cards, disks and NVMe controller on node 2.
const QUEUES: &str = "x86-queues-on-node-2";

fn nearfar(arguments: &[&str]) -> Answer {
    harness::nearfar(arguments).run()
}

/// Standard output of a command that has to succeed.
#[track_caller]
fn answer(arguments: &[&str]) -> String {
    harness::nearfar(arguments).prints()
}

#[track_caller]
fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&answer(arguments)).unwrap()
}

/// The message and exit code of a command that has to fail.
#[track_caller]
fn failure(arguments: &[&str]) -> (String, i32) {
    let output = nearfar(arguments);
    assert!(
        !output.status.success(),
        "{arguments:?} was expected to fail"
    );
    (output.errors(), output.status.code().unwrap())
}

#[test]
fn a_spread_from_the_published_machine_is_nearest_first() {
    let spread = [
        "spread", "--source", KUNPENG, "--node", "2", "--count", "49", "--format",
    ];
    let cpus = |more: &[&str]| -> Vec<String> {
        let text = answer(&[&spread[..], more].concat());
        text.lines()
            .map(|line| line.split_once(' ').unwrap().1.to_owned())
            .collect()
    };
    let at = |cpus: &[String]| [0, 24, 48].map(|queue: usize| cpus[queue].clone());
    assert_eq!(at(&cpus(&["list"])), ["48", "72", "24"]);
    assert_eq!(
        at(&cpus(&["list", "--policy", "kernel-pre-6.3"])),
        ["48", "0", "24"]
    );
    assert_eq!(cpus(&["mask"])[24], "00000100,00000000,00000000");
}

#[test]
fn every_answer_has_a_json_form_in_its_envelope() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    let verbs: [(&str, &[&str]); 13] = [
        ("tasks/1", &["tasks"]),
        ("task-groups/1", &["tasks", "--groups"]),
        ("topo/1", &["topo", "--root", &root]),
        ("pairs/1", &["topo", "--pairs", "--root", &root]),
        ("audit/1", &["audit", "--root", &root]),
        ("plan/1", &["plan", "--root", &root]),
        ("history/1", &["rollback", "--list", "--root", &root]),
        (
            "spread/1",
            &["spread", "--root", &root, "--count", "3", "--node", "2"],
        ),
        (
            "path/1",
            &[
                "path",
                "--source",
                "nvme-two-controllers",
                "--cpu",
                "0",
                "--subsystem",
                "nvme-subsys0",
            ],
        ),
        ("machines/1", &["lab", "machines"]),
        ("explain/1", &["audit", "--explain", "nvme-far-path"]),
        ("explain-rules/1", &["audit", "--explain"]),
        ("checkup/1", &["checkup", "--root", &root]),
    ];
    for (schema, arguments) in verbs {
        let answer = json(&[arguments, &["--format", "json"]].concat());
        assert_eq!(answer["schema"], schema, "{arguments:?}");
        assert_eq!(
            answer["nearfar"],
            env!("CARGO_PKG_VERSION"),
            "{arguments:?}"
        );
    }
}

#[test]
fn every_key_of_the_json_forms_is_documented() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    let mut answers = Vec::new();
    for source in [
        "kunpeng",
        "nvme-two-controllers",
        "cxl-memory-only",
        "x86-case1",
    ] {
        answers.extend(
            ["topo", "audit"].map(|verb| json(&[verb, "--source", source, "--format", "json"])),
        );
    }
    for verb in ["topo", "audit", "plan", "checkup"] {
        answers.push(json(&[verb, "--root", &root, "--format", "json"]));
    }
    answers.push(json(&[
        "apply", "--root", &root, "--yes", "--format", "json",
    ]));
    for options in [&["--list"][..], &[], &["--all"]] {
        let rollback = ["rollback", "--root", &root, "--format", "json"];
        answers.push(json(&[&rollback, options].concat()));
    }
    let path = [
        "path",
        "--source",
        "nvme-two-controllers",
        "--cpu",
        "0",
        "--subsystem",
        "nvme-subsys0",
        "--format",
        "json",
    ];
    answers.push(json(&path));
    let own = std::process::id().to_string();
    let tasks = ["tasks", "--threads", "--pid", &own, "--format", "json"];
    answers.push(json(&tasks));
    answers.push(json(&["tasks", "--groups", "--format", "json"]));
    let top = ["top", "--batch", "--count", "1", "--seconds", "0.1"];
    answers.push(json(&[&top[..], &["--format", "json"]].concat()));
    answers.push(json(&["topo", "--pid", &own, "--format", "json"]));
    answers.push(json(&[
        "topo", "--pairs", "--source", "kunpeng", "--format", "json",
    ]));
    answers.push(json(&["audit", "--explain", "--format", "json"]));
    let explained = ["audit", "--explain", "interrupt-far", "--format", "json"];
    answers.push(json(&explained));
    let keys = keys::documented(&answers);
    assert!(keys.len() > 60, "only {} keys were seen", keys.len());
}

#[test]
fn a_plan_is_made_and_undone_to_the_last_byte() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    let before = contents(&tree.path(""));
    let plan = answer(&["plan", "--root", &root, "--format", "json"]);
    tree.write("plan.json", plan.as_bytes());
    let file = tree.path("plan.json").display().to_string();
    let made = json(&["apply", &file, "--root", &root, "--format", "json"]);
    assert!(
        !made["changes"].as_array().unwrap().is_empty(),
        "there is something to fix on that machine"
    );
    assert!(contents(&tree.path("")) != before);
    let left = json(&["plan", "--root", &root, "--format", "json"]);
    assert_eq!(
        left["changes"].as_array().unwrap().len(),
        0,
        "a fixed machine has nothing left to fix: {left}"
    );
    answer(&["rollback", "--root", &root]);
    assert!(
        contents(&tree.path("")) == before,
        "rollback restores every file"
    );
    assert!(
        answer(&["rollback", "--root", &root]).contains("othing"),
        "a second rollback says that there is nothing"
    );
}

/// Makes the changes of a plan in two change sets.
fn apply_in_two(tree: &Laid, root: &str) {
    let plan = json(&["plan", "--root", root, "--format", "json"]);
    let changes = plan["changes"].as_array().unwrap();
    let (first, second) = changes.split_at(changes.len() / 2);
    for part in [first, second] {
        let mut half = plan.clone();
        half["changes"] = Value::from(part.to_vec());
        tree.write("half.json", half.to_string().as_bytes());
        let file = tree.path("half.json").display().to_string();
        answer(&["apply", &file, "--root", root]);
    }
}

#[test]
fn all_change_sets_are_undone_the_newest_first() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    let is_in_force = || {
        let list = ["rollback", "--list", "--fail-on", "in-force"];
        let list = nearfar(&[&list[..], &["--root", &root]].concat());
        list.status.code().unwrap()
    };
    let before = contents(&tree.path(""));
    assert_eq!(is_in_force(), 0);
    apply_in_two(&tree, &root);
    assert_eq!(is_in_force(), 1);
    let all = ["rollback", "--root", &root, "--all", "--format", "json"];
    let sets = |answer: &Value| -> Vec<u64> {
        let rollbacks = answer["rollbacks"].as_array().unwrap();
        let set = |it: &Value| it["change_set"].as_u64().unwrap();
        rollbacks.iter().map(set).collect()
    };
    assert_eq!(sets(&json(&all)), [2, 1]);
    assert!(contents(&tree.path("")) == before);
    assert_eq!(is_in_force(), 0);

    // A value of the last one that somebody else changed: it is kept, and the first stays in force.
    apply_in_two(&tree, &root);
    let queue = "sys/class/net/eth0/queues/tx-7/xps_cpus";
    tree.write(queue, b"03\n");
    let incomplete = nearfar(&all);
    assert_eq!(incomplete.status.code(), Some(3));
    assert_eq!(sets(&incomplete.json()), [4]);
    assert_eq!(is_in_force(), 1);
    assert_eq!(std::fs::read(tree.path(queue)).unwrap(), b"03\n");
}

#[test]
fn what_was_undone_is_printed_although_an_earlier_journal_is_damaged() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    apply_in_two(&tree, &root);
    let journal = "var/lib/nearfar/change-1.journal";
    let mut bytes = std::fs::read(tree.path(journal)).unwrap();
    bytes[20] ^= 1;
    tree.write(journal, &bytes);
    let all = ["rollback", "--root", &root, "--all", "--format", "json"];
    let (answer, end) = (nearfar(&all), nearfar(&all));
    assert_eq!(answer.status.code(), Some(3));
    assert!(answer.errors().contains("change-1.journal"));
    assert_eq!(answer.json()["rollbacks"][0]["change_set"], 2);
    // Nothing more can be undone.
    assert_eq!((end.status.code(), end.text()), (Some(3), String::new()));
}

/// Every file of the machine below a directory, without what nearfar itself keeps there.
fn contents(root: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![root.join("sys"), root.join("proc")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            let path = entry.path();
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() {
                found.push((path.display().to_string(), std::fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_snapshot_stands_for_its_machine() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    let file = tree.path("machine.nearfar").display().to_string();
    answer(&["snapshot", "--root", &root, "-o", &file]);
    let of = |verb: &str, source: [&str; 2]| {
        let mut answer = json(&[&[verb], &source[..], &["--format", "json"]].concat());
        // The place differs, also in evidence, and a snapshot adds when it was taken.
        answer
            .as_object_mut()
            .unwrap()
            .retain(|key, _| !["source", "origin"].contains(&key.as_str()));
        answer.to_string().replace(&format!("{file}: /"), &root)
    };
    for verb in ["topo", "audit", "plan"] {
        assert_eq!(
            of(verb, ["--source", &file]),
            of(verb, ["--root", &root]),
            "{verb}"
        );
    }
}

#[test]
fn failures_name_what_was_tried_and_have_their_exit_codes() {
    let cases: [(&[&str], i32, &str); 9] = [
        (&["topo", "--source", "no-such-thing"], 2, "no-such-thing"),
        (&["topo", "--root", "/nonexistent"], 2, "/nonexistent"),
        (&["topo", "--source", "kunpeng", "--fake", "0"], 2, "0"),
        (&["topo", "--source", "kunpeng", "--root", "/"], 2, "--root"),
        (
            &[
                "spread", "--source", "kunpeng", "--node", "9", "--count", "1",
            ],
            2,
            "node 9",
        ),
        (
            &[
                "path",
                "--source",
                "kunpeng",
                "--cpu",
                "0",
                "--subsystem",
                "nvme7",
            ],
            2,
            "nvme7",
        ),
        (
            &["apply", "/nonexistent/plan.json"],
            2,
            "/nonexistent/plan.json",
        ),
        (
            &["snapshot", "--source", "kunpeng", "-o", "/nonexistent/x"],
            3,
            "/nonexistent/x",
        ),
        (&["nonsense"], 2, "nonsense"),
    ];
    for (arguments, code, names) in cases {
        let (message, exit) = failure(arguments);
        assert_eq!(exit, code, "{arguments:?}: {message}");
        assert!(message.contains(names), "{arguments:?}: {message}");
        assert!(
            !message.contains("panicked") && !message.contains("RUST_BACKTRACE"),
            "{message}"
        );
    }
}

#[test]
fn a_plan_of_something_else_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refuse = |content: &str, names: &str| {
        let file = directory.path().join("plan.json");
        std::fs::write(&file, content).unwrap();
        let arguments = [
            "apply",
            file.to_str().unwrap(),
            "--root",
            directory.path().to_str().unwrap(),
        ];
        let (message, code) = failure(&arguments);
        assert_eq!(code, 2, "{message}");
        assert!(message.contains(names), "{message}");
        assert!(!directory.path().join("var").exists(), "nothing was begun");
    };
    refuse("", "plan.json is not a plan");
    refuse("[]", "plan.json is not a plan");
    refuse(
        &answer(&["topo", "--source", "kunpeng", "--format", "json"]),
        "topo/1",
    );
    refuse(
        r#"{"plan_format": 99, "host": null, "changes": [], "left_alone": [], "nearest": []}"#,
        "99",
    );
    let escape = r#"{"plan_format": 1, "host": null, "changes": [{"change": {"kind": "xps", "interface": "../../../etc",
        "queue": 0, "cpus": "0"}, "before": null, "rule": "x", "reason": "x", "distance": null}], "left_alone": [], "nearest": []}"#;
    refuse(escape, "../../../etc");
}

#[test]
fn an_audit_fails_only_on_what_it_was_asked_to_fail_on() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    answer(&["audit", "--root", &root]);
    let output = nearfar(&["audit", "--root", &root, "--fail-on", "fact"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.is_empty(), "the answer says it all");
    answer(&["audit", "--source", "two-node", "--fail-on", "critical"]);
}

#[test]
fn a_check_of_nagios_is_a_line_and_one_of_four_codes() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    let check = |words: &[&str]| {
        let output = nearfar(&[&["audit", "--format", "nagios"], words].concat());
        assert!(output.stderr.is_empty(), "{output:?}");
        let line = String::from_utf8(output.stdout.clone()).unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        let (status, rest) = line.split_once(" - ").unwrap();
        let (says, figures) = rest.split_once(" | ").unwrap_or((rest, ""));
        let figures = figures.trim_end().to_owned();
        (
            output.status.code(),
            status.to_owned(),
            says.trim_end().to_owned(),
            figures,
        )
    };
    let (code, status, says, figures) = check(&["--root", &root, "--fail-on", "notice"]);
    assert_eq!((code, status.as_str()), (Some(1), "NUMA WARNING"), "{says}");
    assert!(
        says.contains("; device-without-node (1), xps-mismatch (8); "),
        "{says}"
    );
    assert!(
        figures.starts_with("critical=0 warning=0 notice="),
        "{figures}"
    );
    // Of warnings there are none.
    assert_eq!(check(&["--root", &root]).0, Some(0));
    let (code, status, ..) = check(&["--root", &root, "--rule", "flat-distances"]);
    assert_eq!((code, status.as_str()), (Some(0), "NUMA OK"));
    // What cannot be judged is not in order.
    for (words, reason) in [
        (
            &["--source", "two-node", "--rule", "distances-lie"][..],
            "no findings; ",
        ),
        (&["--source", "/nonexistent"], "/nonexistent"),
        (
            &["--root", &root, "--rule", "nope"],
            "there is no audit rule",
        ),
    ] {
        let (code, status, says, _) = check(words);
        assert_eq!((code, status.as_str()), (Some(3), "NUMA UNKNOWN"), "{says}");
        assert!(says.contains(reason), "{says}");
    }
}

#[test]
fn without_a_terminal_to_ask_nothing_is_changed() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    let before = contents(&tree.path(""));
    let (message, code) = failure(&["apply", "--root", &root, "--yes", "--rate", "5"]);
    assert_eq!(code, 2);
    assert!(message.contains("this plan moves none"), "{message}");
    let (message, code) = failure(&["apply", "--root", &root]);
    assert_eq!(code, 2);
    assert!(message.contains("--yes"), "{message}");
    answer(&["apply", "--root", &root, "--dry-run"]);
    assert!(contents(&tree.path("")) == before);
}

#[test]
fn a_dry_run_in_json_is_the_plan_that_apply_takes() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    let [dry, plan] = [&["apply", "--dry-run"][..], &["plan"]].map(|verb| {
        let text = answer(&[verb, &["--root", &root, "--format", "json"]].concat());
        let mut plan: Value = serde_json::from_str(&text).unwrap();
        plan["source"].as_object_mut().unwrap().remove("taken_at_s");
        plan
    });
    assert!(!plan["changes"].as_array().unwrap().is_empty());
    assert_eq!(dry, plan);
    // Of a question that cannot be answered, only standard error has the plan for people.
    let output = nearfar(&["apply", "--root", &root, "--format", "json"]);
    assert_eq!(
        (output.status.code(), output.stdout.is_empty()),
        (Some(2), true)
    );
}

#[test]
fn what_topo_prints_as_json_is_a_source() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("topo.json").display().to_string();
    let printed = answer(&["topo", "--source", "two-node", "--format", "json"]);
    std::fs::write(&file, &printed).unwrap();
    // It is read from the file, which names what it is of.
    let of_file = format!("{file} (of machines/two-node.toml)");
    assert_eq!(
        answer(&["topo", "--source", &file, "--format", "json"]),
        printed.replace("machines/two-node.toml", &of_file)
    );
    std::fs::write(
        &file,
        answer(&["audit", "--source", "two-node", "--format", "json"]),
    )
    .unwrap();
    let (message, code) = failure(&["topo", "--source", &file]);
    assert_eq!(code, 2);
    assert!(
        message.contains("audit/1") && message.contains("nearfar topo --format json"),
        "{message}"
    );
}

#[test]
fn nothing_to_change_needs_no_journal() {
    let tree = Laid::out(QUEUES);
    let root = tree.path("").display().to_string();
    tree.write(
        "plan.json",
        br#"{"plan_format": 1, "host": null, "changes": [], "left_alone": [], "nearest": []}"#,
    );
    let file = tree.path("plan.json").display().to_string();
    answer(&[
        "apply",
        &file,
        "--root",
        &root,
        "--state",
        "/proc/no-journal-here",
    ]);
    assert!(!tree.path("var").exists());
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let machine = "node:64 core:64 pu:2";
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let answer = harness::nearfar([
        "spread", "--source", machine, "--count", "100000", "--format", "list",
    ])
    .configure(|command| {
        command.stdout(writer).stderr(Stdio::piped());
    })
    .spawn()
    .wait()
    .succeeded();
    assert_eq!(answer.errors(), "", "{answer}");
}

#[test]
fn colour_only_where_it_is_wanted() {
    let escapes = |arguments: &[&str], no_color: Option<&str>| {
        let command = harness::nearfar(["topo", "--source", "kunpeng"])
            .args(arguments)
            .env_remove("NO_COLOR");
        let command = match no_color {
            Some(no_color) => command.env("NO_COLOR", no_color),
            None => command,
        };
        command.run().stdout.contains(&0x1b)
    };
    assert!(!escapes(&[], None), "a pipe is no terminal");
    assert!(escapes(&["--color", "always"], None));
    assert!(
        escapes(&["--color", "always"], Some("1")),
        "what was typed wins"
    );
    assert!(!escapes(&["--color", "never"], None));
}

#[test]
fn man_pages_know_every_verb() {
    let directory = tempfile::tempdir().unwrap();
    answer(&["man", "--directory", directory.path().to_str().unwrap()]);
    for verb in [
        "checkup", "topo", "snapshot", "audit", "spread", "path", "plan", "apply", "rollback",
        "bench", "lab",
    ] {
        let page =
            std::fs::read_to_string(directory.path().join(format!("nearfar-{verb}.1"))).unwrap();
        assert!(page.contains(".SH \"SYNOPSIS\"\n"), "{verb}");
        let documented =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/{verb}.md"));
        assert!(documented.exists(), "docs/ has no page on {verb}");
    }
}

#[test]
fn the_page_of_a_checkup_stands_alone() {
    let tree = Laid::out(QUEUES);
    let page = tree.path("page.html").display().to_string();
    answer(&[
        "checkup",
        "--root",
        &tree.path("").display().to_string(),
        "--html",
        &page,
    ]);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>"));
    for outside in ["src=\"http", "href=\"http", "url(", "@import", "<script"] {
        assert!(!html.contains(outside), "the page refers to {outside}");
    }
}

/// What the page offers to paste does run, for the machine of the page, from a file whose name has to be quoted.
#[test]
fn the_commands_of_a_page_can_be_pasted() {
    let directory = tempfile::tempdir().unwrap();
    let (source, page) = (
        directory.path().join("it's a \"b\" & c.txt"),
        directory.path().join("page.html"),
    );
    std::fs::copy(KUNPENG, &source).unwrap();
    answer(&[
        "checkup",
        "--source",
        source.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ]);
    let html = std::fs::read_to_string(&page).unwrap();
    let commands: Vec<String> = html
        .split("<code class=\"command\">")
        .skip(1)
        .map(|rest| rest.split("</code>").next().unwrap())
        .map(|code| {
            code.replace("&quot;", "\"")
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&amp;", "&")
        })
        .collect();
    assert!(!commands.is_empty());
    let programs = Path::new(env!("CARGO_BIN_EXE_nearfar")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    for line in &commands {
        let output = Command::new("sh")
            .args(["-c", line])
            .env("PATH", &path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            !line.starts_with("nearfar topo") || said.contains("it's a"),
            "{line}: {said}"
        );
    }
}
