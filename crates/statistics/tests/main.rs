//! The integration tests of this crate, in one program: each file here is a module.

mod alike;
mod compare_errors;
mod compare_scipy;
mod coverage;
mod disturbed;
mod disturbed_rates;
mod outlier_edges;
mod outlier_rates;
mod random;
mod ranks_and_moments;
mod regression;
