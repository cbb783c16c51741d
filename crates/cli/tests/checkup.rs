//! The probe of unbound tasks that `nearfar checkup` runs, with the command as its children. On a machine of one node it is made
//! to run all the same: then the ratio is about 1, and every part of it still runs.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{Answer, NEARFAR, Sandbox, nearfar};
use crate::keys;
use nearfar_bench::unbound::{UnboundError, UnboundOptions, UnboundTasks, homes, measure};
use nearfar_machine::{Machine, NodeId};
use nearfar_sources::{Request, Want, read};

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
fn a_page_that_was_not_asked_for_replaces_nothing() {
    let sandbox = Sandbox::new();
    let at = |name: &str| sandbox.path(name);
    sandbox.write("nearfar-checkup.html", "mine");
    std::os::unix::fs::symlink("nowhere/page.html", at("nearfar-checkup-2.html")).unwrap();
    std::fs::create_dir(at("nearfar-checkup-3.html")).unwrap();
    let answer = checkup(&sandbox, &["--source", "two-node"]).succeeded();
    let end = "The whole of it as a page: nearfar-checkup-4.html\n";
    assert!(answer.text().ends_with(end), "{answer}");
    let kept = std::fs::read_to_string(at("nearfar-checkup.html")).unwrap();
    assert_eq!(kept, "mine");
    assert!(at("nearfar-checkup-2.html").is_symlink() && at("nearfar-checkup-3.html").is_dir());
    assert_eq!(names(&sandbox).len(), 4);
    // A directory that takes no file is no reason to fail: /proc is one for root, too.
    let answer = sandbox
        .nearfar(["checkup", "--source", "two-node"])
        .configure(|command| {
            command.current_dir("/proc");
        })
        .run()
        .succeeded()
        .says(&["no page: ", "--html FILE"]);
    let screen = answer.text();
    assert!(
        screen.contains("2 nodes") && !screen.contains("as a page"),
        "{answer}"
    );
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
