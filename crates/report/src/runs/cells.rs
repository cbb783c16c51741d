//! The cells of a run in tables: how they become rows and columns, and how their figures are written, in one unit, each with the
//! digits that mean something.
//!
//! ```text
//!  factors  preferred_node  numa_balancing  memory_node  cpu_node        the last one that varies: columns
//!  cells    -1  0  0  0 ...                                              the others that vary: rows
//!                                                                        those that do not: in the remark
//! ```

use nearfar_bench::step::Step;
use nearfar_runs::{Cell, CellSummary, Factor, Metric, MetricSummary};

use super::Shown;
use crate::amount::{decimals, figure, or, scaled};
use crate::document::{Align, Document, Table, Text};
use crate::style::Role;

/// A column of a table with a row a cell: its heading, and its text in a cell.
pub(crate) struct Column<'a> {
    head: String,
    align: Align,
    text: Box<dyn Fn(&CellSummary) -> Text + 'a>,
}

impl<'a> Column<'a> {
    /// A column that says which cell a row is.
    pub(crate) fn named(head: &str, role: Role, name: impl Fn(&Cell) -> String + 'a) -> Self {
        Self {
            head: head.to_owned(),
            align: Align::Left,
            text: Box::new(move |cell| role.text(name(&cell.cell))),
        }
    }

    /// How many samples of a cell are so; nothing for none.
    pub(crate) fn counted(head: &str, role: Role, number: fn(&CellSummary) -> usize) -> Self {
        let text = move |cell: &CellSummary| or(Some(number(cell)).filter(|it| *it > 0), "");
        Self {
            head: head.to_owned(),
            align: Align::Right,
            text: Box::new(move |cell| role.text(text(cell))),
        }
    }
}

impl<'a> Shown<'a> {
    pub(crate) fn layout(&self) -> Layout {
        Layout::of(&self.detail.factors, self.cells)
    }

    /// A declared metric; `None` for a run without it.
    pub(crate) fn metric(&self, name: &str) -> Option<&'a Metric> {
        self.detail.metrics.iter().find(|it| it.name == name)
    }

    /// What the samples of a cell say of a metric; `None` for a run without the metric.
    pub(crate) fn column(
        &self,
        name: &str,
        head: &str,
        text: impl Fn(&MetricSummary) -> Option<String> + 'a,
    ) -> Option<Column<'a>> {
        let metric = self.metric(name)?;
        let of_cell =
            move |cell: &CellSummary| or(cell.metric(&metric.name).and_then(&text), "").into();
        Some(Column {
            head: head.to_owned(),
            align: Align::Right,
            text: Box::new(of_cell),
        })
    }

    /// Medians of a metric, below its unit; the heading of a rate says what is counted a second.
    pub(crate) fn medians(&self, name: &str, head: &str) -> Option<Column<'a>> {
        let written = Written::of(self, self.metric(name)?);
        let head = match written.unit {
            "" | "1/s" => head.to_owned(),
            unit => format!("{head} {unit}"),
        };
        self.column(name, &head, move |it| Some(written.text(it.median?)))
    }

    /// How many samples have a value of a metric.
    pub(crate) fn counts(&self, name: &str, head: &str) -> Option<Column<'a>> {
        self.column(name, head, |it| Some(it.samples.to_string()))
    }

    /// The intervals of a metric's medians.
    pub(crate) fn intervals(&self, name: &str, head: &str) -> Option<Column<'a>> {
        let written = Written::of(self, self.metric(name)?);
        let text = move |it: &MetricSummary| {
            let interval = it.confidence?;
            Some(written.interval(interval.low, interval.high))
        };
        self.column(name, head, text)
    }
}

/// A row a cell; columns of metrics that the run does not have are left out.
pub(crate) fn cell_table<'c, 'a>(
    cells: impl IntoIterator<Item = &'c CellSummary>,
    columns: impl IntoIterator<Item = Option<Column<'a>>>,
) -> Table {
    let columns: Vec<Column<'_>> = columns.into_iter().flatten().collect();
    let heads: Vec<_> = columns.iter().map(|it| (&it.head, it.align)).collect();
    let mut table = Table::new(&heads);
    for cell in cells {
        table.row(columns.iter().map(|it| (it.text)(cell)));
    }
    table
}

/// Cells in rows and columns.
pub(crate) struct Layout {
    /// The factors that vary.
    pub(crate) heads: Vec<String>,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
    /// The factors that do not vary.
    pub(crate) remark: String,
}

/// Cells that differ in the last factor only.
pub(crate) struct Row {
    pub(crate) names: Vec<String>,
    /// Places in the list of cells, by column.
    pub(crate) cells: Vec<Option<usize>>,
}

/// The levels that occur, in the order of cells.
fn levels(cells: &[CellSummary], factor: &str) -> Vec<String> {
    let mut levels: Vec<String> = Vec::new();
    for cell in cells {
        let level = cell.cell.text(factor);
        if !levels.contains(&level) {
            levels.push(level);
        }
    }
    levels
}

impl Layout {
    /// The cells of a run, in their order.
    pub(crate) fn of(factors: &[Factor], cells: &[CellSummary]) -> Self {
        let factors = factors.iter();
        let factors = factors.map(|it| (it.name.clone(), levels(cells, &it.name)));
        let (varied, fixed): (Vec<_>, Vec<_>) = factors.partition(|(_, levels)| levels.len() > 1);
        let fixed = fixed.iter().filter_map(|(name, levels)| {
            let level = levels.first().filter(|it| !it.is_empty())?;
            Some(format!("{name} {level}"))
        });
        let remark = match fixed.collect::<Vec<_>>().as_slice() {
            [] => String::new(),
            fixed => format!("In all cells: {}.", fixed.join(", ")),
        };
        // One factor alone is a column of rows: levels can be many.
        let columns = match varied.as_slice() {
            [.., _, (_, levels)] => levels.clone(),
            _ => vec!["median".to_owned()],
        };
        let mut layout = Self {
            heads: varied.into_iter().map(|(name, _)| name).collect(),
            columns,
            rows: Vec::new(),
            remark,
        };
        for (index, cell) in cells.iter().enumerate() {
            let mut names = layout.names_of(&cell.cell);
            let column = match names.len() {
                2.. => names.pop(),
                _ => layout.columns.first().cloned(),
            };
            layout.place(index, names, column);
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
            columns: levels(cells, factor),
            rows: Vec::new(),
            remark: String::new(),
        };
        for (index, cell) in cells.iter().enumerate() {
            let names = vec![name(&cell.cell)];
            layout.place(index, names, Some(cell.cell.text(factor)));
        }
        layout
    }

    fn place(&mut self, index: usize, names: Vec<String>, column: Option<String>) {
        let mut columns = self.columns.iter();
        let Some(column) = columns.position(|it| Some(it) == column.as_ref()) else {
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
        self.heads.iter().map(|head| cell.text(head)).collect()
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

    /// Says which levels all cells have.
    pub(crate) fn remark_in(&self, out: &mut Document) {
        if !self.remark.is_empty() {
            out.remark(&self.remark);
        }
    }

    /// A column of a table for each factor that varies.
    pub(crate) fn names<'c>(&self) -> impl Iterator<Item = Column<'c>> {
        self.heads
            .iter()
            .cloned()
            .map(|head| Column::named(&head.clone(), Role::Subject, move |cell| cell.text(&head)))
    }

    /// The levels of a cell in the factors that vary.
    pub(crate) fn varied(&self, cell: &Cell) -> Cell {
        cell.only(|factor| self.heads.iter().any(|head| head == factor))
    }

    /// What a step compares: the factor, its level of both sides, and the levels of the other factors that vary.
    pub(crate) fn compared(&self, step: &Step) -> [String; 4] {
        let factor = &step.factor;
        let others = self.varied(&step.b).only(|it| it != factor);
        let [from, to] = [&step.a, &step.b].map(|it| it.text(factor));
        [factor.clone(), from, to, others.to_string()]
    }
}

/// The unit and the digits of a metric's figures in one run.
#[derive(Clone, Copy)]
pub(crate) struct Written<'a> {
    metric: &'a Metric,
    pub(crate) unit: &'a str,
    divisor: f64,
    decimals: usize,
}

impl<'a> Written<'a> {
    /// By the largest sample.
    pub(crate) fn of(shown: &Shown<'_>, metric: &'a Metric) -> Self {
        let cells = shown.cells.iter();
        let figures = cells.filter_map(|cell| cell.metric(&metric.name)?.moments);
        let largest = figures
            .map(|it| it.max.abs().max(it.min.abs()))
            .fold(0.0, f64::max);
        let (divisor, unit) = scaled(&metric.unit, largest);
        Self {
            metric,
            unit,
            divisor,
            decimals: decimals(largest / divisor),
        }
    }

    /// In the unit.
    pub(crate) fn number(&self, value: f64) -> f64 {
        value / self.divisor
    }

    /// Without the unit.
    pub(crate) fn text(&self, value: f64) -> String {
        figure(self.number(value), self.decimals)
    }

    /// `1.5 to 2.5`.
    pub(crate) fn interval(&self, low: f64, high: f64) -> String {
        format!("{} to {}", self.text(low), self.text(high))
    }

    /// The name of the metric with the unit.
    pub(crate) fn title(&self) -> String {
        match self.unit {
            "" => self.metric.name.clone(),
            unit => format!("{} ({unit})", self.metric.name),
        }
    }
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
            failures: Vec::new(),
            warnings: Vec::new(),
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
            (layout.column_head(), layout.columns.len()),
            ("memory_node", 3)
        );
        assert_eq!(layout.remark, "In all cells: load 60.");
        let places: Vec<_> = layout.rows.iter().map(|row| row.cells.clone()).collect();
        assert_eq!(
            places,
            [[Some(0), Some(1), Some(2)], [Some(3), Some(4), Some(5)]]
        );
    }

    #[test]
    fn one_factor_is_a_column_of_rows_and_none_is_one_cell() {
        let factors = [Factor::new("side", ["a", "b"])];
        let layout = Layout::of(&factors, &summaries(Cell::all(&factors)));
        let names: Vec<_> = layout.rows.iter().map(|row| row.names.join(" ")).collect();
        assert_eq!(
            (names, layout.column_head()),
            (vec!["a".to_owned(), "b".to_owned()], "")
        );
        let alone = Layout::of(&[], &summaries(vec![Cell::new()]));
        assert_eq!((alone.rows.len(), alone.row_heads().len()), (1, 0));
    }
}
