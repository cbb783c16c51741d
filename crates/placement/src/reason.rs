//! Reasons of many things that differ in a number only, as one.

use nearfar_machine::PciAddress;

/// The reason with what numbers one of many things in its paths left open: `/proc/4711/numa_maps: permission denied` is
/// `/proc/PID/numa_maps: permission denied`, and `/sys/class/net/eth0/queues/tx-3/xps_cpus` is `.../tx-N/xps_cpus`.
pub(crate) fn without_numbers(reason: &str) -> String {
    let words = reason.split(' ').map(|word| match word.starts_with('/') {
        true => open_path(word),
        false => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn open_path(path: &str) -> String {
    let (mut open, mut above) = (Vec::new(), "");
    for part in path.split('/') {
        let name = part.trim_end_matches(|c: char| c.is_ascii_digit());
        open.push(match (part.len() - name.len(), name) {
            (1.., "") if above == "proc" => "PID".to_owned(),
            // The names of queues, nodes and CPUs; "eth0" and "nvme0" are few, and name what is meant.
            (1.., "" | "tx-" | "rx-" | "node" | "cpu") => format!("{name}N"),
            _ if part.parse::<PciAddress>().is_ok() => "DEVICE".to_owned(),
            _ => part.to_owned(),
        });
        above = part;
    }
    open.join("/")
}

#[cfg(test)]
mod tests {
    use super::without_numbers;

    #[test]
    fn numbers_of_paths_are_left_open_and_others_stay() {
        for (reason, open) in [
            (
                "/proc/4711/numa_maps: permission denied",
                "/proc/PID/numa_maps: permission denied",
            ),
            (
                "/proc/irq/24/smp_affinity_list: gone",
                "/proc/irq/N/smp_affinity_list: gone",
            ),
            (
                "cannot read /sys/bus/pci/devices/0000:81:00.0/numa_node",
                "cannot read /sys/bus/pci/devices/DEVICE/numa_node",
            ),
            (
                "/sys/class/net/eth0/queues/tx-3/xps_cpus: EIO",
                "/sys/class/net/eth0/queues/tx-N/xps_cpus: EIO",
            ),
            (
                "no effective_affinity_list before Linux 4.13",
                "no effective_affinity_list before Linux 4.13",
            ),
        ] {
            assert_eq!(without_numbers(reason), open);
        }
    }
}
