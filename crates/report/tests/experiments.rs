//! Runs of io, rps and scale as text: their columns, and what is found.

use crate::stored::{Stored, rounds};
use nearfar_bench::{io, rps, scale};
use nearfar_report::Style;
use nearfar_runs::{Better, Cell, Factor, Histogram, Metric, Values};
use serde_json::{Value, json};

fn text(stored: &Stored) -> String {
    let own = stored.shown().own(None).unwrap().unwrap();
    let text = own.text.to_text(&Style::default());
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    text
}

fn values<const N: usize>(values: [(&str, f64); N]) -> Values {
    let values = values.map(|(name, value)| (name.to_owned(), value.into()));
    values.into()
}

#[test]
fn io_has_its_table_its_locks_and_what_each_factor_changes() {
    let factors = vec![
        Factor::new("plan", ["before", "after"]),
        Factor::new("cpu_node", ["near", "far"]),
        Factor::new("depth", [8i64]),
    ];
    let metrics = vec![
        Metric::real(io::IOPS, "1/s", Better::Higher).primary(),
        Metric::real("bytes_per_s", "B/s", Better::Higher),
        Metric::real(io::LATENCY_P99, "ns", Better::Lower),
        Metric::real("system_share", "1", Better::Lower),
    ];
    let sample = |cell: &Cell, noise: f64| {
        let is_slow = cell.text("plan") == "before" && cell.text("cpu_node") == "far";
        let iops = noise * if is_slow { 4000.0 } else { 5000.0 };
        let found = [
            (io::IOPS, iops),
            ("bytes_per_s", 4096.0 * iops),
            (io::LATENCY_P99, 8e9 / iops),
            ("system_share", 0.2),
        ];
        let site = json!({"call_site": "blk_mq_get_tag", "kind": "spin_lock", "waits": 3, "wait_s": 0.001});
        let detail = json!({"command": "fio --name=job", "locks": {"sites": [site]}});
        (values(found), detail)
    };
    insta::assert_snapshot!(text(&rounds(io::EXPERIMENT, factors, metrics, sample)));
}

#[test]
fn rps_has_its_tables_and_says_who_falls_behind() {
    let factors = vec![
        Factor::new(rps::INTERRUPTS, ["kernel_pre_6_3", "nearest_first"]),
        Factor::new(rps::RECEIVE, [rps::KEEP]),
        Factor::new(rps::SERVER_NODE, [rps::CARD, rps::ADJACENT, rps::TOGETHER]),
    ];
    let metrics = vec![
        Metric::real(rps::REQUESTS_CARD, "1/s", Better::Higher).primary(),
        Metric::real(rps::REQUESTS_ADJACENT, "1/s", Better::Higher),
        Metric::histogram("latency_card_ns", "ns", Better::Lower),
        Metric::integer("interrupts_near", "", Better::Higher),
        Metric::real("softirq_near_s", "s", Better::Lower),
    ];
    let sample = |cell: &Cell, noise: f64| {
        let (before, level) = (
            cell.text(rps::INTERRUPTS) == "kernel_pre_6_3",
            cell.text(rps::SERVER_NODE),
        );
        let mut found = values([("softirq_near_s", 0.3 * noise)]);
        found.insert("interrupts_near".to_owned(), 4058u64.into());
        if level != rps::ADJACENT {
            let mut latencies = Histogram::new();
            (1..=100).for_each(|it| latencies.record(it * 20_000));
            found.insert("latency_card_ns".to_owned(), latencies.into());
            found.insert(rps::REQUESTS_CARD.to_owned(), (1800.0 * noise).into());
        }
        if level != rps::CARD {
            let requests = noise * if before { 1300.0 } else { 1801.0 };
            found.insert(rps::REQUESTS_ADJACENT.to_owned(), requests.into());
        }
        (found, Value::Null)
    };
    insta::assert_snapshot!(text(&rounds(rps::EXPERIMENT, factors, metrics, sample)));
}

#[test]
fn scale_has_a_row_a_number_of_tasks_the_law_and_what_more_nodes_change() {
    let factors = vec![
        Factor::new(scale::WORKLOAD, ["tlb_flush"]),
        Factor::new("append", ["numa=fake=1U", "numa=fake=2U"]),
        Factor::new(scale::TASKS, [1i64, 2, 4, 8]),
    ];
    let metrics = vec![
        Metric::real(scale::OPERATIONS, "1/s", Better::Higher).primary(),
        Metric::real("fairness", "1", Better::Higher),
        Metric::real(scale::LOCK_SHARE, "1", Better::Lower),
    ];
    let sample = |cell: &Cell, noise: f64| {
        let tasks: f64 = cell.text(scale::TASKS).parse().unwrap();
        let nodes = cell.text("append");
        let sigma = if nodes == "numa=fake=1U" { 0.2 } else { 0.05 };
        let operations = 1e5 * noise * tasks / (1.0 + sigma * (tasks - 1.0));
        let found = [
            (scale::OPERATIONS, operations),
            ("fairness", 0.987),
            (scale::LOCK_SHARE, sigma),
        ];
        (values(found), json!({"nodes": "0-1"}))
    };
    insta::assert_snapshot!(text(&rounds(scale::EXPERIMENT, factors, metrics, sample)));
}
