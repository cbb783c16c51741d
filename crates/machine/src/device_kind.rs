//! Kinds of PCI devices: what belongs to them, where Linux lists their names, and what they are asked about.
//!
//! ```text
//! class, driver, vendor ─► DeviceKind ─► topo (is_shown), audit (moves_bulk_data), the nearest network card of a GPU
//!                                    └─► names of /sys/class (listed_in) ─► tasks --device, prefer --near, topo
//! ```

use crate::device::{OsDeviceKind, PciDevice};

/// A kind of device. A new one is a constant and a place in [`DeviceKind::ALL`].
#[derive(PartialEq, Eq, Debug)]
pub struct DeviceKind {
    pub name: &'static str,
    /// Base classes, and base classes with subclass (PCI Code and ID Assignment Specification).
    classes: &'static [Class],
    /// Drivers of devices whose class says too little; of those of `classes`, the only ones that belong to it, unless `vendors` has
    /// theirs.
    drivers: &'static [&'static str],
    vendors: &'static [u16],
    /// Directories of /sys/class that list its devices (Documentation/ABI in the kernel).
    pub listed_in: &'static [&'static str],
    /// What the names there are called; `None` where they are in lists of their own: disks, network devices, NVMe subsystems.
    pub named_as: Option<OsDeviceKind>,
    /// Whether lists of devices that move data have it.
    pub is_shown: bool,
    /// Whether it moves so much that its node matters.
    pub moves_bulk_data: bool,
}

#[derive(PartialEq, Eq, Debug)]
enum Class {
    Base(u32),
    Sub(u32),
}
use Class::{Base, Sub};

impl DeviceKind {
    const MOVES_DATA: Self = Self {
        name: "",
        classes: &[],
        drivers: &[],
        vendors: &[],
        listed_in: &[],
        named_as: None,
        is_shown: true,
        moves_bulk_data: true,
    };

    /// The screen of a management controller or guest.
    pub const CONSOLE: Self = Self {
        name: "console",
        classes: &[Base(0x03)],
        drivers: &["ast", "mgag200", "hibmc-drm", "bochs-drm", "cirrus"],
        // Matrox and ASPEED, which make no other GPU of today.
        vendors: &[0x102b, 0x1a03],
        moves_bulk_data: false,
        ..Self::MOVES_DATA
    };
    /// A GPU or another accelerator.
    pub const GPU: Self = Self {
        name: "GPU",
        classes: &[Base(0x03), Base(0x12), Sub(0x0b40)],
        listed_in: &["drm", "accel"],
        named_as: Some(OsDeviceKind::Gpu),
        ..Self::MOVES_DATA
    };
    /// Ethernet and other networks, InfiniBand.
    pub const NETWORK_CARD: Self = Self {
        name: "network card",
        classes: &[Base(0x02), Sub(0x0c06)],
        listed_in: &["net"],
        ..Self::MOVES_DATA
    };
    /// The verbs of a network card; the functions are network cards.
    const RDMA: Self = Self {
        name: "RDMA device",
        listed_in: &["infiniband"],
        named_as: Some(OsDeviceKind::OpenFabrics),
        ..Self::MOVES_DATA
    };
    pub const STORAGE: Self = Self {
        name: "storage controller",
        classes: &[Base(0x01)],
        listed_in: &["block", "nvme", "scsi_host"],
        ..Self::MOVES_DATA
    };
    const FIBRE_CHANNEL: Self = Self {
        name: "Fibre Channel adapter",
        classes: &[Sub(0x0c04)],
        ..Self::MOVES_DATA
    };
    const CXL_MEMORY: Self = Self {
        name: "CXL memory",
        classes: &[Sub(0x0502)],
        ..Self::MOVES_DATA
    };
    const PROCESSOR: Self = Self {
        name: "processor",
        classes: &[Base(0x0b)],
        ..Self::MOVES_DATA
    };
    const WIRELESS: Self = Self {
        name: "wireless card",
        classes: &[Base(0x0d)],
        ..Self::MOVES_DATA
    };
    const ENCRYPTION: Self = Self {
        name: "encryption device",
        classes: &[Base(0x10)],
        ..Self::MOVES_DATA
    };
    /// Its class is "system peripheral".
    const COPY_ENGINE: Self = Self {
        name: "copy engine",
        drivers: &["ioatdma", "idxd", "ptdma"],
        is_shown: false,
        ..Self::MOVES_DATA
    };

    /// Of two that a device belongs to, the first one is its kind.
    pub const ALL: &'static [Self] = &[
        Self::STORAGE,
        Self::NETWORK_CARD,
        Self::CONSOLE,
        Self::GPU,
        Self::RDMA,
        Self::FIBRE_CHANNEL,
        Self::CXL_MEMORY,
        Self::PROCESSOR,
        Self::WIRELESS,
        Self::ENCRYPTION,
        Self::COPY_ENGINE,
    ];

    fn has(&self, device: &PciDevice) -> bool {
        let is_one = |class: &Class| match *class {
            Base(base) => device.class >> 16 == base,
            Sub(class) => device.class_code() == class,
        };
        let driver = device.driver.as_deref();
        let is_named = driver.is_some_and(|driver| self.drivers.contains(&driver))
            || self.vendors.contains(&device.vendor);
        match (self.classes, self.drivers) {
            ([], _) => is_named,
            (classes, []) => classes.iter().any(is_one),
            (classes, _) => classes.iter().any(is_one) && is_named,
        }
    }
}

impl PciDevice {
    /// The kind it belongs to; `None` for bridges, serial ports and other devices that move no data to speak of.
    pub fn kind(&self) -> Option<&'static DeviceKind> {
        DeviceKind::ALL.iter().find(|kind| kind.has(self))
    }

    pub fn is(&self, kind: &DeviceKind) -> bool {
        self.kind() == Some(kind)
    }

    /// Whether devices of its kind move data to or from memory.
    pub fn moves_data(&self) -> bool {
        self.kind().is_some_and(|kind| kind.is_shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Known, RootBus};

    fn device(class: u32, vendor: u16, driver: Option<&str>) -> PciDevice {
        PciDevice {
            address: "0000:81:00.0".parse().unwrap(),
            vendor,
            device: 1,
            class,
            class_name: None,
            name: None,
            driver: driver.map(str::to_owned),
            parent: None,
            root: RootBus {
                domain: 0,
                bus: 0x80,
            },
            node: Known::Yes(None),
        }
    }

    #[test]
    fn a_kind_is_told_from_class_driver_and_vendor() {
        for (class, vendor, driver, kind) in [
            (0x030200, 0x10de, Some("nvidia"), Some("GPU")),
            (0x038000, 0x1002, Some("amdgpu"), Some("GPU")),
            (0x120000, 0x1da3, None, Some("GPU")),
            (0x0b4000, 0x8086, None, Some("GPU")),
            (0x0b2000, 0x8086, None, Some("processor")),
            (0x030000, 0x1a03, None, Some("console")),
            (0x030000, 0x1234, Some("bochs-drm"), Some("console")),
            (0x020000, 0x15b3, Some("mlx5_core"), Some("network card")),
            (0x0c0600, 0x15b3, None, Some("network card")),
            (0x010802, 0x144d, Some("nvme"), Some("storage controller")),
            (0x088000, 0x8086, Some("ioatdma"), Some("copy engine")),
            (0x088000, 0x8086, None, None),
            (0x060400, 0x1a03, None, None),
            (0x0c0330, 0x8086, Some("xhci_hcd"), None),
        ] {
            let found = device(class, vendor, driver).kind().map(|it| it.name);
            assert_eq!(found, kind, "{class:06x} {vendor:04x} {driver:?}");
        }
        assert!(!device(0x088000, 0x8086, Some("idxd")).moves_data());
    }
}
