//! Reads the tree below a directory (or, without one, the live system) and prints the machine as JSON.
//!
//! `--all` also reads devices, interrupts and tasks; `--quiet` prints nothing, for measuring.

use std::path::Path;

use nearfar_sources::tree::Tree;
use nearfar_sources::{Want, sysfs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let root = arguments
        .iter()
        .find(|argument| !argument.starts_with("--"));
    let tree = root.map_or_else(Tree::live, |root| Tree::at(Path::new(root)))?;
    let want = if has("--all") {
        Want::all()
    } else {
        Want::topology()
    };
    let machine = sysfs::read(&tree, &want)?;
    if !has("--quiet") {
        serde_json::to_writer_pretty(std::io::stdout().lock(), &machine)?;
    }
    Ok(())
}
