//! A running guest.
