//! Programs that write placement of their own accord, and would undo or be undone by what nearfar writes.
//!
//! ```text
//! irqbalance   proc/*/comm, or enabled: etc/systemd/system/*.wants/irqbalance.service
//! numad        the same
//! tuned        etc/tuned/active_profile, and that profile's tuned.conf with the profiles it includes
//! udev links   */systemd/network/*.link with IRQAffinity...=
//! udev rules   */udev/rules.d/*.rules that write iopolicy, smp_affinity, xps_cpus or rps_cpus
//! ```

mod tuned;
mod udev;

use nearfar_machine::{Known, Writer, WriterKind};

use super::attribute;
use crate::tree::Tree;

const MOST_PROCESSES: usize = 100_000;
/// Configuration files are small; a larger one is something else.
const LARGEST_CONFIG: usize = 1 << 20;

/// Reads who else writes placement. Unknown where there is neither a list of processes nor any configuration, as in a
/// tree that was gathered for its topology.
pub(crate) fn read(tree: &Tree) -> Known<Vec<Writer>> {
    let running = running(tree);
    let configured = tree.exists("etc");
    if running.is_none() && !configured {
        return Known::no(format!(
            "neither {} nor {} was gathered",
            tree.display("proc/*/comm"),
            tree.display("etc")
        ));
    }
    let mut writers = Vec::new();
    for (kind, name, config) in [
        (
            WriterKind::Irqbalance,
            "irqbalance",
            Some("etc/default/irqbalance"),
        ),
        (WriterKind::Numad, "numad", Some("etc/numad.conf")),
    ] {
        writers.extend(service(tree, kind, name, config, running.as_deref()));
    }
    writers.extend(tuned::read(tree, running.as_deref()));
    writers.extend(udev::links(tree));
    writers.extend(udev::rules(tree));
    Known::Yes(writers)
}

/// A process and the file that names it.
struct Process {
    name: String,
    file: String,
}

/// The processes that can be one of the writers; `None` where no process can be seen.
fn running(tree: &Tree) -> Option<Vec<Process>> {
    const WANTED: [&str; 3] = ["irqbalance", "numad", "tuned"];
    let names = tree.list("proc").ok()?;
    let mut seen = false;
    let mut found = Vec::new();
    for pid in names
        .iter()
        .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
        .take(MOST_PROCESSES)
    {
        let file = format!("proc/{pid}/comm");
        let name = tree.with_bytes(&file, |comm| {
            WANTED
                .into_iter()
                .find(|name| comm.trim_ascii_end() == name.as_bytes())
        });
        seen |= name.is_ok();
        if let Ok(Some(name)) = name {
            found.push(Process {
                name: name.to_owned(),
                file,
            });
        }
    }
    seen.then_some(found)
}

/// A service that is running, or enabled, or neither (then it is not mentioned).
fn service(
    tree: &Tree,
    kind: WriterKind,
    name: &str,
    config: Option<&str>,
    running: Option<&[Process]>,
) -> Option<Writer> {
    let options = config
        .and_then(|config| options(tree, config))
        .unwrap_or_default();
    let process = running.and_then(|running| running.iter().find(|process| process.name == name));
    if let Some(process) = process {
        let says = format!("running{options}");
        return Some(Writer {
            kind,
            active: Known::Yes(true),
            evidence: tree.display(&process.file),
            says,
        });
    }
    let enabled = enabled(tree, name)?;
    let active = match running {
        Some(_) => Known::Yes(false),
        None => Known::no(format!("{} was not gathered", tree.display("proc/*/comm"))),
    };
    Some(Writer {
        kind,
        active,
        evidence: tree.display(&enabled),
        says: format!("enabled at boot{options}"),
    })
}

/// The link that makes systemd start a service.
fn enabled(tree: &Tree, name: &str) -> Option<String> {
    let unit = format!("{name}.service");
    let units = "etc/systemd/system";
    let wants = tree
        .list(units)
        .ok()?
        .into_iter()
        .filter(|entry| entry.ends_with(".wants"));
    let links = wants.map(|wants| format!("{units}/{wants}/{unit}"));
    // The link's target lies outside what is usually gathered, so the link itself counts.
    links
        .into_iter()
        .find(|link| tree.link(link).is_ok() || tree.exists(link))
}

/// The settings of a shell-like file in short: `, IRQBALANCE_ARGS="--hintpolicy=exact"`.
fn options(tree: &Tree, path: &str) -> Option<String> {
    let text = config(tree, path)?;
    let set: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    (!set.is_empty()).then(|| format!(", {} says {}", tree.display(path), shorten(&set.join("; "))))
}

fn config(tree: &Tree, path: &str) -> Option<String> {
    tree.with_bytes(path, |bytes| {
        (bytes.len() <= LARGEST_CONFIG).then(|| String::from_utf8_lossy(bytes).into_owned())
    })
    .ok()
    .flatten()
}

/// Foreign text cut to what fits into a message.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 160;
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The word in a file of one word.
fn word(tree: &Tree, path: &str) -> Option<String> {
    attribute::text_of(tree, path).filter(|text| !text.is_empty())
}
