//! The options that boot a guest as a stored one.

use std::collections::BTreeMap;

use nearfar_machine::{Acceleration, Delays, Distance, EmulatedGuest, PairDelay};

use crate::delay::Asked;
use crate::kernels::Series;

/// The options of `lab run` without their dashes, each with its value: what decides how the guest behaves. A machine that a file
/// described is named by that file's name.
pub fn options(guest: &EmulatedGuest) -> Vec<(&'static str, String)> {
    let mut options = vec![("machine", guest.machine.clone())];
    if !guest.node_limits.is_empty() {
        options.push(("scale", guest.node_limits.to_string()));
    }
    options.push(("arch", guest.architecture.clone()));
    let series = Series::of_release(&guest.kernel);
    options.extend(series.map(|series| ("kernel", series.to_string())));
    let append = guest.kernel_arguments.iter();
    options.extend(append.map(|it| ("append", it.clone())));
    options.extend(guest.simulated_time.map(|time| ("time", time.to_string())));
    let is_simulated = guest.simulated_time.is_some();
    match &guest.delays {
        Some(delays) => options.push(("delay", delay_spec(delays, is_simulated))),
        None => {
            let accel = match guest.acceleration {
                Acceleration::Kvm => "kvm",
                Acceleration::Tcg => "tcg",
            };
            options.push(("accel", accel.to_owned()));
        }
    }
    options
}

/// The value of `--delay` that makes delays as stored ones, as short as it can be: what is derived without being asked for is left
/// out. In simulated time a machine may have figures of its own, and a scale says that they are not meant.
pub fn delay_spec(delays: &Delays, is_simulated: bool) -> String {
    let derived = Asked::default().on(is_simulated, None);
    let is_derived =
        |pair: &PairDelay| f64::from(pair.delay_ns) == derived.derived_ns(pair.distance).round();
    let mut items = match delays.pairs.iter().all(is_derived) {
        true => Vec::new(),
        false => by_distance(&delays.pairs).unwrap_or_else(|| by_pair(&delays.pairs)),
    };
    if delays.cache != derived.cache() {
        items.push(format!("cache={}", delays.cache));
    }
    if delays.transfer != derived.transfer() {
        items.push(format!("transfer={}", delays.transfer));
    }
    if !delays.bandwidth.is_unlimited() {
        items.push(delays.bandwidth.to_string());
    }
    items.extend(delays.device.map(|device| format!("device={device}")));
    if is_simulated {
        items.insert(0, "scale=1".to_owned());
    }
    match items.is_empty() {
        true => "auto".to_owned(),
        false => items.join(","),
    }
}

/// `None` where one distance has several delays.
fn by_distance(pairs: &[PairDelay]) -> Option<Vec<String>> {
    let mut delays: BTreeMap<Distance, u32> = BTreeMap::new();
    for pair in pairs {
        let known = *delays.entry(pair.distance).or_insert(pair.delay_ns);
        if known != pair.delay_ns {
            return None;
        }
    }
    let item = |(distance, ns): (&Distance, &u32)| format!("{}={ns}", distance.0);
    Some(delays.iter().map(item).collect())
}

fn by_pair(pairs: &[PairDelay]) -> Vec<String> {
    let item = |it: &PairDelay| format!("{}:{}={}", it.cpu_node.0, it.memory_node.0, it.delay_ns);
    pairs.iter().map(item).collect()
}

#[cfg(test)]
mod tests {
    use nearfar_machine::{
        Bandwidth, CacheModel, Delays, Distance, NodeDelay, NodeId, NodeLimits, PairDelay,
        SimulatedTime,
    };

    use super::*;

    fn delays(of: [u32; 4]) -> Delays {
        let places = [(0, 0, 10), (0, 1, 20), (1, 0, 20), (1, 1, 10)];
        let pair = |((cpu, memory, distance), delay_ns)| PairDelay {
            cpu_node: NodeId(cpu),
            memory_node: NodeId(memory),
            distance: Distance(distance),
            delay_ns,
            is_estimate: false,
        };
        Delays {
            pairs: places.into_iter().zip(of).map(pair).collect(),
            cache: CacheModel {
                bytes: 8 << 20,
                ways: 16,
                hit_ns: 0,
            },
            transfer: NodeDelay {
                same_node_ns: 500,
                other_node_ns: 2000,
                is_by_distance: false,
            }
            .into(),
            bandwidth: Bandwidth::default(),
            device: None,
        }
    }

    fn words(delays: Option<Delays>, time: Option<SimulatedTime>) -> String {
        let guest = EmulatedGuest {
            machine: "two-node".to_owned(),
            node_limits: NodeLimits {
                cpus: Some(2),
                memory_bytes: Some(512 << 20),
            },
            kernel: "6.12.9-amd64".to_owned(),
            kernel_arguments: vec!["quiet".to_owned()],
            architecture: "aarch64".to_owned(),
            acceleration: Acceleration::Tcg,
            qemu: None,
            delays,
            simulated_time: time,
        };
        let words = options(&guest).into_iter();
        let words = words.map(|(key, value)| format!("--{key}={value}"));
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_decides_how_a_guest_behaves_is_in_its_options() {
        assert_eq!(
            words(None, None),
            "--machine=two-node --scale=cpus=2,memory=512M --arch=aarch64 --kernel=6.12 --append=quiet --accel=tcg"
        );
        let time = SimulatedTime {
            seed: 7,
            instruction_ps: Some(500),
            window_ns: Some(62),
            wide_window_ns: Some(200),
            ..SimulatedTime::default()
        };
        let repeated = words(None, Some(time));
        assert!(
            repeated.ends_with(" --time=instruction=0.5,window=62/200,seed=7 --accel=tcg"),
            "{repeated}"
        );
    }

    #[test]
    fn delays_are_written_as_short_as_they_can_be_asked_for() {
        let of = |delays| {
            words(Some(delays), None)
                .rsplit_once("--delay=")
                .unwrap()
                .1
                .to_owned()
        };
        assert_eq!(of(delays([400, 800, 800, 400])), "auto");
        let by_distance = Delays {
            transfer: NodeDelay {
                same_node_ns: 500,
                other_node_ns: 2000,
                is_by_distance: true,
            }
            .into(),
            ..delays([400, 800, 800, 400])
        };
        assert_eq!(of(by_distance), "transfer=500/2000/distance");
        let small = Delays {
            cache: CacheModel {
                bytes: 1 << 20,
                ways: 8,
                hit_ns: 0,
            },
            ..delays([400, 900, 900, 400])
        };
        assert_eq!(of(small), "10=400,20=900,cache=1M/8");
        let of_devices = Delays {
            device: Some(NodeDelay {
                same_node_ns: 0,
                other_node_ns: 30_000,
                is_by_distance: false,
            }),
            ..delays([400, 800, 800, 400])
        };
        assert_eq!(of(of_devices), "device=0/30000");
        assert_eq!(
            of(delays([400, 900, 800, 400])),
            "0:0=400,0:1=900,1:0=800,1:1=400"
        );
    }
}
