//! Each command that an answer proposes does what it says: all of them are collected from the answers about every machine of
//! the gallery, some texts, and this machine, and run as they are printed.

use std::collections::BTreeMap;
use std::path::Path;

use crate::harness::{Answer, NEARFAR, Sandbox, nearfar};

/// What is asked of each machine.
const QUESTIONS: [&str; 6] = [
    "checkup --probe 0",
    "audit",
    "plan",
    "topo",
    "tasks",
    "tasks --groups",
];
/// Boots a guest, changes the system, or watches until it is ended; what is added so that it says what it would do.
const INSTEAD: [(&str, &str); 6] = [
    ("lab run", " --show-command"),
    ("case", " --show-command"),
    ("ab", " --help"),
    ("lab shell", " --help"),
    ("apply", " --dry-run"),
    ("top", " --batch --count 1"),
];

/// The commands in an answer: behind two spaces or in backquotes, up to two spaces, a backquote or the end of the line.
fn proposed(text: &str) -> Vec<String> {
    let starts = text.match_indices("nearfar ").filter(|(at, name)| {
        let (before, after) = (&text[..*at], &text[at + name.len()..]);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let is_verb = after.starts_with(|c: char| c.is_ascii_lowercase());
        is_verb && (line.trim().is_empty() || line.ends_with("  ") || line.ends_with('`'))
    });
    let command = |(at, _): (usize, &str)| {
        let line = text[at..].lines().next().unwrap_or_default();
        let end = ["  ", "`"].iter().filter_map(|end| line.find(end)).min();
        line[..end.unwrap_or(line.len())].trim_end().to_owned()
    };
    starts.map(command).collect()
}

/// A word that the reader has to replace: PID, FILE, `...`.
fn has_placeholder(command: &str) -> bool {
    command
        .split_whitespace()
        .any(|word| word == "..." || word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase()))
}

/// The command as it is run here. What is for a process of another machine is only read.
fn harmless(command: &str, asked: &str) -> String {
    let is_of_source = |it: &str| it.contains("--source") || it.contains("--fake");
    if is_of_source(asked)
        && !is_of_source(command)
        && [" --pid ", " --memory "]
            .iter()
            .any(|it| command.contains(it))
    {
        return format!("{command} --help");
    }
    let rest = command.strip_prefix("nearfar ").unwrap_or_default();
    for (verb, more) in INSTEAD {
        let Some(after) = rest.strip_prefix(verb) else {
            continue;
        };
        if after.is_empty() || after.starts_with(' ') {
            return format!("nearfar {verb}{more}{after}");
        }
    }
    command.to_owned()
}

#[test]
fn every_proposed_command_does_what_it_says() {
    let sandbox = Sandbox::new();
    let bin = sandbox.path("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(NEARFAR, bin.join("nearfar")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let shell = |command: &str| -> Answer {
        let mut sh = sandbox.program("sh");
        sh = sh
            .args(["-c", command])
            .env("PATH", &path)
            .env("COLUMNS", "400");
        sh.run()
    };
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mails");
    let mut sources: Vec<String> = nearfar_sources::gallery()
        .iter()
        .map(|machine| format!("--source {}", machine.name))
        .collect();
    for entry in std::fs::read_dir(texts).unwrap() {
        let file = entry.unwrap();
        let name = file.file_name().into_string().unwrap();
        std::fs::copy(file.path(), sandbox.path(&name)).unwrap();
        sources.push(format!("--source {name}"));
    }
    sources.push("--fake 2,cpus".to_owned());
    sources.push(String::new());
    // By the command, the answer that proposes it first.
    let mut commands = BTreeMap::new();
    for source in &sources {
        for question in QUESTIONS {
            let asked = format!("nearfar {question} {source}");
            for command in proposed(&shell(&asked).text()) {
                commands.entry(command).or_insert(asked.clone());
            }
        }
    }
    let (mut wrong, mut run) = (String::new(), 0);
    for (command, asked) in commands
        .iter()
        .filter(|(command, _)| !has_placeholder(command))
    {
        let answer = shell(&harmless(command, asked));
        run += 1;
        let text = answer.text();
        let does = match answer.code() {
            Some(0) if text.trim().is_empty() => "prints nothing",
            Some(0) if text.contains("Nothing to change") => "changes nothing",
            Some(0) => continue,
            // It says itself what comes before it.
            _ if answer.errors().contains("none is cached") => {
                continue;
            }
            _ => "fails",
        };
        wrong += &format!("{command}\n  of {asked}\n  {does}: {}\n", answer.errors());
    }
    println!("{} commands, {run} run", commands.len());
    assert!(run > 20, "{run} commands: {commands:#?}");
    assert!(wrong.is_empty(), "{wrong}");
}

/// What comes next is about the target of this call.
#[test]
fn commands_after_a_refusal_name_the_target_of_this_call() {
    let sandbox = Sandbox::new();
    let (root, state) = (sandbox.file("a tree"), sandbox.file("state"));
    for directory in [&root, &state] {
        std::fs::create_dir(directory).unwrap();
    }
    let refused = sandbox.nearfar([
        "rollback", "--root", &root, "--state", &state, "--change", "7",
    ]);
    let list = format!("`nearfar rollback --list --root '{root}' --state {state}` shows");
    refused
        .run()
        .exited(2)
        .says(&["there is no change set 7", &list]);
    let mail = "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 8000 MB\nnode 0 free: 10 MB\n\
                node 1 cpus: 2 3\nnode 1 size: 8000 MB\nnode 1 free: 7000 MB\n\
                node distances:\nnode   0   1\n  0:  10  20\n  1:  20  10\n";
    sandbox.write("a mail.txt", mail);
    let text = sandbox
        .nearfar(["audit", "--source", "a mail.txt"])
        .env("COLUMNS", "400")
        .prints();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let spread = "--format systemd --source 'a mail.txt')";
    assert!(text.contains(spread), "{text}");
    assert!(!text.contains("nearfar tasks"), "{text}");
    let text = nearfar(["audit", "--source", "kunpeng", "--device", "eth0"]).prints();
    let plan = "nearfar plan --rule interrupt-far --source kunpeng --device eth0";
    assert!(text.contains(plan), "{text}");
}
