//! The table of docs/corpora.md: `| tree | program | ours / theirs | why |`.

use std::fmt;

/// One difference between nearfar and another program on one tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    pub tree: String,
    pub program: String,
    pub what: String,
}

impl Difference {
    pub fn new(tree: &str, program: &str, what: &str) -> Self {
        Self {
            tree: tree.to_owned(),
            program: program.to_owned(),
            what: what.to_owned(),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| {} | {} | {} |", self.tree, self.program, self.what)
    }
}

/// The rows whose second cell names a program; the last cell, the reason, must not be empty.
pub fn documented() -> Vec<Difference> {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/corpora.md");
    let text = std::fs::read_to_string(&page).unwrap_or_default();
    let mut rows = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = line
            .trim()
            .trim_matches('|')
            .split(" | ")
            .map(str::trim)
            .collect();
        if let [tree, program @ ("lstopo" | "lscpu"), what, why] = cells[..] {
            assert!(!why.is_empty(), "docs/corpora.md gives no reason: {line}");
            rows.push(Difference::new(tree, program, what));
        }
    }
    rows
}
