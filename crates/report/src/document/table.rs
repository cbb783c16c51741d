//! Rows of cells below a line of headings.

use super::Text;

/// Cells of a row: anything that can be written, or [`Text`] in a role.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { [$($crate::document::Text::from($cell)),*] };
}
pub(crate) use cells;

/// On which side of its column the text of a cell is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    Left,
    Right,
}

/// A table. Columns in which no row has text are not written.
#[derive(Clone, Debug)]
pub struct Table {
    pub(super) caption: String,
    pub(super) indent: usize,
    pub(super) columns: Vec<(String, Align)>,
    pub(super) rows: Vec<Vec<Text>>,
}

impl Table {
    /// A table with these columns; without any heading text no line of headings is written.
    pub fn new<T: AsRef<str>>(columns: &[(T, Align)]) -> Self {
        let columns = columns
            .iter()
            .map(|(heading, align)| (crate::clean(heading.as_ref()), *align));
        Self {
            caption: String::new(),
            indent: 2,
            columns: columns.collect(),
            rows: Vec::new(),
        }
    }

    /// A table with these columns; `>` before a heading aligns its column to the right.
    pub fn of<const N: usize>(headings: [&str; N]) -> Self {
        Self::new(&headings.map(|heading| match heading.strip_prefix('>') {
            Some(heading) => (heading, Align::Right),
            None => (heading, Align::Left),
        }))
    }

    /// Sets how many columns are left free before it in a terminal.
    pub fn indent(mut self, indent: usize) -> Self {
        self.indent = indent;
        self
    }

    /// Sets what a page writes above it; the title of its section where there is none.
    pub fn caption(mut self, caption: impl AsRef<str>) -> Self {
        self.caption = crate::clean(caption.as_ref());
        self
    }

    /// Adds a row; cells beyond the columns are dropped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Text>) {
        let cells = cells.into_iter().take(self.columns.len());
        self.rows.push(cells.collect());
    }

    /// The headings, each with the side of its column.
    pub fn columns(&self) -> &[(String, Align)] {
        &self.columns
    }

    pub fn rows(&self) -> &[Vec<Text>] {
        &self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The columns in which a row has text.
    pub(super) fn used(&self) -> Vec<usize> {
        let has_text = |column: &usize| {
            self.rows
                .iter()
                .any(|row| row.get(*column).is_some_and(|cell| !cell.is_empty()))
        };
        (0..self.columns.len()).filter(has_text).collect()
    }
}
