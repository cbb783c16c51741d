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

/// The media type of [`Text`].
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a metric is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only increases while the exporter runs, or since boot. Its name ends in `_total`.
    Counter,
    Gauge,
}

/// Metrics, one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Text(String);

/// A metric to which samples are added; without any, nothing is written of it.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
    kind: Kind,
    help: &'static str,
    is_begun: bool,
}

impl Text {
    /// Begins a metric. Each name is begun once.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) -> Family<'_> {
        debug_assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
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
            let kind = match self.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            // The help is ours: no backslash or end of line in it.
            let _ = write!(
                self.text,
                "# HELP {0} {1}\n# TYPE {0} {kind}\n",
                self.name, self.help
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_metric_has_its_help_and_type_once_and_without_samples_nothing() {
        let mut text = Text::default();
        text.family("nearfar_a", Kind::Gauge, "None.");
        text.family("nearfar_b_total", Kind::Counter, "Two.")
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
            text.family("nearfar_c", Kind::Gauge, "One.")
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
