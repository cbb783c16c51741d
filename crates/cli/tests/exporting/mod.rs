//! An exporter that runs, and a client of it.

#![allow(dead_code, reason = "each of two programs uses some of it")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::harness::{self, Running};

/// Many times what an answer takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `nearfar exporter` at a free port.
pub struct Exporting {
    pub running: Running,
    pub address: SocketAddr,
}

impl Exporting {
    #[track_caller]
    pub fn start(options: &[&str]) -> Self {
        let words = ["exporter", "--listen", "127.0.0.1:0"];
        let interval = match options.contains(&"--seconds") {
            true => [].as_slice(),
            false => &["--seconds", "0.2"],
        };
        let words = words.iter().chain(interval).chain(options);
        let mut running = harness::nearfar(words).start();
        let line = running.wait_for_error("listening on http");
        let (_, address) = line.split_once("://").unwrap();
        let address = address.strip_suffix("/metrics").unwrap().parse().unwrap();
        Self { running, address }
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// The answer to these bytes, with its head.
    pub fn ask(&self, request: &[u8]) -> String {
        ask(self.address, request)
    }

    pub fn get(&self, path: &str) -> String {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: nearfar\r\n\r\n").as_bytes())
    }

    #[track_caller]
    pub fn metrics(&self) -> String {
        let answer = self.get("/metrics");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 OK"), "{head}");
        body.to_owned()
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a request to any server and reads to its end.
pub fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The status of an answer.
pub fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

/// The value of a metric with its labels.
pub fn value(metrics: &str, key: &str) -> Option<f64> {
    metrics.lines().find_map(|line| {
        let (found, value) = line.rsplit_once(' ')?;
        (found == key).then(|| value.parse().unwrap())
    })
}
