//! The answer of a stored run: made of what the store has and nothing else, so that it is the same years later.

use nearfar_runs::{Detail, Run, Sample as StoredSample};

use super::answer::{Answer, Parameters};
use super::cell::MatrixCell;
use super::frame::EXPERIMENT;
use super::sample::{RunFailed, Taken};

/// Why a stored run has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    #[error("run {run} is of the experiment {experiment}, not a matrix of the probe")]
    OtherExperiment {
        run: nearfar_runs::RunId,
        experiment: String,
    },
    #[error("{what} of run {run}, by nearfar {nearfar}, cannot be read: {source}")]
    Unreadable {
        what: String,
        run: nearfar_runs::RunId,
        nearfar: String,
        /// Where it stops making sense.
        source: serde_json::Error,
    },
}

/// The parameters of a stored run.
///
/// # Errors
/// When it is of another experiment or not understood.
pub fn parameters(run: &Run, detail: &Detail) -> Result<Parameters, NoAnswer> {
    if run.experiment != EXPERIMENT {
        return Err(NoAnswer::OtherExperiment {
            run: run.run,
            experiment: run.experiment.clone(),
        });
    }
    let read: Result<Parameters, _> = serde_json::from_value(detail.parameters.clone());
    let mut parameters =
        read.map_err(|source| unreadable("the list of parameters".to_owned(), run, source))?;
    parameters.cells = detail.plan.iter().filter_map(MatrixCell::of).collect();
    Ok(parameters)
}

/// The answer of a stored run, complete or not.
///
/// # Errors
/// When it is of another experiment or not understood.
pub fn answer(run: &Run, detail: &Detail, samples: &[StoredSample]) -> Result<Answer, NoAnswer> {
    let parameters = parameters(run, detail)?;
    let taken: Result<Vec<Option<Taken>>, NoAnswer> =
        samples.iter().map(|sample| taken(run, sample)).collect();
    let taken: Vec<Taken> = taken?.into_iter().flatten().collect();
    Ok(Answer::new(parameters, &taken))
}

/// `None` for a sample of a cell that the matrix does not have, which no version writes.
fn taken(run: &Run, stored: &StoredSample) -> Result<Option<Taken>, NoAnswer> {
    let Some(cell) = MatrixCell::of(&stored.cell) else {
        return Ok(None);
    };
    let sample = match &stored.failed {
        Some(reason) => Err(RunFailed(reason.clone())),
        None => {
            let read = serde_json::from_value(stored.detail.clone());
            Ok(read
                .map_err(|source| unreadable(format!("sample {}", stored.number), run, source))?)
        }
    };
    Ok(Some(Taken {
        cell,
        round: stored.round,
        sample,
    }))
}

fn unreadable(what: String, run: &Run, source: serde_json::Error) -> NoAnswer {
    NoAnswer::Unreadable {
        what,
        run: run.run,
        nearfar: run.nearfar.clone(),
        source,
    }
}
