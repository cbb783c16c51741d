//! Reads the command line, and says what is wrong with it.
//!
//! clap proposes the option whose name is most alike, `--force` for `--source`; what it says of numbers is Rust's own text.

use std::error::Error as _;

use clap::FromArgMatches as _;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use nearfar_machine::near_match;

use crate::shell;
use crate::verb::{Command, definition};

/// Options that change or destroy more than the command does without them. None is proposed for another word.
const NEVER_PROPOSED: [&str; 8] = [
    "all",
    "atomic",
    "destroy",
    "force",
    "keep-changed",
    "override-device-node",
    "shared",
    "yes",
];

/// The options that choose a machine, and what to do where a verb has none of them.
const OF_SOURCES: [&str; 3] = ["--source", "--root", "--fake"];
const ELSEWHERE: [(&str, &str); 7] = [
    (
        "apply",
        "it changes the running system only; nearfar plan shows what would be changed on another machine",
    ),
    (
        "bench",
        "it measures the machine it runs on; nearfar lab run --machine MACHINE -- nearfar bench boots another one",
    ),
    (
        "rollback",
        "changes are listed and undone where they were made: on the running system, or in a directory with --root",
    ),
    (
        "top",
        "it watches the running system only; nearfar tasks shows those of a snapshot",
    ),
    ("exporter", "it watches the running system only"),
    ("prefer", "it keeps tasks of the running system only"),
    (
        "trace",
        "it traces the running system only; nearfar lab run has guests",
    ),
];

/// Verbs of earlier versions, and what they are options of now.
const REPLACED: [(&str, &str); 2] = [
    ("explain", "audit --explain"),
    ("history", "rollback --list"),
];

/// The command that was typed. Does not return where it was wrong or asks for help: the message is printed, the exit code is 2 or 0.
pub fn read() -> Command {
    let words: Vec<_> = std::env::args_os().collect();
    let read = definition()
        .try_get_matches_from(&words)
        .and_then(|matches| Command::from_arg_matches(&matches));
    read.unwrap_or_else(|error| {
        let typed: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
        let error = explained(error, &typed);
        // Of a check by Nagios 2 is critical, and this is unknown.
        let is_check = typed.contains(&"--format=nagios")
            || typed.windows(2).any(|pair| pair == ["--format", "nagios"]);
        if error.use_stderr() && is_check {
            let _ = error.print();
            std::process::exit(3)
        }
        error.exit()
    })
}

fn explained(mut error: clap::Error, typed: &[&str]) -> clap::Error {
    match error.kind() {
        ErrorKind::UnknownArgument => explain_option(&mut error, typed),
        ErrorKind::InvalidSubcommand => explain_verb(&mut error, typed),
        ErrorKind::ValueValidation => {
            let reason = error
                .source()
                .and_then(|reason| wanted(&reason.to_string()));
            if let (Some(wanted), Some(argument), Some(value)) = (
                reason,
                text(&error, ContextKind::InvalidArg),
                text(&error, ContextKind::InvalidValue),
            ) {
                return verb(typed).error(
                    ErrorKind::ValueValidation,
                    format!("invalid value '{value}' for '{argument}': {wanted}"),
                );
            }
        }
        _ => {}
    }
    error
}

/// Names what a verb of an earlier version has become, with the words that were typed after it.
fn explain_verb(error: &mut clap::Error, typed: &[&str]) {
    let unknown = text(error, ContextKind::InvalidSubcommand);
    let replaced = REPLACED
        .iter()
        .find(|(old, _)| unknown.as_deref() == Some(old));
    let at = typed
        .iter()
        .position(|word| Some(*word) == unknown.as_deref());
    let (Some((_, new)), Some(at)) = (replaced, at) else {
        return;
    };
    // `runs history` was never one.
    if verb(&typed[..at]).get_name() != definition().get_name() {
        return;
    }
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::Suggested] {
        error.remove(kind);
    }
    let rest = shell::words(typed[at + 1..].iter().map(Into::into));
    let tip = format!("nearfar {new} {rest}");
    let tip = StyledStr::from(format!("it is an option now: {}", tip.trim_end()));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
}

/// Proposes an option only if its name is that alike and it changes no more than what was typed.
fn explain_option(error: &mut clap::Error, typed: &[&str]) {
    let Some(option) = text(error, ContextKind::InvalidArg) else {
        return;
    };
    let verb = verb(typed);
    let is_command = |argument: &clap::Arg| {
        let names = argument.get_value_names().unwrap_or_default();
        argument.is_last_set() && names == ["COMMAND"]
    };
    if verb.get_arguments().any(is_command)
        && !verb.has_subcommands()
        && !option.starts_with('-')
        && !typed.contains(&"--")
    {
        let tip = format!(
            "a command follows --: -- {} ...",
            shell::words([(&option).into()])
        );
        let tip = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
        error.insert(ContextKind::Suggested, tip);
        return;
    }
    let elsewhere = ELSEWHERE.iter().find(|(name, _)| {
        let own = typed.iter().skip(1).take_while(|word| **word != "--");
        OF_SOURCES.contains(&option.as_str()) && own.into_iter().any(|word| word == name)
    });
    let options: Vec<String> = verb
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .filter_map(|argument| argument.get_long())
        .filter(|long| !NEVER_PROPOSED.contains(long))
        .map(|long| format!("--{long}"))
        .collect();
    let proposed = near_match(&option, options.iter().map(String::as_str));
    for kind in [ContextKind::SuggestedArg, ContextKind::Suggested] {
        error.remove(kind);
    }
    match (elsewhere, proposed) {
        (Some((name, reason)), _) => {
            let tip = StyledStr::from(format!("{name} has no {option}: {reason}"));
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
        (None, Some(proposed)) => {
            let proposed = ContextValue::String(proposed.to_owned());
            error.insert(ContextKind::SuggestedArg, proposed);
        }
        (None, None) => {}
    }
    let usage = ContextValue::StyledStr(verb.clone().render_usage());
    error.insert(ContextKind::Usage, usage);
}

/// The definition of the verb that was typed.
fn verb(typed: &[&str]) -> clap::Command {
    let mut command = definition();
    command.build();
    for word in typed.iter().skip(1) {
        if let Some(below) = command.find_subcommand(word) {
            command = below.clone();
        }
    }
    command
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    }
}

/// What a value has to be, from what the standard library or clap says of one that is wrong.
fn wanted(said: &str) -> Option<String> {
    let kind = match said {
        "invalid float literal" | "cannot parse float from empty string" => "a number such as 2.5",
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "a whole number"
        }
        "invalid socket address syntax" => "an address and a port such as 192.0.2.7:16862",
        "number too large to fit in target type" => "a smaller number",
        "number too small to fit in target type" => "a larger number",
        _ => {
            let (_, range) = said.split_once(" is not in ")?;
            let (least, most) = range.split_once("..")?;
            let most = most.trim_start_matches('=');
            return Some(match most == u64::MAX.to_string() || most.is_empty() {
                true => format!("a whole number from {least} on"),
                false => format!("a whole number from {least} to {most}"),
            });
        }
    };
    Some(kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[&str]) -> String {
        let error = definition().try_get_matches_from(words).unwrap_err();
        explained(error, words).to_string()
    }

    #[test]
    fn no_option_that_changes_more_is_proposed_for_any_other() {
        let mut command = definition();
        command.build();
        let mut verbs = vec![(vec!["nearfar".to_owned()], command)];
        let (mut tried, mut met) = (0, std::collections::BTreeSet::new());
        while let Some((words, verb)) = verbs.pop() {
            for below in verb.get_subcommands().filter(|it| it.get_name() != "help") {
                let words = [words.clone(), vec![below.get_name().to_owned()]].concat();
                verbs.push((words, below.clone()));
            }
            let longs = verb.get_arguments().filter_map(|it| it.get_long());
            for long in longs.filter(|long| NEVER_PROPOSED.contains(long)) {
                met.insert(long.to_owned());
                // A letter too much, one too few, one other.
                for wrong in [
                    format!("{long}x"),
                    long[1..].to_owned(),
                    format!("x{}", &long[1..]),
                ] {
                    let wrong = format!("--{wrong}");
                    let typed: Vec<&str> = words
                        .iter()
                        .map(String::as_str)
                        .chain([wrong.as_str()])
                        .collect();
                    let said = said(&typed);
                    assert!(!said.contains(&format!("--{long}'")), "{typed:?}: {said}");
                    tried += 1;
                }
            }
        }
        assert_eq!(met.len(), NEVER_PROPOSED.len(), "{met:?}");
        assert!(tried > 30, "{tried}");
    }

    #[test]
    fn a_command_without_dashes_before_it_gets_a_tip() {
        for words in [
            &["nearfar", "bench", "command", "./job", "-x"][..],
            &[
                "nearfar",
                "ab",
                "--a",
                "kernel=6.1",
                "--b",
                "kernel=6.12",
                "./job",
            ],
        ] {
            let said = said(words);
            assert!(
                said.contains("a command follows --: -- ./job ..."),
                "{said}"
            );
        }
        for words in [
            &["nearfar", "topo", "./job"][..],
            &["nearfar", "prefer", "servce"],
            &["nearfar", "case", "5", "quick"],
            &["nearfar", "ab", "--a", "x", "y", "--b", "z", "--", "./job"],
        ] {
            let said = said(words);
            assert!(!said.contains("follows"), "{said}");
        }
    }

    #[test]
    fn a_verb_of_the_running_system_says_what_shows_another_machine() {
        let apply = said(&["nearfar", "apply", "--source", "kunpeng"]);
        assert!(apply.contains("nearfar plan shows"), "{apply}");
        assert!(!apply.contains("--force"), "{apply}");
        let top = said(&["nearfar", "top", "--source", "kunpeng"]);
        assert!(top.contains("nearfar tasks"), "{top}");
        let bench = said(&["nearfar", "bench", "latency", "--source", "kunpeng"]);
        assert!(bench.contains("nearfar lab run --machine"), "{bench}");
        let typo = said(&["nearfar", "topo", "--sorce", "kunpeng"]);
        assert!(
            typo.contains("'--source' exists") || typo.contains("'--source'"),
            "{typo}"
        );
    }

    #[test]
    fn a_verb_of_an_earlier_version_is_answered_with_the_option_it_has_become() {
        for (words, command) in [
            (
                ["explain", "interrupt-far"],
                "nearfar audit --explain interrupt-far\n",
            ),
            (["explain", "a rule"], "nearfar audit --explain 'a rule'\n"),
            (
                ["history", "--root=tree"],
                "nearfar rollback --list --root=tree\n",
            ),
        ] {
            let said = said(&[&["nearfar"], &words[..]].concat());
            let tip = format!("tip: it is an option now: {command}");
            assert!(said.contains(&tip), "{words:?}: {said}");
        }
        let alone = said(&["nearfar", "history"]);
        assert!(alone.contains("nearfar rollback --list\n"), "{alone}");
        for words in [["runs", "history"], ["case", "history"], ["nope", "x"]] {
            let said = said(&[&["nearfar"], &words[..]].concat());
            assert!(!said.contains("rollback --list"), "{words:?}: {said}");
        }
    }

    #[test]
    fn numbers_are_refused_in_words_that_say_what_they_have_to_be() {
        for (words, wanted) in [
            (["nearfar", "case", "two"].as_slice(), "a whole number"),
            (
                &["nearfar", "top", "--count", "0"],
                "a whole number from 1 on",
            ),
            (
                &["nearfar", "exporter", "--listen", "x"],
                "an address and a port",
            ),
            (
                &["nearfar", "ab", "--runs", "5000"],
                "a whole number from 1 to 1000",
            ),
        ] {
            let said = said(words);
            assert!(said.contains(wanted), "{words:?}: {said}");
        }
    }
}
