//! QEMU's monitor: one JSON object a line, over a socket pair (docs/interop/qmp-spec.rst of QEMU).
//!
//! ```text
//! QEMU ─► {"QMP": ...}                     greeting
//!      ◄─ {"execute": "qmp_capabilities"}
//!      ─► {"return": {}}
//!      ◄─ {"execute": "device_add", "arguments": {...}}
//!      ─► {"event": ...}*  {"return": {}} or {"error": {"desc": "..."}}
//! ```

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

/// A command that QEMU's monitor did not carry out.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The socket failed.
    #[error("QEMU's monitor: {0}")]
    Io(io::Error),
    /// QEMU closed the socket.
    #[error("QEMU's monitor is gone")]
    Gone,
    /// A line is not JSON.
    #[error("QEMU's monitor: {0}")]
    Json(serde_json::Error),
    /// QEMU's refusal, in its words.
    #[error("{0}")]
    Refused(String),
    /// A migration that did not finish.
    #[error("the state was not written or read after {} s", .0.as_secs())]
    SlowMigration(Duration),
}

/// QEMU answers at once or hangs.
const PATIENCE: Duration = Duration::from_secs(30);

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
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, MonitorError> {
        if !self.greeted {
            self.answer()?;
            self.greeted = true;
            self.execute("qmp_capabilities", json!({}))?;
        }
        self.command += 1;
        let line = json!({ "execute": command, "arguments": arguments, "id": self.command })
            .to_string()
            + "\n";
        self.reader
            .get_mut()
            .write_all(line.as_bytes())
            .map_err(MonitorError::Io)?;
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

    /// The next line that is neither an event nor the answer to an earlier command.
    fn answer(&mut self) -> Result<Value, MonitorError> {
        loop {
            match self.reader.read_line(&mut self.line) {
                Ok(0) => return Err(MonitorError::Gone),
                Ok(_) => {}
                Err(error) => return Err(MonitorError::Io(error)),
            }
            let line = std::mem::take(&mut self.line);
            let said: Value = serde_json::from_str(&line).map_err(MonitorError::Json)?;
            if said["id"].as_u64().is_some_and(|id| id != self.command) {
                continue;
            }
            if let Some(refusal) = said.get("error") {
                let reason = refusal["desc"].as_str();
                return Err(MonitorError::Refused(
                    reason.unwrap_or("refused without a reason").to_owned(),
                ));
            }
            if let Some(result) = said.get("return").or_else(|| said.get("QMP")) {
                return Ok(result.clone());
            }
        }
    }
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
        assert!(matches!(refused, Err(MonitorError::Refused(reason)) if reason == "Bus full"));
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
