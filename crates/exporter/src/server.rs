//! A small HTTP server: one thread, a bounded number of connections, nothing that a slow client can hold for long. With TLS and
//! passwords where the web configuration asks for them.

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::text::MEDIA_TYPE;
use crate::web::WebConfig;

/// Clients at the same time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// Where there are as many, the oldest is closed for the next after this long: clients that send nothing cannot keep others out.
const MIN_CONNECTION_TIME: Duration = Duration::from_secs(1);
/// After a connection could not be accepted (too many open files), none is for this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the server reads for each request, and others replace.
#[derive(Debug)]
pub struct Shared<T: ?Sized>(Arc<Mutex<Arc<T>>>);

/// The text that is served, replaced by each scan.
pub type Page = Shared<str>;

impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: ?Sized> Shared<T> {
    pub fn new(value: impl Into<Arc<T>>) -> Self {
        Self(Arc::new(Mutex::new(value.into())))
    }

    pub fn replace(&self, value: impl Into<Arc<T>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value.into();
    }

    pub fn get(&self) -> Arc<T> {
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
    pub fn start(self, page: Page, config: Shared<WebConfig>) -> io::Result<Running> {
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || serve(&self.listener, &stopped, &page, &config))?;
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

fn serve(listener: &TcpListener, stopped: &OwnedFd, page: &Page, config: &Shared<WebConfig>) {
    let mut admitted = Admitted::default();
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
        let config = config.get();
        let mut ready = ready.into_iter();
        let has_caller = ready.next().unwrap_or(false);
        admitted.begin_turn(&config);
        let mut answer = |request: &[u8]| answer(request, &page, &config, &mut admitted);
        connections.retain_mut(|connection| {
            let is_ready = ready.next().unwrap_or(false) || connection.is_deferred;
            !is_ready || connection.advance(&mut answer)
        });
        if has_caller && is_open && !accept(listener, &mut connections, config.tls.as_ref()) {
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
    let timeout = match connections.iter().any(|it| it.is_deferred) {
        true => Some(Timespec::default()),
        false => until.map(|until| timespec(until.saturating_duration_since(Instant::now()))),
    };
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
fn accept(
    listener: &TcpListener,
    connections: &mut Vec<Connection>,
    tls: Option<&Arc<ServerConfig>>,
) -> bool {
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
    if stream.set_nonblocking(true).is_ok()
        && let Some(stream) = Stream::new(stream, tls)
    {
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

/// What is read from and written to. None of it blocks.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Stream {
    /// `None` where there can be no session of TLS.
    fn new(stream: TcpStream, tls: Option<&Arc<ServerConfig>>) -> Option<Self> {
        let Some(tls) = tls else {
            return Some(Self::Plain(stream));
        };
        let session = ServerConnection::new(Arc::clone(tls)).ok()?;
        Some(Self::Tls(Box::new(StreamOwned::new(session, stream))))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(tls) => &tls.sock,
        }
    }

    /// What a read waits for: a session may have to send a part of its handshake first.
    fn events(&self) -> PollFlags {
        match self {
            Self::Plain(_) => PollFlags::IN,
            Self::Tls(tls) => {
                let mut events = PollFlags::empty();
                events.set(PollFlags::IN, tls.conn.wants_read());
                events.set(PollFlags::OUT, tls.conn.wants_write());
                events
            }
        }
    }

    /// Whether there is something of the session to send.
    fn has_to_write(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.conn.wants_write(),
        }
    }

    /// Says that nothing follows.
    fn end(&mut self) -> io::Result<()> {
        if let Self::Tls(tls) = self {
            tls.conn.send_close_notify();
            // What the socket does not take of it now is left out: the client has the length of the answer.
            let _ = tls.flush();
        }
        self.socket().shutdown(Shutdown::Write)
    }
}

impl io::Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// A client.
struct Connection {
    stream: Stream,
    accepted: Instant,
    deadline: Instant,
    /// Its request is complete, and its password has to be hashed in another turn.
    is_deferred: bool,
    state: State,
}

enum State {
    Reading(Vec<u8>),
    Writing(Answer),
    /// Answered: bytes that have come since, which nothing reads.
    Closing(usize),
}

struct Answer {
    head: String,
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
    fn new(stream: Stream, now: Instant) -> Self {
        Self {
            stream,
            accepted: now,
            deadline: now + MAX_TIME,
            is_deferred: false,
            state: State::Reading(Vec::new()),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.socket().as_fd()
    }

    /// What it waits for.
    fn events(&self) -> PollFlags {
        match self.state {
            State::Writing(_) => PollFlags::OUT,
            State::Reading(_) | State::Closing(_) => self.stream.events(),
        }
    }

    /// Reads or writes what is possible now, with the answer to a request once it is complete. Returns whether it goes on.
    fn advance(&mut self, answer: &mut dyn FnMut(&[u8]) -> Reply) -> bool {
        // Until it waits: a session of TLS may have read more from the socket than it gave.
        while let State::Reading(request) = &mut self.state {
            match self.is_deferred {
                true => {}
                false => match read(&mut self.stream, request) {
                    Progress::Waits => return true,
                    Progress::Ended => return false,
                    Progress::Moved => {}
                },
            }
            let reply = answer(request);
            self.is_deferred = matches!(reply, Reply::Deferred);
            match reply {
                Reply::Incomplete => {}
                Reply::Deferred => return true,
                Reply::Answer(answer) => self.state = State::Writing(answer),
            }
        }
        if let State::Writing(answer) = &mut self.state {
            match answer.write(&mut self.stream) {
                Progress::Waits => return true,
                Progress::Ended => return false,
                Progress::Moved => {}
            }
            if self.stream.end().is_err() {
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

fn read(stream: &mut Stream, request: &mut Vec<u8>) -> Progress {
    let mut buffer = [0; 2048];
    match stream.read(&mut buffer) {
        Ok(0) => Progress::Ended,
        Ok(count) => {
            request.extend_from_slice(&buffer[..count]);
            Progress::Moved
        }
        Err(error) if has_to_wait(&error) => Progress::Waits,
        Err(error) => {
            // What the client did wrong, of which it sees at most the kind; not that it has gone.
            if let (Stream::Tls(tls), ErrorKind::InvalidData) = (stream, error.kind()) {
                let client = tls.sock.peer_addr();
                let client = client.map_or_else(|error| error.to_string(), |it| it.to_string());
                tracing::info!(client, reason = %error, "TLS refused");
            }
            Progress::Ended
        }
    }
}

impl Answer {
    fn new(status: &'static str, media_type: &'static str, body: Body) -> Self {
        let more = match &status[..3] {
            "405" => "Allow: GET, HEAD\r\n",
            "401" => "WWW-Authenticate: Basic\r\n",
            _ => "",
        };
        Self {
            head: format!(
                "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
                 Connection: close\r\n{more}",
                body.bytes().len()
            ),
            body,
            sent: 0,
        }
    }

    fn error(status: &'static str) -> Self {
        Self::new(status, "text/plain", Body::Static(status))
    }

    /// With further lines in its head.
    fn finish(mut self, headers: &str) -> Self {
        if !headers.contains("X-Content-Type-Options") {
            self.head += "X-Content-Type-Options: nosniff\r\n";
        }
        self.head += headers;
        self.head += "\r\n";
        self
    }

    fn write(&mut self, stream: &mut Stream) -> Progress {
        loop {
            let body = self.body.bytes();
            let rest = match self.sent.checked_sub(self.head.len()) {
                None => &self.head.as_bytes()[self.sent..],
                Some(sent) => &body[sent..],
            };
            // A session of TLS keeps what the socket did not take.
            let written = match rest.is_empty() {
                true => stream.flush().map(|()| None),
                false => stream.write(rest).map(Some),
            };
            match written {
                Ok(None) => return Progress::Moved,
                // A session of TLS that waits for the socket takes no more.
                Ok(Some(0)) if stream.has_to_write() => return Progress::Waits,
                Ok(Some(0)) => return Progress::Ended,
                Ok(Some(count)) => self.sent += count,
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

/// What follows a request as far as it was read.
enum Reply {
    Incomplete,
    /// Another turn has the time to hash its password.
    Deferred,
    Answer(Answer),
}

/// Passwords that were right once, and at most one hash in a turn: a hash takes longer than all scrapes, and others must not have to
/// wait for those of clients that have none.
#[derive(Default)]
struct Admitted {
    /// Of this configuration.
    config: Weak<WebConfig>,
    /// As they stood in requests.
    headers: HashSet<Vec<u8>>,
    has_hashed: bool,
}

/// Passwords kept at the same time.
const MAX_ADMITTED: usize = 64;

impl Admitted {
    fn begin_turn(&mut self, config: &Arc<WebConfig>) {
        self.has_hashed = false;
        if !std::ptr::eq(self.config.as_ptr(), Arc::as_ptr(config)) {
            self.config = Arc::downgrade(config);
            self.headers.clear();
        }
    }

    /// Whether this header is that of a user; `None` where that takes another turn.
    fn admits(&mut self, config: &WebConfig, authorization: Option<&[u8]>) -> Option<bool> {
        let Some(header) = authorization.filter(|_| config.has_users()) else {
            return Some(config.admits(authorization));
        };
        if self.headers.contains(header) {
            return Some(true);
        }
        if std::mem::replace(&mut self.has_hashed, true) {
            return None;
        }
        let is_admitted = config.admits(authorization);
        if is_admitted && self.headers.len() < MAX_ADMITTED {
            self.headers.insert(header.to_vec());
        }
        Some(is_admitted)
    }
}

fn answer(request: &[u8], page: &Arc<str>, config: &WebConfig, admitted: &mut Admitted) -> Reply {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let answer = match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => match page_for(&parsed, page, config, admitted) {
            Some(answer) => answer,
            None => return Reply::Deferred,
        },
        Ok(httparse::Status::Partial) if request.len() < MAX_REQUEST_BYTES => {
            return Reply::Incomplete;
        }
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Answer::error("431 Request Header Fields Too Large")
        }
        Err(_) => Answer::error("400 Bad Request"),
    };
    Reply::Answer(answer.finish(&config.headers))
}

/// The answer to a request; `None` where its password is not hashed yet.
fn page_for(
    request: &httparse::Request<'_, '_>,
    page: &Arc<str>,
    config: &WebConfig,
    admitted: &mut Admitted,
) -> Option<Answer> {
    let is_head = request.method == Some("HEAD");
    if !is_head && request.method != Some("GET") {
        return Some(Answer::error("405 Method Not Allowed"));
    }
    let is_authorization =
        |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("Authorization");
    let authorization = request.headers.iter().find(is_authorization);
    if !admitted.admits(config, authorization.map(|header| header.value))? {
        return Some(Answer::error("401 Unauthorized"));
    }
    let path = request.path.unwrap_or_default().split('?').next();
    let mut answer = match path {
        Some("/metrics") => Answer::new("200 OK", MEDIA_TYPE, Body::Page(Arc::clone(page))),
        Some("/") => Answer::new("200 OK", "text/html; charset=utf-8", Body::Static(HOME)),
        _ => {
            let text = Body::Static("404 Not Found: there is /metrics\n");
            Answer::new("404 Not Found", "text/plain", text)
        }
    };
    if is_head {
        answer.body = Body::Static("");
    }
    Some(answer)
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
                (Connection::new(Stream::Plain(stream), accepted), client)
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
        assert!(accept(&listener, &mut all, None));
        assert_eq!((all.len(), all[0].accepted), (MAX_CONNECTIONS, second));
    }

    fn status(request: &[u8]) -> Option<String> {
        let config = WebConfig::default();
        let page = Arc::from("page\n");
        match answer(request, &page, &config, &mut Admitted::default()) {
            Reply::Answer(answer) => {
                Some(answer.head.split_whitespace().nth(1).unwrap().to_owned())
            }
            Reply::Incomplete | Reply::Deferred => None,
        }
    }

    #[test]
    fn a_password_is_hashed_once_and_one_in_a_turn() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("web.yml");
        // Of `far away`, by libcrypt.
        let hash = "$2y$04$abcdefghijklmnopqrstuuY5vsNbwHdX77hfuPssCAcQiQw4DLNQS";
        std::fs::write(&file, format!("basic_auth_users: {{a: {hash}}}\n")).unwrap();
        let config = Arc::new(WebConfig::read(&file).unwrap());
        let (right, wrong) = (b"Basic YTpmYXIgYXdheQ==", b"Basic YTpub3QgdGhpcyE=");
        let mut admitted = Admitted::default();
        admitted.begin_turn(&config);
        assert_eq!(admitted.admits(&config, None), Some(false));
        assert_eq!(admitted.admits(&config, Some(right)), Some(true));
        // The first is remembered; a second hash takes another turn.
        assert_eq!(admitted.admits(&config, Some(right)), Some(true));
        assert_eq!(admitted.admits(&config, Some(wrong)), None);
        admitted.begin_turn(&config);
        assert_eq!(admitted.admits(&config, Some(wrong)), Some(false));
        assert_eq!(admitted.admits(&config, Some(right)), Some(true));
        let config = Arc::new(WebConfig::read(&file).unwrap());
        admitted.begin_turn(&config);
        assert!(admitted.headers.is_empty());
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
        (Connection::new(Stream::Plain(stream), accepted), client)
    }

    #[test]
    fn bytes_of_a_request_do_not_extend_its_time_and_an_answer_shortens_it() {
        // In the future: what is cut after the answer is cut from now on.
        let accepted = Instant::now() + 6 * MAX_TIME;
        let (mut slow, mut client) = connection(accepted);
        assert_eq!(slow.deadline, accepted + MAX_TIME);
        let (page, config) = (Arc::from("page\n"), WebConfig::default());
        let mut admitted = Admitted::default();
        let mut answer = |request: &[u8]| answer(request, &page, &config, &mut admitted);
        for part in ["GET /metrics ", "HTTP/1.1\r\n", "X: y"] {
            client.write_all(part.as_bytes()).unwrap();
            assert!(slow.advance(&mut answer));
            assert_eq!(slow.deadline, accepted + MAX_TIME);
        }
        client.write_all(b"\r\n\r\n").unwrap();
        let is_open = slow.advance(&mut answer) && slow.advance(&mut answer);
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
