//! Runs side by side: what differs in how they were made, and in what they measured.
//!
//! ```text
//!  stored run, exported JSON ──► Side::of_run ─┐           ┌─► differences   machine, kernel, parameters, emulation, metrics
//!  CSV, Parquet ─► Columns ────► Side::of_rows ├─► compare ┤
//!  levels of a factor ─────────► Side::by ─────┤           └─► rows          a verdict a cell and metric (nearfar-statistics)
//!  several runs ───────────────► Side::pooled ─┘
//! ```
//!
//! And what a command answered on two sides: [`answers`].
//!
//! Pure but for the parsers of files. Draws nothing; decides nothing about statistics.

pub mod answers;
pub mod bisection;
mod comparison;
mod difference;
mod side;

pub use comparison::{
    Attempts, Comparison, FailedCell, OneSided, Options, Row, RunWarning, SideSummary, compare,
};
pub use difference::{CompareError, Difference, Kind, leaves};
pub use nearfar_statistics::compare::DEFAULT_MARGIN;
pub use side::{Columns, Definitions, Side};
