//! Experiments: what is varied, one run, its samples. Nothing in here draws or prints.
//!
//! [`latency`] is the first: how long a load takes from each node's CPUs to each node's memory.

pub mod latency;
