//! A published table of throughput by tasks, with a column for each number of nodes.
//!
//! ```text
//! # a comment
//! processes,one_node,two_fake_nodes
//! 1,1000,1010                               tasks 1 on machines with one node and with two
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use nearfar_machine::NodeSet;
use nearfar_runs::{Cell, Detail, Level, Sample};
use nearfar_statistics::law::{self, Law};

use super::findings::curve_nodes;
use super::{DECLARATION, NODES_USED, OPERATIONS, TASKS};
use crate::published::{
    Agreement, Between, LeftOut, Line, Lines, PublishedError, PublishedLaw, PublishedTable, Ranked,
    Row, not_published, only_in_plan,
};
use crate::step::Rounds;

const PROCESSES: &str = "processes";
/// In a column's name and as a level.
const NODES: &str = "nodes";
const COLUMNS: &str =
    "processes, and one_node, two_nodes, two_fake_nodes, ... or 1_node, 2_nodes, ...";
const NUMBERS: [&str; 8] = [
    "one", "two", "three", "four", "five", "six", "seven", "eight",
];
const MAX_NODES: i64 = 1024;

/// A file of published figures, operations per second.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    /// Their levels: [`TASKS`] and [`NODES`]; one figure each.
    rows: Vec<Row>,
}

impl PublishedTable for Published {
    const LEVELS: &'static [&'static str] = &[TASKS, NODES];

    /// A field without a figure is not published.
    fn read(input: impl Read) -> Result<Self, PublishedError> {
        let is_column = |head: &str| head == PROCESSES || nodes_of(head).is_some();
        let lines = Lines::read(input, is_column, COLUMNS)?;
        let columns = lines.columns();
        let tasks = columns.needed(PROCESSES)?;
        let heads = columns.heads().enumerate();
        let figures: Vec<(usize, i64)> = heads
            .filter_map(|(place, head)| Some((place, nodes_of(head)?)))
            .collect();
        let rows = lines.rows(Self::LEVELS, |line| rows(line, tasks, &figures))?;
        Ok(Self { rows })
    }

    /// Once for each combination of the levels of the workload and the other factors of the experiment. The nodes are those that each
    /// sample saw online.
    fn agreement(&self, detail: &Detail, samples: &[Sample]) -> Vec<Agreement> {
        let curves = curves(detail, samples);
        // Guests, and the nodes of a machine that are used, are what makes the number of nodes.
        let is_condition = |factor: &str| {
            factor != NODES_USED && DECLARATION.factors.iter().any(|it| it.name == factor)
        };
        let conditions_of = |it: &OfNodes| it.levels.only(is_condition);
        let all: BTreeSet<Cell> = curves.iter().map(conditions_of).collect();
        let ranked = Ranked {
            rounds: &Rounds::of(samples, OPERATIONS),
            rows: &self.rows,
            order: Self::LEVELS,
            place: 0,
            metric: OPERATIONS,
            column: "operations/s",
            is_mean: false,
        };
        let agreement = |conditions: Cell| {
            let of_these = curves.iter().filter(|it| conditions_of(it) == conditions);
            let curves: Vec<&OfNodes> = of_these.collect();
            let others = of_the_run(&self.rows, &curves, detail);
            let found = ranked.agreement(conditions, |row| cell_of(row, &curves, detail), others);
            let laws = self.laws();
            Agreement { laws, ..found }
        };
        all.into_iter().map(agreement).collect()
    }
}

impl Published {
    /// The law of the figures of each number of nodes that are enough for one.
    fn laws(&self) -> Vec<PublishedLaw> {
        let mut curves: BTreeMap<i64, Vec<(u32, f64)>> = BTreeMap::new();
        for row in &self.rows {
            let number = |name| row.levels.text(name).parse::<i64>().unwrap_or(0);
            let tasks = u32::try_from(number(TASKS)).unwrap_or(0);
            let figures = row.figures.iter().flatten();
            let curve = curves.entry(number(NODES)).or_default();
            curve.extend(figures.map(|figure| (tasks, *figure)));
        }
        let law = |(nodes, figures): (i64, Vec<(u32, f64)>)| {
            let law = law::of_figures(&figures)?;
            Some(PublishedLaw {
                nodes,
                law,
                peak: law.peak(),
                between: between(law, &figures),
            })
        };
        curves.into_iter().filter_map(law).collect()
    }
}

/// The law at halves, quarters, ... of the largest number of tasks, without those of figures.
fn between(law: Law, figures: &[(u32, f64)]) -> Vec<Between> {
    let most = figures.iter().map(|it| it.0).max().unwrap_or(0);
    let halves = std::iter::successors(Some(most), |tasks| Some(tasks / 2));
    let missing = halves
        .take_while(|tasks| *tasks > 1)
        .filter(|tasks| !figures.iter().any(|it| it.0 == *tasks));
    let at = |tasks: u32| Between {
        tasks,
        throughput: law.throughput(tasks.into()),
    };
    let mut between: Vec<Between> = missing.map(at).collect();
    between.reverse();
    between
}

/// The number of nodes that a column is of: 2 for `two_nodes`, `two_fake_nodes` and `2_nodes`.
fn nodes_of(head: &str) -> Option<i64> {
    let (number, rest) = head.split_once('_')?;
    let rest = rest.strip_prefix("fake_").unwrap_or(rest);
    let word = (1..).zip(NUMBERS).find(|(_, word)| *word == number);
    let number = match word {
        Some((number, _)) => number,
        None => number.parse().ok()?,
    };
    let is_number = (1..=MAX_NODES).contains(&number);
    (is_number && ["node", "nodes"].contains(&rest)).then_some(number)
}

fn rows(
    line: &Line<'_>,
    tasks: usize,
    figures: &[(usize, i64)],
) -> Result<Vec<Row>, PublishedError> {
    let wrong = || line.unknown(tasks, "a number of tasks");
    let number: u32 = line.text(tasks)?.parse().map_err(|_| wrong())?;
    if number == 0 {
        return Err(wrong());
    }
    let published = figures.iter().filter(|(place, _)| !line.is_empty(*place));
    published
        .map(|(place, nodes)| {
            let levels = Cell::new().with(TASKS, i64::from(number));
            Ok(Row {
                levels: levels.with(NODES, *nodes),
                figures: vec![Some(line.number(*place, f64::MAX)?)],
            })
        })
        .collect()
}

/// Cells that differ in the number of tasks only, on machines with one number of nodes.
struct OfNodes {
    nodes: i64,
    levels: Cell,
}

fn curves(detail: &Detail, samples: &[Sample]) -> Vec<OfNodes> {
    let levels: BTreeSet<Cell> = detail.plan.iter().map(without_tasks).collect();
    let of_nodes = |levels: Cell| {
        let lists = curve_nodes(samples, &levels);
        let [list] = lists.as_slice() else {
            return None;
        };
        let used = match levels.level(NODES_USED) {
            Some(Level::Number(used)) => *used,
            _ => i64::try_from(list.parse::<NodeSet>().ok()?.len()).ok()?,
        };
        Some(OfNodes {
            nodes: used,
            levels,
        })
    };
    levels.into_iter().filter_map(of_nodes).collect()
}

fn without_tasks(cell: &Cell) -> Cell {
    cell.only(|factor| factor != TASKS)
}

fn cell_of(row: &Row, curves: &[&OfNodes], detail: &Detail) -> Result<Cell, &'static str> {
    let nodes = row.levels.level(NODES);
    let tasks = row.levels.level(TASKS).cloned().unwrap_or(Level::Number(0));
    let of_nodes = curves.iter().filter(|it| Some(&it.nodes.into()) == nodes);
    let cells = of_nodes.map(|it| it.levels.clone().with(TASKS, tasks.clone()));
    only_in_plan(cells, detail, "the run has it in several guests")
}

/// The run's numbers of tasks and nodes that the published table does not have.
fn of_the_run(rows: &[Row], curves: &[&OfNodes], detail: &Detail) -> Vec<LeftOut> {
    let mut found = Vec::new();
    for curve in curves {
        let cells = detail.plan.iter();
        for cell in cells.filter(|it| without_tasks(it) == curve.levels) {
            let tasks = cell.text(TASKS);
            let nodes = curve.nodes.to_string();
            let is_it =
                |row: &Row| row.levels.text(TASKS) == tasks && row.levels.text(NODES) == nodes;
            if !rows.iter().any(is_it) {
                found.push(format!("{tasks} {nodes}"));
            }
        }
    }
    not_published(found)
}

#[cfg(test)]
mod tests {
    use nearfar_machine::Known;
    use nearfar_runs::{Better, Factor, Metric};
    use serde_json::json;

    use super::*;
    use crate::scale::{BINDING, WORKLOAD};

    const TABLE: &str =
        "# made up\nprocesses,one_node,two_fake_nodes\n1,10,11\n4,30,40\n8,20,\n16,15,60\n";

    fn read(text: &str) -> Result<Published, String> {
        Published::read(text.as_bytes()).map_err(|error| error.to_string())
    }

    fn cell(fake: &str, tasks: i64) -> Cell {
        let cell = Cell::new().with(WORKLOAD, "lru").with(BINDING, "bound");
        cell.with("append", fake).with(TASKS, tasks)
    }

    /// A run with such operations per second in each of six rounds. `nodes`: online where `append` is `b`.
    fn run(figures: &[(Cell, f64)], nodes: &str) -> (Detail, Vec<Sample>) {
        let plan: Vec<Cell> = figures.iter().map(|(cell, _)| cell.clone()).collect();
        let detail = Detail {
            parameters: json!({}),
            factors: Factor::of_cells(&plan),
            plan,
            metrics: vec![Metric::real(OPERATIONS, "1/s", Better::Higher).primary()],
            seed: 1,
            ..Detail::default()
        };
        let sample = |(number, round, (cell, value)): (u64, u32, &(Cell, f64))| Sample {
            number,
            round,
            cell: cell.clone(),
            started_at_s: 0.0,
            took_s: 1.0,
            values: [(OPERATIONS.to_owned(), (*value).into())].into(),
            failed: None,
            warnings: Vec::new(),
            detail: json!({"nodes": if cell.text("append") == "b" { nodes } else { "0" }}),
        };
        let rounds = (1..=6).flat_map(|round| figures.iter().map(move |it| (round, it)));
        let samples = (1..)
            .zip(rounds)
            .map(|(number, (round, it))| sample((number, round, it)));
        (detail, samples.collect())
    }

    #[test]
    fn columns_are_numbers_of_nodes() {
        for (head, nodes) in [
            ("one_node", Some(1)),
            ("two_fake_nodes", Some(2)),
            ("four_nodes", Some(4)),
            ("16_nodes", Some(16)),
            ("0_nodes", None),
            ("-1_nodes", None),
            ("two_sockets", None),
            ("nodes", None),
        ] {
            assert_eq!(nodes_of(head), nodes, "{head}");
        }
    }

    #[test]
    fn a_field_without_a_figure_is_no_cell() {
        let rows = read(TABLE).unwrap().rows;
        let names: Vec<String> = rows.iter().map(|row| row.name(Published::LEVELS)).collect();
        assert_eq!(names, ["1 1", "1 2", "4 1", "4 2", "8 1", "16 1", "16 2"]);
        assert_eq!(rows[6].figures, [Some(60.0)]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, message) in [
            (
                "",
                "it is empty: expected a line of columns, processes, and one_node",
            ),
            ("one_node\n1\n", "line 1: there is no column \"processes\""),
            (
                "processes,sockets\n",
                "line 1: unknown or repeated column \"sockets\"",
            ),
            ("processes,one_node\n", "it has no figures"),
            ("processes,one_node\n4,\n", "it has no figures"),
            ("processes\n4\n", "it has no figures"),
            (
                "processes,one_node\nmany,1\n",
                "line 2: processes is unknown: \"many\"; expected a number of tasks",
            ),
            (
                "processes,one_node\n0,1\n",
                "line 2: processes is unknown: \"0\"",
            ),
            ("processes,one_node\n,1\n", "line 2: processes is empty"),
            (
                "processes,one_node\n4,NaN\n",
                "line 2: one_node is not a number of at least 0: \"NaN\"",
            ),
            (
                "processes,one_node\n4,1\n\n4,2\n",
                "line 4: \"4 1\" is also on line 2",
            ),
            (
                "processes,two_nodes,2_nodes\n4,1,2\n",
                "line 2: \"4 2\" is also on line 2",
            ),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.starts_with(message), "{text:?}: {found}");
        }
    }

    #[test]
    fn cells_are_ranked_by_tasks_and_the_nodes_that_were_online() {
        let figures = [
            (cell("a", 1), 100.0),
            (cell("a", 4), 300.0),
            (cell("b", 1), 110.0),
            (cell("b", 4), 400.0),
            (cell("b", 2), 900.0),
        ];
        let (detail, samples) = run(&figures, "0-1");
        let found = read(TABLE).unwrap().agreement(&detail, &samples);
        let [found] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(found.correlation, Known::Yes(1.0));
        assert_eq!((found.cells.len(), found.by_round.unwrap().rounds), (4, 6));
        let left_out: Vec<&str> = found.left_out.iter().map(|it| it.cell.as_str()).collect();
        assert_eq!(left_out, ["8 1", "16 1", "16 2", "2 2"]);
        let json = serde_json::to_value(&found.cells[0]).unwrap();
        assert_eq!(
            json,
            json!({"tasks": 1, "nodes": 1, "published": 10.0, "measured": 100.0})
        );
    }

    #[test]
    fn three_published_figures_determine_a_law_and_what_lies_between() {
        let law = Law {
            lambda: 1000.0,
            sigma: 0.02,
            kappa: 0.001,
        };
        let line = |tasks: u32| format!("{tasks},{}\n", law.throughput(tasks.into()));
        let text = format!("processes,two_nodes\n{}{}{}", line(1), line(12), line(96));
        let laws = read(&text).unwrap().laws();
        let [found] = laws.as_slice() else {
            panic!("{laws:?}");
        };
        assert_eq!(found.nodes, 2);
        assert!((found.law.sigma - law.sigma).abs() < 1e-9, "{found:?}");
        assert!((found.law.kappa - law.kappa).abs() < 1e-9, "{found:?}");
        let tasks: Vec<u32> = found.between.iter().map(|it| it.tasks).collect();
        assert_eq!(tasks, [3, 6, 24, 48]);
        let expected = law.throughput(24.0);
        assert!((found.between[2].throughput / expected - 1.0).abs() < 1e-9);
        let few = format!("processes,two_nodes\n{}{}", line(1), line(12));
        assert!(read(&few).unwrap().laws().is_empty());
    }

    #[test]
    fn guests_with_the_same_number_of_nodes_are_not_mixed() {
        let figures = [
            (cell("a", 1), 100.0),
            (cell("b", 1), 110.0),
            (cell("b", 4), 400.0),
        ];
        let (detail, samples) = run(&figures, "0");
        let found = &read(TABLE).unwrap().agreement(&detail, &samples)[0];
        let first = &found.left_out[0];
        assert_eq!(
            (first.cell.as_str(), first.reason.as_str()),
            ("1 1", "the run has it in several guests")
        );
        assert_eq!(found.cells.len(), 1);
        assert!(found.correlation.get().is_none());
    }

    #[test]
    fn guests_of_many_nodes_match_no_column() {
        let (detail, samples) = run(&[(cell("b", 1), 1.0), (cell("b", 4), 2.0)], "0-3");
        let found = &read(TABLE).unwrap().agreement(&detail, &samples)[0];
        assert!(found.cells.is_empty());
    }
}
