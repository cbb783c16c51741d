//! `nearfar tasks` and `audit` of unusual processes: names of any bytes, thousands of mappings, a terabyte of addresses, other
//! namespaces, processes that end or start another program meanwhile, and those of other users. The part named `hold` is this very
//! program once more.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::harness::{NEARFAR, Owned, Sandbox};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect};
use serde_json::{Value, json};

/// The variable that makes this program a process of a kind.
const HOLD: &str = "NEARFAR_TEST_HOLD";
const PAGE: usize = 4096;
const TERABYTE: usize = 1 << 40;
/// Of the sparse processes, in memory next to each other.
const DENSE: usize = 300 << 20;
/// More than are counted (crates/sources/src/sysfs/tasks/memory.rs).
const TABLES: usize = 110_000;
const TABLE_SPAN: usize = 2 << 20;

/// A new process of a kind; `None` where this system has none, having said so.
fn hold(kind: &str) -> Option<Owned> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "tasks_unusual::hold_a_kind",
            "--ignored",
            "--nocapture",
        ])
        .env(HOLD, kind)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let child = Owned(child);
    let line = lines.find(|line| line.contains("ready") || line.contains("skipped:"));
    let line = line.expect("the process ended");
    match line.find("skipped:") {
        Some(at) => {
            println!("{}", &line[at..]);
            None
        }
        None => Some(child),
    }
}

/// The process itself.
#[test]
#[ignore = "a child of the others"]
fn hold_a_kind() {
    let Ok(kind) = std::env::var(HOLD) else {
        return println!("skipped: manual: nothing to hold");
    };
    let made = match kind.split_once(' ') {
        Some(("name", bytes)) => {
            let bytes: Vec<u8> = bytes.split(' ').map(|byte| byte.parse().unwrap()).collect();
            // Of the process, whose main thread waits for this one.
            std::fs::write("/proc/self/comm", bytes).map_err(|error| error.to_string())
        }
        _ => match kind.as_str() {
            "mappings" => mappings(),
            "sparse" => sparse(),
            "tables" => tables(),
            _ => panic!("no kind {kind}"),
        },
    };
    match made {
        Ok(()) => println!("ready"),
        Err(why) => return println!("skipped: kernel: {why}"),
    }
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// New addresses, which stay until the process ends.
fn reserve(bytes: usize) -> Result<*mut u8, String> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping.
    let begin = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
    let begin = begin.map_err(|error| format!("no {bytes} bytes of addresses: {error}"))?;
    // SAFETY: the same mapping.
    unsafe { madvise(begin, bytes, Advice::LinuxNoHugepage).unwrap() };
    Ok(begin.cast())
}

fn write_each(begin: *mut u8, bytes: usize, step: usize) {
    for at in (0..bytes).step_by(step) {
        // SAFETY: inside the mapping of the caller.
        unsafe { begin.add(at).write_volatile(1) };
    }
}

/// 20,000 mappings of a page.
fn mappings() -> Result<(), String> {
    let bytes = 20_000 * PAGE;
    let begin = reserve(bytes)?;
    write_each(begin, bytes, PAGE);
    for at in (0..bytes).step_by(2 * PAGE) {
        // SAFETY: inside the mapping, to which nothing is written any more.
        let split = unsafe { mprotect(begin.add(at).cast(), PAGE, MprotectFlags::READ) };
        split.map_err(|error| format!("no more mappings: {error}"))?;
    }
    Ok(())
}

/// A terabyte, of which the begin and a page of each GiB are in memory.
fn sparse() -> Result<(), String> {
    let begin = reserve(TERABYTE)?;
    write_each(begin, DENSE, PAGE);
    write_each(begin, TERABYTE, 1 << 30);
    Ok(())
}

/// Page tables of pages that are not in memory: those that were read only are the page of zeros.
fn tables() -> Result<(), String> {
    let bytes = TABLES * TABLE_SPAN;
    let begin = reserve(bytes)?;
    for at in (0..bytes).step_by(TABLE_SPAN) {
        // SAFETY: inside the mapping.
        std::hint::black_box(unsafe { begin.add(at).read_volatile() });
    }
    Ok(())
}

fn task(process: &Owned) -> Value {
    task_of(i64::from(process.id()))
}

fn task_of(pid: i64) -> Value {
    let pid = pid.to_string();
    let words = [
        "tasks",
        "--pid",
        &pid,
        "--min-memory",
        "0",
        "--format",
        "json",
    ];
    let answer = Sandbox::new().nearfar(words).json();
    assert_eq!(answer["tasks"].as_array().unwrap().len(), 1, "{answer}");
    answer["tasks"][0].clone()
}

/// Bytes on all nodes.
fn bytes(task: &Value) -> u64 {
    let nodes = task["memory"].as_array().unwrap().iter();
    nodes.map(|on| on["bytes"].as_u64().unwrap()).sum()
}

#[test]
fn names_are_of_any_bytes_and_stay_on_their_line() {
    for (name, shown) in [
        (&b"a b) R (c"[..], "a b) R (c"),
        (b"one\ntwo", "one\u{fffd}two"),
        (b"\x1b[2J\xff\xfe", "\u{fffd}[2J\u{fffd}\u{fffd}"),
        // The kernel cuts it after 15 bytes, in the middle of a character.
        ("éééééééé".as_bytes(), "ééééééé\u{fffd}"),
        (b" ", " "),
        (b")", ")"),
    ] {
        let numbers: Vec<String> = name.iter().map(u8::to_string).collect();
        let Some(process) = hold(&format!("name {}", numbers.join(" "))) else {
            return;
        };
        assert_eq!(task(&process)["name"], json!(shown), "{name:?}");
        let pid = process.id().to_string();
        let words = ["tasks", "--pid", &pid, "--min-memory", "0"];
        let table = Sandbox::new().nearfar(words).prints();
        let row = table.lines().find(|line| line.starts_with(&pid)).unwrap();
        assert!(row.contains(shown.trim()), "{name:?}: {row:?}");
    }
}

#[test]
fn thousands_of_mappings_are_counted() {
    let Some(process) = hold("mappings") else {
        return;
    };
    let task = task(&process);
    assert!(bytes(&task) >= 20_000 * PAGE as u64, "{task}");
}

#[test]
fn a_terabyte_of_addresses_with_little_in_memory_is_counted() {
    let Some(process) = hold("sparse") else {
        return;
    };
    let task = task(&process);
    let expected = (DENSE + 1024 * PAGE) as u64;
    assert!(
        (expected..expected + (64 << 20)).contains(&bytes(&task)),
        "{task}"
    );
}

/// A count would hold the lock of the address space for as long as it reads them all.
#[test]
fn memory_is_unknown_where_a_count_takes_long_and_a_sample_finds_nothing() {
    let Some(process) = hold("tables") else {
        return;
    };
    let task = task(&process);
    let reason = task["memory"]["unknown_reason"].as_str().unwrap();
    assert!(reason.contains("for more than 50 ms"), "{task}");
    assert!(task["cpu_s"].as_f64().is_some(), "{task}");
    let pid = process.id().to_string();
    Sandbox::new()
        .nearfar(["audit", "--pid", &pid])
        .run()
        .succeeded();
}

#[test]
fn a_process_in_other_namespaces_is_one_of_this_one() {
    let unshare = [
        "--user",
        "--map-root-user",
        "--pid",
        "--mount",
        "--fork",
        "--kill-child",
    ];
    let outer = Command::new("unshare")
        .args(unshare)
        .args(["sleep", "600"])
        .spawn();
    let Ok(outer) = outer.map(Owned) else {
        return println!("skipped: tools: no unshare");
    };
    let pid = outer.id();
    let children = format!("/proc/{pid}/task/{pid}/children");
    let inner = loop {
        let Ok(inner) = std::fs::read_to_string(&children) else {
            return println!("skipped: kernel: no {children}");
        };
        if let Some(inner) = inner.split_whitespace().next() {
            break inner.parse().unwrap();
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        if stat.contains(") Z ") {
            return println!("skipped: kernel: no namespaces for this user");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    // Until it is sleep.
    while std::fs::read_to_string(format!("/proc/{inner}/comm")).unwrap() != "sleep\n" {
        std::thread::yield_now();
    }
    let task = task_of(inner);
    assert_eq!(task["name"], json!("sleep"));
    // That of this namespace, not root.
    assert_eq!(
        task["user"],
        json!(rustix::process::getuid().as_raw()),
        "{task}"
    );
    assert!(task["memory"].is_array() && bytes(&task) > 0, "{task}");
}

#[test]
fn processes_that_end_or_start_another_program_meanwhile_are_no_error() {
    let own = Sandbox::new();
    let again = own.write("again.sh", "exec sh \"$0\"\n");
    let ending = "while :; do true & sh -c true; wait; done";
    let shell = |words: &[&str]| Owned(Command::new("sh").args(words).spawn().unwrap());
    let _ending = shell(&["-c", ending]);
    let starting = shell(&[again.to_str().unwrap()]);
    let pid = starting.id();
    for _ in 0..15 {
        let words = [
            "tasks",
            "--min-memory",
            "0",
            "--threads",
            "--format",
            "json",
        ];
        let answer = own.nearfar(words).json();
        let mut tasks = answer["tasks"].as_array().unwrap().iter();
        let task = tasks.find(|task| task["pid"] == json!(pid));
        assert_eq!(task.expect("it is there all the time")["name"], json!("sh"));
    }
    own.nearfar(["tasks", "--seconds", "0.2", "--min-memory", "0"])
        .run()
        .succeeded();
    own.nearfar(["audit"]).run().succeeded();
}

/// What a user without rights sees: CPU time of all, memory of none but the own, and why, once.
#[test]
fn another_user_sees_what_it_may_and_what_is_missing_once() {
    if !rustix::process::getuid().is_root() {
        return println!("skipped: root: only root becomes another user");
    }
    let Some(process) = hold("mappings") else {
        return;
    };
    let own = Sandbox::new();
    // The directories of the command may be closed to that user, but not the open file.
    let script = "exec 9<\"$1\"; shift; exec setpriv --reuid=65534 --regid=65534 --clear-groups /proc/self/fd/9 \"$@\"";
    let as_nobody = |words: &[&str]| {
        let shell = own
            .program("bash")
            .args(["-c", script, "bash", NEARFAR, "tasks"]);
        shell.args(words).run().succeeded()
    };
    let table = as_nobody(&[]).text();
    println!("{table}");
    // Of a process whose main thread has ended, as another test has one, the reason is another.
    let is_missing = |line: &&str| {
        line.contains("memory unknown of") && line.ends_with("/PID/numa_maps: permission denied")
    };
    assert_eq!(table.lines().filter(is_missing).count(), 1, "{table}");
    let pid = process.id().to_string();
    let answer = as_nobody(&["--pid", &pid, "--format", "json"]).json();
    let task = &answer["tasks"][0];
    assert!(task["memory"]["unknown_reason"].is_string(), "{answer}");
    assert!(
        task["cpu_nodes"].is_array() && task["resident"]["anonymous"].is_u64(),
        "{answer}"
    );
    assert_eq!(answer["unknown"].as_array().unwrap().len(), 1, "{answer}");
}
