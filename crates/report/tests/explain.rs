//! A rule of the documentation as text.

use nearfar_placement::audit::RULES;
use nearfar_report::{Style, explain};

#[test]
fn marks_are_taken_off_and_tables_become_columns() {
    let section = "*Fact.* `numa_node` is -1,\nsee [json](json.md); 2 * 3, a[0], `x*y`\n\n\
                   | policy | finding |\n|---|---|\n| `numa` | far |\n";
    let text = explain::rule(&RULES[0], section).to_text(&Style::default());
    let (title, body) = text.split_once("\n\n").unwrap();
    assert!(title.starts_with(RULES[0].id), "{text}");
    assert_eq!(
        body,
        "  Fact. numa_node is -1, see json; 2 * 3, a[0], x*y\n\n  policy  finding\n  numa    far\n"
    );
}
