//! The value of `--delay`.

use std::str::FromStr;

use nearfar_machine::{CacheModel, Distance, NodeDelay, NodeId, size};

use super::error::DelaySpecError;

/// The longest delay, in nanoseconds: a millisecond.
pub(super) const MAX_DELAY_NS: u32 = 1_000_000;
/// In the host's time, emulation costs some 200 ns a random access by itself, so delays of real hardware would hardly show: they
/// are made four times as long.
const SCALE_IN_HOST_TIME: f64 = 4.0;
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
    /// The last-level cache of each node.
    pub cache: CacheModel,
    /// Line transfers; `None` for hardware's times the scale.
    pub transfer: Option<NodeDelay>,
    /// Doorbell writes to NVMe controllers; `None` for no delay.
    pub device: Option<NodeDelay>,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            scale: None,
            base_ns: 0,
            near_ns: None,
            far_ns: None,
            distances: Vec::new(),
            pairs: Vec::new(),
            cache: CacheModel {
                bytes: 8 << 20,
                ways: 16,
            },
            transfer: None,
            device: None,
        }
    }
}

impl Asked {
    /// These delays for a guest of simulated or of the host's time.
    pub(super) fn with_scale(&self, is_simulated: bool) -> Self {
        let scale = match is_simulated {
            true => 1.0,
            false => SCALE_IN_HOST_TIME,
        };
        Self {
            scale: self.scale.or(Some(scale)),
            ..self.clone()
        }
    }

    pub(super) fn scale(&self) -> f64 {
        self.scale.unwrap_or(SCALE_IN_HOST_TIME)
    }

    /// The cost of line transfers.
    pub fn transfer(&self) -> NodeDelay {
        let scaled = |ns: f64| (ns * self.scale()).round().min(f64::from(MAX_DELAY_NS)) as u32;
        let (same, other) = TRANSFER_NS;
        self.transfer.unwrap_or(NodeDelay {
            same_node_ns: scaled(same),
            other_node_ns: scaled(other),
            is_by_distance: false,
        })
    }

    /// The delay derived from a distance: `distance / 10 x 100 ns x scale`, with the base made up for.
    pub(super) fn derived_ns(&self, distance: Distance) -> f64 {
        let ratio = f64::from(distance.0) / 10.0;
        super::far_for_ratio(LOCAL_NS * self.scale(), f64::from(self.base_ns), ratio)
    }

    fn item(&mut self, item: &str) -> Result<(), DelaySpecError> {
        let (key, value) = item
            .split_once('=')
            .ok_or_else(|| DelaySpecError::Item(item.to_owned()))?;
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
            "cache" => self.cache = cache(value)?,
            "transfer" => self.transfer = Some(by_side(value, DelaySpecError::Transfer)?),
            "device" => self.device = Some(by_side(value, DelaySpecError::Device)?),
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
            self.distances
                .push((Distance(digits(key).ok_or_else(unknown)?), ns));
        }
        Ok(())
    }
}

impl FromStr for DelaySpec {
    type Err = DelaySpecError;

    /// `off`, `auto`, or items with commas between: `scale=4`, `base=200`, `near=400`, `far=800`, `20=900`, `0-1=800`,
    /// `0:1=800`, `cache=4M/16`, `transfer=500/2000`, `transfer=500/2000/distance`, `device=0/30000`.
    fn from_str(text: &str) -> Result<Self, DelaySpecError> {
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

/// `4M/16`: bytes (with K, M or G) and ways.
fn cache(text: &str) -> Result<CacheModel, DelaySpecError> {
    let model = text.split_once('/').and_then(|(bytes, ways)| {
        Some(CacheModel {
            bytes: size::parse(bytes, 1)?,
            ways: digits(ways)?,
        })
    });
    model
        .filter(|CacheModel { bytes, ways }| {
            (1..=64).contains(ways) && *bytes >= 64 * u64::from(*ways) && *bytes <= 1 << 32
        })
        .ok_or_else(|| DelaySpecError::Cache(text.to_owned()))
}

/// `500/2000`: nanoseconds within a node, and between nodes; `500/2000/distance`: between the nearest ones, others in proportion
/// to their distance.
fn by_side(text: &str, fault: fn(String) -> DelaySpecError) -> Result<NodeDelay, DelaySpecError> {
    let plain = text.strip_suffix("/distance");
    let (same, other) = plain
        .unwrap_or(text)
        .split_once('/')
        .ok_or_else(|| fault(text.to_owned()))?;
    Ok(NodeDelay {
        same_node_ns: nanoseconds(same)?,
        other_node_ns: nanoseconds(other)?,
        is_by_distance: plain.is_some(),
    })
}

fn digits(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

fn nanoseconds(text: &str) -> Result<u32, DelaySpecError> {
    digits(text.strip_suffix("ns").unwrap_or(text))
        .filter(|ns| *ns <= MAX_DELAY_NS)
        .ok_or_else(|| DelaySpecError::Nanoseconds(text.to_owned()))
}
