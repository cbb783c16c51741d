//! What nearfar says of its own work: `--verbose`, `NEARFAR_LOG`, and the journal of systemd.
//!
//! ```text
//!  events of the libraries ──► which ones ──┬──► a line on standard error, with its time
//!        (tracing)             (filter)     ├──► its message alone          prefer service
//!                                           └──► fields in the journal      prefer service under systemd
//! ```

use std::io;
use std::os::linux::fs::MetadataExt as _;
use std::str::FromStr as _;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::failure::{Failure, Outcome, input};
use crate::output;

/// Which events are wanted: `LEVEL`, `CRATE=LEVEL`, with commas between several.
const VARIABLE: &str = "NEARFAR_LOG";
/// The crates that say something; a name below one of them is that of a module.
const CRATES: [&str; 5] = [
    "nearfar_change",
    "nearfar_exporter",
    "nearfar_lab",
    "nearfar_prefer",
    "nearfar_sources",
];
/// Every name of [`CRATES`] begins so.
const ALL: &str = "nearfar";
/// What the service logs of its work by default.
const SERVICE: &str = "nearfar_prefer::service";

/// From now on events are written where they belong. Without `verbose`, without the variable and outside of the service
/// nothing is.
pub fn start(verbose: u8, is_service: bool) -> Outcome {
    let asked = std::env::var_os(VARIABLE).filter(|text| !text.is_empty());
    let asked = asked
        .map(|text| text.into_string().map_err(|_| wrong("it is not UTF-8")))
        .transpose()?;
    let is_asked = verbose > 0 || asked.is_some();
    let mut filter = filter(verbose, asked.as_deref())?;
    if is_service && !filter.would_enable(SERVICE, &Level::INFO) {
        filter = filter.with_target(SERVICE, LevelFilter::INFO);
    }
    let layer = match is_service.then(journal).flatten() {
        Some(journal) => journal.boxed(),
        None if is_asked => {
            let lines = tracing_subscriber::fmt::layer().with_ansi(false);
            lines.with_writer(|| ErrorLines).boxed()
        }
        None if is_service => Messages.boxed(),
        None => return Ok(()),
    };
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(filter));
    tracing::subscriber::set_global_default(subscriber).map_err(Failure::refused)
}

/// Level by target. What the variable says of a crate goes before what `--verbose` says of all.
fn filter(verbose: u8, asked: Option<&str>) -> Result<Targets, Failure> {
    let level = match verbose {
        0 => LevelFilter::OFF,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let mut filter = Targets::new().with_target(ALL, level);
    let Some(asked) = asked else {
        return Ok(filter);
    };
    for part in asked
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (target, level) = match part.split_once('=') {
            Some((target, level)) => (target.trim(), level.trim()),
            None => (ALL, part),
        };
        let is_ours = |known: &&str| target == *known || target.starts_with(&format!("{known}::"));
        if target != ALL && !CRATES.iter().any(is_ours) {
            return Err(wrong(&format!(
                "{part:?}: there is no {target:?}, only {}",
                CRATES.join(", ")
            )));
        }
        // An empty word would be "error" to the parser.
        let known = Some(level)
            .filter(|level| !level.is_empty())
            .and_then(|level| LevelFilter::from_str(level).ok());
        let none = || {
            wrong(&format!(
                "{part:?}: {level:?} is none of off, error, warn, info, debug, trace"
            ))
        };
        let level = known.ok_or_else(none)?;
        filter = filter.with_target(target, level);
    }
    Ok(filter)
}

fn wrong(reason: &str) -> Failure {
    input!("{VARIABLE}: {reason}; give LEVEL or CRATE=LEVEL, with commas between several")
}

/// The journal, where standard error leads there (JOURNAL_STREAM in systemd.exec(5)): a service that was started by hand in the
/// terminal of another one has its variable and not its standard error.
fn journal() -> Option<tracing_journald::Layer> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let (device, inode) = stream.split_once(':')?;
    let error = std::fs::metadata("/proc/self/fd/2").ok()?;
    if (device.parse(), inode.parse()) != (Ok(error.st_dev()), Ok(error.st_ino())) {
        return None;
    }
    let journal = tracing_journald::layer().ok()?;
    Some(
        journal
            .with_field_prefix(Some("NEARFAR".to_owned()))
            .with_syslog_identifier("nearfar".to_owned()),
    )
}

/// Standard error, a line at a time, without what a terminal obeys; names and values in it are foreign. It may be a pipe that
/// without a reader, which is no reason to end.
struct ErrorLines;

impl io::Write for ErrorLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        line(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An event as one line, whatever is in it.
fn line(text: &str) {
    output::say!("{}", nearfar_report::clean(text.trim_end_matches('\n')));
}

/// Says each event's message, and nothing else of it.
struct Messages;

impl<S: Subscriber> Layer<S> for Messages {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        line(&message.0);
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_goes_before_the_switch() {
        let filter = |verbose, asked| filter(verbose, asked).unwrap();
        let quiet = filter(0, None);
        assert!(!quiet.would_enable("nearfar_change::apply", &Level::ERROR));
        let debug = filter(2, None);
        assert!(debug.would_enable("nearfar_lab::order", &Level::DEBUG));
        assert!(!debug.would_enable("nearfar_lab::order", &Level::TRACE));
        assert!(!debug.would_enable("another", &Level::ERROR));
        let one = filter(
            1,
            Some(" nearfar_prefer=debug , nearfar_sources::tree=off,"),
        );
        assert!(one.would_enable("nearfar_prefer::keeper", &Level::DEBUG));
        assert!(one.would_enable("nearfar_sources::sysfs", &Level::INFO));
        assert!(!one.would_enable("nearfar_sources::tree", &Level::ERROR));
        assert!(filter(0, Some("warn")).would_enable("nearfar_change", &Level::WARN));
    }

    #[test]
    fn what_is_no_filter_is_refused_with_the_part_that_is_none() {
        for (text, part) in [
            ("loud", "\"loud\": \"loud\" is none of"),
            (
                "info,nearfar_prefre=debug",
                "there is no \"nearfar_prefre\"",
            ),
            ("nearfar_prefer=", "\"\" is none of"),
            (
                "nearfar_preferable=info",
                "there is no \"nearfar_preferable\"",
            ),
        ] {
            let Err(Failure::Input(error)) = filter(0, Some(text)) else {
                panic!("{text} is taken")
            };
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
