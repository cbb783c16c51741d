#![allow(dead_code, reason = "each model uses a part")]
//! Atomics of loom whose loads and stores are sequentially consistent, and a clock that lets the gate open at each look.

pub(crate) use loom::sync::atomic::Ordering;

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, _: Ordering) -> $value {
                self.0.fetch_add(0, Ordering::SeqCst)
            }

            pub(crate) fn store(&self, value: $value, _: Ordering) {
                self.0.swap(value, Ordering::SeqCst);
            }

            pub(crate) fn swap(&self, value: $value, _: Ordering) -> $value {
                self.0.swap(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_add(&self, value: $value, _: Ordering) -> $value {
                self.0.fetch_add(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_sub(&self, value: $value, _: Ordering) -> $value {
                self.0.fetch_sub(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_and(&self, value: $value, _: Ordering) -> $value {
                self.0.fetch_and(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_or(&self, value: $value, _: Ordering) -> $value {
                self.0.fetch_or(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_min(&self, value: $value, _: Ordering) -> $value {
                self.0.fetch_min(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_update(
                &self,
                _: Ordering,
                _: Ordering,
                update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let order = (Ordering::SeqCst, Ordering::SeqCst);
                self.0.fetch_update(order.0, order.1, update)
            }

            pub(crate) fn compare_exchange(
                &self,
                seen: $value,
                new: $value,
                _: Ordering,
                _: Ordering,
            ) -> Result<$value, $value> {
                let order = (Ordering::SeqCst, Ordering::SeqCst);
                self.0.compare_exchange(seen, new, order.0, order.1)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(seen, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

pub(crate) fn now_us() -> u64 {
    static NOW: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NOW.fetch_add(1 << 30, Ordering::Relaxed)
}

/// Without restartable sequences only, which have no gate to model.
pub(crate) fn thread_number() -> usize {
    0
}
