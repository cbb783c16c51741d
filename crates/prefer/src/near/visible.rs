//! The GPUs that a program started here uses: those whose device files it may open and that the environment does not hide.
//!
//! ```text
//! NVIDIA       /dev/nvidiaN          CUDA_VISIBLE_DEVICES                         numbers, or GPU-UUID
//! AMD          /dev/dri/renderDN     ROCR_VISIBLE_DEVICES, of them HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES)
//! Intel        /dev/dri/renderDN     ZE_AFFINITY_MASK                             numbers, also of parts: 0.1
//! ```
//!
//! A number counts those that may be opened by PCI address. CUDA counts the fastest first without `CUDA_DEVICE_ORDER=PCI_BUS_ID`; that
//! is the same where all are of one model. From the first number that no device has on, CUDA sees none.

use std::path::Path;

use nearfar_machine::{DeviceKind, Machine, PciAddress, PciDevice};
use rustix::fs::{Access, access};

/// What decides which GPUs are visible.
pub struct Visibility<'a> {
    /// A variable of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Whether a file may be opened.
    pub may_open: &'a dyn Fn(&Path) -> bool,
    /// The UUID of a GPU, `GPU-...`.
    pub uuid: &'a dyn Fn(PciAddress) -> Option<String>,
}

impl Visibility<'_> {
    /// Of this process. The kernel answers for its device controller (cgroup) as well.
    pub const HERE: Self = Self {
        variable: &|name| std::env::var(name).ok(),
        may_open: &|file| access(file, Access::READ_OK | Access::WRITE_OK).is_ok(),
        uuid: &|address| {
            let of_amd = format!("/sys/bus/pci/devices/{address}/unique_id");
            if let Ok(id) = std::fs::read_to_string(of_amd) {
                return Some(format!("GPU-{}", id.trim()));
            }
            let file = format!("/proc/driver/nvidia/gpus/{address}/information");
            let text = std::fs::read_to_string(file).ok()?;
            let uuid = text.lines().find_map(|it| it.strip_prefix("GPU UUID:"))?;
            Some(uuid.trim().to_owned())
        },
    };

    /// The visible GPUs of a machine, each once, by vendor and in the order that programs see.
    ///
    /// # Errors
    /// Why there is none, or it is unknown which.
    pub fn gpus(&self, machine: &Machine) -> Result<Vec<PciAddress>, String> {
        let all = machine.pci.items().iter();
        let gpus: Vec<&PciDevice> = all.filter(|it| it.is(&DeviceKind::GPU)).collect();
        let may_open: Vec<&PciDevice> = gpus
            .iter()
            .copied()
            .filter(|gpu| self.may_open(machine, gpu))
            .collect();
        match (gpus.len(), may_open.len()) {
            (0, _) => {
                return Err(match machine.pci.unknown_reason() {
                    Some(reason) => format!("it is unknown which GPUs there are: {reason}"),
                    None => "there is no GPU".to_owned(),
                });
            }
            (all, 0) => return Err(format!("the files of none of {all} GPUs may be opened")),
            _ => {}
        }
        // ROCm takes the variable of CUDA for its own; with both on a machine it is meant for CUDA.
        let has_nvidia = gpus.iter().any(|gpu| gpu.vendor == NVIDIA);
        let mut visible = Vec::new();
        for vendor in VENDORS {
            let mut own = may_open.clone();
            own.retain(|gpu| gpu.vendor == vendor.id);
            let is_its = |name: &&&str| **name != CUDA || vendor.id == NVIDIA || !has_nvidia;
            for names in vendor.variables {
                let mut set = names.iter().filter(is_its);
                let set = set.find_map(|name| Some((name, (self.variable)(name)?)));
                if let Some((name, value)) = set {
                    own = self
                        .chosen(&own, &value)
                        .map_err(|reason| format!("{name}={value}: {reason}"))?;
                }
            }
            visible.extend(own.iter().map(|gpu| gpu.address));
        }
        match visible.is_empty() {
            true => Err("the environment hides all GPUs".to_owned()),
            false => Ok(visible),
        }
    }

    fn may_open(&self, machine: &Machine, gpu: &PciDevice) -> bool {
        let devices = machine.os_devices.iter();
        let files = devices.filter(|it| it.device == gpu.address);
        let mut files = files.filter_map(|it| match it.name.as_str() {
            name if name.starts_with("renderD") => Some(format!("/dev/dri/{name}")),
            name if name.starts_with("nvidia") => Some(format!("/dev/{name}")),
            _ => None,
        });
        files.any(|file| (self.may_open)(Path::new(&file)))
    }

    /// Those of `own` that the value of a variable names.
    fn chosen<'g>(&self, own: &[&'g PciDevice], value: &str) -> Result<Vec<&'g PciDevice>, String> {
        let mut chosen: Vec<&PciDevice> = Vec::new();
        for item in value.split(',').map(str::trim) {
            let number = item
                .split('.')
                .next()
                .and_then(|it| it.parse::<usize>().ok());
            let found = match number {
                Some(_) if !self.counts_by_address(own) => {
                    return Err(
                        "the GPUs are of several models, which CUDA counts by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
                            .to_owned(),
                    );
                }
                Some(number) => own.get(number),
                None if item.starts_with("GPU-") => {
                    let mut uuids = own.iter().map(|gpu| (self.uuid)(gpu.address));
                    match uuids.all(|uuid| uuid.is_none()) {
                        true => return Err("the UUIDs of the GPUs are unknown".to_owned()),
                        false => own.iter().find(|gpu| {
                            let uuid = (self.uuid)(gpu.address);
                            uuid.is_some_and(|uuid| uuid.starts_with(item))
                        }),
                    }
                }
                None if item.starts_with("MIG-") => {
                    return Err("of a part of a GPU nothing says which GPU it is".to_owned());
                }
                None => None,
            };
            let Some(found) = found else { break };
            if !chosen.iter().any(|it| it.address == found.address) {
                chosen.push(found);
            }
        }
        Ok(chosen)
    }

    fn counts_by_address(&self, own: &[&PciDevice]) -> bool {
        let is_nvidia = own.iter().any(|gpu| gpu.vendor == NVIDIA);
        let is_one_model = own.windows(2).all(|two| two[0].device == two[1].device);
        let order = (self.variable)("CUDA_DEVICE_ORDER");
        !is_nvidia || is_one_model || order.is_some_and(|order| order == "PCI_BUS_ID")
    }
}

const NVIDIA: u16 = 0x10de;
const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// Whose GPUs which variables hide.
struct Vendor {
    id: u16,
    /// One of each group counts, the first that is set; the next group numbers what is left.
    variables: &'static [&'static [&'static str]],
}

const VENDORS: [Vendor; 3] = [
    Vendor {
        id: NVIDIA,
        variables: &[&[CUDA]],
    },
    Vendor {
        id: 0x1002,
        variables: &[&["ROCR_VISIBLE_DEVICES"], &["HIP_VISIBLE_DEVICES", CUDA]],
    },
    Vendor {
        id: 0x8086,
        variables: &[&["ZE_AFFINITY_MASK"]],
    },
];
