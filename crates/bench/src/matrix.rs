//! The matrix of the probe under load: preferred node x NUMA balancing x memory x CPUs.
//!
//! ```text
//! machine, selection ──► choose ──► cells ──► one run of the frame (nearfar_experiment)
//!                                               │  each sample: start the probe, keeper if a node is preferred,
//!                                               │  prepare, trace, go, collect
//!                                               ▼
//! Answer ◄── rows, findings, warnings ◄──────── samples         pure: a stored run gives the same answer again
//! ```

mod answer;
mod calibrate;
mod cell;
mod choose;
mod declared;
mod explained;
mod findings;
mod frame;
mod kernel;
mod loading;
mod preferring;
mod sample;
pub mod stored;
mod summary;
mod take;

pub use answer::{Answer, KernelSetting, Parameters};
pub(crate) use calibrate::calibrate;
pub use cell::{MatrixCell, Policy};
pub use choose::{Balancing, Chosen, LeftOut, NoCells, Places, Selection, choose};
pub use declared::DECLARATION;
pub(crate) use declared::ENTRY;
pub use explained::{Estimate, Explained, explain};
pub use findings::{Contrast, Findings, Question, Ratio, findings};
pub use frame::EXPERIMENT;
pub use kernel::is_balancing;
pub use sample::{Kept, KeptBy, RunFailed, Sample, Taken};
pub use summary::{Migrated, Row, rows, warnings};
pub use take::{Matrix, load_cpus, places};
