//! What a service owes its manager and its likes: word that it is ready, and a lock that only one can hold.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use nearfar_change::trusted::{TrustError, TrustedDir};
use rustix::fs::{FlockOperation, OFlags, flock};

/// Tells the service manager something, such as `READY=1` (sd_notify(3)); nothing where none asked to be told.
pub fn notify(word: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    // A manager that does not listen is no reason to end.
    let _ = send(socket.as_bytes(), word.as_bytes());
}

fn send(socket: &[u8], word: &[u8]) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(socket)))?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(word, &address)
        .map(drop)
}

/// Whose holder is the one service; it says which process that is.
const LOCK: &str = "prefer-service.lock";

/// Held by the one service of a user, until it ends in whatever way.
#[derive(Debug)]
pub struct Only {
    _file: File,
}

/// Why there can be no service.
#[derive(Debug, thiserror::Error)]
pub enum NotAlone {
    /// One is there.
    #[error(
        "{holder} is a nearfar prefer service already; kill -HUP makes it read its configuration again"
    )]
    Another {
        /// Which process.
        holder: String,
    },
    /// The lock cannot be made.
    #[error("{}: {reason}", file.display())]
    File {
        /// The lock, or its directory.
        file: PathBuf,
        /// The system's answer, or who else could change it.
        reason: TrustError,
    },
}

impl Only {
    /// Takes the lock in this directory, which is made if need be.
    ///
    /// # Errors
    /// When another service holds it, when another user can change what is in the directory, or it cannot be written.
    pub fn take(directory: &Path) -> Result<Self, NotAlone> {
        let path = directory.join(LOCK);
        let refused = |reason: TrustError| NotAlone::File {
            file: path.clone(),
            reason,
        };
        let trusted = TrustedDir::make(directory).map_err(|reason| NotAlone::File {
            file: directory.to_owned(),
            reason,
        })?;
        let mut file = trusted
            .open_file(LOCK, OFlags::RDWR | OFlags::CREATE)
            .map_err(refused)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(refused(io::Error::from(error).into()));
            }
            let mut text = String::new();
            let read = (&file).take(32).read_to_string(&mut text);
            let holder = match text.trim().parse::<u32>() {
                Ok(pid) if read.is_ok() => format!("process {pid}"),
                _ => "another process".to_owned(),
            };
            return Err(NotAlone::Another { holder });
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(|error| refused(error.into()))?;
        Ok(Self { _file: file })
    }

    /// Where the lock is: $RUNTIME_DIRECTORY, which systemd gives, /run/nearfar for root, $XDG_RUNTIME_DIR/nearfar for others,
    /// or the directory for temporary files.
    pub fn directory() -> PathBuf {
        let of = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        if let Some(given) = of("RUNTIME_DIRECTORY") {
            // One for each name in RuntimeDirectory=, with colons between them (systemd.exec(5)).
            let first = given
                .as_os_str()
                .as_bytes()
                .split(|&byte| byte == b':')
                .next()
                .unwrap_or_default();
            return PathBuf::from(std::ffi::OsStr::from_bytes(first));
        }
        let user = rustix::process::geteuid();
        if user.is_root() {
            return PathBuf::from("/run/nearfar");
        }
        match of("XDG_RUNTIME_DIR") {
            Some(runtime) => runtime.join("nearfar"),
            None => std::env::temp_dir().join(format!("nearfar-{}", user.as_raw())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_service_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("run/nearfar");
        let first = Only::take(&directory).unwrap();
        let text = Only::take(&directory).unwrap_err().to_string();
        assert!(
            text.contains(&format!(
                "process {} is a nearfar prefer service",
                std::process::id()
            )),
            "{text}"
        );
        drop(first);
        Only::take(&directory).unwrap();
    }

    #[test]
    fn a_manager_hears_it_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("nearfar-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let listening = [
            UnixDatagram::bind(&path).unwrap(),
            UnixDatagram::bind_addr(&abstract_name).unwrap(),
        ];
        send(path.as_os_str().as_bytes(), b"READY=1").unwrap();
        send(format!("@{name}").as_bytes(), b"READY=1").unwrap();
        for socket in listening {
            let mut buffer = [0; 16];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
    }
}
