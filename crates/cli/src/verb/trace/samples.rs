//! The samples that an experiment tells of while it is traced ([`nearfar_experiment::traced`]).

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use nearfar_experiment::traced::{self, Phase};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use tempfile::TempDir;

use crate::failure::{Failure, Outcome, refused};

const SOCKET: &str = "samples";

/// What changes when an experiment begins or ends a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counting {
    /// The first sample has begun.
    FirstBegins,
    Begins,
    Ends,
}

/// Where experiments tell of their samples, and the phases that they are in: it counts while one is in a sample, and none in a pause.
pub(super) struct Samples {
    folder: TempDir,
    listener: UnixListener,
    open: Vec<(Phase, UnixStream)>,
    /// Readable when something has come from any of them.
    pub(super) told: OwnedFd,
    /// Samples that have begun.
    pub(super) taken: u32,
}

impl Samples {
    pub(super) fn listen() -> Result<Self, Failure> {
        let listen = || {
            let folder = tempfile::tempdir()?;
            let listener = UnixListener::bind(folder.path().join(SOCKET))?;
            listener.set_nonblocking(true)?;
            let told = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            watch(&told, &listener)?;
            Ok::<_, std::io::Error>(Self {
                folder,
                listener,
                open: Vec::new(),
                told,
                taken: 0,
            })
        };
        listen().map_err(|error| {
            let folder = std::env::temp_dir();
            refused!(
                "cannot listen in {} for samples of the command: {error}; TMPDIR chooses another folder",
                folder.display()
            )
        })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    fn is_counted(&self) -> bool {
        let has = |phase| self.open.iter().any(|(of, _)| *of == phase);
        has(Phase::Sample) && !has(Phase::Pause)
    }

    /// Takes what experiments tell, and lets each go on once `change` is made.
    pub(super) fn follow(&mut self, mut change: impl FnMut(Counting) -> Outcome) -> Outcome {
        let mut outcome = Ok(());
        let mut changed = |before: bool, samples: &Self, is_first: bool| {
            let change = match (before, samples.is_counted()) {
                (false, true) if is_first => change(Counting::FirstBegins),
                (false, true) => change(Counting::Begins),
                (true, false) => change(Counting::Ends),
                _ => Ok(()),
            };
            if outcome.is_ok() {
                outcome = change;
            }
        };
        // Before new ones: of two samples in turn both are told.
        while let Some(at) = self.open.iter().position(|(_, it)| has_ended(it)) {
            let before = self.is_counted();
            let (_, mut experiment) = self.open.swap_remove(at);
            changed(before, self, false);
            traced::answer(&mut experiment);
        }
        while let Ok((mut experiment, _)) = self.listener.accept() {
            let Ok(Some(phase)) = Phase::read(&mut experiment) else {
                continue;
            };
            if watch(&self.told, &experiment).is_err() {
                continue;
            }
            let before = self.is_counted();
            let is_sample = phase == Phase::Sample;
            let is_first = is_sample && self.taken == 0;
            self.taken += u32::from(is_sample);
            self.open.push((phase, experiment));
            changed(before, self, is_first);
            if let Some((_, experiment)) = self.open.last_mut() {
                traced::answer(experiment);
            }
        }
        outcome
    }
}

/// Whether the experiment has ended writing, or is gone.
fn has_ended(experiment: &UnixStream) -> bool {
    let mut wait = [PollFd::new(experiment, PollFlags::IN)];
    poll(&mut wait, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn watch(told: &OwnedFd, of: impl AsFd) -> rustix::io::Result<()> {
    epoll::add(
        told,
        of,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )
}
