//! The text format of Prometheus, version 0.0.4:
//!
//! ```text
//! # HELP nearfar_service_tasks Processes of the service.
//! # TYPE nearfar_service_tasks gauge
//! nearfar_service_tasks{service="redis.service"} 3
//! ```
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>. The textfile collector of node_exporter reads no other.

use std::fmt::{Display, Write as _};
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The media type of [`Text`].
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics, one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Text(String);

/// A metric to which samples are added; without any, nothing is written of it.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    is_begun: bool,
}

impl Text {
    /// Begins a metric that only increases while the exporter runs, or since boot. Each name is begun once.
    pub fn counter(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        debug_assert!(name.ends_with("_total"), "{name}");
        self.family(name, "counter", help)
    }

    /// Begins another metric. Each name is begun once.
    pub fn gauge(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        debug_assert!(!name.ends_with("_total"), "{name}");
        self.family(name, "gauge", help)
    }

    fn family(&mut self, name: &'static str, kind: &'static str, help: &'static str) -> Family<'_> {
        Family {
            text: &mut self.0,
            name,
            kind,
            help,
            is_begun: false,
        }
    }

    /// All of it.
    pub fn finish(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// Adds a sample with these labels.
    pub fn sample(&mut self, labels: &[(&str, &dyn Display)], value: f64) -> &mut Self {
        self.begin();
        self.text.push_str(self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(self.text, &value.to_string());
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        // Display never writes an exponent; all values here are finite.
        let _ = writeln!(self.text, " {value}");
        self
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_begun, true) {
            // The help is ours: no backslash or end of line in it.
            let (name, kind, help) = (self.name, self.kind, self.help);
            let _ = write!(
                self.text,
                "# HELP {name} {help}
# TYPE {name} {kind}
"
            );
        }
    }
}

/// Backslash, quote and end of line have an escape; everything else stands for itself.
fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str(r"\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

/// Longer names are cut, in characters. A unit's name has up to 255.
const MAX_CHARACTERS: usize = 256;

/// A name as a label's value: without control characters, which parsers of the text format treat differently, and not too long.
///
/// Names are keys after this, so that no two series have the same labels.
pub fn label(name: &str) -> String {
    let printable = |c: char| match c.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => c,
    };
    name.chars().take(MAX_CHARACTERS).map(printable).collect()
}

/// node_exporter may run as another user.
const MODE: u32 = 0o644;

/// Replaces the file by a rename, so that none that is half written is ever read. The temporary file is in the same directory; its
/// name does not end in `.prom`, which is what the collector reads. Nothing is synced: after a crash the content would be stale.
///
/// # Errors
/// When the directory cannot be written, or the name is that of a directory.
pub fn write_textfile(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".nearfar-")
        .tempfile_in(directory.unwrap_or(Path::new(".")))
        .map_err(without_own_name)?;
    file.write_all(text.as_bytes())?;
    // Whatever the umask.
    file.as_file()
        .set_permissions(Permissions::from_mode(MODE))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// tempfile adds the name of its own file, which means nothing to the user.
fn without_own_name(error: io::Error) -> io::Error {
    let text = error.to_string();
    let text = text.split(" at path ").next().unwrap_or_default();
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_metric_has_its_help_and_type_once_and_without_samples_nothing() {
        let mut text = Text::default();
        text.gauge("nearfar_a", "None.");
        text.counter("nearfar_b_total", "Two.")
            .sample(&[("of", &"x\\y\n\"z\""), ("node", &3)], 0.25)
            .sample(&[], 1e21);
        assert_eq!(
            text.finish(),
            "# HELP nearfar_b_total Two.\n# TYPE nearfar_b_total counter\n\
             nearfar_b_total{of=\"x\\\\y\\n\\\"z\\\"\",node=\"3\"} 0.25\n\
             nearfar_b_total 1000000000000000000000\n"
        );
    }

    /// A value read back as the format says: up to the first quote without a backslash before it.
    fn unescaped(text: &str) -> (String, &str) {
        let (mut value, mut rest) = (String::new(), text.chars());
        loop {
            match rest.next().unwrap() {
                '"' => return (value, rest.as_str()),
                '\\' => value.push(match rest.next().unwrap() {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("\\{c} is no escape"),
                }),
                '\n' => panic!("a line ends in a value"),
                c => value.push(c),
            }
        }
    }

    proptest! {
        #[test]
        fn any_value_is_read_back_as_it_was(name in any::<Vec<u8>>(), other in ".*", number in 0..1_u64 << 53) {
            let name = String::from_utf8_lossy(&name).into_owned();
            let mut text = Text::default();
            text.gauge("nearfar_c", "One.")
                .sample(&[("name", &name), ("other", &other)], number as f64);
            let text = text.finish();
            let line = text.splitn(3, '\n').nth(2).unwrap();
            let (read, rest) = unescaped(line.strip_prefix("nearfar_c{name=\"").unwrap());
            prop_assert_eq!(read, name);
            let (read, rest) = unescaped(rest.strip_prefix(",other=\"").unwrap());
            prop_assert_eq!(read, other);
            prop_assert_eq!(rest, format!("}} {number}\n"));
        }
    }
}
