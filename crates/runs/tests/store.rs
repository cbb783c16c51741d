//! A store as its users have it: kept, continued, listed, removed, refused.

use std::fs;

use nearfar_runs::{
    Cell, Ending, Filter, Journal, Metric, NewSample, RunId, RunState, SampleResult, Store,
    StoreError,
};
use serde_json::json;

use crate::given::{Given, elapsed, failure, sample};

#[test]
fn a_run_is_kept_with_everything_that_belongs_to_it() {
    let given = Given::new();
    let run = {
        let mut store = given.store();
        assert_eq!(store.journal(), Journal::WriteAhead);
        let run = given.begin(&mut store, "probe", Some("first"));
        assert_eq!(store.add_sample(run, &sample(1, "0", 1.5)).unwrap(), 1);
        assert_eq!(store.add_sample(run, &failure(1, "1")).unwrap(), 2);
        store.finish(run, &Ending::Complete).unwrap();
        run
    };
    let store = given.store();
    let found = store.run(run).unwrap();
    assert_eq!(
        (found.run, found.state, found.label.as_deref()),
        (RunId(1), RunState::Complete, Some("first"))
    );
    assert_eq!(
        (
            found.samples,
            found.failed,
            found.with_warnings,
            found.cells
        ),
        (2, 1, 1, 2)
    );
    assert_eq!(found.uid.len(), 32);
    assert!(found.finished_at_s.unwrap() >= found.started_at_s);
    let detail = store.detail(run).unwrap();
    assert_eq!(detail.seed, u64::MAX, "a seed keeps all its bits");
    assert_eq!(detail.parameters, given.parameters);
    assert_eq!(detail.warnings, ["the governor saves power"]);
    assert_eq!(store.machine(run).unwrap(), given.machine);
    let samples = store.samples(run).unwrap();
    assert_eq!(samples[0].number("elapsed_s"), Some(1.5));
    assert_eq!(samples[0].warnings, ["another process ran"]);
    assert_eq!(samples[0].detail, json!({"faults": {"minor": 3}}));
    assert_eq!(
        (samples[1].number("elapsed_s"), samples[1].failed.as_deref()),
        (None, Some("it died"))
    );
}

#[test]
fn a_machine_is_kept_once_for_all_its_runs_and_goes_with_the_last_one() {
    let given = Given::new();
    let mut store = given.store();
    let runs: Vec<RunId> = (0..3)
        .map(|_| given.finished(&mut store, "probe", None))
        .collect();
    let removed = store.remove(&runs[..2]).unwrap();
    assert_eq!(
        (removed.runs.len(), removed.samples, removed.machines),
        (2, 2, 0)
    );
    assert_eq!(store.machine(runs[2]).unwrap(), given.machine);
    assert_eq!(store.remove(&runs[2..]).unwrap().machines, 1);
    assert!(store.list(&Filter::default()).unwrap().is_empty());
    assert_eq!(
        given.finished(&mut store, "probe", None),
        RunId(4),
        "a number is never given twice"
    );
}

#[test]
fn the_room_of_removed_runs_goes_back_to_the_file_system() {
    let given = Given::new();
    let size = || fs::metadata(&given.path).unwrap().len();
    let runs: Vec<RunId> = {
        let mut store = given.store();
        let large = || {
            let run = given.begin(&mut store, "probe", None);
            let result = SampleResult::Measured {
                values: elapsed(1.0),
                warnings: vec![],
                detail: json!({"text": "x".repeat(500_000)}),
            };
            store
                .add_sample(
                    run,
                    &NewSample {
                        result,
                        ..sample(1, "0", 1.0)
                    },
                )
                .unwrap();
            store.finish(run, &Ending::Complete).unwrap();
            run
        };
        std::iter::repeat_with(large).take(4).collect()
    };
    let before = size();
    assert!(before > 2_000_000, "{before}");
    given.store().remove(&runs[..3]).unwrap();
    assert!(
        size() < before / 2,
        "{before} bytes before, {} after",
        size()
    );
}

#[test]
fn removing_is_all_or_nothing_and_spares_what_is_going_on() {
    let given = Given::new();
    let mut store = given.store();
    let done = given.finished(&mut store, "probe", None);
    assert!(matches!(
        store.remove(&[done, RunId(99)]),
        Err(StoreError::NoSuchRun { run: RunId(99), .. })
    ));
    let going_on = given.begin(&mut store, "probe", None);
    assert!(matches!(
        store.remove(&[done, going_on]),
        Err(StoreError::StillRunning { .. })
    ));
    assert_eq!(store.list(&Filter::default()).unwrap().len(), 2);
    assert_eq!(
        store.remove(&[done, done]).unwrap().runs.len(),
        1,
        "naming a run twice removes it once"
    );
}

#[test]
fn lists_are_newest_first_and_filtered() {
    let given = Given::new();
    let mut store = given.store();
    for (experiment, label) in [
        ("probe", Some("a")),
        ("io", Some("a")),
        ("probe", Some("b")),
        ("probe", None),
    ] {
        given.finished(&mut store, experiment, label);
    }
    let numbers = |filter: Filter| -> Vec<i64> {
        store
            .list(&filter)
            .unwrap()
            .iter()
            .map(|run| run.run.0)
            .collect()
    };
    let (probe, a) = (Some("probe".to_owned()), Some("a".to_owned()));
    assert_eq!(numbers(Filter::default()), [4, 3, 2, 1]);
    assert_eq!(
        numbers(Filter {
            experiment: probe.clone(),
            limit: Some(2),
            ..Filter::default()
        }),
        [4, 3]
    );
    assert_eq!(
        numbers(Filter {
            experiment: probe,
            label: a,
            ..Filter::default()
        }),
        [1]
    );
    assert_eq!(
        numbers(Filter {
            since_s: Some(nearfar_runs::now_s() + 60.0),
            ..Filter::default()
        }),
        [0i64; 0]
    );
}

#[test]
fn only_what_was_interrupted_or_failed_is_continued() {
    let given = Given::new();
    let mut store = given.store();
    let run = given.begin(&mut store, "probe", None);
    store.add_sample(run, &sample(1, "0", 1.0)).unwrap();
    assert!(
        matches!(store.resume(run, 4), Err(StoreError::NotOurs { .. })),
        "it is going on"
    );
    store
        .finish(run, &Ending::Failed("the disk is full".into()))
        .unwrap();
    assert_eq!(
        store.run(run).unwrap().failure.as_deref(),
        Some("the disk is full")
    );
    assert!(matches!(
        store.add_sample(run, &sample(1, "1", 1.0)),
        Err(StoreError::NotOurs { .. })
    ));
    store.resume(run, 4).unwrap();
    assert_eq!(store.run(run).unwrap().state, RunState::Running);
    assert_eq!(store.run(run).unwrap().failure, None);
    assert_eq!(
        store.add_sample(run, &sample(1, "1", 1.0)).unwrap(),
        2,
        "numbers go on"
    );
    store.finish(run, &Ending::Complete).unwrap();
    assert!(
        matches!(store.resume(run, 4), Err(StoreError::NotOurs { .. })),
        "it is complete"
    );
}

#[test]
fn a_run_whose_process_is_gone_was_interrupted() {
    let given = Given::new();
    let mut store = given.store();
    let run = given.begin(&mut store, "probe", None);
    given.sql("UPDATE run SET started_ticks = started_ticks + 1");
    assert_eq!(store.run(run).unwrap().state, RunState::Interrupted);
    assert!(matches!(
        store.add_sample(run, &sample(1, "0", 1.0)),
        Err(StoreError::NotOurs { .. })
    ));
    given.sql("UPDATE run SET boot = 'another', host = 'elsewhere'");
    assert_eq!(store.run(run).unwrap().state, RunState::OutOfSight);
}

#[test]
fn a_value_that_is_no_number_is_a_failure() {
    let given = Given::new();
    let mut store = given.store();
    let run = given.begin(&mut store, "probe", None);
    for seconds in [f64::NAN, f64::INFINITY] {
        let result = SampleResult::Measured {
            values: elapsed(seconds),
            warnings: vec![],
            detail: json!({}),
        };
        store
            .add_sample(
                run,
                &NewSample {
                    result,
                    ..sample(1, "0", 1.0)
                },
            )
            .unwrap();
    }
    let samples = store.samples(run).unwrap();
    assert_eq!(
        samples[0].failed.as_deref(),
        Some("the value of \"elapsed_s\" is not finite")
    );
    assert_eq!(
        (
            samples[1].number("elapsed_s"),
            store.run(run).unwrap().failed
        ),
        (None, 2)
    );
}

#[test]
fn what_is_not_a_store_is_refused_and_left_untouched() {
    let given = Given::new();
    let directory = given.directory.path();
    let other = directory.join("other.db");
    rusqlite::Connection::open(&other)
        .unwrap()
        .execute_batch("CREATE TABLE mail (text)")
        .unwrap();
    let logged = directory.join("logged.db");
    // Its tables are only in the log yet: another process has it open.
    let open = rusqlite::Connection::open(&logged).unwrap();
    open.pragma_update(None, "journal_mode", "WAL").unwrap();
    open.execute_batch("CREATE TABLE mail (text)").unwrap();
    let text = directory.join("notes.txt");
    fs::write(&text, "short").unwrap();
    let long = directory.join("long.txt");
    fs::write(&long, "SQLite format 4 ".repeat(100)).unwrap();
    for path in [&other, &logged, &text, &long] {
        let before = fs::read(path).unwrap();
        for store in [Store::open(path), Store::open_existing(path)] {
            let error = store.unwrap_err();
            assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
            assert!(
                error.to_string().contains(path.to_str().unwrap()),
                "{error}"
            );
        }
        assert!(fs::read(path).unwrap() == before, "{}", path.display());
    }
    assert!(matches!(
        Store::open(directory),
        Err(StoreError::Foreign {
            what: "a directory",
            ..
        })
    ));
    assert!(matches!(
        Store::open(&text.join("below")),
        Err(StoreError::File { .. })
    ));
    drop(open);
    let names = fs::read_dir(directory).unwrap().count();
    assert_eq!(names, 4, "no file was created next to them");
}

#[test]
fn a_store_of_a_newer_program_is_refused_and_left_untouched() {
    let given = Given::new();
    given.finished(&mut given.store(), "probe", None);
    given.sql("PRAGMA user_version = 99");
    let before = fs::read(&given.path).unwrap();
    for store in [Store::open(&given.path), Store::open_existing(&given.path)] {
        let error = store.unwrap_err().to_string();
        assert!(
            error.contains("layout 99") && error.contains("newer nearfar"),
            "{error}"
        );
    }
    assert!(fs::read(&given.path).unwrap() == before);
}

#[test]
fn a_file_without_tables_becomes_a_store_only_for_writing() {
    let given = Given::new();
    let empty = given.directory.path().join("empty.db");
    fs::write(&empty, "").unwrap();
    let emptied = given.directory.path().join("emptied.db");
    rusqlite::Connection::open(&emptied)
        .unwrap()
        .execute_batch("CREATE TABLE mail (text); DROP TABLE mail; VACUUM")
        .unwrap();
    for path in [&empty, &emptied] {
        let before = fs::read(path).unwrap();
        let error = Store::open_existing(path).unwrap_err();
        assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
        assert!(fs::read(path).unwrap() == before, "{}", path.display());
    }
    assert_eq!(fs::read_dir(given.directory.path()).unwrap().count(), 2);
    Store::open(&empty).unwrap();
    assert!(Store::open_existing(&empty).is_ok());
}

#[test]
fn a_file_that_is_not_there_is_made_only_for_writing() {
    let given = Given::new();
    let path = given.directory.path().join("a/b/runs.db");
    assert!(matches!(
        Store::open_existing(&path),
        Err(StoreError::Absent { .. })
    ));
    assert!(!path.exists());
    assert!(
        Store::open(&path)
            .unwrap()
            .list(&Filter::default())
            .unwrap()
            .is_empty()
    );
}

/// A reader must not wait for the disk, nor fail where it is full.
#[test]
fn opening_and_listing_writes_nothing() {
    let given = Given::new();
    let mut writer = given.store();
    given.finished(&mut writer, "probe", None);
    let log = given.path.with_extension("db-wal");
    let written = || [&given.path, &log].map(|file| fs::read(file).unwrap_or_default());
    let before = written();
    // The writer keeps the log from being taken over into the file.
    let reader = Store::open_existing(&given.path).unwrap();
    assert_eq!(reader.list(&Filter::default()).unwrap().len(), 1);
    assert!(written() == before, "a page was written");
    drop(reader);
    assert!(written() == before, "a page was written at the end");
}

#[test]
fn a_file_cut_short_is_refused_and_left_untouched() {
    let given = Given::new();
    {
        let mut store = given.store();
        for _ in 0..20 {
            given.finished(&mut store, "probe", None);
        }
    }
    let whole = fs::read(&given.path).unwrap();
    for length in (101..whole.len()).step_by(997).chain([whole.len() - 1]) {
        fs::write(&given.path, &whole[..length]).unwrap();
        for opened in [Store::open_existing(&given.path), Store::open(&given.path)] {
            assert!(
                opened.is_err_and(|error| error.is_damage()),
                "{length} of {} bytes",
                whole.len()
            );
        }
        assert!(
            fs::read(&given.path).unwrap() == whole[..length],
            "{length} bytes were changed"
        );
    }
    fs::write(&given.path, &whole).unwrap();
    assert_eq!(given.store().list(&Filter::default()).unwrap().len(), 20);
}

/// A file of layout 1, as the first release writes it. Newer programs have to read it for ever.
#[test]
fn a_file_of_the_first_layout_is_read() {
    let given = Given::new();
    rusqlite::Connection::open(&given.path)
        .unwrap()
        .execute_batch(include_str!("version-1.sql"))
        .unwrap();
    let mut store = given.store();
    let run = store.run(RunId(3)).unwrap();
    assert_eq!(
        (run.experiment.as_str(), run.label.as_deref(), run.samples),
        ("probe", Some("quiet"), 2)
    );
    assert_eq!(
        run.state,
        RunState::OutOfSight,
        "it was begun on another host"
    );
    assert_eq!(store.detail(RunId(3)).unwrap().plan.len(), 2);
    let samples = store.samples(RunId(3)).unwrap();
    assert_eq!(
        samples[0].cell,
        Cell::new().with("memory", 0u32).with("balancing", false)
    );
    let metrics = store.detail(RunId(3)).unwrap().metrics;
    assert_eq!(metrics, [Metric::elapsed().primary()]);
    assert_eq!(samples[0].values, elapsed(2.0));
    assert_eq!(samples[1].warnings, ["a page fault in the timed part"]);
    assert_eq!(store.machine(RunId(3)).unwrap().online_nodes().count(), 2);
    store.remove(&[RunId(3)]).unwrap();
}

/// The factors of the probe were named as the published table's columns.
#[test]
fn earlier_names_of_the_probes_factors_are_translated() {
    let given = Given::new();
    let old = rusqlite::Connection::open(&given.path).unwrap();
    old.execute_batch(include_str!("version-1.sql")).unwrap();
    old.execute_batch(
        r#"UPDATE sample SET cell = '{"cpu":"F","mem":"0","nb":0,"pnid":-1}' WHERE number = 1;
           UPDATE sample SET cell = '{"cpu":"F","mem":"1","nb":0,"pnid":-1}' WHERE number = 2;
           UPDATE detail SET factors = '[{"name":"pnid","levels":[-1]},{"name":"nb","levels":[0]},
               {"name":"mem","levels":["0","1"]},{"name":"cpu","levels":["F"]}]',
               plan = '[{"cpu":"F","mem":"0","nb":0,"pnid":-1},{"cpu":"F","mem":"1","nb":0,"pnid":-1}]';"#,
    )
    .unwrap();
    drop(old);
    let cells = ["0", "1"].map(|memory| {
        Cell::new()
            .with("preferred_node", -1i64)
            .with("numa_balancing", 0u32)
            .with("memory_node", memory)
            .with("cpu_node", "F")
    });
    let check = |store: &Store, run| {
        let detail = store.detail(run).unwrap();
        assert_eq!(detail.plan, cells);
        let names = detail.factors.iter().map(|factor| factor.name.as_str());
        let expected = [
            "preferred_node",
            "numa_balancing",
            "memory_node",
            "cpu_node",
        ];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        let samples = store.samples(run).unwrap();
        assert_eq!([&samples[0].cell, &samples[1].cell], [&cells[0], &cells[1]]);
    };
    let store = given.store();
    check(&store, RunId(3));
    let exported = serde_json::to_string(&json!({
        "schema": "runs-export/2", "runs": [store.whole(RunId(3)).unwrap()],
    }));
    let earlier = [
        ("preferred_node", "pnid"),
        ("numa_balancing", "nb"),
        ("memory_node", "mem"),
        ("cpu_node", "cpu"),
    ];
    let exported = earlier.iter().fold(exported.unwrap(), |text, (now, then)| {
        text.replace(&format!("\"{now}\""), &format!("\"{then}\""))
    });
    let other = Given::new();
    let mut store = other.store();
    let imported = store.import(exported.as_bytes()).unwrap();
    check(&store, imported.runs[0]);
}
