//! The matrix in the words of the frame of experiments: a cell as levels of factors, and back.

use nearfar_experiment::{Better, Cell, Factor, Level, Metric, MetricValue, Values};
use nearfar_machine::{MAX_NUMBER, NodeId};

use super::cell::{MatrixCell, Policy};
use super::sample::Sample;
use crate::probe::Where;

/// The name of the experiment in the store.
pub const EXPERIMENT: &str = "probe";

const PNID: &str = "pnid";
const NB: &str = "nb";
const MEMORY: &str = "mem";
const CPUS: &str = "cpu";

impl From<&MatrixCell> for Cell {
    /// Named as the published table's columns. Places are texts, since "F" is one.
    fn from(cell: &MatrixCell) -> Self {
        let nb = i64::from(cell.policy.numa_balancing);
        let (memory, cpus) = (cell.memory.to_string(), cell.cpus.to_string());
        Self::new()
            .with(PNID, cell.pnid())
            .with(NB, nb)
            .with(MEMORY, memory)
            .with(CPUS, cpus)
    }
}

/// The cell that the store has; `None` for one that is not of this experiment.
pub fn from_stored(cell: &Cell) -> Option<MatrixCell> {
    let number = |factor| match cell.level(factor)? {
        Level::Number(number) => Some(*number),
        _ => None,
    };
    let place = |factor| -> Option<Where> { cell.level(factor)?.to_string().parse().ok() };
    let preferred = match number(PNID)? {
        -1 => None,
        node => Some(NodeId(
            u32::try_from(node)
                .ok()
                .filter(|&node| node <= MAX_NUMBER)?,
        )),
    };
    let policy = Policy {
        preferred,
        numa_balancing: number(NB)? != 0,
    };
    Some(MatrixCell {
        policy,
        memory: place(MEMORY)?,
        cpus: place(CPUS)?,
    })
}

/// The factors, with the levels that these cells have.
pub(super) fn factors(cells: &[MatrixCell]) -> Vec<Factor> {
    let levels = |factor: &str| {
        let mut levels: Vec<Level> = cells
            .iter()
            .filter_map(|cell| Cell::from(cell).level(factor).cloned())
            .collect();
        levels.sort_unstable();
        levels.dedup();
        Factor {
            name: factor.to_owned(),
            levels,
        }
    };
    [PNID, NB, MEMORY, CPUS].map(levels).into()
}

/// What a sample has. All but the run time need the trace, and are unknown without it.
pub(super) fn metrics() -> Vec<Metric> {
    vec![
        Metric::elapsed().primary(),
        Metric::real("remote_access_share", "1", Better::Lower),
        Metric::integer("cross_node_migrations", "", Better::Lower),
    ]
}

/// The values of those metrics that this sample knows.
pub(super) fn values(sample: &Sample) -> Values {
    let remote = sample.far_share().get().map(|&share| share.into());
    let moved = sample.cross_node().map(MetricValue::from);
    let values = [
        ("elapsed_s", Some(sample.probe.seconds.into())),
        ("remote_access_share", remote),
        ("cross_node_migrations", moved),
    ];
    values
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_come_back_from_the_store_as_they_went_in() {
        for text in ["pnid=-1,nb=0,mem=0,cpu=F", "pnid=3,nb=1,mem=F,cpu=12"] {
            let cell: MatrixCell = text.parse().unwrap();
            assert_eq!(from_stored(&Cell::from(&cell)), Some(cell));
        }
        assert_eq!(from_stored(&Cell::new().with("queue_depth", 4u32)), None);
        let node = |pnid: i64| {
            Cell::new()
                .with("pnid", pnid)
                .with("nb", 1i64)
                .with("mem", "F")
                .with("cpu", "F")
        };
        assert!(from_stored(&node(1)).is_some());
        assert_eq!(
            [-2, 1 << 30, i64::MAX].map(|pnid| from_stored(&node(pnid))),
            [None; 3]
        );
    }

    #[test]
    fn factors_have_each_level_once() {
        let cells: Vec<MatrixCell> = ["pnid=-1,nb=0,mem=0,cpu=F", "pnid=-1,nb=0,mem=1,cpu=F"]
            .map(|text| text.parse().unwrap())
            .into();
        let factors = factors(&cells);
        assert_eq!(factors[2], Factor::new("mem", ["0", "1"]));
        assert_eq!(factors[3], Factor::new("cpu", ["F"]));
    }
}
