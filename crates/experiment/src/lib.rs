//! The frame of every experiment: an experiment declares its factors, one run and its samples; the frame does the rest.
