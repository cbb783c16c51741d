//! The run as an author writes it below a patch: policies in rows, near and far, low and high in columns, with what is significant.

use nearfar_bench::step::Step;
use nearfar_bench::tags::{
    CPU_PER_OPERATION, Findings, OPERATIONS, POLICY, SYSTEM_SHARE, Scenario,
};
use nearfar_statistics::compare::Verdict;

use crate::amount::{decimals, figure};
use crate::document::{Align, Document, Table, Text};
use crate::runs::Shown;
use crate::style::Role;

/// Columns of a mail that the scenarios of one table may take.
const MAX_COLUMNS: usize = 52;

/// What the marks are.
const MARKS: &str = "+ significantly better, - significantly worse, = equivalent, ~ not significant: limit against stock, \
                     limit_topology against limit, the others against all three (-: worse than one at least)";

/// A scenario's figures, a text for each policy.
struct Figures {
    head: String,
    cells: Vec<String>,
}

impl Figures {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(String::len);
        cells.chain([self.head.len()]).max().unwrap_or(0)
    }
}

/// The tables.
pub(super) fn tables(shown: &Shown<'_>, findings: &Findings, out: &mut Document) {
    let policies = policies(findings, shown);
    let (alone, others): (Vec<_>, Vec<_>) = findings.scenarios.iter().partition(|it| it.is_alone());
    let columns = others.iter();
    let columns = columns.map(|it| with_others(shown, findings, it, &policies));
    let columns: Vec<Figures> = columns.collect();
    if !columns.is_empty() {
        out.heading(
            "kIOPS and system time in %",
            "medians of thousands of operations/s",
        );
        for columns in fitting(&columns) {
            out.table(table(&policies, columns));
        }
        out.remark(super::LEGEND);
        out.remark(MARKS);
    }
    for scenario in alone {
        let remark = "one worker, tags to spare; medians, marks against stock";
        out.heading(scenario.name.as_str(), remark);
        let columns = alone_columns(shown, findings, scenario, &policies);
        out.table(table(&policies, &columns));
    }
}

/// The policies of all scenarios, in the order of the run.
fn policies(findings: &Findings, shown: &Shown<'_>) -> Vec<String> {
    let mut policies = Vec::new();
    for scenario in &findings.scenarios {
        for cell in shown.cells {
            let policy = cell.cell.text(POLICY);
            if cell.cell == scenario.cell(&policy) && !policies.contains(&policy) {
                policies.push(policy);
            }
        }
    }
    policies
}

fn median(shown: &Shown<'_>, scenario: &Scenario, policy: &str, metric: &str) -> Option<f64> {
    let cell = scenario.cell(policy);
    let mut cells = shown.cells.iter();
    cells.find(|it| it.cell == cell)?.metric(metric)?.median
}

/// The digits of a metric's medians in a unit of so much.
fn digits(shown: &Shown<'_>, metric: &str, unit: f64) -> usize {
    let medians = shown
        .cells
        .iter()
        .filter_map(|it| it.metric(metric)?.median);
    decimals(medians.fold(0.0, f64::max) / unit)
}

fn with_others(
    shown: &Shown<'_>,
    findings: &Findings,
    scenario: &Scenario,
    policies: &[String],
) -> Figures {
    let digits = digits(shown, OPERATIONS, 1e3);
    let cell = |policy: &String| {
        let median = |metric| median(shown, scenario, policy, metric);
        let Some(operations) = median(OPERATIONS) else {
            return String::new();
        };
        let mark = mark(findings, scenario, policy);
        let system = median(SYSTEM_SHARE).map(|it| format!(" {:>3.0}", 100.0 * it));
        let system = system.unwrap_or_default();
        format!("{:.digits$}{mark}{system}", operations / 1e3)
    };
    Figures {
        head: scenario.name.clone(),
        cells: policies.iter().map(cell).collect(),
    }
}

fn alone_columns(
    shown: &Shown<'_>,
    findings: &Findings,
    scenario: &Scenario,
    policies: &[String],
) -> Vec<Figures> {
    let column = |(head, metric, unit): (&str, &'static str, f64)| {
        let digits = digits(shown, metric, unit);
        let cell = |policy: &String| {
            let median = median(shown, scenario, policy, metric);
            let mark = alone_mark(findings, scenario, policy, metric);
            let text = median.map(|it| format!("{}{mark}", figure(it / unit, digits)));
            text.unwrap_or_default()
        };
        Figures {
            head: head.to_owned(),
            cells: policies.iter().map(cell).collect(),
        }
    };
    let columns = [
        ("kIOPS", OPERATIONS, 1e3),
        ("CPU ns/operation", CPU_PER_OPERATION, 1.0),
        ("system %", SYSTEM_SHARE, 0.01),
    ];
    let has_text = |it: &Figures| it.cells.iter().any(|cell| !cell.is_empty());
    columns.into_iter().map(column).filter(has_text).collect()
}

/// `None` for a policy that is not compared, such as the one that others are compared with.
fn mark_of(step: Option<&Step>) -> char {
    match step.map(Step::verdict) {
        None => ' ',
        Some(Some(Verdict::Better)) => '+',
        Some(Some(Verdict::Worse)) => '-',
        Some(Some(Verdict::Equivalent | Verdict::Equal)) => '=',
        Some(_) => '~',
    }
}

fn mark(findings: &Findings, scenario: &Scenario, policy: &str) -> char {
    let orders = findings.orders.iter();
    let orders = orders.filter(|it| it.scenario == scenario.name);
    let mut steps = orders.flat_map(|it| &it.steps);
    if let Some(step) = steps.find(|step| step.b.text(POLICY) == policy) {
        return mark_of(Some(step));
    }
    let mut others = findings.others.iter();
    let other = others.find(|it| it.scenario == scenario.name && it.policy == policy);
    let Some(other) = other else { return ' ' };
    let marks: Vec<char> = other.steps.iter().map(|it| mark_of(Some(it))).collect();
    let all = |mark: char| marks.iter().all(|it| *it == mark);
    match marks.contains(&'-') {
        _ if other.beats_all => '+',
        true => '-',
        false if all('=') => '=',
        false if all('+') => '+',
        false => '~',
    }
}

fn alone_mark(findings: &Findings, scenario: &Scenario, policy: &str, metric: &str) -> char {
    let cell = scenario.cell(policy);
    let mut steps = findings.alone.iter();
    mark_of(steps.find(|step| step.b == cell && step.metric == metric))
}

/// The columns in groups that fit next to each other.
fn fitting(columns: &[Figures]) -> Vec<&[Figures]> {
    let mut groups = Vec::new();
    let mut rest = columns;
    while !rest.is_empty() {
        let mut taken = 0;
        let fits = |column: &&Figures| {
            taken += column.width() + 2;
            taken <= MAX_COLUMNS
        };
        let number = rest.iter().take_while(fits).count().max(1);
        let (group, others) = rest.split_at(number);
        groups.push(group);
        rest = others;
    }
    groups
}

fn table(policies: &[String], columns: &[Figures]) -> Table {
    let heads = columns.iter().map(|it| (it.head.as_str(), Align::Right));
    let heads: Vec<_> = [("policy", Align::Left)].into_iter().chain(heads).collect();
    let mut table = Table::new(&heads);
    for (row, policy) in policies.iter().enumerate() {
        let figures = columns.iter().map(|it| Text::from(&it.cells[row]));
        let name = Role::Subject.text(policy);
        table.row([name].into_iter().chain(figures));
    }
    table
}
