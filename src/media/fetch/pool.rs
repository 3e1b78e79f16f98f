//! Connections that wait for their next request.
//!
//! A connection was judged when it was dialled, and is used again only for the same scheme, host and port. The pool is
//! bounded in all, not per host: a client with a million host names under one domain cannot make the gateway run out of
//! file descriptors. The oldest connection makes room. A task closes those that wait for too long; it runs only while there
//! are any.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::connect::Connection;
use crate::media::source::{Host, HttpUrl, Scheme};

type Key = (Scheme, Host, u16);

fn key(url: &HttpUrl) -> Key {
    (url.scheme(), url.host().clone(), url.port())
}

pub(super) struct Pool {
    max_idle: usize,
    idle_timeout: Duration,
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Default)]
struct Shelf {
    /// Oldest first. A few dozen at most, so it is searched, not indexed.
    idle: VecDeque<Idle>,
    is_swept: bool,
}

struct Idle {
    key: Key,
    connection: Connection,
    since: Instant,
}

impl Pool {
    pub(super) fn new(max_idle: usize, idle_timeout: Duration) -> Self {
        Self { max_idle, idle_timeout, shelf: Arc::default() }
    }

    /// The connection to this origin that was used last, unless the origin has closed it.
    pub(super) fn take(&self, url: &HttpUrl) -> Option<Connection> {
        let key = key(url);
        let mut shelf = lock(&self.shelf);
        shelf.close_stale(self.idle_timeout);
        let at = shelf.idle.iter().rposition(|idle| idle.key == key)?;
        shelf.idle.remove(at).map(|idle| idle.connection)
    }

    /// Keeps a connection whose last response has been read to its end.
    pub(super) fn put(&self, url: &HttpUrl, connection: Connection) {
        if self.max_idle == 0 {
            return;
        }
        let mut shelf = lock(&self.shelf);
        shelf.close_stale(self.idle_timeout);
        if shelf.idle.len() == self.max_idle {
            shelf.idle.pop_front();
        }
        shelf.idle.push_back(Idle { key: key(url), connection, since: Instant::now() });
        if !shelf.is_swept {
            shelf.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(&self.shelf), self.idle_timeout));
        }
    }
}

impl Shelf {
    fn close_stale(&mut self, idle_timeout: Duration) {
        self.idle.retain(|idle| !idle.connection.sender.is_closed() && idle.since.elapsed() < idle_timeout);
    }
}

/// Closes what waits for too long, until nothing waits or nobody has the pool any more.
async fn sweep(shelf: Weak<Mutex<Shelf>>, idle_timeout: Duration) {
    loop {
        tokio::time::sleep(idle_timeout).await;
        let Some(shelf) = shelf.upgrade() else { return };
        let mut shelf = lock(&shelf);
        shelf.close_stale(idle_timeout);
        if shelf.idle.is_empty() {
            shelf.is_swept = false;
            return;
        }
    }
}

fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}
