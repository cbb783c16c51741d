//! DPDK's mempool with a cache of 16 for each thread, where the machine has the library's headers.
//!
//! Its get and put are inline functions in C: `dpdk.c` has the loops. The C compiler makes a shared object of it when the benchmark
//! starts.

use std::ffi::{CStr, CString, c_int, c_void};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use crate::loops::{Contestant, Flags};
use crate::ring::Ring;

const SOURCE: &str = include_str!("dpdk.c");

type Pool = *mut c_void;
type Stop = *const AtomicBool;

/// The functions of `dpdk.c`.
struct Library {
    enter: extern "C" fn() -> c_int,
    leave: extern "C" fn(),
    make: extern "C" fn(u32) -> Pool,
    free: extern "C" fn(Pool),
    plenty: extern "C" fn(Pool, Stop) -> u64,
    saturated: extern "C" fn(Pool, u64, Stop) -> u64,
    cross_take: extern "C" fn(Pool, *const Ring, Stop),
    cross_put: extern "C" fn(Pool, *const Ring) -> u64,
    reachable: extern "C" fn(Pool) -> u64,
}

/// A mempool.
pub struct Mempool {
    library: &'static Library,
    pool: Pool,
}

// SAFETY: a mempool is made for use by many threads; each of them enters before it uses it.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// # Errors
    /// Why there is none: no compiler, no headers, no memory.
    pub fn new(tags: u32) -> Result<Self, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let library = LIBRARY
            .get_or_init(Library::build)
            .as_ref()
            .map_err(String::clone)?;
        let pool = (library.make)(tags);
        match pool.is_null() {
            true => Err("DPDK has no memory for a mempool".to_owned()),
            false => Ok(Self { library, pool }),
        }
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        (self.library.free)(self.pool);
    }
}

impl Contestant for Mempool {
    fn enter(&self) {
        assert!((self.library.enter)() == 0, "DPDK takes up to 128 threads");
    }

    fn leave(&self) {
        (self.library.leave)();
    }

    fn plenty(&self, stop: &AtomicBool) -> u64 {
        (self.library.plenty)(self.pool, stop)
    }

    fn saturated(&self, depth: usize, stop: &AtomicBool) -> u64 {
        (self.library.saturated)(self.pool, depth as u64, stop)
    }

    fn cross_take(&self, ring: &Ring, stop: &AtomicBool) {
        (self.library.cross_take)(self.pool, ring, stop);
    }

    fn cross_put(&self, ring: &Ring) -> u64 {
        (self.library.cross_put)(self.pool, ring)
    }

    fn blocking(&self, _: &AtomicBool) -> Option<u64> {
        None
    }

    fn fair(&self, _: usize, _: &Flags) -> Option<u64> {
        None
    }

    fn reachable(&self) -> usize {
        (self.library.reachable)(self.pool) as usize
    }
}

/// Starts this program again, once, with space for DPDK's thread-local storage among that of the program itself: a program that is
/// linked with DPDK finds each thread's number with one load, and so has this one.
///
/// # Errors
/// The program cannot be started again.
pub fn with_static_space() -> io::Result<()> {
    const NAME: &str = "GLIBC_TUNABLES";
    const SPACE: &str = "glibc.rtld.optional_static_tls=16384";
    let others = std::env::var(NAME).unwrap_or_default();
    if others.contains(SPACE) {
        return Ok(());
    }
    let tunables = [others.as_str(), SPACE]
        .into_iter()
        .filter(|text| !text.is_empty());
    let all = tunables.collect::<Vec<_>>().join(":");
    let mut again = Command::new(std::env::current_exe()?);
    Err(again
        .args(std::env::args_os().skip(1))
        .env(NAME, all)
        .exec())
}

impl Library {
    fn build() -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (source, object) = ("dpdk.c", directory.path().join("dpdk.so"));
        fs::write(directory.path().join(source), SOURCE).map_err(|error| error.to_string())?;
        let flags = output(Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]))?;
        // Thread-local storage as in a program that is linked with DPDK; see `with_static_space`.
        let ours = ["-O2", "-shared", "-fPIC", "-ftls-model=initial-exec", "-o"];
        let mut compiler = Command::new("cc");
        compiler.current_dir(&directory).args(ours).arg(&object);
        compiler.arg(source).args(flags.split_whitespace());
        output(compiler.args(["-Wl,--no-as-needed", "-lrte_mempool_ring"]))?;
        Self::open(&object)
    }

    fn open(object: &Path) -> Result<Self, String> {
        let path =
            CString::new(object.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the path is a string of C; the initialisers of DPDK's libraries may run at any time.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(loader_error());
        }
        // SAFETY: the handle is open, and each type is that of the function of this name in `dpdk.c`.
        let (start, this) = unsafe {
            let start: extern "C" fn() -> c_int = symbol(handle, c"peer_start")?;
            let this = Self {
                enter: symbol(handle, c"peer_enter")?,
                leave: symbol(handle, c"peer_leave")?,
                make: symbol(handle, c"peer_make")?,
                free: symbol(handle, c"peer_free")?,
                plenty: symbol(handle, c"peer_plenty")?,
                saturated: symbol(handle, c"peer_saturated")?,
                cross_take: symbol(handle, c"peer_cross_take")?,
                cross_put: symbol(handle, c"peer_cross_put")?,
                reachable: symbol(handle, c"peer_reachable")?,
            };
            (start, this)
        };
        // DPDK binds the thread that starts it to one CPU.
        let started = std::thread::spawn(move || start()).join();
        match started {
            Ok(0) => Ok(this),
            _ => Err("DPDK does not start".to_owned()),
        }
    }
}

/// Why the last call of the dynamic loader failed.
fn loader_error() -> String {
    // SAFETY: the text, if there is one, stays until this thread's next call of the loader.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text))
    };
    text.map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// # Safety
/// The handle is open and `F` is the type of a pointer to the function `name`.
unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr) -> Result<F, String> {
    // SAFETY: the caller's; the name is a string of C.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(loader_error());
    }
    // SAFETY: the caller's; a pointer to a function is as large as one to data.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let first = text.lines().next().unwrap_or_default();
            Err(format!("{program}: {first}"))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}
