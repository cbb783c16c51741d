//! The table of rules and docs/audit.md say the same.

use std::collections::BTreeSet;

use nearfar_placement::audit::{RULES, rule};

fn headings() -> Vec<&'static str> {
    let page = include_str!("../../../docs/audit.md");
    page.lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect()
}

#[test]
fn each_rule_has_a_section_and_each_section_a_rule_in_one_order() {
    let rules: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(headings(), rules);
}

#[test]
fn ids_are_links_and_unique() {
    let unique: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(unique.len(), RULES.len());
    assert!(
        unique
            .iter()
            .all(|id| id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
    );
    assert_eq!(
        rule("interrupt-far").map(|rule| rule.id),
        Some("interrupt-far")
    );
    assert!(rule("no-such-rule").is_none());
}

#[test]
fn titles_and_explanations_are_sentences_that_fit() {
    for rule in RULES {
        assert!(
            rule.title.len() < 60 && !rule.title.ends_with('.'),
            "{}",
            rule.id
        );
        assert!(
            rule.explanation.ends_with('.') && !rule.explanation.contains("  "),
            "{}",
            rule.id
        );
    }
}
