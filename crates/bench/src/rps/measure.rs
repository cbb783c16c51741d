//! The run of the experiment: servers of a cell, requests, and which CPUs served the card meanwhile: interrupts of its queues,
//! softirqs, drops.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nearfar_experiment::{BoxError, Change, Column, Experiment, Resources, RunPlan};
use nearfar_machine::{CpuId, CpuSet, Irq, Machine, NodeId, NodeSet};
use nearfar_placement::spread::Policy;
use nearfar_proc::cpu_counts::{self, Counts};
use nearfar_proc::cpu_times::{self, StatFile};
use nearfar_runs::Cell;
use serde::{Deserialize, Serialize};

use super::clients::{ClientLoad, Driven, Flow, drive, reach};
use super::link::Link;
use super::prepare::{self, PreparedRun, Rps, ServerNodes};
use super::programs::{self, Server};
use super::{
    ADJACENT, CARD, DECLARATION, Group, INTERRUPTS, KERNEL_PRE_6_3, NEAREST_FIRST, PLAN,
    Parameters, RECEIVE, SERVER_NODE, Sample,
};
use crate::conditions::Ticks;
use crate::node_selection::of_node;

/// The nodes with servers of a cell, each with its role.
fn groups(cell: &Cell, nodes: &ServerNodes) -> Result<Vec<(&'static str, NodeId)>, BoxError> {
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
        let (servers, device) = (self.parameters.servers, &self.parameters.device);
        let through = device.as_deref().unwrap_or("a veth pair");
        match servers {
            1 => format!("a server on each node, through {through}"),
            _ => format!("up to {servers} servers per node, through {through}"),
        }
    }

    fn plan(&self) -> RunPlan {
        self.plan.clone()
    }

    fn columns() -> Vec<Column<Sample>> {
        super::columns()
    }

    fn setup(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        let nodes = self.nodes()?;
        let plan = self.planned_changes();
        let link = self.link(resources)?;
        let mut ready = PreparedRun {
            warnings: self.warnings(&link),
            link,
            nodes,
            before: Vec::new(),
            nearest: Vec::new(),
            shares: BTreeMap::new(),
            clients: CpuSet::default(),
            plan,
            password: programs::password()?,
        };
        let queues = ready.link.queues.len();
        if queues > 0 {
            let set: NodeSet = nodes.all().collect();
            let cpus = |node| of_node(self.machine, &self.machine.cpu_states.online, node).len();
            let used = queues.min(set.iter().map(cpus).sum());
            let spread = |policy| prepare::queues(self.machine, nodes.card, policy, used);
            ready.before = spread(Policy::KernelPre63)?;
            ready.nearest = spread(Policy::NearestFirst)?;
            ready.shares = prepare::shares(
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
        let PreparedRun { link, clients, .. } = ready;
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
                let address = programs::address(ready.link.server, index);
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
        let read = || CardReading::now(&ready.link);
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
    fn load<'a>(&self, ready: &'a PreparedRun, flows: Vec<Flow>) -> ClientLoad<'a> {
        let Parameters {
            server_command,
            value_bytes,
            warm_up,
            seconds,
            ..
        } = &self.parameters;
        ClientLoad {
            namespace: &ready.link.namespace,
            cpus: ready.clients.iter().collect(),
            flows,
            password: programs::has_password(server_command).then(|| ready.password.clone()),
            value_bytes: *value_bytes as usize,
            warm_up: Duration::from_secs_f64(warm_up.unwrap_or(0.0)),
            time: Duration::from_secs_f64(*seconds),
        }
    }

    fn sample(
        &self,
        groups: &[(&'static str, NodeId)],
        driven: Driven<CardReading>,
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
        let node_of = |cpu: CpuId| self.machine.node_of(cpu);
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
        let group = |(&(role, node), answers): (&(&str, NodeId), super::clients::Answers)| Group {
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

const NET_RX: &str = "NET_RX";

/// All counts at one moment.
pub(super) struct CardReading {
    interrupts: BTreeMap<String, Counts>,
    /// Where an interrupt still is whose affinity is another.
    moving: BTreeMap<Irq, CpuSet>,
    net_rx: Counts,
    /// Clock ticks.
    softirq: BTreeMap<CpuId, u64>,
    dropped: u64,
    ticks: Ticks,
}

/// The interrupts of a queue while it was measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct QueueCounts {
    pub(super) queue: u32,
    /// The node whose servers have the queue, or the only one with servers where connections have any queue; `None` for another.
    pub(super) node: Option<NodeId>,
    /// By the CPU that served them, without those that served none.
    pub(super) cpus: Vec<CpuCount>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct CpuCount {
    pub(super) cpu: CpuId,
    pub(super) interrupts: u64,
}

/// What was counted on the CPUs of the servers' nodes (near) and on others (far), the clients' CPUs left out.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Served {
    pub(super) queues: Vec<QueueCounts>,
    pub(super) net_rx: [u64; 2],
    pub(super) softirq_s: [f64; 2],
    pub(super) dropped: u64,
}

impl CardReading {
    pub(super) fn now(link: &Link) -> Self {
        let of_queues = |label: &str| {
            let mut irqs = link.queues.values().flatten();
            label
                .parse()
                .is_ok_and(|number: u32| irqs.any(|irq| irq.0 == number))
        };
        let stat = StatFile::default().read().unwrap_or_default();
        let softirq = cpu_times::parse(&stat).map(|(cpu, times)| (cpu, times.softirq));
        let softirqs = cpu_counts::softirqs(|label| label == NET_RX);
        let irqs = link.queues.values().flatten();
        Self {
            moving: irqs
                .filter_map(|&irq| Some((irq, moves_from(irq)?)))
                .collect(),
            interrupts: match link.queues.is_empty() {
                true => BTreeMap::new(),
                false => cpu_counts::interrupts(of_queues).unwrap_or_default(),
            },
            net_rx: softirqs
                .unwrap_or_default()
                .remove(NET_RX)
                .unwrap_or_default(),
            softirq: softirq.collect(),
            dropped: link.dropped(),
            ticks: Ticks::now(),
        }
    }

    /// What happened since `before`. `shares` are the queues of each node's servers.
    pub(super) fn since(
        &self,
        before: &Self,
        machine: &Machine,
        link: &Link,
        nodes: &[NodeId],
        shares: &BTreeMap<NodeId, Vec<u32>>,
        clients: &CpuSet,
    ) -> Served {
        let is_near = |cpu: CpuId| {
            let node = machine.node_of(cpu);
            node.is_some_and(|node| nodes.contains(&node))
        };
        let mut served = Served {
            dropped: self.dropped.saturating_sub(before.dropped),
            ..Served::default()
        };
        for (cpu, count) in self.net_rx.since(&before.net_rx) {
            if !clients.contains(cpu) {
                served.net_rx[usize::from(!is_near(cpu))] += count;
            }
        }
        let per_s = rustix::param::clock_ticks_per_second() as f64;
        for (&cpu, &now) in &self.softirq {
            let then = before.softirq.get(&cpu).copied().unwrap_or(now);
            if !clients.contains(cpu) {
                let ticks = now.saturating_sub(then);
                served.softirq_s[usize::from(!is_near(cpu))] += ticks as f64 / per_s;
            }
        }
        for (&queue, irqs) in &link.queues {
            let mut cpus = BTreeMap::new();
            for irq in irqs {
                let label = irq.to_string();
                let (Some(now), Some(then)) =
                    (self.interrupts.get(&label), before.interrupts.get(&label))
                else {
                    continue;
                };
                let mut counts = now.since(then);
                if let Some(from) = before.moving.get(irq) {
                    without_the_move(&mut counts, from);
                }
                for (cpu, count) in counts.into_iter().filter(|it| it.1 > 0) {
                    *cpus.entry(cpu).or_insert(0) += count;
                }
            }
            let mut nodes = nodes.iter().copied();
            let has = |node: &NodeId| shares.get(node).is_some_and(|it| it.contains(&queue));
            served.queues.push(QueueCounts {
                queue,
                node: nodes.find(has),
                cpus: cpus
                    .into_iter()
                    .map(|(cpu, interrupts)| CpuCount { cpu, interrupts })
                    .collect(),
            });
        }
        served
    }
}

/// The CPUs where an interrupt is until it fires once more: where interrupts are not remapped, the kernel moves one in its handler
/// (irq_move_irq() in kernel/irq/migration.c). `None` when it is where its affinity says, or that is unknown.
fn moves_from(irq: Irq) -> Option<CpuSet> {
    let cpus = |file: &str| {
        let text = fs::read_to_string(format!("/proc/irq/{irq}/{file}")).ok()?;
        CpuSet::parse_list(text.trim()).ok()
    };
    let (now, wanted) = (cpus("effective_affinity_list")?, cpus("smp_affinity_list")?);
    (!now.is_subset(&wanted)).then_some(now)
}

/// Leaves out the interrupt that moved it: it says where the interrupt was before the setting.
fn without_the_move(counts: &mut BTreeMap<CpuId, u64>, from: &CpuSet) {
    if let Some((_, count)) = counts
        .iter_mut()
        .find(|(cpu, count)| from.contains(**cpu) && **count > 0)
    {
        *count -= 1;
    }
}

impl Served {
    /// Interrupts of the servers' queues on the node of those servers, and on other nodes; `None` without queues.
    pub(super) fn interrupts(
        &self,
        machine_node: impl Fn(CpuId) -> Option<NodeId>,
    ) -> Option<[u64; 2]> {
        let mut sums = [0; 2];
        for queue in self.queues.iter().filter(|it| it.node.is_some()) {
            for &CpuCount { cpu, interrupts } in &queue.cpus {
                sums[usize::from(machine_node(cpu) != queue.node)] += interrupts;
            }
        }
        (!self.queues.is_empty()).then_some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interrupt_that_moves_itself_is_not_counted() {
        let mut counts = BTreeMap::from([(CpuId(0), 0), (CpuId(1), 1), (CpuId(6), 7)]);
        without_the_move(&mut counts, &CpuSet::from_iter([CpuId(0), CpuId(1)]));
        let expected = [(CpuId(0), 0), (CpuId(1), 0), (CpuId(6), 7)];
        assert_eq!(counts, BTreeMap::from(expected));
        without_the_move(&mut counts, &CpuSet::from_iter([CpuId(1)]));
        assert_eq!(counts, BTreeMap::from(expected));
    }

    #[test]
    fn an_interrupt_is_near_on_the_node_of_the_servers_that_have_its_queue() {
        let queue = |queue, node: Option<u32>, cpus: [(u32, u64); 2]| QueueCounts {
            queue,
            node: node.map(NodeId),
            cpus: cpus
                .map(|(cpu, interrupts)| CpuCount {
                    cpu: CpuId(cpu),
                    interrupts,
                })
                .into(),
        };
        let served = Served {
            queues: vec![
                queue(0, Some(2), [(4, 10), (0, 1)]),
                queue(1, Some(3), [(6, 5), (4, 7)]),
                queue(2, None, [(6, 100), (4, 100)]),
            ],
            ..Served::default()
        };
        let node = |cpu: CpuId| Some(NodeId(cpu.0 / 2));
        assert_eq!(served.interrupts(node), Some([15, 8]));
        assert_eq!(Served::default().interrupts(node), None);
    }
}
