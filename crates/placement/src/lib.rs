//! Pure answers about locality: nothing in here reads or changes a system, every answer follows from the
//! [`nearfar_machine::Machine`] it is given.
//!
//! ```text
//!  near ─────────────► spread           which CPU serves queue 0, 1, 2 ...
//!   │           ├────► audit ──► plan   what is far, and the typed changes that bring it near
//!   │           └────► tasks            whose memory is far, what it costs, which remedy fits
//!   └─► locality ───────┘ │
//!   path ─────────────────┘             which NVMe path an I/O policy takes
//! ```

pub mod audit;
mod fallback;
pub mod locality;
mod near;
pub mod pairs;
pub mod path;
pub mod plan;
pub mod spread;
pub mod tasks;

pub use near::{nearest_cpus, nodes_by_distance};
