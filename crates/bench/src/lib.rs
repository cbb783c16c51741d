//! Experiments: what is varied, one run, its samples. Nothing in here draws or prints.
//!
//! ```text
//! latency    ns a load            each node's CPU, each node's memory
//! bandwidth  bytes a second       all CPUs of each node, each node's memory
//! loaded     ns a load            one CPU of each node, while the node's others read its memory
//! interleaved  bytes a second     all CPUs, and ns a load of one, with memory near, on one node, and interleaved
//! transfer   ns a round trip      a cache line handed over between two CPUs and back
//! survey     all of these within one budget, on the same buffers
//! probe      seconds a run        a process of its own, bound or floating, near its memory or far
//! rps        requests a second    servers on a network card's node and on the adjacent one
//! tags       operations a second  tags of a device, taken by workers on its node and on another one
//! io         I/Os a second        fio on a device, from near and far CPUs, with near and far memory
//! scale      operations a second  tasks that all want one kernel lock, from one task to all CPUs
//! command    seconds a run        a command of the user, with CPUs and memory that a cell says
//! load       percent of a CPU     on each CPU a process of its own, so that the scheduler has something to do
//! ```
//!
//! Below them: [`options`] says what can be asked for, `node_selection` which CPUs and nodes there are, `buffer_size` how
//! large buffers are, `node_buffers` maps them and binds them to their nodes, `sampling`
//! takes samples with the sampler of `nearfar_experiment`, `streams` has what measurements by several threads share, `child` talks to the processes of probe and load, `conditions`
//! measures what else the machine did, [`warning`] says what makes figures worth less, [`published`] compares the order of a run's
//! cells with that of figures of others; `nearfar_statistics` sums samples up.

pub mod bandwidth;
mod buffer_size;
pub mod cases;
mod child;
pub mod command;
mod conditions;
pub mod interleaved;
pub mod io;
pub mod latency;
pub mod load;
pub mod loaded;
pub mod matrix;
mod mock;
mod node_buffers;
mod node_selection;
pub mod options;
mod planned;
pub mod probe;
mod program;
pub mod published;
pub mod registry;
pub mod rps;
mod sampling;
pub mod scale;
pub mod step;
mod streams;
pub mod survey;
pub mod tags;
pub mod timing;
pub mod transfer;
pub mod unbound;
pub mod warning;
