//! Locks and atomics, all from here, so that a model checker can stand in for them.
//!
//! With the feature `shuttle` they are those of the `shuttle` crate, under which `tests/loader_shuttle.rs` runs the code
//! that uses them through thousands of interleavings; such a build is good for nothing else. A lock here is never poisoned: what
//! it guards is whole between any two statements, or says why not where it is locked.

#[cfg(not(feature = "shuttle"))]
use std::sync as imp;

#[cfg(feature = "shuttle")]
use shuttle::sync as imp;

pub use imp::{MutexGuard, atomic};
use std::sync::PoisonError;

/// A mutex that a panic does not poison.
#[derive(Debug, Default)]
pub struct Mutex<T>(imp::Mutex<T>);

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(imp::Condvar);

/// A number that is the calling thread's own: for spreading what all threads write, modulo as many places as there are.
#[cfg(not(feature = "shuttle"))]
pub fn stripe() -> usize {
    static NEXT: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
    thread_local!(static OWN: usize = NEXT.fetch_add(1, atomic::Ordering::Relaxed));
    OWN.with(|own| *own)
}

/// See above.
#[cfg(feature = "shuttle")]
pub fn stripe() -> usize {
    shuttle::current::me().into()
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Mutex(imp::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condvar {
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
