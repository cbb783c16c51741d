//! What the benchmarks of whole programs share: medians with their range, and where the built programs are.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Figures of one kind: their median, and the lowest and highest.
pub struct Spread {
    /// The middle one, the upper of two.
    pub median: f64,
    lowest: f64,
    highest: f64,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        Self { median: values[values.len() / 2], lowest: values[0], highest: values[last] }
    }

    /// `39.7 ms (38.1 to 46.8)`.
    pub fn with_unit(&self, unit: impl fmt::Display) -> String {
        let digits = if self.median < 1.0 { 3 } else { 1 };
        let Self { median, lowest, highest } = self;
        format!("{median:.digits$} {unit} ({lowest:.digits$} to {highest:.digits$})")
    }
}

/// The file that cargo put beside this example's folder.
pub fn beside_us(name: &str) -> io::Result<PathBuf> {
    let us = std::env::current_exe()?;
    let target = us.parent().and_then(Path::parent).ok_or(io::ErrorKind::NotFound)?;
    let binary = target.join(name);
    match binary.exists() {
        true => Ok(binary),
        false => Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is not built", binary.display()))),
    }
}
