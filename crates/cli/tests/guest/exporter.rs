//! `nearfar exporter` in a guest of two nodes: a service with its memory on the other node is exported as one.
//!
//! Needs what crates/cli/tests/guest/leftovers.rs needs; without it says so and passes. The part named `inside_...` is this very
//! program once more, started in the guest.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::exporting::{Exporting, value};
use crate::guests;
use crate::tasks;

const GUEST: [&str; 2] = ["--scale", "cpus=2,memory=1G"];
const BYTES: usize = 256 << 20;
/// Of a buffer that processes share, and how many do.
const SHARED: usize = 16 << 20;
const BACKENDS: usize = 200;
const SERVICE: &str = "db.service";
/// Several times what it takes in an emulated guest.
const PATIENCE: Duration = Duration::from_secs(120);

/// Has memory on node 1 and computes until it is killed.
#[test]
#[ignore = "a child of the part that runs in the guest"]
fn hold() {
    if std::env::var_os("HOLD").is_none() {
        return println!("skipped: manual: nothing to hold");
    }
    guests::take_memory_of(Some(1));
    let mut memory = vec![0_u8; BYTES];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    println!("holds");
    loop {
        std::hint::black_box(&mut memory);
    }
}

/// As a database's backends: many processes that have the same memory of node 1 mapped, and sleep until they are killed.
#[test]
#[ignore = "a child of the part that runs in the guest"]
fn share() {
    if std::env::var_os("HOLD").is_none() {
        return println!("skipped: manual: nothing to share");
    }
    guests::take_memory_of(Some(1));
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, which nothing else has.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), SHARED, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    let touch = || {
        for at in (0..SHARED).step_by(4096) {
            // SAFETY: within the mapping.
            unsafe { memory.cast::<u8>().add(at).write_volatile(1) };
        }
    };
    touch();
    // How many have touched all of it, in its last word.
    // SAFETY: within the mapping and aligned; all processes use it as an atomic.
    let ready = unsafe {
        &*memory
            .cast::<AtomicUsize>()
            .add(SHARED / size_of::<usize>() - 1)
    };
    for _ in 1..BACKENDS {
        // SAFETY: the child takes no lock: it touches memory and waits, and what it has for itself grows no more.
        if unsafe { libc::fork() } == 0 {
            touch();
            ready.fetch_add(1, Ordering::SeqCst);
            loop {
                // SAFETY: takes no arguments.
                unsafe { libc::pause() };
            }
        }
    }
    while ready.load(Ordering::SeqCst) + 1 < BACKENDS {
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("holds");
    std::thread::park();
}

/// A process that holds memory, and its children.
struct Holder {
    child: Child,
    group: std::path::PathBuf,
}

impl Holder {
    /// On the CPUs of node 0, in the control group of the service.
    fn start(group: &std::path::Path, test: &str) -> Self {
        let mut child = Command::new("taskset")
            .args(["-c", "0-1"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env("HOLD", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line.contains("holds")));
        let group = group.to_owned();
        Self { child, group }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        fs::write(self.group.join("cgroup.kill"), "1").unwrap();
        self.child.wait().unwrap();
    }
}

/// Processes that share a buffer are a service that has it once, as the kernel counts it.
#[test]
#[ignore = "runs in the guest"]
fn inside_shared() {
    assert!(guests::is_inside(), "this part has two nodes in a guest");
    let group = tasks::control_group("backends.service").expect("the guest's root makes groups");
    fs::write(
        group.parent().unwrap().join("cgroup.subtree_control"),
        "+memory",
    )
    .unwrap();
    let holder = Holder::start(&group, "exporter::share");
    let stat = fs::read(group.join("memory.numa_stat")).unwrap();
    let counted = nearfar_proc::cgroup::mapped_by_node(&stat);
    let counted: Vec<f64> = counted.iter().map(|on| on.bytes as f64).collect();
    assert!(counted[1] >= SHARED as f64, "{counted:?}");
    let is_counted = |bytes: f64, node: usize| (bytes - counted[node]).abs() < 0.01 * SHARED as f64;
    let export = format!("{} exporter --once --min-memory 0", guests::NEARFAR);
    let exported = |script: &str| {
        let output = Command::new("sh").args(["-ec", script]).output().unwrap();
        let metrics = String::from_utf8(output.stdout).unwrap();
        for node in [0, 1] {
            let key = format!(
                "nearfar_service_memory_bytes{{service=\"backends.service\",node=\"{node}\"}}"
            );
            let bytes = value(&metrics, &key);
            assert!(
                bytes.is_some_and(|bytes| is_counted(bytes, node)),
                "{bytes:?} on node {node}, {counted:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        metrics
    };
    let metrics = exported(&export);
    // As in a container of docs/exporter/daemonset.yaml, to which other groups are above its own.
    let pod = tasks::control_group("pod.scope").unwrap();
    exported(&format!(
        "echo $$ > {}/cgroup.procs; mkdir -p /tmp/host
         exec unshare --mount --cgroup sh -ec 'mount --rbind / /tmp/host
         exec setpriv --bounding-set -all,+sys_chroot,+sys_ptrace,+dac_read_search {export} --root /tmp/host'",
        pod.display()
    ));
    let key = "nearfar_service_info{service=\"backends.service\",kind=\"unit\",namespace=\"\",pod=\"\",\
               container=\"\",job=\"\",step=\"\"}";
    assert_eq!(value(&metrics, key), Some(1.0), "{metrics}");
    let groups = Command::new(guests::NEARFAR)
        .args("tasks --groups --min-memory 0 --group backends.service --format json".split(' '))
        .output()
        .unwrap();
    let groups: serde_json::Value = serde_json::from_slice(&groups.stdout).unwrap();
    let group = &groups["groups"][0];
    assert_eq!(group["tasks"], BACKENDS);
    for (node, on) in group["memory"].as_array().unwrap().iter().enumerate() {
        assert!(
            is_counted(on["bytes"].as_f64().unwrap(), node),
            "{group}, {counted:?}"
        );
    }
    drop(holder);
}

#[test]
fn a_buffer_of_many_processes_is_exported_once() {
    if guests::skipped() {
        return;
    }
    guests::part("two-node", &GUEST, "exporter::inside_shared");
}

#[test]
#[ignore = "runs in the guest"]
fn inside_two_nodes() {
    assert!(guests::is_inside(), "this part has two nodes in a guest");
    let group = tasks::control_group(SERVICE).expect("the guest's root makes control groups");
    let holder = Holder::start(&group, "exporter::hold");
    let exporter = Exporting::start(&["--seconds", "1"]);
    let of = |metrics: &str, metric: &str, node: &str| {
        let key = format!("nearfar_service_{metric}{{service=\"{SERVICE}\"{node}}}");
        value(metrics, &key).unwrap_or(0.0)
    };
    let begun = Instant::now();
    let metrics = loop {
        let metrics = exporter.metrics();
        if of(&metrics, "cpu_seconds_total", ",node=\"0\"") > 1.0 {
            break metrics;
        }
        assert!(begun.elapsed() < PATIENCE, "{metrics}");
        std::thread::sleep(Duration::from_millis(500));
    };
    println!("{metrics}");
    assert!(of(&metrics, "remote_ratio", "") > 0.9);
    // The memory of both nodes is scaled to what the process has resident: 0.1 % less was seen.
    assert!(of(&metrics, "memory_bytes", ",node=\"1\"") > 0.99 * BYTES as f64);
    assert!(of(&metrics, "memory_bytes", ",node=\"0\"") < BYTES as f64 / 10.0);
    assert!(of(&metrics, "remote_cost_cpu_seconds_total", "") > 0.5);
    assert_eq!(of(&metrics, "cpu_seconds_total", ",node=\"1\""), 0.0);
    assert_eq!(of(&metrics, "tasks", ""), 1.0);
    assert_eq!(
        value(&metrics, "nearfar_node_distance{from=\"0\",to=\"1\"}"),
        Some(21.0)
    );
    drop(holder);
}

#[test]
fn a_service_with_remote_memory_is_exported_as_one() {
    if guests::skipped() {
        return;
    }
    guests::part("two-node", &GUEST, "exporter::inside_two_nodes");
}
