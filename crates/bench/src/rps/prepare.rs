//! What a run takes: the link, the nodes with their servers' CPUs, and who processes the packets.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Duration;

use nearfar_experiment::{BoxError, Cell, Change, Factor, Resources};
use nearfar_machine::{CpuId, CpuSet, Machine, NodeId, WriterKind};

use super::card::{Link, interface};
use super::client::Flow;
use super::cpus::{self, Nodes};
use super::declared::{Parameters, SERVER_CPU};
use super::program::{ClientCommand, Program};
use super::server::Server;
use super::{CARD, INTERRUPTS, KEEP, RECEIVE, SERVER_NODE};
use crate::planned::{self, PlannedChanges};
use crate::registry::{Arguments, Context, Made, RunError};

/// What a run without a card does not show.
const VETH: &str = "without --device, servers and clients are connected by a veth pair: no card, no interrupts and no DMA. \
                    Which CPU processes the packets (receive packet steering) is measured instead";

/// The experiment, on this machine or, with targets, on theirs.
pub(crate) struct Rps<'a> {
    pub(super) machine: &'a Machine,
    pub(super) parameters: Parameters,
    pub(super) factors: Vec<Factor>,
    pub(super) cells: Vec<Cell>,
    /// CPUs that this process may use.
    pub(super) allowed: CpuSet,
    pub(super) ready: Option<Ready>,
    pub(super) servers: Vec<Server>,
    /// `None` for nearfar's own clients.
    pub(super) client: Option<ClientCommand>,
    /// One for each server, where there is a client command.
    pub(super) programs: Vec<Program>,
}

/// What is prepared for a run.
pub(super) struct Ready {
    pub(super) link: Link,
    pub(super) nodes: Nodes,
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
        parameters,
        client,
        programs: Vec::new(),
        factors: arguments.factors(),
        cells: arguments.cells(),
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
    let Parameters {
        seconds, warm_up, ..
    } = experiment.parameters;
    Ok(Made {
        experiment,
        warnings: Vec::new(),
        notes,
        sample: Some(Duration::from_secs_f64(
            0.3 + seconds + warm_up.unwrap_or(0.0),
        )),
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
        let asked: Vec<String> = self.cells.iter().map(|cell| cell.text(fixed)).collect();
        self.cells.retain(|cell| cell.text(fixed) == KEEP);
        if let (true, Some(level)) = (self.cells.is_empty(), asked.first()) {
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
                "not measured: {}{first}: {reason}",
                if count > 1 {
                    format!("{count} cells such as ")
                } else {
                    String::new()
                }
            ));
        }
    }

    pub(super) fn nodes(&self) -> Result<Nodes, RunError> {
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

    pub(super) fn server_cpus(&self, node: NodeId) -> Vec<CpuId> {
        let mut cpus = cpus::of_node(self.machine, &self.allowed, node);
        cpus.truncate(self.parameters.servers as usize);
        cpus
    }

    pub(super) fn all_server_cpus(&self, nodes: &Nodes) -> CpuSet {
        nodes
            .all()
            .flat_map(|node| self.server_cpus(node))
            .collect()
    }

    pub(super) fn clients(
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
    pub(super) fn receiver(
        &self,
        level: &str,
        node: NodeId,
        nodes: &Nodes,
    ) -> Result<CpuSet, String> {
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

    pub(super) fn plan(&self) -> Vec<Change> {
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
    pub(super) fn flows(&self, ready: &Ready) -> Vec<Flow> {
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
