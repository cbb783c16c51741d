//! One matrix of figures, before it is decided whether it becomes text or a picture.

use crate::heat::Scale;
use crate::layout::{Cell, Grid, Side};
use crate::style::{Role, Style};
use crate::wrapping::columns as width;

/// A matrix with its heading.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) remark: String,
    /// What rows and columns are: "node", "CPU".
    pub(super) corner: &'static str,
    pub(super) rows: Vec<String>,
    pub(super) columns: Vec<String>,
    /// By row, then column.
    pub(super) cells: Vec<Vec<Option<Figure>>>,
    pub(super) scale: Scale,
    /// What the scale is over where it is not the figures themselves, as it stands behind "linear scale".
    pub(super) scale_of: &'static str,
    /// A heat as the legend writes it, with its unit.
    pub(super) legend: fn(f64) -> String,
}

/// One figure of a matrix.
pub(super) struct Figure {
    /// What decides the colour: more is worse.
    pub(super) heat: f64,
    /// The figure.
    pub(super) value: String,
    /// How far samples spread, or what stands beside the figure.
    pub(super) beside: String,
    /// Everything known about it, for whoever points at it.
    pub(super) about: String,
}

impl Panel {
    /// The matrix as lines: where it is too wide, blocks of columns one below the other.
    pub(super) fn lines(&self, style: &Style) -> String {
        let texts: Vec<Vec<(Role, String)>> =
            self.cells.iter().map(|row| self.texts(row)).collect();
        let column_width = |column: usize| {
            let cells = texts
                .iter()
                .filter_map(|row| row.get(column))
                .map(|(_, text)| width(text));
            cells
                .chain([width(&self.columns[column])])
                .max()
                .unwrap_or(0)
        };
        let label = self
            .rows
            .iter()
            .map(|row| width(row))
            .chain([self.corner.len()])
            .max()
            .unwrap_or(0);
        let room = style.columns().saturating_sub(2 + label);
        let mut out = String::new();
        let mut start = 0;
        while start < self.columns.len() {
            let (mut end, mut taken) = (start, 0);
            while end < self.columns.len()
                && (end == start || taken + 2 + column_width(end) <= room)
            {
                taken += 2 + column_width(end);
                end += 1;
            }
            out.push_str(&self.block(&texts, start..end, style));
            start = end;
        }
        out
    }

    fn texts(&self, row: &[Option<Figure>]) -> Vec<(Role, String)> {
        let text = |figure: &Option<Figure>| match figure {
            None => (Role::Dim, "-".to_owned()),
            Some(figure) => (
                self.scale.role(figure.heat),
                format!("{}{}", figure.value, figure.beside),
            ),
        };
        row.iter().map(text).collect()
    }

    fn block(
        &self,
        texts: &[Vec<(Role, String)>],
        range: std::ops::Range<usize>,
        style: &Style,
    ) -> String {
        let mut columns = vec![(self.corner, Side::Right)];
        columns.extend(
            self.columns[range.clone()]
                .iter()
                .map(|column| (column.as_str(), Side::Right)),
        );
        let mut grid = Grid::new(&columns);
        for (label, row) in self.rows.iter().zip(texts) {
            let cells = row[range.clone()]
                .iter()
                .map(|(role, text)| Cell::new(*role, text));
            grid.row(
                std::iter::once(Cell::new(Role::Heading, label))
                    .chain(cells)
                    .collect(),
            );
        }
        grid.render(style)
    }
}
