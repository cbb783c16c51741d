//! The experiment as `nearfar bench rps` declares it: verb, factors and arguments.

use nearfar_machine::NodeId;
use serde::Serialize;

use super::program::ClientCommand;
use super::server::{self, REDIS};
use super::started::check;
use super::{ADJACENT, CARD, EXPERIMENT, INTERRUPTS, KEEP, RECEIVE, SERVER_NODE, TOGETHER};
use crate::registry::{Argument, Arguments, Declaration, Kind, RunError, Varied};

pub(super) const KERNEL_PRE_6_3: &str = "kernel_pre_6_3";
pub(super) const NEAREST_FIRST: &str = "nearest_first";
pub(super) const PLAN: &str = "plan";
pub(super) const SERVER_CPU: &str = "server_cpu";

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
            "CPUs of the clients, a thread on each, or all programs on all of them [default: one that has neither servers nor queues]",
            Kind::Text,
        ),
        Argument::new(
            "server-command",
            "Command of a server, with {address}, {port}, {cpu}, {node}, {password}; nearfar's own clients speak redis' protocol",
            REDIS,
        ),
        Argument::optional(
            "client-command",
            "Command of a client for each server, with {address}, {port}, {cpus}, {connections}, {seconds}, {node}, {value_bytes}, \
             {password} [default: threads of nearfar]",
            Kind::Text,
        ),
        Argument::optional(
            "client-rate",
            "Regular expression whose group is the rate in what the client prints, such as 'Requests/sec: +([0-9.]+)'",
            Kind::Text,
        ),
        Argument::new(
            "value-bytes",
            "Bytes of the value that each request gets",
            "3",
        ),
        Argument::seconds("seconds", "Seconds for which a sample is measured", "1"),
        Argument::seconds(
            "warm-up",
            "Seconds for which requests are made before",
            "0.5",
        ),
    ],
};

/// A key for each argument.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Parameters {
    pub(super) device: Option<String>,
    pub(super) client_device: Option<String>,
    pub(super) server_nodes: Option<String>,
    pub(super) servers: u32,
    pub(super) connections: u32,
    pub(super) client_cpus: Option<String>,
    pub(super) server_command: String,
    pub(super) client_command: Option<String>,
    pub(super) client_rate: Option<String>,
    pub(super) value_bytes: u32,
    pub(super) seconds: f64,
    /// `None` with a client command, which has its own.
    pub(super) warm_up: Option<f64>,
}

impl Parameters {
    pub(super) fn read(arguments: &Arguments) -> Result<Self, RunError> {
        let has_client = arguments.text("client-command")?.is_some();
        let parameters = Self {
            device: arguments.text("device")?,
            client_device: arguments.text("client-device")?,
            server_nodes: arguments.text("server-nodes")?,
            servers: arguments.within_or_default("servers", 1..=500)?,
            connections: arguments.within_or_default("connections", 1..=1000)?,
            client_cpus: arguments.text("client-cpus")?,
            server_command: arguments.get("server-command")?,
            client_command: arguments.text("client-command")?,
            client_rate: arguments.text("client-rate")?,
            value_bytes: arguments.within_or_default("value-bytes", 1..=60_000)?,
            seconds: arguments.seconds_or_default("seconds", 0.001..=3600.0)?,
            warm_up: arguments
                .seconds("warm-up", 0.0..=3600.0)?
                .filter(|_| !has_client),
        };
        let wrong = |name: &str, reason: String| Err(arguments.wrong(name, reason).into());
        if let Err(reason) = check(&parameters.server_command, &server::PLACEHOLDERS) {
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
    pub(super) fn client(&self) -> Result<Option<ClientCommand>, (&'static str, String)> {
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
    pub(super) fn server_nodes(&self) -> Result<Vec<NodeId>, String> {
        let nodes = self.server_nodes.iter().flat_map(|text| text.split(','));
        let node = |text: &str| text.trim().parse().map(NodeId);
        let nodes: Result<Vec<_>, _> = nodes.map(node).collect();
        nodes
            .ok()
            .filter(|it| it.len() <= 2)
            .ok_or_else(|| "expected one node or two, such as 2,3".to_owned())
    }
}
