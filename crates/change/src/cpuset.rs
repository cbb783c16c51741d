//! Putting the set of CPUs or memory nodes of a control group back where it was empty, which means those of the group above. The kernel
//! takes no empty one of a group with tasks (ENOSPC of `validate_change()` in kernel/cgroup/cpuset.c).

use std::io;
use std::path::Path;

use crate::kind::with_line_end;
use crate::system::{System, text};

/// What to write where an empty old set cannot be written back, and is the same to the group's tasks: the CPUs of the group above, all
/// possible nodes. `None` where the old set is not empty, or the file is no such set.
pub(crate) fn instead_of_empty(system: &dyn System, path: &str, old: &str) -> Option<String> {
    let (group, file) = path.rsplit_once('/')?;
    let source = match file {
        _ if !old.trim().is_empty() => return None,
        "cpuset.cpus" => Path::new(group).parent()?.join("cpuset.cpus.effective"),
        "cpuset.mems" => "/sys/devices/system/node/possible".into(),
        _ => return None,
    };
    let set = text(system, source.to_str()?).ok()?;
    Some(with_line_end(set.trim().to_owned(), old))
}

/// Writes an old content back. What was written.
///
/// # Errors
/// The system's answer.
pub(crate) fn write_back(system: &dyn System, path: &str, old: &str) -> io::Result<String> {
    match system.write(path, old.as_bytes()) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
            let instead = instead_of_empty(system, path, old).ok_or(error)?;
            system.write(path, instead.as_bytes())?;
            Ok(instead)
        }
        written => written.map(|()| old.to_owned()),
    }
}
