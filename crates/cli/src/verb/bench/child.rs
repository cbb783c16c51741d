//! `nearfar bench child probe|load|scale`: what nearfar starts itself as, to be a probe, the load on a CPU, or tasks that
//! want one kernel lock.
//!
//! Users do not type it: it is not part of the definitions from which help, man pages and completions come, and clap never sees
//! it. What goes over its standard input and output is described in nearfar_bench.

use std::ffi::OsString;

use nearfar_bench::probe::ServeError;
use nearfar_bench::{load, probe, scale};

use crate::failure::{Failure, Outcome};

/// What a child is for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Child {
    /// One run of the probe.
    Probe,
    /// The load on one CPU.
    Load,
    /// Tasks that want one kernel lock.
    Scale,
}

impl Child {
    /// The child that this process was started as, by its arguments (its own name first); mostly none.
    pub fn asked_for(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let arguments: Vec<OsString> = arguments.into_iter().skip(1).take(4).collect();
        let arguments: Vec<&str> = arguments
            .iter()
            .map(|argument| argument.to_str().unwrap_or_default())
            .collect();
        match arguments[..] {
            ["bench", "child", "probe"] => Some(Self::Probe),
            ["bench", "child", "load"] => Some(Self::Load),
            ["bench", "child", "scale"] => Some(Self::Scale),
            _ => None,
        }
    }

    /// Works until it is done or its caller hangs up.
    pub fn run(self) -> Outcome {
        let served = match self {
            Self::Probe => probe::serve(),
            Self::Load => load::serve(),
            Self::Scale => scale::serve(),
        };
        served.map_err(|error| match error {
            ServeError::BadSpec(_) => Failure::input(error),
            ServeError::Refused { .. } => Failure::refused(error),
            ServeError::Unheard => Failure::OutputClosed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_asked_for_in_three_words_and_no_others() {
        let asked = |words: &str| Child::asked_for(words.split(' ').map(OsString::from));
        assert_eq!(asked("nearfar bench child probe"), Some(Child::Probe));
        assert_eq!(asked("/proc/self/exe bench child load"), Some(Child::Load));
        for other in [
            "nearfar",
            "nearfar bench",
            "nearfar bench child",
            "nearfar bench child probe --help",
            "bench child load",
        ] {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}
