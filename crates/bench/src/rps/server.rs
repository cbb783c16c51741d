//! The servers: a process each, on a CPU of its own.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Process, Resources};
use nearfar_machine::{CpuId, NodeId};
use nearfar_proc::affinity;

/// What a server command's placeholders are.
pub(super) const PLACEHOLDERS: [&str; 5] = ["address", "port", "cpu", "node", PASSWORD];
/// The clients give it to the server if its command has it.
const PASSWORD: &str = "password";
/// With a password: Linux answers for the address on every interface, so other machines can reach the server.
pub(super) const REDIS: &str = "redis-server --bind {address} --port {port} --save '' --appendonly no --requirepass {password}";
const LISTEN_WITHIN: Duration = Duration::from_secs(20);
const LISTEN_CHECK: Duration = Duration::from_millis(20);
const SAID_LINES: usize = 5;

/// One server.
pub(super) struct Server {
    process: Process,
    pub(super) node: NodeId,
    pub(super) cpu: CpuId,
    pub(super) address: SocketAddrV4,
    /// Its output and errors.
    log: PathBuf,
}

/// Fills in a command's placeholders.
///
/// # Errors
/// The placeholder that there is not.
pub(super) fn filled(
    command: &str,
    value: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), command);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or("a { has no }")?;
        let known = || PLACEHOLDERS.map(|name| format!("{{{name}}}")).join(" ");
        let value = value(name).ok_or_else(|| format!("{{{name}}} is none of {}", known()))?;
        text += before;
        text += &value;
        rest = after;
    }
    Ok(text + rest)
}

/// Whether the clients have to give the password.
pub(super) fn has_password(command: &str) -> bool {
    command.contains(&format!("{{{PASSWORD}}}"))
}

/// A password that cannot be guessed.
pub(super) fn password() -> Result<String, BoxError> {
    const RANDOM: &str = "/proc/sys/kernel/random/uuid";
    let uuid = fs::read_to_string(RANDOM);
    let uuid = uuid.map_err(|error| format!("cannot read {RANDOM}: {error}"))?;
    Ok(uuid.trim().to_owned())
}

impl Server {
    /// Starts one. Its memory is that of its node, since it runs there from its first instruction on.
    ///
    /// # Errors
    /// When the command is wrong or cannot be started, or another program has the address.
    pub(super) fn start(
        command: &str,
        password: &str,
        (node, cpu): (NodeId, CpuId),
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
        let value = |name: &str| match name {
            "address" => Some(address.ip().to_string()),
            "port" => Some(address.port().to_string()),
            "cpu" => Some(cpu.to_string()),
            "node" => Some(node.to_string()),
            PASSWORD => Some(password.to_owned()),
            _ => None,
        };
        let command = filled(command, value)?;
        let directory = resources.temporary_directory()?;
        let log = directory.join("output");
        let output = File::create(&log)?;
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("exec {command}")])
            .current_dir(&directory);
        shell
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        // A child has the CPUs of the thread that starts it.
        let own = affinity::get(0)?;
        affinity::pin(cpu)
            .map_err(|error| format!("cannot start a server on CPU {cpu}: {error}"))?;
        let started = resources.start(shell);
        affinity::set(0, &own)?;
        Ok(Self {
            process: started?,
            node,
            cpu,
            address,
            log,
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
                return Err(format!(
                    "the server does not listen at {address} within {limit} s{}",
                    self.said()
                )
                .into());
            }
            sleep(LISTEN_CHECK);
        }
        Ok(())
    }

    /// An error where it has ended.
    pub(super) fn check(&mut self) -> Result<(), BoxError> {
        match self.process.child.try_wait()? {
            Some(status) => {
                let (cpu, address) = (self.cpu, self.address);
                Err(format!(
                    "the server at {address} on CPU {cpu} ended: {status}{}",
                    self.said()
                )
                .into())
            }
            None => Ok(()),
        }
    }

    /// Its last lines.
    fn said(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        match lines.is_empty() {
            true => String::new(),
            false => format!(
                ": {}",
                lines[lines.len().saturating_sub(SAID_LINES)..].join("; ")
            ),
        }
    }
}

/// The address of a server, of 1000 at most on one node.
pub(super) fn address(server: Ipv4Addr, index: usize) -> SocketAddrV4 {
    const FIRST_PORT: u16 = 6400;
    SocketAddrV4::new(server, FIRST_PORT + index as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_values_of_its_placeholders() {
        let value = |name: &str| (name == "port").then(|| "6400".to_owned());
        assert_eq!(
            filled("serve -p {port} x", value).unwrap(),
            "serve -p 6400 x"
        );
        assert_eq!(filled("serve", value).unwrap(), "serve");
        let error = filled("serve {host}", value).unwrap_err();
        assert_eq!(
            error,
            "{host} is none of {address} {port} {cpu} {node} {password}"
        );
        assert!(filled("serve {port", value).is_err());
    }
}
