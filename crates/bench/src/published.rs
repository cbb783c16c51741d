//! Figures of others, read from a file, and whether they rank the cells of a run the same way.
//!
//! ```text
//! file ─► lines ─► Table          the experiment says which columns there are and what a line's cells are
//! Table + run ───► Agreement      one for each column of figures and set of levels that the table does not have
//! ```
//!
//! Absolute figures of another machine cannot be compared with those of a run; their order can.

mod agreement;
mod lines;

pub use agreement::{Agreement, Between, ByRound, LeftOut, Pair, PublishedLaw};
pub(crate) use agreement::{Ranked, not_published};
pub use lines::PublishedError;
pub(crate) use lines::{Columns, Line, Lines, Row};
