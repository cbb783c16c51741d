//! Clients that are other programs: one for each server, on the clients' CPUs and in their namespace.
//!
//! ```text
//!  setup of the cell    sh -c 'read -r begin && exec COMMAND'    in the lease, waits for a line
//!  run                  all begin ─► all have ended                each prints its rate
//! ```

use std::fmt;
use std::io;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Resources};
use nearfar_machine::CpuSet;
use regex_lite::Regex;

use super::client::{Answers, Driven};
use super::declared::Parameters;
use super::server::{PASSWORD, Server};
use super::started::{Started, check, filled};

/// What a client command's placeholders are.
pub(super) const PLACEHOLDERS: [&str; 8] = [
    "address",
    "port",
    "cpus",
    "node",
    "connections",
    "value_bytes",
    "seconds",
    PASSWORD,
];
/// How much longer than `--seconds` a client may take.
const END_WITHIN: Duration = Duration::from_secs(60);
/// Rare, because it takes CPU time while the clients measure; the rates do not depend on it.
const END_CHECK: Duration = Duration::from_millis(50);
/// Between the first and the last end, as a share of the time.
const MAX_GAP: f64 = 0.05;

/// A command that makes requests, and where it prints how many a second.
#[derive(Debug)]
pub(super) struct ClientCommand {
    command: String,
    /// Its first group is the rate.
    rate: Regex,
}

/// One client.
pub(super) struct Program {
    started: Started,
    server: String,
    /// Whose requests they are counted as.
    group: usize,
}

impl ClientCommand {
    /// Checks both: placeholders, and that the expression has a group.
    ///
    /// # Errors
    /// The name of the argument that is wrong, and why.
    pub(super) fn new(command: &str, rate: &str) -> Result<Self, (&'static str, String)> {
        check(command, &PLACEHOLDERS).map_err(|reason| ("client-command", reason))?;
        let wrong = |reason: String| ("client-rate", reason);
        let rate = Regex::new(rate).map_err(|error| wrong(error.to_string()))?;
        match rate.captures_len() {
            0 | 1 => Err(wrong(
                "expected a group for the number, such as 'Requests/sec: +([0-9.]+)'".to_owned(),
            )),
            _ => Ok(Self {
                command: command.to_owned(),
                rate,
            }),
        }
    }

    /// Starts one client for this server, which waits for its begin. `enter` lets it run in a namespace.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(
        &self,
        server: &Server,
        parameters: &Parameters,
        password: &str,
        cpus: &CpuSet,
        resources: &mut Resources,
        enter: impl FnOnce(&mut Command) -> io::Result<()>,
    ) -> Result<Program, BoxError> {
        let address = server.address;
        let command = filled(&self.command, &PLACEHOLDERS, |name| match name {
            "address" => address.ip().to_string(),
            "port" => address.port().to_string(),
            "cpus" => cpus.to_string(),
            "node" => server.node.to_string(),
            "connections" => parameters.connections.to_string(),
            "value_bytes" => parameters.value_bytes.to_string(),
            "seconds" => parameters.seconds.to_string(),
            _ => password.to_owned(),
        })?;
        let script = format!("read -r begin && exec {command}");
        Ok(Program {
            started: Started::new(&script, cpus, Stdio::piped(), resources, enter)?,
            server: address.to_string(),
            group: server.group,
        })
    }

    /// Lets all begin, and waits until all have ended. `check` is an error where a server has.
    ///
    /// # Errors
    /// When one fails, prints no rate or does not end in time, a server ends, or `cancel` is set.
    pub(super) fn drive<T>(
        &self,
        (programs, groups): (&mut [Program], usize),
        seconds: f64,
        cancel: &AtomicBool,
        read: impl Fn() -> T,
        mut check: impl FnMut() -> Result<(), BoxError>,
    ) -> Result<Driven<T>, BoxError> {
        let before = read();
        let begun = Instant::now();
        for program in programs.iter_mut() {
            program.begin()?;
        }
        let limit = END_WITHIN + Duration::from_secs_f64(seconds);
        let mut all = vec![Answers::default(); groups];
        let mut ends: Vec<Option<Duration>> = vec![None; programs.len()];
        loop {
            for (program, end) in programs.iter_mut().zip(&mut ends) {
                if end.is_none() && program.has_succeeded()? {
                    *end = Some(begun.elapsed());
                    all[program.group].requests_per_s += self.rate(program)?;
                }
            }
            let Some(running) = ends.iter().position(Option::is_none) else {
                break;
            };
            check()?;
            if cancel.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            if begun.elapsed() > limit {
                let (client, limit) = (&programs[running], limit.as_secs_f64());
                let lines = client.started.last_lines();
                return Err(format!("{client} has not ended within {limit} s{lines}").into());
            }
            sleep(END_CHECK);
        }
        Ok(Driven {
            groups: all,
            warning: apart(ends.iter().flatten()),
            before,
            after: read(),
        })
    }

    /// The last rate that a client printed.
    ///
    /// # Errors
    /// When it printed none.
    pub(super) fn rate(&self, program: &Program) -> Result<f64, BoxError> {
        let output = program.started.output()?;
        last(&self.rate, &output).ok_or_else(|| {
            let (rate, lines) = (self.rate.as_str(), program.started.last_lines());
            let what = format!("no plain number in the output of {program} matches --client-rate");
            format!("{what} {rate:?}{lines}").into()
        })
    }
}

impl Program {
    /// Lets it begin.
    ///
    /// # Errors
    /// The system's answer.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.started.begin()
    }

    /// Whether it has ended, with success.
    ///
    /// # Errors
    /// When it has failed, with what it printed.
    pub(super) fn has_succeeded(&mut self) -> Result<bool, BoxError> {
        match self.started.ended()? {
            None => Ok(false),
            Some(ended) if ended.is_success => Ok(true),
            Some(ended) => Err(format!("{self} {}", ended.what).into()),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the client of {}", self.server)
    }
}

/// A warning where one ended long before another, whose rate is then partly that of an idle machine.
fn apart<'a>(ends: impl Iterator<Item = &'a Duration> + Clone) -> Option<String> {
    let (first, last) = (ends.clone().min()?, ends.max()?);
    let gap = last.saturating_sub(*first);
    (gap > END_CHECK * 2 && gap > last.mul_f64(MAX_GAP)).then(|| {
        format!(
            "a client ended {:.1} s before the last one, which ran on without it: a client that runs for {{seconds}} does not",
            gap.as_secs_f64()
        )
    })
}

/// The number in the first group of the last match; programs overwrite what they print while they run.
fn last(rate: &Regex, output: &str) -> Option<f64> {
    let found = rate.captures_iter(output).last()?.get(1)?;
    // 12,345 and 12.3k are other numbers than what stands before the comma or unit.
    let goes_on = |c: char| c == ',' || c.is_alphanumeric();
    if output[found.end()..].starts_with(goes_on) {
        return None;
    }
    let number: f64 = found.as_str().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_last_number_that_is_found() {
        let redis = Regex::new("GET: ([0-9.]+) requests per second").unwrap();
        let output = "GET: rps=0.0\rGET: 10 requests per second\nGET: 12345.67 requests per second, p50=0.1 msec\n";
        assert_eq!(last(&redis, output), Some(12345.67));
        assert_eq!(last(&redis, "GET: . requests per second"), None);
        assert_eq!(last(&redis, ""), None);
        let huge = Regex::new("(.+)").unwrap();
        assert_eq!(last(&huge, "1e999"), None);
        assert_eq!(last(&huge, "-1"), None);
        for other in [
            "GET: 12,345 requests per second",
            "GET: 12.3k requests per second",
        ] {
            let number = Regex::new("GET: ([0-9.]+)").unwrap();
            assert_eq!(last(&number, other), None);
        }
    }

    #[test]
    fn clients_that_end_far_apart_are_a_warning() {
        let apart = |ends: [u64; 2]| apart(ends.map(Duration::from_millis).iter());
        assert_eq!(apart([9_600, 10_000]), None);
        assert_eq!(apart([100, 190]), None);
        assert!(apart([9_000, 10_000]).unwrap().contains("1.0 s before"));
    }

    #[test]
    fn a_wrong_command_or_expression_is_named() {
        let wrong = |command, rate| ClientCommand::new(command, rate).unwrap_err().0;
        assert_eq!(wrong("wrk {adress}:{port}", "(.*)"), "client-command");
        assert_eq!(wrong("wrk", "(.*)"), "client-command");
        assert_eq!(wrong("wrk {port}", "("), "client-rate");
        assert_eq!(wrong("wrk {port}", "[0-9]+"), "client-rate");
        assert!(ClientCommand::new("wrk {port}", "([0-9]+)").is_ok());
    }
}
