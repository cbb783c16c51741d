//! An emulation as text: the label that tables, pages and pictures print next to figures of an emulated machine, and parts of
//! delays as people write them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

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
        if let Some(ps) = self.instruction_ps {
            write!(f, "instruction={},", f64::from(ps) / 1000.0)?;
        }
        match (self.window_ns, self.wide_window_ns) {
            (Some(ns), Some(wide_ns)) => write!(f, "window={ns}/{wide_ns},")?,
            (Some(ns), None) => write!(f, "window={ns},")?,
            (None, _) => {}
        }
        write!(f, "seed={}", self.seed)?;
        if self.jumps_when_idle {
            f.write_str(",idle=jump")?;
        }
        self.disk_ns.map_or(Ok(()), |ns| write!(f, ",disk={ns}"))
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
        let pairs = by_distance(&self.pairs).unwrap_or_else(|| by_pair(&self.pairs));
        let (cache, transfer) = (&self.cache, &self.transfer);
        write!(
            f,
            "delays {pairs}; last-level caches {cache}; transfer {transfer} ns"
        )?;
        if !self.bandwidth.is_unlimited() {
            write!(f, "; GB/s: {}", self.bandwidth)?;
        }
        match &self.device {
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
    let part = |(distance, delays): (&Distance, &BTreeSet<_>)| {
        let delay = delays.first().filter(|_| delays.len() == 1)?;
        Some(format!("{}: {}", distance.0, of(*delay)))
    };
    let parts: Vec<String> = delays.iter().map(part).collect::<Option<_>>()?;
    Some(parts.join(", "))
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

/// The longest delay, in nanoseconds: a millisecond.
pub const MAX_DELAY_NS: u32 = 1_000_000;
const MAX_CACHE_BYTES: u64 = 1 << 32;
const MAX_WAYS: u32 = 64;
const LINE_BYTES: u64 = 64;

/// A text that is not one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DelayFault {
    #[error("not SIZE/WAYS or SIZE/WAYS/NS such as 4M/16 (64 bytes a way at least, 4G at most)")]
    Cache,
    #[error("not SAME/OTHER such as 500/2000, or SAME/NEAREST/distance")]
    Node,
    #[error(
        "not SAME/OTHER such as 500/2000, CACHE/SAME/OTHER or CORE/CACHE/SAME/OTHER, any with /distance, or with DISTANCE:NS/DISTANCE:NS for OTHER, each optionally followed by +NS"
    )]
    Line,
    #[error("not a number of GB/s between 0.1 and 10000")]
    Bandwidth,
    #[error("not a number of nanoseconds between 0.001 and 1000")]
    Instruction,
}

/// A whole number of nanoseconds up to [`MAX_DELAY_NS`], with or without the unit.
pub fn delay_nanoseconds(text: &str) -> Option<u32> {
    let ns = delay_digits(text.strip_suffix("ns").unwrap_or(text));
    ns.filter(|ns| *ns <= MAX_DELAY_NS)
}

/// Digits and nothing else.
pub fn delay_digits(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// A time in whole nanoseconds, if it can be a delay.
pub fn delay_of(ns: f64) -> Option<u32> {
    let ns = ns.round();
    (1.0..=f64::from(MAX_DELAY_NS))
        .contains(&ns)
        .then_some(ns as u32)
}

/// Gigabytes (10^9) a second in megabytes.
///
/// # Errors
/// When it is too little or too much.
pub fn megabytes(gb_per_s: f64) -> Result<u32, DelayFault> {
    match (0.1..=10_000.0).contains(&gb_per_s) {
        true => Ok((gb_per_s * 1000.0).round() as u32),
        false => Err(DelayFault::Bandwidth),
    }
}

impl CacheModel {
    /// # Errors
    /// When no cache has this shape.
    pub fn new(bytes: u64, ways: u32, hit_ns: u32) -> Result<Self, DelayFault> {
        let fits = (1..=MAX_WAYS).contains(&ways)
            && bytes >= LINE_BYTES * u64::from(ways)
            && bytes <= MAX_CACHE_BYTES;
        let cache = Self {
            bytes,
            ways,
            hit_ns,
        };
        fits.then_some(cache).ok_or(DelayFault::Cache)
    }
}

/// `4M/16`, `4M/16/20`: bytes (with K, M or G), ways, nanoseconds of a hit.
impl FromStr for CacheModel {
    type Err = DelayFault;

    fn from_str(text: &str) -> Result<Self, DelayFault> {
        let read = || {
            let (bytes, rest) = text.split_once('/')?;
            let (ways, hit) = rest.split_once('/').unwrap_or((rest, "0"));
            let (bytes, ways) = (size::parse(bytes, 1)?, delay_digits(ways)?);
            Self::new(bytes, ways, delay_nanoseconds(hit)?).ok()
        };
        read().ok_or(DelayFault::Cache)
    }
}

/// `500/2000`: nanoseconds within a node, and between nodes; `500/2000/distance`: between the nearest ones, others in proportion
/// to their distance.
impl FromStr for NodeDelay {
    type Err = DelayFault;

    fn from_str(text: &str) -> Result<Self, DelayFault> {
        let plain = text.strip_suffix("/distance");
        let read = || {
            let (same, other) = plain.unwrap_or(text).split_once('/')?;
            Some(Self {
                same_node_ns: delay_nanoseconds(same)?,
                other_node_ns: delay_nanoseconds(other)?,
                is_by_distance: plain.is_some(),
            })
        };
        read().ok_or(DelayFault::Node)
    }
}

/// What a [`NodeDelay`] takes, or `100/500/2000`: nanoseconds within a last-level cache first, or `10/100/500/2000`: within a core
/// before. `500/12:600/32:2000` has those between nodes by their distance. `+60` behind it is for lines of memory of another package than
/// the cache.
impl FromStr for LineDelay {
    type Err = DelayFault;

    fn from_str(text: &str) -> Result<Self, DelayFault> {
        let read = || {
            let (text, home) = text.split_once('+').unwrap_or((text, "0"));
            let numbers = text.strip_suffix("/distance").unwrap_or(text);
            let first_distance = text.split('/').position(|part| part.contains(':'));
            // Those before the nanoseconds within a node.
            let within = first_distance.unwrap_or(numbers.matches('/').count());
            let (mut rest, mut inner) = (text, Vec::new());
            for _ in 1..within {
                let (ns, behind) = rest.split_once('/')?;
                inner.push(delay_nanoseconds(ns)?);
                rest = behind;
            }
            let delay = match first_distance {
                Some(_) => delay_by_distance(rest)?,
                None => rest.parse::<NodeDelay>().ok()?.into(),
            };
            let (same_core_ns, same_cache_ns) = match inner[..] {
                [] => (None, None),
                [cache] => (None, Some(cache)),
                [core, cache] => (Some(core), Some(cache)),
                _ => return None,
            };
            Some(Self {
                same_core_ns,
                same_cache_ns,
                home_ns: delay_nanoseconds(home)?,
                ..delay
            })
        };
        read().ok_or(DelayFault::Line)
    }
}

/// `500/12:600/32:2000`, each distance once, ascending.
fn delay_by_distance(text: &str) -> Option<LineDelay> {
    let (same, others) = text.split_once('/')?;
    let other = |text: &str| {
        let (distance, ns) = text.split_once(':')?;
        Some(DistanceDelay {
            distance: Distance(delay_digits(distance)?),
            ns: delay_nanoseconds(ns)?,
        })
    };
    let by_distance: Vec<DistanceDelay> = others.split('/').map(other).collect::<Option<_>>()?;
    let by_node = NodeDelay {
        same_node_ns: delay_nanoseconds(same)?,
        other_node_ns: by_distance.first()?.ns,
        is_by_distance: false,
    };
    let ascends = by_distance.is_sorted_by(|one, next| one.distance < next.distance);
    ascends.then_some(LineDelay {
        by_distance,
        ..by_node.into()
    })
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
