//! Tables of samples as sides: what an export names otherwise, what another program writes.

use std::fs::File;

use nearfar_compare::{Columns, CompareError, Comparison, Definitions, Options, Side, compare};
use nearfar_machine::{Machine, Origin, SourceKind};
use nearfar_runs::export::{Table, Whole, write_csv, write_parquet};
use nearfar_runs::{
    Better, Cell, Factor, Histogram, Host, Metric, NewRun, NewSample, SampleResult, Store,
};
use serde_json::json;

/// A run whose factors and metrics have names of other columns.
fn whole() -> Whole {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(&directory.path().join("runs.db")).unwrap();
    let factors = [
        Factor::new("kernel", ["6.1", "6.12"]),
        Factor::new("host", [5u32, 10]),
        Factor::new("run", ["a", "b"]),
        Factor::new("round", [true, false]),
        Factor::new("speed", ["low"]),
    ];
    let metrics = [
        Metric::real("speed", "1/s", Better::Higher).primary(),
        Metric::real("label", "s", Better::Lower),
        Metric::histogram("latency", "ns", Better::Lower),
    ];
    let begun = NewRun {
        experiment: "fake",
        title: "nothing is measured",
        label: Some("before"),
        parameters: &json!({}),
        factors: &factors,
        cells: &Cell::all(&factors),
        samples_per_cell: 4,
        metrics: &metrics,
        seed: 7,
        warnings: &[],
        machine: &Machine::empty(Origin::new(SourceKind::Synthetic, "none"), "not asked"),
        fingerprint: "f",
        host: &Host::here(),
        targets: &[],
    };
    let run = store.begin(&begun).unwrap();
    for round in 1..=4 {
        for (cell, number) in Cell::all(&factors).into_iter().zip(1u32..) {
            let mut latency = Histogram::new();
            latency.record((100 * number + round).into());
            let values = [
                ("speed".to_owned(), f64::from(10 * number + round).into()),
                ("label".to_owned(), f64::from(20 * number + round).into()),
                ("latency".to_owned(), latency.into()),
            ];
            let sample = NewSample {
                round,
                cell,
                started_at_s: 1.75e9,
                took_s: 2.0,
                result: SampleResult::Measured {
                    values: values.into(),
                    warnings: Vec::new(),
                    detail: json!({"factor_x": 1}),
                },
            };
            store.add_sample(run, &sample).unwrap();
        }
    }
    store.whole(run).unwrap()
}

fn options() -> Options {
    Options {
        margin: 0.01,
        metrics: Vec::new(),
        across: Default::default(),
        judges_single_runs: true,
    }
}

/// Metric, cell, design, medians, p.
fn figures(comparison: &Comparison) -> Vec<String> {
    let rows = comparison.rows.iter();
    rows.map(|row| {
        let (a, b) = (&row.compared.a, &row.compared.b);
        let (design, p) = (row.compared.design, row.compared.p);
        format!(
            "{} {} {design:?} {} {} {p}",
            row.metric, row.cell, a.median, b.median
        )
    })
    .collect()
}

#[test]
fn factors_and_metrics_with_names_of_other_columns_come_back_from_tables() {
    let whole = whole();
    let stored = Side::of_run("run 1", &whole);
    let table = Table::of(&[whole]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let [csv, parquet] = ["t.csv", "t.parquet"].map(|name| directory.path().join(name));
    write_csv(&table, &mut File::create(&csv).unwrap()).unwrap();
    write_parquet(&table, File::create(&parquet).unwrap()).unwrap();
    let csv = Columns::of_csv(File::open(&csv).unwrap()).unwrap();
    let parquet = Columns::of_parquet(File::open(&parquet).unwrap()).unwrap();
    let own = parquet.definitions().unwrap().clone();
    for (columns, definitions) in [(csv, stored.definitions()), (parquet, &own)] {
        let columns = columns.of_run(None).unwrap();
        let side = Side::of_rows("table", &columns, definitions).unwrap();
        for factor in ["kernel", "host", "run", "round"] {
            let figures = |side: &Side| {
                let levels = side.by(factor, None).unwrap();
                figures(&compare(&levels, &options()).unwrap())
            };
            let of_run = figures(&stored);
            // Four metrics in each combination of the three other factors.
            assert_eq!(of_run.len(), 32, "{of_run:?}");
            assert!(of_run[0].contains("Paired"), "{of_run:?}");
            assert_eq!(figures(&side), of_run, "{factor}");
        }
    }
}

/// The rows of a file that another program wrote, with the factor `node` and the metric `seconds`.
fn of_csv(text: &str) -> Result<Side, CompareError> {
    let definitions = Definitions {
        metrics: vec![Definitions::metric("seconds", Better::Lower)],
        factors: vec!["node".to_owned()],
    };
    Side::of_rows(
        "t.csv",
        &Columns::of_csv(text.as_bytes())?.of_run(Some("2"))?,
        &definitions,
    )
}

#[test]
fn levels_of_a_table_are_paired_where_it_has_rounds() {
    let rows = |has_rounds: bool, same: bool| {
        let mut text = format!("node,seconds{}\n", if has_rounds { ",round" } else { "" });
        for round in 1..=8 {
            for node in [10, 5] {
                let number = if same { 1 } else { round };
                let round_is = if has_rounds {
                    format!(",{number}")
                } else {
                    String::new()
                };
                text += &format!(
                    "{node},{}{round_is}\n",
                    f64::from(round) + 0.01 * f64::from(node)
                );
            }
        }
        let side = of_csv(&text).unwrap();
        let levels = side.by("node", None).unwrap();
        let comparison = compare(&levels, &options()).unwrap();
        let names = levels.iter().map(|side| side.name.clone());
        assert_eq!(names.collect::<Vec<_>>(), ["node=5", "node=10"]);
        (levels[0].is_paired(), comparison.rows[0].compared.clone())
    };
    let (is_paired, paired) = rows(true, false);
    assert!(is_paired && paired.is_significant, "{paired:?}");
    let (is_paired, unpaired) = rows(false, false);
    assert!(!is_paired && !unpaired.is_significant, "{unpaired:?}");
    let (is_paired, repeated) = rows(true, true);
    assert!(!is_paired, "no sample of a repeated round is left out");
    assert_eq!(repeated, unpaired);
}

#[test]
fn values_that_are_no_finite_numbers_are_refused_with_their_place() {
    for wrong in ["inf", "-inf", "NaN", "nan", "1e999", "long"] {
        let text = format!("run,node,seconds\n1,0,1\n2,0,1\n2,0,{wrong}\n");
        let message = of_csv(&text).unwrap_err().to_string();
        let place = format!("row 3: column \"seconds\" is not a finite number: {wrong:?}");
        assert_eq!(message, place);
    }
    assert_eq!(
        of_csv("run,node,seconds\n2,0,\n2,0,1e9\n")
            .unwrap()
            .samples(),
        2
    );
}
