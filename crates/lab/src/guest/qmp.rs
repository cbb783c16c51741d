//! QEMU's monitor: one JSON object a line, over a socket pair (docs/interop/qmp-spec.rst of QEMU).
//!
//! ```text
//! QEMU ─► {"QMP": ...}                     greeting
//!      ◄─ {"execute": "qmp_capabilities"}
//!      ─► {"return": {}}
//!      ◄─ {"execute": "device_add", "arguments": {...}}
//!      ─► {"event": ...}*  {"return": {}} or {"error": {"desc": "..."}}
//! ```
//!
//! Saving a guest's state and loading it again is a migration to or from a file (docs/devel/migration of QEMU):
//!
//! ```text
//!  save: boot ─ stop ─ migrate file:STATE
//!  load: -incoming defer ─ device_del placeholders ─ migrate-incoming file:STATE ─ device_add late devices ─ cont
//! ```
//!
//! With `x-ignore-shared` memory is not part of the state: it is in the files that both use.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::design::{Design, LateDevice};

/// QEMU answers at once or hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a state may take to be written or read: it takes some milliseconds a vCPU.
const MAX_MIGRATION_TIME: Duration = Duration::from_secs(20);
/// Time between two questions how far it is.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A connection to the monitor.
#[derive(Debug)]
pub struct Monitor {
    reader: BufReader<UnixStream>,
    greeted: bool,
    /// The number of the last command. An answer to an earlier one came too late.
    command: u64,
    /// What was read of a line whose end has not come yet.
    line: String,
}

impl Monitor {
    /// A monitor at the other end of this socket; nothing is sent yet.
    ///
    /// # Errors
    /// When the socket takes no timeout.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            reader: BufReader::new(socket),
            greeted: false,
            command: 0,
            line: String::new(),
        })
    }

    /// Runs a command and gives its result.
    ///
    /// # Errors
    /// QEMU's refusal in its words; a line that is no JSON; a monitor that is gone or silent.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        if !self.greeted {
            self.answer()?;
            self.greeted = true;
            self.execute("qmp_capabilities", json!({}))?;
        }
        self.command += 1;
        let line = json!({ "execute": command, "arguments": arguments, "id": self.command })
            .to_string()
            + "\n";
        let sent = self.reader.get_mut().write_all(line.as_bytes());
        sent.map_err(failed)?;
        self.answer()
    }

    /// Limits how long answers are waited for from now on.
    pub fn set_patience(&mut self, patience: Duration) {
        // A socket that refuses keeps the limit it has.
        drop(self.reader.get_ref().set_read_timeout(Some(patience)));
    }

    /// Waits for answers as long as at first.
    pub fn reset_patience(&mut self) {
        self.set_patience(PATIENCE);
    }

    /// Runs a command whose result says nothing.
    fn run(&mut self, command: &str, arguments: Value) -> Result<(), String> {
        self.execute(command, arguments).map(drop)
    }

    /// Stops the guest's vCPUs.
    pub fn stop(&mut self) -> Result<(), String> {
        self.run("stop", json!({}))
    }

    /// Saves the state of a guest that is stopped.
    pub fn save(&mut self, uri: &str) -> Result<(), String> {
        self.migrate("migrate", uri)
    }

    /// Loads a state, plugs in the devices that are not part of it, and lets the guest run.
    pub fn load(&mut self, uri: &str, design: &Design, late: &[LateDevice]) -> Result<(), String> {
        for id in design.placeholders() {
            self.run("device_del", json!({ "id": id }))?;
        }
        self.migrate("migrate-incoming", uri)?;
        for device in late {
            self.run("device_add", device.arguments.clone())?;
        }
        self.run("cont", json!({}))
    }

    /// Migrates all but the memory, and waits for the end of it.
    fn migrate(&mut self, command: &str, uri: &str) -> Result<(), String> {
        let capability = json!([{ "capability": "x-ignore-shared", "state": true }]);
        let capabilities = json!({ "capabilities": capability });
        self.run("migrate-set-capabilities", capabilities)?;
        self.run(command, json!({ "uri": uri }))?;
        let started = Instant::now();
        while started.elapsed() < MAX_MIGRATION_TIME {
            let seen = self.execute("query-migrate", json!({}))?;
            match seen["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    let problem = seen["error-desc"].as_str();
                    return Err(problem.unwrap_or("QEMU says no reason").to_owned());
                }
                _ => std::thread::sleep(POLL_INTERVAL),
            }
        }
        let seconds = MAX_MIGRATION_TIME.as_secs();
        Err(format!(
            "the state was not written or read after {seconds} s"
        ))
    }

    /// The next line that is neither an event nor the answer to an earlier command.
    fn answer(&mut self) -> Result<Value, String> {
        loop {
            if self.reader.read_line(&mut self.line).map_err(failed)? == 0 {
                return Err("QEMU's monitor is gone".to_owned());
            }
            let line = std::mem::take(&mut self.line);
            let said: Value = serde_json::from_str(&line).map_err(failed)?;
            if said["id"].as_u64().is_some_and(|id| id != self.command) {
                continue;
            }
            if let Some(refusal) = said.get("error") {
                let reason = refusal["desc"].as_str();
                return Err(reason.unwrap_or("refused without a reason").to_owned());
            }
            if let Some(result) = said.get("return").or_else(|| said.get("QMP")) {
                return Ok(result.clone());
            }
        }
    }
}

fn failed(error: impl Display) -> String {
    format!("QEMU's monitor: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A monitor whose peer has said these lines already.
    fn after(lines: &[&str]) -> (Monitor, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        theirs
            .write_all(lines.join("\n").as_bytes())
            .expect("room for some lines");
        theirs.write_all(b"\n").expect("room for a line end");
        (Monitor::new(ours).expect("a timeout"), theirs)
    }

    #[test]
    fn events_before_an_answer_are_passed_over() {
        let event = r#"{"event": "DEVICE_DELETED", "data": {}}"#;
        let (mut monitor, _peer) = after(&[
            r#"{"QMP": {}}"#,
            r#"{"return": {}}"#,
            event,
            r#"{"return": 7}"#,
        ]);
        assert_eq!(monitor.execute("device_add", json!({})).unwrap(), json!(7));
    }

    #[test]
    fn an_answer_that_came_too_late_is_passed_over() {
        let late = r#"{"return": "of another command", "id": 1}"#;
        let (mut monitor, _peer) = after(&[
            r#"{"QMP": {}}"#,
            r#"{"return": {}}"#,
            late,
            r#"{"return": 7, "id": 2}"#,
        ]);
        assert_eq!(
            monitor.execute("query-status", json!({})).unwrap(),
            json!(7)
        );
    }

    #[test]
    fn a_refusal_is_in_the_words_of_qemu() {
        let (mut monitor, _peer) = after(&[
            r#"{"QMP": {}}"#,
            r#"{"return": {}}"#,
            r#"{"error": {"class": "x", "desc": "Bus full"}}"#,
        ]);
        let refused = monitor.execute("device_add", json!({}));
        assert_eq!(refused, Err("Bus full".to_owned()));
    }

    #[test]
    fn a_monitor_that_hangs_up_or_babbles_is_an_error() {
        let (mut monitor, peer) = after(&[r#"{"QMP": {}}"#]);
        drop(peer);
        assert!(monitor.execute("quit", json!({})).is_err());
        let (mut monitor, _peer) = after(&["babble"]);
        assert!(monitor.execute("quit", json!({})).is_err());
    }
}
