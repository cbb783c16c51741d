//! Models of protocols by loom with sequentially consistent atomics, in one program. `caches` and `shards` stand for what the gate of
//! `auto` sees; `real_shards` is the library's.

#[path = "../../src/auto.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod auto;
mod caches;
mod of_auto;
mod of_shards;
#[path = "../../src/shards.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod real_shards;
mod shards;
mod sync;
#[path = "../../src/word.rs"]
#[allow(dead_code, reason = "what only the library needs")]
mod word;
