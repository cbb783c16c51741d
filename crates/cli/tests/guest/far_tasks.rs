//! `nearfar tasks` and `top` in a guest of two nodes: a task with its memory on the other node is found, with the remedy; and what a sample
//! says is as near to what numa_maps counts as its error claims.
//!
//! Needs what crates/cli/tests/guest/leftovers.rs needs; without it says so and passes. The part named `inside_...` is this very
//! program once more, started in the guest.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::guests;
use nearfar_machine::{CpuSet, NodeId, Task};
use nearfar_sources::{Request, TaskScope, Want};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use serde_json::{Value, json};

const GUEST: [&str; 2] = ["--scale", "cpus=2,memory=1G"];
/// More than is counted (crates/sources/src/sysfs/tasks/memory.rs), so that it is sampled.
const PAGES: usize = (300 << 20) / PAGE_BYTES;
const PAGE_BYTES: usize = 4096;
/// Of `make test`: each of these takes the emulated guest seconds to touch.
const FEW_LAYOUTS: [&str; 2] = ["interleaved", "clusters"];
const ALL_LAYOUTS: [&str; 4] = ["blocks", "interleaved", "clusters", "a few"];

/// The node of each page of a layout, of two.
fn node_of(layout: &str, page: usize) -> u32 {
    let is_second = match layout {
        "far" => true,
        "blocks" => page < PAGES / 3,
        "interleaved" => page % 2 == 1,
        "clusters" => (page / 64).wrapping_mul(0x9E37_79B9) >> 7 & 3 == 0,
        "a few" => page % 100 == 7,
        _ => panic!("no layout {layout}"),
    };
    u32::from(is_second)
}

/// Touches pages in a layout, and computes on them until its standard input ends.
#[test]
#[ignore = "a child of a part that runs in the guest"]
fn hold() {
    let Ok(layout) = std::env::var("HOLD") else {
        return println!("skipped: manual: nothing to hold");
    };
    let bytes = PAGES * PAGE_BYTES;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which stays until this process ends.
    let begin = unsafe {
        let begin = mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE).unwrap();
        madvise(begin, bytes, Advice::LinuxNoHugepage).unwrap();
        begin.cast::<u8>()
    };
    let mut last = None;
    for page in 0..PAGES {
        let node = node_of(&layout, page);
        if last.replace(node) != Some(node) {
            guests::take_memory_of(Some(node));
        }
        // SAFETY: inside the mapping.
        unsafe { begin.add(page * PAGE_BYTES).write_volatile(1) };
    }
    let open = |path| rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap();
    let _file = std::env::var("HOLD_FILE").ok().map(open);
    println!("holds");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

struct Holder(Child);

impl Holder {
    fn start(layout: &str, cpus: &CpuSet) -> Self {
        Self::start_with(layout, cpus, None)
    }

    /// With a file open, which need not have a driver.
    fn start_with(layout: &str, cpus: &CpuSet, file: Option<&str>) -> Self {
        let mut child = Command::new("taskset")
            .args(["-c", &cpus.to_string()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "far_tasks::hold", "--ignored", "--nocapture"])
            .env("HOLD", layout)
            .envs(file.map(|file| ("HOLD_FILE", file)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line.contains("holds")), "{layout}");
        Self(child)
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// As `nearfar tasks` reads it.
    fn sampled(&self) -> Task {
        let request = Request {
            sources: Vec::new(),
            root: None,
            fake: None,
            want: Want {
                tasks: TaskScope::Of(vec![self.pid()]),
                ..Want::placement()
            },
        };
        let machine = nearfar_sources::read(&request).unwrap();
        machine.tasks.known().unwrap().remove(0)
    }

    /// Bytes on both nodes, as numa_maps counts them.
    fn counted(&self) -> [u64; 2] {
        let text = std::fs::read(format!("/proc/{}/numa_maps", self.pid())).unwrap();
        let mut bytes = [0; 2];
        nearfar_proc::numa_maps::each(&text[..], |mapping| {
            for (node, pages) in mapping.pages {
                bytes[node.0 as usize] += pages * mapping.page_bytes.unwrap();
            }
        })
        .unwrap();
        bytes
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn cpus_of_node_0() -> CpuSet {
    assert!(guests::is_inside(), "this part has two nodes in a guest");
    let want = Want::placement();
    let request = Request {
        sources: Vec::new(),
        root: None,
        fake: None,
        want,
    };
    let machine = nearfar_sources::read(&request).unwrap();
    machine.node(NodeId(0)).unwrap().known_cpus().clone()
}

/// How many of the trials had the counted bytes of both nodes within their error, and the largest error.
fn try_layout(layout: &str, trials: usize, cpus: &CpuSet) -> (usize, u64) {
    let holder = Holder::start(layout, cpus);
    let counted = holder.counted();
    let (mut held, mut largest) = (0, 0);
    for _ in 0..trials {
        let task = holder.sampled();
        let error = task.sample.expect("it was counted").error_bytes;
        let memory = task.memory.get().unwrap();
        let sampled = |node| {
            let on = memory.iter().find(|on| on.node == NodeId(node));
            on.map_or(0, |on| on.bytes)
        };
        let is_within = |node: u32| sampled(node).abs_diff(counted[node as usize]) <= error;
        held += usize::from(is_within(0) && is_within(1));
        largest = largest.max(error);
    }
    (held, largest)
}

/// At least so many of all trials are within their error.
fn samples_are_within_their_error(layouts: &[&str], trials: usize, least: usize) {
    let cpus = cpus_of_node_0();
    let mut all = 0;
    for layout in layouts {
        let (held, error) = try_layout(layout, trials, &cpus);
        println!(
            "{layout}: {held} of {trials}, error up to {} KiB",
            error >> 10
        );
        // Interleaved memory, the worst: 2 of 100 points.
        assert!(
            error < (PAGES * PAGE_BYTES / 40) as u64,
            "{layout}: {error}"
        );
        all += held;
    }
    assert!(all >= least, "{all} of {}", layouts.len() * trials);
}

fn answer(words: &[&str]) -> Value {
    let output = Command::new(guests::NEARFAR).args(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn a_far_task_is_found_with_its_remedy(cpus: &CpuSet) {
    let holder = Holder::start("far", cpus);
    let tasks = answer(&["tasks", "--format", "json"]);
    let first = &tasks["tasks"][0];
    assert_eq!(first["pid"], json!(holder.pid()), "{tasks}");
    let share = first["remote"]["share"].as_f64().unwrap();
    assert!(share > 0.9, "{first}");
    assert!(first["remote"]["cost_s"].as_f64().unwrap() > 0.0, "{first}");
    assert_eq!(first["held_by"][0]["kind"], json!("affinity"), "{first}");
    assert_eq!(
        (&first["remedy"]["action"], &first["remedy"]["node"]),
        (&json!("move-memory"), &json!(0)),
        "{first}"
    );
    let pid = holder.pid().to_string();
    let near = answer(&[
        "tasks",
        "--pid",
        &pid,
        "--node",
        "1",
        "--seconds",
        "0.2",
        "--format",
        "json",
    ]);
    assert_eq!(near["tasks"][0]["pid"], json!(holder.pid()), "{near}");
    let top = answer(&[
        "top",
        "--batch",
        "--count",
        "1",
        "--seconds",
        "0.2",
        "--format",
        "json",
    ]);
    let tasks = top["tasks"].as_array().unwrap();
    let seen = tasks.iter().find(|it| it["pid"] == json!(holder.pid()));
    let share = seen.unwrap()["remote"]["share"].as_f64();
    assert!(share.unwrap() > 0.9, "{top}");
    let audit = answer(&["audit", "--pid", &pid, "--format", "json"]);
    let findings = audit["findings"].as_array().unwrap();
    let found = findings
        .iter()
        .find(|it| it["rule"] == json!("task-memory-far"));
    let found = found.unwrap();
    let evidence = found["evidence"].to_string();
    assert!(evidence.contains("move_pages"), "{evidence}");
    assert_eq!(found["remedy"]["action"], json!("move-memory"), "{found}");
    let command = format!("nearfar apply --memory {pid} --to-node 0");
    assert!(found["advice"].to_string().contains(&command), "{found}");
    let plan = answer(&["plan", "--rule", "task-memory-far", "--format", "json"]);
    let changes = plan["changes"].as_array().unwrap();
    let planned = changes
        .iter()
        .find(|it| it["change"]["pid"] == json!(holder.pid()));
    let estimate = &planned.unwrap()["estimate"];
    assert!(estimate["move_s"].as_f64().unwrap() > 0.05, "{plan}");
    assert!(estimate["saved_per_s"].as_f64().unwrap() > 0.0, "{plan}");
}

/// What NVIDIA's driver says of a GPU, and its device file.
fn add_nvidia_driver() {
    let script = "set -e
        for at in /sys/bus/pci/devices/*; do
            grep -q 0x0380 $at/class && gpu=${at##*/}
        done
        mount -t tmpfs none /proc/driver
        mkdir -p /proc/driver/nvidia/gpus/$gpu
        printf 'Model: \\t\\t NVIDIA\\nDevice Minor: \\t 3\\n' > /proc/driver/nvidia/gpus/$gpu/information
        mknod /tmp/nvidia3 c 195 3";
    let done = Command::new("sh").args(["-c", script]).status().unwrap();
    assert!(done.success());
}

fn a_task_far_from_its_gpu_is_found(cpus: &CpuSet) {
    add_nvidia_driver();
    let holder = Holder::start_with("far", cpus, Some("/tmp/nvidia3"));
    for name in ["gpu0", "nvidia3"] {
        let users = answer(&["tasks", "--device", name, "--format", "json"]);
        let all = users["tasks"].as_array().unwrap();
        assert_eq!(all.len(), 1, "{users}");
        assert_eq!(all[0]["pid"], json!(holder.pid()), "{users}");
        assert_eq!(all[0]["device"]["files"][0]["name"], json!("nvidia3"));
    }
    let words = [
        "audit",
        "--rule",
        "task-far-from-device",
        "--format",
        "json",
    ];
    let audit = answer(&words);
    let found = audit["findings"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{audit}");
    let subject = found[0]["subject"].as_str().unwrap();
    assert!(subject.contains(&holder.pid().to_string()), "{audit}");
    // It may run on node 0 only, and the device is on node 1.
    assert_eq!(found[0]["severity"], json!("warning"), "{audit}");
    assert!(
        found[0]["evidence"].to_string().contains("nvidia3"),
        "{audit}"
    );
}

#[test]
#[ignore = "runs in the guest"]
fn inside_two_nodes() {
    a_far_task_is_found_with_its_remedy(&cpus_of_node_0());
    a_task_far_from_its_gpu_is_found(&cpus_of_node_0());
    // An error that is one of 95 % has fewer than 14 of 20 once in ten thousand times.
    samples_are_within_their_error(&FEW_LAYOUTS, 10, 14);
}

#[test]
#[ignore = "runs in the guest"]
fn inside_many_samples() {
    // 95 % of 200, less four standard deviations.
    samples_are_within_their_error(&ALL_LAYOUTS, 50, 178);
}

#[test]
fn a_far_task_is_found_and_samples_are_within_their_error() {
    if guests::skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.toml");
    let gpu = r#"
        [[pci]]
        address = "0000:81:00.0"
        bridge = "0000:80"
        id = "10de:20b0"
        class = "0x030200"
    "#;
    let two_nodes = include_str!("../../../../machines/two-node.toml");
    std::fs::write(&machine, format!("{two_nodes}\n{gpu}")).unwrap();
    let machine = machine.to_str().unwrap();
    guests::part(machine, &GUEST, "far_tasks::inside_two_nodes");
}

#[test]
fn of_200_samples_95_percent_are_within_their_error() {
    if guests::skipped() {
        return;
    }
    guests::part("two-node", &GUEST, "far_tasks::inside_many_samples");
}

#[test]
fn costs_follow_from_the_latency_that_was_measured_last() {
    if guests::skipped() {
        return;
    }
    let options = [
        "--scale",
        "cpus=1,memory=512M",
        "--time",
        "simulated",
        "--delay",
        "near=90,far=140",
    ];
    let script = "export NEARFAR_STORE=/tmp/latency.db
        $0 bench latency --what latency --samples 5 --budget 1 --format json >/dev/null
        exec $0 tasks --min-memory 0 --format json";
    let tasks: Value = serde_json::from_str(&guests::script("two-node", &options, script)).unwrap();
    assert_eq!(
        tasks["latency_sources"],
        json!(["bench latency, run 1 of /tmp/latency.db"])
    );
}
