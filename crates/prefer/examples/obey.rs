//! Tasks that do as they are told: threads and processes for tests of the keeper.
//!
//! ```text
//! obey PLACE NUMBER          the first task; PLACE/NUMBER is its socket, datagrams are commands, and so are its answers
//!
//! thread N       makes a thread, which is task N                     answers its process and number
//! threads COUNT  makes so many threads that only wait                done
//! fork N         makes a process, whose first thread is task N       its process and number
//! daemon N       the same, in a session of its own, its maker ended  its process and number
//! pin CPUS       sets its own affinity                               done
//! name HEX       gives itself a name of these bytes                  done
//! exec           becomes this program again, as the same task        its process and number
//! end            ends this thread, or the process with its last      nothing
//! ```
//!
//! A task whose test has ended ends too.

use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nearfar_proc::affinity;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [place, number] = &words[..] else {
        panic!("obey PLACE NUMBER")
    };
    Task::new(Path::new(place), number).run();
}

struct Task {
    place: PathBuf,
    number: String,
    socket: UnixDatagram,
}

impl Task {
    fn new(place: &Path, number: &str) -> Self {
        let socket = place.join(number);
        let _ = std::fs::remove_file(&socket);
        let socket = UnixDatagram::bind(socket).expect("a socket in the place");
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("a time limit");
        Self {
            place: place.to_owned(),
            number: number.to_owned(),
            socket,
        }
    }

    fn answer(&self, text: &str) {
        if self
            .socket
            .send_to(text.as_bytes(), self.place.join("test"))
            .is_err()
        {
            std::process::exit(1);
        }
    }

    fn run(self) {
        let tid = rustix::thread::gettid().as_raw_nonzero();
        self.answer(&format!("{} {tid}", std::process::id()));
        let mut bytes = [0; 256];
        loop {
            let length = match self.socket.recv(&mut bytes) {
                Ok(length) => length,
                Err(_) if self.place.join("test").exists() => continue,
                Err(_) => std::process::exit(1),
            };
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let (verb, word) = text.split_once(' ').unwrap_or((&text, ""));
            match verb {
                "thread" => self.thread(word),
                "threads" => self.threads(word.parse().expect("a count")),
                "fork" => self.fork(word, false),
                "daemon" => self.fork(word, true),
                "pin" => self.done(affinity::set(0, &word.parse().expect("CPUs")).is_ok()),
                "name" => self.name(word),
                "exec" => self.exec(),
                "end" => end(),
                _ => self.answer("what?"),
            }
        }
    }

    fn done(&self, done: bool) {
        self.answer(if done { "done" } else { "refused" });
    }

    fn thread(&self, number: &str) {
        let (place, number) = (self.place.clone(), number.to_owned());
        let task = move || Task::new(&place, &number).run();
        std::thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(task)
            .expect("a thread");
    }

    fn threads(&self, count: usize) {
        for _ in 0..count {
            let wait = || loop {
                std::thread::park();
            };
            std::thread::Builder::new()
                .stack_size(16 << 10)
                .spawn(wait)
                .expect("a thread");
        }
        self.done(true);
    }

    fn fork(&self, number: &str, daemon: bool) {
        // SAFETY: the child has this thread alone, and uses what glibc keeps usable across a fork.
        let child = unsafe { libc::fork() };
        if child > 0 && daemon {
            // SAFETY: waits for the child just made.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
        if child != 0 {
            return;
        }
        if daemon {
            // SAFETY: as above.
            let left = unsafe {
                libc::setsid();
                libc::fork()
            };
            if left != 0 {
                // SAFETY: ends this process and nothing else.
                unsafe { libc::_exit(0) }
            }
        }
        Self::new(&self.place, number).run();
        // SAFETY: as above; the thread that was forked has nowhere to return to.
        unsafe { libc::_exit(0) }
    }

    fn name(&self, hex: &str) {
        let byte =
            |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
        let mut bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        bytes.push(0);
        // SAFETY: a text that ends with NUL; the kernel copies it.
        self.done(unsafe { libc::prctl(libc::PR_SET_NAME, bytes.as_ptr()) } == 0);
    }

    fn exec(&self) {
        let program = std::env::current_exe().expect("this program");
        let error = Command::new(program)
            .arg(&self.place)
            .arg(&self.number)
            .exec();
        self.answer(&format!("refused: {error}"));
    }
}

/// Ends the calling thread. A process ends with its last one, also where its first has ended long before.
fn end() -> ! {
    // SAFETY: the stack is left as it is; nothing on it is used by others.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended")
}
