//! Reports about many hosts.

use nearfar_fleet::{HostName, Missing, Summary, some_of};

use crate::count;
use crate::document::{Document, Table, Text, cells};
use crate::style::Role;

/// Names of hosts that a line shows.
const SHOWN_HOSTS: usize = 8;

/// What became of the hosts of a run in this folder.
pub fn run(summary: &Summary, folder: &str) -> Document {
    let mut document = Document::new();
    let answered = summary.answered.len();
    document.paragraph(format!(
        "{} answered, {} failed, {} lost{}",
        count(answered, "host"),
        summary.failed.len(),
        summary.lost.len(),
        match summary.not_asked.len() {
            0 => String::new(),
            number => format!(", {number} not asked"),
        }
    ));
    document.table(missing(summary));
    if !summary.not_asked.is_empty() {
        document.labelled("not asked: ", some_of(&summary.not_asked, SHOWN_HOSTS));
    }
    if !summary.is_complete() {
        document.command(format!("nearfar fleet run --resume --results {folder}"));
    }
    if answered > 0 {
        document.command(format!("nearfar fleet collect {folder} --dataset fleet"));
    }
    document
}

fn missing(summary: &Summary) -> Table {
    let mut table = Table::of(["host", "state", "reason"]);
    let mut rows = |state: &str, missing: &[Missing]| {
        for Missing { host, reason } in missing {
            table.row(cells![name(host), state, reason.as_str()]);
        }
    };
    rows("failed", &summary.failed);
    rows("lost", &summary.lost);
    table
}

fn name(host: &HostName) -> Text {
    Role::Subject.text(host)
}
