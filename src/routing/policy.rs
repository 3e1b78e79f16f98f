//! The policies by which a worker can be chosen, and what weighs how much.

use clap::ValueEnum;

/// How workers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoutePolicy {
    /// By the blocks of the prompt that workers hold, as their KV events tell, its images and their load; where a prompt's
    /// tokens are not known, as media-prefix
    #[cfg(feature = "mm-routing")]
    MmKv,
    /// By what this gateway has sent workers before: how much of the prompt's beginning, which of its images; and their load
    MediaPrefix,
    /// The worker that an image belongs to, by rendezvous hashing, while it is not busier than the others
    MediaAffinity,
    /// The worker with the fewest requests on it
    LeastLoaded,
    /// One worker after the other
    RoundRobin,
}

impl RoutePolicy {
    /// What is chosen by where nobody says: the best that is possible with the files of the models, or without.
    pub fn of_knowledge(model_files: bool) -> Self {
        match model_files {
            #[cfg(feature = "mm-routing")]
            true => RoutePolicy::MmKv,
            _ => RoutePolicy::MediaPrefix,
        }
    }

    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "mm-routing")]
            RoutePolicy::MmKv => "mm-kv",
            RoutePolicy::MediaPrefix => "media-prefix",
            RoutePolicy::MediaAffinity => "media-affinity",
            RoutePolicy::LeastLoaded => "least-loaded",
            RoutePolicy::RoundRobin => "round-robin",
        }
    }
}

/// What weighs how much. The unit is a token of a prompt that a worker does not have to compute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// A token of an image that the worker need neither process nor encode, though it must compute it.
    pub media: f64,
    /// A token of work that is on the worker already. It makes one request wait; a token that is computed again, all.
    pub load: f64,
    /// Share of a prompt that a worker must hold for that to count, where it does not hold the largest image.
    pub min_overlap: f64,
    /// How much chance there is in the choice: 0 for none; at 1, a worker that costs a whole prompt more is chosen by 1/e as
    /// often.
    pub temperature: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Weights { media: 0.5, load: 0.5, min_overlap: 0.5, temperature: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for policy in RoutePolicy::value_variants() {
            let value = policy.to_possible_value().unwrap();
            assert_eq!(value.get_name(), policy.name());
        }
    }
}
