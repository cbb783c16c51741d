//! Cells that differ in the policy only, named as the published table names its rows.
//!
//! ```text
//! distance near, depth 248, 255 tags  ──► near-low         distance near, depth 512, 255 tags  ──► near-high
//! distance alone, one depth           ──► alone            completion varies as well           ──► near-low, any
//! ```

use std::collections::BTreeSet;

use nearfar_runs::{Cell, Detail, Level};
use serde::{Deserialize, Serialize};

pub const POLICY: &str = "policy";
pub const DISTANCE: &str = "distance";
pub const DEPTH: &str = "depth";
/// The level of [`DISTANCE`] with one thread and tags to spare.
pub const ALONE: &str = "alone";

/// What [`Scenario::published_name`] can be.
pub(super) const PUBLISHED_NAMES: [&str; 5] =
    ["near-low", "near-high", "far-low", "far-high", ALONE];

/// The number of tags of the published runs, for runs whose parameters do not say it.
const PUBLISHED_TAGS: i64 = 255;

/// Cells that differ in the policy only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// Unique in its run.
    pub name: String,
    /// Distance, and whether the depth is above the number of tags: `near-low`, `far-high`; `alone` without a depth.
    pub published_name: String,
    /// The levels of all factors but the policy.
    pub levels: Cell,
}

impl Scenario {
    pub fn is_alone(&self) -> bool {
        self.levels.text(DISTANCE) == ALONE
    }

    /// The cell of a policy.
    pub fn cell(&self, policy: &str) -> Cell {
        self.levels.clone().with(POLICY, policy)
    }

    /// The levels of the factors that published tables do not have.
    pub(super) fn conditions(&self) -> Cell {
        self.levels
            .only(|factor| factor != DISTANCE && factor != DEPTH)
    }
}

/// The scenarios of a run, in the order of its plan.
pub fn scenarios(detail: &Detail) -> Vec<Scenario> {
    let tags = detail.parameters.get("tags");
    let tags = tags.and_then(|it| it.as_i64().or_else(|| it.as_str()?.parse().ok()));
    let tags = tags.unwrap_or(PUBLISHED_TAGS);
    let mut all: Vec<Cell> = Vec::new();
    for cell in &detail.plan {
        let levels = cell.only(|factor| factor != POLICY);
        if !all.contains(&levels) {
            all.push(levels);
        }
    }
    let name = |levels: &Cell| Scenario {
        name: name(levels, &all, tags),
        published_name: published_name(levels, tags),
        levels: levels.clone(),
    };
    all.iter().map(name).collect()
}

/// The policies of a run, in the order of its plan.
pub fn policies(detail: &Detail) -> Vec<String> {
    let mut all = Vec::new();
    for cell in &detail.plan {
        let policy = cell.text(POLICY);
        if !all.contains(&policy) {
            all.push(policy);
        }
    }
    all
}

fn published_name(levels: &Cell, tags: i64) -> String {
    let distance = levels.text(DISTANCE);
    match side(levels, tags) {
        Some(side) if distance != ALONE => format!("{distance}-{side}"),
        _ => distance,
    }
}

/// Whether the depth is above the number of tags; `None` without a depth.
fn side(levels: &Cell, tags: i64) -> Option<&'static str> {
    match levels.level(DEPTH)? {
        Level::Number(depth) if *depth > tags => Some("high"),
        Level::Number(_) => Some("low"),
        _ => None,
    }
}

/// The published name, with what tells depths apart where it would name two, and the levels of other factors that vary.
fn name(levels: &Cell, all: &[Cell], tags: i64) -> String {
    let published = published_name(levels, tags);
    let with_this_name = all
        .iter()
        .filter(|it| published_name(it, tags) == published);
    let depths: BTreeSet<_> = with_this_name
        .map(|it| (it.text(DEPTH), side(it, tags)))
        .collect();
    let sides: BTreeSet<_> = depths.iter().map(|(_, side)| side).collect();
    let distance = levels.text(DISTANCE);
    let mut name = match side(levels, tags) {
        _ if depths.len() < 2 => published,
        Some(side) if sides.len() == depths.len() => format!("{distance}-{side}"),
        _ => format!("{distance}-{}", levels.text(DEPTH)),
    };
    for (factor, level) in levels.levels() {
        let varies = || all.iter().any(|it| it.level(factor) != Some(level));
        if factor != DISTANCE && factor != DEPTH && varies() {
            name += &format!(", {level}");
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::made_up::detail;

    fn names(plan: &[Cell]) -> Vec<String> {
        let scenarios = scenarios(&detail(plan.to_vec()));
        scenarios.into_iter().map(|it| it.name).collect()
    }

    fn cell(distance: &str, depth: i64, completion: &str) -> Cell {
        let cell = Cell::new().with(POLICY, "stock").with(DISTANCE, distance);
        cell.with(DEPTH, depth).with("completion", completion)
    }

    #[test]
    fn scenarios_have_the_published_names() {
        let plan = [("near", 248), ("near", 512), ("far", 248), ("alone", 248)]
            .map(|(distance, depth)| cell(distance, depth, "any"));
        assert_eq!(names(&plan), ["near-low", "near-high", "far-low", "alone"]);
        let plan = [cell("alone", 248, "any"), cell("alone", 512, "any")];
        assert_eq!(names(&plan), ["alone-low", "alone-high"]);
    }

    #[test]
    fn what_else_varies_is_in_the_name() {
        let plan = [
            cell("near", 248, "any"),
            cell("near", 248, "device"),
            cell("alone", 248, "any"),
        ];
        assert_eq!(
            names(&plan),
            ["near-low, any", "near-low, device", "alone, any"]
        );
        let plan = [cell("near", 128, "any"), cell("near", 248, "any")];
        assert_eq!(names(&plan), ["near-128", "near-248"]);
    }
}
