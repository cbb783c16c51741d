//! A report as data, and its writers.
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

mod block;
mod chart;
mod heat_map;
mod scale;
mod table;
mod text;
mod write;

use std::fmt::Display;

use maud::Markup;
use nearfar_machine::Emulation;

pub use block::{Block, Card, Details, Head, Heading, Paragraph, Picture, Tile};
pub use chart::{Axis, Bars, Chart, Dot, Dots, DotsRow, Line, Plot};
pub use heat_map::{HeatCell, HeatMap};
pub(crate) use scale::HOTTEST;
pub use scale::{Scale, Spacing};
pub(crate) use table::cells;
pub use table::{Align, Table};
pub use text::{Span, Text};
pub(crate) use write::svg::{heat_map as draw_heat_map, legend as draw_legend};

use crate::style::{Role, Style};

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

    /// Adds how much more there is, where there is more, and where to find it: `and 4 more; --format json has all of them`.
    pub fn more(&mut self, hidden: usize, elsewhere: &str) {
        if hidden > 0 {
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
        self.push(Block::Details(Details {
            summary: summary.into(),
            is_open,
            blocks: content.blocks,
        }));
    }

    /// Adds blocks in a frame of a class of severity.
    pub fn card(&mut self, class: impl Into<String>, content: Document) {
        let blocks = content.blocks;
        self.push(Block::Card(Card {
            class: class.into(),
            blocks,
        }));
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
        self.push(Block::Picture(Picture(markup)));
    }

    /// The document for a terminal: lines of at most `style.width` columns, coloured if `style.colour`.
    pub fn to_text(&self, style: &Style) -> String {
        write::text::whole(&self.head, &self.blocks, style)
    }

    /// The document as one HTML page that loads nothing and runs nothing.
    pub fn to_html(&self) -> String {
        write::html::page(&self.head, &self.blocks)
    }

    /// The document as Markdown with tables.
    pub fn to_markdown(&self) -> String {
        write::markdown::whole(&self.head, &self.blocks)
    }

    /// Whether [`Document::to_svg`] draws anything.
    pub fn has_drawing(&self) -> bool {
        let mut blocks = self.blocks.iter();
        blocks.any(|block| matches!(block, Block::HeatMap(_) | Block::Chart(_)))
    }

    /// Heat maps, charts, warnings and remarks as one SVG file, legible on light and dark.
    pub fn to_svg(&self) -> String {
        write::svg::whole(&self.head, &self.blocks)
    }
}
