//! The writers, one a format.

pub(super) mod html;
mod html_chart;
pub(super) mod markdown;
mod plot;
pub(crate) mod svg;
pub(super) mod text;
mod text_chart;
mod text_table;

/// Elements by a class of severity, in the order of the scale's colours: `parts` classes spread over all of them.
fn spread_over_scale(parts: usize) -> impl Fn(usize) -> u8 {
    move |part| {
        let hottest = usize::from(super::HOTTEST);
        (part * hottest / parts.saturating_sub(1).max(1)).min(hottest) as u8
    }
}
