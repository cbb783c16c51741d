//! `nearfar completions`: completions for a shell, generated from the definitions of the arguments.

use clap::Args;
use clap_complete::Shell;

use crate::failure::Outcome;
use crate::output;

/// Print the completions for a shell
#[derive(Args)]
#[command(
    after_long_help = "Example:\n  nearfar completions bash > ~/.local/share/bash-completion/completions/nearfar"
)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Generates and prints.
    pub fn run(self, mut command: clap::Command) -> Outcome {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, "nearfar", &mut text);
        output::print(&String::from_utf8_lossy(&text))
    }
}
