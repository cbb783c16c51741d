//! The servers: a process each, on a CPU of its own.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Resources};
use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_proc::system::{RANDOM_UUID, random_digits};

use super::started::{Started, filled};

/// What a server command's placeholders are.
pub(super) const PLACEHOLDERS: [&str; 5] = ["address", "port", "cpu", "node", PASSWORD];
/// The clients give it to the server if its command has it.
pub(super) const PASSWORD: &str = "password";
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
        let command = filled(command, &PLACEHOLDERS, |name| match name {
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
