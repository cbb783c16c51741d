//! The processes that are looked at. They end with this example, however it ends.

use std::error::Error;
use std::fmt;
use std::io::{self, Read as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_proc::child::end_with_parent;
use rustix::process::Signal;

/// A part of the command line of each process, for `numastat -p`.
pub const NAME: &str = "against_process_tools populate";

const PROCESSES: usize = 2000;
/// Besides the main one.
const THREADS: usize = 4;
/// Processes with a thread that runs for [`RUN`] each second.
const BUSY: usize = 200;
const RUN: Duration = Duration::from_millis(1);
/// Processes with memory of their own; `nearfar tasks` leaves out those with less than 16 MiB.
const LARGE: usize = 50;
const LARGE_BYTES: usize = 32 << 20;
const STACK_BYTES: usize = 64 << 10;

#[derive(clap::Args)]
pub struct Process {
    /// Touch this many bytes
    #[arg(long)]
    bytes: usize,
    /// Have a thread that runs a millisecond each second
    #[arg(long)]
    busy: bool,
}

impl Process {
    /// Runs until it is killed.
    pub fn run(&self) -> Result<(), Box<dyn Error>> {
        let mut memory = vec![0_u8; self.bytes];
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        for index in 0..THREADS {
            let is_busy = self.busy && index == 0;
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn(move || wait(is_busy))?;
        }
        println!();
        wait(false);
        drop(memory);
        Ok(())
    }
}

fn wait(is_busy: bool) {
    loop {
        if !is_busy {
            thread::park();
            continue;
        }
        let begun = Instant::now();
        while begun.elapsed() < RUN {
            std::hint::spin_loop();
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// Kills its processes when dropped.
pub struct Population(Vec<Child>);

impl Population {
    /// Returns when all of them have their memory and threads.
    pub fn start() -> io::Result<Self> {
        let (mut ready, writer) = io::pipe()?;
        let mut population = Self(Vec::new());
        let own = std::env::current_exe()?;
        for index in 0..PROCESSES {
            let bytes = if index < LARGE { LARGE_BYTES } else { 0 };
            let mut command = Command::new(&own);
            command
                .args(["populate", "--bytes", &bytes.to_string()])
                .args((index < BUSY).then_some("--busy"))
                .stdin(Stdio::null())
                .stdout(writer.try_clone()?);
            end_with_parent(&mut command, Signal::KILL);
            let child = command.spawn().map_err(|error| {
                io::Error::other(format!(
                    "cannot start process {index} of {PROCESSES}: {error}"
                ))
            })?;
            population.0.push(child);
        }
        drop(writer);
        ready.read_exact(&mut [0; PROCESSES])?;
        Ok(population)
    }
}

impl fmt::Display for Population {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{PROCESSES} processes with {} threads; {BUSY} threads run 1 ms each second; {LARGE} processes have {} MiB",
            PROCESSES * (1 + THREADS),
            LARGE_BYTES >> 20
        )
    }
}

impl Drop for Population {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
