//! `nearfar fleet targets`: the hosts' exporters, for Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use nearfar_fleet::dataset::{Selection, load};
use serde::Serialize;

use super::collect::of_dataset;
use crate::failure::{Failure, Outcome};
use crate::output;

/// Facts that become labels; `machine_` stands before each.
const LABELS: [&str; 3] = ["product", "cpu_model", "firmware"];

/// Write the hosts of a dataset as targets for Prometheus' file_sd_configs
///
/// The exporter of each host (`nearfar exporter`) is a target, labelled with its product, CPU model and firmware.
/// docs/exporter/fleet-rules.yml has recording rules for all of them.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar fleet targets --dataset fleet -o /etc/prometheus/nearfar/hosts.json"
)]
pub struct Targets {
    /// The directory of the dataset
    #[arg(long, value_name = "DATASET")]
    dataset: PathBuf,
    /// The port of the exporters
    #[arg(long, value_name = "PORT", default_value_t = crate::verb::exporter::PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// An element of the list that Prometheus reads.
#[derive(Serialize)]
struct TargetGroup {
    targets: Vec<String>,
    labels: BTreeMap<String, String>,
}

impl Targets {
    /// Reads the dataset, writes the list.
    pub fn run(self) -> Outcome {
        let loaded = load(&self.dataset, &Selection::default()).map_err(of_dataset)?;
        let mut groups: BTreeMap<BTreeMap<String, String>, BTreeSet<String>> = BTreeMap::new();
        for (place, host) in loaded.hosts.iter().enumerate() {
            let label = |fact: &&str| {
                let value = loaded.facts.get(*fact)?.get(&place)?;
                let text = value.known_text()?;
                Some((format!("machine_{fact}"), text))
            };
            let labels = LABELS.iter().filter_map(label).collect();
            // A user before the host is OpenSSH's.
            let name = host.name.rsplit('@').next().unwrap_or(&host.name);
            groups
                .entry(labels)
                .or_default()
                .insert(format!("{name}:{}", self.port));
        }
        let list: Vec<TargetGroup> = groups
            .into_iter()
            .map(|(labels, targets)| TargetGroup {
                targets: targets.into_iter().collect(),
                labels,
            })
            .collect();
        let mut text = serde_json::to_string_pretty(&list).map_err(Failure::input)?;
        text.push('\n');
        match &self.output {
            Some(path) => output::write_file(path, text.as_bytes()),
            None => output::print(&text),
        }
    }
}
