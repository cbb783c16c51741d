//! `nearfar lab cache`: what the lab keeps on disk, and how much of it.

use std::time::SystemTime;

use clap::{Args, Subcommand, ValueEnum};
use nearfar_lab::cache::{Cache, CacheEntry, CacheLock, Kind, Trimmed};
use nearfar_machine::size;
use nearfar_report::lab as report;
use serde::Serialize;

use super::guest_args::failure;
use crate::args::{Colour, Format, FormatArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

/// The smallest limit other than 0: a number without its unit is more likely than such a limit.
const MIN_LIMIT_BYTES: u64 = 1 << 20;

/// List, remove and limit what the lab keeps: saved guests, unpacked files, kernels, programs for guests
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab cache list\n  nearfar lab cache clear --dry-run\n  \
                             nearfar lab cache clear kernels\n  nearfar lab cache limit 4G"
)]
pub struct CacheVerbs {
    #[command(subcommand)]
    verb: CacheVerb,
}

#[derive(Subcommand)]
enum CacheVerb {
    /// List what the cache holds, with the disk space it uses and when it was last used
    #[command(
        after_long_help = "Examples:\n  nearfar lab cache list\n  nearfar lab cache list --format json"
    )]
    List(FormatArgs),
    Clear(Clear),
    Limit(Limit),
}

/// Remove entries of some kinds
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar lab cache clear --dry-run\n  nearfar lab cache clear kernels"
)]
struct Clear {
    /// The kinds to remove [default: saved-guests and unpacked, which need no network to make again]
    #[arg(value_name = "KIND", value_enum)]
    kinds: Vec<Clearable>,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// What `clear` takes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Clearable {
    /// Guests that have booted, with their memory
    SavedGuests,
    /// Kernels and modules without their compression
    Unpacked,
    /// Kernels that `nearfar lab kernels get` fetched
    Kernels,
    /// Static programs for guests
    Foreign,
    /// All of these, package lists and the results of probes of QEMU and KVM
    All,
}

/// Print the size limit, or set it and remove what is over it
///
/// The least recently used saved guests and unpacked files are removed first. Kernels and other fetched files count, but
/// only `clear` removes them.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  nearfar lab cache limit\n  nearfar lab cache limit 4G")]
struct Limit {
    /// The new limit, such as 8G or 500M; 0 keeps no saved guests
    #[arg(value_name = "SIZE", value_parser = limit_size)]
    size: Option<u64>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct List {
    folder: String,
    entries: Vec<CacheEntry>,
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
    pub fn run(self, colour: Colour) -> Outcome {
        let cache = Cache::of_user().map_err(failure)?;
        match self.verb {
            CacheVerb::List(format) => list(&cache, &format, colour),
            CacheVerb::Clear(clear) => clear.run(&cache, colour),
            CacheVerb::Limit(limit) => limit.run(&cache, colour),
        }
    }
}

impl Clearable {
    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::SavedGuests => &[Kind::SavedGuest],
            Self::Unpacked => &[Kind::Unpacked],
            Self::Kernels => &[Kind::Kernel],
            Self::Foreign => &[Kind::Foreign],
            Self::All => &Kind::ALL,
        }
    }
}

fn limit_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text, 1).filter(|&bytes| bytes == 0 || bytes >= MIN_LIMIT_BYTES);
    bytes.ok_or_else(|| "not 0 or a size of at least 1M, such as 8G or 500M".to_owned())
}

fn list(cache: &Cache, format: &FormatArgs, colour: Colour) -> Outcome {
    let entries = cache.entries().map_err(failure)?;
    let (limit_bytes, warning) = cache.limit_or_default();
    let warnings: Vec<String> = warning.into_iter().collect();
    print_warnings(&warnings);
    output::print(&match format.format {
        Format::Table => {
            report::list(&entries, limit_bytes, SystemTime::now()).to_text(&output::style(colour))
        }
        Format::Json => {
            let folder = cache.root().to_string_lossy().into_owned();
            let total_bytes = total(&entries);
            output::json(
                "lab-cache/1",
                None,
                &List {
                    folder,
                    entries,
                    total_bytes,
                    limit_bytes,
                    warnings,
                },
            )?
        }
    })
}

impl Clear {
    fn run(self, cache: &Cache, colour: Colour) -> Outcome {
        let kinds: Vec<Kind> = match self.kinds.is_empty() {
            true => Kind::LOCAL.to_vec(),
            false => self
                .kinds
                .iter()
                .flat_map(|kind| kind.kinds())
                .copied()
                .collect(),
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
        output::print(&match self.format.format {
            Format::Table => {
                report::removed(&cleared.removed, self.dry_run).to_text(&output::style(colour))
            }
            Format::Json => output::json("lab-cache-clear/1", None, &cleared)?,
        })?;
        match cleared.warnings.len() {
            0 => Ok(()),
            failed => Err(Failure::refused(anyhow::anyhow!(
                "cannot remove {}",
                nearfar_report::count(failed, "entry")
            ))),
        }
    }
}

impl Limit {
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
        output::print(&match self.format.format {
            Format::Table => report::limit(&trimmed).to_text(&output::style(colour)),
            Format::Json => output::json("lab-cache-limit/1", None, &trimmed)?,
        })
    }
}

/// The limit and what the cache uses, with nothing removed.
fn usage(cache: &Cache) -> Result<Trimmed, Failure> {
    let hint = "nearfar lab cache limit 8G writes the file again";
    let limit_bytes = cache.limit().map_err(|error| match failure(error) {
        Failure::Input(error) => Failure::input(anyhow::anyhow!("cannot read {error}\n{hint}")),
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
