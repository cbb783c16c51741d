//! Names people use: packages of nodes, caches that several nodes share, disks and interfaces by their Linux names.

use crate::harness;
use crate::machines;
use nearfar_machine::Machine;
use nearfar_report::Style;
use nearfar_sources::{Request, Want, gallery, read, snapshot};

fn nearfar(arguments: &[&str]) -> (String, Option<i32>) {
    let answer = harness::nearfar(arguments).run();
    (answer.text() + &answer.errors(), answer.status.code())
}

fn table(machine: &Machine) -> String {
    nearfar_report::topo::document(machine).to_text(&Style {
        colour: false,
        width: 200,
    })
}

#[test]
fn a_cache_that_nodes_share_is_counted_once_and_drawn_as_shared() {
    let machine = read(&Request::source("sub-numa-clusters", Want::all())).unwrap();
    let text = table(&machine);
    assert!(
        text.contains("105 MiB x 2, one for 8 CPUs on 4 nodes"),
        "{text}"
    );
    let picture = nearfar_report::topo::svg(&machine);
    for (nodes, package) in [("0-3", "0"), ("4-7", "1")] {
        assert_eq!(
            picture.matches(&format!("one for nodes {nodes}")).count(),
            4,
            "{picture}"
        );
        assert_eq!(
            picture.matches(&format!(", package {package}<")).count(),
            4,
            "{picture}"
        );
    }
    // Elsewhere each cache is of one node and nothing says "shared".
    let machine = read(&Request::source("two-node", Want::all())).unwrap();
    assert!(!nearfar_report::topo::svg(&machine).contains("group shared"));
    assert!(!table(&machine).contains(" on 2 nodes"));
}

#[test]
fn every_gallery_machine_shows_the_packages_that_it_has() {
    for entry in gallery() {
        let machine = read(&Request::source(entry.name, Want::all())).unwrap();
        let text = table(&machine);
        let nodes = text
            .split("\nNodes")
            .nth(1)
            .unwrap()
            .split("\n\n")
            .next()
            .unwrap();
        let known = machine
            .cpus
            .iter()
            .any(|cpu| cpu.package.is_some_and(|package| package >= 0));
        assert_eq!(nodes.contains("package"), known, "{}: {nodes}", entry.name);
    }
}

/// A recorded machine with a virtio disk and its partition, a SATA disk, a loop device.
fn with_disks() -> machines::Laid {
    let laid = machines::Laid::out("x86-queues-on-node-2");
    let machine = laid.read(&Want::all());
    let functions: Vec<String> = machine
        .pci
        .get()
        .unwrap()
        .iter()
        .map(|device| device.address.to_string())
        .collect();
    let below = |at: usize| format!("../../devices/pci0000:00/{}", functions[at]);
    let (first, last) = (below(0), below(functions.len() - 1));
    for (name, target) in [
        ("vda", format!("{first}/virtio2/block/vda")),
        ("vda1", format!("{first}/virtio2/block/vda/vda1")),
        (
            "sdb",
            format!("{last}/ata1/host0/target0:0:0/0:0:0:0/block/sdb"),
        ),
        ("loop0", "../../devices/virtual/block/loop0".to_owned()),
    ] {
        laid.link(&format!("sys/class/block/{name}"), &target);
    }
    laid
}

#[test]
fn disks_have_their_linux_names_in_tables_pictures_and_snapshots() {
    let laid = with_disks();
    let machine = laid.read(&Want::all());
    let names: Vec<&str> = machine
        .disks
        .iter()
        .map(|disk| disk.name.as_str())
        .collect();
    assert_eq!(names, ["sdb", "vda"]);
    let functions = machine.pci.get().unwrap();
    assert_eq!(machine.functions_named("/dev/vda"), [functions[0].address]);
    assert_eq!(machine.functions_named("vda1"), []);
    assert_eq!(
        machine
            .names_on(functions[functions.len() - 1].address)
            .last(),
        Some(&"sdb")
    );
    let mut taken = Vec::new();
    snapshot::write(&machine, &mut taken).unwrap();
    let again = nearfar_sources::read_bytes(&taken, "taken").unwrap();
    assert_eq!(again.disks, machine.disks);
}

#[test]
fn devices_are_found_by_name() {
    let laid = with_disks();
    let tree = laid.path("").display().to_string();
    for name in ["vda", "/dev/sdb"] {
        let (text, code) = nearfar(&["plan", "--source", &tree, "--device", name]);
        assert_eq!(code, Some(0), "{name}: {text}");
    }
    let (text, code) = nearfar(&["plan", "--source", &tree, "--device", "vdz"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("there is no device \"vdz\""), "{text}");
    // eth0 of the gallery machine and its address choose the same changes.
    let queues = read(&Request::source("queues-on-node-2", Want::all())).unwrap();
    let network = &queues.networks.get().unwrap()[0];
    let by_name = nearfar(&[
        "plan",
        "--source",
        "queues-on-node-2",
        "--device",
        &network.name,
    ]);
    let by_address = nearfar(&[
        "plan",
        "--source",
        "queues-on-node-2",
        "--device",
        &network.device.unwrap().to_string(),
    ]);
    assert_eq!(by_name, by_address);
}
