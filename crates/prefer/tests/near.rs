//! `--near`: from a device's name to the node whose CPUs are nearest to it, on machines of the gallery and in directories
//! laid out as sysfs.

use std::fs::create_dir_all;
use std::os::unix::fs::symlink;
use std::path::Path;

use nearfar_machine::{
    Known, Machine, NodeId, OsDevice, OsDeviceKind, PciAddress, PciDevice, RootBus,
};
use nearfar_prefer::near::{self, Home, NearError, Visibility};
use nearfar_sources::{Request, Want};

fn machine(name: &str) -> Machine {
    nearfar_sources::read(&Request::source(name, Want::all())).unwrap()
}

fn home(machine: &Machine, device: &str) -> Home {
    near::home(machine, device).unwrap_or_else(|error| panic!("{device}: {error}"))
}

fn refusal(machine: &Machine, device: &str) -> String {
    near::home(machine, device).unwrap_err().to_string()
}

#[test]
fn a_network_device_is_at_home_on_its_kernels_node() {
    let machine = machine("queues-on-node-2");
    let name = &machine.networks.get().unwrap()[0].name;
    let found = home(&machine, name);
    assert_eq!(
        (found.node, found.to_string()),
        (NodeId(2), "node 2".to_owned())
    );
}

#[test]
fn controller_disk_and_address_lead_to_one_home() {
    let machine = machine("nvme-two-controllers");
    let second = &machine.nvme.get().unwrap()[0].controllers[1];
    assert_eq!(home(&machine, "nvme1").node, NodeId(1));
    let address = second.device.unwrap();
    assert_eq!(home(&machine, &address.to_string()).node, NodeId(1));
    let short = address.to_string().trim_start_matches("0000:").to_owned();
    assert_eq!(home(&machine, &short).address, Some(address));
}

#[test]
fn a_disk_with_paths_on_two_nodes_asks_which() {
    let machine = machine("nvme-two-controllers");
    let text = refusal(&machine, "nvme0n1");
    assert!(
        text.contains("more than one home: nvme0 on node 0, nvme1 on node 1; name one"),
        "{text}"
    );
}

#[test]
fn a_device_without_a_node_is_placed_by_the_firmware_and_said_to_be_a_guess() {
    let machine = machine("x86-case1");
    let found = home(&machine, "nvme1");
    assert_eq!(found.node, NodeId(1));
    assert_eq!(
        found.to_string(),
        "node 1 (guessed: online node nearest to the firmware's node 2, 17)"
    );
}

#[test]
fn a_node_without_cpus_gives_way_to_the_nearest_that_has() {
    let machine = machine("powerpc-case1-after");
    let found = home(&machine, "nvme1");
    assert_eq!(found.located.node, Some(NodeId(2)));
    assert_eq!(found.node, NodeId(0));
    assert_eq!(
        found.to_string(),
        "node 0, the nearest with CPUs at distance 40: nvme1 is on node 2, and node 2 has none"
    );
}

#[test]
fn a_device_of_which_nothing_tells_is_refused_with_what_was_looked_at() {
    let mut machine = machine("x86-case1");
    machine.host_bridges = Known::no("not described");
    for device in machine.pci.as_ref().known().cloned().unwrap() {
        let Known::Yes(all) = &mut machine.pci else {
            unreachable!()
        };
        all.iter_mut()
            .filter(|it| it.address == device.address)
            .for_each(|it| it.node = Known::Yes(None));
    }
    let text = refusal(&machine, "nvme1");
    assert!(
        text.contains("the node of nvme1 is unknown: the kernel says none (-1)"),
        "{text}"
    );
    assert!(text.contains("--node N"), "{text}");
}

#[test]
fn numbers_and_names_of_nothing_are_answered_with_what_to_say_instead() {
    let machine = machine("nvme-two-controllers");
    assert_eq!(near::home(&machine, "1"), Err(NearError::IsNode(1)));
    let text = refusal(&machine, "eth9");
    let there = "there are: nvme-subsys0, nvme0, nvme0n1, nvme1";
    assert!(
        text.contains("no device \"eth9\" here") && text.contains(there),
        "{text}"
    );
    let text = refusal(&machine, "0000:ff:00.0");
    assert!(text.contains("no device \"0000:ff:00.0\""), "{text}");
    let without = nearfar_sources::read(&Request::source("node:2 core:2", Want::all())).unwrap();
    assert!(
        refusal(&without, "eth0").contains("what devices there are is not known"),
        "{}",
        refusal(&without, "eth0")
    );
}

#[test]
fn a_controller_over_the_network_is_not_on_any_node() {
    let mut machine = machine("nvme-two-controllers");
    let Known::Yes(subsystems) = &mut machine.nvme else {
        unreachable!()
    };
    for controller in &mut subsystems[0].controllers {
        (controller.transport, controller.device) = (Known::Yes("tcp".to_owned()), None);
    }
    let text = refusal(&machine, "nvme0");
    assert!(text.contains("reached over tcp"), "{text}");
}

#[test]
fn nodes_are_checked_with_what_there_is() {
    let machine = machine("powerpc-case1-after");
    assert_eq!(near::node(&machine, NodeId(0)), Ok(NodeId(0)));
    assert_eq!(
        near::node(&machine, NodeId(2)).unwrap_err().to_string(),
        "node 2 has no online CPUs; the nearest that has is node 0"
    );
    assert_eq!(
        near::node(&machine, NodeId(7)).unwrap_err().to_string(),
        "there is no node 7; online are 0,2"
    );
}

/// A device directory, linked to from its class.
fn class_device(sys: &Path, class: &str, name: &str, place: &str) {
    let directory = sys.join("devices").join(place).join(class).join(name);
    create_dir_all(&directory).unwrap();
    create_dir_all(sys.join("class").join(class)).unwrap();
    symlink(&directory, sys.join("class").join(class).join(name)).unwrap();
}

#[test]
fn disks_cards_and_what_is_stacked_on_them_are_found_through_their_class() {
    let machine = machine("nvme-two-controllers");
    let addresses: Vec<_> = machine.nvme.get().unwrap()[0]
        .controllers
        .iter()
        .map(|it| it.device.unwrap())
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let sys = dir.path();
    class_device(
        sys,
        "block",
        "sda",
        &format!(
            "pci0000:20/0000:20:00.0/{}/host0/target0:0:0/0:0:0:0",
            addresses[0]
        ),
    );
    class_device(sys, "drm", "card0", &format!("pci0000:40/{}", addresses[1]));
    class_device(sys, "block", "dm-0", "virtual");
    class_device(sys, "block", "loop0", "virtual");
    let slaves = sys.join("devices/virtual/block/dm-0/slaves");
    create_dir_all(&slaves).unwrap();
    symlink(sys.join("class/block/sda"), slaves.join("sda")).unwrap();
    let find = |device: &str| near::find(&machine, sys, device);
    assert_eq!(find("sda").unwrap().node, NodeId(0));
    assert_eq!(find("/dev/sda").unwrap().address, Some(addresses[0]));
    assert_eq!(find("card0").unwrap().node, NodeId(1));
    assert_eq!(
        find("dm-0").unwrap().node,
        NodeId(0),
        "a volume is where its one disk is"
    );
    symlink(sys.join("class/drm/card0"), slaves.join("sdb")).unwrap();
    assert!(
        matches!(find("dm-0"), Err(NearError::Ambiguous { .. })),
        "{:?}",
        find("dm-0")
    );
    let text = find("loop0").unwrap_err().to_string();
    assert!(
        text.contains("loop0 has no hardware of its own on the PCI bus"),
        "{text}"
    );
    assert!(matches!(find(".."), Err(NearError::NoSuchDevice { .. })));
    assert!(matches!(find("sdz"), Err(NearError::NoSuchDevice { .. })));
}

/// Five GPUs: three of NVIDIA and two of AMD, of which the first has no file that may be opened.
fn gpus() -> Machine {
    let mut machine = machine("two-node");
    let mut pci = Vec::new();
    for (address, vendor, node, file) in [
        ("0000:10:00.0", 0x10de, 0, "nvidia2"),
        ("0000:20:00.0", 0x10de, 0, "nvidia0"),
        ("0000:30:00.0", 0x10de, 1, "nvidia1"),
        ("0000:40:00.0", 0x1002, 0, "card0"),
        ("0000:50:00.0", 0x1002, 1, "renderD129"),
    ] {
        let address: PciAddress = address.parse().unwrap();
        let root = RootBus {
            domain: 0,
            bus: address.bus,
        };
        pci.push(PciDevice {
            vendor,
            device: 1,
            class: 0x0003_0200,
            node: Known::Yes(Some(NodeId(node))),
            ..PciDevice::unknown(address, root, "")
        });
        machine.os_devices.push(OsDevice {
            name: file.to_owned(),
            kind: OsDeviceKind::Gpu,
            device: address,
        });
    }
    machine.pci = Known::Yes(pci);
    machine
}

/// The buses of the GPUs that these variables leave, or why there are none.
fn visible(machine: &Machine, variables: &[(&str, &str)]) -> Result<Vec<u8>, String> {
    let visibility = Visibility {
        variable: &|name| {
            let found = variables.iter().find(|(of, _)| *of == name);
            found.map(|(_, value)| (*value).to_owned())
        },
        may_open: &|file| file != Path::new("/dev/dri/renderD128"),
        uuid: &|address| Some(format!("GPU-{:02x}00-ab", address.bus)),
    };
    let gpus = visibility.gpus(machine)?;
    Ok(gpus.iter().map(|address| address.bus).collect())
}

#[test]
fn gpus_are_visible_that_may_be_opened_and_that_the_environment_names() {
    let cuda = |value| visible(&gpus(), &[("CUDA_VISIBLE_DEVICES", value)]);
    let amd = 0x50;
    assert_eq!(visible(&gpus(), &[]), Ok(vec![0x10, 0x20, 0x30, amd]));
    assert_eq!(cuda("2,0"), Ok(vec![0x30, 0x10, amd]));
    assert_eq!(cuda(" 1 , 1"), Ok(vec![0x20, amd]));
    assert_eq!(cuda("GPU-2000-ab"), Ok(vec![0x20, amd]));
    assert_eq!(cuda("GPU-30"), Ok(vec![0x30, amd]), "the begin of one does");
    assert_eq!(
        cuda("0,7,1"),
        Ok(vec![0x10, amd]),
        "none from the first wrong number on"
    );
    for none in ["", "-1", "NoDevFiles", "GPU-99"] {
        assert_eq!(cuda(none), Ok(vec![amd]), "{none:?}");
    }
    let all = [
        ("CUDA_VISIBLE_DEVICES", ""),
        ("ROCR_VISIBLE_DEVICES", "0"),
        ("HIP_VISIBLE_DEVICES", "1"),
    ];
    assert_eq!(visible(&gpus(), &all[..2]), Ok(vec![amd]));
    let hidden = visible(&gpus(), &all).unwrap_err();
    assert_eq!(hidden, "the environment hides all GPUs");
    let mut of_amd = gpus();
    if let Known::Yes(pci) = &mut of_amd.pci {
        pci.retain(|gpu| gpu.vendor == 0x1002);
    }
    let hidden = visible(&of_amd, &all[..1]).unwrap_err();
    assert_eq!(hidden, "the environment hides all GPUs", "as HIP takes it");
    let part = cuda("MIG-1").unwrap_err();
    assert_eq!(
        part,
        "CUDA_VISIBLE_DEVICES=MIG-1: of a part of a GPU nothing says which GPU it is"
    );
}

#[test]
fn numbers_of_gpus_of_several_models_say_nothing_without_an_order() {
    let mut machine = gpus();
    let Known::Yes(pci) = &mut machine.pci else {
        unreachable!()
    };
    pci[1].device = 2;
    let [first, order] = [
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    ];
    let refused = visible(&machine, &[first]).unwrap_err();
    assert!(
        refused.contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        "{refused}"
    );
    assert_eq!(visible(&machine, &[first, order]), Ok(vec![0x10, 0x50]));
}

#[test]
fn visible_gpus_on_several_nodes_have_no_home() {
    let machine = gpus();
    let with = |value: &'static str| {
        let visibility = Visibility {
            variable: &|name| (name != "CUDA_DEVICE_ORDER").then(|| value.to_owned()),
            may_open: &|file| file.starts_with("/dev/nvidia0") || file.starts_with("/dev/nvidia1"),
            uuid: &|_| None,
        };
        near::of_visible_gpus(&machine, &visibility).map_err(|error| error.to_string())
    };
    let home = with("1").unwrap();
    assert_eq!((home.node, &*home.device), (NodeId(1), "a visible GPU"));
    let refused = with("0,1").unwrap_err();
    assert!(
        refused.starts_with("a visible GPU has more than one home: 0000:20:00.0 on node 0"),
        "{refused}"
    );
    let mut machine = machine.clone();
    machine.os_devices.clear();
    let none = near::of_visible_gpus(&machine, &Visibility::HERE).unwrap_err();
    assert_eq!(
        none.to_string(),
        "--near-visible-gpu: the files of none of 5 GPUs may be opened"
    );
}
