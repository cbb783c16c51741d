//! The processes of the system, and which rule has which.
//!
//! ```text
//! every round   names in /proc ──► new ones, for their first rounds     (a shell becomes the command it starts)
//!                             └─► one in sixteen of the others, in turn (commands that change, numbers used again)
//! ```
//!
//! So a round costs a directory, and a few files for each process looked at. A process that a rule has stays with it until
//! it ends; one that could not be kept is found again after a rest, each time a longer one: trying costs more than looking.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use nearfar_proc::{cgroup, tasks};

use crate::config::Rule;
use crate::keeper::OpenProcess;
use crate::matching::{TaskAttributes, matching};

/// Rounds in which a process is looked at every time.
const YOUNG: u64 = 4;
/// After that once in as many rounds.
const TURN: u64 = 16;
/// The first rest is of one turn, the longest of so many doublings: four minutes, with half a second between rounds.
const DOUBLINGS: u32 = 5;
/// The processes that the last round saw.
#[derive(Debug, Default)]
pub struct Roster {
    known: HashMap<i32, Entry>,
    round: u64,
}

#[derive(Debug)]
struct Entry {
    start: u64,
    since: u64,
    seen: u64,
    rule: Option<usize>,
    /// How often it could not be kept, and why the last time.
    refused: u32,
    reason: String,
    /// It is not looked at before this round; nor is one that has its number by then.
    rests_until: u64,
}

impl Entry {
    fn new(start: u64, round: u64) -> Self {
        Self {
            start,
            since: round,
            seen: round,
            rule: None,
            refused: 0,
            reason: String::new(),
            rests_until: round,
        }
    }
}

/// A process that a rule has from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub pid: i32,
    /// The process, opened before it was matched with the rules.
    pub process: OpenProcess,
    /// The kernel's name for it.
    pub name: String,
    /// The rule, as its place among the rules.
    pub rule: usize,
    /// Rules that would have matched as well and came too late.
    pub also: Vec<usize>,
}

/// What one look at a process told.
struct Seen {
    start: u64,
    attributes: TaskAttributes,
}

impl Roster {
    /// One round: the processes that a rule has now and had not before.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn round(&mut self, rules: &[Rule]) -> io::Result<Vec<Found>> {
        self.round += 1;
        let round = self.round;
        let mut found = Vec::new();
        for pid in tasks::processes()? {
            if let Some(entry) = self.known.get_mut(&pid) {
                entry.seen = round;
                let in_turn = (round + u64::from(pid.unsigned_abs())).is_multiple_of(TURN);
                if round < entry.rests_until || round - entry.since >= YOUNG && !in_turn {
                    continue;
                }
            }
            // It ended meanwhile.
            let Some(mut seen) = look(pid, rules) else {
                continue;
            };
            let entry = self
                .known
                .entry(pid)
                .or_insert(Entry::new(seen.start, round));
            if entry.start != seen.start {
                *entry = Entry::new(seen.start, round);
            }
            if entry.rule.is_some() {
                continue;
            }
            if matching(rules, &seen.attributes).is_empty() {
                continue;
            }
            // It may have been another process by the time its later files were read: what is kept is what was opened, and
            // what was opened is looked at again.
            let Ok(process) = OpenProcess::open(pid) else {
                continue;
            };
            match look(pid, rules) {
                Some(again) if again.start == seen.start => seen = again,
                _ => continue,
            }
            let mut matching = matching(rules, &seen.attributes).into_iter();
            if let Some(rule) = matching.next() {
                entry.rule = Some(rule);
                found.push(Found {
                    pid,
                    process,
                    name: seen.attributes.name,
                    rule,
                    also: matching.collect(),
                });
            }
        }
        self.known.retain(|_, entry| entry.seen == round);
        Ok(found)
    }

    /// Takes its processes from a rule: the next round finds them again.
    pub fn forget(&mut self, rule: usize) {
        self.known.retain(|_, entry| entry.rule != Some(rule));
    }

    /// Takes a process that could not be kept from its rule: it is found again after a rest. Whether the reason is another than
    /// the last time.
    pub fn again(&mut self, pid: i32, reason: &str) -> bool {
        let Some(entry) = self.known.get_mut(&pid) else {
            return true;
        };
        entry.rule = None;
        entry.rests_until = self.round + (TURN << entry.refused.min(DOUBLINGS));
        entry.refused += 1;
        let is_news = entry.reason != reason;
        reason.clone_into(&mut entry.reason);
        is_news
    }
}

/// A process as the rules need to see it; nothing for one that is gone, ending, or a part of the kernel, and for nearfar
/// itself.
fn look(pid: i32, rules: &[Rule]) -> Option<Seen> {
    let (stat, name) = tasks::stat_with_name(pid).ok()?;
    let me = std::process::id().cast_signed();
    let passed_over = stat.is_ended() || stat.is_kernel_thread() || pid == me || stat.parent == me;
    let mut attributes = TaskAttributes {
        name: name.to_text(),
        ..TaskAttributes::default()
    };
    if !passed_over && rules.iter().any(|rule| rule.tasks.command.is_some()) {
        attributes.executable = tasks::executable(pid).ok().map(|path| executable(&path));
    }
    if !passed_over
        && rules
            .iter()
            .any(|rule| rule.tasks.cgroup.is_some() || rule.tasks.unit.is_some())
    {
        attributes.groups = groups(&tasks::groups(pid).unwrap_or_default());
    }
    if passed_over {
        // Seen, so that it is not looked at in every round, and like nothing that a rule can match.
        attributes = TaskAttributes::default();
    }
    Some(Seen {
        start: stat.id.start,
        attributes,
    })
}

/// The path of an executable, also of one that was replaced while it runs (an upgrade).
fn executable(link: &Path) -> String {
    let path = link.to_string_lossy();
    path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned()
}

/// The paths in /proc/PID/cgroup: `0::/system.slice/nginx.service`, `3:cpuset:/a`.
fn groups(content: &[u8]) -> Vec<String> {
    let mut paths: Vec<_> = cgroup::groups(content)
        .map(|group| group.path.to_string_lossy().into_owned())
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_all_hierarchies_are_read() {
        assert_eq!(
            groups(b"1:name=systemd:/a:b\n0::/c\n3:cpuset:/c\n"),
            ["/a:b", "/c"]
        );
    }
}
