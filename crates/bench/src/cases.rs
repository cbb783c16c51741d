//! The published investigations that nearfar repeats, as data: what was asked and published, and which experiment answers it.
//!
//! ```text
//! Case ─► command lines of `nearfar bench`, in guests of the lab or here ─► a stored run
//!   └─ effect, published figures, limits ─► the table and the mail that show the run
//! ```

mod fake_nodes;
mod mock;
mod offline_node;
mod preferred_node;
mod spread_interrupts;
mod tag_allocator;

use crate::registry::{Declaration, EXPERIMENTS};

/// All cases, by number, after the one of the tests.
const ALL: &[Case] = &[
    mock::CASE,
    offline_node::CASE,
    preferred_node::CASE,
    tag_allocator::CASE,
    spread_interrupts::CASE,
    fake_nodes::CASE,
];

/// The published cases, by number.
pub fn cases() -> &'static [Case] {
    &ALL[1..]
}

/// A published investigation.
pub struct Case {
    pub number: u8,
    pub title: &'static str,
    /// The subject of the mail that began the thread, its list and month, and what became of it.
    pub source: &'static str,
    /// What its author wanted to know.
    pub question: &'static str,
    /// The name of the experiment that answers it.
    pub experiment: &'static str,
    /// The page of docs/ about it.
    pub page: &'static str,
    /// The guests of the lab, as options of `lab run` without dashes; a key that is there several times is a factor.
    pub guest: &'static [(&'static str, &'static str)],
    /// A script for sh that prepares the guest, with the experiment's command as its arguments.
    pub preparation: Option<&'static str>,
    /// Words of the experiment's command line in the lab.
    pub options: &'static [&'static str],
    /// The same here.
    pub options_here: &'static [&'static str],
    /// Options that have to be given here: they name something on the machine.
    pub required_here: &'static [&'static str],
    /// Programs besides nearfar that the experiment starts.
    pub programs: &'static [&'static str],
    /// Samples of each cell in the lab.
    pub samples: u32,
    /// Minutes that it takes in the lab on a host with two CPUs.
    pub minutes: u32,
    /// What is compared with what; `None` where the experiment's own findings say it.
    pub effect: Option<Effect>,
    /// A table of published figures as the experiment reads it, with its name.
    pub published: Option<(&'static str, &'static str)>,
    /// What guests cannot show of it, in sentences.
    pub limits: &'static [&'static str],
    /// What this machine cannot, whatever it is.
    pub limits_here: &'static [&'static str],
}

/// The factor that the case is about.
pub struct Effect {
    pub factor: &'static str,
    /// The level that the others are compared with.
    pub baseline: &'static str,
    /// The published figures, in the order of the published table.
    pub figures: &'static [PublishedChange],
}

/// A row of a published table.
pub struct PublishedChange {
    /// The metric of the experiment.
    pub metric: &'static str,
    /// Levels of other factors that the row is about; empty where the published table has one row.
    pub cell: Levels,
    /// In the published unit: before and after.
    pub values: [f64; 2],
    pub unit: &'static str,
}

/// Levels of factors, by name.
type Levels = &'static [(&'static str, &'static str)];

impl PublishedChange {
    /// `values` are before and after.
    const fn new(metric: &'static str, cell: Levels, values: [f64; 2], unit: &'static str) -> Self {
        Self {
            metric,
            cell,
            values,
            unit,
        }
    }

    /// As a share of the value before: 0.13 is 13 % more.
    pub fn change(&self) -> f64 {
        self.values[1] / self.values[0] - 1.0
    }
}

impl Case {
    /// The published case of this number.
    pub fn by_number(number: u8) -> Option<&'static Case> {
        cases().iter().find(|case| case.number == number)
    }

    /// A case to test the command with, which measures nothing.
    pub fn mock() -> &'static Case {
        &mock::CASE
    }

    /// Whether the factor that the case is about is what guests differ in: this machine has one level of it.
    pub fn compares_guests(&self) -> bool {
        let factor = self.effect.as_ref().map(|it| it.factor);
        self.guest.iter().any(|(key, _)| Some(*key) == factor)
    }

    /// What its experiment declares; the registry has the experiment of every case.
    pub fn declaration(&self) -> Option<&'static Declaration> {
        let mut declarations = EXPERIMENTS.iter().map(|entry| &entry.declaration);
        declarations.find(|it| it.name == self.experiment)
    }

    /// Whether the whole run is made in one guest; otherwise each sample is taken in the guest of its cell.
    pub fn is_in_one_guest(&self) -> bool {
        let is_key_of_before = |position: usize| {
            let (key, _) = self.guest[position];
            self.guest[..position]
                .iter()
                .any(|(other, _)| *other == key)
        };
        !(0..self.guest.len()).any(is_key_of_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_an_experiment_a_page_and_guests_that_fit() {
        for (position, case) in ALL.iter().enumerate() {
            assert!(ALL[..position].iter().all(|it| it.number < case.number));
            assert!(case.declaration().is_some(), "case {}", case.number);
            let page = format!(
                "{}/../../{}",
                env!("CARGO_MANIFEST_DIR"),
                case.page.split('#').next().unwrap()
            );
            assert!(std::path::Path::new(&page).is_file(), "{page}");
            let is_prepared = case.preparation.is_some();
            let is_of_machine = case.declaration().is_some_and(|it| it.is_of_machine);
            assert!(
                case.is_in_one_guest() || !(is_prepared || is_of_machine),
                "case {}",
                case.number
            );
            assert!(!case.limits.is_empty() && case.samples > 0 && case.minutes > 0);
        }
    }

    #[test]
    fn a_published_change_is_a_share_of_the_value_before() {
        let figure = PublishedChange {
            metric: "iops",
            cell: &[],
            values: [632e3, 715e3],
            unit: "IOPS",
        };
        assert!((figure.change() - 0.131).abs() < 0.001);
    }
}
