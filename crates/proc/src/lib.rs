//! Readers of /proc/PID, CPU affinity, and paths that cannot leave a root directory.
//!
//! ```text
//!  file                      parser              reader of this system
//!  /proc/PID/stat            Stat, Image         tasks::stat, tasks::OpenTask, tasks::OpenStat
//!  /proc/PID/status          Status              tasks::process_of, tasks::numbers_of
//!  /proc/PID/schedstat       RunTime             tasks::run_time, tasks::OpenTask
//!  /proc/PID/sched           Sched               tasks::sched
//!  /proc/PID/comm            Comm                tasks::name
//!  /proc/PID/cgroup          cgroup::groups      tasks::groups
//!  path of a group           service::Service    -
//!  memory.numa_stat          cgroup::mapped_by_node  -
//!  /proc/PID/maps, smaps     maps                -
//!  /proc/PID/numa_maps       numa_maps           resident
//!  /proc/PID/pagemap         resident::PageEntry resident::Pagemap
//!  mincore(2)                -                   move_pages::page_cache_of
//!  /proc/PID/mountinfo       mountinfo::mounts   mountinfo::of_this_process, of_process
//!  /proc/PID/fd              -                   open_files
//!  /proc/interrupts          cpu_counts::parse   cpu_counts::interrupts
//!  /proc/zoneinfo            zoneinfo::of_node   -
//!  nodeN/numastat            meminfo::Numastat   -
//!  /proc/vmstat              meminfo::vmstat     -
//!  /proc/softirqs            cpu_counts::parse   cpu_counts::softirqs
//! ```
//!
//! A parser takes bytes: names of tasks, paths and groups need not be UTF-8, and `sources` reads the same files from a
//! recorded tree. A reader opens the file of the running system and calls the parser.
//!
//! [`damon`] writes files of the kernel's access monitor while others look at them.
//!
//! [`child`] is for those that start processes: it lets one end with its parent. [`affinity::RealTime`] is for those that measure on CPUs
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
pub mod cpu_counts;
pub mod cpu_times;
pub mod cpuset;
pub mod damon;
pub mod maps;
pub mod meminfo;
pub mod memory_policy;
pub mod mountinfo;
pub mod move_pages;
pub mod numa_maps;
pub mod open_files;
pub mod program;
pub mod resident;
pub mod rooted;
pub mod service;
pub mod system;
mod task_files;
pub mod tasks;
mod text;
pub mod zoneinfo;

pub use system::error_text;
pub use task_files::{Comm, Image, RunTime, Sched, Stat, Status, TaskId};
pub use tasks::OpenProcess;
