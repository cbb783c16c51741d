//! A published table of the probe: run times, or migrations of single runs.
//!
//! ```text
//! # a comment
//! row,pnid,nb,mem,cpu,avg,max,min,stdev
//! 3,-1,0,1,0,165.95,169.17,162.13,1.57      memory bound to node 1, CPUs to node 0; avg is compared, as the mean of the run's samples
//!
//! pnid,nb,mem,cpu,cross_node_a,cross_node_b
//! -1,0,F,F,1548,1503                        columns that differ in what follows the last _ are samples of one figure
//! ```

use std::io::Read;

use nearfar_runs::{Cell, Detail, Level, Sample};

use super::{
    CPU_NODE, CROSS_NODE, MEMORY_NODE, NUMA_BALANCING, PREFERRED_NODE, SAME_CORE, SAME_NODE,
    read_balancing, read_place, read_preferred,
};
use crate::published::{
    Agreement, Columns, Line, Lines, PublishedError, PublishedTable, Ranked, Row, not_published,
};
use crate::step::Rounds;

const COLUMNS: &str = "pnid, nb, mem, cpu, and avg or same_core, same_node, cross_node (also as cross_node_a, cross_node_b); \
                       row, max, min, stdev are not compared";
const NOT_COMPARED: [&str; 4] = ["row", "max", "min", "stdev"];

/// A column of a factor's levels: its head, the factor, what it may hold.
type LevelColumn = (
    &'static str,
    &'static str,
    fn(&str) -> Option<Level>,
    &'static str,
);

const LEVELS: [LevelColumn; 4] = [
    (
        "pnid",
        PREFERRED_NODE,
        read_preferred,
        "a node, or -1 for none",
    ),
    ("nb", NUMA_BALANCING, read_balancing, "0 or 1"),
    ("mem", MEMORY_NODE, read_place, "a node, or F"),
    ("cpu", CPU_NODE, read_place, "a node, or F"),
];

/// Columns of figures, and the metrics of a run that they are.
const FIGURES: [(&str, &str); 4] = [
    ("avg", "elapsed_s"),
    ("same_core", SAME_CORE),
    ("same_node", SAME_NODE),
    ("cross_node", CROSS_NODE),
];

/// A file of published figures.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    /// With all factors; their figures: as [`FIGURES`].
    rows: Vec<Row>,
}

impl PublishedTable for Published {
    const LEVELS: &'static [&'static str] =
        &[PREFERRED_NODE, NUMA_BALANCING, MEMORY_NODE, CPU_NODE];

    fn read(input: impl Read) -> Result<Self, PublishedError> {
        let is_level = |head: &str| LEVELS.iter().any(|(column, ..)| *column == head);
        let is_column = |head: &str| {
            is_level(head) || NOT_COMPARED.contains(&head) || figure_of(head).is_some()
        };
        let lines = Lines::read(input, is_column, COLUMNS)?;
        let columns = lines.columns();
        if !columns.heads().any(|head| figure_of(head).is_some()) {
            columns.needed(FIGURES[0].0)?;
        }
        let mut places = [0; LEVELS.len()];
        for (place, (column, ..)) in places.iter_mut().zip(LEVELS) {
            *place = columns.needed(column)?;
        }
        let rows = lines.rows(Self::LEVELS, |line| Ok(vec![row(line, columns, places)?]))?;
        Ok(Self { rows })
    }

    fn agreement(&self, detail: &Detail, samples: &[Sample]) -> Vec<Agreement> {
        let has = |cell: &Cell| self.rows.iter().any(|row| row.levels == *cell);
        let name = |cell: &Cell| {
            let levels = Self::LEVELS.iter().map(|factor| cell.text(factor));
            levels.collect::<Vec<_>>().join(" ")
        };
        let others = detail.plan.iter().filter(|cell| !has(cell)).map(name);
        let others = not_published(others);
        let is_there = |place: &usize| self.rows.iter().any(|row| row.figures[*place].is_some());
        let compared = (0..FIGURES.len()).filter(is_there).map(|place| {
            let (column, metric) = FIGURES[place];
            let ranked = Ranked {
                rounds: &Rounds::of(samples, metric),
                rows: &self.rows,
                order: Self::LEVELS,
                place,
                metric,
                column,
                is_mean: true,
            };
            let cell_of = |row: &Row| match detail.plan.contains(&row.levels) {
                true => Ok(row.levels.clone()),
                false => Err("the run does not have it"),
            };
            ranked.agreement(Cell::new(), cell_of, others.clone())
        });
        compared.collect()
    }
}

/// The place in [`FIGURES`] of a column's figure.
fn figure_of(head: &str) -> Option<usize> {
    let is_it = |(column, _): &(&str, &str)| {
        let rest = head.strip_prefix(column);
        rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('_') && rest.len() == 2))
    };
    FIGURES.iter().position(is_it)
}

fn row(
    line: &Line<'_>,
    columns: &Columns,
    places: [usize; LEVELS.len()],
) -> Result<Row, PublishedError> {
    let mut levels = Cell::new();
    for (place, (_, factor, read, expected)) in places.into_iter().zip(LEVELS) {
        let level = read(line.text(place)?).ok_or_else(|| line.unknown(place, expected))?;
        levels = levels.with(factor, level);
    }
    let mut found = vec![Vec::new(); FIGURES.len()];
    for (place, head) in columns.heads().enumerate() {
        if let Some(figure) = figure_of(head)
            && !line.is_empty(place)
        {
            found[figure].push(line.number(place, f64::MAX)?);
        }
    }
    let mean = |of: &Vec<f64>| (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64);
    Ok(Row {
        levels,
        figures: found.iter().map(mean).collect(),
    })
}

#[cfg(test)]
mod tests {
    use nearfar_machine::Known;
    use nearfar_runs::{Better, Factor, Metric};
    use serde_json::json;

    use super::*;

    const TIMES: &str = "# made up\nrow,pnid,nb,mem,cpu,avg,max,min,stdev\n0,-1,0,0,0,100,1,2,3\n1,-1,0,0,1,130,1,2,3\n\
                         2,-1,0,F,F,150,1,2,3\n3,0,1,F,F,101,1,2,3\n";

    fn read(text: &str) -> Result<Published, String> {
        Published::read(text.as_bytes()).map_err(|error| error.to_string())
    }

    fn cell(text: &str) -> Cell {
        let found = read(&format!("pnid,nb,mem,cpu,avg\n{text},1\n"));
        found.unwrap().rows[0].levels.clone()
    }

    /// Two rounds with these run times and moves to another node.
    fn run(figures: &[(&str, [f64; 2], u64)]) -> (Detail, Vec<Sample>) {
        let plan: Vec<Cell> = figures.iter().map(|(text, ..)| cell(text)).collect();
        let detail = Detail {
            parameters: json!({}),
            factors: Factor::of_cells(&plan),
            plan,
            metrics: vec![Metric::real("elapsed_s", "s", Better::Lower).primary()],
            seed: 1,
            ..Detail::default()
        };
        let sample = |round: usize, (text, seconds, moves): &(&str, [f64; 2], u64)| Sample {
            number: 0,
            round: round as u32,
            cell: cell(text),
            started_at_s: 0.0,
            took_s: 1.0,
            values: [
                ("elapsed_s".to_owned(), seconds[round].into()),
                (CROSS_NODE.to_owned(), (*moves).into()),
            ]
            .into(),
            failed: None,
            warnings: Vec::new(),
            detail: json!({}),
        };
        let samples = (0..2).flat_map(|round| figures.iter().map(move |it| sample(round, it)));
        (detail, samples.collect())
    }

    #[test]
    fn averages_are_compared_with_means_and_other_cells_are_left_out() {
        let (detail, samples) = run(&[
            ("-1,0,0,0", [1.0, 3.0], 0),
            ("-1,0,0,1", [2.0, 2.5], 1),
            ("-1,0,F,F", [9.0, 9.0], 2),
            ("1,1,F,F", [9.0, 9.0], 2),
        ]);
        let found = read(TIMES).unwrap().agreement(&detail, &samples);
        let [times] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(times.correlation, Known::Yes(1.0));
        let measured: Vec<f64> = times.cells.iter().map(|it| it.measured).collect();
        assert_eq!(measured, [2.0, 2.25, 9.0]);
        let left_out: Vec<&str> = times.left_out.iter().map(|it| &*it.cell).collect();
        assert_eq!(left_out, ["0 1 F F", "1 1 F F"]);
    }

    #[test]
    fn migrations_of_several_runs_are_one_figure() {
        let table =
            read("pnid,nb,mem,cpu,cross_node_a,cross_node_b\n-1,0,F,F,1548,1503\n-1,0,0,0,1,\n");
        let table = table.unwrap();
        assert_eq!(table.rows[0].figures[3], Some(1525.5));
        assert_eq!(table.rows[1].figures[3], Some(1.0));
        let (detail, samples) = run(&[("-1,0,F,F", [1.0, 1.0], 5), ("-1,0,0,0", [1.0, 1.0], 0)]);
        let found = table.agreement(&detail, &samples);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&*found[0].column, &found[0].correlation),
            ("cross_node", &Known::Yes(1.0))
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, message) in [
            ("pnid,nb,mem,cpu,max\n", "no column \"avg\""),
            ("pnid,nb,mem,avg\n", "no column \"cpu\""),
            ("pnid,nb,mem,cpu,median\n", "repeated column \"median\""),
            (
                "pnid,nb,mem,cpu,avg\n-2,0,0,0,1\n",
                "line 2: pnid is unknown: \"-2\"",
            ),
            ("pnid,nb,mem,cpu,avg\n0,2,0,0,1\n", "line 2: nb is unknown"),
            ("pnid,nb,mem,cpu,avg\n0,1,X,0,1\n", "line 2: mem is unknown"),
            ("pnid,nb,mem,cpu,avg\n0,1,F,0,-1\n", "avg is not a number"),
            (
                "pnid,nb,mem,cpu,avg\n0,1,F,0,1\n0,1,F,0,2\n",
                "is also on line 2",
            ),
            ("pnid,nb,mem,cpu,avg\n", "no figures"),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.contains(message), "{found:?} for {text:?}");
        }
    }
}
