use proptest::prelude::*;

use super::*;
use crate::tags::SYSTEM_SHARE;
use crate::tags::made_up::{cell, run};
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
        .map(|row| row.name(&PUBLISHED_LEVELS))
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
    agreement(&detail, &samples, &read(table).unwrap())
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
