//! fio: its command line, and its processes while it runs.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, Process, Resources};
use nearfar_machine::{CpuSet, NodeId, shell_command};
use nearfar_proc::tasks;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::answer::Answer;
use crate::node_buffers::set_policy;

/// How often it is looked whether fio is set up or has ended.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(20);
/// The last bytes of what fio wrote to standard error that an error has.
const MAX_ERROR_BYTES: usize = 600;

const READ_ONLY: &str = "--readonly";
const NO_NEW_FILE: &str = "--allow_file_create=0";

/// One measurement.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// As it is shown.
    pub(super) path: PathBuf,
    /// The same as this process has it open; none for a null block device.
    pub(super) file: Option<RawFd>,
    /// The size of a file that nearfar made for the run.
    pub(super) made_bytes: Option<u64>,
    pub(super) engine: &'static str,
    pub(super) pattern: String,
    pub(super) block_size: String,
    pub(super) depth: String,
    pub(super) jobs: u32,
    pub(super) seconds: f64,
    pub(super) ramp_seconds: f64,
    pub(super) cpus: CpuSet,
    /// All memory of fio is of this node.
    pub(super) memory_node: NodeId,
    pub(super) is_buffered: bool,
}

impl Job {
    pub(super) fn writes(pattern: &str) -> bool {
        !matches!(pattern, "read" | "randread")
    }

    /// What fio is started with. It opens what this process has open, whatever the path's name is of by now.
    fn words(&self) -> Vec<String> {
        let name = match self.file {
            Some(file) => format!("/proc/{}/fd/{file}", std::process::id()),
            None => shown(&self.path),
        };
        let mut words = self.words_with(&name);
        words.push(NO_NEW_FILE.to_owned());
        words
    }

    fn words_with(&self, name: &str) -> Vec<String> {
        let milliseconds = |seconds: f64| format!("{:.0}ms", 1e3 * seconds);
        let mut words = vec![
            "--name=job".to_owned(),
            format!("--filename={name}"),
            format!("--ioengine={}", self.engine),
            format!("--direct={}", u8::from(!self.is_buffered)),
            format!("--rw={}", self.pattern),
            format!("--bs={}", self.block_size),
            format!("--iodepth={}", self.depth),
            format!("--numjobs={}", self.jobs),
            "--group_reporting".to_owned(),
            format!("--cpus_allowed={}", self.cpus),
            "--time_based".to_owned(),
            format!("--runtime={}", milliseconds(self.seconds)),
            format!("--ramp_time={}", milliseconds(self.ramp_seconds)),
            "--output-format=json+".to_owned(),
        ];
        if !Self::writes(&self.pattern) {
            words.push(READ_ONLY.to_owned());
        }
        words
    }

    /// The command that measures the same without nearfar. Where nearfar made the file, fio makes one of its own.
    pub(super) fn command_line(&self) -> String {
        let name = match self.made_bytes {
            Some(_) => shown(&self.path.with_file_name("fio-file")),
            None => shown(&self.path),
        };
        let mut words = self.words_with(&name);
        match self.made_bytes {
            Some(bytes) => {
                // With it fio makes no file.
                words.retain(|word| word != READ_ONLY);
                words.push(format!("--size={bytes}"));
            }
            None => words.push(NO_NEW_FILE.to_owned()),
        }
        format!(
            "numactl --membind={} fio {}",
            self.memory_node,
            shell_command(words)
        )
    }

    /// Starts fio; what it prints goes to files in `directory`.
    ///
    /// `waits`: its jobs wait, set up, until [`Running::go`].
    ///
    /// # Errors
    /// When it cannot be started, or memory cannot be bound to the node.
    pub(super) fn start(
        &self,
        resources: &mut Resources,
        directory: PathBuf,
        waits: bool,
    ) -> Result<Running, BoxError> {
        let gate = waits.then(|| Gate::make(&directory)).transpose()?;
        let mut command = Command::new("fio");
        command
            .args(self.words())
            .args(gate.iter().map(|_| Gate::OPTION))
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(File::create(directory.join(OUTPUT))?)
            .stderr(File::create(directory.join(ERRORS))?);
        let node = self.memory_node;
        let bound = |error| format!("cannot bind memory to node {node}: {error}");
        set_policy(Some(node)).map_err(bound)?;
        // Inherited by the process; this thread has no need of it.
        let started = resources.start(command);
        set_policy(None)?;
        let process = started.map_err(|error| {
            let hint = "fio is in the package fio of all distributions";
            format!("{error}; {hint}")
        })?;
        let mut running = Running {
            process,
            directory,
            processes: BTreeSet::new(),
            gate,
        };
        running.note_jobs();
        Ok(running)
    }
}

/// A path as fio reads it: a colon is between two.
fn shown(path: &Path) -> String {
    path.to_string_lossy().replace(':', "\\:")
}

/// Where jobs of fio that are set up wait: the command that each executes before its I/O (`exec_prerun`) writes a line to one pipe and
/// reads one from the other.
struct Gate {
    ready: File,
    go: File,
}

impl Gate {
    /// In fio's working directory.
    const OPTION: &str = "--exec_prerun=echo >ready; read -r line <go";

    fn make(directory: &Path) -> io::Result<Self> {
        let pipe = |name| {
            let path = directory.join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            // With both ends here, no opening waits.
            let mut both = OpenOptions::new();
            let both = both.read(true).write(true);
            both.custom_flags(libc::O_NONBLOCK).open(path)
        };
        Ok(Self {
            ready: pipe("ready")?,
            go: pipe("go")?,
        })
    }
}

const OUTPUT: &str = "fio.json";
const ERRORS: &str = "fio.err";

/// fio.
pub(super) struct Running {
    process: Process,
    directory: PathBuf,
    /// fio and those of its jobs that were seen.
    processes: BTreeSet<i32>,
    gate: Option<Gate>,
}

impl Running {
    /// Waits until so many jobs wait at their gate, or one of them or fio has failed, of which [`Self::answer`] has the reason.
    ///
    /// # Errors
    /// When fio takes longer than `patience`, or `cancel` is set.
    pub(super) fn wait_until_set_up(
        &mut self,
        jobs: u32,
        patience: Duration,
        cancel: &AtomicBool,
    ) -> Result<(), BoxError> {
        let (until, mut missing, mut seen) = (Instant::now() + patience, jobs as usize, 0);
        while let Some(gate) = self.gate.as_mut().filter(|_| missing > 0) {
            match gate.ready.read(&mut [0; 64]) {
                Ok(lines) => missing = missing.saturating_sub(lines),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            let running = self.jobs().len();
            // fio waits for its other jobs, which wait at the gate.
            if running < seen || !self.is_running()? {
                break;
            }
            seen = running;
            if cancel.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            if Instant::now() > until {
                return Err("fio did not set up its jobs in time".into());
            }
            std::thread::sleep(CHECK_EVERY);
        }
        self.note_jobs();
        Ok(())
    }

    /// Lets so many waiting jobs begin.
    pub(super) fn go(&mut self, jobs: u32) -> io::Result<()> {
        match &mut self.gate {
            Some(gate) => gate.go.write_all("\n".repeat(jobs as usize).as_bytes()),
            None => Ok(()),
        }
    }

    /// Notes the jobs that run now: processes of their own.
    pub(super) fn note_jobs(&mut self) {
        self.processes.insert(self.pid());
        self.processes.extend(self.jobs());
    }

    fn pid(&self) -> i32 {
        self.process.child.id().cast_signed()
    }

    /// Those that run now: none once fio has ended.
    fn jobs(&self) -> Vec<i32> {
        tasks::children(self.pid(), self.pid()).unwrap_or_default()
    }

    pub(super) fn processes(&self) -> &BTreeSet<i32> {
        &self.processes
    }

    /// Whether it still runs.
    pub(super) fn is_running(&mut self) -> io::Result<bool> {
        Ok(self.process.child.try_wait()?.is_none())
    }

    pub(super) fn kill(&mut self) {
        // One that has ended needs no kill.
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
    }

    /// Its answer, once it has ended.
    ///
    /// # Errors
    /// When it failed, with what it said of that; when its output cannot be read.
    pub(super) fn answer(&mut self) -> Result<Answer, BoxError> {
        let status = self.process.child.wait()?;
        let output = fs::read(self.directory.join(OUTPUT))?;
        if !status.success() {
            let said = [tail(&self.directory.join(ERRORS)), notices(&output)];
            let said: Vec<String> = said.into_iter().filter(|it| !it.is_empty()).collect();
            return Err(format!("fio failed ({status}): {}", said.join("; ")).into());
        }
        Answer::parse(&output).map_err(|error| {
            let said = tail(&self.directory.join(ERRORS));
            match said.is_empty() {
                true => error.into(),
                false => format!("{error}; fio said: {said}").into(),
            }
        })
    }
}

/// What fio printed before its JSON.
fn notices(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines = text.lines().take_while(|line| !line.starts_with('{'));
    lines.collect::<Vec<_>>().join("; ")
}

/// The last lines of a file, as one.
fn tail(path: &Path) -> String {
    let content = fs::read(path).unwrap_or_default();
    let from = content.len().saturating_sub(MAX_ERROR_BYTES);
    let text = String::from_utf8_lossy(&content[from..]).into_owned();
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// The engine: io_uring where the kernel lets this user have it, else libaio and the reason.
pub(super) fn engine(asked: &str) -> (&'static str, Option<String>) {
    match asked {
        "io_uring" => return ("io_uring", None),
        "libaio" => return ("libaio", None),
        _ => {}
    }
    // Larger than io_uring_params (include/uapi/linux/io_uring.h), which is 120 bytes.
    let mut parameters = [0u64; 32];
    // SAFETY: the kernel writes a struct of 120 bytes into the array.
    let answer = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    match i32::try_from(answer) {
        Ok(file) if file >= 0 => {
            // SAFETY: a descriptor that the call has just made and nothing else has.
            unsafe { libc::close(file) };
            ("io_uring", None)
        }
        _ => {
            let error = io::Error::last_os_error();
            let why = format!("the kernel refuses io_uring ({error}): fio used libaio");
            ("libaio", Some(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(path: &str, pattern: &str) -> Job {
        Job {
            path: path.into(),
            file: None,
            made_bytes: None,
            engine: "io_uring",
            pattern: pattern.to_owned(),
            block_size: "4096".to_owned(),
            depth: "32".to_owned(),
            jobs: 1,
            seconds: 2.0,
            ramp_seconds: 0.2,
            cpus: CpuSet::parse_list("2-3").unwrap(),
            memory_node: NodeId(1),
            is_buffered: false,
        }
    }

    #[test]
    fn the_command_line_is_one_for_a_shell() {
        let line = job("/dev/it's:1", "randread").command_line();
        assert!(
            line.starts_with("numactl --membind=1 fio --name=job "),
            "{line}"
        );
        assert!(line.contains(r"'--filename=/dev/it'\''s\:1'"), "{line}");
        assert!(line.contains(" --cpus_allowed=2-3 "), "{line}");
        assert!(
            line.contains(" --runtime=2000ms --ramp_time=200ms "),
            "{line}"
        );
    }

    #[test]
    fn fio_opens_what_is_open_and_the_shown_command_names_it() {
        let opened = Job {
            file: Some(7),
            ..job("/tmp/it", "randread")
        };
        let name = format!("--filename=/proc/{}/fd/7", std::process::id());
        assert!(opened.words().contains(&name));
        assert!(opened.command_line().contains("--filename=/tmp/it "));
        let made = Job {
            made_bytes: Some(4096),
            ..opened
        };
        let line = made.command_line();
        assert!(
            line.contains("--filename=/tmp/fio-file ") && line.ends_with(" --size=4096"),
            "{line}"
        );
        assert!(
            !line.contains(READ_ONLY) && !line.contains(NO_NEW_FILE),
            "{line}"
        );
    }

    #[test]
    fn fio_itself_refuses_writes_of_a_job_that_reads() {
        let is_read_only = |pattern| {
            job("/dev/x", pattern)
                .words()
                .contains(&READ_ONLY.to_owned())
        };
        assert!(is_read_only("read") && is_read_only("randread"));
        for pattern in ["write", "randwrite", "rw", "randrw"] {
            assert!(!is_read_only(pattern) && Job::writes(pattern));
        }
    }
}
