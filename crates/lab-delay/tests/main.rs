//! The integration tests of this crate, in one program: each file here is a module.

mod both_sides;
mod cache;
mod channel;
mod config;
mod hand_over;
mod ownership;
mod stream;
mod switches;
mod turns;
mod vcpu;
