//! Whose the content of a file is, for undoing a change: that of before, that of the change, or of another program.

use std::path::Path;

use crate::cpuset;
use crate::kind::Setting;
use crate::system::System;

/// What a file holds, seen from a change to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// What was there before.
    Old,
    /// What was written.
    Ours,
    /// Neither.
    Foreign,
}

/// A file that was changed, and the setting that it is of, where that is one.
#[derive(Clone, Copy)]
pub(crate) struct Changed<'a> {
    pub(crate) system: &'a dyn System,
    pub(crate) path: &'a Path,
    pub(crate) setting: Option<&'a Setting>,
}

impl Changed<'_> {
    /// Whose this content is, where the old one and all that was written are these.
    pub(crate) fn found<'t>(
        self,
        now: &str,
        old: &str,
        ours: impl IntoIterator<Item = &'t str>,
    ) -> Found {
        match self.shows(old, now) {
            true => Found::Old,
            false if self.is_one_of(ours, now) => Found::Ours,
            false => Found::Foreign,
        }
    }

    /// Whether the file can say this after one of these was written.
    pub(crate) fn is_one_of<'t>(self, ours: impl IntoIterator<Item = &'t str>, now: &str) -> bool {
        ours.into_iter().any(|it| self.shows(it, now))
    }

    /// Whether the file can say this after that was written: the same, or all instead of an empty set, which is the same to the tasks of
    /// a control group.
    pub(crate) fn shows(self, written: &str, now: &str) -> bool {
        let instead = || cpuset::instead_of_empty(self.system, self.path.to_str()?, written);
        self.is_same(written, now) || instead().is_some_and(|it| self.is_same(&it, now))
    }

    fn is_same(self, one: &str, other: &str) -> bool {
        one.trim() == other.trim() || self.setting.is_some_and(|it| it.same(one, other))
    }
}
