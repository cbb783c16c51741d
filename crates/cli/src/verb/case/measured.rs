//! The command that measures a case, and the run that it stored.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, anyhow};
use nearfar_proc::child::{end_with_parent, wait_or_end};
use nearfar_runs::{Filter, RunId, Store};
use rustix::process::Signal;
use serde::Deserialize;

use crate::args::of_store;
use crate::failure::Failure;
use crate::verb::runs::export;
use crate::{output, signals};

/// What this program needs of the answer of another one of it.
#[derive(Deserialize)]
pub(super) struct Measured {
    pub(super) run: RunId,
}

/// Runs the command with this process's standard error, and reads the run's number from its answer.
pub(super) fn measured(words: &[OsString]) -> Result<Measured, Failure> {
    let cancel = signals::cancel_flag();
    let (program, arguments) = words
        .split_first()
        .context("no command")
        .map_err(Failure::refused)?;
    let mut command = Command::new(program);
    // A group of its own: it gets a signal once, from this process, and decides what that means.
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0);
    // SIGTERM: it undoes what it has to.
    end_with_parent(&mut command, Signal::TERM);
    let mut child = command
        .spawn()
        .map_err(|error| Failure::not_started(program, error))?;
    let output = answer(&mut child, &cancel).map_err(Failure::refused)?;
    let status = child.wait().map_err(Failure::refused)?;
    if !status.success() {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return Err(Failure::CommandEnded(code.unwrap_or(u8::MAX)));
    }
    serde_json::from_slice(&output)
        .context("cannot read the answer of the command that measures")
        .map_err(Failure::refused)
}

/// What the command prints, once it has ended. A signal to this process is handed on, once.
fn answer(child: &mut Child, cancel: &AtomicBool) -> std::io::Result<Vec<u8>> {
    let mut stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        let read = stdout
            .as_mut()
            .map_or(Ok(0), |it| it.read_to_end(&mut output));
        read.map(|_| output)
    });
    wait_or_end(child, cancel)?;
    let read = reader.join();
    read.unwrap_or_else(|_| Err(std::io::Error::other("reading its answer failed")))
}

/// Adds the run that a guest stored in this folder, also one that is not complete.
pub(super) fn import(
    store: &mut Store,
    results: &Path,
    measured: Result<Measured, Failure>,
) -> Result<RunId, Failure> {
    let file = results.join("runs.db");
    let newest = match file.is_file() {
        true => {
            let guests = Store::open_existing(&file).map_err(of_store)?;
            let runs = guests.list(&Filter::default()).map_err(of_store)?;
            let whole = runs.first().map(|run| guests.whole(run.run));
            whole.transpose().map_err(of_store)?
        }
        false => None,
    };
    let Some(whole) = newest else {
        measured?;
        return Err(Failure::Refused(anyhow!("the guest stored no run")));
    };
    let json = export::json(vec![whole])?;
    let imported = store.import(json.as_bytes()).map_err(Failure::refused)?;
    let run = imported.runs.into_iter().chain(imported.already).next();
    let run = run
        .context("the guest's run was not added")
        .map_err(Failure::refused)?;
    if measured.is_err() {
        output::say!("nearfar: what was measured is kept in run {run}");
    }
    measured.map(|_| run)
}
