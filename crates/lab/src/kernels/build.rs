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
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearfar_proc::child::end_with_parent;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use super::{Kernel, RECORD, Record, Series, cached, folder_of, own, suite_with};
use crate::arch::Arch;
use crate::cache::Cache;
use crate::error::LabError;
use crate::packages::{Progress, Repository, failed, refused, sha256_of_bytes, sha256_of_file};

/// What a kernel of a repository is written with.
pub const PREFIX: &str = "git:";

/// Changed when equal parts no longer make an equal kernel.
const RECIPE: &str = "1";

/// What every built kernel has, and what it has on an architecture.
const COMMON: &str = include_str!("guest.config");

/// How an architecture's kernel is built.
struct Recipe {
    /// ARCH of Linux's makefiles.
    arch: &'static str,
    /// Before the names of the tools, where the host has another architecture.
    tools: &'static str,
    target: &'static str,
    config: &'static str,
}

impl Recipe {
    fn of(arch: Arch) -> Self {
        match arch {
            Arch::X86_64 => Self {
                arch: "x86_64",
                tools: "x86_64-linux-gnu-",
                target: "bzImage",
                config: include_str!("guest.x86_64.config"),
            },
            Arch::Aarch64 => Self {
                arch: "arm64",
                tools: "aarch64-linux-gnu-",
                target: "Image",
                config: include_str!("guest.aarch64.config"),
            },
            Arch::Powerpc64le => Self {
                arch: "powerpc",
                tools: "powerpc64le-linux-gnu-",
                target: "vmlinux",
                config: include_str!("guest.ppc64le.config"),
            },
        }
    }
}

/// A revision of a repository, with patches on top.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GitSource {
    /// As it was asked for.
    pub(super) spec: String,
    pub(super) repository: PathBuf,
    pub(super) commit: String,
    /// Mailboxes or diffs, in the order in which they are applied.
    pub(super) patches: Vec<PathBuf>,
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
    let problem = &LabError::kernel(&source.spec, arch);
    let build = Build::new(source, fragment, arch).map_err(problem)?;
    if let Some(kernel) = build.cached(cache) {
        return Ok(kernel);
    }
    let folder = build.folder(cache);
    let _lock = loop {
        fs::create_dir_all(&folder).map_err(LabError::at("cannot make", &folder))?;
        // For as long as it is built; a process that ends lets it go.
        let (lock, is_free) = lock_of(&folder).map_err(LabError::at("cannot write", &folder))?;
        if !is_free {
            progress(Progress::Waiting);
            flock(&lock, FlockOperation::LockExclusive)
                .map_err(|error| problem(format!("{}: {error}", folder.display())))?;
        }
        // Not that of a folder that was removed meanwhile.
        let same = |there: fs::Metadata| lock.metadata().is_ok_and(|it| it.ino() == there.ino());
        if fs::metadata(folder.join(LOCK)).is_ok_and(same) {
            break lock;
        }
    };
    // Another process may have built it meanwhile.
    if let Some(kernel) = build.cached(cache) {
        return Ok(kernel);
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

/// Makes a repository of the distribution's source of a series, with one commit, and returns the commit's tag, `v6.12.117`.
///
/// Needs `apt-get`, `dpkg-deb`, `tar` with xz, and `git`, but not root. Errors: a folder that is there already; a series of which the
/// distribution has no source.
pub fn fetch_source(
    cache: &Cache,
    series: Series,
    folder: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<String, LabError> {
    let arch = Arch::host().unwrap_or(Arch::X86_64);
    let problem = &LabError::kernel(series, arch);
    fs::create_dir(folder).map_err(|error| problem(format!("{}: {error}", folder.display())))?;
    let unpacked = unpacked_source(cache, series, arch, folder, progress);
    let made = unpacked.and_then(|version| {
        progress(Progress::Preparing("repository"));
        committed(folder, &version).map_err(problem)
    });
    if made.is_err() {
        // What was made of it is of no use.
        let _ = fs::remove_dir_all(folder);
    }
    made
}

/// The version of the package that was unpacked.
fn unpacked_source(
    cache: &Cache,
    series: Series,
    arch: Arch,
    folder: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<String, LabError> {
    let problem = &LabError::kernel(series, arch);
    let lock = cache.lock(&mut || progress(Progress::Waiting))?;
    let workshop = lock.workshop()?;
    let repository = Repository::open(&lock, arch).map_err(problem)?;
    let name = format!("linux-source-{series}");
    let package = repository.newest(&name, |it| it == name, suite_with(series), progress);
    let package = package.map_err(problem)?.ok_or_else(|| {
        let distribution = repository.name();
        problem(format!("the distribution ({distribution}) has no {name}"))
    })?;
    let unpacked = workshop.path().join("package");
    repository
        .unpack(&package, &unpacked, progress)
        .map_err(problem)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--strip-components=1", "--file"])
        .arg(unpacked.join(format!("usr/src/{name}.tar.xz")))
        .arg("--directory")
        .arg(folder);
    output(&mut tar).map_err(problem)?;
    Ok(package.version.clone())
}

/// The tag of the commit.
fn committed(folder: &Path, version: &str) -> Result<String, String> {
    // 6.12.117-1~deb12u1: the kernel's own number is before the distribution's.
    let number = version.split(['-', '~', '+']).next().unwrap_or_default();
    let tag = format!("v{number}");
    let message = format!("Linux {version} as the distribution has it");
    git(folder, ["init", "--quiet", "--template="])?;
    // The distribution ignores files that it has.
    git(folder, ["add", "--all", "--force"])?;
    git(
        folder,
        ["commit", "--quiet", "--no-verify", "--message", &message],
    )?;
    git(folder, ["tag", &tag])?;
    Ok(tag)
}

const LOCK: &str = "lock";

/// The lock of a folder in `builds/`, and whether it was free and is held now.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn lock_of(folder: &Path) -> io::Result<(File, bool)> {
    let lock = File::create(folder.join(LOCK))?;
    let is_free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    Ok((lock, is_free))
}

/// What is to be built.
struct Build<'a> {
    source: &'a GitSource,
    recipe: Recipe,
    arch: Arch,
    config: String,
    /// The user's own options, which are to be in effect.
    wanted: Vec<String>,
    /// As they were read for the key.
    patches: Vec<(PathBuf, Vec<u8>)>,
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
        let version = |program: &str| -> Result<String, String> {
            let said = output(Command::new(format!("{tools}{program}")).arg("--version"))?;
            Ok(said.lines().next().unwrap_or_default().to_owned())
        };
        let (compiler, linker) = (version("gcc")?, version("ld")?);
        let parts = [
            RECIPE,
            &source.commit,
            &config,
            recipe.arch,
            &compiler,
            &linker,
        ];
        let mut parts: Vec<String> = parts.map(str::to_owned).into();
        let read = |path: &PathBuf| {
            Ok((
                path.clone(),
                fs::read(path).map_err(refused(path.display()))?,
            ))
        };
        let patches: Vec<(PathBuf, Vec<u8>)> = source
            .patches
            .iter()
            .map(read)
            .collect::<Result<_, String>>()?;
        if let Some((path, _)) = patches.iter().find(|(_, it)| it.trim_ascii().is_empty()) {
            return Err(format!("{}: an empty patch", path.display()));
        }
        parts.extend(patches.iter().map(|(_, content)| sha256_of_bytes(content)));
        Ok(Self {
            source,
            arch,
            wanted: wanted(&own)?,
            patches,
            config,
            tools,
            recipe,
            key: sha256_of_bytes(parts.join("\0").as_bytes()),
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
        let hash = sha256_of_bytes(repository.as_os_str().as_encoded_bytes());
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
        let own = checkout.join(".git");
        // No other repository, whatever state this one is in.
        let run = |arguments: &[&OsStr]| {
            let mut command = git_command(&checkout);
            command.env("GIT_DIR", &own).env("GIT_WORK_TREE", &checkout);
            output(command.args(arguments))
        };
        let words = |arguments: &[&str]| run(&arguments.iter().map(OsStr::new).collect::<Vec<_>>());
        fs::create_dir_all(&checkout).map_err(refused(checkout.display()))?;
        if words(&["rev-parse", "--git-dir"]).is_err() {
            let _ = fs::remove_dir_all(&own);
            words(&["init", "--quiet", "--template="])?;
        }
        // Of a git that was killed: the lock of the folder is held, so none is at work.
        let _ = fs::remove_file(own.join("index.lock"));
        let _ = fs::remove_file(own.join("HEAD.lock"));
        borrow_objects(repository, &own)?;
        // What an earlier patch that did not apply left.
        let _ = words(&["am", "--abort"]);
        words(&[
            "checkout",
            "--quiet",
            "--force",
            "--detach",
            &self.source.commit,
        ])?;
        words(&["clean", "-ffdxq"])?;
        for (path, content) in &self.patches {
            let copy = folder.join("patch");
            write(&copy, content)?;
            // A mailbox has mails, whose text may be encoded, and some of which have no patch; a diff has none.
            let applied = match content.starts_with(b"From ") {
                false => run(&["apply".as_ref(), "--index".as_ref(), copy.as_os_str()]).map(drop),
                true => mails_with_patches(&copy, &folder.join("mails"), run).and_then(|mails| {
                    let mails = mails.iter().map(|it| it.as_os_str());
                    let words = ["am", "--quiet", "--3way"].map(OsStr::new);
                    run(&words.into_iter().chain(mails).collect::<Vec<_>>()).map(drop)
                }),
            };
            applied.map_err(|error| format!("{} does not apply: {error}", path.display()))?;
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
        // What would make another kernel of the same key, and options of a make that started nearfar.
        let taken = [
            "KBUILD",
            "KCONFIG",
            "KCFLAGS",
            "KAFLAGS",
            "KCPPFLAGS",
            "LLVM",
            "HOST",
        ];
        without(&mut command, |name| {
            taken.iter().any(|it| name.starts_with(it)) || name.contains("MAKE") || name == "MFLAGS"
        });
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
            .env("KBUILD_BUILD_VERSION", "1")
            .env("LC_ALL", "C");
        command
    }

    /// Puts the image in the cache's form and describes it.
    fn record(&self, made: &Path, place: &Path) -> Result<Record, String> {
        let kernel = own::at_path(made, self.arch).map_err(|error| error.to_string())?;
        let release = kernel.release;
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

/// Makes a repository have what another has, by the folder that git keeps it in.
pub(super) fn borrow_objects(from: &Path, own: &Path) -> Result<(), String> {
    let of = |name: &str| -> Result<PathBuf, String> {
        let path = git(
            from,
            ["rev-parse", "--path-format=absolute", "--git-path", name],
        )?;
        Ok(path.into())
    };
    let objects = format!("{}\n", of("objects")?.display());
    write(&own.join("objects/info/alternates"), objects.as_bytes())?;
    // Of a shallow clone: which commits have no parents here.
    match fs::read(of("shallow")?) {
        Ok(shallow) => write(&own.join("shallow"), &shallow),
        Err(_) => {
            let _ = fs::remove_file(own.join("shallow"));
            Ok(())
        }
    }
}

/// Writes a file, in a folder that may not be there yet.
fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder
        .and_then(|()| fs::write(path, content))
        .map_err(refused(path.display()))
}

/// The mails of a mailbox that have a patch, a file each: not cover letters and answers.
///
/// # Errors
/// When none has one.
fn mails_with_patches(
    mailbox: &Path,
    folder: &Path,
    git: impl Fn(&[&OsStr]) -> Result<String, String>,
) -> Result<Vec<PathBuf>, String> {
    let failed = |error: io::Error| error.to_string();
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(failed)?;
    let mut to = std::ffi::OsString::from("-o");
    to.push(folder);
    git(&[
        "mailsplit".as_ref(),
        to.as_os_str(),
        "--".as_ref(),
        mailbox.as_os_str(),
    ])?;
    let mut mails: Vec<PathBuf> = fs::read_dir(folder)
        .and_then(|found| found.map(|it| it.map(|it| it.path())).collect())
        .map_err(failed)?;
    mails.sort();
    let (text, patch) = (folder.join("text"), folder.join("patch"));
    let has_patch = |mail: &PathBuf| -> Result<bool, String> {
        let mut command = git_command(folder);
        let mail = File::open(mail).map_err(failed)?;
        command.arg("mailinfo").arg(&text).arg(&patch).stdin(mail);
        let taken = command.output().map_err(failed)?;
        let content = fs::read(&patch).unwrap_or_default();
        let mut lines = content.split(|byte| *byte == b'\n');
        Ok(taken.status.success() && lines.any(|line| line.starts_with(b"+++ ")))
    };
    let mut with_patches = Vec::new();
    for mail in mails {
        if has_patch(&mail)? {
            with_patches.push(mail);
        }
    }
    match with_patches.is_empty() {
        true => Err("no mail in it has a patch".to_owned()),
        false => Ok(with_patches),
    }
}

/// The options of a fragment, as lines of a `.config`; `CONFIG_X=n` for one that is not to be set.
///
/// # Errors
/// An option that would be a module, which guests do not get.
fn wanted(fragment: &str) -> Result<Vec<String>, String> {
    let lines = fragment.lines().map(str::trim);
    let lines = lines.map(|line| {
        let unset = line
            .strip_prefix("# ")
            .and_then(|it| it.strip_suffix(" is not set"));
        unset.map_or_else(|| line.to_owned(), |name| format!("{name}=n"))
    });
    let lines: Vec<String> = lines.filter(|it| it.starts_with("CONFIG_")).collect();
    match lines.iter().find(|it| it.ends_with("=m")) {
        Some(module) => Err(format!("{module}: built kernels have no modules; write =y")),
        None => Ok(lines),
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

pub(super) fn git<'a, S: AsRef<OsStr> + 'a>(
    folder: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Result<String, String> {
    let mut command = git_command(folder);
    Ok(output(command.args(arguments))?.trim_end().to_owned())
}

/// git as it is without what the user has set: hooks, signatures, other repositories.
pub(super) fn git_command(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder);
    for setting in [
        // Who applies patches; nothing of it is kept.
        "user.name=nearfar",
        "user.email=nearfar@localhost",
        "commit.gpgsign=false",
        "tag.gpgsign=false",
        "core.hooksPath=/dev/null",
        "core.autocrlf=false",
        "gc.auto=0",
    ] {
        command.args(["-c", setting]);
    }
    without(&mut command, |name| name.starts_with("GIT_"));
    command.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
    command
}

/// Takes variables out of a command's environment.
fn without(command: &mut Command, is_taken: impl Fn(&str) -> bool) {
    for (name, _) in std::env::vars_os() {
        if is_taken(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
}

/// What a program prints.
///
/// # Errors
/// That it is not there; what it says on standard error.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    end_with_parent(command, Signal::TERM);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(refused(format!("{program}, which builds kernels")))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(program, &output.stderr)),
    }
}
