//! `nearfar man`: man pages, generated from the definitions of the arguments.

mod page;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Command};

use crate::failure::{Failure, Outcome};
use crate::output;

/// Print the man page, or write one per verb into a directory
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar man | man -l -\n  nearfar man --directory /usr/local/share/man/man1"
)]
pub struct Man {
    /// Write nearfar.1, nearfar-topo.1 and so on into this directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl Man {
    /// Generates and prints or writes.
    pub fn run(self, command: Command) -> Outcome {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        match self.directory {
            Some(directory) => std::fs::create_dir_all(&directory)
                .and_then(|()| write(&command, command.get_name(), &directory))
                .with_context(|| format!("cannot write man pages into {}", directory.display()))
                .map_err(Failure::Refused),
            None => {
                let page = page::page(&command, command.get_name()).map_err(Failure::refused)?;
                output::print(&String::from_utf8_lossy(&page))
            }
        }
    }
}

/// The page of a verb and those of the verbs below it.
fn write(command: &Command, name: &str, directory: &Path) -> std::io::Result<()> {
    std::fs::write(
        directory.join(format!("{name}.1")),
        page::page(command, name)?,
    )?;
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        write(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each verb with the name of its page.
    fn all(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
        found.push((name.to_owned(), command.clone()));
        for below in command.get_subcommands() {
            all(below, &format!("{name}-{}", below.get_name()), found);
        }
    }

    fn verbs() -> Vec<(String, Command)> {
        let mut command = crate::command::definition().disable_help_subcommand(true);
        command.build();
        let mut found = Vec::new();
        all(&command, "nearfar", &mut found);
        assert!(found.len() > 25, "{} pages", found.len());
        found
    }

    #[test]
    fn every_page_has_every_section_and_values_in_its_synopsis() {
        for (name, command) in verbs() {
            let page = String::from_utf8(page::page(&command, &name).unwrap()).unwrap();
            for section in [
                "SYNOPSIS",
                "EXIT STATUS",
                "ENVIRONMENT",
                "FILES",
                "EXAMPLES",
                "SEE ALSO",
            ] {
                let found = page
                    .split(&format!(".SH \"{section}\"\n"))
                    .nth(1)
                    .unwrap_or_default();
                let text = found.split(".SH").next().unwrap_or_default().trim();
                assert!(text.len() > 10, "{name} has nothing under {section}");
            }
            let synopsis = page
                .split(".SH \"SYNOPSIS\"\n")
                .nth(1)
                .unwrap()
                .lines()
                .next()
                .unwrap()
                .to_owned();
            let taking = command
                .get_arguments()
                .filter(|arg| arg.get_action().takes_values() && !arg.is_hide_set());
            for arg in taking.filter(|arg| arg.get_long().is_some()) {
                let long = arg.get_long().unwrap().replace('-', "\\-");
                let value = arg
                    .get_value_names()
                    .unwrap_or_default()
                    .first()
                    .expect("a name")
                    .replace('-', "\\-");
                let wanted = format!("\\fB\\-\\-{long}\\fR \\fI{value}\\fR");
                assert!(
                    synopsis.contains(&wanted),
                    "{name}: no {wanted} in {synopsis}"
                );
            }
        }
    }

    /// The words of an example, up to what a shell takes for itself or what the line says of it.
    fn words(line: &str) -> Vec<String> {
        let line = line.split("  ").next().unwrap_or_default();
        let (mut words, mut quoted) = (vec![String::new()], false);
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                _ => words.last_mut().unwrap().push(c),
            }
        }
        let end = words.iter().position(|word| {
            ["&&", "||", "|", ">", "<"].contains(&word.as_str()) || word.ends_with(';')
        });
        words.truncate(end.unwrap_or(words.len()));
        words
    }

    #[test]
    fn every_example_is_understood() {
        for (name, command) in verbs() {
            let (_, examples) = page::help_of(&command);
            assert!(
                !examples.is_empty(),
                "{name} has no examples in its long help"
            );
            for example in examples {
                let words = words(&example);
                assert_eq!(
                    words.first().map(String::as_str),
                    Some("nearfar"),
                    "{name}: {example}"
                );
                if let Err(error) = crate::command::definition().try_get_matches_from(&words) {
                    panic!("{name}: {example}: {error}");
                }
            }
        }
    }
}
