//! A thread before all others on its CPU: sched_setscheduler(2).

use std::marker::PhantomData;

/// While this lives, the thread that made it does not wait for a CPU that others keep busy. Threads and processes that it
/// starts are ordinary ones. Where the system does not allow it (`CAP_SYS_NICE`, `RLIMIT_RTPRIO`), it changes nothing.
#[derive(Debug)]
#[must_use]
pub struct RealTime {
    before: Option<libc::c_int>,
    _is_of_this_thread: PhantomData<*const ()>,
}

impl RealTime {
    pub fn new() -> Self {
        // SAFETY: asks for a number; 0 is this thread.
        let before = unsafe { libc::sched_getscheduler(0) };
        let is_set = before >= 0 && set(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
        Self {
            before: is_set.then_some(before),
            _is_of_this_thread: PhantomData,
        }
    }
}

impl Default for RealTime {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set(before, 0);
        }
    }
}

fn set(policy: libc::c_int, priority: libc::c_int) -> bool {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the kernel reads the value above; 0 is this thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_it_is_dropped() {
        fn policy() -> libc::c_int {
            // SAFETY: asks for a number.
            unsafe { libc::sched_getscheduler(0) }
        }
        let before = policy();
        let real_time = RealTime::new();
        match real_time.before {
            None => println!("skipped: root: this system allows no real-time thread"),
            Some(_) => assert_eq!(policy(), libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK),
        }
        let in_child = std::thread::spawn(policy);
        assert_eq!(in_child.join().unwrap(), libc::SCHED_OTHER);
        drop(real_time);
        assert_eq!(policy(), before);
    }
}
