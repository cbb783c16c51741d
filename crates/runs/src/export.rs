//! Runs for other programs.
//!
//! ```text
//!                 ┌─► Table: a row a sample, a column a factor, a metric, a scalar of a sample's detail ─► CSV, Parquet
//!  Store ─► Whole ┤
//!                 └─► JSON with everything, the machine as well ─► Store::import elsewhere
//! ```

mod csv;
mod flat;
mod import;
mod parquet;
mod table;
mod whole;

pub use csv::write as write_csv;
pub use import::{Contradiction, ImportError, Imported, SCHEMA};
pub use parquet::{DEFINITIONS, ParquetWriter, read_parquet, write as write_parquet};
pub use table::{Column, ColumnValues, Renamed, Table, TooWide, is_column_of_run};
pub use whole::Whole;
