//! A report as data: blocks in reading order, and what they are made of. Its writers are one a format.
//!
//! ```text
//!  Machine, Run, Survey, ... ──► renderer ──► Document ──┬─► to_text      a terminal of 40 columns and more
//!                                  head, headings,       ├─► to_html      one self-contained page
//!                                  paragraphs, facts,    ├─► to_markdown
//!                                  tables, heat maps,    └─► to_svg       the heat maps and charts alone
//!                                  charts, details
//! ```
//!
//! A renderer decides what is said, a writer how it looks. All foreign text passes through [`Text`], which removes control
//! characters; the writers escape markup.

#![allow(missing_docs)] // A plain field or variant is named after what it holds.

mod chart;
mod heat_map;
mod html;
mod markdown;
mod svg;
mod terminal;
mod text;

use std::fmt::Display;

use maud::Markup;
use nearfar_machine::Emulation;

use crate::style::{Role, Style};

pub use chart::{Axis, Bars, Chart, Dot, Dots, DotsRow, Line, Plot};
pub(crate) use heat_map::HOTTEST;
pub use heat_map::{HeatCell, HeatMap, Scale};
pub(crate) use svg::{heat_map as draw_heat_map, legend as draw_legend};
pub use text::{Span, Text, clean};
pub(crate) use text::{columns, cut, wrap};

/// Blocks in reading order.
#[derive(Clone, Debug, Default)]
pub struct Document {
    head: Head,
    blocks: Vec<Block>,
}

impl From<Table> for Document {
    /// A document of a table alone.
    fn from(table: Table) -> Self {
        let mut document = Self::new();
        document.table(table);
        document
    }
}

impl Document {
    /// A document without a head.
    pub fn new() -> Self {
        Self::default()
    }

    /// A document with the head of a page. [`Document::to_text`] writes of it the title and the remark.
    pub fn with_head(head: Head) -> Self {
        Self {
            head,
            blocks: Vec::new(),
        }
    }

    /// A document that begins with the title of a section.
    pub fn titled(title: impl Into<Text>, remark: impl Into<Text>) -> Self {
        let mut document = Self::new();
        document.heading(title, remark);
        document
    }

    /// Adds any block.
    pub fn push(&mut self, block: Block) {
        self.blocks.push(block);
    }

    /// Adds all blocks of another document, not its head.
    pub fn append(&mut self, other: Document) {
        self.blocks.extend(other.blocks);
    }

    /// Starts a section.
    pub fn heading(&mut self, title: impl Into<Text>, remark: impl Into<Text>) {
        self.push(Block::Heading(Heading {
            remark: remark.into(),
            ..Heading::new(2, title)
        }));
    }

    /// Starts a section with the name it has in links of a page.
    pub fn section(&mut self, id: &'static str, title: impl Into<Text>) {
        self.push(Block::Heading(Heading {
            id: Some(id),
            ..Heading::new(2, title)
        }));
    }

    /// Starts a part of a section, of level 3 or 4.
    pub fn subheading(&mut self, level: u8, title: impl Into<Text>) {
        self.push(Block::Heading(Heading::new(level, title)));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: impl Into<Text>) {
        self.push(Block::Paragraph(Paragraph::new(text)));
    }

    /// Adds a paragraph of little weight: how figures were made, what is left out.
    pub fn remark(&mut self, text: impl Display) {
        self.paragraph(Text::new(Role::Dim, text));
    }

    /// Adds how much more there is than shown, where there is more, and where to find it: `and 4 more; --format json has all of them`.
    pub fn more(&mut self, all: usize, shown: usize, elsewhere: &str) {
        if let hidden @ 1.. = all.saturating_sub(shown) {
            self.remark(format!("and {hidden} more{elsewhere}"));
        }
    }

    /// Adds a paragraph below a label: `not measured: ...`. The label ends with its own space.
    pub fn labelled(&mut self, label: impl Into<Text>, text: impl Into<Text>) {
        self.push(Block::Paragraph(Paragraph {
            label: label.into(),
            ..Paragraph::new(text)
        }));
    }

    /// Adds a paragraph so many columns from the edge of a terminal.
    pub fn indented(&mut self, indent: usize, label: impl Into<Text>, text: impl Into<Text>) {
        self.push(Block::Paragraph(Paragraph {
            indent,
            label: label.into(),
            ..Paragraph::new(text)
        }));
    }

    /// Adds the label of an emulated machine, whose figures these are; nothing for a real one.
    pub fn emulated(&mut self, emulation: Option<&Emulation>) {
        if let Some(emulation) = emulation {
            let label = Role::Notice.text("emulated: ");
            self.indented(0, label, Role::Notice.text(emulation));
        }
    }

    /// Adds a warning: what may be wrong with what is shown.
    pub fn warning(&mut self, text: impl Into<Text>) {
        self.push(Block::Warning(text.into()));
    }

    /// Adds names with a value each; values without text are left out.
    pub fn facts<N: Into<Text>, V: Into<Text>>(&mut self, facts: impl IntoIterator<Item = (N, V)>) {
        let facts = facts
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        let facts: Vec<(Text, Text)> = facts.filter(|(_, value)| !value.is_empty()).collect();
        if !facts.is_empty() {
            self.push(Block::Facts(facts));
        }
    }

    /// Adds a table; one without rows is left out.
    pub fn table(&mut self, table: Table) {
        if !table.is_empty() {
            self.push(Block::Table(table));
        }
    }

    /// Adds a heat map.
    pub fn heat_map(&mut self, map: HeatMap) {
        self.push(Block::HeatMap(map));
    }

    /// Adds a chart.
    pub fn chart(&mut self, chart: Chart) {
        self.push(Block::Chart(chart));
    }

    /// Adds a command to be pasted.
    pub fn command(&mut self, command: impl Display) {
        self.labelled_command("", command);
    }

    /// The same with what it is for, among the details of a finding.
    pub fn labelled_command(&mut self, label: &'static str, command: impl Display) {
        let command = crate::clean(&command.to_string());
        self.push(Block::Command { label, command });
    }

    /// Adds blocks that a page shows on demand.
    pub fn details(&mut self, summary: impl Into<Text>, is_open: bool, content: Document) {
        self.push(Block::Details {
            summary: summary.into(),
            is_open,
            blocks: content.blocks,
        });
    }

    /// Adds blocks in a frame of a class of severity.
    pub fn card(&mut self, class: impl Into<String>, content: Document) {
        self.push(Block::Card {
            class: class.into(),
            blocks: content.blocks,
        });
    }

    /// Adds an empty line in a terminal, where no heading makes one.
    pub fn gap(&mut self) {
        self.push(Block::Gap);
    }

    /// Adds a paragraph that a page sets off in a box.
    pub fn boxed(&mut self, text: impl Into<Text>) {
        self.push(Block::Paragraph(Paragraph {
            is_boxed: true,
            ..Paragraph::new(text)
        }));
    }

    /// Adds a drawing that only a page shows.
    pub(crate) fn picture(&mut self, markup: Markup) {
        self.push(Block::Picture(markup));
    }

    /// The document for a terminal: lines of at most `style.width` columns, coloured if `style.colour`.
    pub fn to_text(&self, style: &Style) -> String {
        terminal::whole(&self.head, &self.blocks, style)
    }

    /// The document as one HTML page that loads nothing and runs nothing.
    pub fn to_html(&self) -> String {
        html::page(&self.head, &self.blocks)
    }

    /// The document as Markdown with tables.
    pub fn to_markdown(&self) -> String {
        markdown::whole(&self.head, &self.blocks)
    }

    /// Whether [`Document::to_svg`] draws anything.
    pub fn has_drawing(&self) -> bool {
        let mut blocks = self.blocks.iter();
        blocks.any(|block| matches!(block, Block::HeatMap(_) | Block::Chart(_)))
    }

    /// Heat maps, charts, warnings and remarks as one SVG file, legible on light and dark.
    pub fn to_svg(&self) -> String {
        svg::whole(&self.head, &self.blocks)
    }
}

/// What stands above the first section.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The command or kind of report, such as `nearfar checkup`; pages only.
    pub tool: String,
    pub title: String,
    /// A line behind or below the title.
    pub remark: String,
    /// The label of an emulated machine; pages only.
    pub emulated: Option<String>,
    /// Figures that sum the report up; pages only.
    pub tiles: Vec<Tile>,
}

/// A figure in large type with what it counts.
#[derive(Clone, Debug, Default)]
pub struct Tile {
    pub figure: String,
    pub what: String,
    pub remark: String,
    /// Short labels with a class of severity each (`critical`, `warning`, `notice`, `fact`), below the figure.
    pub badges: Vec<(String, String)>,
}

impl Tile {
    /// A figure without labels.
    pub fn new(
        figure: impl Into<String>,
        what: impl Into<String>,
        remark: impl Into<String>,
    ) -> Self {
        Self {
            figure: figure.into(),
            what: what.into(),
            remark: remark.into(),
            badges: Vec::new(),
        }
    }
}

/// One part of a document.
#[derive(Clone, Debug)]
pub enum Block {
    Heading(Heading),
    Paragraph(Paragraph),
    /// What may be wrong with what is shown.
    Warning(Text),
    /// Names with a value each.
    Facts(Vec<(Text, Text)>),
    Table(Table),
    HeatMap(HeatMap),
    Chart(Chart),
    /// A command to be pasted, with what it is for; that is empty where text before it says so.
    Command {
        label: &'static str,
        command: String,
    },
    /// Blocks behind a line that shows and hides them. A terminal shows them.
    Details {
        summary: Text,
        is_open: bool,
        blocks: Vec<Block>,
    },
    /// Blocks that a page puts into one frame, in the colour of a class of severity.
    Card {
        class: String,
        blocks: Vec<Block>,
    },
    /// A drawing made elsewhere: a page shows it, other writers leave it out.
    Picture(Markup),
    /// An empty line in a terminal, where no heading makes one.
    Gap,
}

/// The title of a section.
#[derive(Clone, Debug)]
pub struct Heading {
    /// The name of the section in links of a page; made of the title where there is none.
    pub id: Option<&'static str>,
    /// 2 for a section, 3 and 4 for parts of one.
    pub level: u8,
    /// A label with its class of severity, on a page before the title.
    pub badge: Option<(String, String)>,
    pub title: Text,
    pub remark: Text,
}

impl Heading {
    /// The title of a section without a remark.
    pub fn new(level: u8, title: impl Into<Text>) -> Self {
        Self {
            id: None,
            level,
            badge: None,
            title: title.into(),
            remark: Text::default(),
        }
    }
}

/// Text that is wrapped as a whole.
#[derive(Clone, Debug)]
pub struct Paragraph {
    /// Columns left free before it in a terminal.
    pub indent: usize,
    /// Where further lines of the text begin below the first, in a terminal.
    pub label: Text,
    pub text: Text,
    /// Whether a page sets it off in a box.
    pub is_boxed: bool,
}

impl Paragraph {
    /// A paragraph without a label, two columns from the edge.
    pub fn new(text: impl Into<Text>) -> Self {
        Self {
            indent: 2,
            label: Text::default(),
            text: text.into(),
            is_boxed: false,
        }
    }
}

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
    caption: String,
    indent: usize,
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<Text>>,
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
    fn used(&self) -> Vec<usize> {
        let columns = 0..self.columns.len();
        columns.filter(|&it| self.has_text(it)).collect()
    }

    /// Whether a row has text in a column.
    pub(crate) fn has_text(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.any(|cell| !cell.is_empty())
    }
}
