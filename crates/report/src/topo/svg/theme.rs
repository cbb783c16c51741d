//! The colours and type of pictures: a style sheet for pages, attributes for files of their own.
//!
//! ```text
//!  .nearfar-map .box{fill:var(--box)}     --box: #f6f8fb, in the dark #19212a
//!
//!  page   the style sheet as it is
//!  file   <rect class="box" fill="#f6f8fb"/>  and  @media (prefers-color-scheme:dark){.nearfar-map .box{fill:#19212a}}
//! ```
//!
//! librsvg, ImageMagick and what uses them know no `var()`, some viewers and wikis no style sheet at all: without a colour
//! they draw black. All of them read attributes, and a style sheet overrides attributes where it is obeyed.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

/// Colours and type, for light and dark surroundings: a rule that overrides another follows it.
pub(crate) const THEME: &str = include_str!("theme.css");

/// What the selector of each rule begins with.
const SCOPE: &str = ".nearfar-map";
/// What the rules for the dark begin with, and those for paper.
const DARK: &str = "@media (prefers-color-scheme:dark){";
const PRINT: &str = "@media print{";

/// A selector below [`SCOPE`] (`text.cool`; empty for the whole), and what it sets.
type Rule = (&'static str, Vec<(&'static str, &'static str)>);

/// The style sheet of a picture with [`with_attributes`]: what is not light.
pub(crate) fn style() -> String {
    let mut out = DARK.to_owned();
    for (selector, sets) in rules(true) {
        let space = if selector.is_empty() { "" } else { " " };
        let sets: Vec<String> = sets
            .iter()
            .map(|(it, value)| format!("{it}:{value}"))
            .collect();
        // Writing to a String cannot fail.
        let _ = write!(out, "{SCOPE}{space}{selector}{{{}}}", sets.join(";"));
    }
    let print = THEME.lines().find(|line| line.starts_with(PRINT));
    out + "}" + print.unwrap_or_default()
}

/// An `svg` element whose elements have the light colours as attributes.
pub(crate) fn with_attributes(svg: &str) -> String {
    let rules = rules(false);
    let mut known: HashMap<(&str, &str), String> = HashMap::new();
    let mut out = String::with_capacity(svg.len() * 2);
    // Signs of tags are only those: text and attributes have `&lt;` and `&gt;`.
    for part in svg.split_inclusive('>') {
        let tag = part.strip_suffix('>').and_then(|it| it.rsplit_once('<'));
        let Some((text, tag)) = tag.filter(|(_, tag)| !tag.starts_with('/')) else {
            out.push_str(part);
            continue;
        };
        let name = tag.split(' ').next().unwrap_or_default();
        let class = tag.split_once(" class=\"").map_or("", |(_, rest)| rest);
        let class = class.split('"').next().unwrap_or_default();
        let attributes = known.entry((name, class));
        let attributes = attributes.or_insert_with(|| attributes_of(&rules, name, class));
        // Writing to a String cannot fail.
        let _ = write!(out, "{text}<{tag}{attributes}>");
    }
    out
}

/// What the rules set of an element of this name with these classes.
fn attributes_of(rules: &[Rule], name: &str, classes: &str) -> String {
    let has = |class: &str| classes.split(' ').any(|it| it == class);
    let matches = |selector: &str| {
        let mut parts = selector.split('.');
        let of_name = parts.next().is_none_or(|it| it.is_empty() || it == name);
        match selector {
            "" => has(&SCOPE[1..]),
            _ => of_name && parts.all(has),
        }
    };
    let matching = rules.iter().filter(|(selector, _)| matches(selector));
    let sets: BTreeMap<&str, &str> = matching
        .flat_map(|(_, sets)| sets.iter().copied())
        .collect();
    let attribute =
        |(name, value): (&str, &str)| format!(" {name}=\"{}\"", value.replace('"', "'"));
    sets.into_iter().map(attribute).collect()
}

/// The rules with the colours of one scheme.
fn rules(is_dark: bool) -> Vec<Rule> {
    let (variables, plain) = THEME
        .lines()
        .partition::<Vec<_>, _>(|line| line.contains("{--"));
    let is_of_scheme = |line: &&&str| is_dark || !line.starts_with(DARK);
    let values = variables.iter().filter(is_of_scheme);
    let values = values.flat_map(|line| line.split(['{', ';', '}']));
    let values: BTreeMap<&str, &str> = values.filter_map(|it| it.split_once(':')).collect();
    let value = |value: &'static str| {
        let name = value
            .strip_prefix("var(")
            .and_then(|rest| rest.strip_suffix(')'));
        name.map_or(value, |name| values.get(name).copied().unwrap_or("none"))
    };
    let sets = |text: &'static str| {
        let sets = text.split(';').filter_map(|it| it.split_once(':'));
        sets.map(|(name, text)| (name, value(text)))
            .collect::<Vec<_>>()
    };
    let plain = plain.into_iter().filter(|line| line.starts_with(SCOPE));
    let plain = plain.flat_map(|line| line.split_terminator('}'));
    let plain = plain.filter_map(|rule| rule.split_once('{'));
    plain
        .flat_map(|(selectors, text)| {
            let selectors = selectors.split(',').filter_map(|it| it.strip_prefix(SCOPE));
            selectors.map(move |selector| (selector.trim(), sets(text)))
        })
        .collect()
}
