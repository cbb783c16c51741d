//! Compares what nearfar reads from trees of real machines with what `lstopo-no-graphics` and `lscpu` read from them.
//!
//! `NEARFAR_CORPUS=DIR cargo test -p nearfar-sources --test main oracle:: -- --nocapture` looks at every tree below DIR (a
//! directory that holds `sys` or `proc`). Without the variable, or without the two programs, it says so and passes.
//! Each difference must stand in the table of docs/corpora.md with its reason; a line there that no longer holds fails
//! too, for the trees that are given.

mod differences;
mod lscpu;
mod lstopo;
mod seen;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use differences::{Difference, documented};
use nearfar_sources::tree::Tree;
use nearfar_sources::{Want, sysfs};
use seen::Seen;

#[test]
#[ignore = "reads the trees below the directory that NEARFAR_CORPUS names (docs/corpora.md says where to get some)"]
fn every_tree_reads_as_lstopo_and_lscpu_read_it_or_the_page_says_why_not() {
    let corpus = std::env::var_os("NEARFAR_CORPUS")
        .map(PathBuf::from)
        .expect("NEARFAR_CORPUS names a directory");
    let mut trees = Vec::new();
    find_trees(&corpus, 0, &mut trees);
    assert!(!trees.is_empty(), "{}: no tree below it", corpus.display());
    let mut found = BTreeSet::new();
    for tree in &trees {
        found.extend(compare(tree));
    }
    let names: BTreeSet<String> = trees.iter().map(|tree| name_of(tree)).collect();
    let documented: BTreeSet<Difference> = documented()
        .into_iter()
        .filter(|difference| names.contains(&difference.tree))
        .collect();
    let new: Vec<String> = found
        .difference(&documented)
        .map(ToString::to_string)
        .collect();
    let stale: Vec<String> = documented
        .difference(&found)
        .map(ToString::to_string)
        .collect();
    println!(
        "{} trees, {} differences, all but {} documented",
        trees.len(),
        found.len(),
        new.len()
    );
    assert!(
        new.is_empty(),
        "differences that docs/corpora.md does not explain:\n{}",
        new.join("\n")
    );
    assert!(
        stale.is_empty() || !both_programs_are_there(),
        "docs/corpora.md explains differences that are gone:\n{}",
        stale.join("\n")
    );
}

fn both_programs_are_there() -> bool {
    [lstopo::version(), lscpu::version()]
        .iter()
        .all(Option::is_some)
}

/// Everything that is different in one tree.
fn compare(root: &Path) -> Vec<Difference> {
    let name = name_of(root);
    let tree = Tree::at(root).expect("a tree can be opened");
    let machine = sysfs::read(&tree, &Want::topology()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(machine.check(), Vec::<String>::new(), "{name}");
    let ours = Seen::of_machine(&machine);
    let mut found = Vec::new();
    for (tool, theirs) in [("lstopo", lstopo::read(root)), ("lscpu", lscpu::read(root))] {
        match theirs {
            Ok(theirs) => {
                found.extend(
                    ours.compare(&theirs)
                        .into_iter()
                        .map(|what| Difference::new(&name, tool, &what)),
                );
            }
            Err(reason) => eprintln!("skipped: tools: {tool} on {name}: {reason}"),
        }
    }
    found
}

/// A tree's name is that of its own directory.
fn name_of(root: &Path) -> String {
    root.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn find_trees(directory: &Path, depth: usize, trees: &mut Vec<PathBuf>) {
    const DEEPEST: usize = 4;
    if directory.join("sys").is_dir() || directory.join("proc").is_dir() {
        trees.push(directory.to_owned());
        return;
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut below: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    below.sort();
    if depth < DEEPEST {
        below
            .iter()
            .for_each(|path| find_trees(path, depth + 1, trees));
    }
}
