use super::*;
use crate::tags::made_up::{cell, run};

fn of(cells: &[(Cell, f64)]) -> Findings {
    let (detail, samples) = run(cells, 12);
    findings(&detail, &samples)
}

fn three(distance: &str, depth: i64, medians: [f64; 3]) -> Vec<(Cell, f64)> {
    let cells = PUBLISHED_ORDER.map(|policy| cell(policy, distance, depth));
    cells.into_iter().zip(medians).collect()
}

#[test]
fn planted_orders_are_found_in_spite_of_drift() {
    let planted = [
        ("near", 248, [1000.0, 1100.0, 1200.0], OrderVerdict::Holds),
        (
            "near",
            512,
            [900.0, 1000.0, 1000.0],
            OrderVerdict::HoldsInPart,
        ),
        (
            "far",
            248,
            [600.0, 800.0, 700.0],
            OrderVerdict::Contradicted,
        ),
        (
            "far",
            512,
            [400.0, 400.0, 400.0],
            OrderVerdict::NotSignificant,
        ),
    ];
    let cells = planted.map(|(distance, depth, medians, _)| three(distance, depth, medians));
    let found = of(&cells.concat());
    let verdicts = found.orders.iter().map(|order| order.verdict);
    let expected = planted.map(|(.., verdict)| verdict);
    assert_eq!(verdicts.collect::<Vec<_>>(), expected);
    let names: Vec<_> = found.orders.iter().map(|it| it.scenario.as_str()).collect();
    assert_eq!(names, ["near-low", "near-high", "far-low", "far-high"]);
}

#[test]
fn a_policy_beats_all_three_only_if_it_is_better_than_each() {
    let mut cells = three("far", 512, [400.0, 600.0, 700.0]);
    cells.push((cell("auto", "far", 512), 900.0));
    cells.push((cell("coarse_llc", "far", 512), 700.0));
    cells.push((cell("bitmap", "far", 512), 650.0));
    let others = of(&cells).others;
    let found: Vec<_> = others
        .iter()
        .map(|it| (it.policy.as_str(), it.beats_all))
        .collect();
    assert_eq!(
        found,
        [("auto", true), ("coarse_llc", false), ("bitmap", false)]
    );
    let verdicts = |place: usize| others[place].steps.iter().map(Step::verdict);
    assert_eq!(verdicts(2).next_back(), Some(Some(Verdict::Worse)));
    assert_eq!(verdicts(1).next(), Some(Some(Verdict::Better)));
}

#[test]
fn without_one_of_the_three_nothing_beats_all_three() {
    let cells = [
        (cell("stock", "far", 512), 400.0),
        (cell("limit", "far", 512), 500.0),
        (cell("auto", "far", 512), 900.0),
    ];
    let found = of(&cells);
    assert_eq!((found.orders.len(), found.orders[0].steps.len()), (1, 1));
    assert!(!found.others[0].beats_all);
}

#[test]
fn far_is_compared_with_near_and_alone_with_stock() {
    let cells = [
        (cell("stock", "near", 512), 1000.0),
        (cell("stock", "far", 512), 500.0),
        (cell("auto", "far", 512), 500.0),
        (cell("stock", "alone", 248), 1000.0),
        (cell("auto", "alone", 248), 900.0),
    ];
    let found = of(&cells);
    let [far] = found.distances.as_slice() else {
        panic!("{:?}", found.distances);
    };
    let ratio = far.compared.get().unwrap().shift.value;
    assert!((0.49..0.51).contains(&ratio), "{ratio}");
    let [operations, cpu] = found.alone.as_slice() else {
        panic!("{:?}", found.alone);
    };
    for (step, metric) in [(operations, OPERATIONS), (cpu, CPU_PER_OPERATION)] {
        assert_eq!(policies_of(step), ("stock".to_owned(), "auto".to_owned()));
        assert_eq!(
            (step.metric.as_str(), step.verdict()),
            (metric, Some(Verdict::Worse))
        );
    }
    assert!(cpu.compared.get().unwrap().shift.value > 1.05);
}

#[test]
fn three_rounds_have_no_verdict_and_a_cell_without_samples_a_reason() {
    let (detail, mut samples) = run(&three("far", 512, [400.0, 600.0, 700.0]), 3);
    let found = findings(&detail, &samples);
    assert_eq!(found.orders[0].verdict, OrderVerdict::Unknown);
    samples.retain(|it| it.cell.text(POLICY) != "limit");
    let found = findings(&detail, &samples);
    let steps = &found.orders[0].steps;
    assert!(steps.iter().all(|step| step.compared.get().is_none()));
    assert!(findings(&detail, &[]).distances.is_empty());
}
