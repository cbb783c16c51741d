//! Which rule has a task: the first in the file whose every given field matches.
//!
//! ```text
//! field     compared with                                                   pattern
//! cgroup    the task's group and each group above it                        `*` stays within one part of the path
//! unit      each part of the path of its group                              redis@*.service
//! command   /proc/PID/comm, and the file name of its executable;            redis-server*
//!           with a slash in it: the whole path of the executable            /opt/*/bin/server
//! ```
//!
//! Pure: what a task attributes like is given.

use crate::config::{Command, Rule, Tasks};
use crate::pattern::PathPattern;

/// What a process attributes like from outside.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TaskAttributes {
    /// The kernel's name for it (`comm`), at most 15 bytes.
    pub name: String,
    /// The path of its executable, where it can be read (kernel threads have none; another user's need CAP_SYS_PTRACE).
    pub executable: Option<String>,
    /// Its control groups, one for each hierarchy: `/system.slice/nginx.service`.
    pub groups: Vec<String>,
}

/// The rules that match, as places in `rules`: the first has the task, the others come too late.
pub fn matching(rules: &[Rule], attributes: &TaskAttributes) -> Vec<usize> {
    let of = |(index, rule): (usize, &Rule)| matches(&rule.tasks, attributes).then_some(index);
    rules.iter().enumerate().filter_map(of).collect()
}

/// Whether all that is given matches.
pub fn matches(tasks: &Tasks, attributes: &TaskAttributes) -> bool {
    let any_group =
        |holds: &dyn Fn(&str) -> bool| attributes.groups.iter().any(|group| holds(group));
    tasks
        .command
        .as_ref()
        .is_none_or(|asked| command(asked, attributes))
        && tasks
            .cgroup
            .as_ref()
            .is_none_or(|asked| any_group(&|group| within(asked, group)))
        && tasks.unit.as_ref().is_none_or(|asked| {
            any_group(&|group| group.split('/').any(|part| asked.matches(part)))
        })
}

fn command(asked: &Command, attributes: &TaskAttributes) -> bool {
    let executable = attributes.executable.as_deref();
    match asked {
        Command::Path(pattern) => {
            executable.is_some_and(|path| pattern.matches(&path.split('/').collect::<Vec<_>>()))
        }
        Command::Name(pattern) => {
            let file = executable.and_then(|path| path.rsplit('/').next());
            pattern.matches(&attributes.name) || file.is_some_and(|file| pattern.matches(file))
        }
    }
}

/// Whether a group or one above it matches.
fn within(pattern: &PathPattern, group: &str) -> bool {
    let parts: Vec<&str> = group.split('/').collect();
    // The first part is empty: what stands before the root.
    (2..=parts.len()).any(|depth| pattern.matches(&parts[..depth]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn rules(text: &str) -> Vec<Rule> {
        config::parse(text, "test").unwrap().rules
    }

    fn attributes(name: &str, executable: &str, group: &str) -> TaskAttributes {
        TaskAttributes {
            name: name.into(),
            executable: Some(executable.into()),
            groups: vec![group.into()],
        }
    }

    #[test]
    fn a_command_is_the_tasks_name_or_its_executables() {
        let rules = rules("[[prefer]]\nname='r'\nnode=1\ncommand='redis-server*'");
        let of =
            |name, executable| !matching(&rules, &attributes(name, executable, "/")).is_empty();
        assert!(of("redis-server", "/usr/bin/redis-check-rdb"));
        assert!(of("io_thread", "/usr/bin/redis-server"));
        assert!(!of("redis-cli", "/usr/bin/redis-cli"));
        assert!(
            !of("sh", "/opt/redis-server/sh"),
            "a directory is no command"
        );
    }

    #[test]
    fn a_command_with_a_slash_is_the_whole_path() {
        let rules = rules("[[prefer]]\nname='r'\nnode=1\ncommand='/opt/*/server'");
        let of = |executable| !matching(&rules, &attributes("server", executable, "/")).is_empty();
        assert!(of("/opt/a/server"));
        assert!(!of("/opt/a/b/server"), "a star stays within one part");
        assert!(!of("/usr/bin/server"));
    }

    #[test]
    fn groups_hold_for_all_below_and_units_for_any_part() {
        let group = rules("[[prefer]]\nname='g'\nnode=0\ncgroup='/a.slice/*.service/'");
        let unit = rules("[[prefer]]\nname='u'\nnode=0\nunit='b@*.service'");
        let of = |rules: &[Rule], path| !matching(rules, &attributes("x", "/x", path)).is_empty();
        assert!(of(&group, "/a.slice/b@1.service") && of(&group, "/a.slice/b@1.service/worker/3"));
        assert!(!of(&group, "/a.slice") && !of(&group, "/z/a.slice/b@1.service"));
        assert!(of(&unit, "/a.slice/b@1.service") && of(&unit, "/a.slice/b@2.service/worker"));
        assert!(!of(&unit, "/a.slice/b.service"));
    }

    #[test]
    fn all_given_fields_have_to_match_and_the_first_rule_has_the_task() {
        let rules = rules(
            "[[prefer]]\nname='both'\nnode=0\nunit='a.service'\ncommand='x'\n\
             [[prefer]]\nname='unit'\nnode=1\nunit='a.service'",
        );
        assert_eq!(
            matching(&rules, &attributes("x", "/x", "/a.service")),
            [0, 1]
        );
        assert_eq!(matching(&rules, &attributes("y", "/y", "/a.service")), [1]);
        assert_eq!(
            matching(&rules, &attributes("x", "/x", "/b.service")),
            [0; 0]
        );
    }
}
