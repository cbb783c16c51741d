//! Whether a plan can be carried out at all. A plan is foreign input: it may have been edited, made by another version
//! or for another machine, or written to do harm with the rights of the user that applies it.

use std::collections::HashMap;

use nearfar_machine::{CpuId, NodeId};

use crate::change::{PLAN_FORMAT, Plan, Planned};
use crate::kind::{ChangeError, Setting};

/// More changes than any machine has settings for: 8192 CPUs with as many queues stay far below it.
const MOST_CHANGES: usize = 262_144;
/// The longest value a plan may carry: a mask of 65536 CPUs needs 18 KiB.
const LONGEST_VALUE: usize = 64 * 1024;

/// Why a plan is not carried out. Changes are counted from 1, as `nearfar plan` shows them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Made by a version with another format.
    #[error(
        "the plan has format {found}, this version knows format {PLAN_FORMAT}: make the plan again with it"
    )]
    Format {
        /// The plan's `plan_format`.
        found: u32,
    },
    /// Made for another machine.
    #[error("the plan was made for host {plan:?}, this is {here:?}: make a plan here")]
    OtherHost {
        /// The plan's `host`.
        plan: String,
        /// The target's host name.
        here: String,
    },
    /// A number or a name in the plan is another device's now. The plan is refused as a whole.
    #[error(
        "change {number} of the plan: {file}: the plan was made for {was}, it is {now} now{}; nothing was changed: \
         make the plan again", others_too(*others)
    )]
    OtherOwner {
        /// Counted from 1.
        number: usize,
        /// The file it writes.
        file: String,
        /// The owner when the plan was made.
        was: String,
        /// The owner now.
        now: String,
        /// How many further changes have another owner.
        others: usize,
    },
    /// The plan was made in another boot, and nothing tells whether a number or name in it is still the same device's.
    #[error(
        "change {number} of the plan: {file}: the plan was made in boot {plan}, this is boot {here}, and nothing tells \
         whether that is still the same device's; nothing was changed: make the plan again"
    )]
    OtherBoot {
        /// Counted from 1.
        number: usize,
        /// The file it writes.
        file: String,
        /// Identifier of the boot it was made in.
        plan: String,
        /// Identifier of this boot.
        here: String,
    },
    /// CPUs are on other nodes than when the plan was made: what it takes for near is not.
    #[error(
        "CPU {cpu} was on node {plan} when the plan was made and is on node {here} now; nothing was changed: make the \
         plan again"
    )]
    OtherNodes {
        cpu: CpuId,
        /// Its node in the plan.
        plan: NodeId,
        /// Its node now.
        here: NodeId,
    },
    /// More changes than there can be settings.
    #[error("the plan has {0} changes; no machine has that many settings")]
    TooMany(usize),
    /// A change that cannot be meant.
    #[error("change {number} of the plan: {reason}")]
    Change {
        /// Counted from 1.
        number: usize,
        reason: ChangeError,
    },
    /// Two changes to one file: which old value rollback should restore would hang on their order.
    #[error("changes {first} and {second} of the plan both write {file}: remove one")]
    Twice {
        /// Counted from 1.
        first: usize,
        /// Counted from 1.
        second: usize,
        /// The file both write.
        file: String,
    },
}

fn others_too(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " (and 1 more belongs to another device)".to_owned(),
        others => format!(" (and {others} more belong to other devices)"),
    }
}

/// Whether every change of the plan is one nearfar would make: known format, names that stay inside their directories,
/// values of the right kind, no file written twice. Looks at nothing but the plan.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(plan: &Plan) -> Result<(), PlanError> {
    if plan.plan_format != PLAN_FORMAT {
        return Err(PlanError::Format {
            found: plan.plan_format,
        });
    }
    if plan.changes.len() > MOST_CHANGES {
        return Err(PlanError::TooMany(plan.changes.len()));
    }
    let mut seen = HashMap::new();
    for (planned, number) in plan.changes.iter().zip(1..) {
        check_planned(planned).map_err(|reason| PlanError::Change { number, reason })?;
        let setting = Setting::of(&planned.change);
        let file = setting.path();
        if let Some(first) = seen.insert(setting, number) {
            return Err(PlanError::Twice {
                first,
                second: number,
                file,
            });
        }
    }
    Ok(())
}

/// One change by itself.
pub(crate) fn check_planned(planned: &Planned) -> Result<(), ChangeError> {
    let setting = Setting::of(&planned.change);
    setting.check()?;
    if planned
        .before
        .as_ref()
        .is_some_and(|before| before.len() > LONGEST_VALUE)
    {
        return Err(ChangeError::LongValue {
            limit: LONGEST_VALUE,
        });
    }
    let value = planned.change.value();
    setting.kind().check_value(planned, &value)
}

/// A driver's name, as part of a path.
pub(crate) fn driver(name: &str) -> Result<(), ChangeError> {
    word(name, "driver", b"_-")
}

pub(crate) fn word(text: &str, noun: &'static str, also: &[u8]) -> Result<(), ChangeError> {
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || also.contains(&b));
    let good = plain && (1..=64).contains(&text.len());
    good.then_some(()).ok_or_else(|| ChangeError::Word {
        noun,
        text: text.to_owned(),
    })
}
