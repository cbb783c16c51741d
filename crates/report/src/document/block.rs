//! The parts of a document.

use maud::Markup;

use super::{Chart, HeatMap, Table, Text};

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
    Details(Details),
    Card(Card),
    Picture(Picture),
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

/// Blocks behind a line that shows and hides them. A terminal shows them.
#[derive(Clone, Debug)]
pub struct Details {
    pub summary: Text,
    pub is_open: bool,
    pub blocks: Vec<Block>,
}

/// Blocks that a page puts into one frame.
#[derive(Clone, Debug)]
pub struct Card {
    /// The class of severity that colours the frame.
    pub class: String,
    pub blocks: Vec<Block>,
}

/// A drawing made elsewhere: a page shows it, other writers leave it out.
#[derive(Clone, Debug)]
pub struct Picture(pub(crate) Markup);
