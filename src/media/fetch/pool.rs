//! Connections that wait for their next request.
//!
//! A connection was judged when it was dialled, and is used again only for the same scheme, host and port. The pool is
//! bounded in all, not per host: a client with a million host names under one domain cannot make the gateway run out of
//! file descriptors. The oldest connection makes room.

use std::collections::VecDeque;
use std::sync::Mutex;
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
    /// Oldest first. A few dozen at most, so it is searched, not indexed.
    idle: Mutex<VecDeque<Idle>>,
}

struct Idle {
    key: Key,
    connection: Connection,
    since: Instant,
}

impl Pool {
    pub(super) fn new(max_idle: usize, idle_timeout: Duration) -> Self {
        Self { max_idle, idle_timeout, idle: Mutex::default() }
    }

    /// The connection to this origin that was used last, unless the origin has closed it.
    pub(super) fn take(&self, url: &HttpUrl) -> Option<Connection> {
        let key = key(url);
        let mut idle = self.lock_without_stale();
        let at = idle.iter().rposition(|idle| idle.key == key)?;
        idle.remove(at).map(|idle| idle.connection)
    }

    /// Keeps a connection whose last response has been read to its end.
    pub(super) fn put(&self, url: &HttpUrl, connection: Connection) {
        if self.max_idle == 0 {
            return;
        }
        let mut idle = self.lock_without_stale();
        if idle.len() == self.max_idle {
            idle.pop_front();
        }
        idle.push_back(Idle { key: key(url), connection, since: Instant::now() });
    }

    fn lock_without_stale(&self) -> std::sync::MutexGuard<'_, VecDeque<Idle>> {
        let mut idle = self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        idle.retain(|idle| !idle.connection.sender.is_closed() && idle.since.elapsed() < self.idle_timeout);
        idle
    }
}
