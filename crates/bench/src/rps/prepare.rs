//! What a run takes: the link, the CPUs of servers, clients and queues, and who processes the packets.
//!
//! A trial before a run is stored: the namespace that the clients need, and the commands of servers and clients, which have to start
//! and not to end at once. A server listens at the loopback interface for it, and a client makes requests to it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Change, Resources, RunPlan};
use nearfar_machine::{CpuId, CpuSet, Machine, NodeId, NodeSet, WriterKind};
use nearfar_placement::spread::{Policy, SpreadRequest, spread};
use nearfar_runs::Cell;

use super::clients::Flow;
use super::link::{self, Link, Namespace, interface};
use super::programs::{self, ClientCommand, ClientProgram, Server};
use super::{CARD, EXPERIMENT, INTERRUPTS, KEEP, Parameters, RECEIVE, SERVER_CPU, SERVER_NODE};
use crate::node_selection::{of_node, with_cpus};
use crate::planned::{self, PlannedChanges};
use crate::registry::{Arguments, Context, Made, RunError};

/// What a run without a card does not show.
const VETH: &str = "without --device, servers and clients are connected by a veth pair: no card, no interrupts and no DMA. \
                    Which CPU processes the packets (receive packet steering) is measured instead";

/// The experiment, on this machine or, with targets, on theirs.
pub(crate) struct Rps<'a> {
    pub(super) machine: &'a Machine,
    pub(super) parameters: Parameters,
    pub(super) plan: RunPlan,
    /// CPUs that this process may use.
    allowed: CpuSet,
    pub(super) ready: Option<PreparedRun>,
    pub(super) servers: Vec<Server>,
    /// `None` for nearfar's own clients.
    pub(super) client: Option<ClientCommand>,
    /// One for each server, where there is a client command.
    pub(super) programs: Vec<ClientProgram>,
}

/// What is prepared for a run.
pub(super) struct PreparedRun {
    pub(super) link: Link,
    pub(super) nodes: ServerNodes,
    /// The CPU of each queue as the kernel before 6.3 spread them, and nearest first; none without queues.
    pub(super) before: Vec<CpuId>,
    pub(super) nearest: Vec<CpuId>,
    /// The queues of each node's servers.
    pub(super) shares: BTreeMap<NodeId, Vec<u32>>,
    pub(super) clients: CpuSet,
    pub(super) plan: Vec<Change>,
    /// Of the servers, for this run.
    pub(super) password: String,
    pub(super) warnings: Vec<String>,
}

pub(crate) fn make<'a>(
    arguments: &Arguments,
    context: Context<'a>,
) -> Result<Made<Rps<'a>>, RunError> {
    let Context { machine, .. } = context;
    let allowed = context.allowed_cpus();
    let parameters = Parameters::read(arguments)?;
    let client = parameters.client();
    let client = client.map_err(|(name, reason)| arguments.wrong(name, reason))?;
    let mut experiment = Rps {
        machine,
        plan: arguments.plan(&parameters),
        parameters,
        client,
        programs: Vec::new(),
        allowed,
        ready: None,
        servers: Vec::new(),
    };
    let nodes = experiment.parameters.server_nodes();
    nodes.map_err(|reason| arguments.wrong("server-nodes", reason))?;
    let notes = experiment.leave_out_cells(context.is_measured_here)?;
    if context.is_measured_here {
        experiment.check_programs(arguments, context.cancel)?;
    }
    let parameters = &experiment.parameters;
    let seconds = 0.3 + parameters.seconds + parameters.warm_up.unwrap_or(0.0);
    Ok(Made {
        experiment,
        warnings: Vec::new(),
        notes,
        sample: Some(Duration::from_secs_f64(seconds)),
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
        let asked: Vec<String> = self
            .plan
            .cells
            .iter()
            .map(|cell| cell.text(fixed))
            .collect();
        self.plan.cells.retain(|cell| cell.text(fixed) == KEEP);
        if let (true, Some(level)) = (self.plan.cells.is_empty(), asked.first()) {
            let reason = match fixed {
                INTERRUPTS => {
                    "it takes a card with a cable to another one, --device and --client-device"
                }
                _ => {
                    "with a card its interrupts decide which CPU processes packets: --factor interrupts=..."
                }
            };
            let error = format!("cannot measure {fixed}={level}: {reason}");
            return Err(RunError::Target(error.into()));
        }
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
        match self.plan.cells.is_empty() {
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
        let (out, left): (Vec<Cell>, Vec<Cell>) = self.plan.cells.drain(..).partition(is_out);
        self.plan.cells = left;
        if let Some(first) = out.first() {
            let (count, first) = (out.len(), levels(first).join(","));
            notes.push(format!(
                "not measured: {}{first}: {reason}",
                if count > 1 {
                    format!("{count} cells such as ")
                } else {
                    String::new()
                }
            ));
        }
    }

    pub(super) fn nodes(&self) -> Result<ServerNodes, RunError> {
        let wrong = |reason: String| RunError::Target(reason.into());
        let asked = self.parameters.server_nodes().map_err(wrong)?;
        let card = match &self.parameters.device {
            Some(device) => self
                .card_node(device)
                .map_err(|reason| wrong(format!("--device {device}: {reason}")))?,
            None => None,
        };
        ServerNodes::choose(self.machine, &self.allowed, &asked, card).map_err(wrong)
    }

    /// The node of a card; `None` where the kernel knows none.
    fn card_node(&self, device: &str) -> Result<Option<NodeId>, String> {
        let name = interface(self.machine, device)?;
        let networks = self.machine.networks.get().map_or(&[][..], Vec::as_slice);
        let found = networks.iter().find(|it| it.name == name);
        Ok(found.and_then(|it| it.node.get().copied().flatten()))
    }

    pub(super) fn server_cpus(&self, node: NodeId) -> Vec<CpuId> {
        let mut cpus = of_node(self.machine, &self.allowed, node);
        cpus.truncate(self.parameters.servers as usize);
        cpus
    }

    pub(super) fn all_server_cpus(&self, nodes: &ServerNodes) -> CpuSet {
        nodes
            .all()
            .flat_map(|node| self.server_cpus(node))
            .collect()
    }

    pub(super) fn clients(
        &self,
        nodes: &ServerNodes,
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
        let (clients, is_free) = for_clients(&self.allowed, &servers, queues);
        let warning = "every CPU has a server: the clients run on one of theirs";
        Ok((clients, (!is_free).then(|| warning.to_owned())))
    }

    /// The CPUs that process the packets of servers on a node, for a level of the factor receive.
    pub(super) fn receiver(
        &self,
        level: &str,
        node: NodeId,
        nodes: &ServerNodes,
    ) -> Result<CpuSet, String> {
        let own: CpuSet = self.server_cpus(node).into_iter().collect();
        let (clients, _) = self
            .clients(nodes, &CpuSet::default())
            .map_err(|error| error.to_string())?;
        let free = self.allowed.difference(&own).difference(&clients);
        let on_node: CpuSet = of_node(self.machine, &free, node).into_iter().collect();
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
                    .filter(|it| it.id != node && it.known_cpus().intersects(&free));
                let far = others.max_by_key(|it| distance(it.id));
                let cpus = far
                    .map(|it| it.known_cpus().intersection(&free))
                    .unwrap_or_default();
                one(cpus, "no other node has a CPU without clients")
            }
        }
    }

    pub(super) fn link(&self, resources: &mut Resources) -> Result<Link, BoxError> {
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
    pub(super) fn warnings(&self, link: &Link) -> Vec<String> {
        let mut warnings = Vec::new();
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

    pub(super) fn planned_changes(&self) -> Vec<Change> {
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
    pub(super) fn flows(&self, ready: &PreparedRun) -> Vec<Flow> {
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
            flows.extend((0..self.parameters.connections).map(|_| Flow {
                group: server.group,
                server: server.address,
                source: SocketAddrV4::new(link.client, ports.next().unwrap_or(0)),
            }));
        }
        flows
    }
}

/// The two nodes that have servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ServerNodes {
    /// The card's; without a card, the first one with CPUs.
    pub(super) card: NodeId,
    /// The nearest other one with CPUs; `None` on a machine with one node.
    pub(super) adjacent: Option<NodeId>,
}

impl ServerNodes {
    /// Those that were asked for, else around the card's node.
    fn choose(
        machine: &Machine,
        allowed: &CpuSet,
        asked: &[NodeId],
        card: Option<NodeId>,
    ) -> Result<Self, String> {
        let usable = with_cpus(machine, allowed);
        if let Some(node) = asked.iter().find(|node| !usable.contains(node)) {
            let usable: NodeSet = usable.into_iter().collect();
            return Err(format!(
                "node {node} has no CPU that this process may use; nodes with one: {usable}"
            ));
        }
        let nearest = |from: NodeId, is_wanted: &dyn Fn(NodeId) -> bool| {
            let nodes = usable.iter().copied().filter(|&node| is_wanted(node));
            nodes.min_by_key(|&node| machine.distance(from, node).map_or(u32::MAX, |it| it.0))
        };
        let first = asked.first().copied();
        let first = first
            .or_else(|| nearest(card?, &|_| true))
            .or(usable.first().copied());
        let first = first.ok_or("no node has a CPU that this process may use")?;
        let second = asked.get(1).copied();
        Ok(Self {
            card: first,
            adjacent: second.or_else(|| nearest(first, &|node| node != first)),
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = NodeId> {
        [Some(self.card), self.adjacent].into_iter().flatten()
    }
}

/// A CPU for the clients: one that neither a server nor, if there is a choice, a queue is on. Whether there is one.
fn for_clients(allowed: &CpuSet, servers: &CpuSet, queues: &CpuSet) -> (CpuSet, bool) {
    let free = allowed.difference(servers);
    let quiet = free.difference(queues);
    let last = [&quiet, &free, allowed]
        .into_iter()
        .find_map(|cpus| cpus.last());
    (last.into_iter().collect(), !free.is_empty())
}

/// The CPU of each queue, of as many as `count`; what follows begins again with the first.
pub(super) fn queues(
    machine: &Machine,
    node: NodeId,
    policy: Policy,
    count: usize,
) -> Result<Vec<CpuId>, BoxError> {
    let request = SpreadRequest {
        node: Some(node),
        count,
        policy,
        ..SpreadRequest::default()
    };
    Ok(spread(machine, &request)?
        .iter()
        .map(|slot| slot.cpu)
        .collect())
}

/// The queues whose CPU is on each node when they are spread nearest first: those that a node's servers are given.
pub(super) fn shares(
    machine: &Machine,
    queues: impl Iterator<Item = u32>,
    nearest: &[CpuId],
) -> BTreeMap<NodeId, Vec<u32>> {
    let mut shares: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
    for (queue, &cpu) in queues.zip(nearest.iter().cycle()) {
        if let Some(node) = machine.node_of(cpu) {
            shares.entry(node).or_default().push(queue);
        }
    }
    shares
}

/// A client that runs for longer is taken for one that works.
const CLIENT_TRIAL: Duration = Duration::from_millis(500);
const END_CHECK: Duration = Duration::from_millis(10);

impl Rps<'_> {
    /// Refuses a run that cannot work: without the rights for a namespace, without `ip`, or with a command that fails at once.
    ///
    /// # Errors
    /// What is missing, or the argument that is wrong with what the program printed.
    fn check_programs(&self, arguments: &Arguments, cancel: &AtomicBool) -> Result<(), RunError> {
        let namespace = Namespace::new().map_err(link::cannot_make);
        drop(namespace.map_err(RunError::Prepare)?);
        link::ip("-Version").map_err(RunError::Prepare)?;
        let Ok(address) = free_address() else {
            // Without a loopback interface the first sample is the trial.
            return Ok(());
        };
        let nodes = self.nodes()?;
        let cpu = self.server_cpus(nodes.card).into_iter().next();
        let cpu = cpu.ok_or_else(|| RunError::Prepare("no CPU for a server".into()))?;
        let (clients, _) = self
            .clients(&nodes, &CpuSet::default())
            .map_err(RunError::Target)?;
        let password = programs::password().map_err(RunError::Prepare)?;
        let mut resources = Resources::new(format!("the trial of bench {EXPERIMENT}"));
        let command = &self.parameters.server_command;
        let place = (0, nodes.card, cpu);
        let server = Server::start(command, &password, place, address, &mut resources);
        let mut server = server.map_err(RunError::Prepare)?;
        let wrong = |(name, error): (&str, BoxError)| match cancel.load(Ordering::Relaxed) {
            true => RunError::Interrupted,
            false => arguments.wrong(name, error.to_string()).into(),
        };
        server
            .wait(cancel)
            .map_err(|error| wrong(("server-command", error)))?;
        match &self.client {
            Some(client) => self
                .try_client(client, &server, (&password, &clients), &mut resources)
                .map_err(wrong),
            None => Ok(()),
        }
    }

    fn try_client(
        &self,
        client: &ClientCommand,
        server: &Server,
        (password, cpus): (&str, &CpuSet),
        resources: &mut Resources,
    ) -> Result<(), (&'static str, BoxError)> {
        let wrong = |error: BoxError| ("client-command", error);
        let program = client.start(server, &self.parameters, password, cpus, resources, |_| {
            Ok(())
        });
        let mut program = program.map_err(wrong)?;
        program.begin().map_err(|error| wrong(error.into()))?;
        let until = Instant::now() + CLIENT_TRIAL;
        while Instant::now() < until {
            if program.has_succeeded().map_err(wrong)? {
                let rate = client.rate(&program);
                return rate.map(drop).map_err(|error| ("client-rate", error));
            }
            sleep(END_CHECK);
        }
        Ok(())
    }
}

/// An address of the loopback interface with a port that no program has.
fn free_address() -> std::io::Result<SocketAddrV4> {
    let any = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = any.local_addr()?.port();
    Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::machine_of_four_nodes as machine;

    /// Four nodes of four CPUs; from node 2 the nearest is 3, then 1, then 0.
    #[test]
    fn the_queues_of_the_published_case_are_on_the_adjacent_node_only_after() {
        let machine = machine();
        let at = |policy| queues(&machine, NodeId(2), policy, 8).unwrap();
        let numbers = |cpus: Vec<CpuId>| cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>();
        assert_eq!(numbers(at(Policy::KernelPre63)), [8, 9, 10, 11, 0, 1, 2, 3]);
        assert_eq!(
            numbers(at(Policy::NearestFirst)),
            [8, 9, 10, 11, 12, 13, 14, 15]
        );
        let shares = shares(&machine, 0..16, &at(Policy::NearestFirst));
        assert_eq!(shares[&NodeId(3)], [4, 5, 6, 7, 12, 13, 14, 15]);
    }

    #[test]
    fn servers_are_on_the_cards_node_and_the_nearest_other() {
        let machine = machine();
        let allowed: CpuSet = (0..16).map(CpuId).collect();
        let choose = |asked: &[NodeId], card| ServerNodes::choose(&machine, &allowed, asked, card);
        let nodes = |card, adjacent| ServerNodes {
            card: NodeId(card),
            adjacent: Some(NodeId(adjacent)),
        };
        assert_eq!(choose(&[], Some(NodeId(2))), Ok(nodes(2, 3)));
        assert_eq!(choose(&[], None), Ok(nodes(0, 1)));
        assert_eq!(
            choose(&[NodeId(1), NodeId(3)], Some(NodeId(2))),
            Ok(nodes(1, 3))
        );
        assert!(
            choose(&[NodeId(7)], None)
                .unwrap_err()
                .contains("nodes with one: 0-3")
        );
    }

    #[test]
    fn clients_are_where_nothing_is_measured() {
        let set = |range: std::ops::Range<u32>| range.map(CpuId).collect::<CpuSet>();
        assert_eq!(
            for_clients(&set(0..8), &set(4..8), &set(0..2)),
            (set(3..4), true)
        );
        assert_eq!(
            for_clients(&set(0..8), &set(4..8), &set(0..4)),
            (set(3..4), true)
        );
        assert_eq!(
            for_clients(&set(0..1), &set(0..1), &set(0..0)),
            (set(0..1), false)
        );
    }
}
