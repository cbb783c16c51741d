//! What the runs say.

use nearfar_machine::{CpuSet, Emulation, Known};
use nearfar_runs::Counted;
use serde::{Deserialize, Serialize};

use crate::matrix::{Contrast, MatrixCell, Parameters, Question, Ratio, Row, Taken, findings};

/// What a probe of floating tasks found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Floating {
    /// What was the same in all runs. The cells are memory and CPUs bound to a node, memory only, and neither.
    pub parameters: Parameters,
    /// How many times as long floating tasks took as bound ones: CPUs floating, and all floating.
    pub contrasts: Vec<Floated>,
    pub rows: Vec<Row>,
    pub warnings: Vec<Counted>,
    /// The CPUs that had the load.
    pub load_cpus: CpuSet,
    /// Whether NUMA balancing was on. It was left as it is.
    pub numa_balancing: Known<bool>,
    /// How long all of it took, in seconds.
    pub elapsed_s: f64,
    /// The emulated machine; `None` for a real one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

/// What floating cost, in one way of floating.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Floated {
    pub question: Question,
    /// Time of a floating run through time of a bound one, or why that is unknown.
    pub ratio: Known<Ratio>,
    /// Migrations from node to node in all the floating runs together, or why they were not counted.
    pub cross_node: Known<u64>,
    /// Seconds that these runs took.
    pub seconds: f64,
}

impl Floated {
    /// What these runs say of both ways of floating.
    pub(super) fn of(cells: &[MatrixCell], taken: &[Taken]) -> Vec<Self> {
        let asked = |contrast: &Contrast| {
            matches!(
                contrast.question,
                Question::FloatingCpus | Question::AllFloating
            )
        };
        let floated = |contrast: Contrast| {
            let of = || {
                taken
                    .iter()
                    .filter(|taken| contrast.of.contains(&taken.cell))
                    .filter_map(Taken::good)
            };
            let cross_node = of().map(|sample| match &sample.trace {
                Known::Yes(watched) => Ok(watched.found.migrations.cross_node),
                Known::No { unknown_reason } => Err(unknown_reason),
            });
            let cross_node = match cross_node.sum::<Result<u64, _>>() {
                Ok(all) => Known::Yes(all),
                Err(because) => Known::no(because.clone()),
            };
            let seconds = of().map(|sample| sample.probe.seconds).sum();
            Self {
                question: contrast.question,
                ratio: contrast.ratio,
                cross_node,
                seconds,
            }
        };
        findings(cells, taken)
            .contrasts
            .into_iter()
            .filter(asked)
            .map(floated)
            .collect()
    }
}
