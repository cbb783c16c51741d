//! `--device`: the tasks that use a device of the running system.

use anyhow::anyhow;
use nearfar_machine::{Known, Machine, alternatives};
use nearfar_placement::tasks::DeviceUsers;
use nearfar_sources::device_numbers;

use crate::failure::Failure;

/// Another machine's processes have no open files here.
pub(super) fn not_here(device: &str) -> Failure {
    Failure::input(anyhow!(
        "cannot find the tasks that use {device}: open files are unknown: they are read of the running system only, without \
         --source and --root"
    ))
}

/// The tasks of the machine that have something of the device open.
///
/// # Errors
/// When there is no such device, or none that a task opens.
pub(super) fn find(machine: &Machine, device: &str) -> Result<DeviceUsers, Failure> {
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    if machine.functions_named(name).is_empty() {
        return Err(Failure::input(anyhow!(
            "there is no device {device:?}; {}; any other has a PCI address (lspci)",
            alternatives(name, &machine.device_names())
        )));
    }
    let networks = machine.networks.get().into_iter().flatten();
    if networks.into_iter().any(|network| network.name == name) {
        return Err(Failure::input(anyhow!(
            "cannot find the tasks that use {device}: the kernel does not say which process uses a network interface; with its PCI \
             address, the tasks that have its device files open (RDMA, VFIO, PTP) are shown"
        )));
    }
    let numbers = device_numbers(machine, name).map_err(Failure::input)?;
    if numbers.is_empty() {
        return Err(Failure::input(anyhow!(
            "cannot find the tasks that use {device}: it has no block or character device that a task could open"
        )));
    }
    let Known::Yes(tasks) = &machine.tasks else {
        return Ok(DeviceUsers::new(machine, name, Vec::new()));
    };
    let pids: Vec<i32> = tasks.iter().map(|task| task.pid).collect();
    Ok(DeviceUsers::new(machine, name, numbers.users(&pids)))
}
