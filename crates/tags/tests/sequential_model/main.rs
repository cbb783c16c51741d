//! Models of protocols by loom with sequentially consistent atomics, in one program. `caches` and `shards` stand for what the gate of
//! `auto` sees; `real_shards` is the library's.

#[path = "../../src/apart.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod apart;
#[path = "../../src/auto.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod auto;
mod caches;
#[path = "../../src/calm.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod calm;
mod of_auto;
mod of_shards;
#[path = "../../src/open.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod open;
#[path = "../../src/shards.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod real_shards;
mod shards;
#[path = "../../src/size.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod size;
#[path = "../../src/statistics.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod statistics;
mod sync;
#[path = "../../src/word.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod word;
