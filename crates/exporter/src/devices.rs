//! Interrupts of devices and requests through NVMe paths, by locality.

use std::collections::BTreeMap;

use nearfar_live::{DeviceActivity, Look, NvmePathActivity};
use nearfar_machine::NodeId;

use crate::label::label;
use crate::services::OTHER;
use crate::text::{Kind, Text};

/// Devices, and paths, with series of their own; those after them are together in [`OTHER`].
const MAX_SERIES: usize = 200;

/// Totals since the exporter started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Devices {
    interrupts: BTreeMap<String, Interrupts>,
    paths: BTreeMap<String, Requests>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Interrupts {
    name: String,
    near: u64,
    far: u64,
    /// Of a device whose node is unknown.
    unknown: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Requests {
    controller: String,
    node: Option<NodeId>,
    count: u64,
}

impl Devices {
    /// Adds what happened since the look before.
    pub fn add(&mut self, look: &Look) {
        for activity in look.devices.get().into_iter().flatten() {
            self.add_interrupts(activity);
        }
        for activity in &look.nvme_paths {
            self.add_requests(activity);
        }
    }

    fn add_interrupts(&mut self, activity: &DeviceActivity) {
        let device = entry(&mut self.interrupts, activity.device.to_string());
        // The first name stays: a label that changes begins another series.
        if device.name.is_empty() {
            device.name = label(&activity.names.join(","));
        }
        match activity.node {
            Some(_) => {
                device.near += activity.near;
                device.far += activity.far;
            }
            None => device.unknown += activity.near + activity.far,
        }
    }

    fn add_requests(&mut self, activity: &NvmePathActivity) {
        let path = entry(&mut self.paths, label(&activity.path));
        if path.controller.is_empty() {
            path.controller = label(&activity.controller);
            path.node = activity.node;
        }
        path.count += activity.requests;
    }

    pub fn write(&self, text: &mut Text) {
        let mut interrupts = text.family(
            "nearfar_device_interrupts_total",
            Kind::Counter,
            "Interrupts of the PCI device on the nearest CPUs (near) and on others (far), since the exporter started.",
        );
        for (device, it) in &self.interrupts {
            let all = [("near", it.near), ("far", it.far), ("unknown", it.unknown)];
            // Both of a device with a node: a ratio of a series that is missing is none.
            let is_of_no_node = it.near + it.far == 0 && it.unknown > 0;
            for (locality, count) in all {
                if count > 0 || is_of_no_node == (locality == "unknown") {
                    let labels: [(&str, &dyn std::fmt::Display); 3] = [
                        ("device", device),
                        ("name", &shown(&it.name, device)),
                        ("locality", &locality),
                    ];
                    interrupts.sample(&labels, count as f64);
                }
            }
        }
        let mut requests = text.family(
            "nearfar_nvme_path_requests_total",
            Kind::Counter,
            "Reads and writes through the path of an NVMe namespace with several, since the exporter started.",
        );
        for (path, it) in &self.paths {
            let node = it
                .node
                .map_or("unknown".to_owned(), |node| node.to_string());
            let labels: [(&str, &dyn std::fmt::Display); 3] = [
                ("path", path),
                ("controller", &shown(&it.controller, path)),
                ("node", &node),
            ];
            requests.sample(&labels, it.count as f64);
        }
    }
}

/// The total of this name, or that of [`OTHER`] where there are too many.
fn entry<T: Default>(totals: &mut BTreeMap<String, T>, name: String) -> &mut T {
    let has_series = totals.len() < MAX_SERIES || totals.contains_key(&name);
    let name = if has_series { name } else { OTHER.to_owned() };
    totals.entry(name).or_default()
}

/// Names of [`OTHER`] would be those of the first that is in it.
fn shown<'a>(name: &'a str, series: &str) -> &'a str {
    if series == OTHER { "" } else { name }
}

#[cfg(test)]
mod tests {
    use nearfar_machine::PciAddress;

    use super::*;

    fn activity(number: u32, node: Option<u32>, near: u64, far: u64) -> DeviceActivity {
        let address: PciAddress = format!("0000:{number:02x}:00.0").parse().unwrap();
        DeviceActivity {
            device: address,
            names: vec![format!("eth{number}")],
            node: node.map(NodeId),
            near,
            far,
        }
    }

    fn written(devices: &Devices) -> String {
        let mut text = Text::default();
        devices.write(&mut text);
        text.finish()
    }

    #[test]
    fn interrupts_of_a_device_of_unknown_node_are_neither_near_nor_far() {
        let mut devices = Devices::default();
        devices.add_interrupts(&activity(1, Some(0), 5, 0));
        devices.add_interrupts(&activity(2, None, 0, 7));
        let text = written(&devices);
        let lines: Vec<&str> = text.lines().filter(|it| !it.starts_with('#')).collect();
        let of = |device: u32, locality: &str, count: u64| {
            format!(
                "nearfar_device_interrupts_total{{device=\"0000:0{device}:00.0\",name=\"eth{device}\",\
                 locality=\"{locality}\"}} {count}"
            )
        };
        assert_eq!(
            lines,
            [of(1, "near", 5), of(1, "far", 0), of(2, "unknown", 7)]
        );
    }

    #[test]
    fn devices_after_the_limit_are_together() {
        let mut devices = Devices::default();
        for number in 0..=255 {
            devices.add_interrupts(&activity(number, Some(0), 1, 1));
        }
        let text = written(&devices);
        assert_eq!(text.matches("locality=\"far\"").count(), MAX_SERIES + 1);
        assert!(
            text.contains("{device=\"other\",name=\"\",locality=\"far\"} 56\n"),
            "{text}"
        );
    }
}
