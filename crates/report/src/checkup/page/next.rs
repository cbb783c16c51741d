//! The commands to go on with.

use maud::{Markup, html};

use super::{Checkup, titled};
use crate::checkup::next::steps;
use crate::wrapping::clean;

/// The section with a command a line; a click selects the whole of it, where the browser can.
pub(super) fn section(checkup: &Checkup) -> Markup {
    titled(
        "next",
        "Next",
        &html! {
            ol.next { @for step in steps(checkup) { li { (step.does) ":" (command(&step.command)) } } }
        },
    )
}

/// A command in a box of its own.
pub(super) fn command(line: &str) -> Markup {
    html! { pre tabindex="0" aria-label="command" role="group" { code.command { (clean(line)) } } }
}
