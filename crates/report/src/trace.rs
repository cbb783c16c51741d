//! What a trace saw: which path NVMe commands took, and which tasks were moved where, and what waited for locks.

mod locks;
mod migrations;
mod nvme;

use nearfar_machine::NodeId;
use nearfar_trace::{Ended, Traced};

pub use locks::locks;
pub use migrations::migrations;
pub use nvme::nvme;

use crate::amount::count;
use crate::document::Document;
use crate::style::Role::Warning;

/// How many processes or tasks a table names; JSON has all.
const MAX_NAMED: usize = 8;

/// How it was obtained, and whether anything is missing.
fn head<T>(traced: &Traced<T>) -> Document {
    let command = traced.command.as_ref();
    let command = command.map_or_else(String::new, |command| format!(", {}", ended(command)));
    let losses = &traced.losses;
    let events = count(losses.occurred as usize, "event");
    let read = match losses.is_whole() {
        true => "none lost",
        false => "not all read",
    };
    let remark = format!("{:.1} s{command}; {events}, {read}", traced.seconds);
    let mut out = Document::titled("traced", remark);
    if let Some(emulation) = &traced.emulation {
        out.paragraph(Warning.text(emulation));
    }
    if !losses.is_whole() {
        let mut text = format!("{} of {events} are missing", losses.lost);
        if let Some(unwritten @ 1..) = losses.unwritten {
            text += &format!(", {unwritten} of them not recorded by the kernel");
        }
        if losses.damaged + losses.throttled > 0 {
            let (damaged, paused) = (losses.damaged, losses.throttled);
            text += &format!("; {damaged} damaged, paused {paused} times by the kernel");
        }
        out.paragraph(Warning.text(text + ": the counts below are too low"));
    }
    if !traced.cpus_not_traced.is_empty() {
        let cpus = &traced.cpus_not_traced;
        out.paragraph(Warning.text(format!("not traced, offline: CPUs {cpus}")));
    }
    out
}

fn ended(command: &Ended) -> String {
    let how = match (command.exit_code, command.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "end unknown".to_owned(),
    };
    format!("{how} of: {}", command.command.join(" "))
}

/// How many of a list a table does not name.
fn not_named(all: usize) -> String {
    match all.saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!("and {more} more, see JSON"),
    }
}

fn place(node: Option<NodeId>) -> String {
    node.map_or_else(|| "no known node".to_owned(), |node| format!("node {node}"))
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    // 99.97 must not read as all of it.
    match percent {
        _ if share >= 1.0 => "100 %".to_owned(),
        0.0 => "0 %".to_owned(),
        99.0..100.0 => format!("{:.2} %", (percent * 100.0).floor() / 100.0),
        _ => format!("{percent:.1} %"),
    }
}
