//! How cells become rows and columns.
//!
//! ```text
//!  factors  preferred_node  numa_balancing  memory_node  cpu_node        the last one that varies: columns
//!  cells    -1  0  0  0 ...                                              the others that vary: rows
//!                                                                        those that do not: in the remark
//! ```

use nearfar_runs::{Cell, CellSummary, Factor};

/// Cells in rows and columns.
pub(crate) struct Layout {
    /// The factors that vary.
    heads: Vec<String>,
    columns: Vec<String>,
    rows: Vec<Row>,
    remark: String,
}

/// Cells that differ in the last factor only.
pub(crate) struct Row {
    pub(crate) names: Vec<String>,
    /// Places in the list of cells, by column.
    pub(crate) cells: Vec<Option<usize>>,
}

impl Layout {
    /// The cells of a run, in their order.
    pub(crate) fn of(factors: &[Factor], cells: &[CellSummary]) -> Self {
        let levels = |factor: &Factor| {
            let mut levels: Vec<String> = Vec::new();
            for cell in cells {
                let level = level(&cell.cell, &factor.name);
                if !levels.contains(&level) {
                    levels.push(level);
                }
            }
            levels
        };
        let factors = factors
            .iter()
            .map(|factor| (factor.name.clone(), levels(factor)));
        let (varied, fixed): (Vec<_>, Vec<_>) = factors.partition(|(_, levels)| levels.len() > 1);
        let fixed = fixed
            .iter()
            .filter_map(|(name, levels)| Some(format!("{name} {}", levels.first()?)));
        let remark = match fixed.collect::<Vec<_>>().as_slice() {
            [] => String::new(),
            fixed => format!("In all cells: {}.", fixed.join(", ")),
        };
        let heads: Vec<String> = varied.iter().map(|(name, _)| name.clone()).collect();
        // One factor alone is a column of rows: levels can be many.
        let columns = match varied.as_slice() {
            [.., _, (_, levels)] => levels.clone(),
            _ => vec!["median".to_owned()],
        };
        let mut layout = Self {
            heads,
            columns,
            rows: Vec::new(),
            remark,
        };
        for (index, cell) in cells.iter().enumerate() {
            layout.place(index, &cell.cell);
        }
        layout
    }

    /// Cells in columns of one factor, and in rows by a name of their own.
    pub(crate) fn by(
        factor: &str,
        cells: &[CellSummary],
        row_head: &str,
        name: impl Fn(&Cell) -> String,
    ) -> Self {
        let mut layout = Self {
            heads: vec![row_head.to_owned(), factor.to_owned()],
            columns: Vec::new(),
            rows: Vec::new(),
            remark: String::new(),
        };
        for cell in cells {
            let level = level(&cell.cell, factor);
            if !layout.columns.contains(&level) {
                layout.columns.push(level);
            }
        }
        for (index, cell) in cells.iter().enumerate() {
            let level = level(&cell.cell, factor);
            layout.place_in(index, vec![name(&cell.cell)], Some(&level));
        }
        layout
    }

    fn place(&mut self, index: usize, cell: &Cell) {
        let mut names = self.names_of(cell);
        let column = match names.len() {
            2.. => names.pop(),
            _ => self.columns.first().cloned(),
        };
        self.place_in(index, names, column.as_ref());
    }

    fn place_in(&mut self, index: usize, names: Vec<String>, column: Option<&String>) {
        let mut columns = self.columns.iter();
        let Some(column) = columns.position(|it| Some(it) == column) else {
            return;
        };
        let place = self.rows.iter().position(|row| row.names == names);
        let place = place.unwrap_or_else(|| {
            let cells = vec![None; self.columns.len()];
            self.rows.push(Row { names, cells });
            self.rows.len() - 1
        });
        self.rows[place].cells[column] = Some(index);
    }

    /// The levels of a cell in the factors that vary.
    pub(crate) fn names_of(&self, cell: &Cell) -> Vec<String> {
        self.heads.iter().map(|head| level(cell, head)).collect()
    }

    /// All factors that vary.
    pub(crate) fn all_heads(&self) -> &[String] {
        &self.heads
    }

    /// The factors of rows.
    pub(crate) fn row_heads(&self) -> &[String] {
        match self.heads.as_slice() {
            [rows @ .., _] if !rows.is_empty() => rows,
            heads => heads,
        }
    }

    /// The factor of columns; empty where one factor or none varies.
    pub(crate) fn column_head(&self) -> &str {
        match self.heads.as_slice() {
            [_, .., last] => last,
            _ => "",
        }
    }

    pub(crate) fn columns(&self) -> &[String] {
        &self.columns
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The factors that do not vary.
    pub(crate) fn remark(&self) -> &str {
        &self.remark
    }
}

fn level(cell: &Cell, factor: &str) -> String {
    cell.level(factor)
        .map_or_else(String::new, ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summaries(cells: Vec<Cell>) -> Vec<CellSummary> {
        let summary = |cell| CellSummary {
            cell,
            samples: 0,
            with_warnings: 0,
            failed: 0,
            metrics: Vec::new(),
        };
        cells.into_iter().map(summary).collect()
    }

    #[test]
    fn the_last_varied_factor_makes_columns() {
        let factors = [
            Factor::new("kernel", ["6.1", "6.12"]),
            Factor::new("load", ["60"]),
            Factor::new("memory_node", ["0", "1", "F"]),
        ];
        let cells = summaries(Cell::all(&factors));
        let layout = Layout::of(&factors, &cells);
        assert_eq!(layout.row_heads(), ["kernel"]);
        assert_eq!(
            (layout.column_head(), layout.columns().len()),
            ("memory_node", 3)
        );
        assert_eq!(layout.remark(), "In all cells: load 60.");
        let places: Vec<_> = layout.rows().iter().map(|row| row.cells.clone()).collect();
        assert_eq!(
            places,
            [[Some(0), Some(1), Some(2)], [Some(3), Some(4), Some(5)]]
        );
    }

    #[test]
    fn one_factor_is_a_column_of_rows_and_none_is_one_cell() {
        let factors = [Factor::new("side", ["a", "b"])];
        let layout = Layout::of(&factors, &summaries(Cell::all(&factors)));
        let names: Vec<_> = layout
            .rows()
            .iter()
            .map(|row| row.names.join(" "))
            .collect();
        assert_eq!(
            (names, layout.column_head()),
            (vec!["a".to_owned(), "b".to_owned()], "")
        );
        let alone = Layout::of(&[], &summaries(vec![Cell::new()]));
        assert_eq!((alone.rows().len(), alone.row_heads().len()), (1, 0));
    }
}
