//! The experiment as `nearfar bench rps` declares it, and how one is made of what was asked for.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nearfar_experiment::{BoxError, Cell, Change, Experiment, Factor, Metric, Resources, Values};
use nearfar_machine::{CpuId, CpuSet, Machine, NodeId, NodeSet, WriterKind};
use nearfar_placement::spread::Policy;
use nearfar_proc::affinity;
use serde::Serialize;
use serde_json::Value;

use super::card::{Link, interface};
use super::client::{Driven, Flow, Load, drive};
use super::counts::Reading;
use super::cpus::{self, Nodes};
use super::sample::{self, Group, Sample};
use super::server::{self, REDIS, Server};
use super::{ADJACENT, CARD, EXPERIMENT, INTERRUPTS, KEEP, RECEIVE, SERVER_NODE, TOGETHER};
use crate::conditions::governor;
use crate::planned::{self, PlannedChanges};
use crate::registry::{Argument, Arguments, Context, Declaration, Kind, Made, RunError, Varied};

const KERNEL_PRE_6_3: &str = "kernel_pre_6_3";
const NEAREST_FIRST: &str = "nearest_first";
const PLAN: &str = "plan";
const SERVER_CPU: &str = "server_cpu";

/// What a run without a card does not show.
const VETH: &str = "without --device, servers and clients are connected by a veth pair: no card, no interrupts and no DMA. \
                    Which CPU processes the packets (receive packet steering) is measured instead";

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure requests to servers on a network card's node and on the adjacent one\n\n\
            Servers (redis, or --server-command) are pinned to CPUs of the card's node or of the node next to it; clients are \
            threads of nearfar in a network namespace with a second card, which a cable connects to the first, on CPUs that \
            are not measured. The card's interrupts are as they are, as the kernel before 6.3 spread them, nearest first, or \
            as nearfar plan changes them. Without a card a veth pair connects both. Takes root.",
    examples: &[
        "",
        "--device eth0 --client-device eth1 --servers 4",
        "--device 0000:21:00.0 --client-device 0000:22:00.0 --factor server_node=together --samples 20",
        "--factor receive=server_cpu,near,far",
    ],
    is_hidden: false,
    is_of_machine: false,
    needs_devices: true,
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
    arguments: &[
        Argument::optional(
            "device",
            "The servers' card, by name or PCI address [default: a veth pair instead of cards]",
            Kind::Text,
        ),
        Argument::optional(
            "client-device",
            "The clients' card, which has no address and is connected to the servers' card",
            Kind::Text,
        ),
        Argument::optional(
            "server-nodes",
            "The node to use as the card's and the one to use as adjacent, such as 2,3 [default: by the card]",
            Kind::Text,
        ),
        Argument::new(
            "servers",
            "Servers on each node, as many as it has CPUs for",
            "1",
        ),
        Argument::new(
            "connections",
            "Connections to each server, each with one request in flight",
            "4",
        ),
        Argument::optional(
            "client-cpus",
            "CPUs of the clients, a thread on each [default: one that has neither servers nor queues]",
            Kind::Text,
        ),
        Argument::new(
            "server-command",
            "Command of a server that speaks redis' protocol, with {address}, {port}, {cpu}, {node}",
            REDIS,
        ),
        Argument::new(
            "value-bytes",
            "Bytes of the value that each request gets",
            "3",
        ),
        Argument::new("seconds", "Seconds for which a sample is measured", "1"),
        Argument::new(
            "warm-up",
            "Seconds for which requests are made before",
            "0.5",
        ),
    ],
};

/// A key for each argument.
#[derive(Clone, Debug, Serialize)]
struct Parameters {
    device: Option<String>,
    client_device: Option<String>,
    server_nodes: Option<String>,
    servers: u32,
    connections: u32,
    client_cpus: Option<String>,
    server_command: String,
    value_bytes: u32,
    seconds: f64,
    warm_up: f64,
}

impl Parameters {
    fn read(arguments: &Arguments) -> Result<Self, RunError> {
        let parameters = Self {
            device: arguments.text("device")?,
            client_device: arguments.text("client-device")?,
            server_nodes: arguments.text("server-nodes")?,
            servers: within(arguments, "servers", 1..=500)?,
            connections: within(arguments, "connections", 1..=1000)?,
            client_cpus: arguments.text("client-cpus")?,
            server_command: arguments.get("server-command")?,
            value_bytes: within(arguments, "value-bytes", 1..=60_000)?,
            seconds: within(arguments, "seconds", 0.01..=3600.0)?,
            warm_up: within(arguments, "warm-up", 0.0..=3600.0)?,
        };
        let wrong = |name: &str, reason: String| Err(arguments.wrong(name, reason).into());
        if let Err(reason) = server::filled(&parameters.server_command, |name| {
            server::PLACEHOLDERS.contains(&name).then(String::new)
        }) {
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

/// The value of an argument with a default.
fn within<T>(arguments: &Arguments, name: &str, range: RangeInclusive<T>) -> Result<T, RunError>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let value = arguments.within(name, range)?;
    value.ok_or_else(|| arguments.wrong(name, "expected a value".to_owned()).into())
}

/// The experiment, on this machine or, with targets, on theirs.
pub(crate) struct Rps<'a> {
    machine: &'a Machine,
    parameters: Parameters,
    factors: Vec<Factor>,
    cells: Vec<Cell>,
    /// CPUs that this process may use.
    allowed: CpuSet,
    ready: Option<Ready>,
    servers: Vec<Server>,
}

/// What is prepared for a run.
struct Ready {
    link: Link,
    nodes: Nodes,
    /// The CPU of each queue as the kernel before 6.3 spread them, and nearest first; none without queues.
    before: Vec<CpuId>,
    nearest: Vec<CpuId>,
    /// The queues of each node's servers.
    shares: BTreeMap<NodeId, Vec<u32>>,
    clients: CpuSet,
    plan: Vec<Change>,
    warnings: Vec<String>,
}

pub(crate) fn make<'a>(
    arguments: &Arguments,
    context: Context<'a>,
) -> Result<Made<Rps<'a>>, RunError> {
    let Context { machine, .. } = context;
    let online = machine.cpu_states.online.clone();
    let allowed = affinity::get(0).map_or(online.clone(), |allowed| allowed.intersection(&online));
    let mut experiment = Rps {
        machine,
        parameters: Parameters::read(arguments)?,
        factors: arguments.factors(),
        cells: arguments.cells(),
        allowed,
        ready: None,
        servers: Vec::new(),
    };
    let nodes = experiment.parameters.server_nodes();
    nodes.map_err(|reason| arguments.wrong("server-nodes", reason))?;
    let notes = experiment.leave_out_cells(context.is_measured_here)?;
    let Parameters {
        seconds, warm_up, ..
    } = experiment.parameters;
    Ok(Made {
        experiment,
        warnings: Vec::new(),
        notes,
        sample: Some(Duration::from_secs_f64(0.3 + seconds + warm_up)),
    })
}

impl Rps<'_> {
    /// Leaves out the cells that this link or machine does not have. What was left out and why, in sentences.
    fn leave_out_cells(&mut self, is_measured_here: bool) -> Result<Vec<String>, RunError> {
        let mut notes = Vec::new();
        let fixed = match self.parameters.device {
            Some(_) => RECEIVE,
            None => INTERRUPTS,
        };
        self.cells.retain(|cell| cell.text(fixed) == KEEP);
        if self.parameters.device.is_none() {
            notes.push(VETH.to_owned());
        }
        if is_measured_here {
            let nodes = self.nodes()?;
            self.clients(&nodes, &CpuSet::default())
                .map_err(RunError::Target)?;
            if let Some(client) = &self.parameters.client_device {
                let wrong =
                    |reason| RunError::Target(format!("--client-device {client}: {reason}").into());
                interface(self.machine, client).map_err(wrong)?;
            }
            if nodes.adjacent.is_none() {
                let reason = format!(
                    "no other node than {} has a CPU that this process may use",
                    nodes.card
                );
                self.leave_out(&mut notes, &reason, |cell| cell.text(SERVER_NODE) != CARD);
            }
            for level in ["near", "far"] {
                if let Err(reason) = self.receiver(level, nodes.card, &nodes) {
                    self.leave_out(&mut notes, &reason, |cell| cell.text(RECEIVE) == level);
                }
            }
        }
        match self.cells.is_empty() {
            true => Err(RunError::Target(
                format!("nothing is left to measure: {}", notes.join("; ")).into(),
            )),
            false => Ok(notes),
        }
    }

    fn leave_out(&mut self, notes: &mut Vec<String>, reason: &str, is_out: impl Fn(&Cell) -> bool) {
        let levels = |cell: &Cell| {
            cell.levels()
                .map(|(name, level)| format!("{name}={level}"))
                .collect::<Vec<_>>()
        };
        let (out, left): (Vec<Cell>, Vec<Cell>) = self.cells.drain(..).partition(is_out);
        self.cells = left;
        if let Some(first) = out.first() {
            let (count, first) = (out.len(), levels(first).join(","));
            notes.push(format!(
                "not measured: {count} cells such as {first}: {reason}"
            ));
        }
    }

    fn nodes(&self) -> Result<Nodes, RunError> {
        let wrong = |reason: String| RunError::Target(reason.into());
        let asked = self.parameters.server_nodes().map_err(wrong)?;
        let card = match &self.parameters.device {
            Some(device) => self
                .card_node(device)
                .map_err(|reason| wrong(format!("--device {device}: {reason}")))?,
            None => None,
        };
        Nodes::choose(self.machine, &self.allowed, &asked, card).map_err(wrong)
    }

    /// The node of a card; `None` where the kernel knows none.
    fn card_node(&self, device: &str) -> Result<Option<NodeId>, String> {
        let name = interface(self.machine, device)?;
        let networks = self.machine.networks.get().map_or(&[][..], Vec::as_slice);
        let found = networks.iter().find(|it| it.name == name);
        Ok(found.and_then(|it| it.node.get().copied().flatten()))
    }

    fn server_cpus(&self, node: NodeId) -> Vec<CpuId> {
        let mut cpus = cpus::of_node(self.machine, &self.allowed, node);
        cpus.truncate(self.parameters.servers as usize);
        cpus
    }

    fn all_server_cpus(&self, nodes: &Nodes) -> CpuSet {
        nodes
            .all()
            .flat_map(|node| self.server_cpus(node))
            .collect()
    }

    fn clients(
        &self,
        nodes: &Nodes,
        queues: &CpuSet,
    ) -> Result<(CpuSet, Option<String>), BoxError> {
        let servers = self.all_server_cpus(nodes);
        if let Some(text) = &self.parameters.client_cpus {
            let asked: CpuSet = text
                .parse()
                .map_err(|error| format!("--client-cpus {text}: {error}"))?;
            let other = asked.difference(&self.allowed);
            if asked.is_empty() || !other.is_empty() {
                return Err(format!(
                    "--client-cpus {text}: this process may use {}",
                    self.allowed
                )
                .into());
            }
            let both = asked.intersection(&servers);
            let warning = format!("clients and servers share CPUs {both}");
            return Ok((asked, (!both.is_empty()).then_some(warning)));
        }
        let (clients, is_free) = cpus::for_clients(&self.allowed, &servers, queues);
        let warning = "every CPU has a server: the clients run on one of theirs";
        Ok((clients, (!is_free).then(|| warning.to_owned())))
    }

    /// The CPUs that process the packets of servers on a node, for a level of the factor receive.
    fn receiver(&self, level: &str, node: NodeId, nodes: &Nodes) -> Result<CpuSet, String> {
        let own: CpuSet = self.server_cpus(node).into_iter().collect();
        let (clients, _) = self
            .clients(nodes, &CpuSet::default())
            .map_err(|error| error.to_string())?;
        let free = self.allowed.difference(&own).difference(&clients);
        let on_node: CpuSet = cpus::of_node(self.machine, &free, node)
            .into_iter()
            .collect();
        let one = |cpus: CpuSet, reason: &str| {
            cpus.first()
                .map(|cpu| CpuSet::from_iter([cpu]))
                .ok_or_else(|| reason.to_owned())
        };
        match level {
            KEEP => Ok(CpuSet::default()),
            SERVER_CPU => Ok(own),
            "near" => one(
                on_node,
                "the servers' node has no CPU without servers and clients",
            ),
            _ => {
                let distance =
                    |other: NodeId| self.machine.distance(node, other).map_or(0, |it| it.0);
                let others = self
                    .machine
                    .nodes
                    .iter()
                    .filter(|it| it.id != node && it.cpus.intersects(&free));
                let far = others.max_by_key(|it| distance(it.id));
                let cpus = far
                    .map(|it| it.cpus.intersection(&free))
                    .unwrap_or_default();
                one(cpus, "no other node has a CPU without clients")
            }
        }
    }

    fn link(&self, resources: &mut Resources) -> Result<Link, BoxError> {
        match (&self.parameters.device, &self.parameters.client_device) {
            (Some(server), Some(client)) => {
                let server = interface(self.machine, server)
                    .map_err(|reason| format!("--device {server}: {reason}"))?;
                let client = interface(self.machine, client)
                    .map_err(|reason| format!("--client-device {client}: {reason}"))?;
                Link::cards(&server, &client, resources)
            }
            _ => Link::veth(),
        }
    }

    /// What may be wrong with every sample.
    fn warnings(&self, link: &Link) -> Vec<String> {
        let mut warnings: Vec<String> = governor(self.machine)
            .iter()
            .map(ToString::to_string)
            .collect();
        let mut writers = self.machine.writers.get().into_iter().flatten();
        if writers.any(|it| it.kind == WriterKind::Irqbalance && it.active.get() == Some(&true)) {
            warnings.push("irqbalance is running: it may move the card's interrupts while they are measured; stop it".to_owned());
        }
        if let (Some(_), Err(reason)) = (&self.parameters.device, &link.rss) {
            warnings.push(format!(
                "connections have any queues instead of their servers' ones: {reason}"
            ));
        }
        if self.parameters.device.is_some() && link.queues.is_empty() {
            warnings.push(
                "no interrupt of the card has the name of a queue: none is counted or moved"
                    .to_owned(),
            );
        }
        warnings
    }

    fn plan(&self) -> Vec<Change> {
        let devices = self
            .parameters
            .device
            .iter()
            .flat_map(|it| self.machine.functions_named(it));
        let devices: Vec<_> = devices.collect();
        let cell = Cell::new().with(planned::PLAN, planned::AFTER);
        PlannedChanges::new(self.machine, &devices, false).settings(&cell)
    }

    /// The connections to the servers, each server with a queue of its node.
    fn flows(&self, ready: &Ready, groups: &[NodeId]) -> Vec<Flow> {
        let (link, mut flows, mut on_node) =
            (&ready.link, Vec::new(), BTreeMap::<NodeId, usize>::new());
        for server in &self.servers {
            let index = on_node.entry(server.node).or_default();
            let queues = ready.shares.get(&server.node);
            let queue = queues.and_then(|it| it.get(*index % it.len().max(1)));
            *index += 1;
            let any = SocketAddrV4::new(link.client, 0);
            let ports = link.rss.as_ref().ok().zip(queue);
            let ports = ports.map(|(rss, &queue)| rss.ports(any, server.address, queue));
            let mut ports = ports.into_iter().flatten();
            flows.extend((0..self.parameters.connections).map(|_| {
                Flow {
                    group: groups
                        .iter()
                        .position(|&node| node == server.node)
                        .unwrap_or(0),
                    server: server.address,
                    source: SocketAddrV4::new(link.client, ports.next().unwrap_or(0)),
                }
            }));
        }
        flows
    }
}

/// The nodes with servers of a cell, each with its role.
fn groups(cell: &Cell, nodes: &Nodes) -> Result<Vec<(&'static str, NodeId)>, BoxError> {
    let adjacent = || nodes.adjacent.ok_or("this machine has no adjacent node");
    match cell.text(SERVER_NODE).as_str() {
        CARD => Ok(vec![(CARD, nodes.card)]),
        ADJACENT => Ok(vec![(ADJACENT, adjacent()?)]),
        _ => Ok(vec![(CARD, nodes.card), (ADJACENT, adjacent()?)]),
    }
}

impl Experiment for Rps<'_> {
    type Sample = Sample;

    fn name(&self) -> &str {
        DECLARATION.name
    }

    fn title(&self) -> String {
        let Parameters {
            servers, device, ..
        } = &self.parameters;
        let through = device.as_deref().unwrap_or("a veth pair");
        format!("up to {servers} servers a node, through {through}")
    }

    fn parameters(&self) -> Value {
        // Numbers always are JSON.
        serde_json::to_value(&self.parameters).unwrap_or_default()
    }

    fn factors(&self) -> Vec<Factor> {
        self.factors.clone()
    }

    fn cells(&self) -> Vec<Cell> {
        self.cells.clone()
    }

    fn metrics(&self) -> Vec<Metric> {
        sample::metrics()
    }

    fn setup(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        let nodes = self.nodes()?;
        let plan = self.plan();
        let link = self.link(resources)?;
        let mut ready = Ready {
            warnings: self.warnings(&link),
            link,
            nodes,
            before: Vec::new(),
            nearest: Vec::new(),
            shares: BTreeMap::new(),
            clients: CpuSet::default(),
            plan,
        };
        let queues = ready.link.queues.len();
        if queues > 0 {
            let set: NodeSet = nodes.all().collect();
            let cpus =
                |node| cpus::of_node(self.machine, &self.machine.cpu_states.online, node).len();
            let used = queues.min(set.iter().map(cpus).sum());
            let spread = |policy| cpus::queues(self.machine, nodes.card, policy, used);
            ready.before = spread(Policy::KernelPre63)?;
            ready.nearest = spread(Policy::NearestFirst)?;
            ready.shares = cpus::shares(
                self.machine,
                ready.link.queues.keys().copied(),
                &ready.nearest,
            );
        }
        let served = ready.before.iter().chain(&ready.nearest).copied().collect();
        let (clients, warning) = self.clients(&nodes, &served)?;
        ready.clients = clients;
        ready.warnings.extend(warning);
        self.ready = Some(ready);
        Ok(())
    }

    fn teardown(&mut self) -> Result<(), BoxError> {
        self.ready.take().map_or(Ok(()), |ready| ready.link.end())
    }

    fn settings(&self, cell: &Cell) -> Vec<Change> {
        let Some(ready) = &self.ready else {
            return Vec::new();
        };
        let Ready { link, clients, .. } = ready;
        if self.parameters.device.is_none() {
            let groups = groups(cell, &ready.nodes).unwrap_or_default();
            let level = cell.text(RECEIVE);
            let of = |&(_, node): &(&str, NodeId)| self.receiver(&level, node, &ready.nodes).ok();
            let cpus = groups
                .iter()
                .filter_map(of)
                .fold(CpuSet::default(), |all, one| all.union(&one));
            return vec![link.steer(cpus)];
        }
        match cell.text(INTERRUPTS).as_str() {
            KERNEL_PRE_6_3 => link.spread(&ready.before, clients),
            NEAREST_FIRST => link.spread(&ready.nearest, clients),
            PLAN => [ready.plan.clone(), link.quiet(clients)].concat(),
            _ => link.quiet(clients),
        }
    }

    fn setup_cell(&mut self, cell: &Cell, resources: &mut Resources) -> Result<(), BoxError> {
        let ready = self.ready.as_ref().ok_or("the link is missing")?;
        let mut index = 0;
        for (_, node) in groups(cell, &ready.nodes)? {
            for cpu in self.server_cpus(node) {
                let address = server::address(ready.link.server, index);
                let command = &self.parameters.server_command;
                self.servers
                    .push(Server::start(command, (node, cpu), address, resources)?);
                index += 1;
            }
        }
        Ok(())
    }

    fn teardown_cell(&mut self, _: &Cell) -> Result<(), BoxError> {
        self.servers.clear();
        Ok(())
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        for server in &mut self.servers {
            server.wait(cancel)?;
        }
        let ready = self.ready.as_ref().ok_or("the link is missing")?;
        let groups = groups(cell, &ready.nodes)?;
        let nodes: Vec<NodeId> = groups.iter().map(|group| group.1).collect();
        let flows = self.flows(ready, &nodes);
        let is_steered = flows.iter().all(|flow| flow.source.port() != 0);
        let load = Load {
            namespace: &ready.link.namespace,
            cpus: ready.clients.iter().collect(),
            flows,
            value_bytes: self.parameters.value_bytes as usize,
            warm_up: Duration::from_secs_f64(self.parameters.warm_up),
            time: Duration::from_secs_f64(self.parameters.seconds),
        };
        let driven = drive(&load, groups.len(), cancel, || Reading::now(&ready.link));
        let driven = match driven {
            Ok(driven) => driven,
            Err(error) => {
                // What a server says of its end is the better reason.
                self.servers.iter_mut().try_for_each(Server::check)?;
                return Err(error);
            }
        };
        self.servers.iter_mut().try_for_each(Server::check)?;
        self.sample(&groups, driven, is_steered)
    }

    fn values(sample: &Sample) -> Values {
        sample::values(sample)
    }

    fn warnings(sample: &Sample) -> Vec<String> {
        sample.warnings.clone()
    }
}

impl Rps<'_> {
    fn sample(
        &self,
        groups: &[(&'static str, NodeId)],
        driven: Driven<Reading>,
        is_steered: bool,
    ) -> Result<Sample, BoxError> {
        let ready = self.ready.as_ref().ok_or("the link is missing")?;
        let nodes: Vec<NodeId> = groups.iter().map(|group| group.1).collect();
        let Driven {
            before,
            after,
            elapsed_s,
            ..
        } = driven;
        let served = after.since(
            &before,
            self.machine,
            &ready.link,
            &nodes,
            &ready.shares,
            &ready.clients,
        );
        let node_of = |cpu: CpuId| self.machine.cpu(cpu).and_then(|cpu| cpu.node);
        let mut warnings = ready.warnings.clone();
        let stolen = after
            .ticks
            .stolen_since(&before.ticks, self.all_server_cpus(&ready.nodes).iter());
        warnings.extend(stolen.map(|warning| warning.to_string()));
        if served.dropped > 0 {
            warnings.push(format!(
                "{} packets were dropped: requests waited for their repetition",
                served.dropped
            ));
        }
        let group = |(&(role, node), answers): (&(&str, NodeId), super::client::Answers)| Group {
            role: role.to_owned(),
            node,
            cpus: self
                .servers
                .iter()
                .filter(|it| it.node == node)
                .map(|it| it.cpu)
                .collect(),
            requests_per_s: answers.latency_ns.count() as f64 / elapsed_s,
            latency_ns: answers.latency_ns,
        };
        let groups: Vec<Group> = groups.iter().zip(driven.groups).map(group).collect();
        match groups.iter().find(|it| it.latency_ns.count() == 0) {
            Some(group) => Err(format!(
                "no request to node {} was answered while it was measured",
                group.node
            )
            .into()),
            None => Ok(Sample {
                groups,
                client_cpus: ready.clients.iter().collect(),
                is_steered,
                interrupts: served.interrupts(node_of),
                served,
                warnings,
            }),
        }
    }
}
