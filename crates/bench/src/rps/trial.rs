//! A trial before a run is stored: the namespace that the clients need, and the commands of servers and clients, which have to start
//! and not to end at once. A server listens at the loopback interface for it, and a client makes requests to it.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Resources};
use nearfar_machine::CpuSet;

use super::EXPERIMENT;
use super::namespace::{self, Namespace};
use super::prepare::Rps;
use super::program::ClientCommand;
use super::server::{self, Server};
use crate::registry::{Arguments, RunError};

/// A client that runs for longer is taken for one that works.
const CLIENT_TRIAL: Duration = Duration::from_millis(500);
const END_CHECK: Duration = Duration::from_millis(10);

impl Rps<'_> {
    /// Refuses a run that cannot work: without the rights for a namespace, without `ip`, or with a command that fails at once.
    ///
    /// # Errors
    /// What is missing, or the argument that is wrong with what the program printed.
    pub(super) fn check_programs(
        &self,
        arguments: &Arguments,
        cancel: &AtomicBool,
    ) -> Result<(), RunError> {
        let namespace = Namespace::new().map_err(namespace::cannot_make);
        drop(namespace.map_err(RunError::Prepare)?);
        namespace::ip(&["-Version"]).map_err(RunError::Prepare)?;
        let Ok(address) = free_address() else {
            // Without a loopback interface the first sample is the trial.
            return Ok(());
        };
        let nodes = self.nodes()?;
        let cpu = self.server_cpus(nodes.card).into_iter().next();
        let cpu = cpu.ok_or_else(|| RunError::Prepare("no CPU for a server".into()))?;
        let (clients, _) = self
            .clients(&nodes, &CpuSet::default())
            .map_err(RunError::Target)?;
        let password = server::password().map_err(RunError::Prepare)?;
        let mut resources = Resources::new(format!("the trial of bench {EXPERIMENT}"));
        let command = &self.parameters.server_command;
        let place = (0, nodes.card, cpu);
        let server = Server::start(command, &password, place, address, &mut resources);
        let mut server = server.map_err(RunError::Prepare)?;
        let wrong = |(name, error): (&str, BoxError)| match cancel.load(Ordering::Relaxed) {
            true => RunError::Interrupted,
            false => arguments.wrong(name, error.to_string()).into(),
        };
        server
            .wait(cancel)
            .map_err(|error| wrong(("server-command", error)))?;
        match &self.client {
            Some(client) => self
                .try_client(client, &server, (&password, &clients), &mut resources)
                .map_err(wrong),
            None => Ok(()),
        }
    }

    fn try_client(
        &self,
        client: &ClientCommand,
        server: &Server,
        (password, cpus): (&str, &CpuSet),
        resources: &mut Resources,
    ) -> Result<(), (&'static str, BoxError)> {
        let wrong = |error: BoxError| ("client-command", error);
        let program = client.start(server, &self.parameters, password, cpus, resources, |_| {
            Ok(())
        });
        let mut program = program.map_err(wrong)?;
        program.begin().map_err(|error| wrong(error.into()))?;
        let until = Instant::now() + CLIENT_TRIAL;
        while Instant::now() < until {
            if program.has_succeeded().map_err(wrong)? {
                let rate = client.rate(&program);
                return rate.map(drop).map_err(|error| ("client-rate", error));
            }
            sleep(END_CHECK);
        }
        Ok(())
    }
}

/// An address of the loopback interface with a port that no program has.
fn free_address() -> std::io::Result<SocketAddrV4> {
    let any = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = any.local_addr()?.port();
    Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}
