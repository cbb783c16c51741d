//! Every machine of the gallery, booted small: what `nearfar topo` finds inside is what was promised.
//!
//! ```text
//! gallery ─► scaled ─► Design ─┬─ expected ──────────────────────────────► differences: none
//!                              └─ nearfar lab run ─► nearfar topo --format json ──┘
//! ```
//!
//! Needs QEMU, a cached kernel and a static busybox of the machine's architecture; a machine for which one of them is missing
//! is named and passed over. `cargo test -p nearfar --test guest_gallery -- --nocapture` prints how long each took.

mod guests;

use std::process::{Command, Output};
use std::time::Instant;

use guests::{NEARFAR, turn};
use nearfar_lab::cache::Cache;
use nearfar_lab::design::compare::differences;
use nearfar_lab::guest::GuestRequest;
use nearfar_lab::order::Order;
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

fn nearfar(arguments: &[&str]) -> Output {
    guests::output(Command::new(NEARFAR).args(arguments))
}

/// The guest that `nearfar lab run` makes of the same words.
fn request(name: &str, machine: &Machine, scale: &str) -> Result<GuestRequest, LabError> {
    let order = Order { scale: scale.parse().unwrap(), ..Order::new(machine.clone(), name) };
    order.prepare(&Cache::of_user()?)
}

/// What nearfar sees in the guest.
fn inside(name: &str, arch: Arch, scale: &str) -> Machine {
    let mut words = vec!["lab", "run", "--machine", name, "--scale", scale];
    words.extend(guests::IN_TIME.iter().chain(&["--"]));
    if arch != Arch::X86_64 {
        // Threads of foreign programs were seen to die as they end; on one CPU nearfar starts none.
        words.extend(["/run/nearfar-lab/bin/busybox", "taskset", "1"]);
    }
    words.extend([NEARFAR, "topo", "--format", "json"]);
    let output = nearfar(&words);
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Boots a machine and compares; what differs, or `None`, having said why, where it cannot be booted here.
fn compared(name: &str) -> Option<Vec<String>> {
    let described = nearfar_sources::read(&Request::source(name, Want::all())).unwrap();
    let arch = Arch::of(&described).unwrap_or(Arch::X86_64);
    let scale = scale(name, arch);
    let request = match request(name, &described, scale) {
        Ok(request) => request,
        Err(error) => {
            println!("skipped: {name}: {error}");
            return None;
        }
    };
    let start = Instant::now();
    let inside = inside(name, arch, scale);
    println!("{name}: {:.1} s, {scale}, Linux {}", start.elapsed().as_secs_f64(), request.kernel.release);
    request.notes.iter().for_each(|note| println!("    note: {note}"));
    let mut found = differences(&request.design.expected, &inside);
    if inside.origin.emulated.as_deref() != Some(request.label.as_str()) {
        found.push(format!("it was to say that it is {:?}, says {:?}", request.label, inside.origin.emulated));
    }
    found.iter().for_each(|difference| println!("    {difference}"));
    Some(found.into_iter().map(|difference| format!("{name}: {difference}")).collect())
}

#[test]
fn each_machine_of_the_gallery_is_inside_what_its_description_promises() {
    if Arch::host() != Some(Arch::X86_64) {
        println!("skipped: the gallery's guests are made on an x86-64 host");
        return;
    }
    let listed = nearfar(&["lab", "machines", "--format", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let names: Vec<&str> =
        listed["machines"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.len() >= 14, "the gallery lost machines: {names:?}");
    let only = std::env::var("NEARFAR_MACHINE").ok();
    let mut found = Vec::new();
    for name in names.into_iter().filter(|name| only.as_deref().is_none_or(|only| only == *name)) {
        let _turn = turn();
        found.extend(compared(name).into_iter().flatten());
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
