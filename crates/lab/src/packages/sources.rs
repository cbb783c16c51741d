//! Where this machine's own apt gets its packages: both forms of its sources (sources.list(5)).
//!
//! ```text
//! deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] http://mirror/debian bookworm main    sources.list, *.list
//!
//! Types: deb                                                                                 *.sources
//! URIs: http://mirror/debian
//! Suites: bookworm bookworm-updates
//! Components: main
//! Signed-By: /usr/share/keyrings/k.gpg
//! ```
//!
//! From these the [`Archive`] of the machine's release is picked out: the mirror it uses and the keys it trusts.
//! Nothing about mirrors is known otherwise. Options that would lower apt's guard (`trusted=yes`, `allow-insecure=yes`)
//! are not taken over.

use std::fs;
use std::path::{Path, PathBuf};

use crate::packages::control::{self, Paragraph};

/// A source of binary packages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The mirrors' addresses.
    pub uris: Vec<String>,
    /// The suites: `bookworm`, `bookworm-security`.
    pub suites: Vec<String>,
    /// Which keys sign it: paths, fingerprints, or a key; `None` for the keys in apt's own keyring.
    pub signed_by: Option<String>,
    /// `Check-Valid-Until` as it is written: mirrors that keep an old day's packages need `no`.
    pub check_valid_until: Option<String>,
}

/// Reads a file in the one-line form. Lines that are no source are passed over.
pub fn one_line(text: &str) -> Vec<Source> {
    text.lines().filter_map(source_in_line).collect()
}

fn source_in_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let rest = line.strip_prefix("deb")?;
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let option = |wanted: &str| {
        let pairs = options.split_whitespace();
        let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(name, _)| name.eq_ignore_ascii_case(wanted))?;
        Some(value.to_owned())
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    let (uri, suite) = (words.next()?, words.next()?);
    is_fetchable(&uri).then(|| Source {
        uris: vec![uri],
        suites: vec![suite],
        signed_by: option("signed-by"),
        check_valid_until: option("check-valid-until"),
    })
}

/// Reads a file in the form of paragraphs.
pub fn deb822(text: &str) -> Vec<Source> {
    let paragraphs = control::paragraphs(text);
    paragraphs.iter().filter_map(source_in_paragraph).collect()
}

fn source_in_paragraph(paragraph: &Paragraph) -> Option<Source> {
    let disabled = ["no", "false", "0", "off", "without", "disable"];
    let is_disabled = |value: &str| disabled.contains(&value.to_ascii_lowercase().as_str());
    let enabled = !paragraph.get("Enabled").is_some_and(is_disabled);
    let binary = paragraph.words("Types").iter().any(|kind| kind == "deb");
    let mut uris = paragraph.words("URIs");
    uris.retain(|uri| is_fetchable(uri));
    let field = |name: &str| {
        let value = paragraph.get(name).filter(|value| !value.is_empty());
        value.map(str::to_owned)
    };
    (enabled && binary && !uris.is_empty()).then(|| Source {
        uris,
        suites: paragraph.words("Suites"),
        signed_by: field("Signed-By"),
        check_valid_until: field("Check-Valid-Until"),
    })
}

/// A disc has to be inserted by a person.
fn is_fetchable(uri: &str) -> bool {
    uri.contains(":/") && !uri.starts_with("cdrom:")
}

/// What this machine's distribution offers, and how it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Archive {
    /// `Debian GNU/Linux 12 (bookworm)`.
    pub name: String,
    /// `bookworm`.
    pub codename: String,
    /// Its mirror.
    pub main: Source,
    /// The mirror of its security suite, if the machine uses one.
    pub security: Option<Source>,
    /// Whether the machine's own apt has the release's backports.
    pub has_backports: bool,
}

impl Archive {
    /// Reads the sources of the system below a folder (`/`).
    ///
    /// # Errors
    /// When this is not a Debian with an archive.
    pub fn of_system(root: &Path) -> Result<Self, String> {
        let release = fs::read_to_string(root.join("etc/os-release"))
            .or_else(|_| fs::read_to_string(root.join("usr/lib/os-release")))
            .map_err(|error| format!("/etc/os-release: {error}"))?;
        let field = |name| os_release_field(&release, name);
        let name = field("PRETTY_NAME").unwrap_or_else(|| "an unknown system".to_owned());
        if field("ID").as_deref() != Some("debian") {
            return Err(format!(
                "packages are fetched on Debian only, and this is {name}"
            ));
        }
        let codename = field("VERSION_CODENAME");
        let codename =
            codename.ok_or_else(|| format!("/etc/os-release of {name} has no VERSION_CODENAME"))?;
        let sources = sources_of_system(root);
        let of_suites = |wanted: &[&str]| {
            let is_wanted = |suite: &String| wanted.contains(&suite.as_str());
            let mut sources = sources.iter();
            let found = sources.find(|source| source.suites.iter().any(is_wanted));
            found.cloned()
        };
        let main = of_suites(&[&codename]).or_else(|| of_suites(&ALIASES));
        let main = main.ok_or_else(|| {
            format!(
                "no source of {codename} in /etc/apt/sources.list or /etc/apt/sources.list.d (cdrom: does not count)"
            )
        })?;
        let aliases = ALIASES.map(|alias| format!("{alias}-security"));
        let security = of_suites(&[&format!("{codename}-security")])
            .or_else(|| of_suites(&aliases.each_ref().map(String::as_str)));
        let has_backports = of_suites(&[&format!("{codename}-backports")]).is_some();
        Ok(Self {
            name,
            codename,
            main,
            security,
            has_backports,
        })
    }

    /// A `.sources` file with all suites of a release for one architecture, by Debian's name for it.
    pub fn sources_file(&self, codename: &str, architecture: &str) -> String {
        let of_main = ["", "-updates", "-backports"]
            .map(|suffix| format!("{codename}{suffix}"))
            .join(" ");
        let main = paragraph(&self.main, &of_main, architecture);
        let of_security = format!("{codename}-security");
        let security = self.security.as_ref();
        let security = security.map(|source| paragraph(source, &of_security, architecture));
        format!("{main}{}", security.unwrap_or_default())
    }
}

/// Names of suites that move from release to release.
const ALIASES: [&str; 4] = ["stable", "oldstable", "oldoldstable", "testing"];

fn paragraph(source: &Source, suites: &str, architecture: &str) -> String {
    let uris = source.uris.join(" ");
    let optional = |name: &str, value: &Option<String>| match value {
        Some(value) => format!("{name}: {value}\n"),
        None => String::new(),
    };
    let checks = optional("Check-Valid-Until", &source.check_valid_until);
    // Only the packages, not their descriptions in other languages or the software centre's pictures.
    format!(
        "Types: deb\nURIs: {uris}\nSuites: {suites}\nComponents: main\nArchitectures: {architecture}\nTargets: Packages\n\
         Languages: none\n{checks}{}\n",
        optional("Signed-By", &source.signed_by)
    )
}

fn os_release_field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.trim().trim_matches(['"', '\'']).to_owned())
}

/// All sources, in apt's order: the file, then the folder's files by name.
fn sources_of_system(root: &Path) -> Vec<Source> {
    let apt = root.join("etc/apt");
    let mut files: Vec<PathBuf> = vec![apt.join("sources.list")];
    let folder = fs::read_dir(apt.join("sources.list.d"));
    files.extend(
        folder
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path()),
    );
    files[1..].sort();
    let sources_in = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap_or_default();
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => one_line(&text),
            Some("sources") => deb822(&text),
            _ => Vec::new(),
        }
    };
    files.iter().flat_map(sources_in).collect()
}
