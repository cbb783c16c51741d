//! Samples of several machines, taken before their turns where that disturbs no other.
//!
//! A machine in simulated time measures the same whatever its host does, and takes one of the host's CPUs. So there are as many threads as
//! the host has CPUs; each has every so manieth of the machines, and takes their samples in the order in which they were asked for.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nearfar_runs::{Cell, RunTarget};

use crate::experiment::BoxError;

/// Between two looks at the cancel flag.
const LOOK: Duration = Duration::from_millis(50);

/// Takes a sample on one machine by a command. Once the flag is set, the sample is not wanted any more.
pub type Take<S> = Box<dyn FnMut(&[OsString], &AtomicBool) -> Result<S, BoxError> + Send>;

/// Several machines that take samples. Dropping waits for those that are at work.
pub struct Ahead<S> {
    workers: Vec<Worker<S>>,
    is_ended: Arc<AtomicBool>,
    /// Of the cells that were begun; `None` until there is an answer.
    begun: BTreeMap<Cell, Option<Result<S, BoxError>>>,
}

impl<S: Send + 'static> Ahead<S> {
    /// One of `takes` is for each of these machines.
    pub fn new(machines: &[RunTarget], takes: Vec<Take<S>>) -> Self {
        let at_once = match machines.iter().all(RunTarget::is_simulated) {
            true => thread::available_parallelism().map_or(1, usize::from),
            false => 1,
        };
        let mut of_workers: Vec<BTreeMap<_, _>> = Vec::new();
        of_workers.resize_with(at_once.min(takes.len()), BTreeMap::new);
        for (place, take) in takes.into_iter().enumerate() {
            let worker = place % of_workers.len();
            of_workers[worker].insert(place, take);
        }
        let is_ended = Arc::new(AtomicBool::new(false));
        let start = |takes| Worker::start(takes, Arc::clone(&is_ended));
        Self {
            workers: of_workers.into_iter().map(start).collect(),
            is_ended,
            begun: BTreeMap::new(),
        }
    }

    /// Begins a sample of the cell on the machine of this place, where samples may be taken before their turns.
    pub fn begin(&mut self, place: usize, cell: &Cell, command: Vec<OsString>) {
        if self.workers.len() > 1 {
            self.ask(place, cell, command);
        }
    }

    fn ask(&mut self, place: usize, cell: &Cell, command: Vec<OsString>) {
        if self.begun.contains_key(cell) {
            return;
        }
        let asked = Asked {
            place,
            cell: cell.clone(),
            command,
        };
        let worker = self.worker(place);
        // One that is gone is found when its answer is wanted.
        let _ = worker.asked.as_ref().map(|worker| worker.send(asked));
        self.begun.insert(cell.clone(), None);
    }

    /// Whether the sample of a cell is there.
    pub fn has(&mut self, cell: &Cell) -> bool {
        for worker in &self.workers {
            let answers = worker.answers.try_iter();
            let answers = answers.map(|(cell, answer)| (cell, Some(answer)));
            self.begun.extend(answers);
        }
        matches!(self.begun.get(cell), Some(Some(_)))
    }

    /// The sample of a cell, begun now or before. Once `cancel` is set, none is wanted any more.
    ///
    /// # Errors
    /// Why there is none.
    pub fn take(
        &mut self,
        place: usize,
        cell: &Cell,
        command: Vec<OsString>,
        cancel: &AtomicBool,
    ) -> Result<S, BoxError> {
        self.ask(place, cell, command);
        while !self.has(cell) {
            if cancel.load(Ordering::Relaxed) {
                self.is_ended.store(true, Ordering::Relaxed);
            }
            let worker = self.worker(place);
            match worker.answers.recv_timeout(LOOK) {
                Ok((cell, answer)) => _ = self.begun.insert(cell, Some(answer)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    worker.end();
                    return Err("the thread of the cell's machine ended".into());
                }
            }
        }
        self.begun.remove(cell).flatten().ok_or("no sample")?
    }

    fn worker(&mut self, place: usize) -> &mut Worker<S> {
        let workers = self.workers.len();
        &mut self.workers[place % workers]
    }
}

impl<S> Drop for Ahead<S> {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        self.workers.iter_mut().for_each(Worker::end);
    }
}

/// A sample that a machine is to take.
struct Asked {
    place: usize,
    cell: Cell,
    command: Vec<OsString>,
}

/// A thread with some of the machines, which does what is asked of them in order.
struct Worker<S> {
    /// `None` as it ends.
    asked: Option<Sender<Asked>>,
    answers: Receiver<(Cell, Result<S, BoxError>)>,
    /// `None` once it ended.
    thread: Option<JoinHandle<()>>,
}

impl<S> Worker<S> {
    /// Begins nothing more once `is_ended` is set.
    fn start(mut takes: BTreeMap<usize, Take<S>>, is_ended: Arc<AtomicBool>) -> Self
    where
        S: Send + 'static,
    {
        let (asked, commands) = channel::<Asked>();
        let (answer_to, answers) = channel();
        let work = move || {
            for asked in commands {
                let take = takes.get_mut(&asked.place);
                let Some(take) = take.filter(|_| !is_ended.load(Ordering::Relaxed)) else {
                    break;
                };
                let answer = take(&asked.command, &is_ended);
                if answer_to.send((asked.cell, answer)).is_err() {
                    break;
                }
            }
        };
        Self {
            asked: Some(asked),
            answers,
            thread: Some(thread::spawn(work)),
        }
    }

    fn end(&mut self) {
        drop(self.asked.take());
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}
