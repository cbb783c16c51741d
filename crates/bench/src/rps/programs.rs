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
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Resources};
use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_proc::affinity;
use nearfar_proc::system::{RANDOM_UUID, random_digits};
use regex_lite::Regex;

use super::Parameters;
use super::clients::{Answers, Driven};
use crate::program::{KeptOutput, Program, last_number};

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

/// Starts a shell's script on these CPUs, in a directory of its own. Its memory is that of the CPUs' node, since it runs there
/// from its first instruction on.
///
/// # Errors
/// When it cannot be started, or not there.
fn start(
    script: &str,
    cpus: &CpuSet,
    stdin: Stdio,
    resources: &mut Resources,
    prepare: impl FnOnce(&mut Command) -> io::Result<()>,
) -> Result<Program, BoxError> {
    let directory = resources.temporary_directory()?;
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script])
        .current_dir(&directory)
        .stdin(stdin);
    prepare(&mut shell)?;
    // A child has the CPUs of the thread that starts it.
    let own = affinity::get(0)?;
    affinity::set(0, cpus)
        .map_err(|error| format!("cannot start a server or client on CPUs {cpus}: {error}"))?;
    let started = Program::start(shell, KeptOutput::Together, &directory, resources);
    affinity::set(0, &own)?;
    started
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
    program: Program,
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
        let program = start(&script, &cpus, Stdio::null(), resources, |_| Ok(()))?;
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
pub(super) struct ClientProgram {
    program: Program,
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
    ) -> Result<ClientProgram, BoxError> {
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
        Ok(ClientProgram {
            program: start(&script, cpus, Stdio::piped(), resources, enter)?,
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
        (clients, groups): (&mut [ClientProgram], usize),
        seconds: f64,
        cancel: &AtomicBool,
        read: impl Fn() -> T,
        mut check: impl FnMut() -> Result<(), BoxError>,
    ) -> Result<Driven<T>, BoxError> {
        let before = read();
        let begun = Instant::now();
        for client in clients.iter_mut() {
            client.begin()?;
        }
        let limit = END_WITHIN + Duration::from_secs_f64(seconds);
        let mut all = vec![Answers::default(); groups];
        let mut ends: Vec<Option<Duration>> = vec![None; clients.len()];
        loop {
            for (client, end) in clients.iter_mut().zip(&mut ends) {
                if end.is_none() && client.has_succeeded()? {
                    *end = Some(begun.elapsed());
                    all[client.group].requests_per_s += self.rate(client)?;
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
                let (client, limit) = (&clients[running], limit.as_secs_f64());
                let lines = client.program.last_lines();
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
    pub(super) fn rate(&self, client: &ClientProgram) -> Result<f64, BoxError> {
        let output = client.program.output()?;
        last_number(&self.rate, &output).ok_or_else(|| {
            let (rate, lines) = (self.rate.as_str(), client.program.last_lines());
            let what = format!("no plain number in the output of {client} matches --client-rate");
            format!("{what} {rate:?}{lines}").into()
        })
    }
}

impl ClientProgram {
    /// Lets it begin.
    ///
    /// # Errors
    /// The system's answer.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.program.begin()
    }

    /// Whether it has ended, with success.
    ///
    /// # Errors
    /// When it has failed, with what it printed.
    pub(super) fn has_succeeded(&mut self) -> Result<bool, BoxError> {
        match self.program.ended()? {
            None => Ok(false),
            Some(ended) if ended.is_success => Ok(true),
            Some(ended) => Err(format!("{self} {}", ended.what).into()),
        }
    }
}

impl fmt::Display for ClientProgram {
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
