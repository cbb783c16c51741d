//! The test executables that cargo builds, and the tests in each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// A program that libtest's `main` is in.
#[derive(Debug, Clone)]
pub struct Executable {
    /// `PACKAGE/TARGET`: `nearfar/trace`, or `nearfar-lab/lib` for the unit tests of a library.
    pub label: String,
    pub path: PathBuf,
    /// The folder of its manifest, in which cargo runs it.
    pub directory: PathBuf,
    /// What cargo sets, as far as a test may read it at run time.
    pub environment: BTreeMap<String, String>,
}

/// What `cargo metadata` says of the workspace.
#[derive(Debug, Deserialize)]
pub struct Workspace {
    pub workspace_root: PathBuf,
    pub target_directory: PathBuf,
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    manifest_path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// The cargo that started this program, or the one on the PATH.
pub fn cargo() -> Command {
    Command::new(cargo_path())
}

fn cargo_path() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

impl Workspace {
    /// Asks cargo about the workspace of the current folder.
    pub fn find() -> anyhow::Result<Self> {
        let arguments = ["metadata", "--no-deps", "--format-version", "1", "--locked"];
        let output = cargo()
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start cargo")?;
        if !output.status.success() {
            bail!("cargo metadata: {}", output.status);
        }
        serde_json::from_slice(&output.stdout).context("cannot read the answer of cargo metadata")
    }

    /// Builds the tests of these packages, or of all if there are none, with those of their examples that tests start. Returns the
    /// test executables.
    pub fn build(
        &self,
        packages: &[String],
        examples: &BTreeMap<String, Vec<String>>,
    ) -> anyhow::Result<Vec<Executable>> {
        let mut command = cargo();
        command.args(["build", "--locked", "--tests"]);
        command.args(["--message-format", "json-render-diagnostics"]);
        let is_selected = |package: &String| packages.is_empty() || packages.contains(package);
        let selected = examples.iter().filter(|(package, _)| is_selected(package));
        for example in selected.flat_map(|(_, names)| names) {
            command.args(["--example", example]);
        }
        command.args(selection(packages)).stderr(Stdio::inherit());
        let output = command.output().context("cannot start cargo")?;
        if !output.status.success() {
            bail!("cargo build --tests: {}", output.status);
        }
        let lines = String::from_utf8(output.stdout).context("cargo build --tests")?;
        let messages = lines.lines().map(|line| {
            let message = serde_json::from_str(line)
                .with_context(|| format!("cannot read cargo's message {line}"))?;
            self.executable(message)
        });
        messages.filter_map(Result::transpose).collect()
    }

    fn executable(&self, message: Message) -> anyhow::Result<Option<Executable>> {
        let Message {
            reason,
            package_id: Some(id),
            target: Some(target),
            profile,
            executable: Some(path),
        } = message
        else {
            return Ok(None);
        };
        if reason != "compiler-artifact" || !profile.is_some_and(|profile| profile.test) {
            return Ok(None);
        }
        let package = self.packages.iter().find(|package| package.id == id);
        let package =
            package.with_context(|| format!("cargo built {id}, which is not of the workspace"))?;
        let target = match target.kind.first().map(String::as_str) {
            Some("test") => target.name,
            Some(kind @ ("bin" | "example" | "bench")) => format!("{kind}-{}", target.name),
            _ => "lib".to_owned(),
        };
        let directory = package.manifest_path.parent();
        let directory = directory.unwrap_or(Path::new("/"));
        Ok(Some(Executable {
            label: format!("{}/{target}", package.name),
            path,
            directory: directory.to_owned(),
            environment: self.environment(package, directory),
        }))
    }

    fn environment(&self, package: &Package, directory: &Path) -> BTreeMap<String, String> {
        let text = |path: &Path| path.display().to_string();
        let pairs = [
            ("CARGO", cargo_path()),
            ("CARGO_MANIFEST_DIR", text(directory)),
            ("CARGO_MANIFEST_PATH", text(&package.manifest_path)),
            ("CARGO_PKG_NAME", package.name.clone()),
            ("CARGO_PKG_VERSION", package.version.clone()),
            // Without it, insta starts cargo in each process to find this folder.
            ("INSTA_WORKSPACE_ROOT", text(&self.workspace_root)),
            // The examples were built together with the tests: a test that runs one does not have to build it.
            ("NEARFAR_EXAMPLES_ARE_BUILT", "1".to_owned()),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).into()
    }
}

/// The options of cargo that select packages.
pub fn selection(packages: &[String]) -> Vec<String> {
    match packages {
        [] => vec!["--workspace".to_owned()],
        packages => packages
            .iter()
            .flat_map(|package| ["--package".to_owned(), package.clone()])
            .collect(),
    }
}

/// The names in what libtest prints for `--list --format terse`.
pub fn names(list: &str) -> Vec<&str> {
    let names = list.lines().map(|line| line.strip_suffix(": test"));
    names.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_are_taken_from_a_list() {
        assert_eq!(
            names("a::b: test\nc: benchmark\nd: test\n\n"),
            ["a::b", "d"]
        );
    }

    #[test]
    fn an_executable_is_named_by_package_and_target() {
        let package = Package {
            id: "p".into(),
            name: "nearfar".into(),
            version: "1".into(),
            manifest_path: "/w/c/Cargo.toml".into(),
        };
        let workspace = Workspace {
            workspace_root: "/w".into(),
            target_directory: "/w/target".into(),
            packages: vec![package],
        };
        let of = |kind: &str, test: bool| {
            let text = format!(
                r#"{{"reason":"compiler-artifact","package_id":"p","target":{{"kind":["{kind}"],"name":"x"}},
                "profile":{{"test":{test}}},"executable":"/x"}}"#
            );
            let executable = workspace
                .executable(serde_json::from_str(&text).unwrap())
                .unwrap();
            executable.map(|executable| (executable.label, executable.directory))
        };
        assert_eq!(of("test", true), Some(("nearfar/x".into(), "/w/c".into())));
        assert_eq!(
            of("cdylib", true),
            Some(("nearfar/lib".into(), "/w/c".into()))
        );
        assert_eq!(
            of("bin", true),
            Some(("nearfar/bin-x".into(), "/w/c".into()))
        );
        assert_eq!(of("bin", false), None);
    }
}
