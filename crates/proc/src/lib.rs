//! Readers of /proc/PID, CPU affinity, and paths that cannot leave a root directory.
//!
//! ```text
//!  file                      parser              reader of this system
//!  /proc/PID/stat            stat::Stat          tasks::stat, tasks::OpenTask, tasks::OpenStat
//!  /proc/PID/status          status::Status      tasks::process_of, tasks::numbers_of
//!  /proc/PID/schedstat       schedstat::RunTime  tasks::run_time, tasks::OpenTask
//!  /proc/PID/sched           sched::Sched        tasks::sched
//!  /proc/PID/comm            comm::Comm          tasks::name
//!  /proc/PID/cgroup          cgroup::groups      tasks::groups
//!  /proc/PID/maps, smaps     maps                -
//!  /proc/PID/numa_maps       numa_maps           resident
//!  /proc/PID/pagemap          pagemap::PageEntry  pagemap::Pagemap
//!  mincore(2)                -                   page_cache::of_file
//!  /proc/PID/mountinfo       mountinfo::mounts   mountinfo::of_this_process, of_process
//!  /proc/PID/fd              -                   open_files
//!  /proc/interrupts          cpu_counts::parse   cpu_counts::interrupts
//!  /proc/zoneinfo            zoneinfo::of_node   -
//!  nodeN/numastat            numastat::Numastat  -
//!  /proc/vmstat              vmstat              -
//!  /proc/softirqs            cpu_counts::parse   cpu_counts::softirqs
//! ```
//!
//! A parser takes bytes: names of tasks, paths and groups need not be UTF-8, and `sources` reads the same files from a
//! recorded tree. A reader opens the file of the running system and calls the parser.
//!
//! [`child`] is for those that start processes: it lets one end with its parent. [`real_time`] is for those that measure on CPUs
//! that they keep busy.
//!
//! This crate reads and parses. It does not decide what a value means for placement.

#![allow(
    missing_docs,
    reason = "a comment that would repeat the name is left out"
)]

pub mod affinity;
pub mod cgroup;
pub mod child;
pub mod choice;
pub mod comm;
pub mod cpu_counts;
pub mod cpu_times;
pub mod cpuset;
mod error;
pub mod maps;
pub mod meminfo;
pub mod mountinfo;
pub mod move_pages;
pub mod numa_balancing;
pub mod numa_maps;
pub mod numastat;
pub mod open_files;
mod open_process;
pub mod page_cache;
pub mod pagemap;
pub mod real_time;
pub mod resident;
pub mod rooted;
pub mod sched;
pub mod schedstat;
pub mod stat;
pub mod status;
pub mod system;
pub mod tasks;
mod text;
pub mod users;
pub mod vmstat;
pub mod zoneinfo;

pub use comm::Comm;
pub use error::error_text;
pub use open_process::OpenProcess;
pub use schedstat::RunTime;
pub use stat::{Stat, TaskId};
