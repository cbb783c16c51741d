//! What the Debian packages and the crates of a release consist of, and what the maintainer scripts do, with programs that only
//! record how they were called. tools/check-packages installs the packages.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn repository(path: &str) -> PathBuf {
    Path::new(REPOSITORY).join(path)
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A place with the programs and directories that the scripts name, each replaced by one below it.
struct Place(tempfile::TempDir);

impl Place {
    /// `list` and `rollback` are the exit codes of `rollback --list` and `rollback --all`, `answer` is debconf's.
    fn new(list: u8, rollback: u8, answer: bool) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let record = |name: &str, rest: &str| {
            let log = place.path("log");
            let text = format!(
                "#!/bin/sh\necho {name} \"$@\" >>'{}'\n{rest}\n",
                log.display()
            );
            fs::write(place.path(name), text).unwrap();
            fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        let verbs = format!("case $2 in --list) exit {list} ;; --all) exit {rollback} ;; esac");
        record("nearfar", &verbs);
        record("deb-systemd-invoke", "");
        // Only the keeper runs.
        record(
            "systemctl",
            "case $* in *is-active*exporter*) exit 3 ;; esac",
        );
        let functions: String = ["fset", "input", "go", "get", "stop"]
            .iter()
            .map(|name| {
                let log = place.path("log");
                format!(
                    "db_{name}() {{ echo db_{name} \"$@\" >>'{}'; RET={answer}; }}\n",
                    log.display()
                )
            })
            .collect();
        fs::write(place.path("confmodule"), functions).unwrap();
        for directory in [
            "systemd",
            "var/lib/nearfar/leases",
            "etc/nearfar",
            "run/nearfar",
        ] {
            fs::create_dir_all(place.path(directory)).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs debian/nearfar.NAME with these words: its exit code, what it called, and its standard error.
    fn run(&self, name: &str, action: &str) -> (Option<i32>, Vec<String>, String) {
        let mut text = read(repository(&format!("debian/nearfar.{name}")));
        for (theirs, ours) in [
            ("/usr/share/debconf/confmodule", "confmodule"),
            ("/run/systemd/system", "systemd"),
            ("/usr/bin/nearfar", "nearfar"),
            ("/var/lib/nearfar", "var/lib/nearfar"),
            ("/etc/nearfar", "etc/nearfar"),
            ("/run/nearfar", "run/nearfar"),
        ] {
            text = text.replace(
                &format!(" {theirs}"),
                &format!(" {}", self.path(ours).display()),
            );
        }
        let output = Command::new("sh")
            .args(["-c", &text, name])
            .args(action.split(' '))
            .env("PATH", format!("{}:/usr/bin:/bin", self.0.path().display()))
            .output()
            .unwrap();
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        (
            output.status.code(),
            log.lines().map(str::to_owned).collect(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }
}

const SERVICES: [&str; 3] = [
    "systemctl --quiet is-active nearfar-exporter.service",
    "systemctl --quiet is-active nearfar-prefer.service",
    "deb-systemd-invoke stop nearfar-prefer.service",
];
const LIST: &str = "nearfar rollback --list --fail-on in-force";
const QUESTION: [&str; 4] = [
    "db_fset nearfar/rollback seen false",
    "db_input critical nearfar/rollback",
    "db_go",
    "db_get nearfar/rollback",
];

#[test]
fn a_removal_stops_the_services_then_asks_then_undoes() {
    let (code, calls, _) = Place::new(1, 0, true).run("prerm", "remove");
    let expected = [
        &SERVICES[..],
        &[LIST],
        &QUESTION,
        &["nearfar rollback --all", "db_stop"],
    ]
    .concat();
    assert_eq!((code, calls), (Some(0), owned(&expected)));
}

#[test]
fn a_removal_asks_nothing_without_changes_and_undoes_nothing_without_consent() {
    let (code, calls, _) = Place::new(0, 0, true).run("prerm", "remove");
    let nothing = [&SERVICES[..], &[LIST, "db_stop"]].concat();
    assert_eq!((code, calls), (Some(0), owned(&nothing)));
    let (code, calls, _) = Place::new(1, 0, false).run("prerm", "remove");
    let declined = [&SERVICES[..], &[LIST], &QUESTION, &["db_stop"]].concat();
    assert_eq!((code, calls), (Some(0), owned(&declined)));
}

#[test]
fn a_removal_is_refused_where_not_everything_was_undone_and_the_services_run_again() {
    let (code, calls, _) = Place::new(1, 3, true).run("prerm", "remove");
    let expected = [
        &SERVICES[..],
        &[LIST],
        &QUESTION,
        &[
            "nearfar rollback --all",
            "db_fset nearfar/kept seen false",
            "db_input critical nearfar/kept",
            "db_go",
            "db_stop",
            "systemctl start nearfar-prefer.service",
        ],
    ]
    .concat();
    assert_eq!((code, calls), (Some(1), owned(&expected)));
}

#[test]
fn an_upgrade_restarts_what_runs_and_an_installation_starts_nothing() {
    let (code, calls, _) = Place::new(1, 0, true).run("postinst", "configure 0.1.0");
    let expected = [
        "systemctl --system daemon-reload",
        "deb-systemd-invoke try-restart nearfar-exporter.service",
        "deb-systemd-invoke try-restart nearfar-prefer.service",
    ];
    assert_eq!((code, calls), (Some(0), owned(&expected)));
    let (code, calls, _) = Place::new(1, 0, true).run("postinst", "configure");
    assert_eq!((code, calls), (Some(0), Vec::new()));
    // debhelper would stop the services before an upgrade and not start them again.
    assert!(read(repository("debian/rules")).contains("--no-stop-on-upgrade"));
}

#[test]
fn a_command_that_does_not_run_does_not_keep_its_package() {
    let (code, calls, message) = Place::new(127, 0, true).run("prerm", "remove");
    let expected = [&SERVICES[..], &[LIST, "db_stop"]].concat();
    assert_eq!((code, calls), (Some(0), owned(&expected)));
    assert!(message.contains("ended with 127"), "{message}");
}

#[test]
fn a_lease_that_is_left_is_named() {
    let place = Place::new(0, 0, true);
    fs::write(place.path("var/lib/nearfar/leases/lease-7-0.journal"), "").unwrap();
    let (code, _, message) = place.run("prerm", "remove");
    assert_eq!(code, Some(0));
    assert!(message.contains("lease-7-0.journal"), "{message}");
}

#[test]
fn an_upgrade_asks_and_undoes_nothing_and_only_a_purge_removes_state() {
    let place = Place::new(1, 0, true);
    for (script, action) in [
        ("prerm", "upgrade"),
        ("prerm", "failed-upgrade"),
        ("postrm", "remove"),
        ("postrm", "upgrade"),
        ("postrm", "abort-install"),
    ] {
        let (code, calls, _) = place.run(script, action);
        assert_eq!((code, calls), (Some(0), Vec::new()), "{script} {action}");
    }
    let state = ["var/lib/nearfar", "etc/nearfar", "run/nearfar"];
    assert!(state.iter().all(|path| place.path(path).is_dir()));
    place.run("postrm", "purge");
    assert!(!state.iter().any(|path| place.path(path).exists()));
    assert!(place.path("var/lib").is_dir());
}

fn owned(calls: &[&str]) -> Vec<String> {
    calls.iter().map(|&call| call.to_owned()).collect()
}

#[test]
fn every_unit_and_every_file_is_in_a_package() {
    let (build, gathered) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nearfar"), build.path().join("nearfar"))
        .unwrap();
    fs::write(build.path().join("libnearfar_lab_delay.so"), "plugin").unwrap();
    let output = Command::new("tools/install-files")
        .args(["gather", "/usr"])
        .arg(gathered.path())
        .current_dir(REPOSITORY)
        .env("NEARFAR_BUILD", build.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");

    let lists =
        ["nearfar", "nearfar-lab"].map(|name| read(repository(&format!("debian/{name}.install"))));
    let packaged: Vec<&str> = lists
        .iter()
        .flat_map(|list| list.lines())
        .filter_map(|line| line.split_whitespace().next()?.strip_prefix("debian/tmp/"))
        .collect();
    let files = files(gathered.path());
    for file in &files {
        let owners = packaged
            .iter()
            .filter(|packaged| file.starts_with(packaged))
            .count();
        assert_eq!(owners, 1, "packages with {}", file.display());
    }
    let rules = read(repository("debian/rules"));
    for unit in fs::read_dir(repository("tools/systemd")).unwrap() {
        let name = unit.unwrap().file_name().into_string().unwrap();
        assert!(
            files.contains(&Path::new("lib/systemd/system").join(&name)),
            "{name} is not installed"
        );
        let has = |text: &str| {
            text.split_whitespace()
                .any(|word| word.trim_matches('"').trim_start_matches("services=\"") == name)
        };
        assert!(has(&rules), "{name} is not in debian/rules");
        assert!(
            has(&read(repository("debian/nearfar.prerm"))),
            "{name} is not in debian/nearfar.prerm"
        );
    }
}

/// Files below a directory.
fn files(root: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut open) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => open.push(entry.path()),
                false => {
                    found.insert(entry.path().strip_prefix(root).unwrap().to_owned());
                }
            }
        }
    }
    found
}

/// Crates that are published, by their folders.
fn published() -> Vec<PathBuf> {
    let crates = fs::read_dir(repository("crates")).unwrap();
    let folders = crates.map(|entry| entry.unwrap().path());
    folders
        .filter(|folder| !read(folder.join("Cargo.toml")).contains("publish = false"))
        .collect()
}

#[test]
fn published_crates_have_what_a_registry_shows() {
    let published = published();
    assert!(published.len() >= 4, "{published:?}");
    for folder in published {
        let manifest = read(folder.join("Cargo.toml"));
        for key in [
            "description =",
            "license.workspace",
            "repository.workspace",
            "readme =",
            "keywords =",
            "categories =",
        ] {
            assert!(manifest.contains(key), "{}: no {key}", folder.display());
        }
        assert!(!read(folder.join("README.md")).is_empty());
        assert!(!read(folder.join("LICENSE-MIT")).is_empty());
        assert!(folder.join("examples").is_dir(), "{}", folder.display());
    }
}

/// `README.md` shows the code of an example that it names.
#[test]
fn the_code_of_a_readme_is_that_of_its_example() {
    let mut shown = 0;
    for folder in published() {
        let page = read(folder.join("README.md"));
        let Some(name) = page.split("This is `examples/").nth(1) else {
            continue;
        };
        let name = name.split('`').next().unwrap();
        let example = read(folder.join("examples").join(name));
        let (_, code) = example.split_once("\n\n").unwrap();
        assert!(
            page.contains(&format!("```rust\n{code}```")),
            "{}: the code differs from examples/{name}",
            folder.display()
        );
        shown += 1;
    }
    assert_eq!(shown, 3);
}
