//! No mask is changed that is not on record. Alone in its file: the limit that it sets holds for its whole process.

use crate::support::{Tasks, confining, home, mask, own, wait_until};
use nearfar_prefer::OpenProcess;
use nearfar_proc::affinity;

#[test]
fn what_cannot_be_put_on_record_is_not_narrowed() {
    let Some(own) = own() else { return };
    let mut tasks = Tasks::new();
    tasks.make(0, "thread", 1);
    let keeper = tasks.keeper(confining()).unwrap();
    let other = Tasks::new();
    // Its journal cannot grow: the limit holds for every writer.
    let limit = rustix::process::Rlimit {
        current: Some(0),
        maximum: None,
    };
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let before = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let refused = keeper.add(OpenProcess::open(other.tasks[&0].pid).unwrap());
    tasks.tell(1, "pin 1");
    wait_until("its choice is noticed", || {
        keeper.report().unwrap().skipped_count == 1
    });
    rustix::process::setrlimit(rustix::process::Resource::Fsize, before).unwrap();
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("journal"), "{error}");
    assert_eq!(mask(other.tasks[&0].tid), own);
    // A choice that could not be put on record is known to this keeper all the same, whatever is chosen later.
    tasks.tell(1, "pin 0");
    keeper.stop().unwrap();
    assert_eq!(mask(tasks.tasks[&1].tid), home());
    assert_eq!(affinity::get(tasks.tasks[&0].tid).unwrap(), own);
}
