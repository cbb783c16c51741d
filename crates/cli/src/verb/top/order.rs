//! In which order tasks are.

use clap::ValueEnum;
use nearfar_placement::tasks::TaskPlacement;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Order {
    /// CPU time lost to far memory at most, the most first
    Cost,
    /// CPU time, the most first
    Cpu,
    /// Memory, the most first
    Memory,
    /// Remote share, the largest first
    Remote,
    /// Process number
    Pid,
    /// Name
    Name,
}

impl Order {
    const ALL: [Self; 6] = [
        Self::Cost,
        Self::Cpu,
        Self::Memory,
        Self::Remote,
        Self::Pid,
        Self::Name,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Remote => "remote",
            Self::Pid => "pid",
            Self::Name => "name",
        }
    }

    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|it| *it == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Sorts; equal tasks stay as [`nearfar_placement::tasks::tasks`] has them.
    pub fn sort(self, tasks: &mut [TaskPlacement]) {
        let cost = |task: &TaskPlacement| task.at.remote.get().and_then(|it| it.cost_s);
        let remote = |task: &TaskPlacement| task.at.remote.get().map(|it| it.share);
        let descending = |a: Option<f64>, b: Option<f64>| {
            let (a, b) = (a.unwrap_or(-1.0), b.unwrap_or(-1.0));
            b.total_cmp(&a)
        };
        match self {
            Self::Cost => tasks.sort_by(|a, b| descending(cost(a), cost(b))),
            Self::Cpu => {
                let cpu = |task: &TaskPlacement| task.at.cpu_s.get().copied();
                tasks.sort_by(|a, b| descending(cpu(a), cpu(b)));
            }
            Self::Memory => tasks.sort_by_key(|task| std::cmp::Reverse(task.at.memory_bytes())),
            Self::Remote => tasks.sort_by(|a, b| descending(remote(a), remote(b))),
            Self::Pid => tasks.sort_by_key(|task| task.pid),
            Self::Name => tasks.sort_by(|a, b| a.name.cmp(&b.name)),
        }
    }
}
