//! A small HTTP server: one thread, a bounded number of connections, nothing that a slow client can hold for long.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::connection::Connection;

/// Clients at the same time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// Where there are as many, the oldest is closed for the next after this long: clients that send nothing cannot keep others out.
const MIN_CONNECTION_TIME: Duration = Duration::from_secs(1);
/// After a connection could not be accepted (too many open files), none is for this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The text that is served, replaced by each scan.
#[derive(Clone, Debug)]
pub struct Page(Arc<Mutex<Arc<str>>>);

impl Page {
    pub fn new(text: String) -> Self {
        Self(Arc::new(Mutex::new(text.into())))
    }

    pub fn replace(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
    }

    fn get(&self) -> Arc<str> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A server that listens; connections wait until it is started.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
}

/// A server that answers, until this is dropped.
#[derive(Debug)]
pub struct Running {
    thread: Option<JoinHandle<()>>,
    /// Closing it ends the thread.
    stop: Option<OwnedFd>,
}

impl Server {
    /// # Errors
    /// When the address is in use, or not one of this machine.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Where it listens: with the port that the kernel chose for port 0.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers in a thread of its own.
    ///
    /// # Errors
    /// When there can be no thread or pipe.
    pub fn start(self, page: Page) -> io::Result<Running> {
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || serve(&self.listener, &stopped, &page))?;
        Ok(Running {
            thread: Some(thread),
            stop: Some(stop),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(listener: &TcpListener, stopped: &OwnedFd, page: &Page) {
    let mut connections: Vec<Connection> = Vec::new();
    let mut accept_after = Instant::now();
    loop {
        let now = Instant::now();
        connections.retain(|connection| connection.deadline() > now);
        let accept_at = accept_time(&connections, accept_after);
        let is_open = accept_at <= now;
        let Some(ready) = wait(
            listener,
            stopped,
            &connections,
            is_open.then_some(now),
            accept_at,
        ) else {
            return;
        };
        let page = page.get();
        let mut ready = ready.into_iter();
        let has_caller = ready.next().unwrap_or(false);
        connections
            .retain_mut(|connection| !ready.next().unwrap_or(false) || connection.advance(&page));
        if has_caller && is_open && !accept(listener, &mut connections) {
            accept_after = Instant::now() + ACCEPT_PAUSE;
        }
    }
}

/// When the next connection may be accepted: the first is the oldest.
fn accept_time(connections: &[Connection], accept_after: Instant) -> Instant {
    match connections.first() {
        Some(oldest) if connections.len() >= MAX_CONNECTIONS => {
            accept_after.max(oldest.accepted() + MIN_CONNECTION_TIME)
        }
        _ => accept_after,
    }
}

/// Waits for the listener, where it is open, and for the connections: which of them are ready, the listener first. `None` at the end.
fn wait(
    listener: &TcpListener,
    stopped: &OwnedFd,
    connections: &[Connection],
    open_since: Option<Instant>,
    accept_at: Instant,
) -> Option<Vec<bool>> {
    let callers = match open_since {
        Some(_) => PollFlags::IN,
        None => PollFlags::empty(),
    };
    let mut files = vec![
        PollFd::new(stopped, PollFlags::IN),
        PollFd::new(listener, callers),
    ];
    files.extend(
        connections
            .iter()
            .map(|it| PollFd::from_borrowed_fd(it.as_fd(), it.events())),
    );
    let deadlines = connections.iter().map(Connection::deadline);
    let until = deadlines
        .chain(open_since.is_none().then_some(accept_at))
        .min();
    let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
    // An interrupted wait is one without anything ready.
    let _ = poll(&mut files, timeout.as_ref());
    if !files[0].revents().is_empty() {
        return None;
    }
    Some(
        files[1..]
            .iter()
            .map(|file| !file.revents().is_empty())
            .collect(),
    )
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up: a wait that ends too early would be repeated at once.
    let duration = duration + Duration::from_millis(1);
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Accepts a connection in place of the oldest where there are too many. Returns whether the next may be accepted at once.
fn accept(listener: &TcpListener, connections: &mut Vec<Connection>) -> bool {
    let stream = match listener.accept() {
        Ok((stream, _)) => stream,
        // It has gone away meanwhile.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => return true,
        Err(_) => return false,
    };
    if connections.len() >= MAX_CONNECTIONS {
        connections.remove(0);
    }
    if stream.set_nonblocking(true).is_ok() {
        connections.push(Connection::new(stream, Instant::now()));
    }
    true
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    /// So many connections accepted one millisecond after the other, and their clients.
    fn connections(count: usize, first: Instant) -> (Vec<Connection>, Vec<TcpStream>) {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = listener.local_addr().unwrap();
        (0..count)
            .map(|number| {
                let client = TcpStream::connect(address).unwrap();
                let stream = listener.accept().unwrap().0;
                let accepted = first + Duration::from_millis(number as u64);
                (Connection::new(stream, accepted), client)
            })
            .unzip()
    }

    #[test]
    fn the_next_client_waits_until_the_oldest_of_too_many_has_had_its_time() {
        let first = Instant::now();
        let (mut all, _clients) = connections(MAX_CONNECTIONS, first);
        assert_eq!(accept_time(&all, first), first + MIN_CONNECTION_TIME);
        let paused = first + MIN_CONNECTION_TIME + ACCEPT_PAUSE;
        assert_eq!(accept_time(&all, paused), paused);
        let newest = all.pop().unwrap();
        assert_eq!(accept_time(&all, first), first);
        all.remove(0);
        all.extend(connections(1, first + MIN_CONNECTION_TIME).0);
        all.push(newest);
        let second = first + Duration::from_millis(1);
        assert_eq!(accept_time(&all, first), second + MIN_CONNECTION_TIME);
    }

    #[test]
    fn a_client_that_is_accepted_replaces_the_oldest_of_too_many() {
        let (mut all, _clients) = connections(MAX_CONNECTIONS, Instant::now());
        let second = all[1].accepted();
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(accept(&listener, &mut all));
        assert_eq!((all.len(), all[0].accepted()), (MAX_CONNECTIONS, second));
    }
}
