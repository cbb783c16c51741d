//! `nearfar audit --explain`: what the documentation says of a rule.

use nearfar_placement::audit::{RULES, Rule, rule, unknown_rule};
use serde::Serialize;

use crate::args::{Colour, Format};
use crate::failure::{Failure, Outcome};
use crate::output;

/// docs/audit.md of this version.
const PAGE: &str = include_str!("../../../../../docs/audit.md");

#[derive(Serialize)]
struct Rules {
    rules: &'static [Rule],
}

#[derive(Serialize)]
struct Explained {
    rule: &'static Rule,
    /// Markdown.
    text: &'static str,
    docs: String,
}

/// Prints the section of a rule, or the list of rules.
pub fn print(id: Option<&str>, format: Format, colour: Colour) -> Outcome {
    let style = output::style(colour);
    let Some(id) = id else {
        return output::print(&match format {
            Format::Table => nearfar_report::explain::rules(RULES).to_text(&style),
            Format::Json => output::json("explain-rules/1", None, &Rules { rules: RULES })?,
        });
    };
    let rule = rule(id).ok_or_else(|| Failure::Input(anyhow::Error::msg(unknown_rule(id))))?;
    let text = section(PAGE, rule.id).unwrap_or(rule.explanation);
    output::print(&match format {
        Format::Table => nearfar_report::explain::rule(rule, text).to_text(&style),
        Format::Json => {
            let docs = format!("docs/audit.md#{}", rule.id);
            output::json("explain/1", None, &Explained { rule, text, docs })?
        }
    })
}

/// What stands below the heading `## ID`, up to the next one.
fn section<'a>(page: &'a str, id: &str) -> Option<&'a str> {
    page.split("\n## ")
        .skip(1)
        .find_map(|part| part.strip_prefix(id)?.strip_prefix('\n'))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_section_of_its_own() {
        for rule in RULES {
            let text = section(PAGE, rule.id)
                .unwrap_or_else(|| panic!("docs/audit.md has no section {}", rule.id));
            assert!(
                text.len() > 60 && text.starts_with('*') && !text.contains("\n## "),
                "{}: {text}",
                rule.id
            );
        }
        assert_eq!(section(PAGE, "interrupt"), None);
        assert_eq!(section(PAGE, ""), None);
    }
}
