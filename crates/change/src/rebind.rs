//! Binding a driver again, so that it sees the node its device was given: takes the device away from its users for
//! a moment, and is refused while one is seen.
//!
//! What cannot be seen: a program that has the raw block device open, and not exclusively. That is why a plan binds again
//! only where its maker asked for it.

pub(crate) mod nvme;

use std::io;
use std::path::Path;

use nearfar_machine::PciAddress;
use nearfar_proc::mountinfo::{self, Mount};

use crate::system::{System, first_line, text};

/// Where the kernel shows a PCI function.
fn function(device: PciAddress) -> String {
    format!("/sys/bus/pci/devices/{device}")
}

/// The driver a device is bound to.
pub(crate) fn bound_driver(system: &dyn System, device: PciAddress) -> Option<String> {
    let link = system.link(&format!("{}/driver", function(device))).ok()?;
    link.rsplit('/')
        .next()
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}

/// Why a driver is not bound again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RebindError {
    #[error("{device} is bound to driver {bound}, the plan was made for {driver}")]
    OtherDriver {
        device: PciAddress,
        bound: String,
        driver: String,
    },
    #[error("{0} is handed to a guest or a user-space driver")]
    UserSpace(PciAddress),
    #[error("{0} is a bridge: everything behind it would go too")]
    Bridge(PciAddress),
    #[error(
        "{0} is a network device without an interface here: a container or a program may have it"
    )]
    HiddenInterface(PciAddress),
    #[error("{0} is an RDMA device: its memory registrations would be lost")]
    Rdma(PciAddress),
    #[error(
        "network interface {name} of {device} is up: take it down first (ip link set {name} down)"
    )]
    InterfaceUp { name: String, device: PciAddress },
    #[error("disk {disk} of {device} is in use ({user}): its driver cannot be bound again now")]
    DiskInUse {
        disk: String,
        device: PciAddress,
        user: String,
    },
    #[error("cannot read whether a disk is in use: {}", nearfar_proc::error_text(.0))]
    Disks(#[from] io::Error),
}

/// Whether the driver can be taken from the device now.
///
/// # Errors
/// When something uses the device, or another driver has it.
pub(crate) fn may_rebind(
    system: &dyn System,
    device: PciAddress,
    driver: &str,
) -> Result<(), RebindError> {
    match bound_driver(system, device) {
        Some(bound) if bound != driver => {
            let driver = driver.to_owned();
            return Err(RebindError::OtherDriver {
                device,
                bound,
                driver,
            });
        }
        _ if is_of_user_space(driver) => {
            return Err(RebindError::UserSpace(device));
        }
        _ => {}
    }
    let class =
        first_line(system, &format!("/sys/bus/pci/devices/{device}/class")).unwrap_or_default();
    if class.starts_with("0x06") {
        return Err(RebindError::Bridge(device));
    }
    if system
        .list(&format!("/sys/bus/pci/devices/{device}/infiniband"))
        .is_ok_and(|names| !names.is_empty())
    {
        return Err(RebindError::Rdma(device));
    }
    unused_interfaces(system, device)?;
    let is_bound = bound_driver(system, device).is_some();
    if class.starts_with("0x02") && is_bound && below(system, "/sys/class/net", device).is_empty() {
        return Err(RebindError::HiddenInterface(device));
    }
    let in_use = DisksInUse::read(system)?;
    for disk in disks_of(system, device) {
        if let Some(user) = in_use.user_of(system, &disk) {
            let user = user.to_string();
            return Err(RebindError::DiskInUse { disk, device, user });
        }
        // Mounts of other namespaces, and devices of a file system that has several, are seen by this alone.
        if system.is_claimed(&disk) {
            let user = "opened exclusively".to_owned();
            return Err(RebindError::DiskInUse { disk, device, user });
        }
    }
    Ok(())
}

/// Takes the driver away where it is bound, and binds it.
pub(crate) fn rebind(system: &dyn System, device: PciAddress, driver: &str) -> io::Result<()> {
    let address = device.to_string();
    if bound_driver(system, device).is_some() {
        system.write(
            &format!("/sys/bus/pci/drivers/{driver}/unbind"),
            address.as_bytes(),
        )?;
    }
    system.write(
        &format!("/sys/bus/pci/drivers/{driver}/bind"),
        address.as_bytes(),
    )
}

/// Whether a driver hands its devices to programs or guests: vfio-pci, mlx5_vfio_pci, uio_pci_generic, pci-stub, xen-pciback.
fn is_of_user_space(driver: &str) -> bool {
    ["vfio", "uio", "stub", "pciback"]
        .iter()
        .any(|part| driver.contains(part))
}

/// Any interface that is up may carry the very connection the operator came over.
fn unused_interfaces(system: &dyn System, device: PciAddress) -> Result<(), RebindError> {
    const IFF_UP: u64 = 1;
    for name in below(system, "/sys/class/net", device) {
        let flags = first_line(system, &format!("/sys/class/net/{name}/flags")).unwrap_or_default();
        let flags = u64::from_str_radix(flags.trim_start_matches("0x"), 16);
        if flags.is_ok_and(|flags| flags & IFF_UP == 0) {
            continue;
        }
        return Err(RebindError::InterfaceUp { name, device });
    }
    Ok(())
}

/// Members of a class directory that are, or hang below, the device. Their links lead through its address.
fn below(system: &dyn System, class: &str, device: PciAddress) -> Vec<String> {
    let part = format!("/{device}/");
    let mut names = system.list(class).unwrap_or_default();
    names.retain(|name| match system.link(&format!("{class}/{name}")) {
        Ok(link) => link.contains(&part),
        // A file among the links (/sys/class/net/bonding_masters), or gone meanwhile. What is unknown counts as
        // the device's.
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
        ),
    });
    names
}

/// The device's disks; those of its NVMe subsystems too, which hang below no device when there are several paths.
fn disks_of(system: &dyn System, device: PciAddress) -> Vec<String> {
    let mut disks = below(system, "/sys/class/block", device);
    let controllers = below(system, "/sys/class/nvme", device);
    for subsystem in system.list("/sys/class/nvme-subsystem").unwrap_or_default() {
        let members = system
            .list(&format!("/sys/class/nvme-subsystem/{subsystem}"))
            .unwrap_or_default();
        if !controllers
            .iter()
            .any(|controller| members.contains(controller))
        {
            continue;
        }
        for name in members {
            let block = format!("/sys/class/block/{name}");
            if system.link(&block).is_ok() && !disks.contains(&name) {
                disks.extend(
                    system
                        .list(&block)
                        .unwrap_or_default()
                        .into_iter()
                        .filter(|part| part.starts_with(&name)),
                );
                disks.push(name);
            }
        }
    }
    disks
}

/// What says that a disk is in use.
struct DisksInUse {
    mounts: Vec<Mount>,
    swaps: String,
}

impl DisksInUse {
    fn read(system: &dyn System) -> io::Result<Self> {
        // No /proc/swaps: a kernel without swap. No mountinfo: nothing can be told.
        let swaps = text(system, "/proc/swaps").unwrap_or_default();
        Ok(Self {
            mounts: mountinfo::mounts(&system.read("/proc/self/mountinfo")?),
            swaps,
        })
    }

    fn user_of(&self, system: &dyn System, disk: &str) -> Option<String> {
        let directory = format!("/sys/class/block/{disk}");
        let holders = system
            .list(&format!("{directory}/holders"))
            .unwrap_or_default();
        if let Some(holder) = holders.first() {
            return Some(format!("held by {holder}"));
        }
        let number = first_line(system, &format!("{directory}/dev")).unwrap_or_default();
        let path = format!("/dev/{disk}");
        let swap = |line: &&str| line.split_whitespace().next() == Some(path.as_str());
        if self.swaps.lines().any(|line| swap(&line)) {
            return Some("swap space".to_owned());
        }
        // Btrfs gives a number of its own, so the source counts too.
        let mounted = self
            .mounts
            .iter()
            .find(|mount| mount.device == number || mount.source == Path::new(&path))?;
        Some(format!("mounted on {}", mounted.place.display()))
    }
}
