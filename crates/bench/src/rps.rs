//! Case 4: requests through a network card to servers on the card's node and on the adjacent node.
//!
//! ```text
//!  namespace of the machine                              namespace of the clients
//!  server, pinned ── 198.18.N.1, card ═══ cable ═══ card, 198.18.N.2 ── clients: threads on CPUs that are not measured
//!        ▲             │ queues: an interrupt each
//!        └── softirq ◄─┘ on the CPU that the cell's spread gives the queue
//! ```
//!
//! Each server's connections have source ports whose hash leads to a queue of the server's own (`rss`), so that no setting of the
//! card is changed. Without a second card both ends are a veth pair, and receive packet steering stands for the interrupt.
//!
//! The clients' namespace belongs to a thread of this process: the kernel removes it, with the veth pair, when the process ends in
//! whatever way, and the client's card comes back. What else is changed is in leases.

mod card;
mod client;
mod counts;
mod cpus;
mod declared;
pub mod findings;
mod measure;
mod namespace;
mod prepare;
mod program;
pub mod reply;
pub mod rss;
mod sample;
mod server;
mod started;
mod trial;

pub use declared::DECLARATION;
pub(crate) use declared::ENTRY;
pub use findings::{Findings, findings};

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
