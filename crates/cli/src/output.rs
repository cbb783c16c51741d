//! Where answers go: standard output in colour or not, JSON with its envelope, files written whole or not at all.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::builder::{PathBufValueParser, TypedValueParser};
use nearfar_machine::Origin;
use nearfar_report::Style;
use serde::Serialize;

use crate::args::Colour;
use crate::failure::{Failure, Outcome, input};

/// Lines that are longer are hard to follow with the eye.
const MAX_COLUMNS: usize = 200;

/// Prints text to standard output. A reader that has gone away (`| head`) ends the command quietly.
pub fn print(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| match text.ends_with('\n') {
            true => out.flush(),
            false => out.write_all(b"\n").and_then(|()| out.flush()),
        });
    written.map_err(of_standard)
}

/// Says something on standard error, without an end of the line. It may be a pipe without a reader; std's and
/// anstream's `eprint!` panic there, and a keeper that is to give back what it took must not end for want of a listener.
macro_rules! say_part {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(anstream::stderr(), $($text)*);
    }};
}

/// Says a line on standard error. Messages quote foreign names, which may hold what a terminal obeys.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::say_part!("{}\n", $crate::output::cleaned(&format!($($text)*))) };
}
pub(crate) use {say, say_part};

/// Text without control characters but for the ends of its lines.
pub fn cleaned(text: &str) -> String {
    text.split('\n')
        .map(nearfar_report::clean)
        .collect::<Vec<_>>()
        .join("\n")
}

/// What stands around each JSON answer, so that a stored one can be read years later.
#[derive(Serialize)]
struct Envelope<'a, T> {
    /// Name and version of the answer's shape, documented in docs/json.md.
    schema: &'a str,
    /// The version of nearfar that wrote it.
    nearfar: &'a str,
    /// The machine it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a Origin>,
    #[serde(flatten)]
    answer: &'a T,
}

/// An answer of one key.
pub fn under<T>(key: &'static str, value: T) -> BTreeMap<&'static str, T> {
    BTreeMap::from([(key, value)])
}

/// An answer as JSON, in its envelope.
pub fn json<T: Serialize>(
    schema: &str,
    source: Option<&Origin>,
    answer: &T,
) -> Result<String, Failure> {
    serde_json::to_string_pretty(&envelope(schema, source, answer)).map_err(Failure::input)
}

/// The same on one line, for answers of which one follows the other.
pub fn json_line<T: Serialize>(
    schema: &str,
    source: Option<&Origin>,
    answer: &T,
) -> Result<String, Failure> {
    serde_json::to_string(&envelope(schema, source, answer)).map_err(Failure::input)
}

fn envelope<'a, T>(schema: &'a str, source: Option<&'a Origin>, answer: &'a T) -> Envelope<'a, T> {
    Envelope {
        schema,
        nearfar: env!("CARGO_PKG_VERSION"),
        source,
        answer,
    }
}

/// How tables look on standard output.
pub fn style(colour: Colour) -> Style {
    let to_terminal = std::io::stdout().is_terminal();
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let colour = match colour {
        Colour::Auto => to_terminal && !plain,
        Colour::Always => true,
        Colour::Never => false,
    };
    Style {
        colour,
        width: width(to_terminal),
    }
}

/// How tables look elsewhere.
pub fn style_of_file(colour: Colour) -> Style {
    Style {
        colour: colour == Colour::Always,
        ..Style::default()
    }
}

/// Columns of a line: COLUMNS where that is a number, else those of the terminal, else 100, so that a file or a pipe gets
/// the same lines everywhere. Within what tables can be read in.
fn width(to_terminal: bool) -> usize {
    let asked = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
        .filter(|&it| it > 0);
    let terminal = || {
        let size = to_terminal
            .then(|| rustix::termios::tcgetwinsize(std::io::stdout()).ok())
            .flatten()?;
        Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
    };
    asked
        .or_else(terminal)
        .map_or(Style::default().width, |columns| {
            columns.clamp(40, MAX_COLUMNS)
        })
}

/// A file next to an answer on standard output, so never "-".
pub fn named_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match is_standard(&path) {
        true => Err("standard output has the answer already: name a file"),
        false => Ok(path),
    })
}

/// Whether a path stands for standard output.
fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Prints bytes to standard output; what is not text, to no terminal.
pub fn print_bytes(bytes: &[u8]) -> Outcome {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() && std::str::from_utf8(bytes).is_err() {
        return Err(input!(
            "this is not text for a terminal: name a file with -o FILE"
        ));
    }
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(of_standard)
}

/// What became of standard output.
fn of_standard(error: std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Refused(anyhow::Error::new(error).context("cannot write to standard output")),
    }
}

/// Writes a file in the directory of its final name and renames it, so that no half-written one is ever seen. A path that
/// is not a regular file (`/dev/stdout`, a pipe) is written directly; "-" is standard output.
pub fn write_file(path: &Path, content: &[u8]) -> Outcome {
    if is_standard(path) {
        return print_bytes(content);
    }
    let written = if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        std::fs::write(path, content)
    } else {
        replace(path, content)
    };
    written
        .with_context(|| format!("cannot write {}", path.display()))
        .map_err(Failure::refused)
}

/// Fails where [`write_file`] is going to, before the work begins whose answer would be lost.
pub fn can_write(path: &Path) -> Outcome {
    has_room(path, 0)
}

/// The same for a file of that many bytes: fails where the file system has not as many free. What it makes to find out is
/// gone when it returns, so that no kill leaves anything.
pub fn has_room(path: &Path, bytes: u64) -> Outcome {
    let tried = match std::fs::metadata(path) {
        _ if is_standard(path) => return Ok(()),
        Ok(there) if there.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(there) if !there.is_file() => {
            rustix::fs::access(path, rustix::fs::Access::WRITE_OK).map_err(std::io::Error::from)
        }
        _ => temporary_next_to(path).and_then(|file| allocate(file.as_file(), bytes)),
    };
    tried
        .with_context(|| format!("cannot write {}", path.display()))
        .map_err(Failure::refused)
}

/// Has the file system set aside that many bytes; passes where it cannot say.
fn allocate(file: &std::fs::File, bytes: u64) -> std::io::Result<()> {
    use rustix::io::Errno;
    if bytes == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes an answer that took long to get; where the file cannot be had any more, it is on standard error.
pub fn write_answer(path: &Path, text: &str) -> Outcome {
    write_file(path, text.as_bytes()).inspect_err(|_| say_part!("{}\n", text.trim_end()))
}

/// A file without content in the directory of that one, gone when it is dropped.
fn temporary_next_to(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let permissions = std::fs::Permissions::from_mode(0o644);
    // tempfile would add the name of its own file, which says nothing to the user.
    let made = tempfile::Builder::new()
        .permissions(permissions)
        .tempfile_in(directory);
    made.map_err(|error| {
        let text = error.to_string();
        std::io::Error::new(
            error.kind(),
            text.split(" at path ").next().unwrap_or_default(),
        )
    })
}

fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = temporary_next_to(path)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
