//! `nearfar man`: man pages, generated from the definitions of the arguments: what clap_mangen makes of them, and the sections that it
//! does not know.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Arg, Args, Command};

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
                let page = page(&command, command.get_name()).map_err(Failure::refused)?;
                output::print(&String::from_utf8_lossy(&page))
            }
        }
    }
}

/// The page of a verb and those of the verbs below it.
fn write(command: &Command, name: &str, directory: &Path) -> std::io::Result<()> {
    std::fs::write(directory.join(format!("{name}.1")), page(command, name)?)?;
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        write(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(())
}

/// The heading in a verb's long help below which its examples are.
const EXAMPLES: &str = "Examples:\n";

/// Related verbs: those that come before or after a verb.
const RELATED: &[(&str, &[&str])] = &[
    ("nearfar-audit", &["nearfar-plan", "nearfar-checkup"]),
    ("nearfar-plan", &["nearfar-audit", "nearfar-apply"]),
    ("nearfar-apply", &["nearfar-plan", "nearfar-rollback"]),
    ("nearfar-rollback", &["nearfar-apply"]),
    ("nearfar-bench-probe", &["nearfar-runs", "nearfar-prefer"]),
    (
        "nearfar-prefer",
        &["nearfar-trace-migrations", "nearfar-bench-probe"],
    ),
    ("nearfar-path", &["nearfar-trace-nvme"]),
    ("nearfar-ab", &["nearfar-lab-run", "nearfar-lab-machines"]),
];

/// The page of a verb; `name` is that of its file, such as nearfar-lab-run.
fn page(command: &Command, name: &str) -> std::io::Result<Vec<u8>> {
    let man = clap_mangen::Man::new(command.clone())
        .manual("nearfar")
        .section("1");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend(section("SYNOPSIS", &synopsis(command, name)).into_bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let (notes, examples) = help_of(command);
    let sections = [
        ("NOTES", verbatim(&notes)),
        ("EXIT STATUS", exit_status(command)),
        ("ENVIRONMENT", terms(&environment(command, name))),
        ("FILES", terms(&files(command, name))),
        ("EXAMPLES", verbatim(&examples.join("\n"))),
        ("SEE ALSO", see_also(command, name)),
    ];
    for (heading, text) in sections.iter().filter(|(_, text)| !text.is_empty()) {
        page.extend(section(heading, text).into_bytes());
    }
    Ok(page)
}

/// The examples of a verb's long help, a command a line; before them, whatever else the help ends with.
fn help_of(command: &Command) -> (String, Vec<String>) {
    let help = command
        .get_after_long_help()
        .or(command.get_after_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let (notes, examples) = help.split_once(EXAMPLES).unwrap_or((&help, ""));
    let mut commands: Vec<String> = Vec::new();
    let mut is_continued = false;
    for line in examples
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let (part, continues) = match line.strip_suffix('\\') {
            Some(part) => (part.trim_end(), true),
            None => (line, false),
        };
        match commands.last_mut().filter(|_| is_continued) {
            Some(command) => *command += &format!(" {part}"),
            None => commands.push(part.to_owned()),
        }
        is_continued = continues;
    }
    (notes.trim().to_owned(), commands)
}

fn section(heading: &str, text: &str) -> String {
    format!(".SH \"{heading}\"\n{text}")
}

/// Text as roff takes it: a backslash or a hyphen is itself, and no line is taken for a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let line = |line: &str| {
        if line.starts_with(['.', '\'']) {
            format!("\\&{line}")
        } else {
            line.to_owned()
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", escaped(text))
}

fn italic(text: &str) -> String {
    format!("\\fI{}\\fR", escaped(text))
}

/// Lines as they stand.
fn verbatim(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!(".nf\n{}\n.fi\n", escaped(text))
    }
}

/// Terms with what they mean.
fn terms(terms: &[(&str, &str)]) -> String {
    terms
        .iter()
        .fold(String::new(), |mut text, (term, meaning)| {
            let _ = write!(text, ".TP\n{}\n{}\n", bold(term), escaped(meaning));
            text
        })
}

/// `nearfar audit [--source SOURCE] [--pid PID]... [-- COMMAND...]`, each with the names of its values.
fn synopsis(command: &Command, name: &str) -> String {
    let words = name.replace('-', " ");
    let mut line = vec![bold(&words)];
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let (places, options): (Vec<&Arg>, Vec<&Arg>) = command
        .get_arguments()
        .filter(shown)
        .partition(|arg| arg.is_positional());
    // What has to be there comes first.
    let (needed, free): (Vec<&Arg>, Vec<&Arg>) =
        options.into_iter().partition(|arg| arg.is_required_set());
    line.extend(
        needed
            .iter()
            .chain(&free)
            .chain(&places)
            .map(|arg| argument(arg)),
    );
    if command.has_subcommands() {
        let verb = italic("COMMAND");
        line.push(if command.is_subcommand_required_set() {
            verb
        } else {
            format!("[{verb}]")
        });
    }
    line.join(" ") + "\n"
}

fn argument(arg: &Arg) -> String {
    let many = matches!(arg.get_action(), clap::ArgAction::Append)
        || arg
            .get_num_args()
            .is_some_and(|range| range.max_values() > 1);
    let values = arg
        .get_value_names()
        .unwrap_or_default()
        .iter()
        .map(|name| italic(name))
        .collect::<Vec<_>>()
        .join(" ");
    let text = match (arg.get_long(), arg.get_action().takes_values()) {
        (Some(long), true) => format!("{} {values}", bold(&format!("--{long}"))),
        (Some(long), false) => bold(&format!("--{long}")),
        (None, _) if arg.is_last_set() => format!("{} {values}", bold("--")),
        (None, _) => values,
    };
    match (arg.is_required_set(), many) {
        (true, false) => text,
        (true, true) => format!("{text}..."),
        (false, false) => format!("[{text}]"),
        (false, true) => format!("[{text}]..."),
    }
}

fn has(command: &Command, id: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == id)
}

fn is_of_lab(name: &str) -> bool {
    name.starts_with("nearfar-lab") || name == "nearfar-ab"
}

fn exit_status(command: &Command) -> String {
    let mut codes = vec![("0", "Done.")];
    if has(command, "fail_on") {
        codes.push(("1", "The answer is one that --fail-on names."));
    } else if has(command, "yes") {
        codes.push((
            "1",
            "The question whether to make the changes was answered with no.",
        ));
    }
    codes.push((
        "2",
        "Wrong usage, unreadable input, or a target that does not exist.",
    ));
    codes.push(("3", "The system refused."));
    if command.get_name() == "compare" || command.get_name().ends_with("-compare") {
        codes.push((
            "125",
            "Whether something is worse cannot be judged: one run a side, or too few samples.",
        ));
    }
    if has(command, "command") && command.get_name() != "ab" {
        codes.push(("126, 127", "COMMAND cannot be executed, or there is none."));
        codes.push((
            "other",
            "That of COMMAND; 128 and the number of the signal that ended it.",
        ));
    }
    terms(&codes)
}

fn environment(command: &Command, name: &str) -> Vec<(&'static str, &'static str)> {
    let mut known = vec![
        (
            "COLUMNS",
            "Columns of a line; without it those of the terminal, or 100 in a pipe or file.",
        ),
        (
            "NEARFAR_LOG",
            "What is said on standard error of the work itself, by crate; as --verbose.",
        ),
        ("NO_COLOR", "No colour, unless --color always is given."),
    ];
    if has(command, "store") || name == "nearfar-runs" || name == "nearfar-bench" {
        known.push(("NEARFAR_STORE", "The file that runs are kept in."));
        known.push((
            "XDG_DATA_HOME",
            "Where nearfar/runs.db is otherwise, instead of ~/.local/share.",
        ));
    }
    if is_of_lab(name) {
        known.push((
            "XDG_CACHE_HOME",
            "Where the lab's cache is, instead of ~/.cache.",
        ));
    }
    if name == "nearfar-lab-shell" {
        known.push(("SHELL", "The shell that is opened in the guest."));
    }
    known
}

fn files(command: &Command, name: &str) -> Vec<(&'static str, &'static str)> {
    let mut known = Vec::new();
    if has(command, "source") || has(command, "root") {
        known.push((
            "/sys, /proc",
            "What the running system is read from; --root names another place.",
        ));
    }
    if has(command, "state") {
        known.push((
            "/var/lib/nearfar",
            "Journals of what was changed; --state names another place.",
        ));
    }
    if has(command, "html") {
        known.push((
            "nearfar-checkup.html",
            "The page, where --html names no other.",
        ));
    }
    if name.starts_with("nearfar-prefer") {
        known.push((
            "/etc/nearfar/prefer.toml",
            "The rules of nearfar prefer service.",
        ));
        known.push((
            "/run/nearfar, /var/lib/nearfar",
            "The lock, and the affinities that are put back.",
        ));
    }
    if has(command, "store") || name == "nearfar-runs" || name == "nearfar-bench" {
        known.push(("~/.local/share/nearfar/runs.db", "Stored runs."));
    }
    if is_of_lab(name) {
        known.push((
            "~/.cache/nearfar",
            "Kernels, programs for guests, saved guests.",
        ));
    }
    if name.starts_with("nearfar-trace") {
        known.push((
            "/sys/kernel/tracing",
            "The kernel's descriptions of its events.",
        ));
    }
    // What every verb has.
    known.push((
        "/usr/local/share/doc/nearfar",
        "The documentation, where make install had no other PREFIX.",
    ));
    known
}

/// The page above, those below, related ones, and programs that look at the same things.
fn see_also(command: &Command, name: &str) -> String {
    let mut pages: Vec<String> = name
        .rsplit_once('-')
        .map(|(above, _)| above.to_owned())
        .into_iter()
        .collect();
    pages.extend(
        command
            .get_subcommands()
            .map(|below| format!("{name}-{}", below.get_name())),
    );
    let related = RELATED
        .iter()
        .find(|(of, _)| *of == name)
        .map_or(&[][..], |(_, related)| related);
    pages.extend(related.iter().map(ToString::to_string));
    let own = pages.into_iter().map(|page| format!("{}(1)", bold(&page)));
    let others = ["numactl(8)", "lstopo(1)"].into_iter().map(|page| {
        let (page, section) = page.split_once('(').unwrap_or((page, "1)"));
        format!("{}({section}", bold(page))
    });
    own.chain(others).collect::<Vec<_>>().join(",\n") + "\n"
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
        let mut command = crate::verb::definition().disable_help_subcommand(true);
        command.build();
        let mut found = Vec::new();
        all(&command, "nearfar", &mut found);
        assert!(found.len() > 25, "{} pages", found.len());
        found
    }

    #[test]
    fn every_page_has_every_section_and_values_in_its_synopsis() {
        for (name, command) in verbs() {
            let page = String::from_utf8(page(&command, &name).unwrap()).unwrap();
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
            let (_, examples) = help_of(&command);
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
                if let Err(error) = crate::verb::definition().try_get_matches_from(&words) {
                    panic!("{name}: {example}: {error}");
                }
            }
        }
    }
}
