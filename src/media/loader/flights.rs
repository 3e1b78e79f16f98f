//! Singleflight: work on a key is done once, for all who ask while it lasts.
//!
//! A [`Flight`] is a shared future with its result. It runs as long as anybody polls it, its result stays as long as anybody
//! holds it, and when the last holder lets go it is gone, finished or not.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};

use crate::sync::Mutex;

/// The flights that somebody holds, by key. Each has a `T` beside it for those who wait for it.
#[derive(Debug)]
pub struct Flights<K: Eq + Hash, V: Clone, T = ()>(Mutex<List<K, V, T>>);

type List<K, V, T> = HashMap<K, Weak<Flight<K, V, T>>>;

/// Work on a key, and its result.
#[derive(Debug)]
pub struct Flight<K: Eq + Hash, V: Clone, T = ()> {
    work: Shared<BoxFuture<'static, V>>,
    beside: T,
    /// Where it is listed; `None` for work that nobody can join.
    place: Option<Place<K, V, T>>,
}

/// Where a flight is listed.
#[derive(Debug)]
struct Place<K: Eq + Hash, V: Clone, T> {
    key: K,
    list: Arc<Flights<K, V, T>>,
}

/// How somebody came to a flight.
#[derive(Debug)]
pub enum Joined<K: Eq + Hash, V: Clone, R, T = ()> {
    /// There was no need any more.
    Ready(R),
    /// It began with this.
    Led(Arc<Flight<K, V, T>>),
    /// It was there.
    Followed(Arc<Flight<K, V, T>>),
}

impl<K: Eq + Hash, V: Clone, T> Default for Flights<K, V, T> {
    fn default() -> Self {
        Flights(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash, V: Clone, T: Clone + Default> Flights<K, V, T> {
    /// The flight of a key, or a new one of `work`.
    ///
    /// Before one is begun, `ready` is asked whether the last one left a result. Whoever stores results does so before
    /// the flight is over, so between `ready` and the list none is missed. `work` gets what is beside its flight.
    pub fn join<R>(
        self: &Arc<Self>,
        key: K,
        ready: impl FnOnce() -> Option<R>,
        work: impl FnOnce(T) -> BoxFuture<'static, V>,
    ) -> Joined<K, V, R, T> {
        let mut listed = self.0.lock();
        if let Some(flight) = listed.get(&key).and_then(Weak::upgrade) {
            return Joined::Followed(flight);
        }
        if let Some(ready) = ready() {
            return Joined::Ready(ready);
        }
        let beside = T::default();
        let work = work(beside.clone()).shared();
        let flight = Arc::new(Flight { work, beside, place: Some(Place { key, list: self.clone() }) });
        listed.insert(key, Arc::downgrade(&flight));
        Joined::Led(flight)
    }

    /// The flight of a key, if there is one.
    pub fn find(&self, key: &K) -> Option<Arc<Flight<K, V, T>>> {
        // Out of the lock before anything is dropped.
        let listed = self.0.lock();
        listed.get(key).and_then(Weak::upgrade)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Eq + Hash, V: Clone, T: Clone + Default> Flight<K, V, T> {
    /// Work that nobody can join.
    pub fn alone(work: impl FnOnce(T) -> BoxFuture<'static, V>) -> Arc<Self> {
        let beside = T::default();
        Arc::new(Flight { work: work(beside.clone()).shared(), beside, place: None })
    }

    /// What is beside it for those who wait for it.
    pub fn beside(&self) -> &T {
        &self.beside
    }

    /// The result. Dropping this future stops nothing as long as others wait.
    pub fn result(&self) -> impl Future<Output = V> + Send + 'static
    where
        V: Send + Sync + 'static,
    {
        self.work.clone()
    }
}

impl<K: Eq + Hash, V: Clone, T> Drop for Flight<K, V, T> {
    fn drop(&mut self) {
        if let Some(Place { key, list }) = &self.place {
            let mut listed = list.0.lock();
            // Another may stand there by now.
            if listed.get(key).is_some_and(|flight| std::ptr::eq(flight.as_ptr(), self)) {
                listed.remove(key);
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use futures_util::poll;
    use tokio::sync::oneshot;

    type Numbers = Arc<Flights<u8, u32>>;

    fn lead(flights: &Numbers, work: impl Future<Output = u32> + Send + 'static) -> Arc<Flight<u8, u32>> {
        match flights.join(1, || None::<()>, |()| work.boxed()) {
            Joined::Led(flight) => flight,
            other => panic!("{other:?}"),
        }
    }

    fn follow(flights: &Numbers) -> Arc<Flight<u8, u32>> {
        match flights.join(1, || None::<()>, |()| panic!("begun twice")) {
            Joined::Followed(flight) => flight,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn others_go_on_when_the_leader_leaves() {
        let flights = Numbers::default();
        let (sender, receiver) = oneshot::channel();
        let leader = lead(&flights, async { receiver.await.unwrap() });
        let mut leading = Box::pin(leader.result());
        assert!(poll!(&mut leading).is_pending());
        let follower = follow(&flights);
        let mut following = Box::pin(follower.result());
        assert!(poll!(&mut following).is_pending());
        drop((leading, leader));
        sender.send(7).unwrap();
        assert_eq!(following.await, 7);
        // The result is there as long as somebody holds it.
        assert_eq!(follow(&flights).result().await, 7);
        drop(follower);
        assert!(flights.is_empty());
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_dropped() {
        let flights = Numbers::default();
        let held = Arc::new(());
        let flight = lead(&flights, {
            let held = held.clone();
            async move {
                std::future::pending::<()>().await;
                drop(held);
                0
            }
        });
        let mut result = Box::pin(flight.result());
        assert!(poll!(&mut result).is_pending());
        drop(flight);
        assert_eq!(Arc::strong_count(&held), 2, "the result is still waited for");
        drop(result);
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(flights.is_empty());
    }

    #[test]
    fn what_the_last_flight_left_is_found() {
        let flights = Numbers::default();
        drop(lead(&flights, async { 7 }));
        assert!(matches!(flights.join(1, || Some(7), |()| panic!("begun twice")), Joined::Ready(7)));
    }
}
