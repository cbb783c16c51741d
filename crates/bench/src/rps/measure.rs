//! The run of the experiment: servers of a cell, requests, and what was counted meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nearfar_experiment::{BoxError, Cell, Change, Column, Experiment, Factor, Resources};
use nearfar_machine::{CpuId, CpuSet, NodeId, NodeSet};
use nearfar_placement::spread::Policy;
use serde_json::Value;

use super::client::{Driven, Flow, Load, drive, reach};
use super::counts::Reading;
use super::cpus::{self, Nodes};
use super::declared::{DECLARATION, KERNEL_PRE_6_3, NEAREST_FIRST, PLAN, Parameters};
use super::prepare::{Ready, Rps};
use super::sample::{self, Group, Sample};
use super::server::{self, Server};
use super::{ADJACENT, CARD, INTERRUPTS, RECEIVE, SERVER_NODE};

/// The nodes with servers of a cell, each with its role.
fn groups(cell: &Cell, nodes: &Nodes) -> Result<Vec<(&'static str, NodeId)>, BoxError> {
    let adjacent = || nodes.adjacent.ok_or("this machine has no adjacent node");
    match cell.text(SERVER_NODE).as_str() {
        CARD => Ok(vec![(CARD, nodes.card)]),
        ADJACENT => Ok(vec![(ADJACENT, adjacent()?)]),
        _ => Ok(vec![(CARD, nodes.card), (ADJACENT, adjacent()?)]),
    }
}

/// The nodes of groups.
fn nodes(groups: &[(&'static str, NodeId)]) -> Vec<NodeId> {
    groups.iter().map(|group| group.1).collect()
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
        match servers {
            1 => format!("a server on each node, through {through}"),
            _ => format!("up to {servers} servers per node, through {through}"),
        }
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

    fn columns() -> Vec<Column<Sample>> {
        sample::columns()
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
            password: server::password()?,
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
        for (group, (_, node)) in groups(cell, &ready.nodes)?.into_iter().enumerate() {
            for cpu in self.server_cpus(node) {
                let address = server::address(ready.link.server, index);
                let command = &self.parameters.server_command;
                let started = Server::start(
                    command,
                    &ready.password,
                    (group, node, cpu),
                    address,
                    resources,
                )?;
                self.servers.push(started);
                index += 1;
            }
        }
        let Some(client) = &self.client else {
            return Ok(());
        };
        for server in &self.servers {
            self.programs.push(client.start(
                server,
                &self.parameters,
                &ready.password,
                &ready.clients,
                resources,
                |shell| ready.link.namespace.start_in(shell),
            )?);
        }
        Ok(())
    }

    fn teardown_cell(&mut self, _: &Cell) -> Result<(), BoxError> {
        self.servers.clear();
        self.programs.clear();
        Ok(())
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        for server in &mut self.servers {
            server.wait(cancel)?;
        }
        let ready = self.ready.as_ref().ok_or("the link is missing")?;
        let groups = groups(cell, &ready.nodes)?;
        let flows = self.flows(ready);
        let is_steered = self.client.is_none() && flows.iter().all(|flow| flow.source.port() != 0);
        let read = || Reading::now(&ready.link);
        let driven = match &self.client {
            None => drive(&self.load(ready, flows), groups.len(), cancel, read),
            Some(client) => {
                reach(&ready.link.namespace, &flows, cancel)?;
                let servers = &mut self.servers;
                let check = || servers.iter_mut().try_for_each(Server::check);
                let programs = (&mut self.programs[..], groups.len());
                client.drive(programs, self.parameters.seconds, cancel, read, check)
            }
        };
        let driven = match driven {
            Ok(driven) => driven,
            Err(error) => {
                // The end of a server, with its output, is the better reason.
                self.servers.iter_mut().try_for_each(Server::check)?;
                return Err(error);
            }
        };
        self.servers.iter_mut().try_for_each(Server::check)?;
        self.sample(&groups, driven, is_steered)
    }

    fn warnings(sample: &Sample) -> Vec<String> {
        sample.warnings.clone()
    }
}

impl Rps<'_> {
    fn load<'a>(&self, ready: &'a Ready, flows: Vec<Flow>) -> Load<'a> {
        let Parameters {
            server_command,
            value_bytes,
            warm_up,
            seconds,
            ..
        } = &self.parameters;
        Load {
            namespace: &ready.link.namespace,
            cpus: ready.clients.iter().collect(),
            flows,
            password: server::has_password(server_command).then(|| ready.password.clone()),
            value_bytes: *value_bytes as usize,
            warm_up: Duration::from_secs_f64(warm_up.unwrap_or(0.0)),
            time: Duration::from_secs_f64(*seconds),
        }
    }

    fn sample(
        &self,
        groups: &[(&'static str, NodeId)],
        driven: Driven<Reading>,
        is_steered: bool,
    ) -> Result<Sample, BoxError> {
        let ready = self.ready.as_ref().ok_or("the link is missing")?;
        let nodes = nodes(groups);
        let (before, after) = (driven.before, driven.after);
        // Where only one node has servers nothing else is measured on the card: all queues are counted as theirs.
        let of_one = match nodes[..] {
            [node] if !is_steered => Some([(node, ready.link.queues.keys().copied().collect())]),
            _ => None,
        };
        let of_one = of_one.map(BTreeMap::from);
        let served = after.since(
            &before,
            self.machine,
            &ready.link,
            &nodes,
            of_one.as_ref().unwrap_or(&ready.shares),
            &ready.clients,
        );
        let is_known = is_steered || of_one.is_some();
        let node_of = |cpu: CpuId| self.machine.cpu(cpu).and_then(|cpu| cpu.node);
        let mut warnings = ready.warnings.clone();
        let stolen = after
            .ticks
            .stolen_since(&before.ticks, self.all_server_cpus(&ready.nodes).iter());
        warnings.extend(stolen.map(|warning| warning.to_string()));
        warnings.extend(driven.warning);
        if self.programs.len() > ready.clients.len() {
            let (clients, cpus) = (self.programs.len(), &ready.clients);
            warnings.push(format!(
                "{clients} client programs share CPUs {cpus}: they may be the limit (--client-cpus)"
            ));
        }
        let has_queues = !ready.link.queues.is_empty();
        if has_queues && !is_steered {
            let interrupts = match is_known {
                true => "the interrupts of all queues are counted",
                false => "which interrupts are theirs is not known",
            };
            let reason = match &self.client {
                Some(_) => "the client command chooses its ports",
                None => "a node has fewer queues than it takes, or the card's hash is unknown",
            };
            warnings.push(format!(
                "the servers have no queues of their own: {reason}; {interrupts}"
            ));
        }
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
            requests_per_s: answers.requests_per_s,
            latency_ns: answers.latency_ns,
        };
        let groups: Vec<Group> = groups.iter().zip(driven.groups).map(group).collect();
        match groups.iter().find(|it| it.requests_per_s == 0.0) {
            Some(group) => Err(format!(
                "no request to node {} was answered while it was measured",
                group.node
            )
            .into()),
            None => Ok(Sample {
                groups,
                client_cpus: ready.clients.iter().collect(),
                is_steered,
                interrupts: served.interrupts(node_of).filter(|_| is_known),
                served,
                warnings,
            }),
        }
    }
}
