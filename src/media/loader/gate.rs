//! What a fetch waits for between the head of the response and its body: one who was admitted to the bytes.
//!
//! All who wait for a fetch learn what the head announces, and each is admitted to all of it for itself and opens the gate.
//! It is enough that one of them does: so nobody who was admitted waits for one who was not.
//!
//! The bytes that come through an open gate belong to those who were admitted to them: each holds its own admission for as
//! long as it holds the flight. Who was not admitted yet, and is only [`Waiting`], keeps the flight alive no longer than its
//! gate is closed. Otherwise it would hold bytes, or the admission of somebody who is done with them, while it waits for
//! more of the same. When its turn comes it shares the flight if an admitted one still has it, else it finds what came of
//! it in the cache, else it asks again.

use std::{
    hash::Hash,
    io,
    sync::{Arc, Weak},
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::sync::Notify;

use super::Flight;
use crate::{
    media::fetch::{self, Announced, FetchError, Freshness},
    sync::Mutex,
};

/// The gate of one fetch. Cheap to clone.
#[derive(Clone, Default)]
pub struct Gate(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// A head has come.
    announced: Notify,
    opened: Notify,
}

#[derive(Default)]
struct State {
    announced: Option<Announced>,
    /// To how many bytes the one who opened it was admitted.
    open_bytes: Option<usize>,
    /// What those who wait share, as long as there are any and it is closed.
    hold: Weak<Hold>,
}

/// A flight that is kept by those who wait for its gate.
struct Hold(Mutex<Option<Arc<dyn Send + Sync>>>);

/// A flight as one knows it who was not admitted to its bytes: kept until the gate opens, and then only seen.
pub struct Waiting<K: Eq + Hash, V: Clone> {
    flight: Weak<Flight<K, V, Gate>>,
    /// `None` if the gate was open before.
    _hold: Option<Arc<Hold>>,
}

impl<K, V> Waiting<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub fn new(flight: Arc<Flight<K, V, Gate>>) -> Self {
        let mut state = flight.beside().0.state.lock();
        let hold = state.open_bytes.is_none().then(|| {
            state.hold.upgrade().unwrap_or_else(|| {
                let hold = Arc::new(Hold(Mutex::new(Some(flight.clone()))));
                state.hold = Arc::downgrade(&hold);
                hold
            })
        });
        drop(state);
        Waiting { flight: Arc::downgrade(&flight), _hold: hold }
    }

    /// The flight, with its gate open, for who was admitted to `bytes` of it and holds them as long as the flight. `None` if
    /// others had it and have let go of it.
    pub fn admitted(self, bytes: usize) -> Option<Arc<Flight<K, V, Gate>>> {
        let flight = self.flight.upgrade()?;
        flight.beside().open(bytes);
        Some(flight)
    }
}

impl Gate {
    /// What the head says, once it is there.
    pub async fn announced(&self) -> Announced {
        loop {
            let changed = self.0.announced.notified();
            if let Some(announced) = self.0.state.lock().announced {
                return announced;
            }
            changed.await;
        }
    }

    /// Lets the fetch go on, for one who was admitted to `bytes` and holds the flight.
    pub fn open(&self, bytes: usize) {
        let mut state = self.0.state.lock();
        if state.open_bytes.is_some() {
            return;
        }
        state.open_bytes = Some(bytes);
        let hold = state.hold.upgrade();
        drop(state);
        // Out of the lock before anything is dropped.
        let held = hold.and_then(|hold| hold.0.lock().take());
        drop(held);
        self.0.opened.notify_waiters();
    }

    /// How many bytes the head says that reading the body takes, if it has come.
    pub fn announced_bytes(&self) -> Option<usize> {
        self.0.state.lock().announced.map(|announced| announced.bytes)
    }

    /// For what has no head: its size is known.
    pub async fn wait(&self, bytes: usize) {
        self.announce(Announced { bytes, freshness: Freshness::default() });
        self.opened().await;
    }

    fn announce(&self, announced: Announced) {
        self.0.state.lock().announced = Some(announced);
        self.0.announced.notify_waiters();
    }

    async fn opened(&self) -> usize {
        loop {
            let changed = self.0.opened.notified();
            if let Some(bytes) = self.0.state.lock().open_bytes {
                return bytes;
            }
            changed.await;
        }
    }
}

impl fetch::Gate for Gate {
    fn pass(&self, announced: Announced) -> BoxFuture<'_, Result<(), FetchError>> {
        self.announce(announced);
        async move {
            let admitted_bytes = self.opened().await;
            if announced.bytes <= admitted_bytes {
                return Ok(());
            }
            Err(grown())
        }
        .boxed()
    }
}

/// The origin has another image now than the one whose size was admitted.
pub fn grown() -> FetchError {
    FetchError::Interrupted(Arc::new(io::Error::other("the image is larger than at the first attempt")))
}
