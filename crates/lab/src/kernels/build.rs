//! Kernels built from a git repository.
//!
//! ```text
//!  git:REV+PATCH ─► commit, patches, configuration, compiler ─► key ─┬─ cached ─────────────────────► Kernel
//!                                                                    └─ checkout ─► patches ─► make ─► cached, with a record
//! ```
//!
//! The repository is not changed: a checkout in the cache borrows its objects. One checkout and one build folder for each repository
//! and architecture, so that another revision compiles what differs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearfar_proc::child::end_with_parent;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use sha2::{Digest as _, Sha256};

use super::{Kernel, RECORD, Record, Series, cached, folder_of, own};
use crate::arch::Arch;
use crate::cache::Cache;
use crate::error::LabError;
use crate::packages::{Progress, failed, refused, sha256_of_file};

/// What a kernel of a repository is written with.
pub const PREFIX: &str = "git:";

/// What every built kernel has, and what it has on an architecture.
const COMMON: &str = include_str!("guest.config");

/// How an architecture's kernel is built.
struct Recipe {
    /// ARCH of Linux's makefiles.
    arch: &'static str,
    /// Before the names of the tools, where the host has another architecture.
    tools: &'static str,
    target: &'static str,
    /// The image, in the build folder.
    image: &'static str,
    config: &'static str,
}

impl Recipe {
    fn of(arch: Arch) -> Self {
        match arch {
            Arch::X86_64 => Self {
                arch: "x86_64",
                tools: "x86_64-linux-gnu-",
                target: "bzImage",
                image: "arch/x86/boot/bzImage",
                config: include_str!("guest.x86_64.config"),
            },
            Arch::Aarch64 => Self {
                arch: "arm64",
                tools: "aarch64-linux-gnu-",
                target: "Image",
                image: "arch/arm64/boot/Image",
                config: include_str!("guest.aarch64.config"),
            },
            Arch::Powerpc64le => Self {
                arch: "powerpc",
                tools: "powerpc64le-linux-gnu-",
                target: "vmlinux",
                image: "vmlinux",
                config: include_str!("guest.ppc64le.config"),
            },
        }
    }
}

/// A revision of a repository, with patches on top.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GitSource {
    /// As it was asked for.
    spec: String,
    repository: PathBuf,
    commit: String,
    /// Mailboxes or diffs, in the order in which they are applied.
    patches: Vec<PathBuf>,
}

impl GitSource {
    /// Of `git:REV` or `git:REV+FILE+FILE`, in the repository that a folder belongs to. Parts at the end that are files are patches, as
    /// the name of a revision may have a plus sign.
    ///
    /// # Errors
    /// What is wrong with it: no repository, no such revision.
    pub fn of(spec: &str, folder: &Path) -> Result<Self, String> {
        let mut parts: Vec<&str> = spec
            .strip_prefix(PREFIX)
            .unwrap_or(spec)
            .split('+')
            .collect();
        let mut patches = Vec::new();
        while parts.len() > 1 {
            let path = PathBuf::from(parts[parts.len() - 1]);
            if !path.is_file() {
                break;
            }
            parts.pop();
            patches.insert(0, fs::canonicalize(path).map_err(refused(spec))?);
        }
        let revision = parts.join("+");
        let repository = git(folder, ["rev-parse", "--show-toplevel"])
            .map_err(|error| format!("no repository at {}: {error}", folder.display()))?;
        let wanted = format!("{revision}^{{commit}}");
        let commit = git(
            folder,
            [
                "rev-parse",
                "--verify",
                "--quiet",
                "--end-of-options",
                &wanted,
            ],
        );
        let commit = commit.map_err(|_| {
            format!("{repository} has no revision {revision}, nor is there a patch of that name")
        })?;
        Ok(Self {
            spec: spec.to_owned(),
            repository: repository.into(),
            commit,
            patches,
        })
    }
}

/// The kernel of a source, built where it is not cached. `fragment`: a file with further options, after all others.
///
/// # Errors
/// [`LabError::Kernel`] with the first error of the compiler, or what is missing for it.
pub fn get(
    cache: &Cache,
    source: &GitSource,
    fragment: Option<&Path>,
    arch: Arch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Kernel, LabError> {
    let problem = |problem: String| LabError::Kernel {
        spec: source.spec.clone(),
        arch,
        problem,
    };
    let build = Build::new(source, fragment, arch).map_err(problem)?;
    if let Some(kernel) = build.cached(cache) {
        return Ok(kernel);
    }
    let folder = build.folder(cache);
    fs::create_dir_all(&folder).map_err(LabError::at("cannot make", &folder))?;
    // For as long as it is built; a process that ends lets it go.
    let lock = File::create(folder.join("lock")).map_err(LabError::at("cannot write", &folder))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        progress(Progress::Waiting);
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| problem(format!("{}: {error}", folder.display())))?;
        // Another process may have built it meanwhile.
        if let Some(kernel) = build.cached(cache) {
            return Ok(kernel);
        }
    }
    build.check_out(&folder, progress).map_err(problem)?;
    let image = build.make(&folder, progress).map_err(problem)?;
    let lock = cache.lock(&mut || progress(Progress::Waiting))?;
    let workshop = lock.workshop()?;
    let made = workshop.path().join("kernel");
    let record = build.record(&image, &made).map_err(problem)?;
    let place = folder_of(cache, arch).join(&record.release);
    lock.put(&made, &place)?;
    Ok(record.kernel(&place))
}

/// What is to be built.
struct Build<'a> {
    source: &'a GitSource,
    recipe: Recipe,
    arch: Arch,
    config: String,
    /// Of the user's own options, those that are to be in effect.
    wanted: Vec<String>,
    /// Empty where the host's tools build for the architecture.
    tools: &'static str,
    /// Of all that decides what the kernel is.
    key: String,
}

impl<'a> Build<'a> {
    fn new(source: &'a GitSource, fragment: Option<&Path>, arch: Arch) -> Result<Self, String> {
        let recipe = Recipe::of(arch);
        let own = match fragment {
            None => String::new(),
            Some(path) => fs::read_to_string(path).map_err(refused(path.display()))?,
        };
        let config = [COMMON, recipe.config, &own].join("\n");
        let tools = match Arch::host() == Some(arch) {
            true => "",
            false => recipe.tools,
        };
        let compiler = output(Command::new(format!("{tools}gcc")).arg("--version"))?;
        let compiler = compiler.lines().next().unwrap_or_default();
        let mut key = Sha256::new();
        for part in [&source.commit, &config, recipe.arch, compiler] {
            key.update(part);
            key.update([0]);
        }
        for patch in &source.patches {
            let content = fs::read(patch).map_err(refused(patch.display()))?;
            key.update(Sha256::digest(content));
        }
        Ok(Self {
            source,
            arch,
            wanted: own
                .lines()
                .map(str::trim)
                .filter(|it| it.starts_with("CONFIG_"))
                .map(str::to_owned)
                .collect(),
            config,
            tools,
            recipe,
            key: hex(key),
        })
    }

    fn cached(&self, cache: &Cache) -> Option<Kernel> {
        let is_it = |record: &Record| record.is_built && record.package_sha256 == self.key;
        let mut kernels = cached(cache).into_iter();
        let (folder, record) = kernels.find(|(_, record)| is_it(record))?;
        record
            .damage_within(&folder)
            .is_none()
            .then(|| record.kernel(&folder))
    }

    /// Where the repository's kernels are built: `builds/REPOSITORY-HASH/`.
    fn folder(&self, cache: &Cache) -> PathBuf {
        let repository = &self.source.repository;
        let hash = hex(Sha256::new_with_prefix(
            repository.as_os_str().as_encoded_bytes(),
        ));
        let name = repository.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{name}-{}-{}", self.arch.uname(), &hash[..12]);
        cache.root().join(BUILDS).join(name)
    }

    /// Brings the checkout to the source, without touching files that stay as they are.
    fn check_out(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), String> {
        progress(Progress::Preparing("checkout"));
        let (repository, checkout) = (&self.source.repository, folder.join(CHECKOUT));
        if !checkout.join(".git/HEAD").exists() {
            fs::create_dir_all(&checkout).map_err(refused(checkout.display()))?;
            git(&checkout, ["init", "--quiet"])?;
        }
        let of = |name: &str| -> Result<PathBuf, String> {
            let path = git(
                repository,
                ["rev-parse", "--path-format=absolute", "--git-path", name],
            )?;
            Ok(path.into())
        };
        let objects = format!("{}\n", of("objects")?.display());
        let alternates = checkout.join(".git/objects/info/alternates");
        fs::write(&alternates, objects).map_err(refused(alternates.display()))?;
        // Of a shallow clone: which commits have no parents here.
        if let Ok(shallow) = fs::read(of("shallow")?) {
            let copy = checkout.join(".git/shallow");
            fs::write(&copy, shallow).map_err(refused(copy.display()))?;
        }
        // What an earlier patch that did not apply left.
        let _ = git(&checkout, ["am", "--abort"]);
        let commit = &self.source.commit;
        git(
            &checkout,
            ["checkout", "--quiet", "--force", "--detach", commit],
        )?;
        git(&checkout, ["clean", "-ffdxq"])?;
        for patch in &self.source.patches {
            let content = fs::read(patch).map_err(refused(patch.display()))?;
            let file = patch.as_os_str();
            // A mailbox has mails, whose text may be encoded; a diff has none.
            let applied = match content.starts_with(b"From ") {
                true => git(
                    &checkout,
                    [
                        OsStr::new("am"),
                        "--quiet".as_ref(),
                        "--3way".as_ref(),
                        file,
                    ],
                ),
                false => git(&checkout, [OsStr::new("apply"), "--index".as_ref(), file]),
            };
            applied.map_err(|error| format!("{} does not apply: {error}", patch.display()))?;
        }
        Ok(())
    }

    /// Runs make, and returns the folder with what it made.
    fn make(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, String> {
        let made = folder.join("made");
        fs::create_dir_all(&made).map_err(refused(made.display()))?;
        let options = folder.join("options");
        fs::write(&options, &self.config).map_err(refused(options.display()))?;
        let log_path = folder.join("make.log");
        let mut log = File::create(&log_path).map_err(refused(log_path.display()))?;
        let mut run = |target: &str, progress: &mut dyn FnMut(Progress<'_>)| {
            let mut command = self.make_command(folder, &made);
            command.env("KCONFIG_ALLCONFIG", &options).arg(target);
            logged(command, &mut log, progress).map_err(|error| {
                format!("make {target}: {error} (all of it: {})", log_path.display())
            })
        };
        // A configuration that stays as it is compiles nothing again.
        run("allnoconfig", progress)?;
        let config = fs::read_to_string(made.join(".config")).unwrap_or_default();
        if let Some(missing) = self.wanted.iter().find(|&it| !is_in_effect(it, &config)) {
            return Err(format!(
                "{missing} has no effect in this revision: an option that it needs is not set, or there is none of that name"
            ));
        }
        run(self.recipe.target, progress)?;
        Ok(made)
    }

    fn make_command(&self, folder: &Path, made: &Path) -> Command {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = Command::new("make");
        command
            .arg("-C")
            .arg(folder.join(CHECKOUT))
            .arg(format!("-j{jobs}"))
            .arg(format!("O={}", made.display()))
            .arg(format!("ARCH={}", self.recipe.arch))
            .arg(format!("CROSS_COMPILE={}", self.tools))
            .arg(format!("LOCALVERSION=-g{}", &self.key[..12]))
            // Equal sources are equal kernels.
            .env("KBUILD_BUILD_USER", "nearfar")
            .env("KBUILD_BUILD_HOST", "nearfar")
            .env("KBUILD_BUILD_TIMESTAMP", "1970-01-01")
            .env("LC_ALL", "C");
        // Options of a make that started nearfar are not this one's.
        command.env_remove("MAKEFLAGS").env_remove("MFLAGS");
        command
    }

    /// Puts the image in the cache's form and describes it.
    fn record(&self, made: &Path, place: &Path) -> Result<Record, String> {
        let kernel = own::at_path(&made.join(self.recipe.image), self.arch);
        let kernel = kernel.map_err(|error| error.to_string())?;
        let release = made.join("include/config/kernel.release");
        let release = fs::read_to_string(&release).map_err(refused(release.display()))?;
        let release = release.trim().to_owned();
        if kernel.release != release {
            return Err(format!("make made {}, not {release}", kernel.release));
        }
        let series =
            Series::of_release(&release).ok_or_else(|| format!("its release is {release}"))?;
        let image = format!("boot/vmlinuz-{release}");
        let path = place.join(&image);
        let copied =
            fs::create_dir_all(place.join("boot")).and_then(|()| fs::copy(&kernel.image, &path));
        let record = Record {
            series,
            arch: self.arch,
            release,
            package: "git".to_owned(),
            version: self.source.spec.trim_start_matches(PREFIX).to_owned(),
            package_sha256: self.key.clone(),
            image,
            image_bytes: copied.map_err(refused(path.display()))?,
            image_sha256: sha256_of_file(&path).map_err(refused(path.display()))?,
            is_built: true,
        };
        record
            .write(place)
            .map_err(refused(place.join(RECORD).display()))?;
        Ok(record)
    }
}

/// The folder of the cache with checkouts and what was compiled of them.
pub(crate) const BUILDS: &str = "builds";
const CHECKOUT: &str = "checkout";

/// Whether a line of a fragment, `CONFIG_X=y`, is in effect in a `.config`.
fn is_in_effect(wanted: &str, config: &str) -> bool {
    match wanted.split_once('=') {
        Some((name, "n")) => !config
            .lines()
            .any(|line| line.starts_with(&format!("{name}="))),
        _ => config.lines().any(|line| line == wanted),
    }
}

/// Runs a command, with all that it prints in a log.
///
/// # Errors
/// The first error that it printed.
fn logged(
    mut command: Command,
    log: &mut File,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let (reader, writer) = io::pipe().map_err(failed)?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(failed)?)
        .stderr(writer);
    end_with_parent(&mut command, Signal::TERM);
    let mut child = command.spawn().map_err(failed)?;
    // Its ends of the pipe would keep the reader from seeing the end.
    drop(command);
    let (mut files, mut first_error, mut last) = (0, None, String::new());
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(failed)?;
        let line = String::from_utf8_lossy(&line).into_owned();
        writeln!(log, "{line}").map_err(failed)?;
        if line.trim_start().starts_with("CC ") {
            files += 1;
            progress(Progress::Compiling { files });
        }
        if first_error.is_none() && is_error(&line) {
            first_error = Some(line.clone());
        }
        if !line.trim().is_empty() {
            last = line;
        }
    }
    let status = child.wait().map_err(failed)?;
    match status.success() {
        true => Ok(()),
        false => Err(first_error.unwrap_or(last)),
    }
}

/// Whether a line of make's output says what went wrong, of the compiler, the linker, a shell or make itself.
fn is_error(line: &str) -> bool {
    let marks = [
        "error:",
        "undefined reference",
        ": not found",
        "*** ",
        "fatal:",
    ];
    marks.iter().any(|mark| line.contains(mark))
}

fn git<'a, S: AsRef<OsStr> + 'a>(
    folder: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Result<String, String> {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(folder)
        // Who applies patches; nothing of it is kept.
        .args([
            "-c",
            "user.name=nearfar",
            "-c",
            "user.email=nearfar@localhost",
        ])
        .args(arguments)
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("LC_ALL", "C");
    // Of a hook that started nearfar: they name another repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    Ok(output(&mut command)?.trim_end().to_owned())
}

/// What a program prints.
///
/// # Errors
/// That it is not there; what it says on standard error.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(refused(format!("{program}, which builds kernels")))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(program, &output.stderr)),
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
