//! Machines of the gallery, booted small: what `nearfar topo` finds inside is what was promised.
//!
//! ```text
//! gallery ─► scaled ─► Design ─┬─ expected ──────────────────────────────► differences: none
//!                              └─ nearfar lab run ─► nearfar topo --format json ──┘
//! ```
//!
//! Needs QEMU, a cached kernel and a static busybox of the machine's architecture; a machine for which one of them is missing
//! is named and passed over. `cargo test -p nearfar --test guest gallery -- --nocapture` prints how long each took.
//!
//! `make test` boots two machines. QEMU's arguments for the others are golden files, and their expected topology
//! follows from their descriptions (crates/lab/tests/design.rs); `make test-slow` boots them all.

use std::process::{Command, Output};
use std::time::Instant;

use crate::differences::differences;
use crate::guests;
use crate::guests::NEARFAR;
use nearfar_lab::cache::Cache;
use nearfar_lab::guest::PreparedGuest;
use nearfar_lab::request::GuestRequest;
use nearfar_lab::{Arch, LabError};
use nearfar_machine::Machine;
use nearfar_sources::{Request, Want};
use serde_json::Value;

/// Small enough for emulation on two cores. Kernels of other architectures need more on the node they start from.
fn scale(machine: &str, arch: Arch) -> &'static str {
    match (machine, arch) {
        ("sixteen-node-ring", _) => "cpus=1,memory=256M",
        (_, Arch::X86_64) => "cpus=2,memory=256M",
        _ => "cpus=2,memory=512M",
    }
}

/// Machines of two architectures; powerpc.rs boots one of the third. The first has devices that are plugged in after a saved guest
/// starts.
const TWO_MACHINES: [&str; 2] = ["nvme-two-controllers", "kunpeng"];

fn nearfar(arguments: &[&str]) -> Output {
    guests::output(Command::new(NEARFAR).args(arguments))
}

/// The guest that `nearfar lab run` makes of the same words.
fn request(name: &str, machine: &Machine, scale: &str) -> Result<PreparedGuest, LabError> {
    let request = GuestRequest {
        limits: scale.parse().unwrap(),
        ..GuestRequest::new(machine.clone(), name)
    };
    request.prepare(&Cache::of_user()?)
}

/// What nearfar sees in the guest; `--cold` in one that boots, nothing in one that starts from a saved guest where it can.
fn inside(name: &str, arch: Arch, scale: &str, start: &[&str]) -> Value {
    let mut words = vec!["lab", "run", "--machine", name, "--scale", scale];
    let status = guests::status_option();
    words.extend(status.iter().map(String::as_str));
    words.extend(start);
    words.extend(guests::IN_TIME.iter().chain(&["--"]));
    if arch != Arch::X86_64 {
        // Threads of foreign programs were seen to die as they end; on one CPU nearfar starts none.
        words.extend(["/run/nearfar-lab/bin/busybox", "taskset", "1"]);
    }
    words.extend([NEARFAR, "topo", "--format", "json"]);
    let output = nearfar(&words);
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What does not change while a guest runs: without the time, processes, free memory and counts. What memory a node has in all is
/// left out, too: the firmware keeps 64 KiB of it for NVMe controllers that it finds.
fn lasting(machine: &Value) -> Value {
    let mut machine = machine.clone();
    machine["origin"]["taken_at_s"] = Value::Null;
    // Each start has an identifier of its own: crates/lab/tests/guest_warm.rs.
    machine["origin"]["boot"] = Value::Null;
    machine["tasks"] = Value::Null;
    for node in machine["nodes"].as_array_mut().unwrap() {
        if let Some(memory) = node["memory"].as_object_mut() {
            memory.retain(|name, _| !name.ends_with("_bytes"));
        }
    }
    for interrupt in machine["interrupts"].as_array_mut().into_iter().flatten() {
        interrupt["count"] = Value::Null;
    }
    machine
}

/// Where two answers differ.
fn differ(place: &str, cold: &Value, warm: &Value, found: &mut Vec<String>) {
    match (cold, warm) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            a.iter()
                .for_each(|(key, value)| differ(&format!("{place}.{key}"), value, &b[key], found));
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs.for_each(|(number, (a, b))| differ(&format!("{place}[{number}]"), a, b, found));
        }
        (cold, warm) if cold != warm => found.push(format!("{place}: {cold} cold, {warm} warm")),
        _ => {}
    }
}

/// Starts a machine in these ways and compares what is inside with what was expected, and the first with the second; what differs, or
/// `None`, having said why, where it cannot be booted here.
fn compared(name: &str, starts: &[&[&str]]) -> Option<Vec<String>> {
    let described = nearfar_sources::read(&Request::source(name, Want::all())).unwrap();
    let arch = Arch::of(&described).unwrap_or(Arch::X86_64);
    let scale = scale(name, arch);
    let request = match request(name, &described, scale) {
        Ok(request) => request,
        Err(error) => {
            println!("skipped: guests: {name}: {error}");
            return None;
        }
    };
    println!("{name}: {scale}, Linux {}", request.kernel.release);
    request
        .design
        .notes
        .iter()
        .for_each(|note| println!("    note: {note}"));
    let answers: Vec<Value> = starts
        .iter()
        .map(|start| {
            let began = Instant::now();
            let answer = inside(name, arch, scale, start);
            println!("    {:.1} s {start:?}", began.elapsed().as_secs_f64());
            answer
        })
        .collect();
    let mut found = Vec::new();
    if let [cold, warm] = &answers[..] {
        differ("", &lasting(cold), &lasting(warm), &mut found);
    }
    for answer in answers {
        let inside: Machine =
            serde_json::from_value(answer).unwrap_or_else(|error| panic!("{name}: {error}"));
        found.extend(differences(&request.design.expected, &inside));
        if inside.origin.emulation != Some(request.emulation()) {
            found.push(format!(
                "it was to say that it is {:?}, says {:?}",
                request.emulation(),
                inside.origin.emulation
            ));
        }
    }
    found
        .iter()
        .for_each(|difference| println!("    {difference}"));
    Some(
        found
            .into_iter()
            .map(|difference| format!("{name}: {difference}"))
            .collect(),
    )
}

const COLD: &[&str] = &["--cold"];
const WARM: &[&str] = &[];

/// Whether the gallery's guests can be made on this host, having said so otherwise.
fn is_host() -> bool {
    let is_host = Arch::host() == Some(Arch::X86_64);
    if !is_host {
        println!("skipped: guests: the gallery's guests are made on an x86-64 host");
    }
    is_host
}

#[test]
fn two_machines_are_inside_what_their_descriptions_promise() {
    if !is_host() {
        return;
    }
    let mut found = Vec::new();
    for name in TWO_MACHINES {
        let starts: &[_] = match name == TWO_MACHINES[0] {
            true => &[COLD, WARM],
            false => &[COLD],
        };
        found.extend(compared(name, starts).into_iter().flatten());
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn each_machine_of_the_gallery_is_inside_what_its_description_promises_cold_and_warm() {
    if !is_host() {
        return;
    }
    let listed = nearfar(&["lab", "machines", "--format", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let names: Vec<&str> = listed["machines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].as_str().unwrap())
        .collect();
    assert!(names.len() >= 14, "the gallery lost machines: {names:?}");
    let mut found = Vec::new();
    for name in names {
        found.extend(compared(name, &[COLD, WARM]).into_iter().flatten());
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
