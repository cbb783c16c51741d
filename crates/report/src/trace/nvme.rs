//! Which process submitted NVMe commands on which node, and which controller served them.

use nearfar_machine::Known;
use nearfar_trace::Traced;
use nearfar_trace::nvme::{Namespace, NodeTraffic, NvmeAnswer, Submitter, Through, Unplaced};

use super::{MAX_NAMED, head, not_named, percent, place};
use crate::amount::{count, or};
use crate::document::{Document, Table, Text, cells};
use crate::path::iopolicy;
use crate::style::Role::{self, Dim, Far, Local, Plain, Subject, Warning};

/// Where NVMe commands were submitted, which controller served them, and whether that was the nearest.
pub fn nvme(traced: &Traced<NvmeAnswer>) -> Document {
    let answer = &traced.answer;
    let mut out = head(traced);
    answer
        .namespaces
        .iter()
        .for_each(|it| namespace(it, &mut out));
    if answer.namespaces.is_empty() {
        out.paragraph("The machine has no NVMe namespace to trace.");
    }
    unplaced(&answer.unplaced, &mut out);
    submitters(&answer.submitters, &mut out);
    if answer.unreadable > 0 {
        let events = count(answer.unreadable as usize, "event");
        out.paragraph(Warning.text(format!("{events} could not be parsed")));
    }
    out
}

fn namespace(namespace: &Namespace, out: &mut Document) {
    let remark = format!("{}; {}", namespace.subsystem, iopolicy(&namespace.policy));
    out.heading(&namespace.namespace, remark);
    let mut table = Table::of([
        "submitted on",
        "CPUs",
        "served by",
        "path",
        ">distance",
        ">reads",
        ">writes",
        ">flushes",
        ">others",
        "",
    ]);
    namespace
        .nodes
        .iter()
        .for_each(|node| rows(&mut table, node));
    out.table(table);
    out.gap();
    for controller in &namespace.controllers {
        let node = or(controller.locality.as_ref(), "node unknown");
        let kernel = match &controller.kernel_node {
            Known::Yes(None) => "; for the kernel on no node (-1)",
            _ => "",
        };
        item(out, &controller.controller, Text::from(node + kernel));
    }
    let busy: Vec<&NodeTraffic> = namespace
        .nodes
        .iter()
        .filter(|node| node.commands.total() > 0)
        .collect();
    for node in &busy {
        item(
            out,
            &place(node.node),
            share(&node.nearest_share, node.commands.total()),
        );
    }
    if busy.len() != 1 {
        item(
            out,
            "all",
            share(&namespace.nearest_share, namespace.commands.total()),
        );
    }
}

/// A row for each path that a node used or should have used.
fn rows(table: &mut Table, node: &NodeTraffic) {
    if node.commands.total() == 0 {
        table.row(cells![place(node.node), "", Dim.text("nothing")]);
        return;
    }
    let is_nearest = |through: &Through| {
        node.nearest
            .get()
            .is_some_and(|nearest| nearest.contains(&through.path))
    };
    let is_shown = |through: &&Through| through.commands.total() > 0 || is_nearest(through);
    for (row, through) in node.through.iter().filter(is_shown).enumerate() {
        let first = |text: String| if row == 0 { text } else { String::new() };
        let (role, remark) = match (&node.nearest, is_nearest(through)) {
            (Known::Yes(_), true) => (Local, "nearest"),
            (Known::Yes(_), false) => (Far, ""),
            (Known::No { .. }, _) => (Plain, ""),
        };
        let kinds = through.commands;
        table.row(cells![
            first(place(node.node)),
            first(node.cpus.to_string()),
            Subject.text(&through.controller),
            &through.path,
            role.text(or(through.distance, "?")),
            kinds.reads,
            kinds.writes,
            unless_zero(kinds.flushes),
            unless_zero(kinds.others),
            role.text(remark),
        ]);
    }
}

fn share(share: &Known<f64>, commands: u64) -> Text {
    let commands = count(commands as usize, "command");
    match share {
        Known::Yes(share) => {
            let role = if *share > 0.99 { Local } else { Far };
            role.text(format!(
                "{} of {commands} took the nearest path",
                percent(*share)
            ))
        }
        Known::No { unknown_reason } => Role::Warning.text(format!(
            "the share of {commands} that took the nearest path is unknown: {unknown_reason}"
        )),
    }
}

fn unplaced(unplaced: &[Unplaced], out: &mut Document) {
    if unplaced.is_empty() {
        return;
    }
    out.heading(
        "elsewhere",
        "disks that the machine's description does not have",
    );
    let mut table = Table::of(["disk", "through", ">commands"]);
    for it in unplaced {
        let disk = Some(&it.disk).filter(|disk| !disk.is_empty());
        table.row(cells![
            or(disk, "none"),
            &it.controller,
            it.commands.total()
        ]);
    }
    out.table(table);
}

fn submitters(submitters: &[Submitter], out: &mut Document) {
    if submitters.is_empty() {
        return;
    }
    out.heading("submitted by", not_named(submitters.len()));
    let mut table = Table::of(["process", ">pid", ">commands", "on CPUs"]);
    for it in submitters.iter().take(MAX_NAMED) {
        let name = it.name.as_deref().unwrap_or("(ended)");
        table.row(cells![name, it.pid, it.commands.total(), &it.cpus]);
    }
    out.table(table);
}

fn item(out: &mut Document, name: &str, text: Text) {
    out.labelled(Subject.text(format!("{name}: ")), text);
}

/// A number, or nothing for none, so that a column without any is left out.
fn unless_zero(number: u64) -> String {
    Some(number)
        .filter(|number| *number > 0)
        .map_or_else(String::new, |number| number.to_string())
}
