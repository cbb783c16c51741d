//! Parts of delays as people write them: the reverse of their `Display`.

use std::str::FromStr;

use super::{CacheModel, DistanceDelay, LineDelay, NodeDelay};
use crate::id::Distance;
use crate::size;

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
                Some(_) => by_distance(rest)?,
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
fn by_distance(text: &str) -> Option<LineDelay> {
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
        same_core_ns: None,
        same_cache_ns: None,
        by_node,
        by_distance,
        home_ns: 0,
    })
}
