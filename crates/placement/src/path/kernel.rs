//! What a kernel takes for the distance to a controller on no node (`numa_node` -1) under the policy `numa`.
//!
//! `__nvme_find_path()` asked for `node_distance(node, -1)`: an entry outside of the table, so any value. Commit
//! 863fe60ed27f ("nvme: find numa distance only if controller has valid numa id") takes 10 instead, the distance of a
//! node from itself. It is in Linux 6.9 and in the stable releases of [`FIXED_IN`].

use nearfar_machine::{Known, Origin};

/// The first release with the fix, by stable series.
const FIXED_IN: [(Series, u32); 6] = [
    ((5, 4), 278),
    ((5, 10), 219),
    ((5, 15), 161),
    ((6, 1), 93),
    ((6, 6), 33),
    ((6, 8), 12),
];
/// The first series whose first release has it.
const FIXED_SINCE: Series = (6, 9);
/// Since when "deleting (no IO)" is a state of its own and "deleting" still takes I/O (commit ecca390e8056).
const DELETING_USABLE_SINCE: Series = (5, 9);

/// Major and minor number.
type Series = (u32, u32);

/// What the policy `numa` takes for the distance to a controller without a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoNode {
    /// 10: as near as a controller of the CPU's own node.
    Local {
        /// "Linux 6.12.1".
        kernel: String,
    },
    /// An entry outside of the table of distances.
    OutsideTable {
        /// "Linux 6.1.90".
        kernel: String,
        /// The first release of its series that has the fix, or the first of all: "6.1.93".
        fixed_in: String,
    },
    /// One of these; it depends on a kernel of which too little is known.
    Unknown { reason: String },
}

impl NoNode {
    /// By the kernel that the machine ran.
    pub fn of(origin: &Origin) -> Self {
        let release = match &origin.kernel {
            Known::Yes(release) => release,
            Known::No { unknown_reason } => {
                return Self::Unknown {
                    reason: format!("the kernel's release is unknown: {unknown_reason}"),
                };
            }
        };
        let Some(version) = Version::parse(release) else {
            return Self::Unknown {
                reason: format!("{release:?} is not a release of Linux"),
            };
        };
        let base = origin.kernel_base.as_deref().and_then(Version::parse);
        let kernel = match &origin.kernel_base {
            Some(base) => format!("Linux {release} (from {base})"),
            None => format!("Linux {release}"),
        };
        if version.series >= FIXED_SINCE || base.is_some_and(Version::is_fixed) {
            return Self::Local { kernel };
        }
        match base.or_else(|| version.is_from_kernel_org(release).then_some(version)) {
            Some(exact) if exact.is_fixed() => Self::Local { kernel },
            Some(exact) => Self::OutsideTable {
                kernel,
                fixed_in: exact.fixed_in(),
            },
            None => Self::Unknown {
                reason: format!("{kernel} is a distribution's: it may have the fix"),
            },
        }
    }

    /// The rule, with what decides it, as the end of a sentence about a controller without a node.
    pub fn rule(&self) -> String {
        match self {
            Self::Local { kernel } => format!("{kernel} counts it as local (10)"),
            Self::OutsideTable { kernel, fixed_in } => {
                format!("{kernel} reads any value as its distance (fixed in {fixed_in}: local, 10)")
            }
            Self::Unknown { reason } => {
                format!(
                    "kernels with the fix (Linux 6.9, 6.1.93 and other stable releases) count it as local (10), others read any value; {reason}"
                )
            }
        }
    }
}

/// Whether `__nvme_find_path()` still uses a controller in the state "deleting"; true where the kernel is unknown.
pub(crate) fn deleting_is_usable(origin: &Origin) -> bool {
    let version = origin
        .kernel
        .get()
        .and_then(|release| Version::parse(release));
    version.is_none_or(|version| version.series >= DELETING_USABLE_SINCE)
}

/// The numbers at the start of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version {
    pub(crate) series: Series,
    patch: u32,
}

impl Version {
    /// `6.1.90`, `6.1.0-21-amd64`, `6.9-rc1`, `5.14.0-503.el9.x86_64`.
    pub(crate) fn parse(release: &str) -> Option<Self> {
        let numbers = release
            .split(|c: char| !c.is_ascii_digit() && c != '.')
            .next()?;
        let mut numbers = numbers.split('.').map(str::parse::<u32>);
        let series = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let patch = numbers.next().and_then(Result::ok).unwrap_or(0);
        Some(Self { series, patch })
    }

    fn is_fixed(self) -> bool {
        self.series >= FIXED_SINCE
            || FIXED_IN
                .iter()
                .any(|&(series, patch)| series == self.series && patch <= self.patch)
    }

    fn fixed_in(self) -> String {
        let stable = FIXED_IN.iter().find(|&&(series, _)| series == self.series);
        let (major, minor) = FIXED_SINCE;
        stable.map_or_else(
            || format!("{major}.{minor}"),
            |((major, minor), patch)| format!("{major}.{minor}.{patch}"),
        )
    }

    /// Whether the numbers are those of kernel.org: a distribution's kernel that stays on one number
    /// (`5.14.0-503.el9`, `6.1.0-21-amd64`) or on a series that kernel.org gave up (`5.14.21-150500.55-default`) has fixes
    /// that its number does not tell.
    fn is_from_kernel_org(self, release: &str) -> bool {
        let suffix = release.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let stable = FIXED_IN.iter().any(|&(series, _)| series == self.series);
        suffix.is_empty() || suffix.starts_with("-rc") || (stable && self.patch > 0)
    }
}

#[cfg(test)]
mod tests {
    use nearfar_machine::SourceKind;

    use super::*;

    fn kind(release: &str, base: Option<&str>) -> &'static str {
        let mut origin = Origin::new(SourceKind::Tree, "test");
        origin.kernel = Known::Yes(release.to_owned());
        origin.kernel_base = base.map(str::to_owned);
        match NoNode::of(&origin) {
            NoNode::Local { .. } => "local",
            NoNode::OutsideTable { .. } => "outside",
            NoNode::Unknown { .. } => "unknown",
        }
    }

    #[test]
    fn the_fix_is_in_6_9_and_in_the_stable_releases() {
        for fixed in [
            "6.9.0",
            "6.9",
            "6.10.3-arch1-1",
            "6.12.0-generated",
            "7.0.1",
            "6.12.95+deb13-amd64",
        ] {
            assert_eq!(kind(fixed, None), "local", "{fixed}");
        }
        for ((major, minor), patch) in FIXED_IN {
            assert_eq!(kind(&format!("{major}.{minor}.{patch}"), None), "local");
            assert_eq!(
                kind(&format!("{major}.{minor}.{}", patch - 1), None),
                "outside"
            );
        }
        for old in [
            "6.7.12",
            "5.8",
            "4.19.316",
            "6.8-rc3",
            "6.8.10-300.fc40.x86_64",
            "3.10.0",
        ] {
            assert_eq!(kind(old, None), "outside", "{old}");
        }
    }

    #[test]
    fn a_distribution_s_number_tells_nothing_without_its_base() {
        for vendor in [
            "6.1.0-21-amd64",
            "5.14.0-503.el9.x86_64",
            "4.18.0-553.el8",
            "5.14.21-150500.55-default",
            "6.5.0-9-generic",
        ] {
            assert_eq!(kind(vendor, None), "unknown", "{vendor}");
        }
        assert_eq!(kind("6.1.0-21-amd64", Some("6.1.90")), "outside");
        assert_eq!(kind("6.1.0-22-amd64", Some("6.1.94")), "local");
        assert_eq!(kind("5.15.0-112-generic", Some("5.15.152")), "outside");
        for odd in ["", "six", "6", "6.x", "99999999999.1"] {
            assert_eq!(kind(odd, None), "unknown", "{odd}");
        }
    }
}
