//! Models of protocols by loom, in one program: each file here is a module, the files of the library are included and see loom's `sync`.

use nearfar_tags::BuildError;

#[path = "../../src/apart.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod apart;
#[path = "../../src/bitmap.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod bitmap;
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
#[path = "../../src/order.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod order;
mod pools;
#[path = "../../src/queue.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod queue;
#[path = "../../src/shards.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod shards;
#[path = "../../src/size.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod size;
#[path = "../../src/statistics.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod statistics;
mod sync;
#[path = "../../src/topology.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod topology;
#[path = "../../src/waiters.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod waiters;
#[path = "../../src/wakeups.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod wakeups;
#[path = "../../src/word.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod word;
