//! Word of what was given back, for those who wait for it.

use tokio::sync::{Notify, futures::Notified};

use crate::sync::atomic::{AtomicUsize, Ordering, fence};

/// Tells of changes. While nobody waits for one, which is mostly so, telling costs a load.
#[derive(Debug, Default)]
pub(super) struct Changes {
    changed: Notify,
    watchers: AtomicUsize,
}

impl Changes {
    pub fn announce(&self) {
        // Pairs with the fence in `watch`: either this sees the watcher, or the watcher sees what was given back.
        fence(Ordering::SeqCst);
        if self.watchers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_waiters();
        }
    }

    pub fn watch(&self) -> Watch<'_> {
        let changed = self.changed.notified();
        self.watchers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Watch { changed, _watching: Watching(&self.watchers) }
    }
}

/// Hears of everything that is given back after it was made.
pub struct Watch<'a> {
    changed: Notified<'a>,
    _watching: Watching<'a>,
}

struct Watching<'a>(&'a AtomicUsize);

impl Watch<'_> {
    pub async fn changed(self) {
        self.changed.await;
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
