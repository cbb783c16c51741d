//! The matrix in the words of the frame of experiments: a cell as levels of factors, and back.

use nearfar_experiment::{Better, Cell, Column, Factor, Level, Metric};
use nearfar_machine::{MAX_NUMBER, NodeId};

use super::cell::{MatrixCell, Policy};
use super::sample::Sample;
use crate::probe::Where;

/// The name of the experiment in the store.
pub const EXPERIMENT: &str = "probe";

pub(super) const PREFERRED_NODE: &str = "preferred_node";
pub(super) const NUMA_BALANCING: &str = "numa_balancing";
pub(super) const MEMORY_NODE: &str = "memory_node";
pub(super) const CPU_NODE: &str = "cpu_node";

impl From<&MatrixCell> for Cell {
    /// Places are texts, since "F" is one.
    fn from(cell: &MatrixCell) -> Self {
        let balancing = i64::from(cell.policy.numa_balancing);
        let (memory, cpus) = (cell.memory_node.to_string(), cell.cpu_node.to_string());
        Self::new()
            .with(PREFERRED_NODE, cell.preferred_number())
            .with(NUMA_BALANCING, balancing)
            .with(MEMORY_NODE, memory)
            .with(CPU_NODE, cpus)
    }
}

impl MatrixCell {
    /// `None` for a cell that is not of this experiment.
    pub fn of(cell: &Cell) -> Option<Self> {
        let policy = Policy {
            preferred_node: preferred_of(cell.level(PREFERRED_NODE)?)?,
            numa_balancing: balancing_of(cell.level(NUMA_BALANCING)?)?,
        };
        Some(Self {
            policy,
            memory_node: place_of(cell.level(MEMORY_NODE)?)?,
            cpu_node: place_of(cell.level(CPU_NODE)?)?,
        })
    }
}

/// -1 is no preferred node.
pub(super) fn preferred_of(level: &Level) -> Option<Option<NodeId>> {
    match level {
        Level::Number(-1) => Some(None),
        Level::Number(node) => {
            let node = u32::try_from(*node).ok();
            node.filter(|&node| node <= MAX_NUMBER)
                .map(|node| Some(NodeId(node)))
        }
        _ => None,
    }
}

pub(super) fn balancing_of(level: &Level) -> Option<bool> {
    match level {
        Level::Number(0) => Some(false),
        Level::Number(1) => Some(true),
        _ => None,
    }
}

pub(super) fn place_of(level: &Level) -> Option<Where> {
    level.to_string().parse().ok()
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
    [PREFERRED_NODE, NUMA_BALANCING, MEMORY_NODE, CPU_NODE]
        .map(levels)
        .into()
}

/// What a sample has. All but the run time need the trace, and are unknown without it.
pub(super) fn columns() -> Vec<Column<Sample>> {
    vec![
        Column::new(Metric::elapsed().primary(), |it: &Sample| {
            Some(it.probe.seconds)
        }),
        Column::new(
            Metric::real("remote_access_share", "1", Better::Lower),
            |it: &Sample| it.far_share().get().copied(),
        ),
        Column::new(
            Metric::integer("cross_node_migrations", "", Better::Lower),
            Sample::cross_node,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::DECLARATION;

    #[test]
    fn cells_come_back_from_the_store_as_they_went_in() {
        for text in [
            "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F",
            "preferred_node=3,numa_balancing=1,memory_node=F,cpu_node=12",
        ] {
            let cell = MatrixCell::of(&DECLARATION.cell(text).unwrap()).unwrap();
            assert_eq!(MatrixCell::of(&Cell::from(&cell)), Some(cell));
        }
        assert_eq!(MatrixCell::of(&Cell::new().with("queue_depth", 4u32)), None);
        let node = |number: i64| {
            Cell::new()
                .with("preferred_node", number)
                .with("numa_balancing", 1i64)
                .with("memory_node", "F")
                .with("cpu_node", "F")
        };
        assert!(MatrixCell::of(&node(1)).is_some());
        assert_eq!(
            [-2, 1 << 30, i64::MAX].map(|number| MatrixCell::of(&node(number))),
            [None; 3]
        );
    }

    #[test]
    fn factors_have_each_level_once() {
        let cells: Vec<MatrixCell> = [
            "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F",
            "preferred_node=-1,numa_balancing=0,memory_node=1,cpu_node=F",
        ]
        .map(|text| MatrixCell::of(&DECLARATION.cell(text).unwrap()).unwrap())
        .into();
        let factors = factors(&cells);
        assert_eq!(factors[2], Factor::new("memory_node", ["0", "1"]));
        assert_eq!(factors[3], Factor::new("cpu_node", ["F"]));
    }
}
