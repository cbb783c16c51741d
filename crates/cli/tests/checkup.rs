//! The probe of unbound tasks that `nearfar checkup` runs, with the command as its children. On a machine of one node it is made
//! to run all the same: then the ratio is about 1, and every part of it still runs.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{Answer, NEARFAR, Sandbox, nearfar};
use crate::keys;
use crate::waiting::wait_until;
use nearfar_bench::unbound::{UnboundError, UnboundOptions, UnboundTasks, homes, measure};
use nearfar_machine::{Machine, NodeId};
use nearfar_sources::{Request, Want, read};
use rustix::process::Signal;

fn options(seconds: f64, cancel: &Arc<AtomicBool>) -> UnboundOptions {
    let (program, budget) = (PathBuf::from(NEARFAR), Duration::from_secs_f64(seconds));
    UnboundOptions {
        program,
        budget,
        load_percent: 5.0,
        cancel: Arc::clone(cancel),
    }
}

fn this_machine() -> (Machine, NodeId) {
    let machine = read(&Request::live(Want::topology())).unwrap();
    let node = machine
        .online_nodes()
        .find(|node| !node.known_cpus().is_empty())
        .unwrap()
        .id;
    (machine, node)
}

/// Processes that this one started and that are still there.
fn children() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let lists =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The longest probe that these tests take, in seconds.
const MAX_SECONDS: f64 = 200.0;

fn measured(seconds: f64) -> UnboundTasks {
    let (machine, node) = this_machine();
    match measure(&machine, &[node], &options(seconds, &Arc::default())) {
        Ok(found) => found.answer,
        // A slow machine, as the error says. The time varies, so the limit is twice as much.
        Err(UnboundError::TooLittleTime {
            needed_s, left_s, ..
        }) if seconds < MAX_SECONDS => {
            measured((seconds + 2.0 * (needed_s - left_s)).min(MAX_SECONDS))
        }
        Err(error) => panic!("{error}"),
    }
}

/// One test, because another one's children would be taken for its own.
#[test]
fn a_probe_of_unbound_tasks_that_ends_early_says_why_and_leaves_nothing_behind() {
    cancelled();
    let (machine, node) = this_machine();
    let error = measure(&machine, &[node], &options(0.2, &Arc::default()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("too little time: 6 rounds of 3 runs take"),
        "{error}"
    );
    assert_eq!(children(), Vec::<String>::new());
}

/// In the slow tier: it measures for as long as a user's probe does, and judges ratios of times. What becomes of samples is in
/// the unit tests of `nearfar_bench::unbound`.
#[test]
fn a_probe_of_unbound_tasks_has_its_ratios_and_leaves_nothing_behind() {
    let found = measured(12.0);
    assert_eq!(
        children(),
        Vec::<String>::new(),
        "load and probes have ended"
    );
    let cells: Vec<String> = found
        .rows
        .iter()
        .map(|row| format!("{}/{}", row.cell.memory_node, row.cell.cpu_node))
        .collect();
    let node = found.parameters.nodes[0];
    assert_eq!(
        cells,
        [
            format!("{node}/{node}"),
            format!("{node}/F"),
            "F/F".to_owned()
        ]
    );
    assert_eq!(found.contrasts.len(), 2);
    for floated in &found.contrasts {
        let ratio = floated.ratio.get().expect("every round is whole");
        assert!(
            ratio.median > 0.1 && ratio.median < 10.0 && ratio.rounds >= 1,
            "{ratio:?}"
        );
        assert!(
            floated
                .cross_node
                .get()
                .is_none_or(|&moves| moves == 0 || homes(&this_machine().0).is_ok())
        );
        println!(
            "{:?}: {:.3} times ({:?})",
            floated.question, ratio.median, ratio.confidence
        );
    }
    keys::documented([&serde_json::to_value(&found).unwrap()]);
}

fn cancelled() {
    let cancel = Arc::new(AtomicBool::new(false));
    let (machine, node) = this_machine();
    let later = Arc::clone(&cancel);
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        later.store(true, Ordering::Relaxed);
    });
    let ended = measure(&machine, &[node], &options(600.0, &cancel));
    canceller.join().unwrap();
    assert!(matches!(ended, Err(UnboundError::Cancelled)), "{ended:?}");
    assert_eq!(
        children(),
        Vec::<String>::new(),
        "nothing goes on after it was cancelled"
    );
}

#[test]
fn help_says_what_load_it_makes_and_how_to_leave_it_out() {
    let text = nearfar(["checkup", "--help"]).prints();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for says in ["a load of 5 % runs on each CPU", "--probe 5", "--probe 0"] {
        assert!(text.contains(says), "{text}");
    }
}

fn checkup(sandbox: &Sandbox, words: &[&str]) -> Answer {
    sandbox.nearfar(["checkup"]).args(words).run()
}

/// The names in its working directory.
fn names(sandbox: &Sandbox) -> Vec<String> {
    let entries = std::fs::read_dir(sandbox.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[test]
fn a_page_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("folder")).unwrap();
    for page in ["/proc/page.html", "/nonexistent/page.html", "folder", "/"] {
        let answer = checkup(&sandbox, &["--html", page])
            .exited(3)
            .says(&[&format!("cannot write {page}: ")]);
        // A screen would show that it was measured first.
        assert!(answer.stdout.is_empty(), "{answer}");
    }
    assert_eq!(names(&sandbox), ["folder"], "nothing is left behind");
}

#[test]
fn the_screen_is_printed_also_when_the_page_is_lost_at_the_end() {
    let sandbox = Sandbox::new();
    let full = ["--source", "two-node", "--html", "/dev/full", "--format"];
    for (format, part) in [("table", "2 nodes"), ("json", "checkup/1")] {
        let answer = checkup(&sandbox, &[&full[..], &[format]].concat())
            .exited(3)
            .says(&["cannot write /dev/full: No space left on device"]);
        assert!(answer.text().contains(part), "{answer}");
    }
}

#[test]
fn the_page_is_written_also_when_the_screen_cannot_be_printed() {
    let sandbox = Sandbox::new();
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    sandbox
        .nearfar(["checkup", "--source", "two-node", "--html", "page.html"])
        .configure(|command| {
            command.stdout(full).stderr(Stdio::null());
        })
        .spawn()
        .wait()
        .exited(3);
    let page = std::fs::read_to_string(sandbox.path("page.html")).unwrap();
    assert!(page.contains("</html>"));
}

#[test]
fn a_full_disk_is_noticed_before_anything_is_measured() {
    let sandbox = Sandbox::new();
    let script =
        "mount -t tmpfs -o size=64k none full && cd full && exec \"$0\" checkup --html page.html";
    std::fs::create_dir(sandbox.path("full")).unwrap();
    let mut command = sandbox.program("unshare").args([
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        NEARFAR,
    ]);
    let output = command.output();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output {
        Ok(output) if output.status.code() == Some(3) => {
            assert_eq!(text(&output.stdout), "");
            let errors = text(&output.stderr);
            assert!(
                errors.contains("cannot write page.html: No space left on device"),
                "{errors}"
            );
        }
        Ok(output) if text(&output.stderr).contains("nearfar") => {
            panic!("{}", text(&output.stderr))
        }
        Ok(output) => println!(
            "skipped: root: no file system of its own: {}",
            text(&output.stderr).trim()
        ),
        Err(error) => println!("skipped: tools: unshare: {error}"),
    }
}

#[test]
fn no_file_is_written_that_was_not_asked_for() {
    let sandbox = Sandbox::new();
    let screen = checkup(&sandbox, &["--source", "two-node"]).succeeded();
    let end = "\n\n--html FILE writes all of it as a page.\n";
    assert!(screen.text().ends_with(end), "{screen}");
    let json = checkup(&sandbox, &["--source", "two-node", "--format", "json"]).succeeded();
    assert!(json.errors().is_empty(), "{json}");
    assert_eq!(names(&sandbox), Vec::<String>::new());
    // Where no file can be written, for root neither, that changes nothing.
    let answer = sandbox
        .nearfar(["checkup", "--source", "two-node"])
        .configure(|command| {
            command.current_dir("/proc");
        })
        .run()
        .succeeded();
    // The minute may be another one.
    let untimed = |text: String| {
        let lines = text.lines().filter(|line| !line.contains(" UTC"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(untimed(answer.text()), untimed(screen.text()));
    assert_eq!(answer.errors(), "");
}

#[test]
fn a_minus_is_standard_output_or_refused_and_never_a_file() {
    let sandbox = Sandbox::new();
    let run = |words: &[&str]| sandbox.nearfar(words).run();
    let taken = run(&["snapshot", "--source", "two-node", "-o", "-"]).succeeded();
    run(&["snapshot", "--source", "two-node", "-o", "file"]).succeeded();
    assert!(!taken.stdout.is_empty());
    assert_eq!(taken.stdout, std::fs::read(sandbox.path("file")).unwrap());
    run(&["bench", "mock", "--samples", "1"]).succeeded();
    let exported = run(&["runs", "export", "last", "-o", "-"]).succeeded();
    assert_eq!(
        exported.stdout,
        run(&["runs", "export", "last"]).succeeded().stdout
    );
    for words in [
        "checkup --source two-node --html -",
        "case 1 --html -",
        "runs show last --html -",
        "runs show last --svg -",
        "fleet show --dataset data --html -",
        "lab run --machine two-node --status - -- true",
        "lab run --machine two-node --delay auto --counts - -- true",
    ] {
        run(&words.split(' ').collect::<Vec<_>>()).refused(&["standard output", "name a file"]);
    }
    assert_eq!(names(&sandbox), ["file"]);
}

#[test]
fn what_is_known_comes_before_the_measurement_and_is_kept_by_ctrl_c() {
    let sandbox = Sandbox::new();
    let mut running = sandbox
        .nearfar([
            "checkup",
            "--no-store",
            "--probe",
            "3600",
            "--html",
            "page.html",
        ])
        .start();
    running.stdout.wait_for("Findings");
    let answer = running.end_by(rustix::process::Signal::INT).exited(3);
    let screen = answer.text();
    assert!(screen.contains("\nLatency  not measured: "), "{answer}");
    assert!(screen.contains("\nNext\n"), "{answer}");
    let page = std::fs::read_to_string(sandbox.path("page.html")).unwrap();
    assert!(page.contains("</html>"));
}

#[test]
fn sentences_are_whole_while_there_is_room() {
    for entry in nearfar_sources::gallery() {
        let answer = checkup(&Sandbox::new(), &["--source", entry.name]).succeeded();
        let screen = answer.text();
        assert!(!screen.contains("..."), "{answer}");
        assert!(screen.lines().count() <= 48, "{answer}");
        assert!(!screen.contains("not measured"), "{answer}");
    }
}

#[test]
fn hints_on_the_screen_name_the_machine_that_was_asked_for() {
    let answer = checkup(&Sandbox::new(), &["--source", "sixteen-node-ring"]).succeeded();
    let screen = answer.text();
    let topo = "nearfar topo --source sixteen-node-ring";
    assert!(
        screen.contains(&format!("the whole matrix: {topo}\n")),
        "{answer}"
    );
    assert_eq!(
        screen.matches("nearfar topo").count(),
        screen.matches(topo).count()
    );
}

#[test]
fn on_one_node_caches_are_what_can_be_far() {
    let epyc = "package:1 node:1 l3:8(size=32M) core:8 pu:2 memory:64G";
    let answer = checkup(&Sandbox::new(), &["--source", epyc]).succeeded();
    let screen = answer.text();
    assert!(screen.contains("8 L3 caches"), "{answer}");
    for words in [epyc, "powerpc-case1"] {
        let answer = checkup(&Sandbox::new(), &["--source", words]).succeeded();
        assert!(!answer.text().contains("nothing can be far"), "{answer}");
    }
}

#[test]
fn a_page_that_was_asked_for_replaces_a_file_and_never_follows_a_link() {
    let sandbox = Sandbox::new();
    let at = |name: &str| sandbox.path(name);
    sandbox.write("page.html", "old");
    sandbox.write("target", "theirs");
    std::os::unix::fs::symlink("target", at("link.html")).unwrap();
    std::os::unix::fs::symlink("made", at("dangling.html")).unwrap();
    for page in ["page.html", "link.html", "dangling.html"] {
        checkup(&sandbox, &["--source", "two-node", "--html", page]).succeeded();
        let text = std::fs::read_to_string(at(page)).unwrap();
        assert!(
            text.starts_with("<!DOCTYPE html>") && !at(page).is_symlink(),
            "{page}"
        );
    }
    assert_eq!(std::fs::read_to_string(at("target")).unwrap(), "theirs");
    assert_eq!(
        names(&sandbox),
        ["dangling.html", "link.html", "page.html", "target"]
    );
}

/// It reads another machine and measures nothing that a process of this one could disturb.
#[test]
fn a_checkup_of_another_machine_does_not_warn_of_processes_that_measure_here() {
    let sandbox = Sandbox::new();
    let mut bench = sandbox
        .nearfar("bench mock --samples 4000 --slow-ms 20 --format json".split(' '))
        .start();
    let runs = || sandbox.nearfar(["runs", "list", "--format", "json"]).run();
    wait_until("a sample is stored", || {
        let runs = runs();
        runs.code() == Some(0) && runs.json()["runs"][0]["samples"].as_u64() > Some(0)
    });
    let answer = sandbox.nearfar(["checkup", "--source", "two-node"]).run();
    assert!(!bench.has_ended(), "nothing measured meanwhile");
    bench.end_by(Signal::INT);
    let errors = answer.succeeded().errors();
    assert!(!errors.contains("measures at the same time"), "{errors}");
}
