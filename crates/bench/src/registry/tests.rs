use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::Args as _;
use nearfar_experiment::{Factor, Level};
use nearfar_runs::{Detail, Run};
use serde_json::{Value, json};

use super::*;

/// With a flag, an optional number, and factors with names and with numbers.
const DECLARATION: Declaration = Declaration {
    name: "declared",
    about: "",
    examples: &[],
    is_hidden: true,
    is_of_machine: false,
    needs_devices: false,
    is_simulated: false,
    samples: 1,
    factors: &[
        Varied::new("speed", &["fast", "slow"], &["fast"]),
        Varied::numbers("threads", 1..=64, &[1, 2]),
    ],
    options: Parameters::augment_args,
};

#[derive(clap::Args, PartialEq, Debug)]
struct Parameters {
    #[arg(long)]
    huge_pages: bool,
    #[arg(long, value_parser = within(1..=9, number))]
    steps: Option<u32>,
    #[arg(long, default_value = "60")]
    load: u32,
}

fn arguments(declaration: &Declaration, factors: &[&str]) -> Result<Arguments, ArgumentError> {
    let factors: Vec<String> = factors.iter().map(|&factor| factor.to_owned()).collect();
    declaration.arguments(&factors, &[], false, Vec::new())
}

/// The arguments of a stored run with these parameters.
fn stored(parameters: Value) -> Arguments {
    let (run, detail) = stored_run(parameters);
    DECLARATION.arguments_of(run, detail)
}

fn stored_run(parameters: Value) -> (Run, Detail) {
    let run: Run = serde_json::from_value(json!({
        "run": 7, "uid": "", "experiment": "declared", "title": "", "state": "interrupted", "started_at_s": 0.0,
        "samples": 0, "with_warnings": 0, "failed": 0, "cells": 1, "samples_per_cell": 1, "host": "", "kernel": "",
        "nearfar": "", "fingerprint": "", "owner": {"pid": 1, "started_ticks": 0, "boot": "", "pid_namespace": ""},
    }))
    .unwrap();
    let detail: Detail = serde_json::from_value(json!({
        "parameters": parameters, "factors": [], "plan": [], "metrics": [], "seed": 0, "warnings": [],
        "kernel_version": "", "kernel_command_line": "",
    }))
    .unwrap();
    (run, detail)
}

#[test]
fn factors_have_the_levels_that_were_asked_for() {
    let mock = |factors: &[&str]| arguments(&mock::DECLARATION, factors);
    for repeated in [
        &["speed=slow,fast"][..],
        &["speed=slow", "speed=slow,fast", "zone_reclaim=0"],
    ] {
        let factors = mock(repeated).unwrap().factors;
        assert_eq!(factors[0], Factor::new("speed", ["slow", "fast"]));
    }
    let levels = "there are: fast, slow, failing";
    for (wrong, reason) in [
        ("speed", format!("speed has no level \"\": {levels}")),
        ("speed=", format!("speed has no level \"\": {levels}")),
        (
            "speed=quick",
            format!("speed has no level \"quick\": {levels}"),
        ),
        ("speed=slow,slow", "level slow is there twice".to_owned()),
        (
            "sped=slow",
            "there is no factor \"sped\": did you mean \"speed\"?".to_owned(),
        ),
    ] {
        let error = mock(&[wrong]).err().expect(wrong).to_string();
        assert!(error.contains(&format!("{wrong}: {reason}")), "{error}");
    }
}

#[test]
fn numeric_levels_are_numbers_within_their_range() {
    let levels = |given: &str| {
        Ok(arguments(&DECLARATION, &[given])?
            .levels("threads")
            .to_vec())
    };
    assert_eq!(
        levels("threads=2,10,1"),
        Ok([2, 10, 1].map(Level::Number).to_vec())
    );
    for wrong in ["threads=0", "threads=65", "threads=two"] {
        let error: ArgumentError = levels(wrong).expect_err(wrong);
        assert!(
            error
                .to_string()
                .contains("expected 1 to 64 [default: 1,2]"),
            "{error}"
        );
    }
    let twice = levels("threads=1,01").unwrap_err().to_string();
    assert!(twice.contains("level 1 is there twice"), "{twice}");
}

#[test]
fn a_continued_run_has_the_values_that_are_stored() {
    for (huge, expected) in [
        (json!(true), true),
        (json!(false), false),
        (json!(null), false),
    ] {
        let arguments = stored(json!({"huge_pages": huge, "steps": null, "load": 30}));
        let wanted = Parameters {
            huge_pages: expected,
            steps: None,
            load: 30,
        };
        assert_eq!(arguments.parameters(), Ok(wanted), "{huge}");
    }
}

#[test]
fn an_option_that_is_not_stored_has_no_default_and_one_out_of_range_is_refused() {
    let refused = |parameters: Value| {
        let arguments = stored(parameters);
        let errors = [
            arguments.parameters::<Parameters>().unwrap_err(),
            arguments.of_one_sample("declared").unwrap_err(),
        ];
        assert_eq!(errors[0], errors[1]);
        errors[0].to_string()
    };
    for (parameters, key) in [
        (json!({"huge": true}), "huge_pages"),
        (json!({"huge_pages": true, "load": 3}), "steps"),
        (json!({"huge_pages": null, "steps": 1}), "load"),
    ] {
        let error = refused(parameters);
        let expected = format!("cannot continue run 7: its parameters have no \"{key}\"");
        assert!(error.starts_with(&expected), "{error}");
    }
    let error = refused(json!({"huge_pages": null, "steps": 10, "load": 30}));
    assert!(
        error.starts_with("cannot continue run 7: invalid value '10'")
            && error.contains("expected 1 to 9"),
        "{error}"
    );
}

#[test]
fn a_sample_on_a_target_has_a_flag_without_a_value() {
    let given = |words| DECLARATION.arguments(&[], &[], false, words).unwrap();
    let arguments = given(vec!["--huge-pages".into()]);
    let words = arguments.of_one_sample("declared").unwrap();
    assert_eq!(
        words.concat(),
        ["bench", "declared", ONE_SAMPLE, "--huge-pages", "--load=60"]
    );
    assert_eq!(
        given(Vec::new())
            .of_one_sample("declared")
            .unwrap()
            .concat()
            .len(),
        4
    );
}

#[test]
fn a_target_is_asked_for_the_cells_that_were_asked_for() {
    let [first, second] = ["tasks=1,2", "workload=tlb_flush"].map(str::to_owned);
    let own = || vec!["--seconds=0.1".into()];
    let levels = scale::DECLARATION.arguments(&[first, second], &[], false, own());
    let asked = levels.unwrap().of_plan("scale").unwrap();
    let levels = ["--factor=workload=tlb_flush", "--factor=tasks=1,2"];
    assert_eq!(asked[..3], ["bench", "scale", PLAN]);
    assert!(
        levels.iter().all(|it| asked.contains(&it.into())),
        "{asked:?}"
    );
    assert!(asked.contains(&"--seconds=0.1".into()), "{asked:?}");

    let cell =
        "workload=tlb_flush,kind=thread,binding=bound,memory=local,nodes_used=2,tasks=2".to_owned();
    let cells = scale::DECLARATION.arguments(&[], &[cell], false, own());
    let asked = cells.unwrap().of_plan("scale").unwrap();
    let cells = asked
        .iter()
        .filter(|it| it.to_str().unwrap().starts_with("--cell="));
    assert_eq!(cells.count(), 1, "{asked:?}");
    assert!(
        !asked
            .iter()
            .any(|it| it.to_str().unwrap().starts_with("--factor"))
    );
}

#[test]
fn words_of_a_command_stand_behind_the_levels_and_are_those_of_the_stored_run() {
    let words = ["--warmup=0", "--", "./job", "--threads", "8"].map(OsString::from);
    let arguments = command::DECLARATION.arguments(&[], &[], false, words.to_vec());
    let [before, own] = arguments.unwrap().of_one_sample("command").unwrap();
    assert_eq!(before, ["bench", "command", ONE_SAMPLE]);
    assert_eq!(own, words);

    let (run, mut detail) =
        stored_run(json!({"warmup": 0, "command": ["./job", "--threads", "8"]}));
    let cell = |cpus: &str, memory: &str| Cell::new().with("cpus", cpus).with("memory", memory);
    detail.plan = vec![cell("all", "default"), cell("0", "bind")];
    detail.factors = Factor::of_cells(&detail.plan);
    let repeated = command::DECLARATION.command(&run, &detail);
    assert_eq!(
        repeated,
        [
            "nearfar",
            "bench",
            "command",
            "--cell=cpus=all,memory=default",
            "--cell=cpus=0,memory=bind",
            "--warmup=0",
            "--samples=1",
            "--seed=0",
            "--",
            "./job",
            "--threads",
            "8"
        ]
    );
}

#[test]
fn a_flag_of_a_stored_run_is_given_again() {
    let parameters = json!({"huge_pages": true, "steps": null, "load": 60});
    let words = stored(parameters.clone())
        .of_one_sample("declared")
        .unwrap();
    assert_eq!(words.concat()[3..], ["--huge-pages", "--load=60"]);
    let (run, detail) = stored_run(parameters);
    let repeated = DECLARATION.command(&run, &detail);
    assert!(
        repeated.contains(&"--huge-pages".to_owned()),
        "{repeated:?}"
    );
}

#[test]
fn samples_in_simulated_time_take_a_hundredth_of_the_time_unless_another_is_given() {
    let taken = |is_simulated, given: Option<&str>| {
        let words = Vec::from_iter(given.map(|it| format!("--seconds={it}").into()));
        let arguments = scale::DECLARATION.arguments(&[], &[], is_simulated, words);
        let words = arguments.unwrap().of_one_sample("scale").unwrap().concat();
        let value = |name| {
            let value = |word: &OsString| Some(word.to_str()?.strip_prefix(name)?.parse().unwrap());
            words.iter().find_map(value)
        };
        ["--seconds=", "--trace-seconds="].map(value)
    };
    assert_eq!(taken(false, None), [Some(1.0), Some(0.5)]);
    assert_eq!(taken(true, None), [Some(0.01), Some(0.005)]);
    assert_eq!(taken(true, Some("1")), [Some(1.0), Some(0.005)]);
}

#[test]
fn the_parameters_of_the_mock_have_each_of_its_options() {
    let mock = mock::Mock::new(&arguments(&mock::DECLARATION, &[]).unwrap()).unwrap();
    let parameters = mock.plan().parameters;
    for option in mock::DECLARATION.own_options(false).get_arguments() {
        let key = option.get_id().as_str();
        assert!(parameters.get(key).is_some(), "{key}: {parameters}");
    }
}

#[test]
fn a_cell_has_each_factor_once() {
    let cell = mock::DECLARATION.cell("zone_reclaim=keep,speed=slow");
    assert_eq!(cell.unwrap().text("speed"), "slow");
    for wrong in [
        "",
        "speed=slow",
        "speed=slow,zone_reclaim=2",
        "speed=slow,speed=fast,zone_reclaim=0",
    ] {
        let error = mock::DECLARATION.cell(wrong).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--cell {wrong}: ")), "{error}");
    }
}

#[test]
fn names_are_unique_and_defaults_are_levels() {
    let mut names = BTreeSet::new();
    let declarations = EXPERIMENTS.iter().map(|entry| &entry.declaration);
    for declaration in declarations.chain([&DECLARATION]) {
        assert!(names.insert(declaration.name));
        for factor in arguments(declaration, &[]).unwrap().factors {
            let levels: Vec<String> = factor.levels.iter().map(Level::to_string).collect();
            let typed = format!("{}={}", factor.name, levels.join(","));
            if !levels.is_empty() {
                let again = arguments(declaration, &[&typed]).unwrap().factors;
                assert!(again.contains(&factor), "{typed}");
            }
        }
    }
}
