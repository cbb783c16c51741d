//! A file for the textfile collector of node_exporter.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// node_exporter may run as another user.
const MODE: u32 = 0o644;

/// Replaces the file by a rename, so that none that is half written is ever read. The temporary file is in the same directory; its
/// name does not end in `.prom`, which is what the collector reads. Nothing is synced: after a crash the content would be stale.
///
/// # Errors
/// When the directory cannot be written, or the name is that of a directory.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".nearfar-")
        .tempfile_in(directory.unwrap_or(Path::new(".")))
        .map_err(without_name)?;
    file.write_all(text.as_bytes())?;
    // Whatever the umask.
    file.as_file()
        .set_permissions(Permissions::from_mode(MODE))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// tempfile adds the name of its own file, which means nothing to the user.
fn without_name(error: io::Error) -> io::Error {
    let text = error.to_string();
    let text = text.split(" at path ").next().unwrap_or_default();
    io::Error::new(error.kind(), text)
}
