//! A small HTTP server: one thread, a bounded number of connections, nothing that a slow client can hold for long.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::text::MEDIA_TYPE;

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
    /// All addresses are those of IPv4 where the system has no IPv6.
    ///
    /// # Errors
    /// When the address is in use, or not one of this machine.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let is_of_port = |error: &io::Error| {
            use io::ErrorKind::{AddrInUse, PermissionDenied};
            matches!(error.kind(), AddrInUse | PermissionDenied)
        };
        let listener = match TcpListener::bind(address) {
            Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && !is_of_port(&error) => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
            }
            bound => bound,
        }?;
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
        connections.retain(|connection| connection.deadline > now);
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
            accept_after.max(oldest.accepted + MIN_CONNECTION_TIME)
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
    let deadlines = connections.iter().map(|it| it.deadline);
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

/// Longer requests are refused. Those of Prometheus have less than 500 bytes.
const MAX_REQUEST_BYTES: usize = 8192;
const MAX_HEADERS: usize = 64;
/// From the first byte of the request to the last of the answer: a scrape of Prometheus takes 10 s at most, too.
const MAX_TIME: Duration = Duration::from_secs(10);
/// The client has this long to close after the answer. If it were closed at once while the client still sends, the kernel would
/// reset the connection and the client might never see the answer.
const MAX_CLOSE_TIME: Duration = Duration::from_secs(1);
const MAX_UNREAD_BYTES: usize = 1 << 20;

/// A client.
struct Connection {
    stream: TcpStream,
    accepted: Instant,
    deadline: Instant,
    state: State,
}

enum State {
    Reading(Vec<u8>),
    Writing(Answer),
    /// Answered: bytes that have come since, which nothing reads.
    Closing(usize),
}

struct Answer {
    head: Vec<u8>,
    /// Empty for HEAD.
    body: Body,
    /// Bytes of both.
    sent: usize,
}

/// What is sent: the page is shared by all that read it.
enum Body {
    Page(Arc<str>),
    Static(&'static str),
}

impl Connection {
    /// A stream that does not block.
    fn new(stream: TcpStream, now: Instant) -> Self {
        Self {
            stream,
            accepted: now,
            deadline: now + MAX_TIME,
            state: State::Reading(Vec::new()),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// What it waits for.
    fn events(&self) -> PollFlags {
        match self.state {
            State::Reading(_) | State::Closing(_) => PollFlags::IN,
            State::Writing(_) => PollFlags::OUT,
        }
    }

    /// Reads or writes what is possible now. Returns whether it goes on.
    fn advance(&mut self, page: &Arc<str>) -> bool {
        if let State::Reading(request) = &mut self.state {
            match read(&mut self.stream, request) {
                Progress::Waits => return true,
                Progress::Ended => return false,
                Progress::Moved => {}
            }
            match answer(request, page) {
                Some(answer) => self.state = State::Writing(answer),
                None => return true,
            }
        }
        if let State::Writing(answer) = &mut self.state {
            match answer.write(&mut self.stream) {
                Progress::Waits => return true,
                Progress::Ended => return false,
                Progress::Moved => {}
            }
            if self.stream.shutdown(Shutdown::Write).is_err() {
                return false;
            }
            self.deadline = self.deadline.min(Instant::now() + MAX_CLOSE_TIME);
            self.state = State::Closing(0);
        }
        self.discard()
    }

    fn discard(&mut self) -> bool {
        let State::Closing(unread) = &mut self.state else {
            return true;
        };
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                *unread += count;
                *unread <= MAX_UNREAD_BYTES
            }
            Err(error) => has_to_wait(&error),
        }
    }
}

enum Progress {
    Waits,
    Moved,
    Ended,
}

fn has_to_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn read(stream: &mut TcpStream, request: &mut Vec<u8>) -> Progress {
    let mut buffer = [0; 2048];
    match stream.read(&mut buffer) {
        Ok(0) => Progress::Ended,
        Ok(count) => {
            request.extend_from_slice(&buffer[..count]);
            Progress::Moved
        }
        Err(error) if has_to_wait(&error) => Progress::Waits,
        Err(_) => Progress::Ended,
    }
}

impl Answer {
    fn new(status: &str, media_type: &str, body: Body, is_head: bool) -> Self {
        let length = body.bytes().len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n{}\r\n",
            match status.starts_with("405") {
                true => "Allow: GET, HEAD\r\n",
                false => "",
            }
        );
        Self {
            head: head.into_bytes(),
            body: if is_head { Body::Static("") } else { body },
            sent: 0,
        }
    }

    fn error(status: &'static str) -> Self {
        Self::new(status, "text/plain", Body::Static(status), false)
    }

    fn write(&mut self, stream: &mut TcpStream) -> Progress {
        loop {
            let body = self.body.bytes();
            let rest = match self.sent.checked_sub(self.head.len()) {
                None => &self.head[self.sent..],
                Some(sent) => &body[sent..],
            };
            if rest.is_empty() {
                return Progress::Moved;
            }
            match stream.write(rest) {
                Ok(0) => return Progress::Ended,
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if has_to_wait(&error) => return Progress::Waits,
                Err(_) => return Progress::Ended,
            }
        }
    }
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Page(text) => text.as_bytes(),
            Self::Static(text) => text.as_bytes(),
        }
    }
}

const HOME: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>nearfar exporter</title></head>\n\
                    <body><h1>nearfar exporter</h1><p>NUMA locality by service: <a href=\"/metrics\">metrics</a></p></body></html>\n";

/// The answer to a request, once it is complete or wrong.
fn answer(request: &[u8], page: &Arc<str>) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if request.len() < MAX_REQUEST_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Answer::error("431 Request Header Fields Too Large"));
        }
        Err(_) => return Some(Answer::error("400 Bad Request")),
    }
    let is_head = parsed.method == Some("HEAD");
    if !is_head && parsed.method != Some("GET") {
        return Some(Answer::error("405 Method Not Allowed"));
    }
    let path = parsed.path.unwrap_or_default().split('?').next();
    Some(match path {
        Some("/metrics") => {
            Answer::new("200 OK", MEDIA_TYPE, Body::Page(Arc::clone(page)), is_head)
        }
        Some("/") => Answer::new(
            "200 OK",
            "text/html; charset=utf-8",
            Body::Static(HOME),
            is_head,
        ),
        _ => Answer::new(
            "404 Not Found",
            "text/plain",
            Body::Static("404 Not Found: there is /metrics\n"),
            is_head,
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use proptest::prelude::*;

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
        let second = all[1].accepted;
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(accept(&listener, &mut all));
        assert_eq!((all.len(), all[0].accepted), (MAX_CONNECTIONS, second));
    }

    fn status(request: &[u8]) -> Option<String> {
        let answer = answer(request, &Arc::from("page\n"))?;
        let head = String::from_utf8(answer.head).unwrap();
        Some(head.split_whitespace().nth(1).unwrap().to_owned())
    }

    #[test]
    fn requests_have_the_answers_of_the_protocol() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "200"),
            ("GET /metrics?x=y HTTP/1.0\r\n\r\n", "200"),
            ("HEAD / HTTP/1.1\r\n\r\n", "200"),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", "404"),
            ("GET /../etc/passwd HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "405"),
            ("GET /metrics\r\n\r\n", "400"),
            ("\u{16}\u{3}\u{1}\0", "400"),
        ] {
            assert_eq!(
                status(request.as_bytes()).as_deref(),
                Some(expected),
                "{request:?}"
            );
        }
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\nHost"), None);
        let many = format!("GET / HTTP/1.1\r\n{}", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(status(many.as_bytes()).as_deref(), Some("431"));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(MAX_REQUEST_BYTES));
        assert_eq!(status(long.as_bytes()).as_deref(), Some("431"));
    }

    /// A connection accepted at this moment, and its client.
    fn connection(accepted: Instant) -> (Connection, TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        (Connection::new(stream, accepted), client)
    }

    #[test]
    fn bytes_of_a_request_do_not_extend_its_time_and_an_answer_shortens_it() {
        // In the future: what is cut after the answer is cut from now on.
        let accepted = Instant::now() + 6 * MAX_TIME;
        let (mut slow, mut client) = connection(accepted);
        assert_eq!(slow.deadline, accepted + MAX_TIME);
        let page = Arc::from("page\n");
        for part in ["GET /metrics ", "HTTP/1.1\r\n", "X: y"] {
            client.write_all(part.as_bytes()).unwrap();
            assert!(slow.advance(&page));
            assert_eq!(slow.deadline, accepted + MAX_TIME);
        }
        client.write_all(b"\r\n\r\n").unwrap();
        let is_open = slow.advance(&page) && slow.advance(&page);
        assert!(!is_open || slow.deadline <= Instant::now() + MAX_CLOSE_TIME);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\npage\n"), "{answer}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_or_waited_for(request in any::<Vec<u8>>()) {
            let _ = status(&request);
        }
    }
}
