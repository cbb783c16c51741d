//! `nearfar lab`: machines in software, with real kernels. Here are the verbs about what the lab has and keeps: machines, parts, kernels, cache.

pub mod guest;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use guest::failure;
use nearfar_lab::cache::{Cache, CacheEntry, CacheLock, Kind, Trimmed};
use nearfar_lab::doctor::{self, State};
use nearfar_lab::kernels::{self, KNOWN, Kernel, Series, build};
use nearfar_lab::packages::Progress;
use nearfar_lab::{Arch, LabError, foreign};
use nearfar_machine::size;
use nearfar_report::lab as report;
use serde::Serialize;

use crate::args::{Colour, FormatArgs, one_of};
use crate::failure::{Failure, Outcome, input, refused};
use crate::output::{self, under};

/// Boot a described NUMA machine as a guest and run commands in it
#[derive(Subcommand)]
#[command(
    after_long_help = "Examples:\n  nearfar lab run --machine kunpeng --scale cpus=2,memory=512M -- nearfar topo\n  \
                       nearfar lab run --machine two-node --delay auto -- nearfar bench latency\n  \
                       nearfar lab shell --machine snapshot-of-a-server.nearfar --scale cpus=2,memory=512M\n  \
                       nearfar lab kernels get 6.12"
)]
pub enum Lab {
    /// List the machines that --machine and --source take by name
    #[command(
        after_long_help = "Examples:\n  nearfar lab machines\n  nearfar lab machines --format json"
    )]
    Machines(FormatArgs),
    Run(guest::Run),
    Shell(guest::Shell),
    #[command(subcommand)]
    Kernels(Kernels),
    #[command(subcommand)]
    Cache(CacheVerbs),
    Doctor(Doctor),
}

impl Lab {
    /// Does what was asked of the lab.
    pub fn run(self, colour: Colour) -> Outcome {
        match self {
            Self::Machines(format) => list_machines(&format, colour),
            Self::Run(verb) => verb.run(),
            Self::Shell(verb) => verb.run(),
            Self::Kernels(verb) => verb.run(colour),
            Self::Cache(verb) => verb.run(colour),
            Self::Doctor(verb) => verb.run(colour),
        }
    }
}

#[derive(Serialize)]
struct GalleryEntry {
    name: &'static str,
    description: &'static str,
}

/// Lists the gallery.
fn list_machines(format: &FormatArgs, colour: Colour) -> Outcome {
    let entries = nearfar_sources::gallery();
    let machines: Vec<_> = entries
        .iter()
        .map(|entry| GalleryEntry {
            name: entry.name,
            description: entry.description,
        })
        .collect();
    let document = || {
        let rows = machines
            .iter()
            .map(|machine| (machine.name, machine.description));
        nearfar_report::names(&rows.collect::<Vec<_>>())
    };
    format.print(
        colour,
        "machines/1",
        None,
        &under("machines", &machines),
        document,
    )
}

/// Say what the lab needs and finds here, and which command brings what is missing
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab doctor\n  nearfar lab doctor --fail-on missing"
)]
pub struct Doctor {
    /// Exit with 1 when a part is in this state or a worse one
    #[arg(long, value_parser = one_of(STATES), value_name = "STATE")]
    fail_on: Option<State>,
    #[command(flatten)]
    format: FormatArgs,
}

/// What --fail-on of `doctor` takes.
const STATES: &[(&str, &str, State)] = &[
    (
        "degraded",
        "The lab works without it, with a consequence that is named",
        State::Degraded,
    ),
    ("missing", "What needs it does not work", State::Missing),
];

impl Doctor {
    /// Prints what the lab needs and whether it is here.
    fn run(self, colour: Colour) -> Outcome {
        let doctor = doctor::examine(&Cache::of_user().map_err(failure)?);
        let document = || report::doctor(&doctor);
        self.format
            .print(colour, "lab-doctor/1", None, &doctor, document)?;
        let mut states = doctor.items.iter().map(|item| item.state);
        Failure::on(states.any(|it| self.fail_on.is_some_and(|bad| it >= bad)))
    }
}

/// List, fetch and find kernels for guests; none of them is installed
#[derive(Subcommand)]
#[command(
    after_long_help = "Examples:\n  nearfar lab kernels list\n  nearfar lab kernels get 6.12\n  nearfar lab kernels source 6.12 linux\n  \
                       nearfar lab kernels path 6.12"
)]
pub enum Kernels {
    /// List the cached kernels, and those that can be fetched
    #[command(
        after_long_help = "Examples:\n  nearfar lab kernels list\n  nearfar lab kernels list --format json"
    )]
    List(FormatArgs),
    Get(GetKernel),
    Source(KernelSource),
    Path(KernelPath),
}

/// Fetch a distribution's kernel into the cache, checked against the package manager's hashes, or build one from a git
/// repository
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab kernels get 6.12\n  nearfar lab kernels get 6.1 --arch powerpc64le\n  \
                       nearfar lab kernels get git:v6.12+series.mbox --tree ~/linux\n  nearfar lab kernels get --all"
)]
pub struct GetKernel {
    /// A series, such as 6.12; git:REVISION, or git:REVISION+FILE with a mailbox or diff on top
    #[arg(value_name = "KERNEL", required_unless_present = "all")]
    kernel: Option<String>,
    /// The repository of git:REVISION [default: the one of this folder]
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// A file with further options for a kernel that is built, such as CONFIG_KASAN=y
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// For guests of this architecture [default: this host's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// Fetch every kernel that this project's own tests use, and what guests of other architectures need
    #[arg(long, conflicts_with_all = ["kernel", "arch", "tree", "config"])]
    all: bool,
}

/// Make a git repository of the distribution's kernel source, to build kernels of
///
/// It takes 2 GB.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab kernels source 6.12 linux\n  nearfar lab kernels get git:HEAD --tree linux"
)]
pub struct KernelSource {
    /// The series, such as 6.12
    #[arg(value_name = "SERIES")]
    series: Series,
    /// A folder that does not exist yet
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl KernelSource {
    fn run(self, cache: &Cache) -> Outcome {
        let Self { series, folder } = self;
        let progress = &mut told(&format!("source of Linux {series}"));
        let tag = build::fetch_source(cache, series, &folder, progress).map_err(failure)?;
        output::print(&format!("{tag}\n"))
    }
}

/// Print where a kernel's image and modules are
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab kernels path 6.12\n  nearfar lab kernels path host"
)]
pub struct KernelPath {
    /// What --kernel takes: a series, a release, "host", a path
    #[arg(value_name = "KERNEL")]
    kernel: String,
    /// For guests of this architecture [default: this host's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
}

impl Kernels {
    /// Lists, fetches or finds.
    fn run(self, colour: Colour) -> Outcome {
        let cache = Cache::of_user().map_err(failure)?;
        match self {
            Self::List(format) => list_kernels(&cache, &format, colour),
            Self::Get(get) => get.run(&cache),
            Self::Source(source) => source.run(&cache),
            Self::Path(path) => path.run(&cache),
        }
    }
}

fn list_kernels(cache: &Cache, format: &FormatArgs, colour: Colour) -> Outcome {
    let kernels = kernels::list(cache);
    let document = || report::kernels(&kernels);
    format.print(
        colour,
        "lab-kernels/1",
        None,
        &under("kernels", &kernels),
        document,
    )
}

impl GetKernel {
    fn run(self, cache: &Cache) -> Outcome {
        let Some(kernel) = &self.kernel else {
            return get_all_kernels(cache);
        };
        let arch = host_or(self.arch)?;
        if kernel.starts_with(build::PREFIX) {
            let tree = self.tree.as_deref().unwrap_or(Path::new("."));
            if let Some(path) = &self.config {
                std::fs::File::open(path)
                    .map_err(|error| input!("--config {}: {error}", path.display()))?;
            }
            let kernel = build_kernel(cache, kernel, tree, self.config.as_deref(), arch)?;
            return output::print(&format!("{}\n", kernel.image.display()));
        }
        let of_build = [("--tree", &self.tree), ("--config", &self.config)];
        if let Some((option, _)) = of_build.iter().find(|(_, it)| it.is_some()) {
            return Err(input!(
                "{option} is for kernels that are built, such as git:v6.12, not for {kernel}"
            ));
        }
        let series: Series = kernel.parse().map_err(|problem| input!("{problem}"))?;
        let kernel = kernels::get(
            cache,
            series,
            arch,
            &mut told(&format!("Linux {series} for {arch}")),
        )
        .map_err(failure)?;
        output::print(&format!("{}\n", kernel.image.display()))
    }
}

/// Builds a kernel of a repository, unless it is cached.
pub fn build_kernel(
    cache: &Cache,
    spec: &str,
    tree: &Path,
    fragment: Option<&Path>,
    arch: Arch,
) -> Result<Kernel, Failure> {
    let source = build::GitSource::of(spec, tree).map_err(|problem| input!("{spec}: {problem}"))?;
    let progress = &mut told(&format!("{spec} for {arch}"));
    build::get(cache, &source, fragment, arch, progress).map_err(failure)
}

/// Fetches what the tests use; goes on where one thing is not to be had, and fails at the end.
fn get_all_kernels(cache: &Cache) -> Outcome {
    let mut missing = Vec::new();
    let mut note = |what: String, error: LabError| {
        output::say!("{what}: {error}");
        missing.push(what);
    };
    for (series, arch) in KNOWN {
        let what = format!("Linux {series} for {arch}");
        match kernels::get(cache, series, arch, &mut told(&what)) {
            Ok(kernel) => output::print(&format!("{}\n", kernel.image.display()))?,
            Err(error) => note(what, error),
        }
    }
    for arch in Arch::ALL
        .into_iter()
        .filter(|&arch| Some(arch) != Arch::host())
    {
        let what = format!("programs for guests of {arch}");
        match foreign::get_with(cache, arch, &mut told(&what)) {
            Ok(foreign) => output::print(&format!("{}\n", foreign.user_emulator.display()))?,
            Err(error) => note(what, error),
        }
    }
    match foreign::get_drmgr(cache, &mut told("drmgr for guests of powerpc64le")) {
        Ok(folder) => output::print(&format!("{}\n", folder.display()))?,
        Err(error) => note("drmgr for guests of powerpc64le".to_owned(), error),
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(refused!("not fetched: {}", missing.join(", "))),
    }
}

impl KernelPath {
    fn run(self, cache: &Cache) -> Outcome {
        let (arch, spec) = (host_or(self.arch)?, &self.kernel);
        if spec.starts_with(build::PREFIX) {
            return Err(input!(
                "{spec}: lab kernels get prints where it is, with the same --arch, --tree and --config, and builds it unless it is cached"
            ));
        }
        let kernel = kernels::find_in(cache, Some(spec), arch).map_err(failure)?;
        let modules = kernel.modules.map_or_else(
            || "none".to_owned(),
            |modules| modules.display().to_string(),
        );
        output::print(&format!(
            "release  {}\nimage    {}\nmodules  {modules}\n",
            kernel.release,
            kernel.image.display()
        ))
    }
}

fn host_or(arch: Option<Arch>) -> Result<Arch, Failure> {
    let unknown =
        || input!("this host is of none of the lab's architectures: name one with --arch");
    arch.or(Arch::host()).ok_or_else(unknown)
}

/// Tells on standard error what is being done: one line that is overwritten on a terminal, one line per step elsewhere.
fn told(what: &str) -> impl FnMut(Progress<'_>) + use<> {
    let terminal = std::io::stderr().is_terminal();
    let mut last = String::new();
    let what = what.to_owned();
    move |progress| {
        let step = match progress {
            Progress::Waiting => "waiting for another nearfar that adds to the cache".to_owned(),
            Progress::Lists { .. } => "asking the mirror for its packages".to_owned(),
            Progress::Download { package, total, .. } => {
                format!("fetching {package}, {} MB", total / 1_000_000)
            }
            Progress::Unpacking(package) => format!("unpacking {package}"),
            Progress::Preparing(part) => format!("making {part}"),
            Progress::Compiling { .. } => "compiling".to_owned(),
        };
        let percent = match progress {
            Progress::Lists { percent } => format!(" {percent:.0} %"),
            Progress::Download { done, total, .. } if total > 0 => {
                format!(" {} %", done * 100 / total)
            }
            Progress::Compiling { files } => format!(" {files} files"),
            _ => String::new(),
        };
        if terminal {
            let end = if matches!(progress, Progress::Preparing(_)) {
                "\n"
            } else {
                ""
            };
            output::say_part!("\r\x1b[K{what}: {step}{percent}{end}");
        } else if step != last {
            output::say!("{what}: {step}");
        }
        last = step;
    }
}

/// The smallest limit other than 0: a number without its unit is more likely than such a limit.
const MIN_LIMIT_BYTES: u64 = 1 << 20;

/// List, remove and limit what the lab keeps: saved guests, unpacked files, kernels, programs for guests
#[derive(Subcommand)]
#[command(
    after_long_help = "Examples:\n  nearfar lab cache list\n  nearfar lab cache clear --dry-run\n  \
                             nearfar lab cache clear kernels\n  nearfar lab cache limit 4G"
)]
pub enum CacheVerbs {
    /// List what the cache holds, with the disk space it uses and when it was last used
    #[command(
        after_long_help = "Examples:\n  nearfar lab cache list\n  nearfar lab cache list --format json"
    )]
    List(FormatArgs),
    Clear(ClearCache),
    Limit(CacheLimit),
}

/// Remove entries of some kinds
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab cache clear --dry-run\n  nearfar lab cache clear kernels"
)]
pub struct ClearCache {
    /// The kinds to remove [default: saved-guests and unpacked, which need no network to make again]
    #[arg(value_name = "KIND", value_parser = one_of(CLEARABLE))]
    kinds: Vec<&'static [Kind]>,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// What `clear` takes.
const CLEARABLE: &[(&str, &str, &[Kind])] = &[
    (
        "saved-guests",
        "Guests that have booted, with their memory",
        &[Kind::SavedGuest],
    ),
    (
        "unpacked",
        "Kernels and modules without their compression",
        &[Kind::Unpacked],
    ),
    (
        "builds",
        "Checkouts of repositories and what was compiled of them",
        &[Kind::Build],
    ),
    (
        "kernels",
        "Kernels that `nearfar lab kernels get` fetched or built",
        &[Kind::Kernel],
    ),
    ("foreign", "Static programs for guests", &[Kind::Foreign]),
    (
        "all",
        "All of these, package lists and the results of probes of QEMU and KVM",
        &Kind::ALL,
    ),
];

/// Print the size limit, or set it and remove what is over it
///
/// The least recently used saved guests and unpacked files are removed first. Kernels and other fetched files count, but
/// only `clear` removes them.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar lab cache limit\n  nearfar lab cache limit 4G")]
pub struct CacheLimit {
    /// The new limit, such as 8G or 500M; 0 keeps no saved guests
    #[arg(value_name = "SIZE", value_parser = limit_size)]
    size: Option<u64>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct CacheList<'a> {
    folder: String,
    entries: &'a [CacheEntry],
    total_bytes: u64,
    limit_bytes: u64,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Cleared {
    dry_run: bool,
    removed: Vec<CacheEntry>,
    freed_bytes: u64,
    warnings: Vec<String>,
}

impl CacheVerbs {
    /// Lists, removes or limits.
    fn run(self, colour: Colour) -> Outcome {
        let cache = Cache::of_user().map_err(failure)?;
        match self {
            Self::List(format) => list_cache(&cache, &format, colour),
            Self::Clear(clear) => clear.run(&cache, colour),
            Self::Limit(limit) => limit.run(&cache, colour),
        }
    }
}

fn limit_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text, 1).filter(|&bytes| bytes == 0 || bytes >= MIN_LIMIT_BYTES);
    bytes.ok_or_else(|| "not 0 or a size of at least 1M, such as 8G or 500M".to_owned())
}

fn list_cache(cache: &Cache, format: &FormatArgs, colour: Colour) -> Outcome {
    let entries = cache.entries().map_err(failure)?;
    let (limit_bytes, warning) = cache.limit_or_default();
    let warnings: Vec<String> = warning.into_iter().collect();
    print_warnings(&warnings);
    let document = || report::list(&entries, limit_bytes, SystemTime::now());
    let answer = CacheList {
        folder: cache.root().to_string_lossy().into_owned(),
        entries: &entries,
        total_bytes: total(&entries),
        limit_bytes,
        warnings,
    };
    format.print(colour, "lab-cache/1", None, &answer, document)
}

impl ClearCache {
    fn run(self, cache: &Cache, colour: Colour) -> Outcome {
        let kinds: Vec<Kind> = match self.kinds.is_empty() {
            true => Kind::LOCAL.to_vec(),
            false => self.kinds.concat(),
        };
        let (removed, warnings) = if self.dry_run || !cache.root().exists() {
            let entries = cache.entries().map_err(failure)?;
            (
                entries
                    .into_iter()
                    .filter(|entry| kinds.contains(&entry.kind))
                    .collect(),
                Vec::new(),
            )
        } else {
            let done = locked(cache)?.clear(&kinds).map_err(failure)?;
            (done.removed, done.warnings)
        };
        print_warnings(&warnings);
        let cleared = Cleared {
            dry_run: self.dry_run,
            freed_bytes: total(&removed),
            removed,
            warnings,
        };
        let document = || report::removed(&cleared.removed, self.dry_run);
        self.format
            .print(colour, "lab-cache-clear/1", None, &cleared, document)?;
        match cleared.warnings.len() {
            0 => Ok(()),
            failed => Err(refused!(
                "cannot remove {}",
                nearfar_report::count(failed, "entry")
            )),
        }
    }
}

impl CacheLimit {
    fn run(self, cache: &Cache, colour: Colour) -> Outcome {
        let trimmed = match self.size {
            Some(bytes) => {
                let lock = locked(cache)?;
                lock.set_limit(bytes)
                    .and_then(|()| lock.trim(&[]))
                    .map_err(failure)?
            }
            None => usage(cache)?,
        };
        print_warnings(&trimmed.warnings);
        let document = || report::limit(&trimmed);
        self.format
            .print(colour, "lab-cache-limit/1", None, &trimmed, document)
    }
}

/// The limit and what the cache uses, with nothing removed.
fn usage(cache: &Cache) -> Result<Trimmed, Failure> {
    let hint = "nearfar lab cache limit 8G writes the file again";
    let limit_bytes = cache.limit().map_err(|error| match failure(error) {
        Failure::Input(error) => input!("cannot read {error}\n{hint}"),
        other => other,
    })?;
    let entries = cache.entries().map_err(failure)?;
    let untrimmed = entries.iter().filter(|entry| !entry.kind.is_trimmed());
    Ok(Trimmed {
        limit_bytes,
        total_bytes: total(&entries),
        untrimmed_bytes: total(untrimmed),
        ..Trimmed::default()
    })
}

fn locked(cache: &Cache) -> Result<CacheLock<'_>, Failure> {
    let mut waiting = || output::say!("note: waiting for another nearfar that changes the cache");
    cache.lock(&mut waiting).map_err(failure)
}

fn total<'a>(entries: impl IntoIterator<Item = &'a CacheEntry>) -> u64 {
    entries
        .into_iter()
        .fold(0, |sum, entry| sum.saturating_add(entry.bytes))
}

fn print_warnings(warnings: &[String]) {
    warnings
        .iter()
        .for_each(|warning| output::say!("warning: {warning}"));
}
