//! A published table of tag allocators.
//!
//! ```text
//! # a comment
//! scenario,variant,kiops,sys_percent
//! near-low,limit+topology,1058.1,52.42      the variant is the policy limit_topology
//! ```

use std::collections::BTreeSet;
use std::io::Read;

use nearfar_runs::{Cell, Detail, Sample};

use super::{
    DECLARATION, OPERATIONS, POLICY, PUBLISHED_NAMES, SYSTEM_SHARE, Scenario, policies, scenarios,
};
use crate::published::{
    Agreement, Columns, LeftOut, Line, Lines, PublishedError, PublishedTable, Ranked, Row,
    not_published, only_in_plan,
};
use crate::step::Rounds;

const SCENARIO: &str = "scenario";
const VARIANT: &str = "variant";
const COLUMNS: &str = "scenario, variant, kiops, sys_percent (optional)";

/// A column of figures.
struct Figure {
    column: &'static str,
    /// Whether a file has to have it.
    is_needed: bool,
    /// The largest number in it.
    max: f64,
    /// The metric of a run that it is.
    metric: &'static str,
}

const FIGURES: [Figure; 2] = [
    Figure {
        column: "kiops",
        is_needed: true,
        max: f64::MAX,
        metric: OPERATIONS,
    },
    Figure {
        column: "sys_percent",
        is_needed: false,
        max: 100.0,
        metric: SYSTEM_SHARE,
    },
];

/// A file of published figures.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    /// Their levels: one of [`PUBLISHED_NAMES`], and one of the factor [`POLICY`]; their figures: as [`FIGURES`].
    rows: Vec<Row>,
}

impl PublishedTable for Published {
    const LEVELS: &'static [&'static str] = &[SCENARIO, POLICY];

    fn read(input: impl Read) -> Result<Self, PublishedError> {
        let is_figure = |head: &str| FIGURES.iter().any(|it| it.column == head);
        let is_column = |head: &str| head == SCENARIO || head == VARIANT || is_figure(head);
        let lines = Lines::read(input, is_column, COLUMNS)?;
        let places = Places::of(lines.columns())?;
        let rows = lines.rows(Self::LEVELS, |line| Ok(vec![places.row(line)?]))?;
        Ok(Self { rows })
    }

    fn agreement(&self, detail: &Detail, samples: &[Sample]) -> Vec<Agreement> {
        let all = scenarios(detail);
        let conditions: BTreeSet<Cell> = all.iter().map(Scenario::conditions).collect();
        let rows = &self.rows;
        let mut found = Vec::new();
        for conditions in conditions {
            let of_these = all.iter().filter(|it| it.conditions() == conditions);
            let scenarios: Vec<&Scenario> = of_these.collect();
            for (place, figure) in FIGURES.iter().enumerate() {
                if rows.iter().all(|row| row.figures[place].is_none()) {
                    continue;
                }
                let ranked = Ranked {
                    rounds: &Rounds::of(samples, figure.metric),
                    rows,
                    order: Self::LEVELS,
                    place,
                    metric: figure.metric,
                    column: figure.column,
                    is_mean: false,
                };
                let cell_of = |row: &Row| cell_of(row, &scenarios, detail);
                let others = of_the_run(rows, &scenarios, detail);
                found.push(ranked.agreement(conditions.clone(), cell_of, others));
            }
        }
        found
    }
}

/// Where the columns of a file are.
struct Places {
    scenario: usize,
    variant: usize,
    figures: [Option<usize>; FIGURES.len()],
}

impl Places {
    fn of(columns: &Columns) -> Result<Self, PublishedError> {
        for it in FIGURES.iter().filter(|it| it.is_needed) {
            columns.needed(it.column)?;
        }
        Ok(Self {
            scenario: columns.needed(SCENARIO)?,
            variant: columns.needed(VARIANT)?,
            figures: FIGURES.map(|it| columns.place(it.column)),
        })
    }

    fn row(&self, line: &Line<'_>) -> Result<Row, PublishedError> {
        let known = |place, name: String, known: &[&str]| match known.contains(&&*name) {
            true => Ok(name),
            false => Err(line.unknown(place, &known.join(", "))),
        };
        let mut figures = vec![None; FIGURES.len()];
        for ((figure, place), of) in figures.iter_mut().zip(self.figures).zip(&FIGURES) {
            let Some(place) = place else { continue };
            if of.is_needed || !line.is_empty(place) {
                *figure = Some(line.number(place, of.max)?);
            }
        }
        let scenario = line.text(self.scenario)?.to_owned();
        let scenario = known(self.scenario, scenario, &PUBLISHED_NAMES)?;
        let policy = line.text(self.variant)?.replace(['+', '-'], "_");
        let policy = known(self.variant, policy, DECLARATION.levels_of(POLICY))?;
        Ok(Row {
            levels: Cell::new().with(SCENARIO, scenario).with(POLICY, policy),
            figures,
        })
    }
}

fn cell_of(row: &Row, scenarios: &[&Scenario], detail: &Detail) -> Result<Cell, &'static str> {
    let name = row.levels.text(SCENARIO);
    let scenarios = scenarios.iter().filter(|it| it.published_name == name);
    let cells = scenarios.map(|it| it.cell(&row.levels.text(POLICY)));
    only_in_plan(cells, detail, "the run has it at several depths")
}

/// The run's cells that the published table does not have: scenarios and policies that it does not have at all by their name.
fn of_the_run(rows: &[Row], scenarios: &[&Scenario], detail: &Detail) -> Vec<LeftOut> {
    let has = |of: &dyn Fn(&Row) -> bool| rows.iter().any(of);
    let (mut found, mut rest) = (Vec::new(), Vec::new());
    for policy in policies(detail) {
        match has(&|row| row.levels.text(POLICY) == policy) {
            true => rest.push(policy),
            false => found.push(policy),
        }
    }
    for scenario in scenarios {
        let name = &scenario.published_name;
        let is_it = |row: &Row| row.levels.text(SCENARIO) == *name;
        if !has(&is_it) {
            found.push(name.clone());
            continue;
        }
        let cells = rest.iter().filter(|policy| {
            let is_measured = detail.plan.contains(&scenario.cell(policy));
            is_measured && !has(&|row| is_it(row) && row.levels.text(POLICY) == **policy)
        });
        found.extend(cells.map(|policy| format!("{name} {policy}")));
    }
    not_published(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tags::SYSTEM_SHARE;
    use crate::tags::tests::{policy_cell as cell, run};
    use nearfar_machine::Known;

    const TABLE: &str = "# two machines\n# of one kind\nscenario,variant,kiops,sys_percent\n\
    near-low,stock,1009.5,55\nnear-low,limit+topology,1058.1,52\n\n# far\nfar-low,stock,600.0,72\n\
        far-low,limit,761.7,\nfar-high,stock,400,80\n";

    fn read(text: &str) -> Result<Published, String> {
        Published::read(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        let table = read(TABLE).unwrap();
        let names: Vec<_> = table
            .rows
            .iter()
            .map(|row| row.name(Published::LEVELS))
            .collect();
        assert_eq!(names[1..3], ["near-low limit_topology", "far-low stock"]);
        assert_eq!(table.rows[3].figures, [Some(761.7), None]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let head = "# note\nscenario,variant,kiops\n";
        let cases = [
            (
                "",
                "it is empty: expected a line of columns, scenario, variant, kiops, sys_percent (optional)",
            ),
            ("# only\n", "it is empty"),
            (head, "it has no figures below the line of columns"),
            (
                "scenario,kiops\nnear-low,1\n",
                "line 1: there is no column \"variant\"",
            ),
            (
                "# note\nscenario,variant,kips\n",
                "line 2: unknown or repeated column \"kips\"",
            ),
            (
                "scenario,variant,kiops,kiops\n",
                "line 1: unknown or repeated column \"kiops\"",
            ),
            (
                "# note\nscenario,variant,kiops\nnear-low,stock\n",
                "line 3: it has 2 fields instead of 3",
            ),
            (
                "scenario,variant,kiops\nnear-low,stock,1\rnear-low,limit,2\n",
                "line 2: it has 5 fields instead of 3",
            ),
            (
                "scenario,variant,kiops\rnear-low,stock,1\r",
                "line 1: unknown or repeated column \"kiops\\rnear-low\"",
            ),
            (
                "# note\nscenario,variant,kiops\n# more\nnear-low,stock,fast\n",
                "line 4: kiops is not a number of at least 0: \"fast\"",
            ),
            (
                "scenario,variant,kiops\nnear-low,stock,-1\n",
                "line 2: kiops is not a number",
            ),
            (
                "scenario,variant,kiops\nnear-low,stock,inf\n",
                "line 2: kiops is not a number",
            ),
            (
                "scenario,variant,kiops\nnear-low,stock,\n",
                "line 2: kiops is empty",
            ),
            (
                "scenario,variant,kiops\nnear-low,,1\n",
                "line 2: variant is empty",
            ),
            (
                "scenario,variant,kiops\nnear-mid,stock,1\n",
                "line 2: scenario is unknown: \"near-mid\"; expected near-low, near-high, far-low, far-high, alone",
            ),
            (
                "scenario,variant,kiops\nnear-low,stock+fast,1\n",
                "line 2: variant is unknown: \"stock+fast\"; expected stock, limit, limit_topology, ",
            ),
            (
                "scenario,variant,kiops,sys_percent\nnear-low,stock,1,100.5\n",
                "line 2: sys_percent is not a number from 0 to 100: \"100.5\"",
            ),
            (
                "scenario,variant,kiops\nfar-low,limit+topology,1\n\nfar-low,limit-topology,2\n",
                "line 4: \"far-low limit_topology\" is also on line 2",
            ),
        ];
        for (text, message) in cases {
            let found = read(text).unwrap_err();
            assert!(found.starts_with(message), "{text:?}: {found}");
        }
        let bytes = b"scenario,variant,kiops\nnear-low,st\xffck,1\n".as_slice();
        let found = Published::read(bytes).unwrap_err().to_string();
        assert_eq!(found, "line 2: it is not UTF-8");
        let mut large = TABLE.as_bytes().to_vec();
        large.resize(1 << 20, b'\n');
        assert!(Published::read(large.as_slice()).is_ok());
        large.push(b'\n');
        let found = Published::read(large.as_slice()).unwrap_err().to_string();
        assert_eq!(found, "it is larger than 1024 KiB");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Published::read(bytes.as_slice());
        }

        #[test]
        fn any_fields_are_read_or_refused(rows in prop::collection::vec("[a-z#\"0-9+., -]{0,20}", 0..6)) {
            let text = format!("scenario,variant,kiops\n{}", rows.join("\n"));
            let _ = read(&text);
        }
    }

    fn of_run(medians: [f64; 4], table: &str) -> Vec<Agreement> {
        let cells = [
            cell("stock", "near", 248),
            cell("limit_topology", "near", 248),
            cell("stock", "far", 248),
            cell("limit", "far", 248),
        ];
        let mut cells: Vec<_> = cells.into_iter().zip(medians).collect();
        cells.push((cell("auto", "far", 248), 900.0));
        cells.push((cell("limit", "near", 248), 900.0));
        cells.push((cell("stock", "alone", 248), 900.0));
        let (detail, samples) = run(&cells, 8);
        read(table).unwrap().agreement(&detail, &samples)
    }

    #[test]
    fn the_same_order_has_a_correlation_of_one_and_the_reverse_of_minus_one() {
        let same = &of_run([50.0, 60.0, 10.0, 30.0], TABLE)[0];
        assert_eq!(same.correlation, Known::Yes(1.0));
        let by_round = same.by_round.unwrap();
        assert_eq!((by_round.median, by_round.rounds), (1.0, 8));
        assert!(by_round.confidence.is_some());
        let reverse = &of_run([30.0, 10.0, 60.0, 50.0], TABLE)[0];
        assert_eq!(reverse.correlation, Known::Yes(-1.0));
    }

    #[test]
    fn cells_that_only_one_side_has_are_left_out_with_the_reason() {
        let found = &of_run([50.0, 60.0, 10.0, 30.0], TABLE)[0];
        assert_eq!(found.cells.len(), 4);
        let left_out: Vec<_> = found
            .left_out
            .iter()
            .map(|it| (it.cell.as_str(), it.reason.as_str()))
            .collect();
        assert_eq!(
            left_out,
            [
                ("far-high stock", "the run does not have it"),
                ("auto", "not in the published table"),
                ("near-low limit", "not in the published table"),
                ("alone", "not in the published table"),
            ]
        );
    }

    #[test]
    fn one_worker_alone_is_ranked_where_it_was_published() {
        let table = format!("{TABLE}alone,stock,2000,10\n");
        let found = &of_run([50.0, 60.0, 10.0, 30.0], &table)[0];
        assert_eq!(
            (found.cells.len(), &*found.cells[4].levels.text(SCENARIO)),
            (5, "alone")
        );
        assert_eq!(found.correlation, Known::Yes(1.0));
        assert!(found.left_out.iter().all(|it| it.cell != "alone"));
    }

    #[test]
    fn a_column_that_the_run_has_no_metric_for_has_no_correlation() {
        let found = &of_run([50.0, 60.0, 10.0, 30.0], TABLE)[1];
        assert_eq!(
            (found.metric.as_str(), found.cells.len()),
            (SYSTEM_SHARE, 0)
        );
        assert!(found.correlation.get().is_none());
        assert!(found.by_round.is_none());
    }
}
