//! Where an interrupt goes when its CPU has no vector left (an x86 CPU has some 200): the next nearest CPU of the
//! plan's list, those first that no other interrupt of the plan is sent to.

use std::collections::HashMap;

use nearfar_machine::{CpuId, CpuSet, NodeId};

use crate::change::{Change, Plan};

/// The CPUs to fall back on.
pub(super) struct Nearest<'a> {
    lists: HashMap<NodeId, &'a [CpuId]>,
    /// CPUs an interrupt of the plan is sent to, or was sent to instead.
    used: CpuSet,
    /// CPUs without a free vector.
    full: CpuSet,
}

impl<'a> Nearest<'a> {
    pub(super) fn new(plan: &'a Plan) -> Self {
        let mut used = CpuSet::new();
        for planned in &plan.changes {
            if let Change::InterruptAffinity { cpus, .. } = &planned.change {
                used.extend(cpus.iter());
            }
        }
        let lists = plan
            .nearest
            .iter()
            .map(|nearest| (nearest.node, nearest.cpus.as_slice()))
            .collect();
        Self {
            lists,
            used,
            full: CpuSet::new(),
        }
    }

    /// Takes note that none of these CPUs has a free vector, and gives the next one to try.
    pub(super) fn after(&mut self, full: &CpuSet, near: Option<NodeId>) -> Option<CpuId> {
        self.full.extend(full.iter());
        let list = self.lists.get(&near?)?;
        let mut free = list.iter().copied().filter(|&cpu| !self.full.contains(cpu));
        let unused = free.clone().find(|&cpu| !self.used.contains(cpu));
        unused.or_else(|| free.next())
    }

    /// Takes note that a CPU was taken.
    pub(super) fn take(&mut self, cpu: CpuId) {
        self.used.insert(cpu);
    }
}
