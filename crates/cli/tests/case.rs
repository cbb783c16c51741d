//! Published investigations: the list, what is refused, and a mock case on this machine. tests/guest/cases.rs has those in guests.

use crate::harness::Sandbox;
use serde_json::json;

/// With this in the environment there is a case 0.
const MOCK_CASE: &str = "NEARFAR_MOCK_CASE";

#[test]
fn the_list_has_the_published_cases() {
    let own = Sandbox::new();
    let listed = own.nearfar(["case", "--format", "json"]).json();
    assert_eq!(listed["schema"], "cases/1");
    let cases = listed["cases"].as_array().unwrap();
    let numbers: Vec<u64> = cases
        .iter()
        .map(|it| it["number"].as_u64().unwrap())
        .collect();
    assert!(numbers.contains(&2) && numbers.contains(&3) && !numbers.contains(&0));
    let text = own.nearfar(["case"]).prints();
    for case in cases {
        assert!(text.contains(case["title"].as_str().unwrap()), "{text}");
    }
}

#[test]
fn a_case_on_this_machine_is_stored_compared_and_shown_with_the_published_figures() {
    let own = Sandbox::new();
    let store = own.file("runs.db");
    let case = |more: &[&str]| {
        let words = ["case", "0", "--here", "--samples", "8", "--store", &store];
        own.nearfar([&words[..], more].concat()).env(MOCK_CASE, "1")
    };
    let page = own.file("case.html");
    let answer = case(&["--format", "json", "--html", &page]).json();
    assert_eq!(
        (&answer["schema"], &answer["run"], &answer["case"]["number"]),
        (&json!("case/1"), &json!(1), &json!(0))
    );
    let rows = answer["comparison"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "only the published metric: {rows:?}");
    assert_eq!(
        (&rows[0]["metric"], &rows[0]["verdict"]),
        (&json!("latency_us"), &json!("worse"))
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Is slow slower than fast?") && page.contains("What this cannot show"));

    let mail = case(&["--format", "mail"]).prints();
    for part in [
        "question",
        "To repeat it\n    nearfar case 0 --here --samples=8\n",
        "speed: slow (B) against fast (A)",
        "published, us",
        "Not claimed",
    ] {
        assert!(mail.contains(part), "{part}: {mail}");
    }
    assert!(
        !mail.contains("bench mock"),
        "another way to repeat it: {mail}"
    );
    assert!(
        mail.lines().all(|line| line.chars().count() <= 72),
        "{mail}"
    );
    // The run is an ordinary one.
    let runs = own
        .nearfar(["runs", "list", "--store", &store, "--format", "json"])
        .json();
    let labels = runs["runs"].as_array().unwrap().iter();
    assert!(labels.clone().count() == 2 && labels.clone().all(|it| it["label"] == "case-0"));
}

#[test]
fn levels_that_are_left_out_are_not_compared_and_failures_keep_their_exit_code() {
    let own = Sandbox::new();
    let store = own.file("runs.db");
    let case = |options: &[&str]| {
        let words = [
            "case",
            "0",
            "--here",
            "--samples",
            "2",
            "--store",
            &store,
            "--",
        ];
        own.nearfar([&words[..], options].concat())
            .env(MOCK_CASE, "1")
            .run()
    };
    let one = case(&["--factor", "speed=fast"]).succeeded();
    assert!(one.errors().contains("nothing is compared"));
    case(&["--factor", "speed=failing"]).exited(3);
    case(&["--factor", "speed=quick"])
        .exited(2)
        .says(&["quick"]);
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_starts() {
    let own = Sandbox::new();
    own.nearfar(["case", "9"]).run().refused(&["no case 9"]);
    own.nearfar(["case", "0"]).run().refused(&["no case 0"]);
    for (option, instead) in [
        ("--store=x.db", "give it before --"),
        ("--no-store", "is stored"),
        ("--format=json", "give it before --"),
        ("--label", "the label of a case is its own"),
    ] {
        let words = ["case", "0", "--here", "--", option];
        let refused = own.nearfar(words).env(MOCK_CASE, "1").run();
        refused.refused(&[option.split('=').next().unwrap(), instead]);
    }
    let words = ["case", "4", "--here", "--", "--device", "eth0"];
    own.nearfar(words).run().refused(&[
        "case 4 --here takes --device and --client-device",
        "nearfar case 4 --here -- --device eth0 --client-device NAME",
    ]);
    own.nearfar(["case", "0", "--here", "--html", "-"])
        .env(MOCK_CASE, "1")
        .run()
        .refused(&["--html", "standard output has the answer already"]);
    let without = own
        .nearfar(["case", "0", "--here"])
        .env(MOCK_CASE, "1")
        .env("PATH", "/nonexistent");
    without
        .run()
        .exited(3)
        .says(&["case 0: cannot run sh: there is no such program"]);
}

#[test]
fn the_command_of_a_case_is_printed_as_a_shell_takes_it() {
    let own = Sandbox::new();
    for number in ["1", "2", "3", "4", "5"] {
        let odd = "--odd=a 'b' $HOME";
        let show = ["case", number, "--show-command", "--", odd];
        let shown = own.nearfar(show).prints();
        let script = own.write("command.sh", &shown);
        own.program("sh").arg("-n").arg(script).run().succeeded();
        assert!(shown.contains(" \\\n  --"), "{shown}");
        // The words that a shell reads, with a function in place of nearfar.
        let function = "nearfar() { printf '%s\\0' \"$@\"; }";
        let read = format!("{function}\n{shown}");
        let words = own.program("sh").args(["-c", &read]).prints();
        let words: Vec<&str> = words.trim_end_matches('\0').split('\0').collect();
        assert!(["lab", "bench"].contains(&words[0]), "{words:?}");
        assert_eq!(words.last(), Some(&odd));
        if let Some(at) = words.iter().position(|word| *word == "-c") {
            let around = (words[at - 1], words[at + 2], words[at + 3]);
            assert_eq!(around, ("sh", "prepare", "nearfar"));
            assert!(words[at + 1].contains("\"$@\""), "{}", words[at + 1]);
        }
    }
    // Two kernels are compared in turns, by one metric, in one guest; what the case changes is left to the kernel.
    let kernels = ["--kernel-a=6.1", "--kernel-b=git:v6.12", "--show-command"];
    for (number, parts) in [
        ("1", ["--runs=16", "[iops]", "--factor=plan=before"]),
        (
            "4",
            ["--runs=8", "[requests_per_s]", "--factor=interrupts=keep"],
        ),
        (
            "5",
            ["--append=numa=fake=1 ", "[operations_per_s]", "bench scale"],
        ),
    ] {
        let shown = own.nearfar(["case", number]).args(kernels).prints();
        let shown = shown.replace(" \\\n ", "");
        let of_all = [
            "nearfar ab --a=kernel=6.1 --b=kernel=git:v6.12 ",
            "--samples=1 --no-store",
        ];
        for part in parts.iter().chain(&of_all) {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        for part in [
            "plan=before,after",
            "nearest_first",
            "--kernel=",
            "numa=fake=2",
        ] {
            assert!(!shown.contains(part), "{part}: {shown}");
        }
    }
    let shown = own
        .nearfar(["case", "3", "--samples", "4", "--show-command"])
        .prints();
    for part in [
        "nearfar lab run \\\n  --machine=",
        "nearfar bench tags",
        "--samples=4",
        "--label=case-3",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // A quick case replaces options of the whole one, and those after -- replace both.
    let quick = ["case", "3", "--quick", "--show-command", "--"];
    let shown = own.nearfar(quick).arg("--factor=distance=near").prints();
    for part in [
        "--factor=depth=512",
        "--samples=8",
        "--factor=distance=near",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("distance=far"), "{shown}");
}
