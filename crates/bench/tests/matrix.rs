//! The matrix's answer over made-up samples whose truth is known, including samples that cannot tell.

use crate::made_up::{FAR, MIGRATION_S, NEAR_S, cell, chance, sample, two_nodes, world};
use nearfar_bench::matrix::{Contrast, MatrixCell, Question, RunFailed, findings, rows};
use nearfar_machine::{Known, NodeId};

fn answer(contrasts: &[Contrast], question: Question) -> &Contrast {
    contrasts
        .iter()
        .find(|contrast| contrast.question == question)
        .unwrap()
}

#[test]
fn every_question_gets_the_answer_that_the_samples_were_made_with() {
    let cells = two_nodes();
    let found = findings(&cells, &world(&cells, 20, 0.0));
    let ratio = |question| *answer(&found.contrasts, question).ratio.get().unwrap();
    assert_eq!(found.contrasts.len(), 7);
    let other = ratio(Question::OtherNode);
    assert!(
        (other.median - 1.24).abs() < 1e-9 && other.is_significant(),
        "drift is no effect: {other:?}"
    );
    assert!(ratio(Question::UnboundCpus).confidence.unwrap().low > 1.1);
    let preferred = ratio(Question::PreferredToBound);
    assert!(
        (preferred.median - 1.00256).abs() < 1e-9,
        "two migrations cost a quarter of a percent: {preferred:?}"
    );
    assert!(ratio(Question::PreferredToNone).confidence.unwrap().high < 0.95);
}

#[test]
fn the_cost_of_a_migration_and_of_being_far_are_found_within_their_intervals() {
    let cells = two_nodes();
    let found = findings(&cells, &world(&cells, 20, 0.01)).explained;
    let (migration, far) = (
        found.migration_s.get().unwrap(),
        found.far_share.get().unwrap(),
    );
    assert!(
        migration.is_significant() && far.is_significant(),
        "{found:?}"
    );
    // The made-up drift stretches both costs with the rounds, by an eighth in the middle.
    let middle = 1.0 + 0.25 * 9.5 / 20.0;
    assert!(
        (migration.value / (MIGRATION_S * middle) - 1.0).abs() < 0.05,
        "{found:?}"
    );
    assert!((far.value / FAR - 1.0).abs() < 0.05, "{found:?}");
    assert!(found.r2.unwrap() > 0.95);
}

#[test]
fn no_difference_is_told_where_there_is_none() {
    let cells: Vec<MatrixCell> = two_nodes().into_iter().take(9).collect();
    // The same place for every cell: only noise is left.
    let mut taken = world(&cells, 15, 0.0);
    for (number, taken) in taken.iter_mut().enumerate() {
        let seconds = NEAR_S * (1.0 + 0.02 * (chance(number, 77) - 0.5));
        taken.sample = Ok(sample(
            seconds,
            NodeId(0),
            chance(number, 3),
            (chance(number, 5) * 100.0) as u64,
        ));
    }
    let found = findings(&cells, &taken);
    let told = found
        .contrasts
        .iter()
        .filter(|contrast| contrast.ratio.get().unwrap().is_significant())
        .count();
    assert_eq!(told, 0, "{:?}", found.contrasts);
    assert!(
        found
            .explained
            .migration_s
            .get()
            .is_none_or(|cost| !cost.is_significant()),
        "{:?}",
        found.explained
    );
}

#[test]
fn what_never_varies_is_not_explained_and_the_other_is() {
    let bound: Vec<MatrixCell> = two_nodes()
        .into_iter()
        .take(9)
        .filter(|cell| cell.is_same_node() || cell.is_other_node())
        .collect();
    let found = findings(&bound, &world(&bound, 10, 0.01)).explained;
    assert!(
        found
            .migration_s
            .unknown_reason()
            .unwrap()
            .contains("same in every sample"),
        "{found:?}"
    );
    assert!(
        (found.far_share.get().unwrap().value - FAR).abs() < 0.02,
        "{found:?}"
    );
}

#[test]
fn rounds_that_are_too_small_for_levels_of_their_own_are_said_to_have_none() {
    // Two cells of a round share a level, those with NUMA balancing off and those with it on.
    let bound = |cell: &MatrixCell| cell.is_same_node() || cell.is_other_node();
    let cells: Vec<MatrixCell> = [0, 1, 9, 10]
        .map(|row| two_nodes()[row])
        .into_iter()
        .filter(bound)
        .collect();
    let found = |rounds| findings(&cells, &world(&cells, rounds, 0.01)).explained;
    let (few, many) = (found(2), found(12));
    assert!(few.r2.is_some() && !few.within_rounds, "{few:?}");
    assert!(many.r2.is_some() && many.within_rounds, "{many:?}");
}

#[test]
fn a_cost_that_two_cells_or_one_decide_has_no_interval() {
    let explained = |rows: &[usize]| {
        let cells: Vec<MatrixCell> = rows.iter().map(|&row| two_nodes()[row]).collect();
        findings(&cells, &world(&cells, 12, 0.01)).explained
    };
    let found = explained(&[0, 1]);
    assert_eq!(
        found.far_share.unknown_reason(),
        Some("2 cells are too few to say how much cells differ in other ways")
    );
    // Only row 2 floats: whatever else is special to it looks like its migrations.
    let found = explained(&[0, 1, 2, 3, 4]);
    let why = "the number of cross-node migrations differs in one cell only";
    assert_eq!(found.migration_s.unknown_reason(), Some(why), "{found:?}");
}

#[test]
fn each_cost_that_cannot_be_told_has_its_own_reason() {
    let bound: Vec<MatrixCell> = two_nodes()
        .into_iter()
        .take(9)
        .filter(MatrixCell::is_same_node)
        .collect();
    let found = findings(&bound, &world(&bound, 10, 0.01)).explained;
    let reasons = [
        found.migration_s.unknown_reason().unwrap(),
        found.far_share.unknown_reason().unwrap(),
    ];
    assert!(
        reasons[0].starts_with("the number of cross-node migrations is the same"),
        "{reasons:?}"
    );
    assert!(
        reasons[1].starts_with("the share of far accesses is the same"),
        "{reasons:?}"
    );
}

#[test]
fn five_rounds_give_a_ratio_without_an_interval_and_none_gives_nothing() {
    let cells = two_nodes();
    let found = findings(&cells, &world(&cells, 5, 0.0));
    let ratio = answer(&found.contrasts, Question::OtherNode)
        .ratio
        .get()
        .unwrap();
    assert_eq!((ratio.rounds, ratio.confidence), (5, None));
    let found = findings(&cells, &[]);
    assert!(
        answer(&found.contrasts, Question::OtherNode)
            .ratio
            .unknown_reason()
            .is_some()
    );
    assert!(found.explained.far_share.unknown_reason().is_some());
}

#[test]
fn a_round_with_a_failed_run_is_left_out_of_the_ratios_that_need_it() {
    let cells = two_nodes();
    let mut taken = world(&cells, 8, 0.0);
    let failing = taken
        .iter_mut()
        .find(|taken| taken.round == 3 && taken.cell.is_other_node())
        .unwrap();
    failing.sample = Err(RunFailed("out of memory".to_owned()));
    let failing = failing.cell;
    let found = findings(&cells, &taken);
    assert_eq!(
        answer(&found.contrasts, Question::OtherNode)
            .ratio
            .get()
            .unwrap()
            .rounds,
        7
    );
    assert_eq!(
        answer(&found.contrasts, Question::UnboundCpus)
            .ratio
            .get()
            .unwrap()
            .rounds,
        8
    );
    let rows = rows(&cells, &taken);
    let row = rows.iter().find(|row| row.cell == failing).unwrap();
    assert_eq!(
        (
            row.seconds.as_ref().unwrap().samples.len(),
            row.failed[0].samples
        ),
        (7, 1)
    );
    assert_eq!(row.failed[0].what, "out of memory");
}

#[test]
fn a_subset_asks_only_what_its_cells_can_answer() {
    let parse =
        |texts: &[&str]| -> Vec<MatrixCell> { texts.iter().map(|text| cell(text)).collect() };
    let asked = |texts: &[&str]| -> Vec<Question> {
        findings(&parse(texts), &[])
            .contrasts
            .iter()
            .map(|contrast| contrast.question)
            .collect()
    };
    assert_eq!(
        asked(&["preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F"]),
        []
    );
    assert_eq!(
        asked(&[
            "preferred_node=-1,numa_balancing=1,memory_node=0,cpu_node=0",
            "preferred_node=-1,numa_balancing=1,memory_node=0,cpu_node=1"
        ]),
        [Question::OtherNode]
    );
    assert_eq!(
        asked(&[
            "preferred_node=0,numa_balancing=0,memory_node=0,cpu_node=F",
            "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=0"
        ]),
        [Question::PreferredToBound]
    );
    let wrong_node = asked(&[
        "preferred_node=1,numa_balancing=0,memory_node=0,cpu_node=F",
        "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=0",
    ]);
    assert_eq!(
        wrong_node,
        [],
        "a preferred node away from the memory is no answer to whether preferring helps"
    );
}

#[test]
fn rows_have_the_published_columns_and_their_medians() {
    let cells = two_nodes();
    let rows = rows(&cells, &world(&cells, 7, 0.0));
    assert_eq!(rows.len(), 36);
    let row = &rows[8];
    assert_eq!(
        (row.row, row.cell.to_string().as_str()),
        (
            8,
            "preferred_node=-1,numa_balancing=0,memory_node=F,cpu_node=F"
        )
    );
    let moments = row.moments.unwrap();
    assert!(moments.min < moments.mean && moments.mean < moments.max && moments.stdev.is_some());
    assert!(row.migrations.get().unwrap().cross_node > 50.0);
    assert!(matches!(row.far_share, Known::Yes(share) if share > 0.0 && share < 1.0));
}
