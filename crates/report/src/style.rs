//! How text output looks: width, and what each colour means.

use std::fmt::Display;

use anstyle::{AnsiColor, Effects};

use crate::document::Text;

/// How to lay text out. Whether colour is wanted (terminal, NO_COLOR) is the caller's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Whether to write ANSI colours.
    pub colour: bool,
    /// Columns a line may have; less than 40 counts as 40.
    pub width: usize,
}

impl Default for Style {
    /// Plain text in 100 columns.
    fn default() -> Self {
        Self {
            colour: false,
            width: 100,
        }
    }
}

/// What a piece of text is, which decides its colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // Most are named after what they mark.
pub enum Role {
    #[default]
    Plain,
    Heading,
    Dim,
    /// A file or a command.
    Code,
    /// A value as the system writes it.
    Value,
    /// What the line is about.
    Subject,
    Local,
    Near,
    Middling,
    Far,
    Notice,
    Warning,
    Critical,
}

impl Style {
    /// The width to keep to.
    pub(crate) fn columns(&self) -> usize {
        self.width.max(40)
    }

    /// The text in the colour of its role.
    pub(crate) fn paint(&self, role: Role, text: &str) -> String {
        if !self.colour || role == Role::Plain || text.is_empty() {
            return text.to_owned();
        }
        let style = role.ansi();
        format!("{style}{text}{style:#}")
    }
}

impl Role {
    /// Text in this role.
    pub fn text(self, text: impl Display) -> Text {
        Text::new(self, text)
    }

    fn ansi(self) -> anstyle::Style {
        let colour = |colour: AnsiColor| anstyle::Style::new().fg_color(Some(colour.into()));
        match self {
            Self::Plain | Self::Code | Self::Value => anstyle::Style::new(),
            Self::Heading => anstyle::Style::new().bold(),
            Self::Dim => anstyle::Style::new().effects(Effects::DIMMED),
            Self::Subject => colour(AnsiColor::Cyan),
            Self::Local | Self::Near => colour(AnsiColor::Green),
            Self::Middling => colour(AnsiColor::Yellow),
            Self::Far => colour(AnsiColor::Red),
            Self::Notice => colour(AnsiColor::Blue).bold(),
            Self::Warning => colour(AnsiColor::Yellow).bold(),
            Self::Critical => colour(AnsiColor::Red).bold(),
        }
    }
}
