//! What the lab finds on a machine, and how to fix what is missing.

use nearfar_lab::doctor::{Doctor, State};

use crate::amount::count;
use crate::document::{Document, Table, cells};
use crate::style::Role::{self, Critical, Local, Subject, Warning};

/// Every part with its state; below, for each that is missing or degraded, the consequence and the command that fixes it.
pub fn document(doctor: &Doctor) -> Document {
    let (missing, degraded) = (doctor.count(State::Missing), doctor.count(State::Degraded));
    let remark = match (missing, degraded) {
        (0, 0) => "everything is there".to_owned(),
        _ => {
            let (ok, all) = (doctor.count(State::Ok), count(doctor.items.len(), "part"));
            format!("{ok} of {all} ok, {degraded} degraded, {missing} missing")
        }
    };
    let mut out = Document::titled("Lab", remark);
    let mut table = Table::of(["", "part", ""]);
    for item in &doctor.items {
        let (role, word) = word(item.state);
        table.row(cells![
            role.text(word),
            Subject.text(&item.what),
            &item.detail
        ]);
    }
    out.table(table);
    if missing + degraded > 0 {
        out.heading("What to do", "");
    }
    // What is missing keeps people from more than what is degraded.
    for state in [State::Missing, State::Degraded] {
        for item in doctor.items.iter().filter(|item| item.state == state) {
            let label = word(state).0.text(format!("{}: ", item.what));
            out.labelled(label, item.consequence.as_deref().unwrap_or_default());
            item.command.iter().for_each(|command| out.command(command));
        }
    }
    out
}

fn word(state: State) -> (Role, &'static str) {
    match state {
        State::Ok => (Local, "ok"),
        State::Degraded => (Warning, "degraded"),
        State::Missing => (Critical, "missing"),
    }
}
