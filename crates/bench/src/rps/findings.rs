//! What the samples of a run say, by requests per second, paired by round. Two questions, each with a chance of any false alarm
//! of 5 % (Holm):
//!
//! ```text
//! behind    servers on the card's node ─► on the adjacent one    for each way interrupts are served: does the adjacent node fall behind?
//! changes   interrupts as before ─► nearest first                for each node with servers: is any worse off?
//! ```

use std::collections::BTreeMap;

use nearfar_runs::{Better, Cell, Detail, Sample};
use nearfar_statistics::compare::Question;
use serde::{Deserialize, Serialize};

use crate::step::{Rounds, Step, answer};

use super::{
    ADJACENT, CARD, INTERRUPTS, KEEP, RECEIVE, REQUESTS_ADJACENT, REQUESTS_CARD, SERVER_NODE,
    TOGETHER,
};

/// A change up to this share is equivalent: what the published figures, in steps of 10,000 of 260,000 requests, can show.
pub const MARGIN: f64 = 0.03;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// The card's node (A) and the adjacent one (B).
    pub behind: Vec<Step<Series>>,
    /// Each way in which interrupts are served (A) and the next one (B), of the same servers.
    pub changes: Vec<Step<Series>>,
}

/// The requests of one node's servers in a cell.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    pub cell: Cell,
    /// [`CARD`] or [`ADJACENT`].
    pub servers: String,
}

impl Series {
    /// How interrupts were served: the level of the factor that is varied.
    pub fn served(&self) -> String {
        let receive = self.cell.text(RECEIVE);
        match receive == KEEP {
            true => self.cell.text(INTERRUPTS),
            false => receive,
        }
    }

    /// Whether the other node had servers at the same time.
    pub fn is_together(&self) -> bool {
        self.cell.text(SERVER_NODE) == TOGETHER
    }
}

/// What the samples of a run say.
pub fn findings(detail: &Detail, samples: &[Sample]) -> Findings {
    let has = |cell: &Cell| detail.plan.contains(cell);
    let mut behind = Vec::new();
    for cell in &detail.plan {
        let series = |level: &str, servers: &str| Series {
            cell: cell.clone().with(SERVER_NODE, level),
            servers: servers.to_owned(),
        };
        match cell.text(SERVER_NODE).as_str() {
            TOGETHER => behind.push((series(TOGETHER, CARD), series(TOGETHER, ADJACENT))),
            CARD if has(&series(ADJACENT, ADJACENT).cell) => {
                behind.push((series(CARD, CARD), series(ADJACENT, ADJACENT)));
            }
            _ => {}
        }
    }
    Findings {
        behind: answered(samples, behind),
        changes: answered(samples, changes(detail)),
    }
}

/// Each series with the one of the next way in which interrupts are served.
fn changes(detail: &Detail) -> Vec<(Series, Series)> {
    let mut all: BTreeMap<(String, &str), Vec<Series>> = BTreeMap::new();
    for cell in &detail.plan {
        let level = cell.text(SERVER_NODE);
        for servers in [CARD, ADJACENT] {
            if level == servers || level == TOGETHER {
                let series = Series {
                    cell: cell.clone(),
                    servers: servers.to_owned(),
                };
                all.entry((level.clone(), servers))
                    .or_default()
                    .push(series);
            }
        }
    }
    let pairs = |series: Vec<Series>| -> Vec<(Series, Series)> {
        let pairs = series.windows(2);
        pairs
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect()
    };
    all.into_values().flat_map(pairs).collect()
}

fn answered(samples: &[Sample], pairs: Vec<(Series, Series)>) -> Vec<Step<Series>> {
    let metrics = [REQUESTS_CARD, REQUESTS_ADJACENT];
    let rounds = metrics.map(|metric| Rounds::of(samples, metric));
    let of = |series: &Series| rounds[usize::from(series.servers != CARD)].of_cell(&series.cell);
    let steps = pairs.into_iter().map(|(a, b)| Step::new(a, b));
    let mut steps: Vec<Step<Series>> = steps.collect();
    answer(&mut steps, MARGIN, |step| {
        Question::paired(of(&step.a), of(&step.b), Some(Better::Higher))
    });
    steps
}
