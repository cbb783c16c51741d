//! What makes samples worth less, as far as the samples themselves show it.

use std::fmt;

use nearfar_statistics::Summary;
use serde::{Deserialize, Serialize};

/// Samples of an item below which its median has no use without a warning.
pub(super) const MIN_SAMPLES: usize = 5;

/// A warning about a sampling.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Warning {
    /// More than one in twenty samples is an outlier among those of its item.
    Outliers {
        /// How many.
        outliers: usize,
        /// Of how many.
        samples: usize,
    },
    /// The budget ran out before every item had the samples it should have.
    CutShort {
        /// Samples the item with fewest has.
        samples: usize,
        /// Samples it should have.
        wanted: usize,
    },
    /// The sampling was cancelled before every item had the samples it should have.
    Cancelled {
        /// Samples the item with fewest has.
        samples: usize,
        /// Samples it should have.
        wanted: usize,
    },
    /// More than one in twenty attempts gave no sample.
    Lost {
        /// How many.
        lost: usize,
        /// Of how many.
        attempts: usize,
    },
}

/// Whether more than one in twenty is concerned.
pub(super) fn too_many(concerned: usize, all: usize) -> bool {
    concerned > all / 20
}

/// A warning where too many samples are outliers among those of their item. All of them stay in the figures.
pub fn outliers<'a>(items: impl IntoIterator<Item = &'a [f64]>) -> Option<Warning> {
    let (mut outliers, mut samples) = (0, 0);
    for item in items {
        outliers += Summary::of(item).map_or(0, |summary| summary.outliers);
        samples += item.len();
    }
    too_many(outliers, samples).then_some(Warning::Outliers { outliers, samples })
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outliers { outliers, samples } => write!(
                f,
                "{outliers} of {samples} samples are outliers; the medians are hardly affected, but something disturbed \
                 the machine"
            ),
            Self::CutShort { samples, wanted } => write!(
                f,
                "the time budget ended after {samples} of {wanted} samples; a larger budget gives narrower intervals"
            ),
            Self::Cancelled { samples, wanted } => {
                write!(f, "interrupted after {samples} of {wanted} samples")
            }
            Self::Lost { lost, attempts } => write!(
                f,
                "{lost} of {attempts} attempts at a sample took too long and are not in the figures: the machine is busy"
            ),
        }
    }
}
