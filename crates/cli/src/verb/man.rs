//! `nearfar man`: man pages, generated from the definitions of the arguments.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use crate::failure::{Failure, Outcome};
use crate::output;

/// Print the man page, or write one a verb into a directory
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar man | man -l -\n  nearfar man --directory /usr/local/share/man/man1")]
pub struct Man {
    /// Write nearfar.1, nearfar-topo.1 and so on into this directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl Man {
    /// Generates and prints or writes.
    pub fn run(self, command: clap::Command) -> Outcome {
        match self.directory {
            Some(directory) => clap_mangen::generate_to(command, &directory)
                .with_context(|| format!("cannot write man pages into {}", directory.display()))
                .map_err(Failure::Refused),
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(command).render(&mut page).map_err(Failure::refused)?;
                output::print(&String::from_utf8_lossy(&page))
            }
        }
    }
}
