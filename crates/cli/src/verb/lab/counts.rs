//! `lab run --counts FILE`: what the delay plugin counted, written each second and at the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nearfar_lab::delay::DelayRegion;
use nearfar_machine::Emulation;

use crate::failure::{Failure, Outcome};
use crate::output;

/// How often the file is written while the guest runs.
const PERIOD: Duration = Duration::from_secs(1);

/// A thread that writes the counts as long as this value lives.
pub struct Watch {
    stop: Sender<()>,
    writer: JoinHandle<Outcome>,
}

impl Watch {
    /// Begins to write. Each version of the file is whole: it is written under a temporary name and renamed.
    pub fn start(region: Arc<DelayRegion>, file: PathBuf, emulation: Emulation) -> Self {
        let (stop, stopped) = channel();
        let writer = std::thread::spawn(move || {
            loop {
                let last = stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
                let answer = Answer {
                    emulation: &emulation,
                    counts: region.counts(),
                };
                output::write_file(
                    &file,
                    output::json("lab-counts/1", None, &answer)?.as_bytes(),
                )?;
                if last {
                    return Ok(());
                }
            }
        });
        Self { stop, writer }
    }

    /// Writes the last counts.
    pub fn finish(self) -> Outcome {
        drop(self.stop);
        self.writer.join().unwrap_or_else(|_| {
            Err(Failure::refused(anyhow::anyhow!(
                "writing the counts ended early"
            )))
        })
    }
}

#[derive(serde::Serialize)]
struct Answer<'a> {
    emulation: &'a Emulation,
    #[serde(flatten)]
    counts: nearfar_lab::delay::Counts,
}
