//! A table of a report on a screen: columns that fit, rows that scroll, one that is selected.

use nearfar_report::Role;
use nearfar_report::document::{Align, Table, Text};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

const GAP: usize = 2;
/// Text columns are not made narrower than this.
const MIN_TEXT: usize = 8;
/// The same for the first of them, which has names.
const MIN_NAME: usize = 16;
/// What stands before the selected row: colour alone says nothing to many.
const MARK: &str = ">";

/// How roles look.
#[derive(Clone, Copy)]
pub struct Look {
    pub has_colour: bool,
}

impl Look {
    pub fn style(self, role: Role) -> Style {
        let style = Style::default();
        let colour = |colour| match self.has_colour {
            true => style.fg(colour),
            false => style,
        };
        match role {
            Role::Plain | Role::Code | Role::Value => style,
            Role::Heading => style.add_modifier(Modifier::BOLD),
            Role::Dim => style.add_modifier(Modifier::DIM),
            Role::Subject => colour(Color::Cyan),
            Role::Local | Role::Near => colour(Color::Green),
            Role::Middling => colour(Color::Yellow),
            Role::Far => colour(Color::Red).add_modifier(Modifier::BOLD),
            Role::Notice => colour(Color::Blue),
            Role::Warning => colour(Color::Yellow),
            Role::Critical => colour(Color::Red),
        }
    }

    /// A text as a line.
    pub fn line(self, text: &Text) -> Line<'static> {
        Line::from_iter(self.spans(text))
    }

    fn spans(self, text: &Text) -> Vec<Span<'static>> {
        let span = |it: &nearfar_report::document::Span| {
            Span::styled(it.text.clone(), self.style(it.role))
        };
        text.spans().iter().map(span).collect()
    }
}

/// The line of headings and the rows, in `width` columns; the columns that do not fit are left out from the right.
pub fn lines(
    table: &Table,
    width: usize,
    selected: Option<usize>,
    look: Look,
) -> (Line<'static>, Vec<Line<'static>>) {
    let widths = widths(table, width.saturating_sub(MARK.len()));
    let heads = table
        .columns()
        .iter()
        .map(|(head, _)| Role::Heading.text(head));
    let heads: Vec<Text> = heads.collect();
    let row = |cells: &[Text], is_selected: bool| {
        let mark = if is_selected { MARK } else { " " };
        let mut spans = vec![Span::raw(mark)];
        for ((cell, &width), (_, align)) in cells.iter().zip(&widths).zip(table.columns()) {
            spans.extend(padded(cell, width, *align, look));
        }
        let line = Line::from(spans);
        match is_selected {
            true => line.style(Style::default().add_modifier(Modifier::REVERSED)),
            false => line,
        }
    };
    let rows = table.rows().iter().enumerate();
    let rows = rows.map(|(index, cells)| row(cells, selected == Some(index)));
    (row(&heads, false), rows.collect())
}

fn padded(cell: &Text, width: usize, align: Align, look: Look) -> Vec<Span<'static>> {
    let is_cut = cell.columns() > width;
    let first = match is_cut {
        true => cut(cell, width),
        false => cell.clone(),
    };
    let free = width.saturating_sub(first.columns());
    let (before, after) = match align {
        Align::Right => (free, GAP),
        Align::Left => (0, free + GAP),
    };
    let mut spans = vec![Span::raw(" ".repeat(before))];
    spans.extend(look.spans(&first));
    spans.push(Span::raw(" ".repeat(after)));
    spans
}

/// The begin of a text and a mark that there is more.
fn cut(text: &Text, width: usize) -> Text {
    const MORE: &str = "+";
    let mut rest = width.saturating_sub(MORE.len());
    let mut out = Text::default();
    for span in text.spans() {
        let mut part = String::new();
        for character in span.text.chars() {
            let columns = Text::from(character).columns();
            if columns > rest {
                return out.then(span.role, format!("{part}{MORE}"));
            }
            rest -= columns;
            part.push(character);
        }
        out = out.then(span.role, part);
    }
    out
}

/// The widths of the columns from the left that fit: text gets narrower before a column is left out.
fn widths(table: &Table, room: usize) -> Vec<usize> {
    let wanted = |column: usize| {
        let cells = table.rows().iter().filter_map(|row| row.get(column));
        let head = Text::from(&table.columns()[column].0).columns();
        cells.map(Text::columns).max().unwrap_or(0).max(head)
    };
    let mut widths: Vec<usize> = (0..table.columns().len()).map(wanted).collect();
    let is_text = |(_, align): &(String, Align)| *align == Align::Left;
    let names = table.columns().iter().position(is_text);
    let least = |column: usize, width: usize| match table.columns()[column].1 {
        Align::Left if Some(column) == names => width.min(MIN_NAME),
        Align::Left => width.min(MIN_TEXT),
        Align::Right => width,
    };
    let sum = |widths: &[usize]| widths.iter().map(|width| width + GAP).sum::<usize>();
    let narrowest = |widths: &[usize]| -> Vec<usize> {
        let widths = widths.iter().enumerate();
        widths
            .map(|(column, &width)| least(column, width))
            .collect()
    };
    let is_empty = |column: usize| {
        let mut cells = table.rows().iter().filter_map(|row| row.get(column));
        cells.all(Text::is_empty)
    };
    while widths.len() > 1 && !table.is_empty() && is_empty(widths.len() - 1) {
        widths.pop();
    }
    while widths.len() > 1 && sum(&narrowest(&widths)) > room + GAP {
        widths.pop();
    }
    let mut over = sum(&widths).saturating_sub(room + GAP);
    while over > 0 {
        let widest = (0..widths.len())
            .filter(|&column| widths[column] > least(column, widths[column]))
            .max_by_key(|&column| widths[column]);
        let Some(widest) = widest else { break };
        widths[widest] -= 1;
        over -= 1;
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::of([">pid", "task", ">CPU %", "kept by"]);
        let cells = ["17", "a-task-of-15-by", "100.0", "affinity CPUs 0-63"];
        table.row(cells.map(Text::from));
        table
    }

    fn text(line: &Line<'_>) -> String {
        line.spans
            .iter()
            .map(|span| span.content.as_ref())
            .collect()
    }

    #[test]
    fn text_gets_narrower_and_columns_that_do_not_fit_are_left_out() {
        let look = Look { has_colour: false };
        let shown = |width| {
            let (head, rows) = lines(&table(), width, Some(0), look);
            (
                text(&head).trim_end().to_owned(),
                text(&rows[0]).trim_end().to_owned(),
            )
        };
        assert_eq!(
            shown(80).1,
            "> 17  a-task-of-15-by  100.0  affinity CPUs 0-63"
        );
        assert_eq!(shown(40).1, "> 17  a-task-of-15-by  100.0  affinity +");
        assert_eq!(shown(24).0, " pid  task");
        assert_eq!(shown(3).0, " pid");
    }

    proptest::proptest! {
        #[test]
        fn no_width_panics_and_what_is_left_fits(width in 30usize..300, cell in "\\PC{0,40}") {
            let mut table = table();
            table.row(["1".to_owned(), cell.clone(), "2".to_owned(), cell].map(Text::from));
            let (_, rows) = lines(&table, width, None, Look { has_colour: true });
            for row in rows {
                proptest::prop_assert!(row.width() <= width + GAP);
            }
        }
    }
}
