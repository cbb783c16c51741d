//! The experiment as `nearfar bench rps` declares it: verb, factors and options.

use clap::Args as _;
use nearfar_machine::{NodeId, seconds};
use serde::Serialize;

use super::program::ClientCommand;
use super::server::{self, REDIS};
use super::started::check;
use super::{ADJACENT, CARD, EXPERIMENT, INTERRUPTS, KEEP, RECEIVE, SERVER_NODE, TOGETHER};
use crate::registry::{Arguments, Declaration, Entry, RunError, SECONDS, Varied, number, within};

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
    options: Parameters::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(super::prepare::make),
};

/// Its own options, as they are stored.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub(super) struct Parameters {
    /// The servers' card, by name or PCI address [default: a veth pair instead of cards]
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,
    /// The clients' card, which has no address and is connected to the servers' card
    #[arg(long, value_name = "NAME")]
    pub(super) client_device: Option<String>,
    /// The node to use as the card's and the one to use as adjacent, such as 2,3 [default: by the card]
    #[arg(long, value_name = "NODE,NODE")]
    server_nodes: Option<String>,
    /// Servers on each node, as many as it has CPUs for
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=500, number::<u32>))]
    pub(super) servers: u32,
    /// Connections to each server, each with one request in flight
    #[arg(long, value_name = "N", default_value = "4", value_parser = within(1..=1000, number::<u32>))]
    pub(super) connections: u32,
    /// CPUs of the clients, a thread on each, or all programs on all of them [default: one that has neither servers nor queues]
    #[arg(long, value_name = "CPUS")]
    pub(super) client_cpus: Option<String>,
    /// Command of a server, with {address}, {port}, {cpu}, {node}, {password}; nearfar's own clients speak redis' protocol
    #[arg(long, value_name = "COMMAND", default_value = REDIS)]
    pub(super) server_command: String,
    /// Command of a client for each server, with {address}, {port}, {cpus}, {connections}, {seconds}, {node}, {value_bytes}, {password}
    /// [default: threads of nearfar]
    #[arg(long, value_name = "COMMAND")]
    client_command: Option<String>,
    /// Regular expression whose group is the rate in what the client prints, such as 'Requests/sec: +([0-9.]+)'
    #[arg(long, value_name = "REGEX")]
    client_rate: Option<String>,
    /// Bytes of the value that each request gets
    #[arg(long, value_name = "N", default_value = "3", value_parser = within(1..=60_000, number::<u32>))]
    pub(super) value_bytes: u32,
    /// Seconds for which a sample is measured
    #[arg(long, value_name = SECONDS, default_value = "1", value_parser = within(0.001..=3600.0, seconds::parse))]
    pub(super) seconds: f64,
    /// Seconds for which requests are made before
    // Stored without a value with a client command, which has its own.
    #[arg(long, value_name = SECONDS, default_value = "0.5", value_parser = within(0.0..=3600.0, seconds::parse))]
    pub(super) warm_up: Option<f64>,
}

impl Parameters {
    pub(super) fn read(arguments: &Arguments) -> Result<Self, RunError> {
        let mut parameters: Self = arguments.parameters()?;
        if parameters.client_command.is_some() {
            parameters.warm_up = None;
        }
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
