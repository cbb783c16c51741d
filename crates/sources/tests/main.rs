//! The integration tests of this crate, in one program: each file here is a module.

mod any_machine;
mod bundles;
mod core_to_core;
mod descriptions;
mod devices;
mod devices_odd;
mod dump;
mod fake;
mod hwloc_xml;
mod machines;
mod numactl;
mod partial_trees;
mod rendered_description;
mod requests;
mod small_trees;
mod snapshots;
mod synthetic;
mod text;
mod text_odd;
mod trees;
mod trees_hostile;
