//! No mask is changed that is not on record. Alone in its file: the limit that it sets holds for its whole process.

mod support;

use nearfar_apply::affinity;
use nearfar_prefer::{KeeperOptions, OpenProcess};
use support::{Tasks, mask, own};

#[test]
fn what_cannot_be_put_on_record_is_not_narrowed() {
    let Some(own) = own() else { return };
    let tasks = Tasks::new();
    let keeper = tasks.keeper(KeeperOptions::default()).unwrap();
    let other = Tasks::new();
    // Its journal cannot grow: the limit holds for whoever writes it.
    let limit = rustix::process::Rlimit { current: Some(0), maximum: None };
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let before = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let refused = keeper.add(OpenProcess::open(other.tasks[&0].pid).unwrap());
    rustix::process::setrlimit(rustix::process::Resource::Fsize, before).unwrap();
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("journal"), "{error}");
    assert_eq!(mask(other.tasks[&0].tid), own);
    keeper.stop().unwrap();
    assert_eq!(affinity::get(tasks.tasks[&0].tid).unwrap(), own);
}
