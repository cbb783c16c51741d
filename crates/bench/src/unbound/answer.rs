//! What the runs say.

use nearfar_machine::{CpuSet, Emulation, Known};
use nearfar_runs::Counted;
use serde::{Deserialize, Serialize};

use crate::matrix::{Contrast, MatrixCell, Parameters, Question, Ratio, Row, Taken, findings};

/// What a probe of unbound tasks found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UnboundTasks {
    /// What was the same in all runs. The cells are memory and CPUs bound to a node, memory only, and neither.
    pub parameters: Parameters,
    /// How many times as long unbound tasks took as bound ones: CPUs unbound, and memory and CPUs unbound.
    pub contrasts: Vec<UnboundContrast>,
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

/// The cost of unbound tasks, in one contrast.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UnboundContrast {
    pub question: Question,
    /// Time of a unbound run through time of a bound one, or why that is unknown.
    pub ratio: Known<Ratio>,
    /// Migrations from node to node in all the unbound runs together, or why they were not counted.
    pub cross_node: Known<u64>,
    /// Seconds that these runs took.
    pub seconds: f64,
}

impl UnboundContrast {
    /// Both contrasts of these runs.
    pub(super) fn of(cells: &[MatrixCell], taken: &[Taken]) -> Vec<Self> {
        let asked = |contrast: &Contrast| {
            matches!(
                contrast.question,
                Question::UnboundCpus | Question::AllUnbound
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
                Err(reason) => Known::no(reason.clone()),
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
