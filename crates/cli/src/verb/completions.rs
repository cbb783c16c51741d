//! `nearfar completions`: what a shell needs to ask the command itself for completions.

use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::failure::{Failure, Outcome};
use crate::output;

/// The variable in which a shell names itself when it asks.
const VARIABLE: &str = "COMPLETE";
const NAME: &str = "nearfar";

/// Print the completions for a shell
///
/// The shell asks the command itself, at each completion: rules, gallery machines, kernels, runs, devices, interfaces, nodes
/// and processes are those there are.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
                             nearfar completions bash > ~/.local/share/bash-completion/completions/nearfar\n  \
                             nearfar completions zsh > /usr/local/share/zsh/site-functions/_nearfar\n  \
                             nearfar completions fish > ~/.config/fish/completions/nearfar.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Generates and prints.
    pub fn run(self) -> Outcome {
        let name = self.shell.to_string();
        let shells = Shells::builtins();
        let shell = shells
            .completer(&name)
            .with_context(|| format!("no completions for {name}"));
        let mut text = Vec::new();
        let written = shell
            .map_err(Failure::Input)?
            .write_registration(VARIABLE, NAME, NAME, NAME, &mut text);
        written
            .context("cannot write the completions")
            .map_err(Failure::Refused)?;
        output::print(&String::from_utf8_lossy(&text))
    }
}
