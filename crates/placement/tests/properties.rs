//! What holds for the audit and the plan of any machine.

use std::collections::BTreeSet;

use crate::common::random::any_inhabited_machine;
use crate::common::{model, rules_that_do_not_add_up};
use nearfar_change::{Change, Setting};
use nearfar_machine::{IoPolicy, Known, Machine};
use nearfar_placement::audit::{AuditOptions, RULES, audit};
use nearfar_placement::plan::{PlanOptions, plan};
use proptest::prelude::*;

fn everything() -> PlanOptions {
    PlanOptions {
        device_node_override: true,
        iopolicy: Some(IoPolicy::RoundRobin),
        ..PlanOptions::default()
    }
}

fn planned(machine: &Machine, options: &PlanOptions) -> nearfar_change::Plan {
    plan(machine, &audit(machine, &AuditOptions::default()), options)
}

proptest! {
    #[test]
    fn an_audit_is_ordered_and_repeatable_and_knows_its_rules(machine in any_inhabited_machine()) {
        let found = audit(&machine, &AuditOptions::default());
        prop_assert_eq!(&found, &audit(&machine, &AuditOptions::default()));
        prop_assert!(found.findings.is_sorted_by(|a, b| a.severity >= b.severity));
        let known = |id: &str| RULES.iter().any(|rule| rule.id == id);
        prop_assert!(found.findings.iter().all(|finding| known(finding.rule)));
        prop_assert!(found.not_checked.iter().all(|not| known(not.rule) && !not.reason.is_empty()));
        prop_assert_eq!(rules_that_do_not_add_up(&found), Vec::<String>::new());
        for finding in &found.findings {
            prop_assert!(!finding.subject.is_empty() && finding.message.ends_with('.'), "{:?}", finding);
            if let Some(cost) = finding.cost {
                // Leaving an isolated CPU may take an interrupt further away.
                let nearer = cost.now.is_none() || cost.now > cost.after || finding.rule == "interrupt-on-isolated-cpu";
                prop_assert!(nearer && (cost.now.is_some() || cost.after.is_some()), "{:?}", finding);
            }
        }
    }

    #[test]
    fn whatever_is_unknown_each_rule_is_in_one_state(mut machine in any_inhabited_machine(), unknown in 0..512u32) {
        let hidden = |part: u32| unknown >> part & 1 == 1;
        if hidden(0) { machine.pci = Known::no("hidden") }
        if hidden(1) { machine.host_bridges = Known::no("hidden") }
        if hidden(2) { machine.interrupts = Known::no("hidden") }
        if hidden(3) { machine.networks = Known::no("hidden") }
        if hidden(4) { machine.nvme = Known::no("hidden") }
        if hidden(5) { machine.tasks = Known::no("hidden") }
        if hidden(6) { machine.distances = Known::no("hidden") }
        if hidden(7) { machine.settings.numa_balancing = Known::no("hidden") }
        if hidden(8) { machine.nodes.truncate(1) }
        prop_assert_eq!(rules_that_do_not_add_up(&audit(&machine, &AuditOptions::default())), Vec::<String>::new());
    }

    #[test]
    fn a_plan_touches_each_file_once_and_only_usable_cpus(machine in any_inhabited_machine()) {
        let plan = planned(&machine, &everything());
        let files: BTreeSet<String> = plan.changes.iter().map(|planned| Setting::of(&planned.change).path()).collect();
        prop_assert_eq!(files.len(), plan.changes.len());
        let usable = machine.cpu_states.housekeeping();
        for planned in &plan.changes {
            match &planned.change {
                Change::InterruptAffinity { irq, cpus, near, .. } => {
                    prop_assert!(!cpus.is_empty() && cpus.is_subset(&usable));
                    let listed = |node| plan.nearest.iter().any(|nearest| nearest.node == node);
                    prop_assert!(near.is_none_or(listed));
                    let interrupts = machine.interrupts.get().unwrap();
                    let interrupt = interrupts.iter().find(|interrupt| interrupt.irq == *irq).unwrap();
                    let managed = interrupt.managed.get().is_some_and(|managed| managed.managed);
                    prop_assert!(!managed, "managed interrupts are never written");
                }
                Change::Rps { cpus, .. } => prop_assert!(cpus.is_subset(&usable)),
                Change::Xps { cpus, .. } => prop_assert!(cpus.is_subset(&machine.cpu_states.online)),
                Change::DeviceNode { node, .. } => prop_assert!(machine.node(*node).unwrap().online),
                Change::NvmeIoPolicy { .. } | Change::Sysctl { .. } => {}
                _ => prop_assert!(false, "no rule is about it"),
            }
        }
    }

    #[test]
    fn a_fixed_machine_has_nothing_left_to_fix(machine in any_inhabited_machine()) {
        for options in [PlanOptions::default(), everything()] {
            let fixed = model::after(&machine, &planned(&machine, &options));
            let again = planned(&fixed, &options);
            prop_assert_eq!(&again.changes, &Vec::new(), "{:?}", options);
        }
    }

    #[test]
    fn no_fix_makes_a_distance_longer(machine in any_inhabited_machine()) {
        let far = |machine: &Machine| {
            audit(machine, &AuditOptions::default()).findings.iter().filter(|found| found.rule == "interrupt-far").count()
        };
        prop_assert_eq!(far(&model::after(&machine, &planned(&machine, &PlanOptions::default()))), 0);
    }
}
