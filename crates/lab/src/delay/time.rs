//! The value of `--time`.

use std::ops::RangeInclusive;
use std::str::FromStr;

use nearfar_machine::{Acceleration, SimulatedTime};
use thiserror::Error;

use super::find_plugin;
use crate::arch::Arch;
use crate::error::LabError;
use crate::qemu::{self, Qemu};

/// The oldest QEMU that has what simulated time needs: conditional callbacks came with 9.1.
const SINCE: (u32, u32, u32) = (9, 1, 0);

/// The time that a guest's clocks follow while a command runs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TimeSpec {
    /// The host's.
    #[default]
    Host,
    Simulated(SimulatedTime),
    /// Simulated, where the guest can have it.
    Auto,
}

/// A text that is not a value of `--time`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TimeSpecError {
    /// An unknown word or key.
    #[error(
        "{0:?} is not auto, host, simulated, or instruction=NS, window=NS, window=NS/NS, seed=NUMBER, idle=host, idle=jump or disk=NS, separated by commas"
    )]
    Item(String),
    /// The value of a key.
    #[error("{key} {value:?} is not {expected}")]
    Value {
        key: &'static str,
        value: String,
        expected: &'static str,
    },
}

impl FromStr for TimeSpec {
    type Err = TimeSpecError;

    fn from_str(text: &str) -> Result<Self, TimeSpecError> {
        match text {
            "host" => return Ok(Self::Host),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let mut time = SimulatedTime::default();
        for item in text.split(',').filter(|item| *item != "simulated") {
            let (key, value) = item
                .split_once('=')
                .ok_or_else(|| TimeSpecError::Item(item.to_owned()))?;
            let wrong = |key, expected| TimeSpecError::Value {
                key,
                value: value.to_owned(),
                expected,
            };
            let number = |text: &str, key, expected, range: RangeInclusive<f64>| {
                let number = text.parse::<f64>().ok();
                let number = number.filter(|number| range.contains(number));
                number.ok_or_else(|| wrong(key, expected))
            };
            let within = |key, expected, range| number(value, key, expected, range);
            match key {
                "instruction" => {
                    let ns = within(
                        "instruction",
                        "nanoseconds from 0.001 to 1000",
                        0.001..=1000.0,
                    )?;
                    time.instruction_ps = Some((ns * 1000.0).round() as u32);
                }
                "window" => {
                    let (narrow, wide) = value.split_once('/').unwrap_or((value, value));
                    let expected = "nanoseconds from 1 to 1000000, or two of them such as 60/200, the wider last";
                    let narrow = number(narrow, "window", expected, 1.0..=1e6)?.round();
                    let wide = number(wide, "window", expected, narrow..=1e6)?.round();
                    time.window_ns = Some(narrow as u32);
                    time.wide_window_ns = Some(wide as u32).filter(|_| wide > narrow);
                }
                "disk" => {
                    let ns = within("disk", "nanoseconds from 1 to 1000000000", 1.0..=1e9)?;
                    time.disk_ns = Some(ns.round() as u32);
                }
                "seed" => {
                    let seed = value.parse();
                    time.seed = seed.map_err(|_| wrong("seed", "a whole number"))?;
                }
                "idle" => {
                    time.jumps_when_idle = match value {
                        "host" => false,
                        "jump" => true,
                        _ => return Err(wrong("idle", "host or jump")),
                    }
                }
                _ => return Err(TimeSpecError::Item(item.to_owned())),
            }
        }
        Ok(Self::Simulated(time))
    }
}

impl TimeSpec {
    /// Simulated time, where it is asked for and this QEMU and host have it. Left open, it is that of software emulation of the
    /// host's own architecture, where there is a plugin.
    ///
    /// # Errors
    /// When it is asked for and they have it not, with what would.
    pub fn on(
        self,
        qemu: &Qemu,
        arch: Arch,
        acceleration: Acceleration,
    ) -> Result<Option<SimulatedTime>, LabError> {
        let time = match self {
            Self::Host => return Ok(None),
            Self::Simulated(time) => time,
            Self::Auto => {
                let can_be = Some(arch) == Arch::host()
                    && acceleration == Acceleration::Tcg
                    && find_plugin(qemu).is_ok();
                let time = Self::Simulated(SimulatedTime::default());
                let time = can_be.then(|| time.on(qemu, arch, acceleration).ok());
                return Ok(time.flatten().flatten());
            }
        };
        let missing = |what: String, hint: &str| LabError::Missing {
            what,
            hint: format!("{hint}, or use --time host"),
        };
        if qemu.version < SINCE {
            let what = format!("simulated time in QEMU {}", qemu.version_text());
            let hint = format!("it needs QEMU {} or later", qemu::dotted(SINCE));
            return Err(missing(what, &hint));
        }
        if !cfg!(target_arch = "x86_64") {
            let what = "simulated time on this host".to_owned();
            return Err(missing(what, "it needs a host of x86-64"));
        }
        Ok(Some(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_read_as_it_is_shown() {
        let time = SimulatedTime {
            instruction_ps: Some(250),
            window_ns: Some(40),
            wide_window_ns: Some(200),
            seed: 7,
            jumps_when_idle: true,
            disk_ns: Some(20_000),
        };
        assert_eq!(time.to_string().parse(), Ok(TimeSpec::Simulated(time)));
        assert_eq!("host".parse(), Ok(TimeSpec::Host));
        assert_eq!("auto".parse(), Ok(TimeSpec::Auto));
        let default = TimeSpec::Simulated(SimulatedTime::default());
        assert_eq!("simulated".parse(), Ok(default));
        assert_eq!("simulated,seed=0".parse(), Ok(default));
        for wrong in [
            "",
            "real",
            "instruction=0",
            "instruction=x",
            "window=-1",
            "window=2e6",
            "window=60/40",
            "window=60/",
            "window=1/2/3",
            "seed=1.5",
            "simulated,host",
            "instruction=nan",
            "idle=skip",
            "disk=0",
        ] {
            assert!(wrong.parse::<TimeSpec>().is_err(), "{wrong}");
        }
    }
}
