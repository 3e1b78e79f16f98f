//! The threads that decode: as many as cores, apart from those that serve connections.
//!
//! Jobs that take microseconds (the digest of a data: URI, a header) go before those that take milliseconds. Large images,
//! which take up to a second, hold up nobody but one another: while they have all of the threads, one more works for
//! the others. A job whose asker has left is dropped at once with all that it holds, unless it runs already.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use tokio::sync::oneshot;

use crate::sync::{Condvar, Mutex};

/// Which queue a job stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Microseconds to a millisecond.
    Short,
    Long,
    /// So long that others must not wait for it.
    Large,
}

/// The job panicked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the job ended without a result")]
pub struct Lost;

/// Threads for work that would hold up others. Dropping it ends them when they are done with what they are at.
pub struct Pool(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
    /// Without the one for when large images have them all.
    threads: usize,
}

#[derive(Default)]
struct Queue {
    short: VecDeque<Arc<Job>>,
    /// Long and large ones, as they came.
    long: VecDeque<(Urgency, Arc<Job>)>,
    /// Of the latter, those that run; and the large ones among them.
    running: usize,
    running_large: usize,
    ended: bool,
}

type Work = Box<dyn FnOnce() + Send>;

/// `None` once it was begun, or given up.
struct Job(Mutex<Option<Work>>);

/// Gives the job up when dropped.
struct Asker(Arc<Job>);

impl Drop for Asker {
    fn drop(&mut self) {
        // Out of the lock before it is dropped: what it holds may be much.
        let work = self.0.0.lock().take();
        drop(work);
    }
}

impl Pool {
    /// # Panics
    ///
    /// If the system has no more threads to give.
    pub fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Condvar::default(), threads });
        for number in 0..=threads {
            let shared = shared.clone();
            let thread = thread::Builder::new().name(format!("decode-{number}"));
            thread.spawn(move || shared.work()).expect("the system has threads");
        }
        Pool(shared)
    }

    /// Runs `work` on a thread of the pool.
    pub async fn run<T: Send + 'static>(
        &self,
        urgency: Urgency,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let (sender, receiver) = oneshot::channel();
        let work: Work = Box::new(move || {
            // The result may be of no use to anybody any more.
            drop(sender.send(work()));
        });
        let job = Arc::new(Job(Mutex::new(Some(work))));
        self.0.add(urgency, job.clone());
        let _asker = Asker(job);
        receiver.await.map_err(|_| Lost)
    }
}

impl Queue {
    /// The next job, if there is one that may begin now.
    fn pop(&mut self, threads: usize) -> Option<(Urgency, Arc<Job>)> {
        if let Some(job) = self.short.pop_front() {
            return Some((Urgency::Short, job));
        }
        let is_free = self.running < threads;
        let is_spare = self.running == threads && self.running_large == threads;
        let may_begin = |urgency| is_free || (is_spare && urgency != Urgency::Large);
        let next = self.long.iter().position(|(urgency, _)| may_begin(*urgency))?;
        let job = self.long.remove(next)?;
        self.running += 1;
        self.running_large += usize::from(job.0 == Urgency::Large);
        Some(job)
    }

    fn ended(&mut self, urgency: Urgency) {
        self.running -= usize::from(urgency != Urgency::Short);
        self.running_large -= usize::from(urgency == Urgency::Large);
    }
}

impl Shared {
    fn add(&self, urgency: Urgency, job: Arc<Job>) {
        let mut queue = self.queue.lock();
        match urgency {
            Urgency::Short => queue.short.push_back(job),
            Urgency::Long | Urgency::Large => queue.long.push_back((urgency, job)),
        }
        drop(queue);
        self.more.notify_one();
    }

    fn work(&self) {
        while let Some((urgency, job)) = self.next() {
            let work = job.0.lock().take();
            // A panic is told by the sender that is dropped, and nothing else of the job is left.
            drop(work.map(|work| catch_unwind(AssertUnwindSafe(work))));
            self.queue.lock().ended(urgency);
        }
    }

    fn next(&self) -> Option<(Urgency, Arc<Job>)> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.pop(self.threads) {
                // It may be what makes the spare thread work.
                if job.0 == Urgency::Large && !queue.long.is_empty() {
                    self.more.notify_one();
                }
                return Some(job);
            }
            if queue.ended {
                return None;
            }
            queue = self.more.wait(queue);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.queue.lock().ended = true;
        self.0.more.notify_all();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use futures_util::{FutureExt, future::join_all};
    use std::sync::mpsc;

    #[tokio::test]
    async fn short_jobs_go_first_and_a_panic_harms_no_other() {
        let pool = Pool::new(1);
        let (open, gate) = mpsc::channel::<()>();
        let (log, order) = mpsc::channel();
        let mut jobs = vec![
            pool.run(Urgency::Long, move || {
                let _ = gate.recv();
            })
            .boxed_local(),
        ];
        assert!(futures_util::poll!(&mut jobs[0]).is_pending());
        for (urgency, name) in [(Urgency::Long, "long"), (Urgency::Short, "short")] {
            let log = log.clone();
            jobs.push(pool.run(urgency, move || log.send(name).unwrap()).boxed_local());
        }
        jobs.push(pool.run(Urgency::Short, || panic!("on purpose")).boxed_local());
        for job in &mut jobs[1..] {
            assert!(futures_util::poll!(job).is_pending());
        }
        open.send(()).unwrap();
        let results = join_all(jobs).await;
        assert_eq!(results, [Ok(()), Ok(()), Ok(()), Err(Lost)]);
        assert_eq!(order.try_iter().collect::<Vec<_>>(), ["short", "long"]);
    }

    #[tokio::test]
    async fn large_jobs_hold_up_one_another_and_nobody_else() {
        let pool = Pool::new(2);
        let (begun, beginnings) = mpsc::channel();
        let (mut gates, mut large) = (Vec::new(), Vec::new());
        for number in 0..4 {
            let (open, gate) = mpsc::channel::<()>();
            let begun = begun.clone();
            let mut job = pool
                .run(Urgency::Large, move || {
                    begun.send(number).unwrap();
                    let _ = gate.recv();
                })
                .boxed_local();
            assert!(futures_util::poll!(&mut job).is_pending());
            gates.push(open);
            large.push(job);
        }
        for _ in 0..2 {
            beginnings.recv().unwrap();
        }
        // All threads have a large one, and two more wait.
        for _ in 0..10 {
            pool.run(Urgency::Long, || ()).await.unwrap();
        }
        assert!(beginnings.try_recv().is_err(), "no third large one has begun");
        drop(gates);
        join_all(large).await;
        assert_eq!(beginnings.try_iter().count(), 2);
    }

    #[tokio::test]
    async fn a_job_that_nobody_waits_for_is_dropped_with_what_it_holds() {
        let pool = Pool::new(1);
        let (open, gate) = mpsc::channel::<()>();
        let mut first = Box::pin(pool.run(Urgency::Long, move || {
            let _ = gate.recv();
        }));
        assert!(futures_util::poll!(&mut first).is_pending());
        let held = Arc::new(());
        let mut second = Box::pin({
            let held = held.clone();
            pool.run(Urgency::Long, move || drop(held))
        });
        assert!(futures_util::poll!(&mut second).is_pending());
        assert_eq!(Arc::strong_count(&held), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&held), 1);
        open.send(()).unwrap();
        first.await.unwrap();
    }
}
