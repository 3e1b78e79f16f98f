//! What a fetch waits for between the head of the response and its body: one who was admitted to the bytes.
//!
//! All who wait for a fetch learn what the head announces, are admitted to it for themselves, and open the gate. It is enough
//! that one of them does: so nobody who was admitted waits for one who was not. What he was admitted to stays with the
//! fetch, and so is held as long as its bytes are.

use std::{io, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::sync::Notify;

use crate::{
    media::fetch::{self, Announced, FetchError, Freshness},
    memory::Admission,
    sync::Mutex,
};

/// The gate of one fetch. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// A head has come.
    announced: Notify,
    opened: Notify,
}

#[derive(Debug, Default)]
struct State {
    announced: Option<Announced>,
    open: Option<Admission>,
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

    /// Lets the fetch go on. Gives the admission back if another did before.
    pub fn open(&self, admission: Admission) -> Option<Admission> {
        let mut state = self.0.state.lock();
        if state.open.is_some() {
            return Some(admission);
        }
        state.open = Some(admission);
        drop(state);
        self.0.opened.notify_waiters();
        None
    }

    /// Cuts off what is held beyond `bytes`, once it is known that the image has no more.
    pub fn excess(&self, bytes: usize) -> Option<Admission> {
        let mut state = self.0.state.lock();
        let held = state.open.as_mut()?;
        held.split(held.bytes().checked_sub(bytes)?)
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
            if let Some(open) = &self.0.state.lock().open {
                return open.bytes();
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
            Err(FetchError::Interrupted(Arc::new(io::Error::other("the image is larger than at the first attempt"))))
        }
        .boxed()
    }
}
