//! The integration tests of this crate that boot guests, in one program: each file here is a module. The program itself runs in guests
//! as well, with the name of a part ([`guests::part`]).

mod built_kernel;
mod case1;
mod case4;
mod cases;
mod command;
mod compare;
mod delays;
#[path = "../../../lab/tests/differences/mod.rs"]
mod differences;
mod exporter;
#[path = "../exporting/mod.rs"]
mod exporting;
mod far_tasks;
mod fleet_here;
mod fleet_slurm;
#[path = "../fleets/mod.rs"]
mod fleets;
mod gallery;
mod guests;
#[path = "../harness/mod.rs"]
mod harness;
mod holding;
mod hot_plug;
mod io;
mod kernel;
mod leftovers;
mod measured;
mod memory;
mod move_group;
mod move_meanwhile;
mod move_tasks;
mod move_time;
mod moving;
mod powerpc;
mod prefer;
mod prefer_service;
mod prefer_time;
mod probe;
mod rps;
mod scale;
mod settings;
mod slurm;
mod tags;
mod targets;
#[path = "../tasks/mod.rs"]
mod tasks;
mod time;
mod udev;
mod unit;
mod unread_error;
mod used_memory;
#[path = "../waiting/mod.rs"]
mod waiting;
