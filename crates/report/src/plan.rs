//! A plan: what would be changed, and what is left alone.

use std::collections::BTreeMap;

use nearfar_apply::Setting;
use nearfar_placement::change::{LeftAlone, Plan, Planned};

use crate::amount::count;
use crate::change;
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

/// Most subjects named for one reason.
const MOST_SUBJECTS: usize = 6;

/// The changes by the rule they fix, each with the file, the value now and after, and the distance; then what is
/// left alone and why.
pub fn table(plan: &Plan, style: &Style) -> String {
    let remark = plan
        .host
        .as_ref()
        .map_or_else(String::new, |host| format!("for {host}"));
    let title = match plan.changes.len() {
        0 => "Nothing to change".to_owned(),
        number => count(number, "change"),
    };
    let mut out = heading(style, &title, &remark);
    let mut by_rule: Vec<(&str, Vec<&Planned>)> = Vec::new();
    for planned in &plan.changes {
        match by_rule.last_mut() {
            Some((rule, changes)) if *rule == planned.rule => changes.push(planned),
            _ => by_rule.push((&planned.rule, vec![planned])),
        }
    }
    for (rule, changes) in by_rule {
        out.push_str(&heading(style, rule, &count(changes.len(), "change")));
        out.push_str(&changes_of(&changes, style));
    }
    out.push_str(&left_alone(&plan.left_alone, style));
    whole(out)
}

/// One reason and all the changes: where each has a reason of its own, the first stands for its likes.
fn changes_of(changes: &[&Planned], style: &Style) -> String {
    let mut out = String::new();
    let Some(first) = changes.first() else {
        return out;
    };
    out.push_str(&paragraph(
        style,
        2,
        (Role::Plain, ""),
        Role::Plain,
        &first.reason,
    ));
    if changes.iter().any(|planned| planned.reason != first.reason) {
        let others =
            "The others have reasons of their own; --format script and --format json name them.";
        out.push_str(&paragraph(style, 2, (Role::Dim, ""), Role::Dim, others));
    }
    if let Some(caution) = changes
        .iter()
        .find_map(|planned| change::caution(&planned.change))
    {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Warning, "! "),
            Role::Plain,
            caution,
        ));
    }
    out.push_str(&rows(changes, style));
    out
}

fn rows(changes: &[&Planned], style: &Style) -> String {
    let columns = [
        ("what", Side::Left),
        ("now", Side::Left),
        ("then", Side::Left),
        ("distance", Side::Left),
        ("file", Side::Left),
    ];
    let mut grid = Grid::new(&columns).indent(4);
    for planned in changes {
        let setting = Setting::of(&planned.change);
        let before = planned
            .before
            .as_deref()
            .map_or_else(|| "not seen".to_owned(), |before| setting.shown(before));
        grid.row(vec![
            Cell::new(Role::Subject, change::subject(&planned.change)),
            Cell::new(Role::Dim, before),
            Cell::new(Role::Local, change::value(&planned.change)),
            Cell::from(change::distance(planned.distance)),
            Cell::new(Role::Dim, setting.path()),
        ]);
    }
    grid.render(style)
}

fn left_alone(all: &[LeftAlone], style: &Style) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for left in all {
        reasons
            .entry((&left.rule, &left.because))
            .or_default()
            .push(&left.subject);
    }
    let mut out = heading(style, "Left alone", &all.len().to_string());
    for ((rule, because), subjects) in reasons {
        let named = subjects
            .iter()
            .take(MOST_SUBJECTS)
            .copied()
            .collect::<Vec<_>>()
            .join(", ");
        let more = match subjects.len().saturating_sub(MOST_SUBJECTS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        out.push_str(&paragraph(
            style,
            2,
            (Role::Dim, &format!("{rule}: ")),
            Role::Plain,
            &format!("{named}{more}: {because}"),
        ));
    }
    out
}
