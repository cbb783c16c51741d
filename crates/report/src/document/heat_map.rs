//! A matrix of figures whose colours say how bad they are.

use std::ops::Range;

use super::{Align, Scale, Table, Text};
use crate::style::Role;

/// A matrix with its colours.
#[derive(Clone, Debug)]
pub struct HeatMap {
    pub title: String,
    pub remark: String,
    /// What the names of rows are, such as `node`; several where rows are combinations.
    pub row_heads: Vec<String>,
    /// What columns are, on pages; empty where the remark says it.
    pub column_head: String,
    /// The names of a row, as many as `row_heads`.
    pub rows: Vec<Vec<String>>,
    pub columns: Vec<String>,
    /// By row, then column.
    pub cells: Vec<Vec<Option<HeatCell>>>,
    pub scale: Scale,
    /// What the scale is over where it is not the figures themselves; written behind `linear scale`.
    pub scale_of: &'static str,
    /// The figure of each step as the legend writes it, with its unit: [`Scale::legend`].
    pub legend: Vec<String>,
}

/// One figure of a matrix.
#[derive(Clone, Debug, Default)]
pub struct HeatCell {
    /// What decides the colour: more is worse.
    pub heat: f64,
    /// The figure.
    pub value: String,
    /// How far samples spread, as it follows the figure: ` ±3`.
    pub spread: String,
    /// The interval of the figure where there is one, low and high: pages write it instead of the spread.
    pub interval: Option<(String, String)>,
    /// Everything known about it, shown when a pointer rests on it.
    pub about: String,
}

impl HeatCell {
    /// A figure without a spread.
    pub fn of(heat: f64, value: impl ToString) -> Self {
        let value = value.to_string();
        Self {
            heat,
            value,
            ..Self::default()
        }
    }
}

impl HeatMap {
    /// A map without rows, whose legend writes figures so.
    pub fn of(scale: Scale, figure: impl Fn(f64) -> String) -> Self {
        Self {
            title: String::new(),
            remark: String::new(),
            row_heads: Vec::new(),
            column_head: String::new(),
            rows: Vec::new(),
            columns: Vec::new(),
            cells: Vec::new(),
            scale,
            scale_of: "",
            legend: scale.legend(figure),
        }
    }

    /// Some of its columns as a table.
    pub(super) fn table(&self, columns: Range<usize>) -> Table {
        let heads = self.row_heads.iter().chain(&self.columns[columns.clone()]);
        let heads: Vec<_> = heads.map(|head| (head, Align::Right)).collect();
        let mut table = Table::new(&heads);
        for (names, cells) in self.rows.iter().zip(&self.cells) {
            let names = names.iter().map(|name| Role::Heading.text(name));
            let cells = cells[columns.clone()].iter();
            table.row(names.chain(cells.map(|cell| self.text(cell.as_ref()))));
        }
        table
    }

    fn text(&self, cell: Option<&HeatCell>) -> Text {
        let Some(cell) = cell else {
            return Role::Dim.text("-");
        };
        let role = match cell.heat.is_finite() {
            true => self.scale.role(cell.heat),
            false => Role::Plain,
        };
        role.text(format!("{}{}", cell.value, cell.spread))
    }

    /// Names of rows that are plain words or numbers.
    pub fn names<T: ToString>(names: impl IntoIterator<Item = T>) -> Vec<Vec<String>> {
        let names = names.into_iter();
        names.map(|name| vec![name.to_string()]).collect()
    }
}
