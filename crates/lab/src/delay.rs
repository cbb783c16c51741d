//! Delays of far memory: what is asked for, how the plugin is told, what it counted.

use std::path::PathBuf;

/// What the plugin is to do.
#[derive(Clone, PartialEq, Debug)]
pub struct DelaySetup {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// The configuration, as the plugin reads it.
    pub config: String,
    /// One line for labels: "delays 10: 400 ns, 20: 800 ns; cache 8M/16 a node; transfer 500/2000 ns".
    pub label: String,
}
