//! The contestants, and the goals of `Auto` against each.

use nearfar_tags::Policy;
use serde::Serialize;

use crate::dpdk::Mempool;
use crate::loops::Contestant;
use crate::peers::{ArrayQueue, Channel, Locked, ParkingLot, Waiting, tags};
use crate::regimes::{Cell, Regime};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Auto,
    AutoWithoutRseq,
    Bitmap,
    Stock,
    Limit,
    LimitTopology,
    CoarseLlc,
    /// crossbeam-queue's ArrayQueue
    ArrayQueue,
    /// crossbeam-channel's bounded channel
    Channel,
    /// A stack in the standard library's Mutex
    Mutex,
    /// The same with its Condvar
    MutexCondvar,
    /// A stack in parking_lot's Mutex
    ParkingLot,
    /// DPDK's rte_mempool with a cache of 16
    Mempool,
}

impl Kind {
    /// # Errors
    /// Why there is none here.
    pub fn make(self, count: u32) -> Result<Box<dyn Contestant>, String> {
        let ours = |policy| tags(count, policy, |builder| builder);
        let ours: Result<_, nearfar_tags::BuildError> = match self {
            Self::Auto => ours(Policy::Auto),
            Self::AutoWithoutRseq => tags(count, Policy::Auto, |builder| builder.without_rseq()),
            Self::Bitmap => ours(Policy::Bitmap),
            Self::Stock => ours(Policy::Stock),
            Self::Limit => ours(Policy::Limit),
            Self::LimitTopology => ours(Policy::LimitTopology),
            Self::CoarseLlc => ours(Policy::Coarse(nearfar_tags::Group::Llc)),
            Self::ArrayQueue => return Ok(Box::new(ArrayQueue::new(count))),
            Self::Channel => return Ok(Box::new(Channel::new(count))),
            Self::Mutex => return Ok(Box::new(Locked::new(count))),
            Self::MutexCondvar => return Ok(Box::new(Waiting::new(count))),
            Self::ParkingLot => return Ok(Box::new(ParkingLot::new(count))),
            Self::Mempool => return Ok(Box::new(Mempool::new(count)?)),
        };
        match ours {
            Ok(tags) => Ok(Box::new(tags)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Those that are measured without `--contestant`.
    pub fn usual(regime: Regime) -> Vec<Self> {
        use Kind::*;
        let mut kinds = vec![Auto, AutoWithoutRseq, Bitmap];
        kinds.extend_from_slice(match regime {
            Regime::Blocking | Regime::Fairness => &[Channel, MutexCondvar][..],
            _ => &[ArrayQueue, Mempool, Mutex, ParkingLot],
        });
        kinds
    }

    /// Whether it has what the regime does.
    pub fn can(self, regime: Regime) -> bool {
        use Kind::*;
        let waits = matches!(regime, Regime::Blocking | Regime::Fairness);
        !waits || !matches!(self, ArrayQueue | Mutex | ParkingLot | Mempool)
    }

    /// What the time of `Auto` has to be at most: by this contestant's, or, of `Auto` itself, in nanoseconds. Of fairness, what the
    /// share has to be at least.
    pub fn goal(self, cell: Cell) -> Option<f64> {
        match (cell.regime, self, cell.threads) {
            (Regime::Plenty, Self::Auto, 1) => Some(3.0),
            (Regime::Plenty, Self::Mempool, _) => Some(0.5),
            (Regime::Plenty, Self::ArrayQueue | Self::Bitmap, 1) => Some(0.25),
            (Regime::Plenty, Self::ArrayQueue, _) => Some(0.1),
            (Regime::Plenty, Self::Bitmap, _) => Some(0.25),
            (Regime::Cross, Self::ArrayQueue, _) => Some(0.3),
            (Regime::Cross, Self::Mempool, 2) => Some(0.8),
            (Regime::Cross, Self::Mempool, 8) => Some(0.5),
            (Regime::Saturated, Self::ArrayQueue, 1 | 2) => Some(1.0),
            (Regime::Saturated, Self::ArrayQueue, _) => Some(0.85),
            (Regime::Blocking, Self::MutexCondvar, _) => Some(1.05),
            (Regime::Blocking, Self::Channel, _) => Some(1.0),
            (Regime::Fairness, Self::Auto, _) => Some(0.5),
            _ => None,
        }
    }
}
