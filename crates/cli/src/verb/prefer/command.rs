//! A command that is kept from its first instruction to its end.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};

use anyhow::Context as _;
use nearfar_machine::{Machine, NodeId};
use nearfar_prefer::keeper::MemoryPolicy;
use nearfar_prefer::{Keeper, KeeperOptions, KeeperReport};
use nearfar_trace::Ended;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::failure;
use crate::failure::Failure;

/// Runs it to its end. Ctrl-C is the command's affair, as often as it is typed: its terminal sends it to the command as
/// well. What is sent to this process alone (SIGTERM, SIGHUP) is handed on.
pub fn run(
    words: &[OsString],
    policy: Option<MemoryPolicy>,
    node: NodeId,
    machine: &Machine,
    options: KeeperOptions,
) -> Result<(KeeperReport, Ended), Failure> {
    let Some((program, arguments)) = words.split_first() else {
        unreachable!("clap asks for a command")
    };
    let mut command = Command::new(program);
    command.args(arguments);
    // Before the command is there: neither its end nor a signal for it is missed.
    let signals = Signals::new([SIGCHLD, SIGINT, SIGQUIT, SIGTERM, SIGHUP]);
    let mut signals = signals
        .context("waiting for signals")
        .map_err(Failure::refused)?;
    let (keeper, mut child) =
        Keeper::spawn(command, policy, node, machine, options).map_err(failure)?;
    let status = wait(&mut child, &mut signals)
        .context("waiting for the command")
        .map_err(Failure::refused)?;
    let kept = keeper.stop().map_err(failure)?;
    let words = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    Ok((
        kept,
        Ended {
            command: words,
            exit_code: status.code(),
            signal: status.signal(),
        },
    ))
}

fn wait(child: &mut Child, signals: &mut Signals) -> std::io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    for signal in signals.forever() {
        match signal {
            SIGCHLD => {
                if let Some(status) = child.try_wait()? {
                    return Ok(status);
                }
            }
            SIGTERM => hand_on(child, Signal::TERM),
            SIGHUP => hand_on(child, Signal::HUP),
            _ => {}
        }
    }
    child.wait()
}

fn hand_on(child: &Child, signal: Signal) {
    // Not waited for yet, so its number is still its own.
    let _ = kill_process(Pid::from_child(child), signal);
}
