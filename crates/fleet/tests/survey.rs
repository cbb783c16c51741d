//! Simulated fleets, from the answers of hosts to the deviations that are named.

use std::collections::BTreeSet;
use std::fs;

use crate::simulated;
use crate::simulated::{Planted, answer, fill, folder, latency_run, machine, name, put, simulate};
use fastrand::Rng;
use nearfar_fleet::dataset::{DatasetError, Selection, collect, load};
use nearfar_fleet::survey::{Deviation, DeviationKind, Survey, SurveyOptions, survey};
use nearfar_fleet::{Ended, Folder, Summary};
use proptest::prelude::ProptestConfig;

fn shown(folder: &Folder) -> Survey {
    let dataset = folder.path().join("dataset");
    collect(folder, &dataset).unwrap();
    let loaded = load(&dataset, &Selection::default()).unwrap();
    survey(&loaded, &SurveyOptions::default())
}

fn names(numbers: impl IntoIterator<Item = usize>) -> BTreeSet<String> {
    numbers
        .into_iter()
        .map(|number| name(number).to_string())
        .collect()
}

fn named(survey: &Survey) -> BTreeSet<String> {
    let groups = survey.groups.iter();
    groups
        .flat_map(|group| group.deviants())
        .map(str::to_owned)
        .collect()
}

fn of_metric(survey: &Survey) -> Vec<&Deviation> {
    let deviations = survey.groups.iter().flat_map(|group| &group.deviations);
    deviations
        .filter(|it| matches!(it.kind, DeviationKind::Metric { .. }))
        .collect()
}

#[test]
fn planted_deviants_and_no_others_are_named_with_their_figures_and_cause() {
    let directory = tempfile::tempdir().unwrap();
    let planted = Planted::among(90);
    let survey = shown(&simulate(&directory.path().join("run"), 90, &planted, 3));
    assert_eq!(named(&survey), names(planted.deviants()));
    assert_eq!(survey.hosts, 90);
    assert_eq!(survey.missing.len(), planted.lost.len());
    assert_eq!(survey.groups.len(), 1);
    let slow = of_metric(&survey);
    assert_eq!(slow.len(), 2, "{slow:#?}");
    for deviation in slow {
        let DeviationKind::Metric {
            cells,
            ratio,
            low,
            high,
            is_worse,
            ..
        } = &deviation.kind
        else {
            unreachable!()
        };
        let (hosts, expected) = match cells.as_str() {
            "memory_node=1" => (&planted.old_firmware, 1.31),
            "memory_node=2" => (&planted.slow_node_2, 1.05),
            other => panic!("{other}"),
        };
        assert_eq!(
            deviation.hosts.iter().cloned().collect::<BTreeSet<_>>(),
            names(hosts.clone())
        );
        assert!(*is_worse && low < ratio && ratio < high);
        assert!(
            (ratio / expected - 1.0).abs() < 0.005,
            "{ratio} for {expected}"
        );
        let cause = "firmware 2.3 (2025-06-30) instead of 2.4 (2026-01-31)";
        let causes: &[&str] = if expected > 1.1 { &[cause] } else { &[] };
        assert_eq!(deviation.also, causes);
    }
    let distances = survey.groups[0]
        .deviations
        .iter()
        .find_map(|it| match &it.kind {
            DeviationKind::Fact {
                fact, differences, ..
            } if fact == "distances" => Some(differences.clone()),
            _ => None,
        });
    assert_eq!(distances.unwrap(), ["0 to 3: 32 instead of 33"]);
}

#[test]
fn of_alike_hosts_hardly_any_survey_names_one() {
    // 20 where PROPTEST_CASES is not set.
    let surveys = (20 * ProptestConfig::default().cases).div_ceil(256);
    let mut with_false_alarm = 0;
    for seed in 0..u64::from(surveys) {
        let directory = tempfile::tempdir().unwrap();
        let folder = simulate(
            &directory.path().join("run"),
            8,
            &Planted::default(),
            1000 + seed,
        );
        with_false_alarm += u32::from(shown(&folder).has_outlier());
    }
    // At 5 % the probability of more is at most 0.3 %: 4 of 20. tests/outlier_rates.rs of nearfar-statistics has the rates themselves.
    let expected = 0.05 * f64::from(surveys);
    let most = expected + 3.1 * (0.95 * expected).sqrt();
    assert!(
        f64::from(with_false_alarm) <= most,
        "{with_false_alarm} of {surveys}"
    );
}

/// A row for both would give each a figure that is not its own.
#[test]
fn hosts_that_deviate_by_different_amounts_are_rows_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(&directory.path().join("run"), (0..20).map(name).collect());
    let mut run = latency_run(&machine());
    let mut rng = Rng::with_seed(9);
    for number in 0..20 {
        let factor = match number {
            3 | 7 => 1.3,
            11 => 1.1,
            _ => 1.0,
        };
        let on_node_1 = |_, memory_node| if memory_node == 1 { factor } else { 1.0 };
        fill(&mut run, &mut rng, on_node_1);
        put(&folder, &answer(name(number), machine(), vec![run.clone()]));
    }
    let survey = shown(&folder);
    let mut rows: Vec<(Vec<String>, f64)> = of_metric(&survey)
        .iter()
        .map(|it| match it.kind {
            DeviationKind::Metric { ratio, .. } => (it.hosts.clone(), ratio),
            _ => unreachable!("they are of metrics"),
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let hosts = |numbers: &[usize]| numbers.iter().map(|&it| name(it).to_string()).collect();
    let [(of_two, by_two), (of_one, by_one)] = &rows[..] else {
        panic!("{rows:?}");
    };
    assert_eq!((of_two, of_one), (&hosts(&[3, 7]), &hosts(&[11])));
    assert!(
        (by_two - 1.3).abs() < 0.02 && (by_one - 1.1).abs() < 0.02,
        "{rows:?}"
    );
}

/// Thresholds of two groups at twice the rate are those of one group.
#[test]
fn groups_share_the_rate_of_false_alarms() {
    let directory = tempfile::tempdir().unwrap();
    let criticals = |groups: usize, false_alarms: f64| -> Vec<f64> {
        let path = directory.path().join(groups.to_string());
        let hosts = 4 * groups;
        let folder = folder(&path, (0..hosts).map(name).collect());
        let mut run = latency_run(&machine());
        let mut rng = Rng::with_seed(11);
        for number in 0..hosts {
            let mut machine = machine();
            machine.origin.cpu_model = Some(format!("CPU {}", number / 4));
            fill(&mut run, &mut rng, |_, _| 1.0);
            put(&folder, &answer(name(number), machine, vec![run.clone()]));
        }
        collect(&folder, &path.join("dataset")).unwrap();
        let loaded = load(&path.join("dataset"), &Selection::default()).unwrap();
        let options = SurveyOptions {
            false_alarms,
            ..SurveyOptions::default()
        };
        let survey = survey(&loaded, &options);
        let measured = survey.groups.iter().flat_map(|group| &group.measured);
        measured.map(|it| it.critical).collect()
    };
    let [of_one] = criticals(1, 0.05)[..] else {
        panic!("one group");
    };
    assert_eq!(criticals(2, 0.1), [of_one, of_one]);
}

#[test]
fn hosts_of_other_machines_are_other_groups_and_few_samples_are_not_judged() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(&directory.path().join("run"), (0..9).map(name).collect());
    let run = latency_run(&machine());
    let mut rng = Rng::with_seed(5);
    for number in 0..9 {
        let mut machine = machine();
        let mut run = run.clone();
        fill(
            &mut run,
            &mut rng,
            |_, _| if number == 8 { 3.0 } else { 1.0 },
        );
        match number {
            0..4 => machine.origin.cpu_model = Some("Another CPU".to_owned()),
            // Three times as slow, but of one sample a cell.
            8 => run.taken.truncate(run.detail.plan.len()),
            _ => {}
        }
        put(&folder, &answer(name(number), machine, vec![run]));
    }
    let survey = shown(&folder);
    assert_eq!(
        survey
            .groups
            .iter()
            .map(|group| group.hosts.len())
            .collect::<Vec<_>>(),
        [5, 4]
    );
    assert_eq!(named(&survey), BTreeSet::new());
    let reasons = survey.groups[0].not_judged.iter().map(|it| &it.reason);
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        ["1 of 5 hosts have fewer than 6 samples above 0 in a cell"]
    );
}

#[test]
fn collecting_again_counts_nothing_twice_and_the_newest_answer_counts() {
    let directory = tempfile::tempdir().unwrap();
    let dataset = directory.path().join("dataset");
    let first = simulate(&directory.path().join("a"), 6, &Planted::default(), 1);
    let rows = collect(&first, &dataset).unwrap().rows;
    assert_eq!(rows["samples"], 6 * 16 * u64::from(simulated::SAMPLES));
    assert_eq!(collect(&first, &dataset).unwrap().rows, rows);
    let selection = Selection::default();
    let before = load(&dataset, &selection).unwrap();
    assert_eq!(before.runs[0].run, first.manifest.id);
    assert_eq!(
        before
            .samples
            .values()
            .next()
            .unwrap()
            .values
            .values()
            .next()
            .unwrap()[&0]
            .len(),
        6
    );
    // A later run of two of the hosts, one of which has changed.
    let planted = Planted {
        balancing: BTreeSet::from([1]),
        ..Planted::default()
    };
    let mut second = simulate(&directory.path().join("b"), 2, &planted, 2);
    second.manifest.started_at_s += 86_400.0;
    collect(&second, &dataset).unwrap();
    let both = load(&dataset, &selection).unwrap();
    assert_eq!(both.runs.len(), 2);
    assert_eq!(both.hosts.len(), 6);
    let survey = survey(&both, &SurveyOptions::default());
    assert_eq!(named(&survey), names([1]));
    let only = Selection {
        run: Some(first.manifest.id.clone()),
    };
    assert_eq!(
        load(&dataset, &only).unwrap().runs[0].run,
        first.manifest.id
    );
    let none = Selection {
        run: Some("nosuch".to_owned()),
    };
    assert!(matches!(
        load(&dataset, &none),
        Err(DatasetError::NoRun { .. })
    ));
}

/// The folder of a later run of eight hosts, all of which answer with their latencies and new firmware; `change` may change an answer.
fn later_run(
    path: &std::path::Path,
    days: f64,
    change: impl Fn(usize, &mut nearfar_fleet::HostResult),
) -> Folder {
    let mut folder = folder(path, (0..8).map(name).collect());
    folder.manifest.started_at_s += 86_400.0 * days;
    let mut run = latency_run(&machine());
    let mut rng = Rng::with_seed(17 + days as u64);
    for number in 0..8 {
        let mut machine = machine();
        machine.origin.firmware = Some(format!("firmware of day {days}"));
        fill(&mut run, &mut rng, |_, _| 1.0);
        run.run.uid = format!("{days}-{number}");
        let mut result = answer(name(number), machine, vec![run.clone()]);
        change(number, &mut result);
        put(&folder, &result);
    }
    folder
}

fn slower(result: &mut nearfar_fleet::HostResult, factor: f64) {
    for sample in result.runs.iter_mut().flat_map(|run| &mut run.taken) {
        let number = sample.number("latency_ns").unwrap();
        sample
            .values
            .insert("latency_ns".to_owned(), (number * factor).into());
    }
}

fn survey_of(runs: &[&Folder]) -> Survey {
    let dataset = runs[0].path().join("dataset");
    for run in runs {
        collect(run, &dataset).unwrap();
    }
    survey(
        &load(&dataset, &Selection::default()).unwrap(),
        &SurveyOptions::default(),
    )
}

fn reasons(survey: &Survey) -> Vec<&str> {
    let groups = survey.groups.iter();
    let all = groups.flat_map(|group| &group.not_judged);
    all.map(|it| it.reason.as_str()).collect()
}

/// Host 3 was slower a week ago. What its newest answer does not have is not taken from the one before.
#[test]
fn a_host_is_not_judged_by_an_older_answer_than_its_newest() {
    let directory = tempfile::tempdir().unwrap();
    let old = later_run(&directory.path().join("old"), 0.0, |number, result| {
        slower(result, if number == 3 { 1.3 } else { 1.0 });
    });
    assert_eq!(named(&survey_of(&[&old])), names([3]));
    type Change = fn(usize, &mut nearfar_fleet::HostResult);
    let fails: Change = |number, result| {
        if number == 3 {
            result.ended = Ended::Failed {
                exit_code: Some(3),
                reason: "a sample failed".to_owned(),
            };
        }
    };
    let has_no_run: Change = |number, result| result.runs.retain(|_| number != 3);
    let has_no_machine: Change = |number, result| {
        result.machine = result.machine.take().filter(|_| number != 3);
    };
    for (index, change) in [fails, has_no_run, has_no_machine].into_iter().enumerate() {
        let path = directory.path().join(index.to_string());
        let newest = later_run(&path, 7.0, change);
        let dataset = path.join("dataset");
        collect(&old, &dataset).unwrap();
        let survey = survey_of(&[&newest]);
        assert_eq!(named(&survey), BTreeSet::new(), "{index}: {survey:#?}");
        let (missing, without): (Vec<&str>, &[String]) = (
            survey.missing.iter().map(|it| it.host.as_str()).collect(),
            &survey.without_facts,
        );
        match index {
            0 => assert_eq!(missing, ["h00003"]),
            1 => assert_eq!(reasons(&survey), ["no values of h00003"]),
            _ => assert_eq!(without, ["h00003"]),
        }
        let measured = &survey.groups[0].measured[0];
        assert_eq!(measured.runs.len(), 1);
        assert_eq!(measured.runs[0].run, newest.manifest.id);
    }
}

#[test]
fn values_of_other_parameters_are_not_compared() {
    let directory = tempfile::tempdir().unwrap();
    let with = |bytes: u64, page_kind: &str| serde_json::json!({"buffer_bytes": bytes, "page_kind": page_kind});
    let old = later_run(&directory.path().join("old"), 0.0, |_, result| {
        result.runs[0].detail.parameters = with(64, "huge");
    });
    let mut again = later_run(&directory.path().join("new"), 1.0, |number, result| {
        let is_small = number == 3;
        result.machine.as_mut().unwrap().origin.firmware = Some("firmware of day 0".to_owned());
        result.runs[0].detail.parameters = match is_small {
            true => with(64, "base"),
            false => with(1024, "huge"),
        };
        slower(result, 1.3);
    });
    // Only two of the hosts were asked again.
    again.manifest.hosts = vec![name(3), name(4)];
    let survey = survey_of(&[&old, &again]);
    assert_eq!(named(&survey), BTreeSet::new());
    let mut reasons = reasons(&survey);
    reasons.sort_unstable();
    let [small, large] = reasons[..] else {
        panic!("{reasons:?}");
    };
    assert!(
        small.starts_with("h00003: not compared") && small.contains("page_kind"),
        "{small}"
    );
    assert!(
        large.starts_with("h00004: not compared")
            && large.contains("buffer_bytes 1024 instead of 64"),
        "{large}"
    );
    let measured = &survey.groups[0].measured;
    assert_eq!(measured.iter().map(|it| it.hosts).collect::<Vec<_>>(), [6]);
}

#[test]
fn a_host_that_lacks_cells_or_samples_of_the_others_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let run = later_run(&directory.path().join("run"), 0.0, |number, result| {
        let taken = &mut result.runs[0].taken;
        let is_on = |sample: &nearfar_runs::Sample, node: i64| {
            sample.cell.level("memory_node") == Some(&nearfar_runs::Level::Number(node))
        };
        match number {
            4 => taken.retain(|sample| !is_on(sample, 1)),
            5 => {
                for sample in taken.iter_mut().filter(|sample| sample.round % 2 == 0) {
                    sample.values.clear();
                    sample.failed = Some("no memory".to_owned());
                }
            }
            _ => {}
        }
    });
    let survey = survey_of(&[&run]);
    let kinds: Vec<(&[String], &DeviationKind)> = survey.groups[0]
        .deviations
        .iter()
        .map(|it| (&it.hosts[..], &it.kind))
        .collect();
    let [
        (lacking, DeviationKind::NotMeasured { cells, .. }),
        (failing, failed),
    ] = &kinds[..]
    else {
        panic!("{kinds:#?}");
    };
    assert_eq!(
        (*lacking, cells.as_str()),
        (&["h00004".to_owned()][..], "memory_node=1")
    );
    assert_eq!(*failing, ["h00005"]);
    assert!(
        matches!(
            failed,
            DeviationKind::FailedSamples {
                failed: 48,
                samples: 96,
                ..
            }
        ),
        "{failed:?}"
    );
}

#[test]
fn two_groups_of_hosts_are_not_all_alike() {
    for (hosts, slow, factor) in [
        (40, 20, 1.3),
        (40, 18, 1.2),
        (40, 20, 1.05),
        (40, 16, 1.05),
        (8, 4, 1.3),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let folder = folder(
            &directory.path().join("run"),
            (0..hosts).map(name).collect(),
        );
        let mut run = latency_run(&machine());
        let mut rng = Rng::with_seed(hosts as u64);
        for number in 0..hosts {
            let is_slow = number < slow;
            let mut machine = machine();
            if is_slow {
                machine.origin.firmware = Some("2.5".to_owned());
            }
            fill(&mut run, &mut rng, |_, memory| match memory {
                1 if is_slow => factor,
                _ => 1.0,
            });
            put(&folder, &answer(name(number), machine, vec![run.clone()]));
        }
        let survey = shown(&folder);
        let case = format!(
            "{slow} of {hosts} by {factor}: {:#?}",
            survey.groups[0].split
        );
        assert!(survey.has_outlier(), "{case}");
        let [split] = &survey.groups[0].split[..] else {
            panic!("{case}");
        };
        assert_eq!(split.cells, "memory_node=1", "{case}");
        let above: BTreeSet<String> = split.above.iter().cloned().collect();
        assert_eq!(above, names(0..slow), "{case}");
        assert!((split.ratio / factor - 1.0).abs() < 0.01, "{case}");
        assert_eq!(
            split.also,
            ["firmware 2.5 above, 2.4 (2026-01-31) below"],
            "{case}"
        );
    }
}

#[test]
fn a_damaged_answer_is_a_lost_host_and_the_others_count() {
    let directory = tempfile::tempdir().unwrap();
    let folder = simulate(&directory.path().join("run"), 5, &Planted::default(), 1);
    let path = folder.result_path(&name(2));
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    // An answer that was put under another host's name.
    fs::copy(folder.result_path(&name(0)), folder.result_path(&name(3))).unwrap();
    let summary = Summary::of(&folder).unwrap();
    assert_eq!(summary.answered.len(), 3);
    let reasons: Vec<&str> = summary.lost.iter().map(|it| it.reason.as_str()).collect();
    assert!(
        reasons[0].contains("damaged")
            && reasons[1].contains("the answer of h00000, not of h00003"),
        "{reasons:?}"
    );
    assert_eq!(shown(&folder).missing.len(), 2);
}

#[test]
fn a_verb_that_failed_is_a_failed_host() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(&directory.path().join("run"), vec![name(0)]);
    let mut result = answer(name(0), machine(), Vec::new());
    result.ended = Ended::Failed {
        exit_code: Some(3),
        reason: "no perf events".to_owned(),
    };
    put(&folder, &result);
    let summary = Summary::of(&folder).unwrap();
    assert_eq!(summary.failed[0].reason, "no perf events");
    let dataset = directory.path().join("dataset");
    assert_eq!(collect(&folder, &dataset).unwrap().rows["hosts"], 1);
    let survey = survey(
        &load(&dataset, &Selection::default()).unwrap(),
        &SurveyOptions::default(),
    );
    assert_eq!(survey.missing[0].reason, "no perf events");
}

#[test]
fn a_damaged_dataset_is_named_by_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let folder = simulate(&directory.path().join("run"), 4, &Planted::default(), 1);
    let dataset = directory.path().join("dataset");
    collect(&folder, &dataset).unwrap();
    let samples = dataset.join("samples/date=2027-01-15/experiment=latency");
    let file = samples.join(format!("{}.parquet", folder.manifest.id));
    let whole = fs::read(&file).unwrap();
    let mut rng = Rng::with_seed(1);
    let mut refused = 0;
    for _ in 0..200 {
        let mut damaged = whole.clone();
        for _ in 0..rng.usize(1..20) {
            let at = rng.usize(0..damaged.len());
            damaged[at] = rng.u8(..);
        }
        damaged.truncate(rng.usize(1..=damaged.len()));
        fs::write(&file, &damaged).unwrap();
        // Read or refused by name, and no panic.
        if let Err(error) = load(&dataset, &Selection::default()) {
            assert!(error.to_string().contains(".parquet"), "{error}");
            refused += 1;
        }
    }
    // Parquet has no checksum of its own by default: a changed value is read.
    assert!(refused >= 150, "{refused}");
}
