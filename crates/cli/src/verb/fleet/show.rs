//! `nearfar fleet show`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nearfar_fleet::dataset::{Selection, load};
use nearfar_fleet::survey::{SurveyOptions, survey};

use super::collect::of_dataset;
use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

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
    #[arg(long, value_enum, value_name = "STATE")]
    fail_on: Option<FailOn>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// A host differs from those like it
    Outlier,
}

impl Show {
    /// Reads the dataset, compares, prints.
    pub fn run(self, colour: Colour) -> Outcome {
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
        output::print(&match self.format.format {
            Format::Table => nearfar_report::fleet::survey(&survey).to_text(&output::style(colour)),
            Format::Json => output::json("fleet-show/1", None, &survey)?,
        })?;
        if let Some(path) = &self.html {
            let page = nearfar_report::fleet::page(&survey).to_html();
            output::write_file(path, page.as_bytes())?;
            output::say!("The whole of it as a page: {}", path.display());
        }
        match self.fail_on.is_some() && survey.has_outlier() {
            true => Err(Failure::AskedToFail),
            false => Ok(()),
        }
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
                return Err(Failure::Input(anyhow::anyhow!(
                    "{option}: the dataset has no {name:?}; {}",
                    nearfar_machine::alternatives(name, known)
                )));
            }
        }
        Ok(())
    }
}

fn share(text: &str) -> Result<f64, String> {
    use nearfar_fleet::survey::{MAX_FALSE_ALARMS, MIN_FALSE_ALARMS};
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|share| (MIN_FALSE_ALARMS..=MAX_FALSE_ALARMS).contains(share))
        .ok_or_else(|| format!("a share from {MIN_FALSE_ALARMS} to {MAX_FALSE_ALARMS}"))
}

fn effect(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|share| (0.0..1.0).contains(share))
        .ok_or_else(|| "a share from 0 to 1".to_owned())
}
