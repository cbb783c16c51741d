//! Headings, paragraphs and tables of renderers that write text directly.

pub(crate) use crate::document::{Align as Side, Table as Grid, Text as Cell};
use crate::document::{Text, heading as heading_of, paragraph as paragraph_of};
use crate::style::{Role, Style};

/// Sections put together as the whole output of a verb: without the empty line before the first.
pub(crate) fn whole(sections: String) -> String {
    sections
        .strip_prefix('\n')
        .map(str::to_owned)
        .unwrap_or(sections)
}

/// A line that heads a section, with a remark.
pub(crate) fn heading(style: &Style, title: &str, remark: &str) -> String {
    heading_of(style, title, remark)
}

/// Text wrapped below itself.
pub(crate) fn paragraph(
    style: &Style,
    indent: usize,
    first: (Role, &str),
    role: Role,
    text: &str,
) -> String {
    paragraph_of(
        style,
        indent,
        &Text::new(first.0, first.1),
        &Text::new(role, text),
    )
}
