//! The same data, compared by SciPy: tools/check-compare made tests/scipy.csv, so that no Python is needed here.

use std::collections::BTreeMap;

use nearfar_statistics::compare::{Compared, Design, Question, compare};
use nearfar_statistics::{CONFIDENCE, Interval};

/// What both work out exactly.
const EXACT: f64 = 1e-9;
/// Where SciPy approximates: with ties among more than 16 samples (13 pairs), and among more than 60. And as a share of p.
const APPROXIMATE: f64 = 0.01;
const APPROXIMATE_SHARE: f64 = 0.06;
/// A bootstrap draws: as shares of the interval's width.
const DRAWN: f64 = 0.08;

struct Case {
    fields: BTreeMap<String, String>,
}

impl Case {
    fn samples(&self, side: &str) -> Vec<f64> {
        let numbers = self.fields[side].split(' ');
        numbers.map(|number| number.parse().unwrap()).collect()
    }

    fn number(&self, name: &str) -> Option<f64> {
        let text = &self.fields[name];
        (!text.is_empty()).then(|| text.parse().unwrap())
    }

    fn interval(&self, low: &str, high: &str) -> Option<Interval> {
        Some(Interval {
            low: self.number(low)?,
            high: self.number(high)?,
        })
    }

    fn compared(&self) -> Compared {
        let design = match self.fields["design"].as_str() {
            "paired" => Design::Paired,
            _ => Design::Independent,
        };
        let (a, b) = (self.samples("a"), self.samples("b"));
        let question = Question {
            a: vec![a],
            b: vec![b],
            design,
            better: None,
        };
        compare(&[question], 0.02).remove(0).unwrap()
    }

    fn is_approximate(&self, compared: &Compared) -> bool {
        let (count, exact) = match compared.design {
            Design::Independent => (compared.a.samples + compared.b.samples, 16),
            Design::Paired => (compared.a.samples, 13),
        };
        count > 60 || (self.fields["case"].starts_with("ties") && count > exact)
    }
}

/// Without those whose samples follow their predecessors: SciPy takes every sample for independent.
fn cases() -> Vec<(Case, Compared)> {
    let mut lines = include_str!("scipy.csv").lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let of = |line: &str| Case {
        fields: names
            .iter()
            .map(|name| (*name).to_owned())
            .zip(line.split(',').map(str::to_owned))
            .collect(),
    };
    let all: Vec<(Case, Compared)> = lines
        .map(of)
        .map(|case| {
            let compared = case.compared();
            (case, compared)
        })
        .collect();
    let (independent, following): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|(_, compared)| compared.variance_inflation <= 1.0);
    assert!(following.len() < 20, "{}", following.len());
    for (case, compared) in following {
        assert!(
            compared.p >= case.number("p").unwrap(),
            "{}: less sure, not more",
            case.fields["case"]
        );
    }
    independent
}

fn assert_near(name: &str, found: f64, expected: f64, within: f64) {
    assert!(
        (found - expected).abs() <= within,
        "{name}: {found}, SciPy {expected}"
    );
}

#[test]
fn rank_tests_agree_with_scipy_and_so_do_their_verdicts() {
    let cases = cases();
    let mut significant = 0;
    for (case, compared) in &cases {
        let name = &case.fields["case"];
        let within = |p: f64| match case.is_approximate(compared) {
            true => APPROXIMATE + APPROXIMATE_SHARE * p,
            false => EXACT,
        };
        let p = case.number("p").unwrap();
        assert_near(name, compared.p, p, within(p));
        assert_eq!(compared.is_significant, p <= 1.0 - CONFIDENCE, "{name}");
        assert_near(
            name,
            compared.shift.value,
            case.number("shift").unwrap(),
            EXACT,
        );
        significant += usize::from(compared.is_significant);
    }
    assert!(
        cases.len() > 70 && significant > 20,
        "{significant} of {}",
        cases.len()
    );
}

#[test]
fn intervals_are_the_shifts_that_scipys_tests_do_not_reject() {
    let mut checked = 0;
    for (case, compared) in &cases() {
        let name = &case.fields["case"];
        // With ties the interval here is that of samples without, which is the wider one.
        if name.starts_with("ties") || case.number("p").is_none() || compared.a.samples > 20 {
            continue;
        }
        let expected = case.interval("low", "high");
        let found = compared.shift.confidence;
        assert_eq!(found.is_some(), expected.is_some(), "{name}");
        let (Some(found), Some(expected)) = (found, expected) else {
            continue;
        };
        assert_near(name, found.low, expected.low, EXACT);
        assert_near(name, found.high, expected.high, EXACT);
        checked += 1;
    }
    assert!(checked > 30, "{checked}");
}

#[test]
fn bootstrap_intervals_of_the_means_agree_with_scipys() {
    let mut checked = 0;
    for (case, compared) in &cases() {
        let Some(expected) = case.interval("mean_low", "mean_high") else {
            continue;
        };
        let name = &case.fields["case"];
        let found = compared.mean.confidence.expect(name);
        let within = DRAWN * (expected.high - expected.low);
        assert_near(name, found.low, expected.low, within);
        assert_near(name, found.high, expected.high, within);
        checked += 1;
    }
    assert!(checked > 40, "{checked}");
}
