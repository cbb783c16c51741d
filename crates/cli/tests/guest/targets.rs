//! An experiment whose samples are taken in guests that differ in a word of the kernel's command line: `--guest`.
//!
//! Needs what crates/cli/tests/guest/leftovers.rs needs; without it says so and passes.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Output, Stdio};

use crate::guests;
use crate::waiting::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A store of its own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn nearfar(&self, words: &str) -> Command {
        let mut command = Command::new(guests::NEARFAR);
        command
            .args(words.split_whitespace())
            .env("NEARFAR_STORE", self.0.path().join("runs.db"))
            .env("TMPDIR", self.0.path())
            .stdin(Stdio::null());
        command
    }

    /// The mock in two guests of two nodes, one of which has each node split in two.
    fn mock(&self, options: &str) -> Command {
        self.mock_at("cpus=1,memory=512M", options)
    }

    fn mock_at(&self, scale: &str, options: &str) -> Command {
        self.bench(
            "mock",
            &format!("--guest scale={scale} --guest accel=tcg {options}"),
        )
    }

    fn bench(&self, experiment: &str, options: &str) -> Command {
        let series = guests::SERIES;
        self.nearfar(&format!(
            "bench {experiment} --guest kernel={series} --guest append=none \
             --guest append=numa=fake=4 {options}"
        ))
    }

    #[track_caller]
    fn json(&self, words: &str) -> Value {
        answer(&self.nearfar(words).output().unwrap())
    }
}

#[track_caller]
fn answer(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", message(output)))
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The guests of a process: QEMU runs as a child of one of its threads.
fn guests_of(owner: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{owner}/task"))
        .into_iter()
        .flatten();
    let children =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    let children = children.iter().flat_map(|it| it.split_whitespace());
    children
        .map(|it| it.parse().unwrap())
        .filter(|&pid| is_qemu(pid))
        .collect()
}

fn is_qemu(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.contains("qemu-system"))
}

#[test]
fn guests_take_turns_and_each_is_part_of_the_run() {
    if guests::skipped() {
        return;
    }
    let place = Place::new();
    let output = place
        .mock("--samples 2 --seed 5 --format json")
        .output()
        .unwrap();
    let run = answer(&output);
    assert_eq!(run["state"], "complete", "{}", message(&output));
    assert_eq!(run["samples"], 8);

    let targets = run["targets"].as_array().unwrap();
    let of = |append: &str| {
        let levels = json!({ "append": append });
        let target = targets.iter().find(|target| target["levels"] == levels);
        target.unwrap_or_else(|| panic!("{append}: {targets:?}"))
    };
    let (plain, split) = (of("none"), of("numa=fake=4"));
    assert_ne!(plain["fingerprint"], split["fingerprint"]);
    for (target, nodes, words) in [(plain, 2, json!(null)), (split, 4, json!(["numa=fake=4"]))] {
        let machine = target["machine"]["nodes"].as_array().unwrap();
        assert_eq!(machine.len(), nodes);
        let emulation = &target["emulation"];
        assert_eq!(emulation["machine"], "two-node");
        assert_eq!(emulation["kernel_arguments"], words);
        let release = target["host"]["kernel"].as_str().unwrap();
        assert!(release.starts_with(guests::SERIES), "{release}");
        assert_eq!(emulation["kernel"], release);
    }

    // The kernel that answered is that of the cell's guest.
    let exported = place.json("runs export last");
    let taken = exported["runs"][0]["taken"].as_array().unwrap();
    for sample in taken {
        let nodes = if sample["cell"]["append"] == "none" {
            2
        } else {
            4
        };
        assert_eq!(sample["values"]["nodes"], nodes, "{sample}");
    }
    for round in taken.chunks(4) {
        let cells: BTreeSet<String> = round.iter().map(|it| it["cell"].to_string()).collect();
        assert_eq!(cells.len(), 4, "{round:?}");
        assert!(round.iter().all(|it| it["round"] == round[0]["round"]));
    }

    let shown = place.nearfar("runs show last").output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    for words in [
        "append=none: ",
        "append=numa=fake=4: ",
        "2 nodes",
        "4 nodes",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let csv = place
        .nearfar("runs export last --format csv")
        .output()
        .unwrap();
    let csv = String::from_utf8(csv.stdout).unwrap();
    let is_named =
        |line: &str| line.contains("with numa=fake=4,") == line.contains(",numa=fake=4,");
    assert!(csv.lines().skip(1).all(is_named), "{csv}");
    assert!(csv.contains("with numa=fake=4,"), "{csv}");
}

/// Of two nodes none is further away than the other; with each split in two there are such.
#[test]
fn a_guest_measures_the_cells_that_it_can() {
    if guests::skipped() {
        return;
    }
    let place = Place::new();
    let options = "--guest scale=cpus=1,memory=512M --factor policy=stock --factor distance=near,far \
                   --factor depth=512 --samples 1 --seconds 0.001 --no-store --format json";
    let output = place.bench("tags", options).output().unwrap();
    let run = answer(&output);
    assert_eq!(run["state"], "complete", "{}", message(&output));
    assert_eq!(run["samples"], 3);
    let cells = run["plan"].as_array().unwrap().iter();
    let cells = cells.map(|cell| json!([cell["append"], cell["distance"]]));
    let cells: BTreeSet<String> = cells.map(|cell| cell.to_string()).collect();
    let expected = [
        json!(["none", "near"]),
        json!(["numa=fake=4", "far"]),
        json!(["numa=fake=4", "near"]),
    ];
    assert_eq!(cells, expected.map(|cell| cell.to_string()).into());
    let left_out =
        "append=none: not measured: distance=far: all other nodes with CPUs are at distance 21";
    assert!(message(&output).contains(left_out), "{}", message(&output));
}

#[test]
fn an_interrupted_run_is_continued_in_equal_guests_only() {
    if guests::skipped() {
        return;
    }
    let place = Place::new();
    let mut child = start(place.mock("--samples 3"));
    // The store has no tables yet when the command starts.
    let samples = || {
        let list = place.nearfar("runs list --format json").output().unwrap();
        let list: Value = serde_json::from_slice(&list.stdout).ok()?;
        list["runs"][0]["samples"].as_u64()
    };
    wait_until("no sample", || samples().is_some_and(|samples| samples > 2));
    let guests = guests_of(child.id());
    assert_eq!(guests.len(), 2, "{guests:?}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    wait_until("a guest is left", || {
        !guests.iter().any(|&pid| is_qemu(pid))
    });
    let run = place.json("runs show 1 --format json");
    assert_eq!(run["state"], "interrupted");
    assert_eq!(run["failed"], 0, "the interrupt is no failure of a cell");

    let mut resume = place.mock_at("cpus=1,memory=640M", "--resume --samples 3");
    let refused = resume.output().unwrap();
    let said = message(&refused);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(
        said.contains("run 1 cannot be continued: its target of append=none is another machine"),
        "{said}"
    );

    let mut resume = place.mock("--resume --samples 3 --format json");
    let output = resume.output().unwrap();
    let run = answer(&output);
    let state = (&run["run"], &run["state"], &run["samples"]);
    assert_eq!(state, (&json!(1), &json!("complete"), &json!(12)));
}

fn start(mut command: Command) -> Child {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn no_guest_is_left_of_a_run_that_was_killed() {
    if guests::skipped() {
        return;
    }
    let place = Place::new();
    // With one guest up and the other starting, and with both at work.
    for wanted in [1, 2] {
        let mut child = start(place.mock("--samples 1000"));
        let mut guests = Vec::new();
        wait_until("no guest", || {
            guests = guests_of(child.id());
            guests.len() == wanted
        });
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("a guest is left", || {
            !guests.iter().any(|&pid| is_qemu(pid))
        });
    }
}

#[test]
fn a_guest_that_cannot_be_is_refused_before_any_is_started() {
    let place = Place::new();
    for (options, says) in [
        ("--guest kernel", "--guest kernel: KEY=VALUE is wanted"),
        ("--guest cpus=1", "--guest cpus=1: cpus: not one of machine"),
        ("--guest accel=fast", "--guest accel=fast"),
        ("--guest append=a --guest append=a", "given twice"),
        ("--guest machine=no-such-machine", "no-such-machine"),
        ("--guest append=a --one-sample", "--one-sample"),
    ] {
        let output = place
            .nearfar(&format!("bench mock {options}"))
            .output()
            .unwrap();
        let said = message(&output);
        assert_eq!(output.status.code(), Some(2), "{options}: {said}");
        assert!(
            said.contains(says) && !said.contains("starting"),
            "{options}: {said}"
        );
    }
}
