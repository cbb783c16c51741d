//! The documentation is run: every `$ command` in a ```console block of README.md and docs/*.md prints what stands below
//! it.
//!
//! Commands of one page run one after the other in one directory that holds the gallery as `machines/`, some mails as
//! `mails/`, and a recorded machine as `tree/`. A line `...` in the expected output stands for any number of lines. `UPDATE_DOCS=1 cargo test -p nearfar
//! --test main documents::` rewrites the outputs that have no `...`. Blocks marked ```text are not run. A command that needs a tool of
//! [`FOREIGN`] is left out where that is not installed, and counted as skipped.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::harness::{NEARFAR, Sandbox};
use crate::machines;

/// Programs of others that commands in the documentation use.
const FOREIGN: [&str; 8] = [
    "lstopo",
    "lstopo-no-graphics",
    "numactl",
    "jq",
    "dot",
    "python3",
    "rsvg-convert",
    "migratepages",
];

#[test]
fn the_pipe_in_the_help_of_topo_works_with_the_installed_lstopo() {
    if let Some(missing) = missing_tool("lstopo") {
        return println!("skipped: tools: {missing} is not installed");
    }
    let help = run(&Sandbox::new(), "nearfar topo --help", Path::new("."));
    let pipe = help
        .lines()
        .map(str::trim)
        .find(|line| line.contains("| lstopo"))
        .expect("the help names no pipe");
    // On a terminal lstopo opens a window where there is a display.
    let output = run(
        &Sandbox::new(),
        &format!("{pipe} --of console"),
        Path::new("."),
    );
    assert!(output.starts_with("Machine "), "{pipe}\n{output}");
}

/// The first tool of [`FOREIGN`] that a command uses and that is not installed.
fn missing_tool(command: &str) -> Option<&'static str> {
    let uses = |tool: &&&str| {
        command
            .split(|c: char| c.is_whitespace() || "|;&()".contains(c))
            .any(|word| word == **tool)
    };
    let installed = |tool: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
    };
    FOREIGN
        .iter()
        .filter(uses)
        .find(|tool| !installed(tool))
        .copied()
}

#[test]
fn every_command_in_the_documentation_prints_what_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages: Vec<PathBuf> = std::fs::read_dir(root.join("docs"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.push(root.join("README.md"));
    pages.sort();
    let mut wrong = String::new();
    let mut commands = 0;
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        // What a page without commands would not use takes a second to lay out.
        if !text.contains("```console\n") {
            continue;
        }
        let place = workplace(&root);
        let updated = run_page(&text, &place.path(""), &mut commands);
        if updated == text {
            continue;
        }
        match std::env::var_os("UPDATE_DOCS") {
            Some(_) => std::fs::write(page, updated).unwrap(),
            None => write!(
                wrong,
                "--- {}\n{}",
                page.display(),
                difference(&text, &updated)
            )
            .unwrap(),
        }
    }
    assert!(
        commands > 10,
        "only {commands} commands were found in {} pages",
        pages.len()
    );
    assert!(wrong.is_empty(), "{wrong}");
}

/// A directory in which a page's commands find what they name.
fn workplace(root: &Path) -> machines::Laid {
    let place = machines::Laid::out_below("x86-queues-on-node-2", "tree");
    for (name, target) in [
        ("machines", root.join("machines")),
        ("mails", root.join("crates/cli/tests/mails")),
    ] {
        place.link(name, target.canonicalize().unwrap().to_str().unwrap());
    }
    place
}

/// The page with each output as it is now.
fn run_page(text: &str, directory: &Path, commands: &mut usize) -> String {
    let mut page = String::new();
    let mut lines = text.lines().peekable();
    let mut inside = false;
    let sandbox = Sandbox::new();
    while let Some(line) = lines.next() {
        writeln!(page, "{line}").unwrap();
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ => {}
        }
        let Some(command) = line.strip_prefix("$ ").filter(|_| inside) else {
            continue;
        };
        let mut command = command.to_owned();
        while command.ends_with('\\') {
            let next = lines.next().unwrap();
            writeln!(page, "{next}").unwrap();
            command = format!("{}{}", command.trim_end_matches('\\'), next.trim_start());
        }
        let mut expected = String::new();
        while let Some(output) = lines.next_if(|line| !line.starts_with("$ ") && *line != "```") {
            writeln!(expected, "{output}").unwrap();
        }
        *commands += 1;
        if let Some(missing) = missing_tool(&command) {
            println!("skipped: tools: {missing} is not installed: {command}");
            page += &expected;
            continue;
        }
        let actual = run(&sandbox, &command, directory);
        page += if matches(&expected, &actual) {
            &expected
        } else {
            &actual
        };
    }
    page
}

fn run(sandbox: &Sandbox, command: &str, directory: &Path) -> String {
    let binary = Path::new(NEARFAR).parent().unwrap().display();
    let path = format!("{binary}:{}", std::env::var("PATH").unwrap());
    sandbox
        .program("sh")
        .args(["-c", &format!("{{ {command}\n}} 2>&1")])
        .env("PATH", path)
        .configure(|command| {
            command.current_dir(directory);
        })
        .run()
        .text()
}

/// Whether the output is the expected one, in which a line `...` stands for any lines.
fn matches(expected: &str, actual: &str) -> bool {
    let mut rest = actual;
    for (index, part) in expected.split("...\n").enumerate() {
        let at = match index {
            0 => rest.starts_with(part).then_some(0),
            _ => rest.find(part),
        };
        let Some(at) = at else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty() || expected.ends_with("...\n")
}

fn difference(expected: &str, actual: &str) -> String {
    let mut text = String::new();
    for (number, (a, b)) in expected.lines().zip(actual.lines()).enumerate() {
        if a != b {
            writeln!(text, "line {}\n  page: {a}\n  now:  {b}", number + 1).unwrap();
            break;
        }
    }
    text + "The whole page as it is now:\n" + actual
}
