//! Totals by service while services come and go: none decreases, sums are right, and a service keeps its series while it lives.

use std::collections::{BTreeMap, BTreeSet};

use globset::{Glob, GlobSet};
use nearfar_exporter::{DROP_AFTER_S, OTHER, Services, Text};
use nearfar_live::NodeActivity;
use nearfar_machine::{Known, NodeBytes, NodeId, NodeSet};
use nearfar_placement::tasks::{NodeSeconds, Placement, Remote, TaskPlacement, Tasks};
use proptest::prelude::*;

/// A task of a service, with memory on node 0 and CPU time on node 1.
fn task(service: Option<&str>, bytes: u64, cpu_s: f64) -> TaskPlacement {
    let memory = NodeBytes {
        node: NodeId(0),
        bytes,
    };
    let time = NodeSeconds {
        node: NodeId(1),
        seconds: cpu_s,
    };
    let remote = Remote {
        share: 1.0,
        error: 0.0,
        cost_s: Some(cpu_s / 2.0),
    };
    TaskPlacement {
        pid: 7,
        name: "task".to_owned(),
        user: Known::Yes(0),
        group: Known::no("not looked for"),
        service: service.map(str::to_owned),
        identity: None,
        at: Placement {
            cpu_s: Known::Yes(cpu_s),
            cpu_nodes: Known::Yes(vec![time]),
            memory: Known::Yes(vec![memory]),
            remote: Known::Yes(remote),
        },
        allowed_cpu_nodes: Known::Yes(NodeSet::parse_list("1-2").unwrap()),
        resident: Known::no("not looked for"),
        sample: None,
        used: None,
        held_by: Vec::new(),
        remedy: None,
        device: None,
        threads: Vec::new(),
    }
}

fn look(tasks: Vec<TaskPlacement>) -> Tasks {
    Tasks {
        seconds: Some(1.0),
        min_bytes: 0,
        tasks,
        unknown: Vec::new(),
        device: None,
        whole: BTreeMap::new(),
        latency_sources: Vec::new(),
    }
}

fn node(node: u32) -> NodeActivity {
    NodeActivity {
        node: NodeId(node),
        cpus: 2,
        busy_s: 0.0,
        total_bytes: Some(1 << 30),
        free_bytes: None,
        file_bytes: None,
        allocated: None,
    }
}

/// Values by the metric with its labels.
fn values(services: &Services) -> BTreeMap<String, f64> {
    let mut text = Text::default();
    services.write(&mut text, &[node(0), node(1)], true);
    let text = text.finish();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (key, value) = line.rsplit_once(' ').unwrap();
        (key.to_owned(), value.parse().unwrap())
    };
    samples.map(sample).collect()
}

fn sum(values: &BTreeMap<String, f64>, metric: &str) -> f64 {
    let of_metric = values.iter().filter(|(key, _)| key.starts_with(metric));
    of_metric.map(|(_, value)| value).sum()
}

/// The services that have series.
fn exported(values: &BTreeMap<String, f64>) -> BTreeSet<String> {
    let of_tasks = values.keys().filter_map(|key| {
        let labels = key.strip_prefix("nearfar_service_tasks{service=\"")?;
        labels.strip_suffix("\"}").map(str::to_owned)
    });
    of_tasks.collect()
}

const CPU: &str = "nearfar_service_cpu_seconds_total";
const MEMORY: &str = "nearfar_service_memory_bytes";

#[test]
fn the_largest_services_have_series_and_the_others_are_together() {
    let mut services = Services::new(2, None);
    services.add(
        &look(vec![
            task(Some("small.service"), 10, 1.0),
            task(Some("large.service"), 30, 2.0),
            task(None, 100, 4.0),
            task(Some("middle.service"), 20, 8.0),
        ]),
        1.0,
    );
    let values = values(&services);
    let of = |metric: &str, service: &str, node: u32| {
        values[&format!("{metric}{{service=\"{service}\",node=\"{node}\"}}")]
    };
    assert_eq!(of(MEMORY, "large.service", 0), 30.0);
    assert_eq!(of(MEMORY, "large.service", 1), 0.0);
    assert_eq!(of(MEMORY, "middle.service", 0), 20.0);
    assert_eq!(of(MEMORY, OTHER, 0), 110.0);
    assert_eq!(of(CPU, OTHER, 1), 5.0);
    assert_eq!(of(CPU, OTHER, 0), 0.0);
    let allowed = |service: &str| {
        let series = format!("nearfar_service_allowed_nodes{{service=\"{service}\"}}");
        values.get(&series).copied()
    };
    assert_eq!(
        [allowed("large.service"), allowed(OTHER)],
        [Some(2.0), None]
    );
    assert_eq!(exported(&values).len(), 3);
}

#[test]
fn only_services_that_were_asked_for_have_series() {
    let wanted = Glob::new("docker *").unwrap();
    let wanted = GlobSet::builder().add(wanted).build().unwrap();
    let mut services = Services::new(50, Some(wanted));
    let tasks = vec![
        task(Some("docker 0123456789ab"), 10, 1.0),
        task(Some("ssh.service"), 10, 1.0),
    ];
    services.add(&look(tasks), 1.0);
    let expected = ["docker 0123456789ab", OTHER].map(str::to_owned);
    assert_eq!(exported(&values(&services)), BTreeSet::from(expected));
}

#[test]
fn a_service_that_ended_frees_its_series_after_a_while_and_begins_again_at_0() {
    let mut services = Services::new(1, None);
    let first = || look(vec![task(Some("a.service"), 10, 3.0)]);
    let second = || look(vec![task(Some("b.service"), 10, 5.0)]);
    services.add(&first(), 1.0);
    services.add(&second(), DROP_AFTER_S);
    let series = |name: &str| format!("{CPU}{{service=\"{name}\",node=\"1\"}}");
    assert_eq!(values(&services)[&series("a.service")], 3.0);
    assert_eq!(values(&services)[&series(OTHER)], 5.0);
    services.add(&second(), 1.0);
    services.add(&second(), 1.0);
    let now = values(&services);
    assert!(!now.contains_key(&series("a.service")), "{now:?}");
    assert_eq!(
        (now[&series("b.service")], now[&series(OTHER)]),
        (5.0, 10.0)
    );
}

#[test]
fn names_that_differ_in_control_characters_only_are_one_series() {
    let mut services = Services::new(9, None);
    let tasks = vec![
        task(Some("a\u{1}.service"), 10, 1.0),
        task(Some("a\u{2}.service"), 10, 1.0),
        task(Some("\"b\\\n.service"), 10, 1.0),
    ];
    services.add(&look(tasks), 1.0);
    let expected = ["a\u{fffd}.service", "\\\"b\\\\\u{fffd}.service", OTHER];
    let expected = BTreeSet::from(expected.map(str::to_owned));
    assert_eq!(exported(&values(&services)), expected);
}

/// A task of one of a few services: its number (0 for none), its memory, its CPU time.
type Drawn = (usize, u64, u32);

fn tasks_of(drawn: &[Drawn]) -> Tasks {
    let service = |number: usize| (number > 0).then(|| format!("s{number}.service"));
    let tasks = drawn
        .iter()
        .map(|&(number, bytes, cpu_s)| task(service(number).as_deref(), bytes, f64::from(cpu_s)));
    look(tasks.collect())
}

proptest! {
    #[test]
    fn no_total_decreases_and_sums_are_those_of_all_tasks(
        top in 0_usize..4,
        looks in prop::collection::vec((prop::collection::vec((0_usize..7, 1_u64..1000, 0_u32..100), 0..8), 1.0..200.0), 1..40),
    ) {
        let mut services = Services::new(top, None);
        let mut before = values(&services);
        for (drawn, seconds) in &looks {
            services.add(&tasks_of(drawn), *seconds);
            let now = values(&services);
            let mut added = 0.0;
            for (key, value) in now.iter().filter(|(key, _)| key.contains("_total")) {
                let earlier = before.get(key).copied().unwrap_or(0.0);
                prop_assert!(*value >= earlier, "{key}: {value} after {earlier}");
                added += if key.starts_with(CPU) { value - earlier } else { 0.0 };
            }
            let cpu_s: u32 = drawn.iter().map(|it| it.2).sum();
            prop_assert_eq!(added, f64::from(cpu_s));
            let bytes: u64 = drawn.iter().map(|it| it.1).sum();
            prop_assert_eq!(sum(&now, MEMORY), bytes as f64);
            prop_assert_eq!(sum(&now, "nearfar_service_tasks"), drawn.len() as f64);
            prop_assert!(exported(&now).len() <= top + 1);
            for name in exported(&before).iter().filter(|name| *name != OTHER) {
                let lives = drawn.iter().any(|(number, ..)| *name == format!("s{number}.service"));
                prop_assert!(!lives || exported(&now).contains(name), "{name} lost its series");
            }
            before = now;
        }
    }
}
