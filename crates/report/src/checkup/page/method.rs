//! How each number on the page was made.

use maud::{Markup, html};

use super::{Checkup, titled};
use crate::floating;
use crate::latency;
use crate::summary;
use crate::topo::distances::remark;
use crate::wrapping::clean;

/// The section on method.
pub(super) fn section(checkup: &Checkup) -> Markup {
    let (machine, made) = (&checkup.machine, &checkup.made);
    titled(
        "method",
        "How each number was made",
        &html! {
                dl.facts {
                    dt { "Command" }
                    dd { code { (clean(&made.command)) } }
                    dt { "nearfar" }
                    dd { (clean(&made.version)) @if let Some(at) = super::made_at(checkup) { ", " (at) } }
                    dt { "Machine" }
                    dd { (clean(&summary::circumstances(machine).join(", "))) }
                    @if let Some(table) = machine.distances.get() {
                        dt { "Distances" }
                        dd { (remark(table)) "; 10 is local, 20 means twice as far; what the firmware says, not measured" }
                    }
                    @if let Some((matrix, label)) = checkup.probe.get().zip(super::latency_label(checkup)) {
                        dt { "Latencies" }
                        dd { (clean(&label)) ": " (latency::method(matrix)) }
                        @if let Some(pair) = matrix.pairs.first() {
                            dt { "CPUs" }
                            dd { "one of each node, such as CPU " (pair.cpu) " of node " (pair.cpu_node) "; memory bound to its node, pages touched before" }
                        }
                    }
                    @if let Some(found) = checkup.floating.get() {
                        dt { "Floating tasks" }
                        dd { (clean(&floating::method(found))) }
                    }
                    dt { "Findings" }
                    dd { @if checkup.audit.checked.is_empty() { "no rule was checked" } @else { "rules checked: " } @for rule in &checkup.audit.checked { code { (clean(rule)) } " " } }
                }
        },
    )
}
