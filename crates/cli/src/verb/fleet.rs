//! `nearfar fleet`: one verb on many hosts, and which host differs. Here are the verbs about the dataset of their answers.

mod on_host;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use nearfar_fleet::Folder;
use nearfar_fleet::dataset::{DatasetError, Selection, collect, load};
use nearfar_fleet::survey::{SurveyOptions, survey};
use serde::Serialize;

use crate::args::{Colour, FormatArgs, one_of};
use crate::failure::{Failure, Outcome, input};
use crate::output::{self, under};

/// Run a verb on many hosts, and show which differs from those like it
#[derive(Subcommand)]
#[command(after_long_help = "Examples:\n  \
                       nearfar fleet run --engine slurm --partition db --results /shared/db -- checkup --format json\n  \
                       nearfar fleet run --resume --results /shared/db\n  \
                       nearfar fleet collect /shared/db --dataset fleet\n  \
                       nearfar fleet show --dataset fleet --html fleet.html")]
pub enum Fleet {
    Run(run::Run),
    Collect(Collect),
    Show(Show),
    Apply(run::Apply),
    Rollback(run::Rollback),
    Targets(Targets),
    #[command(hide = true)]
    OnHost(on_host::OnHost),
}

impl Fleet {
    /// Answers.
    pub fn run(self, colour: Colour) -> Outcome {
        match self {
            Self::Run(verb) => verb.run(colour),
            Self::Collect(verb) => verb.run(colour),
            Self::Show(verb) => verb.run(colour),
            Self::Apply(verb) => verb.run(colour),
            Self::Rollback(verb) => verb.run(colour),
            Self::Targets(verb) => verb.run(),
            Self::OnHost(verb) => verb.run(),
        }
    }
}

/// What went wrong, by who has to act.
fn by_who_has_to_act(error: nearfar_fleet::FleetError) -> Failure {
    match error {
        nearfar_fleet::FleetError::Folder(error) => of_folder(error),
        error => Failure::refused(error),
    }
}

fn of_folder(error: nearfar_fleet::FolderError) -> Failure {
    use nearfar_fleet::FolderError;
    match error {
        FolderError::File { ref reason, .. } if reason.kind() != std::io::ErrorKind::NotFound => {
            Failure::refused(error)
        }
        FolderError::InUse { .. } => Failure::refused(error),
        _ => Failure::input(error),
    }
}

/// Put the answers of fleet runs into one dataset of Parquet files
///
/// DuckDB, Polars and Spark read it (docs/fleet.md has queries). A run that is collected again replaces what it had there.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar fleet collect /shared/audit --dataset fleet\n  \
                       nearfar fleet collect week-47 week-48 --dataset fleet --format json"
)]
pub struct Collect {
    /// Folders of runs, as `nearfar fleet run --results` made them
    #[arg(value_name = "DIR", required = true)]
    results: Vec<PathBuf>,
    /// The directory of the dataset, made if it does not exist
    #[arg(long, value_name = "DATASET")]
    dataset: PathBuf,
    #[command(flatten)]
    format: FormatArgs,
}

impl Collect {
    /// Reads every answer, writes the tables.
    fn run(self, colour: Colour) -> Outcome {
        // All are opened before the first is collected: a wrong name changes nothing.
        let folders = self
            .results
            .iter()
            .map(|path| Folder::open(path).map_err(of_folder));
        let folders = folders.collect::<Result<Vec<_>, _>>()?;
        let collected = folders
            .iter()
            .map(|folder| collect(folder, &self.dataset).map_err(of_dataset))
            .collect::<Result<Vec<_>, _>>()?;
        let document =
            || nearfar_report::fleet::collected(&collected, &self.dataset.display().to_string());
        self.format.print(
            colour,
            "fleet-collect/1",
            None,
            &under("collected", &collected),
            document,
        )
    }
}

/// What went wrong with a dataset, by who has to act.
fn of_dataset(error: DatasetError) -> Failure {
    match error {
        DatasetError::Folder(error) => of_folder(error),
        DatasetError::File { .. } => Failure::refused(error),
        _ => Failure::input(error),
    }
}

/// The most that a page may take before it is written, in bytes.
const PAGE_BYTES: u64 = 8 << 20;

/// Show which hosts differ from those that should be like them
///
/// Hosts of one product and CPU model are a group. A host deviates in a fact if more than half of its group has another
/// value, and in a measurement if it is further from its group than chance allows (docs/fleet.md has method and error rates).
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar fleet show --dataset fleet\n  \
                       nearfar fleet show --dataset fleet --group-by product,firmware --html fleet.html\n  \
                       nearfar fleet show --dataset fleet --run night-47 --fail-on outlier"
)]
pub struct Show {
    /// The directory of the dataset
    #[arg(long, value_name = "DATASET")]
    dataset: PathBuf,
    /// Only this run, by its name or label [default: of each host the newest answer]
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Hosts with the same values of these facts should be alike, separated by commas
    #[arg(long, value_name = "FACTS", value_delimiter = ',', default_values_t = nearfar_fleet::facts::GROUP_BY.map(str::to_owned))]
    group_by: Vec<String>,
    /// Judge this metric as well as the primary one of each experiment (may be repeated)
    #[arg(long, value_name = "METRIC")]
    metric: Vec<String>,
    /// The probability that any host is named for what was measured when all are alike
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    false_alarms: f64,
    /// Name no measured deviation smaller than this share
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = effect)]
    min_effect: f64,
    /// Do not judge a host where it has fewer samples than this in a cell
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    min_samples: u32,
    /// Also write a page to this file
    #[arg(long, value_name = "FILE", value_parser = output::named_file())]
    html: Option<PathBuf>,
    /// Exit with 1 if a host deviates
    #[arg(long, value_parser = one_of(OUTLIER), value_name = "STATE")]
    fail_on: Option<()>,
    #[command(flatten)]
    format: FormatArgs,
}

/// What --fail-on of `show` takes.
const OUTLIER: &[(&str, &str, ())] = &[("outlier", "A host differs from those like it", ())];

impl Show {
    /// Reads the dataset, compares, prints.
    fn run(self, colour: Colour) -> Outcome {
        if let Some(path) = &self.html {
            output::has_room(path, PAGE_BYTES)?;
        }
        let group_by: Vec<String> = self
            .group_by
            .iter()
            .map(|it| it.trim().to_owned())
            .collect();
        let selection = Selection {
            run: self.run.clone(),
        };
        let loaded = load(&self.dataset, &selection).map_err(of_dataset)?;
        self.check(&loaded, &group_by)?;
        let options = SurveyOptions {
            group_by,
            false_alarms: self.false_alarms,
            min_effect: self.min_effect,
            min_samples: self.min_samples as usize,
            metrics: self.metric.clone(),
            ..SurveyOptions::default()
        };
        let survey = survey(&loaded, &options);
        let document = || nearfar_report::fleet::survey(&survey);
        self.format
            .print(colour, "fleet-show/1", None, &survey, document)?;
        if let Some(path) = &self.html {
            let page = nearfar_report::fleet::page(&survey).to_html();
            output::write_file(path, page.as_bytes())?;
            output::say!("The whole of it as a page: {}", path.display());
        }
        Failure::on(self.fail_on.is_some() && survey.has_outlier())
    }

    /// Facts and metrics that are named exist.
    fn check(&self, loaded: &nearfar_fleet::dataset::Loaded, group_by: &[String]) -> Outcome {
        let facts: Vec<String> = loaded.facts.keys().cloned().collect();
        let metrics: Vec<String> = loaded
            .samples
            .keys()
            .map(|key| key.metric.clone())
            .collect();
        for (option, names, known) in [
            ("--group-by", group_by, &facts),
            ("--metric", &self.metric[..], &metrics),
        ] {
            if let Some(name) = names.iter().find(|name| !known.contains(name)) {
                return Err(input!(
                    "{option}: the dataset has no {name:?}; {}",
                    nearfar_machine::alternatives(name, known)
                ));
            }
        }
        Ok(())
    }
}

fn share(text: &str) -> Result<f64, String> {
    use nearfar_fleet::survey::{MAX_FALSE_ALARMS, MIN_FALSE_ALARMS};
    let share = text.parse().ok();
    share
        .filter(|share| (MIN_FALSE_ALARMS..=MAX_FALSE_ALARMS).contains(share))
        .ok_or_else(|| format!("a share from {MIN_FALSE_ALARMS} to {MAX_FALSE_ALARMS}"))
}

fn effect(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..1.0).contains(share));
    share.ok_or_else(|| "a share from 0 to 1".to_owned())
}

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
    fn run(self) -> Outcome {
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
