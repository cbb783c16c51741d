//! `nearfar tasks` on this machine, which may have one node: processes that this test made, and those that are no longer there.

use std::process::{Child, Command, Stdio};

use crate::harness::Sandbox;
use serde_json::{Value, json};

/// A process with 32 MiB that used CPU time, until it is dropped.
struct Burner(Child);

impl Burner {
    fn start() -> Self {
        const SCRIPT: &str = "a=$(head -c 33554432 /dev/zero | tr '\\0' x); i=0; \
            while [ $i -lt 100000 ]; do i=$((i+1)); done; echo ready; read line; echo ${#a}";
        let mut child = Command::new("bash")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        let stdout = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(stdout, &mut ready).unwrap();
        Self(child)
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn tasks(words: &str) -> Value {
    let words = format!("tasks --format json {words}");
    Sandbox::new().nearfar(words.split_whitespace()).json()
}

fn pids(answer: &Value) -> Vec<i64> {
    let tasks = answer["tasks"].as_array().unwrap().iter();
    tasks.map(|task| task["pid"].as_i64().unwrap()).collect()
}

#[test]
fn a_task_has_its_cpu_time_memory_and_owner() {
    let burner = Burner::start();
    let pid = burner.0.id();
    let answer = tasks(&format!("--pid {pid} --threads"));
    let task = &answer["tasks"][0];
    assert_eq!((&task["pid"], &task["name"]), (&json!(pid), &json!("bash")));
    assert_eq!(task["user"], json!(rustix::process::getuid().as_raw()));
    assert!(task["cpu_s"].as_f64().unwrap() > 0.0, "{task}");
    assert!(
        task["resident"]["anonymous"].as_u64().unwrap() > 32 << 20,
        "{task}"
    );
    assert_eq!(task["threads"][0]["tid"], json!(pid));
    if task["memory"].get("unknown_reason").is_none() {
        let nodes = task["memory"].as_array().unwrap().iter();
        let bytes: u64 = nodes.map(|on| on["bytes"].as_u64().unwrap()).sum();
        assert!(bytes > 32 << 20, "{task}");
    }
}

#[test]
fn filters_leave_out_what_they_do_not_name() {
    let burner = Burner::start();
    let pid = i64::from(burner.0.id());
    let has = |words: &str| pids(&tasks(words)).contains(&pid);
    assert!(has("") && has("--name bas") && has("--node 0"));
    assert!(!has("--name no-such-name") && !has("--min-memory 1T"));
    let own = rustix::process::getuid().as_raw();
    assert!(has(&format!("--user {own}")) && !has(&format!("--user {}", own + 1)));
}

#[test]
fn with_seconds_only_the_cpu_time_of_that_time_counts() {
    let burner = Burner::start();
    let words = format!("--pid {}", burner.0.id());
    assert!(tasks(&words)["tasks"][0]["cpu_s"].as_f64().unwrap() > 0.0);
    // It waits for its input.
    let answer = tasks(&format!("{words} --seconds 0.3"));
    assert_eq!(answer["tasks"][0]["cpu_s"], json!(0.0));
    assert!(answer["seconds"].as_f64().unwrap() >= 0.3);
}

/// Threads that end one after the other use all of the CPU time.
#[test]
fn the_time_of_threads_that_end_meanwhile_counts() {
    const SCRIPT: &str = "import threading, time\n\
        def burn():\n    end = time.thread_time() + 0.02\n    while time.thread_time() < end: pass\n\
        print('ready', flush=True)\n\
        while True:\n    t = threading.Thread(target=burn)\n    t.start()\n    t.join()\n";
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let burner = Burner(child);
    let answer = tasks(&format!("--pid {} --seconds 1", burner.0.id()));
    let cpu_s = answer["tasks"][0]["cpu_s"].as_f64().unwrap();
    assert!((0.1..2.0).contains(&cpu_s), "{answer}");
}

#[test]
fn a_process_whose_main_thread_has_ended_has_its_memory() {
    const SCRIPT: &str = "import ctypes, threading, time\n\
        data = bytearray(b'x' * (32 << 20))\n\
        def stay():\n    time.sleep(0.2)\n    print('ready', flush=True)\n    time.sleep(600)\n\
        threading.Thread(target=stay).start()\n\
        ctypes.CDLL(None).syscall(60, 0)\n";
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: tools: the number of exit(2) is that of x86-64");
    }
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let process = Burner(child);
    let answer = tasks(&format!("--pid {}", process.0.id()));
    let resident = &answer["tasks"][0]["resident"];
    assert!(
        resident["anonymous"].as_u64().unwrap() > 32 << 20,
        "{answer}"
    );
}

#[test]
fn a_group_that_no_task_is_in_is_an_error() {
    let own = Sandbox::new();
    let words = ["tasks", "--group", "no-such.service"];
    own.nearfar(words)
        .run()
        .exited(2)
        .says(&["no-such.service"]);
}

#[test]
fn the_table_has_what_the_json_has_and_says_what_it_left_out() {
    let burner = Burner::start();
    let own = Sandbox::new();
    let pid = burner.0.id().to_string();
    let table = own.nearfar(["tasks", "--pid", &pid]).prints();
    assert!(table.contains(&pid) && table.contains("bash"), "{table}");
    let table = own.nearfar(["tasks", "--limit", "1"]).prints();
    assert!(
        table.contains("tasks with less than 16 MiB are left out"),
        "{table}"
    );
}

#[test]
fn threads_of_the_kernel_and_processes_that_ended_are_no_error() {
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id();
    // It has ended, and nothing has waited for it.
    while !std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap()
        .contains(") Z ")
    {
        std::thread::yield_now();
    }
    let answer = tasks(&format!("--pid {pid} --threads"));
    assert_eq!(pids(&answer), [i64::from(pid)]);
    assert!(answer["tasks"][0]["remedy"].is_null(), "{answer}");
    ended.wait().unwrap();
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        let answer = tasks("--pid 2");
        assert_eq!(answer["tasks"][0]["memory"], json!([]));
    }
}

#[test]
fn a_snapshot_has_the_tasks_and_cannot_be_watched() {
    let own = Sandbox::new();
    let file = own.file("a.nearfar");
    let pid = std::process::id().to_string();
    let snapshot = own.nearfar(["snapshot", "-o", &file, "--pid", &pid]);
    snapshot.run().succeeded();
    let words = [
        "tasks",
        "--source",
        &file,
        "--min-memory",
        "0",
        "--format",
        "json",
    ];
    let answer = own.nearfar(words).json();
    assert_eq!(pids(&answer), [i64::from(std::process::id())]);
    assert!(answer["tasks"][0]["cpu_nodes"].is_array(), "{answer}");
    let watched = own.nearfar(["tasks", "--source", &file, "--seconds", "1"]);
    watched
        .run()
        .exited(2)
        .says(&["--seconds", "cannot be used with"]);
}

/// The disk below this test's directory, if it is one that `--device` knows.
fn disk_of(file: &std::fs::File) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let device = file.metadata().unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let machine = Sandbox::new().nearfar(["topo", "--format", "json"]).json();
    let disks = machine["disks"].as_array()?.iter();
    let mut names = disks.filter_map(|disk| disk["name"].as_str());
    let is_below = |name: &&str| link.iter().any(|part| part == *name);
    names.find(is_below).map(str::to_owned)
}

#[test]
fn a_task_with_a_file_open_uses_the_disk_below_it() {
    let own = Sandbox::new();
    let file = std::fs::File::create(own.file("open")).unwrap();
    let Some(disk) = disk_of(&file) else {
        return println!(
            "skipped: kernel: the test's directory is not on a disk of a PCI function"
        );
    };
    let pid = i64::from(std::process::id());
    let answer = tasks(&format!("--device {disk}"));
    assert!(pids(&answer).contains(&pid), "{answer}");
    let answer = tasks(&format!("--device /dev/{disk} --pid {pid}"));
    let used = &answer["tasks"][0]["device"];
    let files = used["files"].as_array().unwrap();
    assert!(
        files.iter().any(|it| it["kind"] == json!("file")),
        "{answer}"
    );
    assert_eq!(answer["device"]["device"], json!(disk));
    let table = own.nearfar(["tasks", "--device", &disk]).prints();
    assert!(table.contains(&format!("Tasks that use {disk}")), "{table}");
    let other = tasks("--pid 1");
    assert!(
        other["tasks"][0].get("device").is_none() && other.get("device").is_none(),
        "{other}"
    );
}

#[test]
fn devices_without_users_to_see_are_errors() {
    let own = Sandbox::new();
    let refused = |words: &[&str], why: &str| own.nearfar(words).run().exited(2).says(&[why]);
    refused(
        &["tasks", "--device", "nvme99"],
        "there is no device \"nvme99\"",
    );
    refused(
        &["tasks", "--device", "nvme0", "--source", "x86-case1"],
        "of the running system only",
    );
    refused(
        &["tasks", "--device", "nvme0", "--root", "/"],
        "of the running system only",
    );
    let machine = own.nearfar(["topo", "--format", "json"]).json();
    let networks = machine["networks"].as_array().into_iter().flatten();
    let mut networks = networks.filter(|network| network["device"].is_string());
    if let Some(network) = networks.next() {
        let name = network["name"].as_str().unwrap();
        refused(
            &["tasks", "--device", name],
            "the kernel does not say which process uses a network interface",
        );
    }
}
