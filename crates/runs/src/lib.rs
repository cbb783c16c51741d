//! Stored runs: what an experiment found, with everything needed to trust it years later.
