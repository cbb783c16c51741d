//! Kernel tracepoints through perf events: who did what, on which CPU. Counts and records; prints nothing.
