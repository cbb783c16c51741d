//! A command that is on the preferred node from its first instruction on.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use nearfar_machine::{Machine, NodeId};
use nearfar_proc::{affinity, tasks};

use super::threads::ThreadMasks;
use super::{Keeper, KeeperError, KeeperOptions, MemoryPolicy, memory};

impl Keeper {
    /// Starts a command on its node's CPUs and keeps it. What the command makes is kept too, also where its maker has ended
    /// before it was seen: this process becomes the parent of such orphans (PR_SET_CHILD_SUBREAPER).
    ///
    /// # Errors
    /// As [`Keeper::start`], and when the command cannot be started.
    pub fn spawn(
        mut command: Command,
        policy: Option<MemoryPolicy>,
        node: NodeId,
        machine: &Machine,
        options: KeeperOptions,
    ) -> Result<(Self, Child), KeeperError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |reason| KeeperError::Spawn {
            program: program.clone(),
            reason,
        };
        let interval = options.interval;
        let mut kept = ThreadMasks::new(node, machine, options)?;
        let own = affinity::get(0).map_err(failed)?;
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        let process = std::process::id().cast_signed();
        let group = kept
            .masks
            .group_of(me, &own)
            .ok_or_else(|| kept.elsewhere(program.clone(), own.clone()))?;
        // On record before there is a task: a child of this thread's process with the narrow mask is ours.
        kept.orphans_except = Some(own_children());
        kept.note_sessions();
        kept.note(group, &[(process, me)])?;
        let narrow = kept.masks.groups[group].narrow.clone();
        let confine = affinity::Confinement::to(&narrow);
        let nodes = policy.map(|policy| policy.nodes(node, machine));
        let nodes = memory::words(&nodes.unwrap_or_default());
        // SAFETY: between fork and exec only system calls are made, on memory that was prepared before.
        unsafe {
            command.pre_exec(move || {
                confine.calling_thread()?;
                policy.map_or(Ok(()), |policy| policy.set(&nodes))
            });
        }
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let child = command.spawn().map_err(failed)?;
        // The caller waits for it.
        kept.orphans_except
            .get_or_insert_default()
            .insert(child.id().cast_signed());
        kept.counts.narrowed += u64::from(kept.masks.confines(group));
        // Its first system call set the narrow mask, which is no choice of the program.
        kept.observe();
        let adopted = kept.adopt(child.id().cast_signed(), Some(group));
        // A command that has ended already was kept all its life.
        match adopted {
            Ok(()) | Err(KeeperError::Process { .. } | KeeperError::NoProcess { .. }) => {
                Ok((Self::run(kept, interval)?, child))
            }
            Err(error) => Err(error),
        }
    }
}

fn own_children() -> BTreeSet<i32> {
    let me = std::process::id().cast_signed();
    let threads = tasks::threads(me).unwrap_or_default();
    threads
        .into_iter()
        .flat_map(|tid| tasks::children(me, tid).unwrap_or_default())
        .collect()
}
