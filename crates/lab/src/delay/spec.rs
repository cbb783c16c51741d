//! The values of `--delay` and `--time`, and what can be wrong with them.

use std::ops::RangeInclusive;
use std::str::FromStr;

use nearfar_machine::{
    Acceleration, Bandwidth, CacheModel, DelayFault, Distance, LineDelay, MAX_DELAY_NS, NodeDelay,
    NodeId, SimulatedTime, Timing, delay_digits as digits, delay_nanoseconds, megabytes,
};
use thiserror::Error;

use crate::arch::Arch;
use crate::delay::{far_for_ratio, find_plugin};
use crate::error::LabError;
use crate::qemu::{self, Qemu};

/// In the host's time, emulation costs some 200 ns a random access by itself, so delays of real hardware would hardly show: they
/// are made four times as long.
const SCALE_IN_HOST_TIME: f64 = 4.0;
/// What hardware takes for memory at distance 10, in nanoseconds.
const LOCAL_NS: f64 = 100.0;
const CACHE: CacheModel = CacheModel {
    bytes: 8 << 20,
    ways: 16,
    hit_ns: 0,
};
/// What hardware takes for a line of another core of the node, and of another node, in nanoseconds.
const TRANSFER_NS: (f64, f64) = (125.0, 500.0);

/// Whether far memory is slow, and how.
#[derive(Clone, PartialEq, Default, Debug)]
pub enum DelaySpec {
    /// All memory is equally fast, and nothing is loaded into QEMU.
    #[default]
    Off,
    /// With delays.
    On(Box<Asked>),
}

/// What was asked for. Later and more special items win: pairs over distances over near and far over the scale.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Asked {
    /// How many times longer than hardware's the derived delays are; `None` for once in simulated time, and four times in the
    /// host's.
    pub scale: Option<f64>,
    /// What a random access costs in the guest without any delay; the derived delays make up for it, so that measured
    /// latencies are in the ratio of the distances. 0 for delays that are in that ratio themselves.
    pub base_ns: u32,
    /// For memory of the vCPU's own node.
    pub near_ns: Option<u32>,
    /// For memory of other nodes.
    pub far_ns: Option<u32>,
    /// For memory at a distance.
    pub distances: Vec<(Distance, u32)>,
    /// From the CPUs of one node to the memory of another.
    pub pairs: Vec<(NodeId, NodeId, u32)>,
    /// Each last-level cache; `None` for one of 8 MiB.
    pub cache: Option<CacheModel>,
    /// Line transfers; `None` for hardware's times the scale.
    pub transfer: Option<LineDelay>,
    /// How much memory and links carry.
    pub bandwidth: Bandwidth,
    /// Doorbell writes to NVMe controllers; `None` for no delay.
    pub device: Option<NodeDelay>,
    /// What accesses take on the machine, where nothing else is asked for.
    pub(super) own: Box<Timing>,
}

impl Asked {
    /// These delays for a guest of simulated or of the host's time. In simulated time they are the machine's own where they are known
    /// and no scale is asked for.
    pub(crate) fn on(&self, is_simulated: bool, timing: Option<&Timing>) -> Self {
        let own = timing.filter(|_| is_simulated && self.scale.is_none());
        let scale = match is_simulated {
            true => 1.0,
            false => SCALE_IN_HOST_TIME,
        };
        Self {
            scale: self.scale.or(Some(scale)),
            own: Box::new(own.cloned().unwrap_or_default()),
            ..self.clone()
        }
    }

    pub(crate) fn cache(&self) -> CacheModel {
        self.cache.or(self.own.cache).unwrap_or(CACHE)
    }

    pub(super) fn bandwidth(&self) -> Bandwidth {
        self.bandwidth.or(self.own.bandwidth)
    }

    pub(super) fn scale(&self) -> f64 {
        self.scale.unwrap_or(SCALE_IN_HOST_TIME)
    }

    /// The cost of line transfers.
    pub fn transfer(&self) -> LineDelay {
        let scaled = |ns: f64| (ns * self.scale()).round().min(f64::from(MAX_DELAY_NS)) as u32;
        let (same, other) = TRANSFER_NS;
        let derived = NodeDelay {
            same_node_ns: scaled(same),
            other_node_ns: scaled(other),
            is_by_distance: false,
        };
        let known = self.transfer.as_ref().or(self.own.transfer.as_ref());
        known.cloned().unwrap_or(derived.into())
    }

    /// The delay derived from a distance: `distance / 10 x 100 ns x scale`, with the base made up for.
    pub(crate) fn derived_ns(&self, distance: Distance) -> f64 {
        let ratio = f64::from(distance.0) / 10.0;
        far_for_ratio(LOCAL_NS * self.scale(), f64::from(self.base_ns), ratio)
    }

    fn item(&mut self, item: &str) -> Result<(), DelaySpecError> {
        let parts = item.split_once('=');
        let (key, value) = parts.ok_or_else(|| DelaySpecError::Item(item.to_owned()))?;
        let fault = |fault| DelaySpecError::Part {
            key: key.to_owned(),
            value: value.to_owned(),
            fault,
        };
        let gigabytes = || {
            let gb_per_s = value.parse().map_err(|_| DelayFault::Bandwidth);
            gb_per_s.and_then(megabytes).map_err(fault)
        };
        match key {
            "scale" => {
                let scale: Option<f64> = value.parse().ok();
                let scale = scale.filter(|scale| (0.01..=1000.0).contains(scale));
                let scale = scale.ok_or_else(|| DelaySpecError::Scale(value.to_owned()))?;
                self.scale = Some(scale);
            }
            "base" => self.base_ns = nanoseconds(value)?,
            "near" => self.near_ns = Some(nanoseconds(value)?),
            "far" => self.far_ns = Some(nanoseconds(value)?),
            "cache" => self.cache = Some(value.parse().map_err(fault)?),
            "transfer" => self.transfer = Some(value.parse().map_err(fault)?),
            "device" => self.device = Some(value.parse().map_err(fault)?),
            "bandwidth" => self.bandwidth.memory_mb_per_s = Some(gigabytes()?),
            "link" => self.bandwidth.link_mb_per_s = Some(gigabytes()?),
            "stream" => self.bandwidth.stream_mb_per_s = Some(gigabytes()?),
            other => self.place(other, nanoseconds(value)?)?,
        }
        Ok(())
    }

    /// `20` (a distance), `0-1` (a pair, both ways) or `0:1` (from the CPUs of 0 to the memory of 1).
    fn place(&mut self, key: &str, ns: u32) -> Result<(), DelaySpecError> {
        let unknown = || DelaySpecError::Key(key.to_owned());
        let node = |text: &str| digits(text).map(NodeId).ok_or_else(unknown);
        if let Some((from, to)) = key.split_once('-') {
            let (one, other) = (node(from)?, node(to)?);
            self.pairs.extend([(one, other, ns), (other, one, ns)]);
        } else if let Some((from, to)) = key.split_once(':') {
            self.pairs.push((node(from)?, node(to)?, ns));
        } else {
            let distance = digits(key).ok_or_else(unknown)?;
            self.distances.push((Distance(distance), ns));
        }
        Ok(())
    }
}

impl FromStr for DelaySpec {
    type Err = DelaySpecError;

    /// `off`, `auto`, or items with commas between: `scale=4`, `base=200`, `near=400`, `far=800`, `20=900`, `0-1=800`,
    /// `0:1=800`, `cache=4M/16`, `cache=4M/16/20`, `transfer=500/2000`, `transfer=100/500/2000`, `transfer=500/2000/distance`, `transfer=500/12:600/32:2000`,
    /// `bandwidth=20`, `link=10.5`, `stream=12`, `device=0/30000`.
    fn from_str(text: &str) -> Result<Self, DelaySpecError> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::On(Box::default())),
            items => {
                let mut asked = Asked::default();
                items.split(',').try_for_each(|item| asked.item(item))?;
                Ok(Self::On(Box::new(asked)))
            }
        }
    }
}

fn nanoseconds(text: &str) -> Result<u32, DelaySpecError> {
    let ns = delay_nanoseconds(text);
    ns.ok_or_else(|| DelaySpecError::Nanoseconds(text.to_owned()))
}

/// A text that is not a value of `--delay`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DelaySpecError {
    /// Not `KEY=VALUE`.
    #[error("{0:?} is not KEY=VALUE, auto or off")]
    Item(String),
    /// An unknown key.
    #[error(
        "{0:?} is not scale, base, near, far, cache, transfer, bandwidth, link, stream, device, a distance (20), nodes (0-1) or one way (0:1)"
    )]
    Key(String),
    /// The value of `scale`.
    #[error("scale {0:?} is not a number between 0.01 and 1000")]
    Scale(String),
    /// A value in nanoseconds.
    #[error("{0:?} is not a delay in nanoseconds (0 to {MAX_DELAY_NS})")]
    Nanoseconds(String),
    /// The value of another key.
    #[error("{key} {value:?} is {fault}")]
    Part {
        key: String,
        value: String,
        fault: DelayFault,
    },
}

/// Delays that a guest cannot have.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum DelayError {
    /// A distance between no two nodes.
    #[error("no node has memory at distance {wanted}; there are {}", listed(known))]
    UnknownDistance {
        /// As it was asked for.
        wanted: Distance,
        /// Those between nodes with CPUs and nodes with memory.
        known: Vec<u32>,
    },
    /// A node that the guest does not have.
    #[error("the guest has no node {0} with CPUs or memory")]
    UnknownNode(NodeId),
    /// A limit of memory or links in the host's time.
    #[error("bandwidth and link need simulated time: add --time simulated")]
    NeedsSimulatedTime,
    /// A derived delay above the limit.
    #[error("scale {scale}: {delay_ns} ns for distance {distance} is more than {MAX_DELAY_NS}")]
    TooLong {
        /// The scale that was asked for.
        scale: f64,
        /// What follows from it.
        delay_ns: f64,
        /// The distance it was derived from.
        distance: Distance,
    },
}

fn listed(distances: &[u32]) -> String {
    let distances: Vec<String> = distances.iter().map(u32::to_string).collect();
    distances.join(", ")
}

/// The oldest QEMU that has what simulated time needs: conditional callbacks came with 9.1.
const SIMULATED_TIME_SINCE: (u32, u32, u32) = (9, 1, 0);

/// The time that a guest's clocks follow while a command runs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TimeSpec {
    /// The host's.
    #[default]
    Host,
    Simulated(SimulatedTime),
    /// Simulated, where the guest can have it.
    Auto,
}

impl FromStr for TimeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "host" => return Ok(Self::Host),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let mut time = SimulatedTime::default();
        for item in text.split(',').filter(|item| *item != "simulated") {
            let unknown = || {
                format!(
                    "{item:?} is not auto, host, simulated, or instruction=NS, window=NS, window=NS/NS, seed=NUMBER, idle=host, idle=jump or disk=NS, separated by commas"
                )
            };
            let (key, value) = item.split_once('=').ok_or_else(unknown)?;
            let wrong = |expected| format!("{key} {value:?} is not {expected}");
            let number = |text: &str, expected, range: RangeInclusive<f64>| {
                let number = text.parse::<f64>().ok();
                let number = number.filter(|number| range.contains(number));
                number.ok_or_else(|| wrong(expected))
            };
            match key {
                "instruction" => {
                    let expected = "nanoseconds from 0.001 to 1000";
                    let ns = number(value, expected, 0.001..=1000.0)?;
                    time.instruction_ps = Some((ns * 1000.0).round() as u32);
                }
                "window" => {
                    let (narrow, wide) = value.split_once('/').unwrap_or((value, value));
                    let expected = "nanoseconds from 1 to 1000000, or two of them such as 60/200, the wider last";
                    let narrow = number(narrow, expected, 1.0..=1e6)?.round();
                    let wide = number(wide, expected, narrow..=1e6)?.round();
                    time.window_ns = Some(narrow as u32);
                    time.wide_window_ns = Some(wide as u32).filter(|_| wide > narrow);
                }
                "disk" => {
                    let ns = number(value, "nanoseconds from 1 to 1000000000", 1.0..=1e9)?;
                    time.disk_ns = Some(ns.round() as u32);
                }
                "seed" => {
                    let seed = value.parse();
                    time.seed = seed.map_err(|_| wrong("a whole number"))?;
                }
                "idle" => {
                    time.jumps_when_idle = match value {
                        "host" => false,
                        "jump" => true,
                        _ => return Err(wrong("host or jump")),
                    }
                }
                _ => return Err(unknown()),
            }
        }
        Ok(Self::Simulated(time))
    }
}

impl TimeSpec {
    /// Simulated time, where it is asked for and this QEMU and host have it. Left open, it is that of software emulation of the
    /// host's own architecture, where there is a plugin.
    ///
    /// # Errors
    /// When it is asked for and they have it not, with what would.
    pub fn on(
        self,
        qemu: &Qemu,
        arch: Arch,
        acceleration: Acceleration,
    ) -> Result<Option<SimulatedTime>, LabError> {
        let time = match self {
            Self::Host => return Ok(None),
            Self::Simulated(time) => time,
            Self::Auto => {
                let can_be = Some(arch) == Arch::host()
                    && acceleration == Acceleration::Tcg
                    && find_plugin(qemu).is_ok();
                let time = Self::Simulated(SimulatedTime::default());
                let time = can_be.then(|| time.on(qemu, arch, acceleration).ok());
                return Ok(time.flatten().flatten());
            }
        };
        let missing = |what: String, hint: &str| LabError::Missing {
            what,
            hint: format!("{hint}, or use --time host"),
        };
        if qemu.version < SIMULATED_TIME_SINCE {
            let what = format!("simulated time in QEMU {}", qemu.version_text());
            let hint = format!(
                "it needs QEMU {} or later",
                qemu::dotted(SIMULATED_TIME_SINCE)
            );
            return Err(missing(what, &hint));
        }
        if !cfg!(target_arch = "x86_64") {
            let what = "simulated time on this host".to_owned();
            return Err(missing(what, "it needs a host of x86-64"));
        }
        Ok(Some(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_read_as_it_is_shown() {
        let time = SimulatedTime {
            instruction_ps: Some(250),
            window_ns: Some(40),
            wide_window_ns: Some(200),
            seed: 7,
            jumps_when_idle: true,
            disk_ns: Some(20_000),
        };
        assert_eq!(time.to_string().parse(), Ok(TimeSpec::Simulated(time)));
        assert_eq!("host".parse(), Ok(TimeSpec::Host));
        assert_eq!("auto".parse(), Ok(TimeSpec::Auto));
        let default = TimeSpec::Simulated(SimulatedTime::default());
        assert_eq!("simulated".parse(), Ok(default));
        assert_eq!("simulated,seed=0".parse(), Ok(default));
        for wrong in [
            "",
            "real",
            "instruction=0",
            "instruction=x",
            "window=-1",
            "window=2e6",
            "window=60/40",
            "window=60/",
            "window=1/2/3",
            "seed=1.5",
            "simulated,host",
            "instruction=nan",
            "idle=skip",
            "disk=0",
        ] {
            assert!(wrong.parse::<TimeSpec>().is_err(), "{wrong}");
        }
    }
}
