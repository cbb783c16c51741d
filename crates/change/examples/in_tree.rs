//! Applies a plan to a directory tree, or undoes the last change set: what the command does, in one screen.
//!
//! ```text
//! in_tree apply DIR PLAN.json [--wait]     in_tree rollback DIR
//! ```
//!
//! With `DIE_AT=N` in the environment the process kills itself (SIGKILL) at the N-th step of its life; every write to
//! the system and every record of the journal has a step before it and after it, a record also two in the middle.
//! That is how the tests show that rollback works from every point.

use std::cell::Cell;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearfar_change::system::{Rooted, System};
use nearfar_change::{ApplyOptions, RollbackOptions, Target, apply_with, rollback_with};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let state = std::env::var_os("STATE_DIR").map(PathBuf::from);
    match arguments[..] {
        ["apply", root, plan, ref more @ ..] => {
            let plan = serde_json::from_slice(&std::fs::read(plan)?)?;
            let wait = more.contains(&"--wait").then_some(Duration::from_secs(60));
            let options = ApplyOptions {
                wait,
                ..ApplyOptions::default()
            };
            let outcome = apply_with(
                &plan,
                &Target::tree(root.into(), state),
                &options,
                &Mortal::below(root)?,
            )?;
            println!("{}", serde_json::to_string_pretty(&outcome)?);
        }
        ["rollback", root] => {
            let options = RollbackOptions::default();
            let outcome = rollback_with(
                &Target::tree(root.into(), state),
                &options,
                &Mortal::below(root)?,
            )?;
            println!("{}", serde_json::to_string_pretty(&outcome)?);
        }
        _ => {
            return Err(
                "usage: in_tree apply DIR PLAN.json [--wait] | in_tree rollback DIR".into(),
            );
        }
    }
    Ok(())
}

/// A system whose user dies at a given step.
struct Mortal {
    below: Rooted,
    steps_left: Cell<Option<u64>>,
}

impl Mortal {
    fn below(root: &str) -> Result<Self, Box<dyn Error>> {
        let steps_left = std::env::var("DIE_AT")
            .ok()
            .map(|at| at.parse())
            .transpose()?;
        Ok(Self {
            below: Rooted::tree(Path::new(root))?,
            steps_left: Cell::new(steps_left),
        })
    }

    fn step(&self) {
        let left = self.steps_left.get().map(|left| left.saturating_sub(1));
        self.steps_left.set(left);
        if left == Some(0) {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
}

impl System for Mortal {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.below.read(path)
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        self.step();
        self.below.write(path, content)?;
        self.step();
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.below.list(path)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.below.link(path)
    }

    fn append(&self, mut journal: &File, line: &[u8]) -> io::Result<()> {
        self.step();
        let (first, second) = line.split_at(line.len() / 2);
        journal.write_all(first)?;
        self.step();
        journal.write_all(second)?;
        self.step();
        Ok(())
    }

    fn sync(&self, journal: &File) -> io::Result<()> {
        rustix::fs::fdatasync(journal)?;
        self.step();
        Ok(())
    }
}
