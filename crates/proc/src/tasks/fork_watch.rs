//! Whether any thread or process was made, by one read: numbers are given out in order, and /proc/loadavg ends with the last
//! one (proc_loadavg(5)).

use super::open::Reread;

/// Tells whether any thread or process at all was made since the last time.
#[derive(Debug, Default)]
pub struct ForkWatch {
    loadavg: Reread,
    last: Option<Vec<u8>>,
    is_genuine: Option<bool>,
}

impl ForkWatch {
    /// Whether one was made since this was asked last. True at the first call, and where the file is not the kernel's:
    /// containers may see one of their runtime (lxcfs) in its place.
    pub fn any(&mut self) -> bool {
        let is_genuine = *self.is_genuine.get_or_insert_with(|| {
            let system = rustix::fs::statfs("/proc/loadavg");
            system.is_ok_and(|system| system.f_type == rustix::fs::PROC_SUPER_MAGIC)
        });
        let now = self.loadavg.read(|| "/proc/loadavg".to_owned()).ok();
        let now = now.and_then(|text| text.rsplit(|&byte| byte == b' ').next().map(<[u8]>::to_vec));
        let is_same = now.is_some() && now == self.last;
        self.last = now;
        !(is_genuine && is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_thread_is_reported() {
        let mut forks = ForkWatch::default();
        assert!(forks.any());
        std::thread::spawn(|| {}).join().unwrap();
        assert!(forks.any());
        // Other programs on this machine make threads as well; at some moment none does.
        assert!((0..100_000).any(|_| !forks.any()));
    }
}
