//! docs/architecture.md says which crates there are and which others each depends on; `cargo metadata` says the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// Crates of the workspace without their prefix, as the page names them.
fn short(name: &str) -> Option<&str> {
    match name {
        "nearfar" => Some("cli"),
        _ => name.strip_prefix("nearfar-"),
    }
}

/// What Cargo.toml files say, without what only tests need.
fn by_cargo(workspace: &Path) -> Dependencies {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(workspace)
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut found = Dependencies::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = short(package["name"].as_str().expect("a name")).expect("a crate of nearfar");
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        let own = dependencies
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| short(dependency["name"].as_str()?));
        found.insert(name.to_owned(), own.map(str::to_owned).collect());
    }
    found
}

/// The table under the heading "Dependencies": a row for each crate, its dependencies separated by commas.
fn by_page(workspace: &Path) -> Dependencies {
    let page = workspace.join("docs/architecture.md");
    let page = std::fs::read_to_string(page).expect("docs/architecture.md");
    let (_, after) = page
        .split_once("\n## Dependencies\n")
        .expect("the heading Dependencies");
    let section = after.split("\n## ").next().unwrap_or_default();
    let names = |cell: &str| -> BTreeSet<String> {
        let names = cell.split(',').map(|name| name.trim().trim_matches('`'));
        names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [name, dependencies] = cells[..] else {
            panic!("a row of two cells: {row}");
        };
        (
            name.trim().trim_matches('`').to_owned(),
            names(dependencies),
        )
    })
    .collect()
}

#[test]
fn the_page_has_the_crates_and_dependencies_that_cargo_has() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (cargo, page) = (by_cargo(&workspace), by_page(&workspace));
    let rows = |of: &Dependencies| -> Vec<String> {
        let row = |(name, dependencies): (&String, &BTreeSet<String>)| {
            let list: Vec<String> = dependencies.iter().map(|it| format!("`{it}`")).collect();
            format!("| `{name}` | {} |", list.join(", "))
        };
        of.iter().map(row).collect()
    };
    assert_eq!(
        page,
        cargo,
        "the table should be:\n{}",
        rows(&cargo).join("\n")
    );
}
