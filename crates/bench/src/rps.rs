//! Case 4: requests through a network card to servers on the card's node and on the adjacent node.
//!
//! ```text
//!  namespace of the machine                              namespace of the clients
//!  server, pinned ── 198.18.N.1, card ═══ cable ═══ card, 198.18.N.2 ── clients: threads on CPUs that are not measured
//!        ▲             │ queues: an interrupt each
//!        └── softirq ◄─┘ on the CPU that the cell's spread gives the queue
//! ```
//!
//! Each server's connections have source ports whose hash leads to a queue of the server's own (`Rss`), so that no setting of the
//! card is changed. Without a second card both ends are a veth pair, and receive packet steering stands for the interrupt.
//!
//! The clients' namespace belongs to a thread of this process: the kernel removes it, with the veth pair, when the process ends in
//! whatever way, and the client's card comes back. What else is changed is in leases.
//!
//! Here are what `nearfar bench rps` declares, what a sample has, and the findings, by requests per second, paired by round. Two
//! questions, each with a chance of any false alarm
//! of 5 % (Holm):
//!
//! ```text
//! behind    servers on the card's node ─► on the adjacent one    for each way interrupts are served: does the adjacent node fall behind?
//! changes   interrupts as before ─► nearest first                for each node with servers: is any worse off?
//! ```

mod clients;
mod link;
mod measure;
mod prepare;
mod programs;

use std::collections::BTreeMap;

use clap::Args as _;
use nearfar_experiment::Column;
use nearfar_machine::{CpuId, NodeId, seconds};
use nearfar_runs::{Better, Cell, Detail, Histogram, Metric, Sample as StoredSample};
use nearfar_statistics::compare::Question;
use serde::{Deserialize, Serialize};

use crate::registry::{Arguments, Declaration, Entry, RunError, SECONDS, Varied, number, within};
use crate::step::{Rounds, Step, answer};
pub use clients::{ReplyError, reply_length};
pub use link::{Rss, RssError};
use measure::Served;
use programs::{ClientCommand, REDIS, check};

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "rps";

/// The primary metric: requests answered a second, of all servers of the cell.
pub const REQUESTS: &str = "requests_per_s";
/// The part of it that the servers on the card's node answered.
pub const REQUESTS_CARD: &str = "requests_per_s_card";
/// The part of it that the servers on the adjacent node answered.
pub const REQUESTS_ADJACENT: &str = "requests_per_s_adjacent";

/// The factor: which node has servers.
pub const SERVER_NODE: &str = "server_node";
/// Its level for servers on the card's node.
pub const CARD: &str = "card";
/// Its level for servers on the node nearest to it.
pub const ADJACENT: &str = "adjacent";
/// Its level for as many servers on each of both nodes at once.
pub const TOGETHER: &str = "together";

/// The factor: how the interrupts of the card's queues are spread.
pub const INTERRUPTS: &str = "interrupts";
/// The factor: which CPU processes the packets that a server of a veth pair receives.
pub const RECEIVE: &str = "receive";
/// The level of both factors for what is set already.
pub const KEEP: &str = "keep";

const KERNEL_PRE_6_3: &str = "kernel_pre_6_3";
const NEAREST_FIRST: &str = "nearest_first";
const PLAN: &str = "plan";
const SERVER_CPU: &str = "server_cpu";

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure requests to servers on a network card's node and on the adjacent one\n\n\
            Servers (redis, or --server-command) are pinned to CPUs of the card's node or of the node next to it; clients are \
            threads of nearfar, or --client-command, in a network namespace with a second card, which a cable connects to the \
            first, on CPUs that \
            are not measured. The card's interrupts are as they are, as the kernel before 6.3 spread them, nearest first, or \
            as nearfar plan changes them. Without a card a veth pair connects both. Takes root.",
    examples: &[
        "",
        "--device eth0 --client-device eth1 --servers 4",
        "--device 0000:21:00.0 --client-device 0000:22:00.0 --factor server_node=together --samples 20",
        "--factor receive=server_cpu,near,far",
        "--server-command 'python3 -m http.server --bind {address} {port}' \
         --client-command 'wrk -t1 -c{connections} -d{seconds}s http://{address}:{port}/' \
         --client-rate 'Requests/sec: +([0-9.]+)'",
    ],
    is_hidden: false,
    is_of_machine: false,
    needs_devices: true,
    is_simulated: false,
    samples: 10,
    factors: &[
        Varied::new(SERVER_NODE, &[CARD, ADJACENT, TOGETHER], &[CARD, ADJACENT]),
        Varied::new(
            INTERRUPTS,
            &[KEEP, KERNEL_PRE_6_3, NEAREST_FIRST, PLAN],
            &[KEEP, KERNEL_PRE_6_3, NEAREST_FIRST],
        ),
        Varied::new(
            RECEIVE,
            &[KEEP, SERVER_CPU, "near", "far"],
            &[KEEP, SERVER_CPU, "near", "far"],
        ),
    ],
    options: Parameters::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(prepare::make),
};

/// Its own options, as they are stored.
#[derive(Clone, Debug, clap::Args, Serialize)]
struct Parameters {
    /// The servers' card, by name or PCI address [default: a veth pair instead of cards]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The clients' card, which has no address and is connected to the servers' card
    #[arg(long, value_name = "NAME")]
    client_device: Option<String>,
    /// The node to use as the card's and the one to use as adjacent, such as 2,3 [default: by the card]
    #[arg(long, value_name = "NODE,NODE")]
    server_nodes: Option<String>,
    /// Servers on each node, as many as it has CPUs for
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=500, number::<u32>))]
    servers: u32,
    /// Connections to each server, each with one request in flight
    #[arg(long, value_name = "N", default_value = "4", value_parser = within(1..=1000, number::<u32>))]
    connections: u32,
    /// CPUs of the clients, a thread on each, or all programs on all of them [default: one that has neither servers nor queues]
    #[arg(long, value_name = "CPUS")]
    client_cpus: Option<String>,
    /// Command of a server, with {address}, {port}, {cpu}, {node}, {password}; nearfar's own clients speak redis' protocol
    #[arg(long, value_name = "COMMAND", default_value = REDIS)]
    server_command: String,
    /// Command of a client for each server, with {address}, {port}, {cpus}, {connections}, {seconds}, {node}, {value_bytes}, {password}
    /// [default: threads of nearfar]
    #[arg(long, value_name = "COMMAND")]
    client_command: Option<String>,
    /// Regular expression whose group is the rate in what the client prints, such as 'Requests/sec: +([0-9.]+)'
    #[arg(long, value_name = "REGEX")]
    client_rate: Option<String>,
    /// Bytes of the value that each request gets
    #[arg(long, value_name = "N", default_value = "3", value_parser = within(1..=60_000, number::<u32>))]
    value_bytes: u32,
    /// Seconds for which a sample is measured
    #[arg(long, value_name = SECONDS, default_value = "1", value_parser = within(0.001..=3600.0, seconds::parse))]
    seconds: f64,
    /// Seconds for which requests are made before
    // Stored without a value with a client command, which has its own.
    #[arg(long, value_name = SECONDS, default_value = "0.5", value_parser = within(0.0..=3600.0, seconds::parse))]
    warm_up: Option<f64>,
}

impl Parameters {
    fn read(arguments: &Arguments) -> Result<Self, RunError> {
        let mut parameters: Self = arguments.parameters()?;
        if parameters.client_command.is_some() {
            parameters.warm_up = None;
        }
        let wrong = |name: &str, reason: String| Err(arguments.wrong(name, reason).into());
        if let Err(reason) = check(&parameters.server_command, &programs::SERVER_PLACEHOLDERS) {
            return wrong("server-command", reason);
        }
        match (&parameters.device, &parameters.client_device) {
            (Some(_), None) => wrong(
                "device",
                "--client-device has to name the card at the other end".to_owned(),
            ),
            (None, Some(_)) => wrong("client-device", "it takes --device as well".to_owned()),
            (Some(server), Some(client)) if server == client => {
                wrong("client-device", "the servers have this card".to_owned())
            }
            _ => Ok(parameters),
        }
    }

    /// The client that was given; `None` for nearfar's own.
    ///
    /// # Errors
    /// The name of the argument that is wrong, and why.
    fn client(&self) -> Result<Option<ClientCommand>, (&'static str, String)> {
        match (&self.client_command, &self.client_rate) {
            (Some(command), Some(rate)) => ClientCommand::new(command, rate).map(Some),
            (Some(_), None) => Err((
                "client-command",
                "--client-rate is missing: where the client prints its requests per second"
                    .to_owned(),
            )),
            (None, Some(_)) => Err((
                "client-rate",
                "it takes --client-command as well".to_owned(),
            )),
            (None, None) => Ok(None),
        }
    }

    /// The nodes that were named: none, one or two.
    fn server_nodes(&self) -> Result<Vec<NodeId>, String> {
        let nodes = self.server_nodes.iter().flat_map(|text| text.split(','));
        let node = |text: &str| text.trim().parse().map(NodeId);
        let nodes: Result<Vec<_>, _> = nodes.map(node).collect();
        nodes
            .ok()
            .filter(|it| it.len() <= 2)
            .ok_or_else(|| "expected one node or two, such as 2,3".to_owned())
    }
}

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// The nodes with servers, the card's first.
    groups: Vec<Group>,
    /// Where the clients were.
    client_cpus: Vec<CpuId>,
    /// Whether each server has queues of its own.
    is_steered: bool,
    served: Served,
    /// Near and far, as [`Served::interrupts`] has them.
    interrupts: Option<[u64; 2]>,
    /// What may be wrong with it, in sentences.
    warnings: Vec<String>,
}

/// The servers of a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Group {
    /// [`CARD`] or [`ADJACENT`].
    role: String,
    node: NodeId,
    /// Of each server.
    cpus: Vec<CpuId>,
    requests_per_s: f64,
    /// Empty where the clients are not nearfar's.
    latency_ns: Histogram,
}

impl Sample {
    fn group(&self, role: &str) -> Option<&Group> {
        self.groups.iter().find(|it| it.role == role)
    }
}

fn columns() -> Vec<Column<Sample>> {
    let rate = |name, role| {
        let metric = Metric::real(name, "1/s", Better::Higher);
        Column::new(metric, move |it: &Sample| {
            Some(it.group(role)?.requests_per_s)
        })
    };
    let latency = |name, role| {
        let metric = Metric::histogram(name, "ns", Better::Lower);
        Column::new(metric, move |it: &Sample| {
            let latencies = it.group(role)?.latency_ns.clone();
            Some(latencies).filter(|it| it.count() > 0)
        })
    };
    let near = |name| Metric::integer(name, "", Better::Higher);
    let far = |name| Metric::integer(name, "", Better::Lower);
    let time = |name| Metric::real(name, "s", Better::Lower);
    let sum = |it: &Sample| it.groups.iter().map(|it| it.requests_per_s).sum::<f64>();
    vec![
        Column::new(
            Metric::real(REQUESTS, "1/s", Better::Higher).primary(),
            move |it| Some(sum(it)),
        ),
        rate(REQUESTS_CARD, CARD),
        rate(REQUESTS_ADJACENT, ADJACENT),
        latency("latency_card_ns", CARD),
        latency("latency_adjacent_ns", ADJACENT),
        Column::new(near("interrupts_near"), |it: &Sample| {
            Some(it.interrupts?[0])
        }),
        Column::new(far("interrupts_far"), |it: &Sample| Some(it.interrupts?[1])),
        Column::new(near("net_rx_near"), |it: &Sample| Some(it.served.net_rx[0])),
        Column::new(far("net_rx_far"), |it: &Sample| Some(it.served.net_rx[1])),
        Column::new(time("softirq_near_s"), |it: &Sample| {
            Some(it.served.softirq_s[0])
        }),
        Column::new(time("softirq_far_s"), |it: &Sample| {
            Some(it.served.softirq_s[1])
        }),
        Column::new(far("dropped"), |it: &Sample| Some(it.served.dropped)),
    ]
}

/// A change up to this share is equivalent: what the published figures, in steps of 10,000 of 260,000 requests, can show.
pub const MARGIN: f64 = 0.03;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// The card's node (A) and the adjacent one (B).
    pub behind: Vec<Step<Series>>,
    /// Each way in which interrupts are served (A) and the next one (B), of the same servers.
    pub changes: Vec<Step<Series>>,
}

/// The requests of one node's servers in a cell.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    pub cell: Cell,
    /// [`CARD`] or [`ADJACENT`].
    pub servers: String,
}

impl Series {
    /// How interrupts were served: the level of the factor that is varied.
    pub fn served(&self) -> String {
        let receive = self.cell.text(RECEIVE);
        match receive == KEEP {
            true => self.cell.text(INTERRUPTS),
            false => receive,
        }
    }

    /// Whether the other node had servers at the same time.
    pub fn is_together(&self) -> bool {
        self.cell.text(SERVER_NODE) == TOGETHER
    }
}

/// What the samples of a run say.
pub fn findings(detail: &Detail, samples: &[StoredSample]) -> Findings {
    let has = |cell: &Cell| detail.plan.contains(cell);
    let mut behind = Vec::new();
    for cell in &detail.plan {
        let series = |level: &str, servers: &str| Series {
            cell: cell.clone().with(SERVER_NODE, level),
            servers: servers.to_owned(),
        };
        match cell.text(SERVER_NODE).as_str() {
            TOGETHER => behind.push((series(TOGETHER, CARD), series(TOGETHER, ADJACENT))),
            CARD if has(&series(ADJACENT, ADJACENT).cell) => {
                behind.push((series(CARD, CARD), series(ADJACENT, ADJACENT)));
            }
            _ => {}
        }
    }
    Findings {
        behind: answered(samples, behind),
        changes: answered(samples, changes(detail)),
    }
}

/// Each series with the one of the next way in which interrupts are served.
fn changes(detail: &Detail) -> Vec<(Series, Series)> {
    let mut all: BTreeMap<(String, &str), Vec<Series>> = BTreeMap::new();
    for cell in &detail.plan {
        let level = cell.text(SERVER_NODE);
        for servers in [CARD, ADJACENT] {
            if level == servers || level == TOGETHER {
                let series = Series {
                    cell: cell.clone(),
                    servers: servers.to_owned(),
                };
                all.entry((level.clone(), servers))
                    .or_default()
                    .push(series);
            }
        }
    }
    let pairs = |series: Vec<Series>| -> Vec<(Series, Series)> {
        let pairs = series.windows(2);
        pairs
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect()
    };
    all.into_values().flat_map(pairs).collect()
}

fn answered(samples: &[StoredSample], pairs: Vec<(Series, Series)>) -> Vec<Step<Series>> {
    let metrics = [REQUESTS_CARD, REQUESTS_ADJACENT];
    let rounds = metrics.map(|metric| Rounds::of(samples, metric));
    let of = |series: &Series| rounds[usize::from(series.servers != CARD)].of_cell(&series.cell);
    let steps = pairs.into_iter().map(|(a, b)| Step::new(a, b));
    let mut steps: Vec<Step<Series>> = steps.collect();
    answer(&mut steps, MARGIN, |step| {
        let question = Question::paired(of(&step.a), of(&step.b), Some(Better::Higher));
        (question, 1.0)
    });
    steps
}

#[cfg(test)]
mod tests {
    use nearfar_experiment::{metrics, values};

    use super::*;

    #[test]
    fn a_node_without_servers_and_a_link_without_queues_have_no_figures() {
        let mut latency_ns = Histogram::new();
        latency_ns.record(1000);
        let sample = Sample {
            groups: vec![Group {
                role: ADJACENT.to_owned(),
                node: NodeId(3),
                cpus: vec![CpuId(6)],
                requests_per_s: 600.0,
                latency_ns,
            }],
            client_cpus: vec![CpuId(2)],
            is_steered: false,
            served: Served::default(),
            interrupts: None,
            warnings: Vec::new(),
        };
        let values = values(&columns(), &sample);
        assert_eq!(values[REQUESTS].number(), 600.0);
        assert_eq!(values[REQUESTS_ADJACENT].number(), 600.0);
        for absent in [REQUESTS_CARD, "latency_card_ns", "interrupts_near"] {
            assert!(!values.contains_key(absent), "{absent}");
        }
        assert_eq!(
            nearfar_runs::check_values(&metrics(columns()), &values),
            Ok(())
        );
    }
}
