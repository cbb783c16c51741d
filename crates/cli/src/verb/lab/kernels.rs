//! `nearfar lab kernels`: kernels for guests, in a cache.

use std::io::IsTerminal as _;

use clap::{Args, Subcommand};
use nearfar_lab::cache::Cache;
use nearfar_lab::kernels::{self, Entry, KNOWN, Series};
use nearfar_lab::packages::Progress;
use nearfar_lab::{Arch, LabError, foreign};
use serde::Serialize;

use super::guest_args::failure;
use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// List, fetch and find kernels for guests; none of them is installed
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab kernels list\n  nearfar lab kernels get 6.12\n  nearfar lab kernels path 6.12"
)]
pub struct Kernels {
    #[command(subcommand)]
    verb: KernelsVerb,
}

#[derive(Subcommand)]
enum KernelsVerb {
    /// List the cached kernels, and those that can be fetched
    #[command(
        after_long_help = "Examples:\n  nearfar lab kernels list\n  nearfar lab kernels list --format json"
    )]
    List(FormatArgs),
    Get(Get),
    Path(Path),
}

/// Fetch a distribution's kernel into the cache, checked against the package manager's hashes
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab kernels get 6.12\n  nearfar lab kernels get 6.1 --arch powerpc64le\n  nearfar lab kernels get --all"
)]
struct Get {
    /// The series, such as 6.12
    #[arg(value_name = "SERIES", required_unless_present = "all")]
    series: Option<Series>,
    /// For guests of this architecture [default: this host's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// Fetch every kernel that this project's own tests use, and what guests of other architectures need
    #[arg(long, conflicts_with_all = ["series", "arch"])]
    all: bool,
}

/// Print where a kernel's image and modules are
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab kernels path 6.12\n  nearfar lab kernels path host"
)]
struct Path {
    /// What --kernel takes: a series, a release, "host", a path
    #[arg(value_name = "KERNEL")]
    kernel: String,
    /// For guests of this architecture [default: this host's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
}

#[derive(Serialize)]
struct List {
    kernels: Vec<Entry>,
}

impl Kernels {
    /// Lists, fetches or finds.
    pub fn run(self, colour: Colour) -> Outcome {
        let cache = Cache::of_user().map_err(failure)?;
        match self.verb {
            KernelsVerb::List(format) => list(&cache, &format, colour),
            KernelsVerb::Get(get) => get.run(&cache),
            KernelsVerb::Path(path) => path.run(&cache),
        }
    }
}

fn list(cache: &Cache, format: &FormatArgs, colour: Colour) -> Outcome {
    let kernels = kernels::list(cache);
    output::print(&match format.format {
        Format::Json => output::json("lab-kernels/1", None, &List { kernels })?,
        Format::Table => {
            nearfar_report::lab::kernels(&kernels).to_text(&output::style(colour))
        }
    })
}

impl Get {
    fn run(self, cache: &Cache) -> Outcome {
        let Some(series) = self.series else {
            return all(cache);
        };
        let arch = host_or(self.arch)?;
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

/// Fetches what the tests use; goes on where one thing is not to be had, and fails at the end.
fn all(cache: &Cache) -> Outcome {
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
        false => Err(Failure::refused(anyhow::anyhow!(
            "not fetched: {}",
            missing.join(", ")
        ))),
    }
}

impl Path {
    fn run(self, cache: &Cache) -> Outcome {
        let arch = host_or(self.arch)?;
        let kernel = kernels::find_in(cache, Some(&self.kernel), arch).map_err(failure)?;
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
    let unknown = || {
        Failure::input(anyhow::anyhow!(
            "this host is of none of the lab's architectures: name one with --arch"
        ))
    };
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
        };
        let percent = match progress {
            Progress::Lists { percent } => format!(" {percent:.0} %"),
            Progress::Download { done, total, .. } if total > 0 => {
                format!(" {} %", done * 100 / total)
            }
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
