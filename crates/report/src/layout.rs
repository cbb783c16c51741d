//! Text laid out in columns, the way lscpu and ip do it: no boxes, two spaces between, wide columns wrapped.

use crate::style::{Role, Style};
use crate::wrapping::{clean, columns, wrap};

/// One cell: its text and what it is.
#[derive(Clone, Default)]
pub(crate) struct Cell {
    text: String,
    role: Role,
}

impl Cell {
    /// Foreign text in a role; made fit for a terminal.
    pub(crate) fn new(role: Role, text: impl AsRef<str>) -> Self {
        Self {
            text: clean(text.as_ref()),
            role,
        }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(Role::Plain, text)
    }
}

/// On which side of its column a cell stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Rows of cells below a line of headings.
pub(crate) struct Grid {
    indent: usize,
    gap: usize,
    sides: Vec<Side>,
    headings: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// A grid with these columns; without any heading text no line of headings is written.
    pub(crate) fn new(columns: &[(&str, Side)]) -> Self {
        Self {
            indent: 2,
            gap: 2,
            sides: columns.iter().map(|(_, side)| *side).collect(),
            headings: columns
                .iter()
                .map(|(heading, _)| Cell::new(Role::Dim, heading))
                .collect(),
            rows: Vec::new(),
        }
    }

    /// Sets how far it stands from the left edge.
    pub(crate) fn indent(mut self, indent: usize) -> Self {
        self.indent = indent;
        self
    }

    /// Adds a row; cells beyond the columns are dropped.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The grid as lines. Columns in which no row has anything are left out.
    pub(crate) fn render(&self, style: &Style) -> String {
        let used: Vec<usize> = (0..self.sides.len())
            .filter(|&column| {
                self.rows
                    .iter()
                    .any(|row| row.get(column).is_some_and(|cell| !cell.text.is_empty()))
            })
            .collect();
        let widths = self.widths(&used, style);
        let mut out = String::new();
        if used
            .iter()
            .any(|&column| !self.headings[column].text.is_empty())
        {
            self.write_row(&mut out, &self.headings, &used, &widths, style);
        }
        for row in &self.rows {
            self.write_row(&mut out, row, &used, &widths, style);
        }
        out
    }

    /// The width of each used column: what it needs, or for the widest ones what is left.
    fn widths(&self, used: &[usize], style: &Style) -> Vec<usize> {
        let cells = || std::iter::once(&self.headings).chain(&self.rows);
        let needs = |&column: &usize| {
            cells()
                .filter_map(|row| row.get(column))
                .map(|cell| columns(&cell.text))
                .max()
        };
        let needed: Vec<usize> = used
            .iter()
            .map(|column| needs(column).unwrap_or(0))
            .collect();
        let room = style
            .columns()
            .saturating_sub(self.indent + self.gap * used.len().saturating_sub(1));
        let mut cap = needed.iter().copied().max().unwrap_or(0);
        while cap > 2 && needed.iter().map(|&width| width.min(cap)).sum::<usize>() > room {
            cap -= 1;
        }
        needed.into_iter().map(|width| width.min(cap)).collect()
    }

    fn write_row(
        &self,
        out: &mut String,
        row: &[Cell],
        used: &[usize],
        widths: &[usize],
        style: &Style,
    ) {
        let empty = Cell::default();
        let wrapped: Vec<(Vec<String>, Role, Side, usize)> = used
            .iter()
            .zip(widths)
            .map(|(&column, &width)| {
                let cell = row.get(column).unwrap_or(&empty);
                (
                    wrap(&cell.text, width),
                    cell.role,
                    self.sides[column],
                    width,
                )
            })
            .collect();
        let height = wrapped
            .iter()
            .map(|(lines, ..)| lines.len())
            .max()
            .unwrap_or(0);
        for line in 0..height {
            let mut text = " ".repeat(self.indent);
            let mut pending = 0;
            for (lines, role, side, width) in &wrapped {
                let cell = lines.get(line).map_or("", String::as_str);
                let blank = width.saturating_sub(columns(cell));
                let (before, after) = if *side == Side::Right {
                    (blank, 0)
                } else {
                    (0, blank)
                };
                if !cell.is_empty() {
                    text.push_str(&" ".repeat(pending + before));
                    text.push_str(&style.paint(*role, cell));
                    pending = after + self.gap;
                } else {
                    pending += width + self.gap;
                }
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
    }
}

/// Sections put together as the whole output of a verb: without the empty line before the first.
pub(crate) fn whole(sections: String) -> String {
    sections
        .strip_prefix('\n')
        .map(str::to_owned)
        .unwrap_or(sections)
}

/// A line that heads a section, with a remark.
pub(crate) fn heading(style: &Style, title: &str, remark: &str) -> String {
    let first = if remark.is_empty() {
        title.to_owned()
    } else {
        format!("{title}  ")
    };
    format!(
        "\n{}",
        paragraph(style, 0, (Role::Heading, &first), Role::Dim, remark)
    )
}

/// Text wrapped below itself: `first` before the first line, as many spaces before the others. Where `first` takes
/// more than half of the width it stands on lines of its own.
pub(crate) fn paragraph(
    style: &Style,
    indent: usize,
    first: (Role, &str),
    role: Role,
    text: &str,
) -> String {
    let (first_role, first, text) = (first.0, clean(first.1), clean(text));
    let mut out = String::new();
    let mut line = |indent: usize, first: &str, role: Role, text: &str| {
        out.push_str(&" ".repeat(indent));
        out.push_str(&style.paint(first_role, first));
        out.push_str(&style.paint(role, text));
        out.push('\n');
    };
    let hang = indent + columns(&first);
    if hang > style.columns() / 2 {
        for part in wrap(&first, style.columns().saturating_sub(indent)) {
            line(indent, &part, role, "");
        }
        for part in wrap(&text, style.columns().saturating_sub(indent + 2))
            .iter()
            .filter(|part| !part.is_empty())
        {
            line(indent + 2, "", role, part);
        }
        return out;
    }
    for (number, part) in wrap(&text, style.columns().saturating_sub(hang))
        .iter()
        .enumerate()
    {
        match number {
            0 => line(indent, &first, role, part),
            _ => line(hang, "", role, part),
        }
    }
    out
}
