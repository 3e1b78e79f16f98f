//! Looking through a body, without holding up other requests: for what the gateway needs to know, and for what images are
//! called that are in it.

use std::thread::available_parallelism;

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
    task::block_in_place,
};

use crate::request::{ClientRequest, RequestError, shape::Shape};

/// From so many bytes on, others do not wait on the same thread: a body of base64 takes 0.1 ms for them, one of small values
/// some milliseconds.
const ASIDE_BYTES: usize = 256 << 10;

/// Who may look through a large body now: as many as there are cores.
#[derive(Debug)]
pub struct Scans(Semaphore);

impl Default for Scans {
    fn default() -> Self {
        Scans(Semaphore::new(available_parallelism().map_or(1, usize::from)))
    }
}

impl Scans {
    /// As [`ClientRequest::read`].
    pub async fn read<'a>(&self, shape: &Shape, body: &'a [u8]) -> Result<ClientRequest<'a>, RequestError> {
        self.aside(body.len(), || ClientRequest::read(shape, body)).await
    }

    /// Looks through so many bytes. Where they are many, that is done on this thread all the same, after what else it had to
    /// do was handed to another.
    pub async fn aside<T>(&self, bytes: usize, look: impl FnOnce() -> T) -> T {
        let may_block = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        if bytes < ASIDE_BYTES || !may_block {
            return look();
        }
        // Never closed, but if it were, that would be no reason to refuse anybody.
        let _turn = self.0.acquire().await;
        block_in_place(look)
    }
}
