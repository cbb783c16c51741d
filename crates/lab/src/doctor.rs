//! What the lab finds on this machine, what it does without, and the command that brings each missing part.
//!
//! ```text
//! programs ─ QEMU a guest architecture, KVM, delay plugin, busybox, depmod, emulators of foreign programs
//! files ──── kernels in the cache, with 9p for the host's files
//! machine ── CPUs, memory, the distribution that packages come from
//! ```

mod install;
mod parts;

use serde::Serialize;

use crate::cache::Cache;

pub use install::Installer;

/// How a part is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// The lab works, with the consequence named.
    Degraded,
    /// What needs it does not work.
    Missing,
}

/// A part of the lab.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Item {
    /// Its name: "QEMU for arm64 guests".
    pub what: String,
    /// How it is.
    pub state: State,
    /// What was seen: a version, a path, a refusal.
    pub detail: String,
    /// What does not work, or works worse; nothing for a part that is as it should be.
    pub consequence: Option<String>,
    /// A shell command that fixes it; nothing where none is known.
    pub command: Option<String>,
}

impl Item {
    fn ok(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            state: State::Ok,
            detail: detail.into(),
            consequence: None,
            command: None,
        }
    }

    fn degraded(
        what: impl Into<String>,
        detail: impl Into<String>,
        consequence: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Degraded,
            consequence: Some(consequence.into()),
            ..Self::ok(what, detail)
        }
    }

    fn missing(
        what: impl Into<String>,
        detail: impl Into<String>,
        consequence: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Missing,
            ..Self::degraded(what, detail, consequence)
        }
    }

    fn mended_by(mut self, command: Option<String>) -> Self {
        self.command = command;
        self
    }
}

/// All parts, the most important first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Doctor {
    /// The parts.
    pub items: Vec<Item>,
}

impl Doctor {
    /// How many parts are in a state.
    pub fn count(&self, state: State) -> usize {
        self.items.iter().filter(|item| item.state == state).count()
    }
}

/// Looks at everything that the lab uses. Changes nothing but the kept answer of the KVM probe, which takes up to 20 s
/// the first time after a boot of the host; asks no network.
pub fn examine(cache: &Cache) -> Doctor {
    let installer = Installer::of_system();
    let mut items = parts::qemus(&installer);
    items.push(parts::kvm(cache));
    items.push(parts::delay_plugin());
    items.extend(parts::kernels(cache));
    items.push(parts::busybox(cache, &installer));
    items.extend(parts::emulators(cache));
    items.push(parts::depmod(&installer));
    items.push(parts::host());
    items.push(parts::packages(&installer));
    items.extend(parts::programs(&installer));
    Doctor { items }
}
