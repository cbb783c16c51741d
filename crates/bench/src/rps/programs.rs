//! Programs that a run starts, servers and clients: each with a command that has placeholders, on CPUs of its own, with its output
//! in a file.
//!
//! A server is a process on a CPU of its own. Of clients that are other programs there is one for each server, on the clients' CPUs
//! and in their namespace.
//!
//! ```text
//!  setup of the cell    sh -c 'read -r begin && exec COMMAND'    in the lease, waits for a line
//!  run                  all begin ─► all have ended                each prints its rate
//! ```

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Process, Resources};
use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_proc::affinity;
use nearfar_proc::system::{RANDOM_UUID, random_digits};
use regex_lite::Regex;

use super::Parameters;
use super::clients::{Answers, Driven};

/// The last lines of its output that an error has.
const LAST_LINES: usize = 5;

/// A program of the lease of a cell.
pub(super) struct Started {
    process: Process,
    /// Its output and errors.
    log: PathBuf,
}

/// Fills in a command's placeholders; `{{` and `}}` are braces.
///
/// # Errors
/// The placeholder that is none of `known`.
fn filled(command: &str, known: &[&str], value: impl Fn(&str) -> String) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), command);
    while let Some(position) = rest.find(['{', '}']) {
        let (before, brace) = rest.split_at(position);
        text += before;
        if let Some(after) = brace.strip_prefix("{{").or(brace.strip_prefix("}}")) {
            text += &brace[..1];
            rest = after;
            continue;
        }
        let named = brace.strip_prefix('{').ok_or("a } has no {")?;
        let (name, after) = named.split_once('}').ok_or("a { has no }")?;
        if !known.contains(&name) {
            let known: Vec<String> = known.iter().map(|name| format!("{{{name}}}")).collect();
            return Err(format!("{{{name}}} is none of {}", known.join(" ")));
        }
        text += &value(name);
        rest = after;
    }
    Ok(text + rest)
}

/// Refuses a command with other placeholders, or without that of the port, which each server has of its own.
///
/// # Errors
/// Why it is refused.
pub(super) fn check(command: &str, known: &[&str]) -> Result<(), String> {
    filled(command, known, |_| String::new())?;
    match command.contains("{port}") {
        true => Ok(()),
        false => Err("expected {port}: each server has a port of its own".to_owned()),
    }
}

impl Started {
    /// Starts a shell's script on these CPUs, in a directory of its own. Its memory is that of the CPUs' node, since it runs there
    /// from its first instruction on.
    ///
    /// # Errors
    /// When it cannot be started, or not there.
    pub(super) fn new(
        script: &str,
        cpus: &CpuSet,
        stdin: Stdio,
        resources: &mut Resources,
        prepare: impl FnOnce(&mut Command) -> std::io::Result<()>,
    ) -> Result<Self, BoxError> {
        let directory = resources.temporary_directory()?;
        let log = directory.join("output");
        let output = File::create(&log)?;
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script])
            .current_dir(&directory)
            .stdin(stdin)
            .stdout(output.try_clone()?)
            .stderr(output);
        prepare(&mut shell)?;
        // A child has the CPUs of the thread that starts it.
        let own = affinity::get(0)?;
        affinity::set(0, cpus)
            .map_err(|error| format!("cannot start a server or client on CPUs {cpus}: {error}"))?;
        let started = resources.start(shell);
        affinity::set(0, &own)?;
        Ok(Self {
            process: started?,
            log,
        })
    }

    /// Lets a program begin that waits for a line of its standard input, a pipe.
    pub(super) fn begin(&mut self) -> std::io::Result<()> {
        let stdin = self.process.child.stdin.take();
        match stdin.map_or(Ok(()), |mut pipe| pipe.write_all(b"\n")) {
            // It has ended, which `ended` tells with the reason.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }

    /// How it ended, with its last lines; `None` while it runs.
    pub(super) fn ended(&mut self) -> std::io::Result<Option<Ended>> {
        let status = self.process.child.try_wait()?;
        Ok(status.map(|status| Ended {
            is_success: status.success(),
            what: format!("ended: {status}{}", self.last_lines()),
        }))
    }

    /// What it printed.
    pub(super) fn output(&self) -> std::io::Result<String> {
        let bytes = fs::read(&self.log)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The last lines that it printed, to be appended to a sentence.
    fn last_lines(&self) -> String {
        let text = self.output().unwrap_or_default();
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        match lines.is_empty() {
            true => String::new(),
            false => format!(
                ": {}",
                lines[lines.len().saturating_sub(LAST_LINES)..].join("; ")
            ),
        }
    }
}

/// The end of a program.
pub(super) struct Ended {
    is_success: bool,
    /// `ended: exit status: 1: its last lines`.
    pub(super) what: String,
}

/// What a server command's placeholders are.
pub(super) const SERVER_PLACEHOLDERS: [&str; 5] = ["address", "port", "cpu", "node", PASSWORD];
/// The clients give it to the server if its command has it.
const PASSWORD: &str = "password";
/// With a password: Linux answers for the address on every interface, so other machines can reach the server.
pub(super) const REDIS: &str = "redis-server --bind {address} --port {port} --save '' --appendonly no --requirepass {password}";
const LISTEN_WITHIN: Duration = Duration::from_secs(20);
const LISTEN_CHECK: Duration = Duration::from_millis(20);

/// One server.
pub(super) struct Server {
    program: Started,
    /// Whose requests its requests are counted as.
    pub(super) group: usize,
    pub(super) node: NodeId,
    pub(super) cpu: CpuId,
    pub(super) address: SocketAddrV4,
}

/// Whether the clients have to give the password.
pub(super) fn has_password(command: &str) -> bool {
    command.contains(&format!("{{{PASSWORD}}}"))
}

/// A password that cannot be guessed.
pub(super) fn password() -> Result<String, BoxError> {
    random_digits().map_err(|error| format!("cannot read {RANDOM_UUID}: {error}").into())
}

impl Server {
    /// Starts one.
    ///
    /// # Errors
    /// When the command is wrong or cannot be started, or another program has the address.
    pub(super) fn start(
        command: &str,
        password: &str,
        (group, node, cpu): (usize, NodeId, CpuId),
        address: SocketAddrV4,
        resources: &mut Resources,
    ) -> Result<Self, BoxError> {
        // Another user's server would answer, and be written to.
        if let Err(error) = TcpListener::bind(address) {
            let reason = nearfar_proc::error_text(&error);
            return Err(format!(
                "no server can listen at {address}: {reason}; `ss -ltnp` shows who has the port"
            )
            .into());
        }
        let command = filled(command, &SERVER_PLACEHOLDERS, |name| match name {
            "address" => address.ip().to_string(),
            "port" => address.port().to_string(),
            "cpu" => cpu.to_string(),
            "node" => node.to_string(),
            _ => password.to_owned(),
        })?;
        let script = format!("exec {command}");
        let cpus = CpuSet::from_iter([cpu]);
        let program = Started::new(&script, &cpus, Stdio::null(), resources, |_| Ok(()))?;
        Ok(Self {
            program,
            group,
            node,
            cpu,
            address,
        })
    }

    /// Waits until it listens.
    pub(super) fn wait(&mut self, cancel: &AtomicBool) -> Result<(), BoxError> {
        let until = Instant::now() + LISTEN_WITHIN;
        let address = SocketAddr::V4(self.address);
        while TcpStream::connect_timeout(&address, LISTEN_CHECK).is_err() {
            self.check()?;
            if cancel.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            if Instant::now() > until {
                let limit = LISTEN_WITHIN.as_secs();
                let lines = self.program.last_lines();
                return Err(format!(
                    "the server does not listen at {address} within {limit} s{lines}"
                )
                .into());
            }
            sleep(LISTEN_CHECK);
        }
        Ok(())
    }

    /// An error where it has ended.
    pub(super) fn check(&mut self) -> Result<(), BoxError> {
        match self.program.ended()? {
            Some(ended) => {
                let (cpu, address) = (self.cpu, self.address);
                Err(format!("the server at {address} on CPU {cpu} {}", ended.what).into())
            }
            None => Ok(()),
        }
    }
}

/// The address of a server, of 1000 at most on one node.
pub(super) fn address(server: Ipv4Addr, index: usize) -> SocketAddrV4 {
    const FIRST_PORT: u16 = 6400;
    SocketAddrV4::new(server, FIRST_PORT + index as u16)
}

/// What a client command's placeholders are.
const CLIENT_PLACEHOLDERS: [&str; 8] = [
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
        check(command, &CLIENT_PLACEHOLDERS).map_err(|reason| ("client-command", reason))?;
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
        let command = filled(&self.command, &CLIENT_PLACEHOLDERS, |name| match name {
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
    fn a_command_has_the_values_of_its_placeholders() {
        let filled = |command| filled(command, &["address", "port"], |_| "6400".to_owned());
        assert_eq!(filled("serve -p {port} x").unwrap(), "serve -p 6400 x");
        assert_eq!(filled("serve").unwrap(), "serve");
        let error = filled("serve {host}").unwrap_err();
        assert_eq!(error, "{host} is none of {address} {port}");
        assert_eq!(
            filled("awk '{{print}}' {port}").unwrap(),
            "awk '{print}' 6400"
        );
        assert!(filled("serve {port").is_err() && filled("serve port}").is_err());
        assert!(check("serve {address}", &["address", "port"]).is_err());
    }

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
