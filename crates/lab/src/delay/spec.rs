//! The value of `--delay`.

use std::fmt;
use std::str::FromStr;

use nearfar_machine::{Distance, NodeId};

/// The longest delay that is taken for meant: a millisecond.
pub(super) const MOST_NS: u32 = 1_000_000;
/// Emulation costs some 200 ns a random access by itself, so delays of real hardware would hardly show: they are made
/// four times as long.
const SCALE: f64 = 4.0;
/// What hardware takes for memory at distance 10, in nanoseconds.
const LOCAL_NS: f64 = 100.0;
/// What hardware takes for a line of another core of the node, and of another node, in nanoseconds.
const TRANSFER_NS: (f64, f64) = (125.0, 500.0);

/// Whether far memory is slow, and how.
#[derive(Clone, PartialEq, Default, Debug)]
pub enum DelaySpec {
    /// All memory is equally fast, and nothing is loaded into QEMU.
    #[default]
    Off,
    /// With delays.
    On(Asked),
}

/// What was asked for. Later and more special items win: pairs over distances over near and far over the scale.
#[derive(Clone, PartialEq, Debug)]
pub struct Asked {
    /// How many times longer than hardware's the derived delays are.
    pub scale: f64,
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
    /// The last-level cache of each node.
    pub cache: CacheSize,
    /// Line transfers; `None` for hardware's times the scale.
    pub transfer: Option<Transfer>,
}

/// A cache's shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheSize {
    /// Bytes.
    pub bytes: u64,
    /// Ways.
    pub ways: u32,
}

/// What it costs to get a line that another vCPU wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// From a vCPU of the same node, in nanoseconds.
    pub same_ns: u32,
    /// From another node, in nanoseconds.
    pub other_ns: u32,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            scale: SCALE,
            base_ns: 0,
            near_ns: None,
            far_ns: None,
            distances: Vec::new(),
            pairs: Vec::new(),
            cache: CacheSize {
                bytes: 8 << 20,
                ways: 16,
            },
            transfer: None,
        }
    }
}

impl Asked {
    /// The cost of line transfers.
    pub fn transfer(&self) -> Transfer {
        let scaled = |ns: f64| (ns * self.scale).round().min(f64::from(MOST_NS)) as u32;
        let (same, other) = TRANSFER_NS;
        self.transfer.unwrap_or(Transfer {
            same_ns: scaled(same),
            other_ns: scaled(other),
        })
    }

    /// The delay derived from a distance: `distance / 10 x 100 ns x scale`, with the base made up for.
    pub(super) fn derived_ns(&self, distance: Distance) -> f64 {
        let ratio = f64::from(distance.0) / 10.0;
        super::far_for_ratio(LOCAL_NS * self.scale, f64::from(self.base_ns), ratio)
    }

    fn item(&mut self, item: &str) -> Result<(), String> {
        let (key, value) = item
            .split_once('=')
            .ok_or_else(|| format!("{item:?} is not KEY=VALUE"))?;
        match key {
            "scale" => {
                let scale: f64 = value
                    .parse()
                    .map_err(|_| format!("scale {value:?} is not a number"))?;
                if !(0.01..=1000.0).contains(&scale) {
                    return Err(format!("scale {value} is not between 0.01 and 1000"));
                }
                self.scale = scale;
            }
            "base" => self.base_ns = nanoseconds(value)?,
            "near" => self.near_ns = Some(nanoseconds(value)?),
            "far" => self.far_ns = Some(nanoseconds(value)?),
            "cache" => self.cache = value.parse()?,
            "transfer" => self.transfer = Some(value.parse()?),
            other => self.place(other, nanoseconds(value)?)?,
        }
        Ok(())
    }

    /// `20` (a distance), `0-1` (a pair, both ways) or `0:1` (from the CPUs of 0 to the memory of 1).
    fn place(&mut self, key: &str, ns: u32) -> Result<(), String> {
        let unknown = || {
            format!(
                "{key:?} is not scale, base, near, far, cache, transfer, a distance (20), nodes (0-1) or one way (0:1)"
            )
        };
        let node = |text: &str| digits(text).map(NodeId).ok_or_else(unknown);
        if let Some((from, to)) = key.split_once('-') {
            let (one, other) = (node(from)?, node(to)?);
            self.pairs.extend([(one, other, ns), (other, one, ns)]);
        } else if let Some((from, to)) = key.split_once(':') {
            self.pairs.push((node(from)?, node(to)?, ns));
        } else {
            self.distances
                .push((Distance(digits(key).ok_or_else(unknown)?), ns));
        }
        Ok(())
    }
}

impl FromStr for DelaySpec {
    type Err = String;

    /// `off`, `auto`, or items with commas between: `scale=4`, `base=200`, `near=400`, `far=800`, `20=900`, `0-1=800`,
    /// `0:1=800`, `cache=4M/16`, `transfer=500/2000`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::On(Asked::default())),
            items => {
                let mut asked = Asked::default();
                items.split(',').try_for_each(|item| asked.item(item))?;
                Ok(Self::On(asked))
            }
        }
    }
}

impl FromStr for CacheSize {
    type Err = String;

    /// `4M/16`: bytes (with K, M or G) and ways.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "cache {text:?} is not SIZE/WAYS such as 4M/16 (64 bytes a way at least, 4G at most)"
            )
        };
        let (size, ways) = text.split_once('/').ok_or_else(wrong)?;
        let (number, shift) = match size.strip_suffix(['K', 'M', 'G']) {
            Some(number) if size.ends_with('K') => (number, 10),
            Some(number) if size.ends_with('M') => (number, 20),
            Some(number) => (number, 30),
            None => (size, 0),
        };
        let bytes = digits(number)
            .map(|value| u64::from(value) << shift)
            .ok_or_else(wrong)?;
        let ways = digits(ways).ok_or_else(wrong)?;
        let fits = (1..=64).contains(&ways) && bytes >= 64 * u64::from(ways) && bytes <= 1 << 32;
        fits.then_some(Self { bytes, ways }).ok_or_else(wrong)
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, ways } = self;
        match bytes.trailing_zeros() {
            30.. => write!(f, "{}G/{ways}", bytes >> 30),
            20.. => write!(f, "{}M/{ways}", bytes >> 20),
            10.. => write!(f, "{}K/{ways}", bytes >> 10),
            _ => write!(f, "{bytes}/{ways}"),
        }
    }
}

impl FromStr for Transfer {
    type Err = String;

    /// `500/2000`: nanoseconds within a node, and from another.
    fn from_str(text: &str) -> Result<Self, String> {
        let (same, other) = text
            .split_once('/')
            .ok_or_else(|| format!("transfer {text:?} is not SAME/OTHER such as 500/2000"))?;
        Ok(Self {
            same_ns: nanoseconds(same)?,
            other_ns: nanoseconds(other)?,
        })
    }
}

fn digits(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

fn nanoseconds(text: &str) -> Result<u32, String> {
    digits(text.strip_suffix("ns").unwrap_or(text))
        .filter(|ns| *ns <= MOST_NS)
        .ok_or_else(|| format!("{text:?} is not a delay in nanoseconds (0 to {MOST_NS})"))
}
