//! The service's configuration: which tasks prefer which node.
//!
//! ```text
//! scan_seconds = 0.5            how often to look for new tasks                     [0.5]
//!
//! [[prefer]]                    rules, in order: the first that matches a task has it
//! name = "database"             in messages; each only once
//! node = 1                      or: near = "nvme0"
//! unit = "postgresql*.service"  and, or instead: cgroup = "/path", command = "pattern"; all that are given must match
//! memory = "untouched"          or "follow": its memory moves there, too            ["untouched"]
//! ```
//!
//! Patterns are those of a shell, see [`matching`](crate::matching), also for what each is compared with.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use nearfar_machine::NodeId;
use serde::Deserialize;
use toml::Spanned;

use crate::keeper::Memory;
use crate::matching::Pattern;

/// How often new tasks are looked for unless the file says otherwise.
pub const SCAN: Duration = Duration::from_millis(500);
/// More often costs more than it can bring, less often is no service.
const SCAN_SECONDS: std::ops::RangeInclusive<f64> = 0.05..=60.0;
/// The highest node number that a kernel can have is below this (`CONFIG_NODES_SHIFT` is at most 10).
const NODES: u32 = 1024;
/// As long as a path can be (`PATH_MAX`).
const LONGEST_PATTERN: usize = 4096;
/// In characters.
const LONGEST_PROBLEM: usize = 400;

/// A configuration that has been read and checked; nothing in it has been compared with a machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// How often new tasks are looked for.
    pub scan: Duration,
    /// In the order of the file; at least one.
    pub rules: Vec<Rule>,
}

/// One `[[prefer]]` table.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// Its name, which no other rule has.
    pub name: String,
    /// Where its tasks are to run.
    pub place: Place,
    /// The tasks it is for.
    pub tasks: Tasks,
    /// What becomes of their memory.
    pub memory: Memory,
    /// Where the table begins in the file, counted from 1.
    pub line: usize,
}

/// Where a rule's tasks are to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A node by its number.
    Node(NodeId),
    /// The node of a device.
    Near(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Near(device) => write!(f, "near {device}"),
        }
    }
}

/// What a task has to look like; what is `None` is not asked. At least one is given.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tasks {
    /// The path of its control group, or of one above that.
    pub cgroup: Option<Pattern>,
    /// A systemd unit that it belongs to.
    pub unit: Option<Pattern>,
    /// Its name or its executable's; one with a slash is the whole path of the executable.
    pub command: Option<Pattern>,
}

/// What is wrong with a configuration, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}:{line}: {problem}")]
pub struct ConfigError {
    pub place: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, with the field's name and what would be right.
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    scan_seconds: Option<Spanned<f64>>,
    #[serde(default)]
    prefer: Vec<Spanned<RawRule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    name: Option<Spanned<String>>,
    node: Option<Spanned<i64>>,
    near: Option<Spanned<String>>,
    cgroup: Option<Spanned<String>>,
    unit: Option<Spanned<String>>,
    command: Option<Spanned<String>>,
    #[serde(default)]
    memory: Memory,
}

/// A problem and where in the text.
type Fault = (Range<usize>, String);

/// Reads and checks a configuration; `place` names the file in messages.
///
/// # Errors
/// The first thing that is wrong, with its line.
pub fn parse(text: &str, place: &str) -> Result<Config, ConfigError> {
    let fault = |(span, problem): Fault| ConfigError {
        place: place.to_owned(),
        line: line(text, span.start),
        problem: readable(problem),
    };
    let raw: RawConfig = toml::from_str(text).map_err(|error| {
        fault((
            error.span().unwrap_or(0..0),
            error.message().trim().replace('\n', ", "),
        ))
    })?;
    let scan = raw.scan_seconds.map_or(Ok(SCAN), scan).map_err(fault)?;
    if raw.prefer.is_empty() {
        return Err(fault((
            0..0,
            "no rule: give at least one [[prefer]] table, see nearfar prefer service --help".into(),
        )));
    }
    let mut rules: Vec<Rule> = Vec::new();
    let (mut names, mut taken) = (HashMap::new(), HashMap::new());
    let mut lines = Lines::of(text);
    for raw in raw.prefer {
        let span = raw.span();
        let rule = rule(raw.into_inner(), span.clone(), lines.at(span.start)).map_err(fault)?;
        if let Some(other) = names.insert(rule.name.clone(), rule.line) {
            return Err(fault((
                span,
                format!("name = \"{}\": the rule of line {other} has it", rule.name),
            )));
        }
        if let Some(other) = taken.insert(rule.tasks.clone(), rules.len()) {
            let Rule { name, line, .. } = &rules[other];
            let problem = format!(
                "\"{}\" matches what \"{name}\" (line {line}) has already taken",
                rule.name
            );
            return Err(fault((span, problem)));
        }
        rules.push(rule);
    }
    Ok(Config { scan, rules })
}

/// What a wrong value holds is in the message: it may be all of the file, or what a terminal obeys.
fn readable(problem: String) -> String {
    let problem = problem.replace(char::is_control, "\u{fffd}");
    match problem.char_indices().nth(LONGEST_PROBLEM) {
        Some((end, _)) => format!("{}...", &problem[..end]),
        None => problem,
    }
}

fn line(text: &str, offset: usize) -> usize {
    Lines::of(text).at(offset)
}

/// The numbers of lines, for places that come in order: what was counted is not counted again.
struct Lines<'a> {
    text: &'a [u8],
    place: usize,
    line: usize,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            text: text.as_bytes(),
            place: 0,
            line: 1,
        }
    }

    fn at(&mut self, place: usize) -> usize {
        let passed = self.text.get(self.place..place).unwrap_or_default();
        self.line += passed.iter().filter(|&&byte| byte == b'\n').count();
        self.place = self.place.max(place);
        self.line
    }
}

fn scan(seconds: Spanned<f64>) -> Result<Duration, Fault> {
    let span = seconds.span();
    let seconds = seconds.into_inner();
    if !SCAN_SECONDS.contains(&seconds) {
        let (least, most) = (SCAN_SECONDS.start(), SCAN_SECONDS.end());
        return Err((
            span,
            format!("scan_seconds = {seconds}: from {least} to {most}"),
        ));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn rule(raw: RawRule, span: Range<usize>, line: usize) -> Result<Rule, Fault> {
    let name = raw
        .name
        .ok_or_else(|| (span.clone(), "a rule needs a name = \"...\"".to_owned()))?;
    if name.get_ref().is_empty() || name.get_ref().chars().any(char::is_control) {
        return Err((
            name.span(),
            "name: at least one character, none of them a control character".to_owned(),
        ));
    }
    let place = place(raw.node, raw.near, &span)?;
    let tasks = Tasks {
        cgroup: raw.cgroup.map(cgroup).transpose()?,
        unit: raw.unit.map(unit).transpose()?,
        command: raw
            .command
            .map(|text| pattern("command", &text))
            .transpose()?,
    };
    if tasks == Tasks::default() {
        return Err((
            span,
            "which tasks? give cgroup, unit or command (all that are given must match)".to_owned(),
        ));
    }
    Ok(Rule {
        name: name.into_inner(),
        place,
        tasks,
        memory: raw.memory,
        line,
    })
}

fn place(
    node: Option<Spanned<i64>>,
    near: Option<Spanned<String>>,
    rule: &Range<usize>,
) -> Result<Place, Fault> {
    match (node, near) {
        (Some(node), None) => match u32::try_from(*node.get_ref())
            .ok()
            .filter(|&number| number < NODES)
        {
            Some(number) => Ok(Place::Node(NodeId(number))),
            None => Err((
                node.span(),
                format!("node = {}: from 0 to {}", node.get_ref(), NODES - 1),
            )),
        },
        (None, Some(near))
            if near.get_ref().trim().is_empty() || near.get_ref().contains(char::is_control) =>
        {
            Err((near.span(), "near: a device such as \"eth0\"".into()))
        }
        (None, Some(near)) => Ok(Place::Near(near.into_inner())),
        (Some(_), Some(near)) => Err((
            near.span(),
            "both node and near: give one of them".to_owned(),
        )),
        (None, None) => Err((
            rule.clone(),
            "where to? give node = N or near = \"DEVICE\"".to_owned(),
        )),
    }
}

/// A pattern that is one, and that does not match every name there is.
fn pattern(field: &str, text: &Spanned<String>) -> Result<Pattern, Fault> {
    let fault = |problem| Err((text.span(), problem));
    let text = text.get_ref();
    if text.len() > LONGEST_PATTERN {
        return fault(format!("{field}: longer than {LONGEST_PATTERN} bytes"));
    }
    if text.chars().all(|character| matches!(character, '/' | '*')) {
        return fault(format!(
            "{field} = \"{text}\": that is everything; leave the field out, or say what is meant"
        ));
    }
    Pattern::new(text).or_else(|error| fault(format!("{field} = \"{text}\": {error}")))
}

fn cgroup(text: Spanned<String>) -> Result<Pattern, Fault> {
    let path = text.get_ref();
    let refused = |why: &str| Err((text.span(), format!("cgroup = \"{path}\": {why}")));
    if !path.starts_with('/') {
        return refused(
            "a path from the root of the groups, as in /proc/PID/cgroup: \"/system.slice/...\"",
        );
    }
    if path.split('/').any(|part| part == "..") {
        return refused("no \"..\"");
    }
    let path = path.trim_end_matches('/').to_owned();
    pattern("cgroup", &Spanned::new(text.span(), path))
}

fn unit(text: Spanned<String>) -> Result<Pattern, Fault> {
    // Below these a unit may sit, they are units themselves; anything else is not a unit's name.
    const KINDS: [&str; 3] = [".service", ".scope", ".slice"];
    let name = text.get_ref();
    if name.contains('/') || !KINDS.iter().any(|kind| name.ends_with(kind)) {
        let problem = format!(
            "unit = \"{name}\": a service, scope or slice with its ending, such as \"nginx.service\""
        );
        return Err((text.span(), problem));
    }
    pattern("unit", &text)
}
