//! What an experiment shows of its runs beyond what runs of all experiments do.
//!
//! ```text
//! OWN ─► OfExperiment {show, against}    one for each experiment that shows more
//! run ─► show ───────► Own               text, page, mail, JSON
//! published figures ─► against ─► appended to each of them
//! ```

use std::error::Error;
use std::io::Read;

use nearfar_bench::{io, matrix, rps, scale, tags};
use nearfar_runs::RunId;
use serde_json::Value;

use super::Shown;
use crate::document::Document;

/// What an experiment shows of a run.
pub struct Own {
    /// Instead of a table a metric.
    pub text: Document,
    /// On the page, below its metrics.
    pub page: Document,
    /// In a mail, instead of a table a metric.
    pub mail: Document,
    pub json: Value,
    /// How published figures compare with the run, where there are such figures.
    pub published: Option<Value>,
}

/// Figures of others.
pub struct PublishedFile<'a> {
    pub name: &'a str,
    pub input: &'a mut dyn Read,
}

/// How published figures compare with a run.
pub(crate) struct Against {
    pub(crate) document: Document,
    pub(crate) json: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    /// The run can be shown as one of any experiment.
    #[error(transparent)]
    Unreadable(BoxError),
    #[error("{name}")]
    Published {
        name: String,
        #[source]
        error: BoxError,
    },
    #[error(
        "{name}: run {run} is of {experiment}; published figures are compared with runs of {}",
        with_published()
    )]
    NotPublished {
        name: String,
        run: RunId,
        experiment: String,
    },
}

type BoxError = Box<dyn Error + Send + Sync>;

type AgainstOf = fn(&Shown<'_>, PublishedFile<'_>) -> Result<Against, BoxError>;

/// An experiment that shows more.
struct OfExperiment {
    name: &'static str,
    show: fn(&Shown<'_>) -> Result<Own, BoxError>,
    /// `None` for an experiment that published figures are not compared with.
    against: Option<AgainstOf>,
}

const OWN: &[OfExperiment] = &[
    OfExperiment {
        name: matrix::EXPERIMENT,
        show: crate::probe::own,
        against: None,
    },
    OfExperiment {
        name: io::EXPERIMENT,
        show: crate::io::own,
        against: None,
    },
    OfExperiment {
        name: rps::EXPERIMENT,
        show: crate::rps::own,
        against: None,
    },
    OfExperiment {
        name: tags::EXPERIMENT,
        show: crate::tags::own,
        against: Some(crate::tags::against),
    },
    OfExperiment {
        name: scale::EXPERIMENT,
        show: crate::scale::own,
        against: Some(crate::scale::against),
    },
];

/// The experiments that published figures are compared with.
fn with_published() -> String {
    let names = OWN.iter().filter(|it| it.against.is_some());
    names.map(|it| it.name).collect::<Vec<_>>().join(", ")
}

impl Shown<'_> {
    /// What the run's experiment shows of it; `None` for one that shows nothing of its own.
    ///
    /// # Errors
    /// Published figures that are not understood, or that the experiment has no use for; a run that a newer nearfar wrote.
    pub fn own(&self, published: Option<PublishedFile<'_>>) -> Result<Option<Own>, OwnError> {
        let run = self.run;
        let of = OWN.iter().find(|it| it.name == run.experiment);
        let against = match published {
            None => None,
            Some(file) => {
                let name = file.name.to_owned();
                let Some(against) = of.and_then(|it| it.against) else {
                    return Err(OwnError::NotPublished {
                        name,
                        run: run.run,
                        experiment: run.experiment.clone(),
                    });
                };
                let found = against(self, file);
                Some(found.map_err(|error| OwnError::Published { name, error })?)
            }
        };
        let own = of.map(|it| (it.show)(self)).transpose();
        let mut own = own.map_err(OwnError::Unreadable)?;
        if let (Some(own), Some(against)) = (&mut own, against) {
            for document in [&mut own.text, &mut own.page, &mut own.mail] {
                document.append(against.document.clone());
            }
            own.published = Some(against.json);
        }
        Ok(own)
    }
}
