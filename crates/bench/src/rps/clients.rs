//! The clients: connections that each have one request in flight, on threads with CPUs of their own, and where a reply in redis'
//! protocol (RESP2) ends.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::BoxError;
use nearfar_machine::CpuId;
use nearfar_proc::affinity;
use nearfar_runs::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::link::Namespace;
use crate::sampling::pause;

const CANCEL_CHECK: Duration = Duration::from_millis(20);
/// Cards take seconds until they have a link.
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
const CONNECT_ATTEMPT: Duration = Duration::from_secs(1);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
const BUFFER_BYTES: usize = 64 << 10;
const KEY: &str = "nearfar";

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const ENDED: u8 = 2;

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// Whose requests they are counted as.
    pub(super) group: usize,
    pub(super) server: SocketAddrV4,
    /// Port 0 for any.
    pub(super) source: SocketAddrV4,
}

/// What the clients do.
pub(super) struct ClientLoad<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) cpus: Vec<CpuId>,
    pub(super) flows: Vec<Flow>,
    /// For servers that want one.
    pub(super) password: Option<String>,
    pub(super) value_bytes: usize,
    pub(super) warm_up: Duration,
    pub(super) time: Duration,
}

/// The answers to a group of flows.
#[derive(Clone, Default)]
pub(super) struct Answers {
    pub(super) requests_per_s: f64,
    /// Empty where another program made the requests.
    pub(super) latency_ns: Histogram,
}

/// What all groups have, and what `read` gave before and after.
pub(super) struct Driven<T> {
    pub(super) groups: Vec<Answers>,
    /// What may be wrong with it.
    pub(super) warning: Option<String>,
    pub(super) before: T,
    pub(super) after: T,
}

/// Connects, warms up and measures.
///
/// # Errors
/// When a connection fails, a server answers with an error, or `cancel` is set.
pub(super) fn drive<T>(
    load: &ClientLoad<'_>,
    groups: usize,
    cancel: &AtomicBool,
    read: impl Fn() -> T,
) -> Result<Driven<T>, BoxError> {
    let phase = &AtomicU8::new(WARMING_UP);
    std::thread::scope(|scope| {
        let (connected, ready) = mpsc::channel();
        let mut threads = Vec::new();
        // A thread without a connection has nothing to do.
        let cpus = &load.cpus[..load.cpus.len().min(load.flows.len())];
        for (index, &cpu) in cpus.iter().enumerate() {
            let flows = load.flows.iter().skip(index).step_by(cpus.len());
            let flows: Vec<Flow> = flows.cloned().collect();
            let connected = connected.clone();
            let thread = std::thread::Builder::new().name("nearfar-client".to_owned());
            threads.push(thread.spawn_scoped(scope, move || {
                let client = Client::connect(load, &flows, cpu, cancel);
                let _ = connected.send(client.is_ok());
                client?.run(groups, phase)
            })?);
        }
        let are_connected = (0..threads.len()).all(|_| ready.recv() == Ok(true));
        let measured = match are_connected {
            true => measure(load, phase, cancel, &read),
            false => Err("a client has no connection".into()),
        };
        phase.store(ENDED, Ordering::Relaxed);
        let mut all = vec![Histogram::new(); groups];
        for thread in threads {
            let latencies = thread.join().map_err(|_| "a client panicked")??;
            for (sum, latencies) in all.iter_mut().zip(latencies) {
                sum.merge(&latencies);
            }
        }
        let (before, after, elapsed_s) = measured?;
        let answers = |latency_ns: Histogram| Answers {
            requests_per_s: latency_ns.count() as f64 / elapsed_s,
            latency_ns,
        };
        Ok(Driven {
            groups: all.into_iter().map(answers).collect(),
            warning: None,
            before,
            after,
        })
    })
}

/// Waits until the servers of these flows can be reached from a namespace.
///
/// # Errors
/// When one cannot in time, or `cancel` is set.
pub(super) fn reach(
    namespace: &Namespace,
    flows: &[Flow],
    cancel: &AtomicBool,
) -> Result<(), BoxError> {
    std::thread::scope(|scope| {
        let reached = scope.spawn(|| {
            namespace.enter()?;
            let mut servers = BTreeSet::new();
            let mut first = flows.iter().filter(|flow| servers.insert(flow.server));
            first.try_for_each(|flow| opened(flow, cancel).map(drop))
        });
        let reached = reached.join().map_err(|_| "a thread panicked")?;
        Ok(reached?)
    })
}

fn measure<T>(
    load: &ClientLoad<'_>,
    phase: &AtomicU8,
    cancel: &AtomicBool,
    read: &impl Fn() -> T,
) -> Result<(T, T, f64), BoxError> {
    let check = || match phase.load(Ordering::Relaxed) {
        ENDED => Err("a connection failed"),
        _ => Ok(()),
    };
    pause(load.warm_up, CANCEL_CHECK, cancel, check)?;
    let before = read();
    let begun = Instant::now();
    phase.store(MEASURING, Ordering::Relaxed);
    pause(load.time, CANCEL_CHECK, cancel, check)?;
    phase.store(ENDED, Ordering::Relaxed);
    let elapsed_s = begun.elapsed().as_secs_f64();
    Ok((before, read(), elapsed_s))
}

struct Connection {
    group: usize,
    stream: TcpStream,
    sent: Instant,
    /// Whether the request was sent while it was measured.
    counts: bool,
    received: Vec<u8>,
}

struct Client {
    connections: Vec<Connection>,
    request: Vec<u8>,
}

impl Client {
    fn connect(
        load: &ClientLoad<'_>,
        flows: &[Flow],
        cpu: CpuId,
        cancel: &AtomicBool,
    ) -> Result<Self, BoxError> {
        affinity::pin(cpu).map_err(|error| format!("cannot run on CPU {cpu}: {error}"))?;
        load.namespace.enter()?;
        let mut connections = Vec::new();
        for flow in flows {
            let stream = opened(flow, cancel)?;
            let mut connection = Connection {
                group: flow.group,
                stream,
                sent: Instant::now(),
                counts: false,
                received: Vec::new(),
            };
            if let Some(password) = &load.password {
                connection.ask(&command(&["AUTH", password]))?;
            }
            connection.ask(&command(&["SET", KEY, &"x".repeat(load.value_bytes)]))?;
            connections.push(connection);
        }
        Ok(Self {
            connections,
            request: command(&["GET", KEY]),
        })
    }

    /// Asks until the end. What was sent and answered while it was measured counts.
    fn run(mut self, groups: usize, phase: &AtomicU8) -> Result<Vec<Histogram>, BoxError> {
        let mut latencies = vec![Histogram::new(); groups];
        let run = self.serve(&mut latencies, phase);
        if run.is_err() {
            phase.store(ENDED, Ordering::Relaxed);
        }
        run.map(|()| latencies)
    }

    fn serve(&mut self, latencies: &mut [Histogram], phase: &AtomicU8) -> Result<(), BoxError> {
        for connection in &mut self.connections {
            connection.stream.set_nonblocking(true)?;
            connection.send(&self.request, false)?;
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut first = 0;
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: CANCEL_CHECK.subsec_nanos().into(),
        };
        loop {
            let streams = self.connections.iter().map(|it| it.stream.as_fd());
            let mut ready: Vec<PollFd<'_>> = streams
                .map(|stream| PollFd::from_borrowed_fd(stream, PollFlags::IN))
                .collect();
            poll(&mut ready, Some(&timeout))?;
            let ready: Vec<bool> = ready.iter().map(|it| !it.revents().is_empty()).collect();
            let now = phase.load(Ordering::Relaxed);
            if now == ENDED {
                return Ok(());
            }
            first += 1;
            for position in in_turn(first, ready.len()).filter(|it| ready[*it]) {
                let connection = &mut self.connections[position];
                if connection.receive(&mut buffer)? {
                    if connection.counts {
                        let latency = connection.sent.elapsed().as_nanos();
                        let of_group = &mut latencies[connection.group];
                        of_group.record(u64::try_from(latency).unwrap_or(u64::MAX));
                    }
                    connection.send(&self.request, now == MEASURING)?;
                }
            }
        }
    }
}

/// All positions, from this one on. Each is the first one equally often: a connection that always comes after another has its next
/// request later, which was 16 % fewer requests for the node whose connections were the second half.
fn in_turn(first: usize, positions: usize) -> impl Iterator<Item = usize> {
    (0..positions).map(move |position| (first + position) % positions)
}

impl Connection {
    fn send(&mut self, request: &[u8], counts: bool) -> io::Result<()> {
        self.sent = Instant::now();
        self.counts = counts;
        // A request fits into the buffer of a socket that has none in flight.
        self.stream.write_all(request)
    }

    /// Takes what there is. Whether that completes the reply.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool, BoxError> {
        match self.stream.read(buffer) {
            Ok(0) => return Err("the server closed the connection".into()),
            Ok(bytes) => self.received.extend_from_slice(&buffer[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(format!("the connection to the server: {error}").into()),
        }
        let Some(length) = reply_length(&self.received)? else {
            return Ok(false);
        };
        self.received.drain(..length);
        Ok(true)
    }

    /// Sends and waits for the answer.
    fn ask(&mut self, request: &[u8]) -> Result<(), BoxError> {
        self.stream.set_read_timeout(Some(CONNECT_WITHIN))?;
        self.send(request, false)?;
        let mut buffer = [0; 4096];
        while !self.receive(&mut buffer)? {}
        Ok(())
    }
}

/// Connects, again and again until the card has a link and the server listens.
fn opened(flow: &Flow, cancel: &AtomicBool) -> io::Result<TcpStream> {
    let until = Instant::now() + CONNECT_WITHIN;
    loop {
        match attempt(flow) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > until || cancel.load(Ordering::Relaxed) => {
                let what = format!("cannot connect to {}: {error}", flow.server);
                return Err(io::Error::new(error.kind(), what));
            }
            Err(_) => sleep(CONNECT_PAUSE),
        }
    }
}

fn attempt(flow: &Flow) -> io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // A reset at the end: the port, which was chosen for its queue, is free for the next sample.
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_ATTEMPT))?;
    bind(&socket, &flow.source)?;
    connect(&socket, &flow.server)?;
    Ok(TcpStream::from(socket))
}

/// A command in redis' protocol.
fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

/// Longest value that redis has.
const MAX_VALUE_BYTES: usize = 512 << 20;
/// The longest line of a length or a status that is waited for.
const MAX_LINE_BYTES: usize = 4096;

/// A reply that is not one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplyError {
    #[error("the server answers with an error: {0}")]
    Refused(String),
    #[error("the server does not speak redis' protocol: its reply begins with {0:?}")]
    Unknown(String),
}

/// Bytes of the reply at the start of `bytes`; `None` while it is incomplete.
///
/// # Errors
/// When the server answers with an error, or what it sends is no status, number or value.
pub fn reply_length(bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
    let unknown = || ReplyError::Unknown(shown(bytes));
    let Some(&kind) = bytes.first() else {
        return Ok(None);
    };
    if !b"+-:$".contains(&kind) {
        return Err(unknown());
    }
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return match bytes.len() > MAX_LINE_BYTES {
            true => Err(unknown()),
            false => Ok(None),
        };
    };
    let (line, after) = (&bytes[1..end], end + 2);
    match kind {
        b'-' => Err(ReplyError::Refused(shown(line))),
        b'$' if line == b"-1" => Ok(Some(after)),
        b'$' => {
            let text = std::str::from_utf8(line).map_err(|_| unknown())?;
            let value: usize = text.parse().map_err(|_| unknown())?;
            if value > MAX_VALUE_BYTES {
                return Err(unknown());
            }
            let all = after + value + 2;
            Ok((bytes.len() >= all).then_some(all))
        }
        _ => Ok(Some(after)),
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_is_the_first_one_equally_often() {
        let orders: Vec<Vec<usize>> = (0..6).map(|first| in_turn(first, 3).collect()).collect();
        for position in 0..3 {
            let first = orders.iter().filter(|order| order[0] == position).count();
            assert_eq!(first, 2, "{orders:?}");
        }
        for mut order in orders {
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2]);
        }
        assert_eq!(in_turn(5, 0).count(), 0);
    }

    #[test]
    fn a_reply_ends_where_its_kind_says() {
        for (bytes, expected) in [
            (&b""[..], None),
            (b"+OK", None),
            (b"+OK\r\n+OK\r\n", Some(5)),
            (b":12\r\n", Some(5)),
            (b"$-1\r\n", Some(5)),
            (b"$3\r\nab", None),
            (b"$3\r\nabc\r", None),
            (b"$3\r\nabc\r\n$", Some(9)),
            (b"$0\r\n\r\n", Some(6)),
        ] {
            assert_eq!(reply_length(bytes), Ok(expected), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        let refused = reply_length(b"-NOAUTH Authentication required.\r\n").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the server answers with an error: NOAUTH Authentication required."
        );
        for bytes in [
            &b"HTTP/1.1 400"[..],
            b"$x\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b"*1\r\n",
        ] {
            assert!(
                matches!(reply_length(bytes), Err(ReplyError::Unknown(_))),
                "{bytes:?}"
            );
        }
        assert!(reply_length(&[b'+'; 5000]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, line in "[-+:$][0-9-]{0,12}\r\n.{0,20}") {
            for bytes in [bytes.as_slice(), line.as_bytes()] {
                if let Ok(Some(length)) = reply_length(bytes) {
                    assert!(length <= bytes.len());
                }
            }
        }
    }
}
