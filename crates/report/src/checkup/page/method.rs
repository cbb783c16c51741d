//! How each number on the page was made.

use super::Checkup;
use crate::document::{Document, Text};
use crate::latency;
use crate::style::Role;
use crate::summary;
use crate::topo::distances::remark;
use crate::unbound;

/// The section on method.
pub(super) fn section(checkup: &Checkup, out: &mut Document) {
    let (machine, made) = (&checkup.machine, &checkup.made);
    let mut facts: Vec<(&str, Text)> = Vec::new();
    facts.push(("Command", Text::new(Role::Code, &made.command)));
    let version = [Some(made.version.clone()), super::made_at(checkup)];
    let version: Vec<String> = version.into_iter().flatten().collect();
    facts.push(("nearfar", version.join(", ").into()));
    facts.push(("Machine", summary::circumstances(machine).join(", ").into()));
    facts.extend(machine.distances.get().map(|table| {
        let what = "10 is local, 20 means twice as far; what the firmware says, not measured";
        ("Distances", format!("{}; {what}", remark(table)).into())
    }));
    if let Some((matrix, label)) = checkup.probe.get().zip(super::latency_label(checkup)) {
        let method = format!("{label}: {}", latency::method(matrix));
        facts.push(("Latencies", method.into()));
        facts.extend(matrix.pairs.first().map(|pair| {
            let cpus = format!(
                "one of each node, such as CPU {} of node {}; memory bound to its node, pages touched before",
                pair.cpu, pair.cpu_node
            );
            ("CPUs", cpus.into())
        }));
    }
    let unbound = checkup.unbound.get();
    facts.extend(unbound.map(|found| ("Unbound tasks", unbound::method(found).into())));
    facts.push(("Findings", rules(checkup)));
    out.section("method", "How each number was made");
    out.facts(facts);
}

fn rules(checkup: &Checkup) -> Text {
    let rules = checkup.audit.checked.iter();
    match checkup.audit.checked.is_empty() {
        true => "no rule was checked".into(),
        false => rules.fold("rules checked:".into(), |text: Text, rule| {
            text.then(Role::Plain, " ").then(Role::Code, rule)
        }),
    }
}
