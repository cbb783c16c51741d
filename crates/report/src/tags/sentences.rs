//! The findings in words. Each figure has its interval; what is not significant is said to be that.

use nearfar_bench::step::Step;
use nearfar_bench::tags::findings::{Order, OrderVerdict, policies_of};
use nearfar_bench::tags::{CPU_PER_OPERATION, DISTANCE, Findings, Groups, POLICY, Scenario};
use nearfar_machine::{CpuId, NodeId};
use nearfar_runs::Cell;
use nearfar_statistics::compare::Verdict;

use crate::compare::figures::change;
use crate::document::Text;
use crate::style::Role;

/// Where the workers of a level of the factor distance were.
pub(super) fn groups(distance: &str, groups: &Groups) -> String {
    let on = |node: NodeId, cpus: &[CpuId], what: &str| {
        let cpus: Vec<String> = cpus.iter().map(CpuId::to_string).collect();
        format!("node {node}{what}, CPUs {}", cpus.join(", "))
    };
    let own = on(groups.device_node, &groups.device_cpus, " (the device's)");
    let other = groups
        .other_node
        .map(|node| format!("; {}", on(node, &groups.other_cpus, "")));
    format!("{distance}: {own}{}", other.unwrap_or_default())
}

/// How verdicts are made.
pub(super) const METHOD: &str = "Operations per second and, alone, CPU time per operation, paired by round: Wilcoxon's signed \
                                 ranks. For each of the four questions (published order, other policies, far, alone) the chance \
                                 of any false alarm is 5 % (Holm).";

/// All of them.
pub(super) fn of(findings: &Findings) -> Vec<Text> {
    let mut said = orders(findings);
    said.extend(others(findings));
    said.extend(far(findings));
    said.extend(alone(findings));
    if said.is_empty() {
        said.push(Role::Dim.text(
            "the cells of this run have nothing to be compared with: it takes a published policy and another one, or near and far; alone, stock and another one",
        ));
    }
    said
}

/// The finding in two sentences: the published order, then the other policies.
pub(super) fn summary(findings: &Findings) -> Vec<Text> {
    let mut said = Vec::new();
    if !findings.orders.is_empty() {
        let parts = [
            (OrderVerdict::Holds, "holds in"),
            (OrderVerdict::HoldsInPart, "holds in part in"),
            (OrderVerdict::Contradicted, "is contradicted in"),
            (OrderVerdict::NotSignificant, "is not significant in"),
            (OrderVerdict::Unknown, "is unknown in"),
        ];
        let part = |(verdict, words): (OrderVerdict, &str)| {
            let of = findings.orders.iter().filter(|it| it.verdict == verdict);
            let names: Vec<&str> = of.map(|it| it.scenario.as_str()).collect();
            let among = findings.orders.len();
            let is_in_none = verdict == OrderVerdict::NotSignificant && names.len() == among;
            (!names.is_empty()).then(|| match is_in_none {
                true => format!("is significant in none of {among} scenarios"),
                false => format!("{words} {}", scenarios(&names, among)),
            })
        };
        let parts: Vec<String> = parts.into_iter().filter_map(part).collect();
        let text = format!(
            "The order stock < limit < limit_topology {}.",
            parts.join("; it ")
        );
        said.push(text.into());
    }
    let policies = policies_of_others(findings);
    if !policies.is_empty() {
        let mut parts: Vec<(String, Vec<&str>)> = Vec::new();
        for policy in policies {
            let of = findings.others.iter().filter(|it| it.policy == policy);
            let of: Vec<_> = of.collect();
            let beaten = of.iter().filter(|it| it.beats_all);
            let beaten: Vec<&str> = beaten.map(|it| it.scenario.as_str()).collect();
            let beaten = scenarios(&beaten, of.len());
            match parts.iter_mut().find(|(known, _)| *known == beaten) {
                Some((_, policies)) => policies.push(policy),
                None => parts.push((beaten, vec![policy])),
            }
        }
        let part =
            |(beaten, policies): &(String, Vec<&str>)| format!("by {} in {beaten}", list(policies));
        let parts: Vec<String> = parts.iter().map(part).collect();
        said.push(format!("All three are beaten {}.", parts.join("; ")).into());
    }
    said
}

/// A sentence a scenario: is the published order there?
fn orders(findings: &Findings) -> Vec<Text> {
    findings.orders.iter().map(order).collect()
}

fn order(order: &Order) -> Text {
    let (role, verdict) = match order.verdict {
        OrderVerdict::Holds => (Role::Near, "the published order"),
        OrderVerdict::HoldsInPart => (Role::Plain, "the published order in part"),
        OrderVerdict::Contradicted => (Role::Far, "not the published order"),
        OrderVerdict::NotSignificant => (Role::Dim, "no order is significant"),
        OrderVerdict::Unknown => (Role::Dim, "unknown"),
    };
    let steps: Vec<String> = order.steps.iter().map(step).collect();
    Role::Heading
        .text(format!("{}: ", order.scenario))
        .then(role, verdict)
        .then(Role::Plain, format!(": {}", steps.join("; ")))
}

/// `limit +27 % (+25 to +29) against stock`, `auto CPU time per operation -40 % (-42 to -37) against stock, better`.
fn step(step: &Step) -> String {
    let (a, b) = policies_of(step);
    let what = match step.metric == CPU_PER_OPERATION {
        true => "CPU time per operation ",
        false => "",
    };
    let compared = match step.compared.get() {
        Some(compared) => compared,
        None => {
            let reason = step.compared.unknown_reason().unwrap_or_default();
            return format!("{b} {what}against {a} unknown: {reason}");
        }
    };
    let change = format!("{b} {what}{} against {a}", change(compared));
    match compared.verdict {
        // Less is better: the sign alone could be misread.
        Verdict::Better if !what.is_empty() => format!("{change}, better"),
        Verdict::Better | Verdict::Different => change,
        Verdict::Worse => format!("{change}, worse"),
        Verdict::Equivalent => format!("{change}, equivalent"),
        Verdict::Equal => format!("{b} {what}equal to {a}"),
        Verdict::NotSignificant => format!("{change}, not significant"),
        Verdict::TooFewSamples => format!("{change}, too few samples"),
        Verdict::OneRunASide => format!("{change}, one run a side"),
    }
}

/// The policies that were not published, each once.
fn policies_of_others(findings: &Findings) -> Vec<&str> {
    let mut policies: Vec<&str> = Vec::new();
    for other in &findings.others {
        if !policies.contains(&other.policy.as_str()) {
            policies.push(&other.policy);
        }
    }
    policies
}

/// A sentence a policy: where does it beat the published three? [`super::tables::others`] has the steps.
fn others(findings: &Findings) -> Vec<Text> {
    let sentence = |policy: &str| {
        let of = findings.others.iter().filter(|it| it.policy == policy);
        let of: Vec<_> = of.collect();
        let beaten = of.iter().filter(|it| it.beats_all);
        let beaten: Vec<&str> = beaten.map(|it| it.scenario.as_str()).collect();
        let role = match beaten.is_empty() {
            true => Role::Plain,
            false => Role::Near,
        };
        let text = format!("better than all three in {}", scenarios(&beaten, of.len()));
        Role::Heading.text(format!("{policy}: ")).then(role, text)
    };
    let policies = policies_of_others(findings).into_iter();
    policies.map(sentence).collect()
}

/// The scenario of a cell.
fn scenario_of<'a>(findings: &'a Findings, cell: &Cell) -> Option<&'a Scenario> {
    let levels = cell.only(|factor| factor != POLICY);
    findings.scenarios.iter().find(|it| it.levels == levels)
}

/// Those of some steps whose second cell is of a scenario.
fn steps_to<'a>(findings: &Findings, steps: &'a [Step], to: &Scenario) -> Vec<&'a Step> {
    let is_of = |step: &&Step| scenario_of(findings, &step.b) == Some(to);
    steps.iter().filter(is_of).collect()
}

/// A sentence a far scenario: what do the policies lose against near?
fn far(findings: &Findings) -> Vec<Text> {
    let of = |it: &Scenario| {
        let steps = steps_to(findings, &findings.distances, it);
        let near = scenario_of(findings, &steps.first()?.a)?;
        let of_policy = |step: &&Step| {
            let policy = step.b.text(POLICY);
            let Some(compared) = step.compared.get() else {
                return format!("{policy} unknown");
            };
            format!("{policy} {}", change(compared))
        };
        let changes: Vec<String> = steps.iter().map(of_policy).collect();
        let text = format!("against {}: {}", near.name, changes.join(", "));
        Some(
            Role::Heading
                .text(format!("{}: ", it.name))
                .then(Role::Plain, text),
        )
    };
    let far = findings.scenarios.iter();
    far.filter(|it| it.levels.text(DISTANCE) == "far")
        .filter_map(of)
        .collect()
}

/// A sentence a scenario of one worker: does a policy make it worse?
fn alone(findings: &Findings) -> Vec<Text> {
    let alone = findings.scenarios.iter().filter(|it| it.is_alone());
    let of = |it: &Scenario| alone_in(it, &steps_to(findings, &findings.alone, it));
    alone.filter_map(of).collect()
}

fn alone_in(scenario: &Scenario, steps: &[&Step]) -> Option<Text> {
    if steps.is_empty() {
        return None;
    }
    let of = |verdict: Verdict| {
        let of = steps.iter().filter(|it| it.verdict() == Some(verdict));
        of.map(|it| step(it)).collect::<Vec<_>>()
    };
    let unknown = steps.iter();
    let unknown = unknown.filter(|it| matches!(it.verdict(), None | Some(Verdict::TooFewSamples)));
    let (worse, unknown) = (of(Verdict::Worse), unknown.count());
    let label = Role::Heading.text(format!("{}: ", scenario.name));
    let text = match (worse.as_slice(), unknown) {
        ([], 0) => label.then(Role::Near, "no policy is significantly worse than stock"),
        ([], _) => label.then(Role::Dim, "unknown: too few samples"),
        (worse, _) => label.then(Role::Far, worse.join("; ")),
    };
    let better: Vec<String> = of(Verdict::Better);
    Some(match better.is_empty() {
        true => text,
        false => text.then(Role::Plain, format!("; {}", better.join("; "))),
    })
}

/// Some of so many scenarios.
fn scenarios(names: &[&str], among: usize) -> String {
    match names.len() {
        0 => "no scenario".to_owned(),
        number if number == among && among > 1 => format!("all {among} scenarios"),
        _ => list(names),
    }
}

/// `a, b and c`.
fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}
