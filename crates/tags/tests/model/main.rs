//! Models of protocols by loom, in one program: each file here is a module, the files of the library are included and see loom's `sync`.

use nearfar_tags::BuildError;

#[path = "../../src/coarse.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod coarse;
#[path = "../../src/deferred.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod deferred;
mod in_caches;
#[path = "../../src/locked.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod locked;
mod of_waiters;
mod pools;
#[path = "../../src/shards.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod shards;
mod sync;
#[path = "../../src/topology.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod topology;
#[path = "../../src/waiters.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod waiters;
#[path = "../../src/word.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod word;
