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
//! Pure: what a task looks like is given. Patterns of names and paths are as a shell has them:
//!
//! ```text
//! *  ?  [a-z]  {a,b}    within one part of a path
//! **                    any number of parts: /a/** is everything below /a
//! ```

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use globset::{Glob, GlobBuilder, GlobMatcher};

use crate::config::{Rule, Tasks};

/// What a process looks like from outside.
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

fn command(asked: &Pattern, attributes: &TaskAttributes) -> bool {
    let executable = attributes.executable.as_deref();
    if asked.as_str().contains('/') {
        return executable.is_some_and(|path| asked.matches(path));
    }
    let file = executable.and_then(|path| path.rsplit('/').next());
    asked.matches(&attributes.name) || file.is_some_and(|file| asked.matches(file))
}

/// Whether a group or one above it matches.
fn within(pattern: &Pattern, group: &str) -> bool {
    let ends = group.match_indices('/').map(|(slash, _)| slash).skip(1);
    ends.chain([group.len()])
        .any(|end| pattern.matches(&group[..end]))
}

/// A checked pattern. It becomes an automaton at its first use, so that matching takes linear time whatever the pattern and
/// the name are: the names of groups and executables are chosen by their owners.
#[derive(Clone, Debug)]
pub struct Pattern {
    glob: Glob,
    matcher: OnceLock<GlobMatcher>,
}

impl Pattern {
    /// # Errors
    /// What is wrong with the pattern, such as a bracket that is not closed.
    pub fn new(text: &str) -> Result<Self, globset::ErrorKind> {
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            // Names of systemd's units contain backslashes (`dev-disk-by\x2duuid`).
            .backslash_escape(false)
            .build()
            .map_err(|error| error.kind().clone())?;
        Ok(Self {
            glob,
            matcher: OnceLock::new(),
        })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        self.glob.glob()
    }

    pub fn matches(&self, name: &str) -> bool {
        self.matcher
            .get_or_init(|| self.glob.compile_matcher())
            .is_match(name)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}
