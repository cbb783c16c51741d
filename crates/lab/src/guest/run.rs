//! One command in a running guest, from its line to its exit code.
//!
//! ```text
//!   thread in     standard input ──► port in   (or the terminal's keys ──► terminal)
//!   thread out    port out ──► standard output
//!   thread err    port err ──► standard error
//!   this thread   link: started, exit, ask ◄──► kill, size, answer     signals of this process
//! ```

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{BeforePong, Message};
use super::marks::Cut;
use super::pump::{self, Input, Streams};
use super::script::Exec;
use super::signals::{self, SAME_REQUEST, Signals};
use super::watch::Watch;
use super::{Exit, Guest, terminal};
use crate::error::LabError;

/// Notes between the threads: what woke the waiting one.
const SINK_REFUSED: u8 = b'p';
const WAY_OUT: u8 = b'w';

/// How far a command is, seen from here.
#[derive(Debug, Default)]
struct Progress {
    group: Option<u32>,
    /// Signals that came before the command ran.
    early: Vec<&'static str>,
    /// When the first Ctrl-C or the like came.
    interrupted: Option<Instant>,
    code: Option<i32>,
}

impl Guest {
    /// Runs a command with these streams; passes signals on to its process group. The second SIGINT, SIGTERM or SIGQUIT,
    /// [`SAME_REQUEST`] after the first or later, powers the guest off at once.
    ///
    /// # Errors
    /// [`LabError::Died`] when the guest goes away, [`LabError::Interrupted`] when it was powered off on request,
    /// [`LabError::OutOfTime`] when the command took longer than it may, and [`LabError::System`] when a stream fails (a closed
    /// pipe ends the command in the guest, too, by SIGPIPE, and is no error).
    pub fn exec(
        &mut self,
        run: &Exec,
        streams: Streams<'_>,
        signals: &Signals,
    ) -> Result<Exit, LabError> {
        // A plug that was killed in the guest left them ended.
        self.resume_delays(run.asks_for_time)
            .map_err(|error| self.died(&format!("its devices are unknown ({error})")))?;
        self.commands += 1;
        let id = self.commands;
        let raw = if run.terminal {
            terminal::Raw::standard_input()
        } else {
            None
        };
        let size = if run.terminal { terminal::size() } else { None };
        let yes = |set: bool| if set { "yes" } else { "no" };
        let has_input = !matches!(streams.input, Input::Nothing) && !run.terminal;
        let line = format!(
            "run {id} {} {} {}\n",
            yes(has_input),
            yes(run.terminal),
            run.line(id, size, self.results)
        );
        self.write_run(&line)?;
        let outcome = self.carry(run.terminal, id, streams, signals);
        drop(raw);
        outcome
    }

    fn write_run(&mut self, line: &str) -> Result<(), LabError> {
        let sent = self.ports.run.write_all(line.as_bytes());
        sent.map_err(|error| self.died(&format!("it takes no commands ({error})")))
    }

    /// The threads, and waiting for the end.
    fn carry(
        &mut self,
        on_terminal: bool,
        id: u64,
        streams: Streams<'_>,
        signals: &Signals,
    ) -> Result<Exit, LabError> {
        let fail = |error| LabError::system("talking to the guest", error);
        let Streams {
            input,
            mut output,
            mut errors,
        } = streams;
        let (woken, wake) = UnixStream::pair().map_err(fail)?;
        let (stopped, stop) = UnixStream::pair().map_err(fail)?;
        let ports = self.ports.share().map_err(fail)?;
        let (cut, cut_errors) = (
            Cut::new(&self.token, id, on_terminal),
            Cut::new(&self.token, id, false),
        );
        let refused = || _ = (&wake).write_all(&[SINK_REFUSED]);
        let closed = AtomicBool::new(false);
        thread::scope(|threads| {
            let written = threads.spawn(|| match on_terminal {
                true => pump::out(&ports.terminal, cut, &mut output, &refused),
                false => pump::out(&ports.output, cut, &mut output, &refused),
            });
            let complained = threads.spawn(|| match on_terminal {
                true => Ok(()),
                false => pump::out(&ports.errors, cut_errors, &mut errors, &refused),
            });
            threads.spawn(|| {
                let outcome = match (on_terminal, input) {
                    (true, Input::Descriptor(source)) => {
                        pump::keys(&ports.terminal, &source, stopped.as_fd())
                    }
                    (true, _) | (false, Input::Nothing) => Ok(false),
                    (false, input) => {
                        pump::framed(&ports.input, input, stopped.as_fd()).map(|()| false)
                    }
                };
                if matches!(outcome, Ok(true)) {
                    _ = (&wake).write_all(&[WAY_OUT]);
                }
            });
            let ended = self.wait_for_exit(id, signals, &woken, &closed);
            if ended.is_err() {
                self.kill();
            }
            drop(stop);
            let written = written
                .join()
                .unwrap_or(Ok(()))
                .and(complained.join().unwrap_or(Ok(())));
            let exit = ended?;
            match written {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    Err(LabError::system("writing the command's output", error))
                }
                _ => Ok(exit),
            }
        })
    }

    /// Waits, passing signals and answering questions, until the agent reports the command's exit.
    fn wait_for_exit(
        &mut self,
        id: u64,
        signals: &Signals,
        woken: &UnixStream,
        closed: &AtomicBool,
    ) -> Result<Exit, LabError> {
        let begun = Instant::now();
        let mut progress = Progress::default();
        let mut watch = Watch::new(self.child.id(), self.arch, self.vcpus, &self.console);
        loop {
            while let Some(said) = self.link.next() {
                self.handle(said, id, &mut progress, &mut watch)?;
            }
            if let Some(code) = progress.code {
                return Ok(Exit { code });
            }
            let left = self
                .command_timeout
                .map(|limit| limit.saturating_sub(begun.elapsed()));
            if let Some(limit) = self
                .command_timeout
                .filter(|_| left == Some(Duration::ZERO))
            {
                self.ask_for_tasks(signals, woken)?;
                return Err(LabError::OutOfTime {
                    limit,
                    console: self.last_state(),
                });
            }
            let next_look = watch.until_next_look();
            let patience = left.map_or(next_look, |left| left.min(next_look));
            let (link, woke, signalled) = self.wait(signals, woken, patience)?;
            if link && !self.link.read() {
                return Err(self.died("it ended while a command ran in it"));
            }
            if !link {
                let watched = watch.look(&mut self.monitor, &mut self.link, &self.console);
                if let Some(sign) = watched
                    .map_err(|error| self.died(&format!("it takes no messages ({error})")))?
                {
                    return Err(LabError::Hung {
                        sign,
                        console: self.last_state(),
                    });
                }
            }
            if woke {
                let mut note = [0];
                (&*woken)
                    .read_exact(&mut note)
                    .map_err(|error| LabError::system("waiting for the guest", error))?;
                if note[0] == WAY_OUT {
                    return Err(LabError::Interrupted);
                }
                if !closed.swap(true, Ordering::Relaxed) {
                    self.pass("PIPE", &mut progress)?;
                }
            }
            if signalled {
                self.pass_all(signals, &mut progress)?;
            }
        }
    }

    /// Has the agent print on the console what each process waits for, if it answers before anything else comes.
    fn ask_for_tasks(&mut self, signals: &Signals, woken: &UnixStream) -> Result<(), LabError> {
        /// That of no other ping.
        const ANSWER: Message = Message::Pong { number: u64::MAX };
        const PATIENCE: Duration = Duration::from_secs(10);
        let until = Instant::now() + PATIENCE;
        let mut is_waiting = self.link.ping(u64::MAX, BeforePong::Tasks).is_ok();
        while is_waiting {
            let left = until.saturating_duration_since(Instant::now());
            let (has_link, ..) = self.wait(signals, woken, left)?;
            is_waiting = has_link
                && self.link.read()
                && !std::iter::from_fn(|| self.link.next()).any(|it| it == ANSWER);
        }
        Ok(())
    }

    /// Which of link, wake-up and signals has something.
    fn wait(
        &self,
        signals: &Signals,
        woken: &UnixStream,
        patience: Duration,
    ) -> Result<(bool, bool, bool), LabError> {
        let mut waiting = vec![
            PollFd::from_borrowed_fd(self.link.descriptor(), PollFlags::IN),
            PollFd::new(woken, PollFlags::IN),
        ];
        waiting.extend(
            signals
                .descriptor()
                .map(|signals| PollFd::from_borrowed_fd(signals, PollFlags::IN)),
        );
        match poll(&mut waiting, Timespec::try_from(patience).ok().as_ref()) {
            // A signal: its handler wrote a byte, which the next poll reports.
            Err(rustix::io::Errno::INTR) | Ok(_) => {}
            Err(error) => return Err(LabError::system("waiting for the guest", error)),
        }
        let has = |place: usize| {
            waiting
                .get(place)
                .is_some_and(|entry| !entry.revents().is_empty())
        };
        Ok((has(0), has(1), has(2)))
    }

    fn handle(
        &mut self,
        message: Message,
        id: u64,
        progress: &mut Progress,
        watch: &mut Watch,
    ) -> Result<(), LabError> {
        match message {
            Message::Started { id: started, group } if started == id => {
                progress.group = Some(group);
                for name in std::mem::take(&mut progress.early) {
                    self.pass(name, progress)?;
                }
            }
            Message::Exit { id: ended, code } if ended == id => progress.code = Some(code),
            Message::Ask { id, words } => {
                let answer = self.asked(&words);
                self.link
                    .answer(id, &answer)
                    .map_err(|error| self.died(&format!("no answer reaches it ({error})")))?;
            }
            Message::Pong { number } => watch.pong(number),
            Message::Booted
            | Message::Ticks { .. }
            | Message::Clock
            | Message::Ready
            | Message::Started { .. }
            | Message::Exit { .. } => {}
        }
        Ok(())
    }

    fn pass_all(&mut self, signals: &Signals, progress: &mut Progress) -> Result<(), LabError> {
        for signal in signals.take() {
            match signals::name(signal) {
                Some(name) => match progress.interrupted {
                    None => {
                        progress.interrupted = Some(Instant::now());
                        self.pass(name, progress)?;
                    }
                    Some(first) if first.elapsed() < SAME_REQUEST => {}
                    Some(_) => return Err(LabError::Interrupted),
                },
                None => {
                    if let Some(size) = terminal::size() {
                        self.link
                            .resize(size)
                            .map_err(|error| LabError::system("talking to the guest", error))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn pass(&mut self, name: &'static str, progress: &mut Progress) -> Result<(), LabError> {
        match progress.group {
            Some(group) => self
                .link
                .signal(name, group)
                .map_err(|error| self.died(&format!("no signal reaches it ({error})"))),
            None => {
                progress.early.push(name);
                Ok(())
            }
        }
    }
}
