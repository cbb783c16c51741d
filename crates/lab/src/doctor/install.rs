//! The commands that install packages on this machine.

use std::path::Path;

use crate::packages::sources::{Archive, ArchiveError};

/// How packages are installed here.
#[derive(Debug)]
pub struct Installer {
    apt: bool,
    /// The machine's Debian, or why there is none to fetch from.
    pub archive: Result<Archive, ArchiveError>,
}

impl Installer {
    /// Looks for apt and its sources.
    pub fn of_system() -> Self {
        Self {
            apt: crate::programs::find("apt-get").is_some(),
            archive: Archive::of_system(Path::new("/")),
        }
    }

    /// An installer for a described archive; for tests.
    pub fn with(archive: Result<Archive, ArchiveError>) -> Self {
        Self { apt: true, archive }
    }

    /// The command that installs packages; `None` without apt, where the packages' names may be others.
    pub fn install(&self, packages: &str) -> Option<String> {
        self.apt
            .then(|| format!("sudo apt-get install --no-install-recommends {packages}"))
    }

    /// The command that installs packages in a newer version than the release's own, from its backports, on the mirror
    /// that the machine's own sources name. `None` where that is not known.
    pub fn install_newer(&self, packages: &str) -> Option<String> {
        let archive = self.archive.as_ref().ok().filter(|_| self.apt)?;
        let suite = format!("{}-backports", archive.codename);
        let install = format!("sudo apt-get install --no-install-recommends -t {suite} {packages}");
        if archive.has_backports {
            return Some(format!("sudo apt-get update && {install}"));
        }
        let mut fields = vec!["Types: deb".to_owned()];
        fields.push(format!("URIs: {}", archive.main.uris.join(" ")));
        fields.push(format!("Suites: {suite}"));
        fields.push("Components: main".to_owned());
        fields.extend(
            archive
                .main
                .signed_by
                .as_ref()
                .map(|keys| format!("Signed-By: {keys}")),
        );
        // No field of apt's may hold a quotation mark; one that does is not put into a shell's hands.
        if fields.iter().any(|field| field.contains('\'')) {
            return None;
        }
        let lines: Vec<_> = fields.iter().map(|field| format!("'{field}'")).collect();
        Some(format!(
            "printf '%s\\n' {} | sudo tee /etc/apt/sources.list.d/nearfar-backports.sources && sudo apt-get update && {install}",
            lines.join(" ")
        ))
    }
}
