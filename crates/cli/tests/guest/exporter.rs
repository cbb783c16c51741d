//! `nearfar exporter` in a guest of two nodes: a service with its memory on the other node is exported as one.
//!
//! Needs what crates/cli/tests/guest/leftovers.rs needs; without it says so and passes. The part named `inside_...` is this very
//! program once more, started in the guest.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::exporting::{Exporting, value};
use crate::guests;
use crate::tasks;

const GUEST: [&str; 2] = ["--scale", "cpus=2,memory=1G"];
const BYTES: usize = 256 << 20;
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

struct Holder(Child);

impl Holder {
    /// On the CPUs of node 0, in the control group of the service.
    fn start(group: &std::path::Path) -> Self {
        let mut child = Command::new("taskset")
            .args(["-c", "0-1"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "exporter::hold", "--ignored", "--nocapture"])
            .env("HOLD", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line.contains("holds")));
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "runs in the guest"]
fn inside_two_nodes() {
    assert!(guests::is_inside(), "this part has two nodes in a guest");
    let group = tasks::control_group(SERVICE).expect("the guest's root makes control groups");
    let holder = Holder::start(&group);
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
