//! Budgets: how many bytes of one kind (request bodies, fetched files, decoder scratch) may be held at once.
//!
//! A budget is a fair line: who comes first is served first, so that a large request is not starved by small ones.
//! What can never fit is refused at once; what would have to wait past its deadline is refused then.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// Permits are counted in KiB, since the semaphore counts in u32.
const UNIT_BYTES: usize = 1024;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BudgetError {
    #[error("{wanted_bytes} bytes can never fit into a budget of {total_bytes}")]
    NeverFits { wanted_bytes: usize, total_bytes: usize },
    #[error("no {wanted_bytes} bytes became free within {waited:?}")]
    Busy { wanted_bytes: usize, waited: Duration },
}

/// A bounded number of bytes.
#[derive(Debug, Clone)]
pub struct Budget {
    units: Arc<Semaphore>,
    total_bytes: usize,
}

/// Bytes of a [`Budget`] that are held; given back on drop.
#[derive(Debug)]
pub struct Admission {
    permit: OwnedSemaphorePermit,
}

impl Budget {
    pub fn new(total_bytes: usize) -> Self {
        let units = (total_bytes / UNIT_BYTES).min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Budget { units: Arc::new(Semaphore::new(units)), total_bytes: units * UNIT_BYTES }
    }

    /// Waits in line for `bytes`, until `deadline` at most.
    pub async fn admit(&self, bytes: usize, deadline: Instant) -> Result<Admission, BudgetError> {
        let never = BudgetError::NeverFits { wanted_bytes: bytes, total_bytes: self.total_bytes };
        if bytes > self.total_bytes {
            return Err(never);
        }
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).map_err(|_| never)?;
        let start = Instant::now();
        match tokio::time::timeout_at(deadline, self.units.clone().acquire_many_owned(units)).await {
            Ok(Ok(permit)) => Ok(Admission { permit }),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(BudgetError::Busy { wanted_bytes: bytes, waited: start.elapsed() }),
        }
    }

    pub fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    pub fn free_bytes(&self) -> usize {
        self.units.available_permits() * UNIT_BYTES
    }
}

impl Admission {
    /// Gives back what is held beyond `bytes`: the real size came out smaller than the one that was asked for.
    pub fn shrink_to(&mut self, bytes: usize) {
        let keep = bytes.div_ceil(UNIT_BYTES);
        if let Some(excess) = self.permit.num_permits().checked_sub(keep)
            && excess > 0
        {
            drop(self.permit.split(excess));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(10)
    }

    #[tokio::test]
    async fn what_can_never_fit_is_refused_at_once() {
        let budget = Budget::new(10 << 10);
        let far = Instant::now() + Duration::from_secs(3600);
        assert!(matches!(budget.admit(11 << 10, far).await, Err(BudgetError::NeverFits { .. })));
    }

    #[tokio::test]
    async fn held_bytes_come_back_on_drop_and_on_shrinking() {
        let budget = Budget::new(10 << 10);
        let mut held = budget.admit(10 << 10, soon()).await.unwrap();
        assert!(matches!(budget.admit(1, soon()).await, Err(BudgetError::Busy { .. })));
        held.shrink_to(5000);
        assert_eq!(budget.free_bytes(), 5 << 10);
        drop(held);
        assert_eq!(budget.free_bytes(), 10 << 10);
    }

    #[tokio::test]
    async fn a_large_one_in_line_is_not_overtaken_by_small_ones() {
        let budget = Budget::new(10 << 10);
        let first = budget.admit(6 << 10, soon()).await.unwrap();
        let far = Instant::now() + Duration::from_secs(60);
        let large = tokio::spawn({
            let budget = budget.clone();
            async move { budget.admit(8 << 10, far).await }
        });
        tokio::task::yield_now().await;
        assert!(budget.admit(1 << 10, soon()).await.is_err(), "a small one must wait behind the large one");
        drop(first);
        assert!(large.await.unwrap().is_ok());
    }
}
