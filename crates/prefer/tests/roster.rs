//! Which processes of this system the service finds, and when it looks at them again.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use nearfar_prefer::config::{self, Rule};
use nearfar_prefer::service::roster::Roster;

/// Rounds between two looks at a process that is not new.
const TURN: u64 = 16;

/// A process that waits for its standard input to end.
fn waiting(command: &str) -> Child {
    Command::new(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn rules(text: &str) -> Vec<Rule> {
    config::parse(text, "test").unwrap().rules
}

fn ended(mut child: Child) {
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn children_of_the_service_itself_are_passed_over() {
    let child = waiting("cat");
    let found = Roster::default()
        .round(&rules("[[prefer]]\nname='c'\nnode=0\ncommand='/*/cat'"))
        .unwrap();
    assert!(
        found
            .iter()
            .all(|found| found.pid != child.id().cast_signed()),
        "{found:?}"
    );
    ended(child);
}

#[test]
fn a_process_is_found_once_and_by_the_first_rule() {
    // A shell in between, so that the process is not this one's child.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "exec 3<&0; cat <&3 & echo $!; wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let pid: i32 = line.trim().parse().unwrap();
    let rules = rules(
        "[[prefer]]\nname='cat'\nnode=0\ncommand='ca[t]'\n[[prefer]]\nname='path'\nnode=0\ncommand='/*/*/cat'\n\
         [[prefer]]\nname='short'\nnode=0\ncommand='/*/cat'",
    );
    let mut roster = Roster::default();
    let mut mine = || {
        roster
            .round(&rules)
            .unwrap()
            .into_iter()
            .find(|found| found.pid == pid)
    };
    // Just forked, it may still be the shell: the first rounds look again.
    let found = (0..1000)
        .find_map(|_| mine())
        .expect("found while it is young");
    assert_eq!(
        (found.name.as_str(), found.rule, found.also.len()),
        ("cat", 0, 1),
        "{found:?}"
    );
    assert_eq!((0..40).find_map(|_| mine()), None);
    for rest in [TURN, 2 * TURN] {
        assert_eq!(roster.again(pid, "no room"), rest == TURN, "said once");
        let mut found = || {
            roster
                .round(&rules)
                .unwrap()
                .iter()
                .any(|found| found.pid == pid)
        };
        let rounds = (1..=rest + TURN).find(|_| found());
        assert!(
            rounds.is_some_and(|rounds| rounds >= rest),
            "{rounds:?} for {rest}"
        );
    }
    ended(shell);
}
