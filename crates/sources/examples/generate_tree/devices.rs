//! PCI devices, and the NVMe disks and network cards among them.
//!
//! ```text
//! sys/devices/pci0003:00/0003:00:01.0/0003:01:00.0/    node 3: root port, device
//! ```

use std::io;

use crate::cpus::sets;
use crate::output::Output;
use crate::shape::Shape;

/// A device that has interrupts.
pub struct Device {
    /// Its directory from the root.
    pub directory: String,
    /// What its interrupts call themselves, without the queue's number: `nvme3q`, `eth2-TxRx-`.
    pub interrupt: String,
    pub node: u32,
}

/// The queues of a network card.
const QUEUES: u32 = 32;

pub fn write(output: &Output, shape: &Shape) -> io::Result<Vec<Device>> {
    let mut devices = Vec::new();
    // Half of the functions are root ports.
    for number in 0..shape.pci / 2 {
        let (domain, port) = (number % shape.nodes, number / shape.nodes + 1);
        let bridge = format!("{domain:04x}:00:{port:02x}.0");
        let address = format!("{domain:04x}:{port:02x}:00.0");
        let root = format!("sys/devices/pci{domain:04x}:00");
        let is_network = port % 4 == 0;
        let above = format!("{root}/{bridge}");
        function(
            output,
            shape,
            &above,
            &bridge,
            domain,
            ["0x060400", "0x1022", "0x14ab", "pcieport"],
        )?;
        let directory = format!("{above}/{address}");
        let ids = if is_network {
            ["0x020000", "0x15b3", "0x101d", "mlx5_core"]
        } else {
            ["0x010802", "0x144d", "0xa80a", "nvme"]
        };
        function(output, shape, &directory, &address, domain, ids)?;
        let interrupt = match is_network {
            true => network(output, shape, &directory, number)?,
            false => nvme(output, &directory, &address, number, domain)?,
        };
        devices.push(Device {
            directory,
            interrupt,
            node: domain,
        });
    }
    Ok(devices)
}

fn function(
    output: &Output,
    shape: &Shape,
    directory: &str,
    address: &str,
    node: u32,
    [class, vendor, device, driver]: [&str; 4],
) -> io::Result<()> {
    for (name, content) in [
        ("class", class),
        ("vendor", vendor),
        ("device", device),
        ("subsystem_vendor", vendor),
        ("subsystem_device", device),
        ("revision", "0x01"),
        ("enable", "1"),
        ("irq", "0"),
        ("broken_parity_status", "0"),
        ("current_link_speed", "16.0 GT/s PCIe"),
        ("current_link_width", "4"),
        ("max_link_speed", "16.0 GT/s PCIe"),
        ("max_link_width", "4"),
        ("msi_bus", "1"),
        ("power_state", "D0"),
    ] {
        output.line(&format!("{directory}/{name}"), content)?;
    }
    output.line(&format!("{directory}/numa_node"), node)?;
    output.line(
        &format!("{directory}/modalias"),
        format!("pci:v0000{}d0000{}", &vendor[2..], &device[2..]),
    )?;
    let ids = format!(
        "PCI_CLASS={}\nPCI_ID={}:{}",
        &class[2..],
        &vendor[2..],
        &device[2..]
    )
    .to_uppercase();
    output.line(
        &format!("{directory}/uevent"),
        format!("DRIVER={driver}\n{ids}\nPCI_SLOT_NAME={address}"),
    )?;
    output.line(
        &format!("{directory}/resource"),
        ["0x0 0x0 0x0"; 13].join("\n"),
    )?;
    output.bytes(
        &format!("{directory}/config"),
        &config(class, vendor, device),
    )?;
    let (mask, list) = (
        format!("{directory}/local_cpus"),
        format!("{directory}/local_cpulist"),
    );
    sets(output, shape, &mask, &list, &shape.cpus_of_node(node))?;
    output.directory(&format!("sys/bus/pci/drivers/{driver}"))?;
    output.link(
        &format!("{directory}/driver"),
        &format!("sys/bus/pci/drivers/{driver}"),
    )?;
    output.link(&format!("{directory}/subsystem"), "sys/bus/pci")?;
    output.link(&format!("sys/bus/pci/devices/{address}"), directory)
}

/// The first 256 bytes of configuration space: vendor, device, class, header type.
fn config(class: &str, vendor: &str, device: &str) -> [u8; 256] {
    let number = |hex: &str| {
        u32::from_str_radix(&hex[2..], 16)
            .unwrap_or_default()
            .to_le_bytes()
    };
    let mut config = [0; 256];
    config[0..2].copy_from_slice(&number(vendor)[..2]);
    config[2..4].copy_from_slice(&number(device)[..2]);
    config[9..12].copy_from_slice(&number(class)[..3]);
    config[14] = u8::from(class == "0x060400");
    config
}

fn network(output: &Output, shape: &Shape, device: &str, number: u32) -> io::Result<String> {
    let name = format!("eth{number}");
    let directory = format!("{device}/net/{name}");
    for (file, content) in [
        ("address", "02:00:00:00:00:01"),
        ("type", "1"),
        ("speed", "100000"),
        ("operstate", "up"),
        ("mtu", "1500"),
    ] {
        output.line(&format!("{directory}/{file}"), content)?;
    }
    let none = "0".repeat(8);
    let none = vec![none.as_str(); shape.cpus.div_ceil(32) as usize].join(",");
    for queue in 0..QUEUES {
        output.line(&format!("{directory}/queues/tx-{queue}/xps_cpus"), &none)?;
        output.line(&format!("{directory}/queues/rx-{queue}/rps_cpus"), &none)?;
    }
    output.link(&format!("{directory}/device"), device)?;
    output.link(&format!("sys/class/net/{name}"), &directory)?;
    Ok(format!("{name}-TxRx-"))
}

fn nvme(
    output: &Output,
    device: &str,
    address: &str,
    number: u32,
    node: u32,
) -> io::Result<String> {
    let controller = format!("{device}/nvme/nvme{number}");
    let subsystem = format!("sys/devices/virtual/nvme-subsystem/nvme-subsys{number}");
    let nqn = format!("nqn.2014.08.org.example:generated-{number}");
    for (name, content) in [
        ("address", address),
        ("transport", "pcie"),
        ("state", "live"),
        ("cntlid", "6"),
        ("model", "generated disk"),
        ("serial", "S1"),
        ("subsysnqn", &nqn),
    ] {
        output.line(&format!("{controller}/{name}"), content)?;
    }
    output.line(&format!("{controller}/numa_node"), node)?;
    output.link(&format!("{controller}/device"), device)?;
    output.link(&format!("sys/class/nvme/nvme{number}"), &controller)?;
    for (name, content) in [
        ("iopolicy", "numa"),
        ("model", "generated disk"),
        ("serial", "S1"),
        ("subsysnqn", &nqn),
        ("subsystype", "nvm"),
    ] {
        output.line(&format!("{subsystem}/{name}"), content)?;
    }
    output.link(&format!("{subsystem}/nvme{number}"), &controller)?;
    output.link(
        &format!("sys/class/nvme-subsystem/nvme-subsys{number}"),
        &subsystem,
    )?;
    let disk = format!("{subsystem}/nvme{number}n1");
    for (name, content) in [
        ("size", "3750748848"),
        ("nsid", "1"),
        ("queue/rotational", "0"),
    ] {
        output.line(&format!("{disk}/{name}"), content)?;
    }
    output.link(&format!("sys/class/block/nvme{number}n1"), &disk)?;
    let path = format!("{controller}/nvme{number}c{number}n1");
    output.line(&format!("{path}/ana_state"), "optimized")?;
    output.line(&format!("{path}/nsid"), 1)?;
    Ok(format!("nvme{number}q"))
}
