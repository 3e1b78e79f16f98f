//! A resolver that answers what a test tells it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mediagate::media::fetch::{Answer, FetchError, Resolve};

/// Names and what they resolve to, one answer a lookup; the last one repeats.
#[derive(Default)]
pub struct Names {
    answers: Mutex<HashMap<String, Vec<NameAnswer>>>,
    lookups: AtomicUsize,
}

/// What a lookup gives.
#[derive(Clone, Debug)]
pub enum NameAnswer {
    Addresses(Vec<IpAddr>),
    Nothing,
    Silence,
}

impl NameAnswer {
    pub fn of(ips: &[&str]) -> Self {
        Self::Addresses(ips.iter().map(|ip| ip.parse().unwrap()).collect())
    }
}

impl Names {
    pub fn new<const N: usize>(names: [(&str, Vec<NameAnswer>); N]) -> Arc<Self> {
        let answers = names.into_iter().map(|(name, answers)| (name.to_owned(), answers)).collect();
        Arc::new(Self { answers: Mutex::new(answers), lookups: AtomicUsize::new(0) })
    }

    /// How often anything was looked up.
    pub fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> Answer<'a> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let answer = match self.answers.lock().unwrap().get_mut(name) {
            Some(answers) if answers.len() > 1 => answers.remove(0),
            Some(answers) => answers[0].clone(),
            None => NameAnswer::Nothing,
        };
        Box::pin(async move {
            match answer {
                NameAnswer::Addresses(addresses) => Ok(addresses),
                NameAnswer::Nothing => Err(FetchError::NoSuchHost),
                NameAnswer::Silence => std::future::pending().await,
            }
        })
    }
}
