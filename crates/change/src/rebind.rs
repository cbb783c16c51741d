//! Binding a driver again, so that it sees the node its device was given: takes the device away from its users for
//! a moment, and is refused while one is seen.
//!
//! What cannot be seen: a program that has the raw block device open, and not exclusively. That is why a plan binds again
//! only where its maker asked for it.
//!
//! So also for NVMe controllers, whose driver reads the node once, when it is bound.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_machine::PciAddress;
use nearfar_proc::error_text;
use nearfar_proc::mountinfo::{self, Mount};

use crate::change;
use crate::journal::Intent;
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

/// Whether the driver can be taken from the device now.
///
/// # Errors
/// When something uses the device, or another driver has it.
pub(crate) fn may_rebind(
    system: &dyn System,
    device: PciAddress,
    driver: &str,
) -> Result<(), String> {
    match bound_driver(system, device) {
        Some(bound) if bound != driver => {
            return Err(format!(
                "{device} is bound to driver {bound}, the plan was made for {driver}"
            ));
        }
        _ if is_of_user_space(driver) => {
            return Err(format!(
                "{device} is handed to a guest or a user-space driver"
            ));
        }
        _ => {}
    }
    let class =
        first_line(system, &format!("/sys/bus/pci/devices/{device}/class")).unwrap_or_default();
    if class.starts_with("0x06") {
        return Err(format!(
            "{device} is a bridge: everything behind it would go too"
        ));
    }
    if system
        .list(&format!("/sys/bus/pci/devices/{device}/infiniband"))
        .is_ok_and(|names| !names.is_empty())
    {
        return Err(format!(
            "{device} is an RDMA device: its memory registrations would be lost"
        ));
    }
    unused_interfaces(system, device)?;
    let is_bound = bound_driver(system, device).is_some();
    if class.starts_with("0x02") && is_bound && below(system, "/sys/class/net", device).is_empty() {
        return Err(format!(
            "{device} is a network device without an interface here: a container or a program may have it"
        ));
    }
    let in_use = DisksInUse::read(system).map_err(|error| {
        format!(
            "cannot read whether a disk is in use: {}",
            error_text(&error)
        )
    })?;
    for disk in disks_of(system, device) {
        // Mounts of other namespaces, and devices of a file system that has several, are seen by the claim alone.
        let claimed = || {
            system
                .is_claimed(&disk)
                .then(|| "opened exclusively".to_owned())
        };
        if let Some(user) = in_use.user_of(system, &disk).or_else(claimed) {
            return Err(format!(
                "disk {disk} of {device} is in use ({user}): its driver cannot be bound again now"
            ));
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
fn unused_interfaces(system: &dyn System, device: PciAddress) -> Result<(), String> {
    const IFF_UP: u64 = 1;
    for name in below(system, "/sys/class/net", device) {
        let flags = first_line(system, &format!("/sys/class/net/{name}/flags")).unwrap_or_default();
        let flags = u64::from_str_radix(flags.trim_start_matches("0x"), 16);
        if flags.is_ok_and(|flags| flags & IFF_UP == 0) {
            continue;
        }
        return Err(format!(
            "network interface {name} of {device} is up: take it down first (ip link set {name} down)"
        ));
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
    for controller in below(system, "/sys/class/nvme", device) {
        for (_, name) in members_with(system, &controller) {
            let block = format!("/sys/class/block/{name}");
            if system.link(&block).is_ok() && !disks.contains(&name) {
                let parts = system.list(&block).unwrap_or_default().into_iter();
                disks.extend(parts.filter(|part| part.starts_with(&name)));
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

/// A controller needs less than a second; an emulated one on a busy host some more.
const LIVE_WITHIN: Duration = Duration::from_secs(30);
const CHECK_EVERY: Duration = Duration::from_millis(20);
const SUBSYSTEMS: &str = "/sys/class/nvme-subsystem";

/// The driver of a function that has an NVMe controller.
pub(crate) fn driver(system: &dyn System, device: PciAddress) -> Option<String> {
    controller(system, device)?;
    bound_driver(system, device).filter(|name| change::driver(name).is_ok())
}

/// Lets the NVMe driver of a PCI function follow its node, which a lease has written. `is_old`: the node is that before the lease, so
/// the order of paths is to be that, too. `was_killed`: later paths that are unbound may have been left so by a kill; otherwise
/// they are so on purpose. The function itself is bound in any case. Whether any was bound.
///
/// # Errors
/// As of [`bind_unbound`], [`controllers_follow`] and [`paths_follow`]; the function is bound whatever becomes of the others.
pub(crate) fn nvme_follows(
    system: &dyn System,
    device: PciAddress,
    intent: &Intent,
    is_old: bool,
    was_killed: bool,
) -> io::Result<bool> {
    let driver = intent.rebind.as_deref();
    let later_paths = &intent.later_paths;
    let later = bind_unbound(system, later_paths, driver.filter(|_| was_killed));
    let own = || {
        let mut is_bound = bind_unbound(system, &[device], driver)?;
        is_bound |= controllers_follow(system, device)?;
        if is_old {
            // Also where none was bound: a kill may have come between two of them.
            is_bound |= paths_follow(system, device, later_paths)?;
        }
        io::Result::Ok(is_bound)
    };
    let own = own();
    Ok(later? | own?)
}

/// Binds this driver to those of the functions that have none, which is how a kill between unbinding and binding leaves one. Whether any
/// was bound; without a driver, none.
///
/// # Errors
/// When the kernel refuses one, or its controller is not live in time; the others are bound all the same.
pub(crate) fn bind_unbound(
    system: &dyn System,
    devices: &[PciAddress],
    driver: Option<&str>,
) -> io::Result<bool> {
    let Some(driver) = driver else {
        return Ok(false);
    };
    let unbound = devices.iter().filter(|it| is_any_unbound(system, &[**it]));
    let bound = unbound.map(|device| {
        rebind(system, *device, driver)?;
        until_live(system, *device, false)
    });
    let bound: Vec<io::Result<()>> = bound.collect();
    let is_bound = !bound.is_empty();
    bound.into_iter().collect::<io::Result<()>>()?;
    Ok(is_bound)
}

/// Whether one of these functions is there and has no driver.
pub(crate) fn is_any_unbound(system: &dyn System, devices: &[PciAddress]) -> bool {
    let is_there = |device| system.list(&function(device)).is_ok();
    let mut devices = devices.iter();
    devices.any(|device| is_there(*device) && bound_driver(system, *device).is_none())
}

/// Binds the NVMe driver of a PCI function again where its controller has another node than the function, and waits
/// until the controller is live, and its paths are there if it had any. Leaves a function without an NVMe controller as it is.
/// Whether it was bound again.
///
/// # Errors
/// When a disk of the controller has no other path and is in use, or the kernel refuses.
pub(crate) fn controllers_follow(system: &dyn System, device: PciAddress) -> io::Result<bool> {
    let Some(name) = controller(system, device) else {
        return Ok(false);
    };
    let function = function(device);
    let of_driver = first_line(system, &format!("{function}/nvme/{name}/numa_node"));
    // Kernels that do not show the controller's node have no way to tell whether this is needed.
    if of_driver.is_none() || of_driver == first_line(system, &format!("{function}/numa_node")) {
        return Ok(false);
    }
    bind_again(system, device, &name)?;
    Ok(true)
}

/// The functions whose controllers belong to the same subsystem as that of this function and have higher numbers, ascending: the
/// kernel found them later, unless a driver was bound again since. None where it has no NVMe controller.
pub(crate) fn later_paths(system: &dyn System, device: PciAddress) -> Vec<PciAddress> {
    let number_of = |device| number(&controller(system, device)?);
    let Some(number) = number_of(device) else {
        return Vec::new();
    };
    let mut later: Vec<(u32, PciAddress)> = other_functions(system, device)
        .into_iter()
        .filter_map(|other| Some((number_of(other)?, other)))
        .filter(|(other, _)| *other > number)
        .collect();
    later.sort();
    later.into_iter().map(|(_, device)| device).collect()
}

/// Binds the NVMe drivers of these functions again, in this order, once the controller of the first function is live, unless their
/// order is this one. Of paths at equal distances the kernel takes the one that it found first (`__nvme_find_path` in
/// drivers/nvme/host/multipath.c), so a function that was bound again gets back its place among the paths only if those that it
/// preceded are bound after it. Functions without a controller of the same subsystem are left alone. Whether any was bound.
///
/// # Errors
/// When a disk has no other path and is in use, a controller is not live in time, or the kernel refuses.
pub(crate) fn paths_follow(
    system: &dyn System,
    device: PciAddress,
    later: &[PciAddress],
) -> io::Result<bool> {
    if later.is_empty() || controller(system, device).is_none() {
        return Ok(false);
    }
    // Just bound, it belongs to its subsystem once it is live.
    until_live(system, device, false)?;
    let there = other_functions(system, device);
    let mut later = later.to_owned();
    later.retain(|it| there.contains(it));
    let mut now = later_paths(system, device);
    now.retain(|it| later.contains(it));
    if now == later || !has_multipath(system, device, &later) {
        return Ok(false);
    }
    until_live(system, device, is_any_path(system, &later))?;
    for other in later {
        if let Some(name) = controller(system, other) {
            bind_again(system, other, &name)?;
        }
    }
    Ok(true)
}

/// Whether the kernel joins paths to one disk: otherwise (`nvme_core.multipath=N`) they have no order. A controller that was just bound has
/// none yet.
fn has_multipath(system: &dyn System, device: PciAddress, others: &[PciAddress]) -> bool {
    match first_line(system, "/sys/module/nvme_core/parameters/multipath").as_deref() {
        Some("N") => false,
        Some(_) => true,
        None => is_any_path(system, &[device]) || is_any_path(system, others),
    }
}

fn is_any_path(system: &dyn System, devices: &[PciAddress]) -> bool {
    let is_path =
        |it: &PciAddress| controller(system, *it).is_some_and(|name| has_paths(system, *it, &name));
    devices.iter().any(is_path)
}

fn bind_again(system: &dyn System, device: PciAddress, controller: &str) -> io::Result<()> {
    let had_paths = has_paths(system, device, controller);
    for disk in disks_behind(system, device, controller) {
        if system.is_claimed(&disk) {
            let why = format!("disk {disk} is in use: its driver cannot be bound again now");
            return Err(io::Error::other(why));
        }
    }
    let Some(driver) = bound_driver(system, device) else {
        return Err(io::Error::other("it has no driver any more"));
    };
    rebind(system, device, &driver)?;
    until_live(system, device, had_paths)
}

/// The other PCI functions with a controller of the same subsystem.
fn other_functions(system: &dyn System, device: PciAddress) -> Vec<PciAddress> {
    let Some(name) = controller(system, device) else {
        return Vec::new();
    };
    let mut members = members_with(system, &name);
    members.retain(|(_, member)| *member != name);
    members
        .into_iter()
        // A link to the controller's directory, which links to its function in turn. Of other transports there is no function.
        .filter_map(|(subsystem, member)| {
            let function = system.link(&format!("{SUBSYSTEMS}/{subsystem}/{member}/device"));
            let other = function.ok()?.rsplit('/').next()?.parse().ok()?;
            controller(system, other).map(|_| other)
        })
        .collect()
}

/// What the subsystems of a controller have, itself among it, each with the subsystem's name.
fn members_with(system: &dyn System, controller: &str) -> Vec<(String, String)> {
    let subsystems = system.list(SUBSYSTEMS).unwrap_or_default().into_iter();
    subsystems
        .filter_map(|subsystem| {
            let members = system.list(&format!("{SUBSYSTEMS}/{subsystem}")).ok()?;
            let has_it = members.iter().any(|member| member == controller);
            has_it.then_some((subsystem, members))
        })
        .flat_map(|(subsystem, members)| {
            let of = move |member| (subsystem.clone(), member);
            members.into_iter().map(of)
        })
        .collect()
}

/// The 3 of nvme3.
fn number(controller: &str) -> Option<u32> {
    controller.strip_prefix("nvme")?.parse().ok()
}

/// Whether a disk with several paths has one through this controller: nvme0c1n1.
fn has_paths(system: &dyn System, device: PciAddress, controller: &str) -> bool {
    let is_path = |name: &String| {
        let rest = name.strip_prefix("nvme");
        rest.is_some_and(|rest| rest.contains('c'))
    };
    of_controller(system, device, controller)
        .iter()
        .any(is_path)
}

/// The name of the function's NVMe controller.
fn controller(system: &dyn System, device: PciAddress) -> Option<String> {
    let controllers = system.list(&format!("{}/nvme", function(device))).ok()?;
    controllers.into_iter().next()
}

fn of_controller(system: &dyn System, device: PciAddress, controller: &str) -> Vec<String> {
    let directory = format!("{}/nvme/{controller}", function(device));
    system.list(&directory).unwrap_or_default()
}

/// The disks that the controller is a path to.
fn disks_behind(system: &dyn System, device: PciAddress, controller: &str) -> Vec<String> {
    let mut disks = of_controller(system, device, controller);
    let there = members_with(system, controller);
    disks.extend(there.into_iter().map(|(_, member)| member));
    disks.retain(|name| system.link(&format!("/sys/class/block/{name}")).is_ok());
    disks
}

fn until_live(system: &dyn System, device: PciAddress, had_paths: bool) -> io::Result<()> {
    let until = Instant::now() + LIVE_WITHIN;
    loop {
        let is_live = |name: &String| {
            let state = format!("{}/nvme/{name}/state", function(device));
            first_line(system, &state).as_deref() == Some("live")
        };
        let live = controller(system, device).filter(is_live);
        if live.is_some_and(|name| !had_paths || has_paths(system, device, &name)) {
            return Ok(());
        }
        if Instant::now() > until {
            let limit = LIVE_WITHIN.as_secs();
            let why = format!(
                "the NVMe controller is not as before {limit} s after its driver was bound again"
            );
            return Err(io::Error::other(why));
        }
        sleep(CHECK_EVERY);
    }
}
