//! How wide tables are: as the terminal, as COLUMNS says, or 100 columns where there is neither.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::FromRawFd as _;

use crate::harness;
use crate::machines::Laid;

/// The longest line, in characters.
fn longest(text: &str) -> usize {
    text.lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0)
}

/// The verbs that print tables of a recorded machine.
fn verbs(root: &str) -> Vec<Vec<String>> {
    let verbs = [
        "topo --root",
        "audit --root",
        "plan --root",
        "checkup --root",
        "rollback --list --root",
        "spread --count 40 --node 2 --root",
    ];
    let of_tree = verbs.iter().map(|verb| format!("{verb} {root}"));
    let others = [
        "path --source nvme-two-controllers --cpu 0 --subsystem nvme-subsys0",
        "lab machines",
        "audit --explain",
    ];
    let others = others
        .iter()
        .map(ToString::to_string)
        .chain(["audit --explain nvme-far-path".to_owned()]);
    of_tree
        .chain(others)
        .map(|verb| verb.split(' ').map(str::to_owned).collect())
        .collect()
}

#[test]
fn every_table_keeps_to_the_columns_there_are() {
    let tree = Laid::out("x86-queues-on-node-2");
    for verb in verbs(&tree.path("").display().to_string()) {
        let words: Vec<&str> = verb.iter().map(String::as_str).collect();
        let text = |columns: Option<&str>| {
            let command = harness::nearfar(&words);
            match columns {
                Some(columns) => command.env("COLUMNS", columns).prints(),
                None => command.prints(),
            }
        };
        let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).count();
        for columns in ["80", "120", "200"] {
            let answer = text(Some(columns));
            assert!(
                longest(&answer) <= columns.parse().unwrap(),
                "{words:?} at {columns}: {}",
                longest(&answer)
            );
            // A checkup's screen is a summary and cuts sentences; all others lose nothing.
            if words[0] != "checkup" {
                assert_eq!(
                    letters(&answer),
                    letters(&text(None)),
                    "{words:?} at {columns}"
                );
            }
        }
        assert!(longest(&text(None)) <= 100, "{words:?} into a pipe");
        assert_eq!(
            text(Some("many")),
            text(None),
            "{words:?}: COLUMNS that is no number counts for nothing"
        );
    }
}

#[test]
fn a_wider_terminal_has_wider_tables() {
    let printed = |columns: u16| {
        let size = libc::winsize {
            ws_row: 50,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (mut ours, mut theirs) = (0, 0);
        let name = std::ptr::null_mut();
        // SAFETY: both numbers are written by the call, the size is read, the other pointers may be null.
        let made = unsafe {
            libc::openpty(
                &raw mut ours,
                &raw mut theirs,
                name,
                std::ptr::null(),
                &raw const size,
            )
        };
        assert_eq!(made, 0, "no terminal: {}", std::io::Error::last_os_error());
        // SAFETY: openpty has just made them, and nothing else uses them.
        let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
        let child = harness::nearfar(["audit", "--explain", "nvme-far-path"])
            .configure(|command| {
                command.stdout(theirs);
            })
            .spawn();
        let mut text = Vec::new();
        // The kernel answers EIO when the last writer has gone.
        let _ = ours.read_to_end(&mut text);
        child.wait().succeeded();
        String::from_utf8(text).unwrap().replace('\r', "")
    };
    let longest: Vec<usize> = [80, 120, 200, 400]
        .map(|columns| longest(&printed(columns)))
        .to_vec();
    assert!(longest[0] <= 80 && longest[0] > 60, "{longest:?}");
    assert!(longest[1] <= 120 && longest[1] > 100, "{longest:?}");
    assert!(longest[2] <= 200 && longest[2] > 150, "{longest:?}");
    assert!(longest[3] <= 200, "{longest:?}");
}
