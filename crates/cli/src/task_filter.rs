//! Which tasks are shown: the arguments of `tasks` and `top`.

use clap::Args;
use nearfar_machine::{Machine, NodeId, alternatives};
use nearfar_placement::tasks::{self, Filter};
use nearfar_proc::system;

use crate::args::{pid, size_or_zero};
use crate::failure::{Failure, Outcome};

/// The units and control groups that tasks are in.
pub fn group_names(machine: &Machine) -> Vec<String> {
    let all = tasks::tasks(machine, &Filter::default(), None).known();
    let groups = all.map(|all| tasks::by_group(&all));
    let names = groups.into_iter().flatten();
    let mut names: Vec<String> = names
        .filter_map(|it| it.service.or(it.group.known()))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// What a task has to have.
#[derive(Args)]
pub struct TaskFilterArgs {
    /// Show this process (may be repeated) instead of all
    #[arg(long, value_name = "PID", value_parser = pid)]
    pub pid: Vec<i32>,
    /// Show tasks with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Show tasks of this user: a name or number
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Show tasks of this control group and of those below it, or of this unit (redis.service)
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Show tasks that run or have memory on this node
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Leave out tasks with less memory than this; those of --pid are always shown
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = size_or_zero)]
    min_memory: u64,
}

impl TaskFilterArgs {
    /// Tasks with less memory are left out, in bytes.
    pub fn min_bytes(&self) -> u64 {
        match self.pid.is_empty() {
            true => self.min_memory,
            false => 0,
        }
    }

    /// A group that no task is in is a target that does not exist.
    pub fn check_group(&self, machine: &Machine) -> Outcome {
        let Some(group) = &self.group else {
            return Ok(());
        };
        let filter = Filter {
            group: Some(group.clone()),
            ..Filter::default()
        };
        let all = |filter| tasks::tasks(machine, filter, None).known();
        if all(&filter).is_none_or(|found| !found.tasks.is_empty()) {
            return Ok(());
        }
        Err(Failure::input(anyhow::anyhow!(
            "no task with {} MiB or more is in group {group:?}; {}",
            self.min_bytes() >> 20,
            alternatives(group, &group_names(machine))
        )))
    }

    /// What tasks have to have. `is_here`: the machine is the running system, which knows the names of users.
    pub fn filter(&self, machine: &Machine, is_here: bool) -> Result<Filter, Failure> {
        let node = self.node.map(NodeId);
        if let Some(missing) = node.filter(|&id| machine.node(id).is_none()) {
            let known: Vec<String> = machine.nodes.iter().map(|it| it.id.to_string()).collect();
            return Err(Failure::input(anyhow::anyhow!(
                "there is no node {missing}; {}",
                alternatives(&missing.to_string(), &known)
            )));
        }
        let user = self.user.as_deref().map(|user| match user.parse() {
            Ok(number) => Ok(number),
            Err(_) if !is_here => Err(Failure::input(anyhow::anyhow!(
                "user {user:?} of another machine is known by number only"
            ))),
            Err(_) => system::user_id(user).ok_or_else(|| {
                Failure::input(anyhow::anyhow!("there is no user {user:?} on this system"))
            }),
        });
        Ok(Filter {
            name: self.name.clone(),
            user: user.transpose()?,
            group: self.group.clone(),
            node,
            min_bytes: self.min_bytes(),
            device: None,
        })
    }
}
