//! docs/architecture.md says which crates there are and which others each depends on; `cargo metadata` says the same. Each file of
//! tests is compiled.

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

/// Files in a folder of tests: those next to a program's main.rs are its modules.
fn sources(folder: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "rs"))
}

#[test]
fn every_file_of_tests_is_a_module_of_a_program() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates = std::fs::read_dir(workspace.join("crates")).expect("crates");
    let crates = crates.map(|entry| entry.expect("an entry").path());
    let tests = crates
        .chain([workspace.join("tools/suite")])
        .map(|path| path.join("tests"));
    let mut programs = 0;
    let mut unnamed = Vec::new();
    for folder in tests.flat_map(|tests| {
        let inner = std::fs::read_dir(&tests).into_iter().flatten();
        let inner: Vec<_> = inner.map(|entry| entry.expect("an entry").path()).collect();
        inner.into_iter().chain([tests])
    }) {
        let Ok(main) = std::fs::read_to_string(folder.join("main.rs")) else {
            continue;
        };
        programs += 1;
        unnamed.extend(sources(&folder).filter(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            name != "main" && !main.lines().any(|line| line == format!("mod {name};"))
        }));
    }
    assert!((20..=30).contains(&programs), "{programs} programs");
    assert_eq!(unnamed, Vec::<std::path::PathBuf>::new());
}
