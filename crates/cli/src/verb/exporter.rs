//! `nearfar exporter`: NUMA locality by service, for Prometheus.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use nearfar_exporter::{
    Options, Page, Running, Scan, ScanError, Scanner, Server, Shared, WebConfig, WebConfigError,
    write_textfile,
};
use nearfar_report::count;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{chdir, chroot};
use rustix::thread::CapabilitySet;

use crate::args::{seconds, size_or_zero};
use crate::failure::{Failure, Outcome, input};
use crate::recorded::stored_latencies;
use crate::{output, signals};

/// Prometheus' list of ports for exporters, 9100 to 9999, is full. This one is in no list: 6862 are the keys for NUMA.
pub const PORT: u16 = 16862;
/// `--once` waits this long for the memory of all tasks.
const MAX_ONCE: Duration = Duration::from_secs(30);
const ONCE_PAUSE: Duration = Duration::from_millis(100);

/// Export NUMA locality by service to Prometheus
///
/// Memory and CPU time of each service by node, the share that is remote and what that costs at most; interrupts of devices near
/// and far; NUMA balancing. It reads, and changes nothing. Who scrapes more often gets the same scan again (docs/exporter.md).
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar exporter\n  nearfar exporter --listen 192.0.2.7:16862 --service 'postgresql@*.service'\n  \
                             nearfar exporter --textfile /var/lib/prometheus/node-exporter/nearfar.prom\n  \
                             nearfar exporter --once | promtool check metrics"
)]
pub struct Exporter {
    /// Answer HTTP at this address; without ADDR at all [default: 127.0.0.1:16862, or none with --textfile or --once]
    #[arg(
        long,
        visible_alias = "web.listen-address",
        value_name = "ADDR:PORT",
        value_parser = address,
        conflicts_with = "once"
    )]
    listen: Option<SocketAddr>,
    /// TLS and passwords for who reads, as Prometheus' exporters take them; read again when it changes
    #[arg(
        long = "web-config",
        visible_alias = "web.config.file",
        value_name = "FILE",
        conflicts_with = "once"
    )]
    web_config: Option<PathBuf>,
    /// In a container: the machine's root directory is mounted here. Takes CAP_SYS_CHROOT; other paths are below it, too
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Replace this file after each scan, for the textfile collector of node_exporter; its name has to end in .prom
    #[arg(long, value_name = "FILE", value_parser = textfile_name)]
    textfile: Option<PathBuf>,
    /// Scan until the memory of all tasks is known, write --textfile or to standard output, and end
    #[arg(long)]
    once: bool,
    /// Scan at this interval; at a longer one where scans would take more than 1.5 % of a CPU
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    seconds: f64,
    /// Services with series of their own; the others are together in service="other"
    #[arg(long, value_name = "ROWS", default_value_t = 50)]
    limit: usize,
    /// Only this service (may be repeated) has series of its own; * stands for any text
    #[arg(long, value_name = "NAME")]
    service: Vec<String>,
    /// Leave out tasks with less memory than this
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = size_or_zero)]
    min_memory: u64,
}

/// As exporters take it: `:9100` is port 9100 of all addresses.
fn address(text: &str) -> Result<SocketAddr, String> {
    let all = text.starts_with(':').then(|| format!("[::]{text}"));
    let parsed = all.as_deref().unwrap_or(text).parse();
    parsed.map_err(|_| {
        "an address and a port is needed, such as 192.0.2.7:16862, [::1]:16862 or :16862".to_owned()
    })
}

/// Makes this the root directory: what is read is at fixed paths below it.
fn enter(root: &Path) -> Outcome {
    // Of a missing /proc every process would be gone, not unknown.
    if !root.join("proc/self").exists() || !root.join("sys/devices/system").exists() {
        return Err(input!(
            "{}: there are no proc and sys of a machine in it",
            root.display()
        ));
    }
    let entered = chroot(root).and_then(|()| chdir("/"));
    let entered = entered.map_err(anyhow::Error::new);
    let doing = || format!("cannot make {} the root directory", root.display());
    entered.with_context(doing).map_err(Failure::Refused)
}

fn textfile_name(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension == "prom" => Ok(path),
        _ => Err("the name has to end in .prom: node_exporter reads no other file".to_owned()),
    }
}

impl Exporter {
    /// Exports until it is ended, or once.
    pub fn run(self) -> Outcome {
        self.root.as_deref().map_or(Ok(()), enter)?;
        let scanner = Scanner::new(&Options {
            top: self.limit,
            services: self.service.clone(),
            min_bytes: self.min_memory,
            timing: stored_latencies(),
            with_totals: !self.once,
        });
        let scanner = scanner.map_err(failure)?;
        let ended = signals::cancel_pipe()
            .context("cannot wait for signals")
            .map_err(Failure::refused)?;
        match self.once {
            true => self.export_once(scanner, &ended),
            false => self.export(scanner, &ended),
        }
    }

    fn export_once(&self, mut scanner: Scanner, ended: &OwnedFd) -> Outcome {
        let begun = Instant::now();
        let mut scan = scanner.scan().map_err(failure)?;
        while scan.unread > 0 && begun.elapsed() < MAX_ONCE {
            if waits_until_ended(ended, ONCE_PAUSE) {
                return Ok(());
            }
            scan = scanner.scan().map_err(failure)?;
        }
        say_unknown(&scan);
        match &self.textfile {
            Some(_) => self.write(&scan.text).map_err(Failure::Refused),
            None => output::print(&scan.text),
        }
    }

    fn export(&self, mut scanner: Scanner, ended: &OwnedFd) -> Outcome {
        // Before the first scan, which takes its time: an address that is in use is an error at once.
        let server = self.server()?;
        let config = Shared::new(self.web_config()?);
        let scan = scanner.scan().map_err(failure)?;
        self.write(&scan.text).map_err(Failure::Refused)?;
        let page = Page::new(scan.text.clone());
        let _running = server
            .map(|server| start(server, &page, &config))
            .transpose()?;
        let (mut has_said, mut last_error, mut last_refused) = (false, None, None);
        let mut scan = Ok(scan);
        loop {
            if let Ok(scan) = &scan
                && scan.unread == 0
                && !std::mem::replace(&mut has_said, true)
            {
                say_unknown(scan);
            }
            if waits_until_ended(ended, scanner.rest(Duration::from_secs_f64(self.seconds))) {
                return Ok(());
            }
            // Certificates expire, users leave. A file that is wrong leaves what was there.
            let read = match config.get().is_current() {
                true => Ok(()),
                false => self.read_again(&config),
            };
            let over = "the files of --web-config are right";
            let read = read
                .map_err(|error| anyhow::anyhow!("{error}; what was read before stays in force"));
            last_refused = say_change(last_refused, read, over);
            scan = scanner.scan();
            let written = match &scan {
                Ok(scan) => {
                    page.replace(scan.text.clone());
                    self.write(&scan.text)
                }
                Err(error) => Err(anyhow::anyhow!("{error}")),
            };
            last_error = say_change(last_error, written, "scans succeed");
        }
    }

    /// What is asked of who reads.
    fn web_config(&self) -> Result<WebConfig, Failure> {
        let Some(file) = &self.web_config else {
            return Ok(WebConfig::default());
        };
        WebConfig::read(file).map_err(|error| match error {
            // A certificate may come later.
            WebConfigError::File { ref path, .. } if path != file => Failure::refused(error),
            _ => Failure::input(error),
        })
    }

    fn read_again(&self, config: &Shared<WebConfig>) -> Result<(), WebConfigError> {
        if let Some(file) = &self.web_config {
            config.replace(config.get().read_again(file)?);
        }
        Ok(())
    }

    /// Listens, where it has to.
    fn server(&self) -> Result<Option<Server>, Failure> {
        let default = || {
            self.textfile
                .is_none()
                .then_some(([127, 0, 0, 1], PORT).into())
        };
        let Some(address) = self.listen.or_else(default) else {
            return match self.web_config {
                None => Ok(None),
                Some(_) => Err(input!("--web-config with --textfile takes --listen, too")),
            };
        };
        let server = Server::bind(address)
            .with_context(|| format!("cannot listen on {address}"))
            .map_err(Failure::Refused)?;
        Ok(Some(server))
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        let Some(file) = &self.textfile else {
            return Ok(());
        };
        write_textfile(file, text).with_context(|| format!("cannot write {}", file.display()))
    }
}

fn start(server: Server, page: &Page, config: &Shared<WebConfig>) -> Result<Running, Failure> {
    let address = server.address();
    let (scheme, has_open_passwords) = (config.get().scheme(), config.get().has_open_passwords());
    let running = server
        .start(page.clone(), config.clone())
        .context("cannot start the HTTP server")
        .map_err(Failure::Refused)?;
    if let Ok(address) = address {
        output::say!("nearfar: listening on {scheme}://{address}/metrics");
        if has_open_passwords && !address.ip().is_loopback() {
            output::say!(
                "nearfar: passwords can be read on their way: --web-config has no tls_server_config"
            );
        }
    }
    Ok(running)
}

/// Says an error once, and once that it is over: the same every second would fill the journal.
fn say_change(
    before: Option<String>,
    now: anyhow::Result<()>,
    over: &'static str,
) -> Option<String> {
    let now = now.err().map(|error| format!("{error:#}"));
    match &now {
        Some(error) if before.as_ref() != Some(error) => output::say!("nearfar: {error}"),
        None if before.is_some() => output::say!("nearfar: {over} again"),
        _ => {}
    }
    now
}

/// Says what a scan could not read.
fn say_unknown(scan: &Scan) {
    for unknown in &scan.unknown {
        let tasks = count(unknown.tasks, "task");
        let reason = &unknown.unknown_reason;
        output::say!("nearfar: the memory of {tasks} is unknown: {reason}");
    }
    if !scan.unknown.is_empty() && !has_ptrace() {
        output::say!("nearfar: root, or a user with CAP_SYS_PTRACE, can read that of all tasks");
    }
}

/// Whether this process may look into those of other users.
fn has_ptrace() -> bool {
    let sets = rustix::thread::capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

/// Waits. Returns whether a signal came meanwhile.
fn waits_until_ended(ended: &OwnedFd, time: Duration) -> bool {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(ended, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            // A signal: that it came is in the pipe by now.
            Err(_) => {}
        }
    }
}

fn failure(error: ScanError) -> Failure {
    match error {
        ScanError::Pattern(_) => Failure::input(error),
        ScanError::Live(_) => Failure::refused(error),
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn an_address_without_a_host_is_that_of_all() {
        for (text, parsed) in [
            (":9100", Some("[::]:9100")),
            ("192.0.2.7:16862", Some("192.0.2.7:16862")),
            ("[::1]:16862", Some("[::1]:16862")),
            ("16862", None),
            (":", None),
            ("localhost:16862", None),
        ] {
            let address = address(text).ok().map(|it| it.to_string());
            assert_eq!(address.as_deref(), parsed, "{text}");
        }
    }
}
