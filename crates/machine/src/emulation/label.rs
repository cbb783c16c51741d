//! The label that tables, pages and pictures print next to figures of an emulated machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{
    Acceleration, Bandwidth, CacheModel, Delays, DistanceDelay, EmulatedGuest, Emulation,
    LineDelay, NodeDelay, PairDelay, SimulatedTime,
};
use crate::id::Distance;
use crate::size;

impl fmt::Display for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guest(guest) => guest.fmt(f),
            Self::Label(label) => f.write_str(label),
        }
    }
}

/// `two-node at cpus=2 as a guest: Linux 6.12.9 with numa=fake=2, KVM, no delays: all memory equally fast`.
impl fmt::Display for EmulatedGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.machine)?;
        if !self.node_limits.is_empty() {
            write!(f, " at {}", self.node_limits)?;
        }
        write!(f, " as a guest: Linux {}", self.kernel)?;
        if !self.kernel_arguments.is_empty() {
            write!(f, " with {}", self.kernel_arguments.join(" "))?;
        }
        write!(f, ", {}, ", self.acceleration)?;
        match &self.delays {
            Some(delays) => delays.fmt(f)?,
            None => f.write_str("no delays: all memory equally fast")?,
        }
        match self.simulated_time {
            Some(time) => write!(f, "; simulated time, {time}"),
            None => Ok(()),
        }
    }
}

/// `instruction=0.5,window=62/200,seed=0`, with `,idle=jump` and `,disk=20000` where it has them: as the option of the lab takes it, in nanoseconds.
impl fmt::Display for SimulatedTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            instruction_ps,
            window_ns,
            wide_window_ns,
            seed,
            jumps_when_idle,
            disk_ns,
        } = self;
        if let Some(ps) = instruction_ps {
            write!(f, "instruction={},", f64::from(*ps) / 1000.0)?;
        }
        if let Some(ns) = window_ns {
            write!(f, "window={ns}")?;
            if let Some(wide_ns) = wide_window_ns {
                write!(f, "/{wide_ns}")?;
            }
            f.write_str(",")?;
        }
        write!(f, "seed={seed}")?;
        if *jumps_when_idle {
            f.write_str(",idle=jump")?;
        }
        disk_ns.map_or(Ok(()), |ns| write!(f, ",disk={ns}"))
    }
}

impl fmt::Display for Acceleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Tcg => "software emulation",
        })
    }
}

/// `delays 10: 400 ns, 20: 800 ns; last-level caches 8M/16; transfer 500/2000 ns`.
impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pairs,
            cache,
            transfer,
            bandwidth,
            device,
        } = self;
        let pairs = by_distance(pairs).unwrap_or_else(|| by_pair(pairs));
        write!(
            f,
            "delays {pairs}; last-level caches {cache}; transfer {transfer} ns"
        )?;
        if !bandwidth.is_unlimited() {
            write!(f, "; GB/s: {bandwidth}")?;
        }
        match device {
            Some(device) => write!(
                f,
                "; NVMe doorbell writes {device} ns, a stand-in for remote devices"
            ),
            None => Ok(()),
        }
    }
}

/// `10: 122 ns, 32: 320 ns (by distance)`, where the distance decides; the second is an estimate.
fn by_distance(pairs: &[PairDelay]) -> Option<String> {
    let mut delays: BTreeMap<Distance, BTreeSet<(u32, bool)>> = BTreeMap::new();
    for pair in pairs {
        let of_distance = delays.entry(pair.distance).or_default();
        of_distance.insert((pair.delay_ns, pair.is_estimate));
    }
    let parts: Option<Vec<String>> = delays
        .iter()
        .map(|(distance, delays)| match delays.first() {
            Some(&delay) if delays.len() == 1 => Some(format!("{}: {}", distance.0, of(delay))),
            _ => None,
        })
        .collect();
    Some(parts?.join(", "))
}

/// `0:0: 400 ns, 0:1: 800 ns`: the node of the CPU, the node of the memory.
fn by_pair(pairs: &[PairDelay]) -> String {
    let part = |it: &PairDelay| {
        let delay = of((it.delay_ns, it.is_estimate));
        format!("{}:{}: {delay}", it.cpu_node.0, it.memory_node.0)
    };
    let parts: Vec<String> = pairs.iter().map(part).collect();
    parts.join(", ")
}

fn of((ns, is_estimate): (u32, bool)) -> String {
    let mark = if is_estimate { " (by distance)" } else { "" };
    format!("{ns} ns{mark}")
}

/// As `--delay cache=` takes it: `8M/16`, `8M/16/20` with the nanoseconds of a hit.
impl fmt::Display for CacheModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", size::render(self.bytes), self.ways)?;
        match self.hit_ns {
            0 => Ok(()),
            ns => write!(f, "/{ns}"),
        }
    }
}

/// As `--delay transfer=` takes it: `25/80/190`, `80/190` where a node has one cache, `25/80/12:90/32:190` where distances differ,
/// `8/25/80/190` with threads of a core, `80/190+60` where the line's own memory counts.
impl fmt::Display for LineDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [same_cache_ns, ..] = self.by_class();
        if let Some(ns) = self.same_core_ns {
            write!(f, "{ns}/{same_cache_ns}/")?;
        } else if self.same_cache_ns.is_some() {
            write!(f, "{same_cache_ns}/")?;
        }
        if self.by_distance.is_empty() {
            self.by_node.fmt(f)?;
        } else {
            write!(f, "{}", self.by_node.same_node_ns)?;
        }
        for DistanceDelay { distance, ns } in &self.by_distance {
            write!(f, "/{}:{ns}", distance.0)?;
        }
        match self.home_ns {
            0 => Ok(()),
            ns => write!(f, "+{ns}"),
        }
    }
}

/// As `--delay` takes it, in GB/s: `bandwidth=20,link=10,stream=12`.
impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("bandwidth", self.memory_mb_per_s),
            ("link", self.link_mb_per_s),
            ("stream", self.stream_mb_per_s),
        ];
        let all = all.into_iter().filter_map(|(key, mb)| Some((key, mb?)));
        for (place, (key, mb)) in all.enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{key}={}", f64::from(mb) / 1000.0)?;
        }
        Ok(())
    }
}

/// As `--delay device=` takes it: `500/2000`, `500/2000/distance`.
impl fmt::Display for NodeDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.same_node_ns, self.other_node_ns)?;
        match self.is_by_distance {
            true => f.write_str("/distance"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NodeDelay, NodeLimits, samples};

    #[test]
    fn a_label_names_the_machine_its_kernel_and_its_delays() {
        let mut guest = samples::guest();
        assert_eq!(
            guest.to_string(),
            "two-node at cpus=2,memory=512M as a guest: Linux 6.12.9 with numa=fake=2, software emulation, \
             delays 10: 400 ns, 20: 800 ns; last-level caches 8M/16; transfer 500/2000 ns"
        );
        guest.node_limits = NodeLimits::default();
        guest.kernel_arguments.clear();
        guest.delays = None;
        assert_eq!(
            guest.to_string(),
            "two-node as a guest: Linux 6.12.9, software emulation, no delays: all memory equally fast"
        );
    }

    #[test]
    fn delays_that_differ_at_one_distance_are_named_by_pair() {
        let mut delays = samples::delays();
        delays.pairs[1].delay_ns = 900;
        assert!(
            delays.to_string().starts_with(
                "delays 0:0: 400 ns, 0:1: 900 ns, 1:0: 800 ns, 1:1: 400 ns; last-level"
            )
        );
    }

    #[test]
    fn what_follows_from_the_distance_beside_figures_of_the_machine_is_marked() {
        let mut delays = samples::delays();
        delays.pairs[1].is_estimate = true;
        delays.pairs[2].is_estimate = true;
        assert!(
            (delays.to_string()).starts_with("delays 10: 400 ns, 20: 800 ns (by distance); last")
        );
    }

    #[test]
    fn delays_of_devices_are_named_as_a_stand_in() {
        let mut delays = samples::delays();
        delays.device = Some(NodeDelay {
            same_node_ns: 0,
            other_node_ns: 30_000,
            is_by_distance: true,
        });
        assert!(delays.to_string().ends_with(
            "; NVMe doorbell writes 0/30000/distance ns, a stand-in for remote devices"
        ));
    }
}
